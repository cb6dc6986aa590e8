"""Leases as callers of one fleet meet them: real engine, simulated account."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.cloud_engine import quiet
from kit.clouds.rehearsals import Rehearsed
from kit.engine.remote_state import bucket
from kit.support import ORCH, Folder, Said, until

from orch.rehearsal.project import rehearse
from orch.spec.loader.load import load_paths
from orch.stacks.plans.request import FleetRequest
from orch.stacks.project.project import find
from orch.stacks.provisioning import operations
from orch.stacks.pulumi.leasing import take
from orch.stacks.pulumi.progress import Activity, Progress
from orch.stacks.stack.leases import Leased
from orch.stacks.stack.state import StackState

pytestmark = pytest.mark.timeout(900)

KIND = "c7i.8xlarge"
MINE, THEIRS = ("--owner", "PR #12"), ("--owner", "PR #13")
SMALL: dict[str, Any] = {"instance_types": [KIND]}


def lease(there: Rehearsed, verb: str, *words: str) -> Said:
    return there.orch("lease", verb, "p5.yml", *words, "--rehearse")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, engine: None) -> Rehearsed:
    there: Rehearsed = Rehearsed.make(tmp_path_factory.mktemp("leases"))
    there.fleet(1, **SMALL)
    return there


def test_until_it_is_released_its_owner_alone_changes_the_fleet(lab: Rehearsed) -> None:
    assert lab.orch("preview", "p5.yml", "--rehearse", "--out", "plan.json").code == 0
    said = lease(lab, "take", *MINE, "--for", "2h", "--json")
    assert said.code == 0, said.err
    assert said.json["leases"][0]["lease"]["owner"] == "PR #12"
    for words in (
        ("up", "p5.yml", "--yes", *THEIRS),
        ("up", "p5.yml", "--yes"),
        ("up", "--plan", "plan.json", "--result", "result.json", *THEIRS),
        ("down", "p5", "--yes", *THEIRS),
        ("lease", "take", "p5.yml", *THEIRS),
        ("lease", "release", "p5.yml", *THEIRS),
    ):
        said = lab.orch(*words, "--rehearse")
        assert said.code == 9, (words, said.out, said.err)
        assert "ORCH395: the fleet p5 is leased to PR #12" in said.err
        assert "`orch lease release p5 --force --rehearse`" in said.err
    assert lab.names(KIND) == []
    said = lab.orch("preview", "p5.yml", "--rehearse", "--markdown", *THEIRS)
    top = said.out.splitlines()[:12]
    assert top[1].startswith("### ⚠️ dangerous"), said.out
    (danger,) = (line for line in top if "**lease**" in line)
    assert "the fleet p5 is leased to PR #&#8203;12: nobody else may apply (PR" in danger
    # A refused plan is not void: who has the lease applies it, from any machine.
    said = lab.orch("up", "--plan", "plan.json", "--rehearse", *MINE)
    assert said.code == 0, said.err
    assert lab.names(KIND) == ["p5-0"]
    assert "released, was of PR #12" in lease(lab, "release", *MINE).out
    assert lease(lab, "release", *MINE).out == "fleet p5: no lease\n"
    assert lab.orch("up", "p5.yml", "--yes", "--rehearse", *THEIRS).code == 0


def test_a_lease_that_is_over_binds_nobody_and_anybody_may_break_one(lab: Rehearsed) -> None:
    said = lease(lab, "take", *MINE, "--for", "1s", "--json")
    assert said.code == 0, said.err
    ends = datetime.fromisoformat(said.json["leases"][0]["lease"]["until"].replace("Z", "+00:00"))
    until(lambda: datetime.now(timezone.utc) >= ends, 60, "the lease is over")
    assert ", which is over" in lease(lab, "show").out
    assert lease(lab, "take", *THEIRS).code == 0
    assert "released, was of PR #13" in lease(lab, "release", *MINE, "--force").out


def test_who_takes_it_after_the_plan_and_before_the_lock_is_not_overrun(lab: Rehearsed) -> None:
    project = replace(rehearse(find(lab.path), nodes=False).project, owner="PR #13")
    other = StackState(replace(project, owner="PR #12"), "p5")
    lab.fleet(2, **SMALL)
    (fleet,) = load_paths([lab.path / "p5.yml"]).require().fleets

    def taking(event: Progress) -> None:
        if event == Activity("bringing up the fleet p5"):
            take(other, "PR #12", 3600, quiet)

    with pytest.raises(Leased, match="leased to PR #12"):
        operations.up(project, FleetRequest(fleet, lab.path), taking)
    assert lab.names(KIND) == ["p5-0"]
    assert lease(lab, "release", *MINE).code == 0
    operations.up(project, FleetRequest(fleet, lab.path), quiet)
    assert lab.names(KIND) == ["p5-0", "p5-1"]


@dataclass(frozen=True)
class Owner(Folder):
    """A machine of its own, with a state that it shares."""

    environment: tuple[tuple[str, str], ...] = ()

    def orch(self, *words: str, **more: Any) -> Said:
        return super().orch(*words, env=dict(self.environment), **more)

    def started(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*ORCH, *words],
            cwd=self.path,
            env={**os.environ, **dict(self.environment)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(params=["folder", "bucket"])
def owners(request: pytest.FixtureRequest, tmp_path: Path, engine: None) -> Iterator[tuple[Owner, Owner]]:
    def owner(name: str, state: str) -> Owner:
        path = tmp_path / name
        path.mkdir()
        (path / "orch.yml").write_text(f"project: shared\nstate: {state}\n")
        (path / "pool.yml").write_text("type: fleet\nname: pool\nbackend: local\nnodes: 1\n")
        environment = {
            "PULUMI_CONFIG_PASSPHRASE": "for tests",
            "PULUMI_HOME": str(path / "home"),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        return Owner(path, tuple(environment.items()))

    if request.param == "bucket":
        with bucket() as url:
            yield owner("a", url), owner("b", url)
    else:
        (tmp_path / "state").mkdir(mode=0o700)
        url = f"file://{tmp_path}/state"
        yield owner("a", url), owner("b", url)


def test_of_two_that_take_it_at_once_one_has_it(owners: tuple[Owner, Owner]) -> None:
    started = [
        each.started("lease", "take", "pool.yml", "--owner", f"PR #{number}")
        for number, each in enumerate(owners)
    ]
    ended = [(each.communicate(timeout=600), each.returncode) for each in started]
    assert sorted(code for _, code in ended) == [0, 9], ended
    winner = [code for _, code in ended].index(0)
    assert "ORCH395" in ended[1 - winner][0][1]
    (row,) = owners[1 - winner].orch("lease", "show", "pool.yml", "--json").json["leases"]
    assert row["lease"]["owner"] == f"PR #{winner}"
    # All or none of a folder: what was taken before the refusal is given back.
    loser = owners[1 - winner]
    (loser.path / "fleets").mkdir()
    for name in ("aside", "pool"):
        text = f"type: fleet\nname: {name}\nbackend: local\nnodes: 1\n"
        (loser.path / "fleets" / f"{name}.yml").write_text(text)
    assert loser.orch("lease", "take", "fleets", "--owner", "PR #9").code == 9
    rows = loser.orch("lease", "show", "fleets", "--json").json["leases"]
    assert {each["stack"]: bool(each["lease"]) for each in rows} == {"aside": False, "pool": True}
