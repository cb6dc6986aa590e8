"""Credentials of another account: nothing of it counts as gone, nothing is changed, on every cloud.

Both simulated accounts tell what they have; the files of the state are compared byte by byte.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kit.clouds import runpod_engine
from kit.clouds.rehearsals import (
    Rehearsed,
    RehearsedCrusoe,
    RehearsedGcp,
    RehearsedLambda,
    RehearsedNebius,
    RehearsedRunpod,
)
from kit.support import Said

from orch.components.accounts import REHEARSED
from orch.rehearsal.scenario import Knobs
from orch.stacks.engine import install as engines
from orch.stacks.provisioning.nodes_with_runs import give_up

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("engine", "forked_providers")]

OTHER = {REHEARSED: "b"}
TASK = "type: task\nname: job\nfleets: [lab]\nnodes: 1\nimage: pytorch/pytorch:2.8.0\ncommands: ['true']\n"
VOLUMES = {
    "aws": "region: us-east-1\navailability_zone: us-east-1a\nsize: 10GB",
    "gcp": "region: us-central1\navailability_zone: us-central1-a\nsize: 10GB",
    "runpod": "region: US-TX-3\nsize: 100GB",
}
ZONES = {"aws": "us-east-1a", "gcp": "us-central1-a"}
SHARED: dict[str, Any] = {"network": {"name": "floor", "bastion": False, "interconnect": "ethernet"}}
MORE: dict[type[Rehearsed], dict[str, Any]] = {
    RehearsedGcp: {**SHARED, "placement": "any"},
    RehearsedRunpod: {"nodes": "0..2"},
}


def made(cloud: type[Rehearsed], path: Path, nodes: object = 2, **more: Any) -> Rehearsed:
    """A project with a fleet, and its two accounts."""
    there: Rehearsed = cloud.make(path)
    there.fleet(**{"nodes": nodes, **MORE.get(cloud, {}), **more})
    second = there.account_file.with_name(f"{there.backend}@b.db")
    there.account.create(second, knobs=Knobs(), other="b").store.close()
    return there


def other(there: Rehearsed) -> Any:
    """The account that the other credentials lead to."""
    return there.account(there.account_file.with_name(f"{there.backend}@b.db"))


def contents(there: Rehearsed) -> dict[str, bytes]:
    """The files of all stacks, and the keys."""
    folders = (there.stacks, there.stacks.parents[3] / "keys")
    files = [file for folder in folders if folder.is_dir() for file in folder.rglob("*") if file.is_file()]
    return {str(file): file.read_bytes() for file in files}


def accounts(there: Rehearsed, stack: str) -> dict[str, Any]:
    """The accounts that a stack is recorded to belong to."""
    file = there.stacks / f"{stack}.pulumi-tags"
    tags = json.loads(file.read_text())["tags"] if file.exists() else {}
    return json.loads(tags.get("orch:accounts", "{}"))


def refused(there: Rehearsed, *words: str, env: Mapping[str, str] = OTHER, code: str = "ORCH459") -> Said:
    """A command that ends with 9, and has changed neither account nor state."""
    state, first, second = contents(there), there.cloud.everything(), other(there).everything()
    said = there.orch(*words, "--rehearse", env=dict(env))
    assert (said.code, f"error {code}:" in said.err) == (9, True), (words, said.code, said.out, said.err)
    assert contents(there) == state, words
    assert there.cloud.everything() == first, words
    assert other(there).everything() == second, words
    return said


def verbs(there: Rehearsed) -> list[tuple[str, ...]]:
    """The commands that believe what a cloud says of a recorded resource, and change something."""
    name, file = there.called, f"{there.called}.yml"
    found = [
        ("up", file, "--yes"),
        ("refresh", name),
        ("down", name, "--yes"),
        ("down", name, "-i", "0", "--yes"),
        ("gc", "--yes"),
    ]
    if there.backend == "runpod":
        # Its node was made for a run that did not come.
        there.write("job.yml", TASK)
        return [*found, ("reconcile",), ("run", "job.yml", "--yes")]
    found += [("node", "replace", f"{name}-0", "--yes"), ("rollout", file, "--yes")]
    if there.backend in ZONES:
        found.append(("fleet", "evacuate", name, "--zone", ZONES[there.backend], "--yes"))
    return found


@pytest.mark.parametrize(
    "cloud", [Rehearsed, RehearsedGcp, RehearsedNebius, RehearsedCrusoe, RehearsedRunpod]
)
def test_each_verb_refuses_the_key_of_another_account_and_goes_on_with_the_right_one(
    cloud: type[Rehearsed], tmp_path: Path
) -> None:
    there = made(cloud, tmp_path)
    name, file = there.called, f"{there.called}.yml"
    assert (said := there.up()).code == 0, said.err
    if cloud is RehearsedRunpod:
        mark, _ = runpod_engine.stack(tmp_path).grow(1)
        give_up(mark)
    own = accounts(there, name)[there.backend]
    for words in [("preview", file), ("drift", name), *verbs(there)]:
        said = refused(there, *words)
        assert own["words"] in said.err, words
        assert f"{REHEARSED}=b" in said.err, words
    # Of a folder each stack is told for itself.
    said = refused(there, "preview", ".")
    assert f"fleet {name}" in said.out
    if there.backend == "gcp":
        assert accounts(there, "network.floor") == {"gcp": own}
    again = there.preview(None, "--exit-code")
    assert (again.code, again.json["summary"]["delete"]) == (0, 0), again.out + again.err
    assert there.orch("drift", name, "--rehearse").code == 0
    assert (said := there.down()).code == 0, said.err
    assert there.cloud.everything() == {}


@pytest.mark.parametrize("cloud", [Rehearsed, RehearsedGcp, RehearsedRunpod])
def test_a_volume_is_believed_to_be_gone_in_its_own_account_alone(
    cloud: type[Rehearsed], tmp_path: Path
) -> None:
    there = made(cloud, tmp_path)
    text = f"type: volume\nname: data\nbackend: {there.backend}\n{VOLUMES[there.backend]}\nprotect: false\n"
    there.write("data.yml", text)
    assert (said := there.orch("up", "data.yml", "--yes", "--rehearse")).code == 0, said.err
    assert accounts(there, "volume.data").keys() == {there.backend}
    for words in (
        ("preview", "data.yml"),
        ("up", "data.yml", "--yes"),
        ("drift", "data.yml"),
        ("refresh", "data.yml"),
        ("volume", "delete", "data", "--yes"),
        ("down", "data.yml", "--yes"),
        ("gc", "--yes"),
    ):
        refused(there, *words)
    assert there.orch("drift", "data.yml", "--rehearse").code == 0
    assert there.orch("volume", "delete", "data", "--yes", "--rehearse").code == 0
    assert there.cloud.everything() == {}


def test_on_a_cloud_that_tells_no_account_all_is_gone_at_once_only_by_the_users_word(tmp_path: Path) -> None:
    there = made(RehearsedLambda, tmp_path)
    assert there.up().code == 0
    assert accounts(there, "lab") == {}
    for words in verbs(there):
        said = refused(there, *words, code="ORCH349")
        assert "`orch refresh lab --forget --rehearse`" in said.err, words
    # What changes nothing tells it.
    for words, code in ((("preview", "lab.yml"), 0), (("drift", "lab"), 10)):
        state = contents(there)
        said = there.orch(*words, "--rehearse", env=OTHER)
        assert (said.code, "is gone at once" in said.err, contents(there)) == (code, True, state), said.err
    assert there.preview(None, "--exit-code").code == 0
    assert there.orch("drift", "lab", "--rehearse").code == 0

    # One of two machines that is gone is believed, without a word: the others are there.
    lost, _ = sorted(there.nodes(), key=lambda each: there.cloud.instances()[each]["hostname"])
    there.cloud.lose_host(lost)
    assert (said := there.up()).code == 0, said.err
    assert lost not in there.nodes()

    # Deleted elsewhere, or given up: one option records it.
    said = there.orch("refresh", "lab", "--forget", "--rehearse", env=OTHER)
    assert said.code == 0, said.err
    assert "instance lab-[0-1]: (gone)" in said.out
    assert list(there.recorded().values()) == ["orch-lambda:index:Gang"]
    assert (said := there.orch("down", "lab", "--yes", "--rehearse", env=OTHER)).code == 0, said.err
    assert len(there.nodes()) == 2


def test_a_stack_of_an_older_orch_is_compared_by_what_it_records_until_its_next_up(tmp_path: Path) -> None:
    there = made(Rehearsed, tmp_path, nodes=1)
    assert there.up().code == 0
    (there.stacks / "p5.pulumi-tags").unlink()
    for words in (("refresh", "p5"), ("down", "p5", "--yes"), ("up", "p5.yml", "--yes"), ("gc", "--yes")):
        said = refused(there, *words, code="ORCH349")
        assert "the account of the stack is not recorded" in said.err
    said = there.up()
    assert (said.code, "no changes" in said.out) == (0, True), said.out + said.err
    assert accounts(there, "p5").keys() == {"aws"}
    refused(there, "down", "p5", "--yes")

    # Who cannot ask which account it is changes nothing; what needs no cloud asks nobody.
    there.cloud.turn(denied=["sts:GetCallerIdentity"])
    state, calls = contents(there), there.calls()
    for words in (("ps",), ("fleet", "show", "p5"), ("show", "p5")):
        assert (said := there.orch(*words, "--rehearse")).code == 0, said.err
    assert there.calls() == calls
    for words in (("down", "p5", "--yes"), ("up", "p5.yml", "--yes"), ("refresh", "p5"), ("gc", "--yes")):
        said = there.orch(*words, "--rehearse")
        assert (said.code, "GetCallerIdentity" in said.err) == (5, True), (words, said.err)
    assert contents(there) == state
    there.cloud.turn(denied=[])
    assert there.down().code == 0
    assert there.cloud.everything() == {}


def test_a_first_up_that_was_killed_is_gone_on_with_in_its_own_account_alone(tmp_path: Path) -> None:
    there = made(Rehearsed, tmp_path, nodes=1)
    there.killed_at({"action": "RunInstances", "nth": 1, "when": "after"}, "up", "p5.yml")
    assert accounts(there, "p5").keys() == {"aws"}
    for words in (("up", "p5.yml", "--yes"), ("down", "p5", "--yes"), ("reconcile",), ("gc", "--yes")):
        refused(there, *words)
    assert (said := there.up()).code == 0, said.err
    assert len(there.nodes()) == 1
    assert there.unrecorded() == {}
    # Of two first calls in two accounts, the second one finds the record of the first.
    refused(there, "up", "p5.yml", "--yes")
    assert there.down().code == 0


def test_an_up_of_which_nothing_is_left_binds_the_fleet_to_no_account(tmp_path: Path) -> None:
    there = made(Rehearsed, tmp_path, nodes=1)
    creations = ("ec2:CreateVpc", "ec2:CreatePlacementGroup", "ec2:ImportKeyPair", "iam:CreateRole")
    other(there).turn(denied=list(creations))
    said = there.orch("up", "p5.yml", "--yes", "--rehearse", env=OTHER)
    assert (said.code, "nothing of it is left" in said.err) == (5, True), said.err
    assert other(there).everything() == {}
    assert accounts(there, "p5") == {}
    assert there.orch("gc", "--rehearse").code == 0
    assert (said := there.up()).code == 0, said.err
    refused(there, "down", "p5", "--yes")


def test_a_rebuilt_state_and_pulumi_by_hand_know_the_account(tmp_path: Path) -> None:
    there = made(Rehearsed, tmp_path, nodes=1)
    assert there.up().code == 0
    own = accounts(there, "p5")
    shutil.rmtree(there.stacks.parents[2])
    said = there.orch("state", "import", "p5.yml", "--yes", "--rehearse")
    assert said.code == 0, said.err
    assert accounts(there, "p5") == own
    refused(there, "down", "p5", "--yes")

    assert there.orch("init").code == 0
    lines = there.orch("engine", "env", "--rehearse").out.splitlines()
    pairs = (shlex.split(line.removeprefix("export "))[0].partition("=") for line in lines)
    environment = {**os.environ, **{name: value for name, _, value in pairs}}
    environment["PATH"] = f"{Path(sys.prefix) / 'bin'}:{environment['PATH']}"
    words = [str(engines.require().command), "preview", "--stack", "p5", "--non-interactive"]
    for env, is_own in (({}, True), (OTHER, False)):
        state = contents(there)
        done = subprocess.run(
            words, cwd=tmp_path, env={**environment, **env}, check=False, capture_output=True, timeout=300
        )
        text = (done.stdout + done.stderr).decode()
        assert (done.returncode == 0, "ORCH459" not in text) == (is_own, is_own), text
        assert contents(there) == state
