"""AWS fleets with a `ttl`, through the real engine, on a simulated account."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.clouds.aws_engine import Stack, stack
from kit.clouds.cloud_engine import quiet

from orch.cli.runs.control import see_to_fleets
from orch.components.lifetime import TAG
from orch.runner.ledger.ledger import open_ledger
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.stacks.plans import request
from orch.stacks.provisioning import operations
from orch.stacks.runs.sweep import sweep

QUOTAS = {"L-417A185B": 20_000, "L-DB2E81BA": 20_000}
TYPE = "g6.xlarge"

pytestmark = [pytest.mark.usefixtures("engine", "forked_providers"), pytest.mark.timeout(600)]


def fleet(**more: Any) -> Fleet:
    base = {"type": "fleet", "name": "p5", "backends": ["aws"], "instance_types": [TYPE], "nodes": 2}
    return Fleet.model_validate({**base, "regions": ["us-east-1"], "gang": "all-or-nothing", **more})


def ends(lab: Stack) -> dict[str, int]:
    """When each of the machines ends itself, by its tag."""
    tags = [{tag["Key"]: tag["Value"] for tag in each["Tags"]} for each in lab.live()]
    return {each["Name"]: int(each[TAG]) for each in tags if TAG in each}


def test_all_machines_end_at_one_moment_which_moves_with_the_file_and_what_ended_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, before = stack(tmp_path / "project", quotas=QUOTAS), int(time.time())
    lab.up(fleet(ttl="2h"))
    told = ends(lab)
    assert set(told) == {"p5-0", "p5-1", "p5-bastion"}
    (end,) = set(told.values())
    assert before + 7200 <= end <= time.time() + 7200
    # They end for good, and so does what is paid beside them.
    things = lab.cloud.things("instance").values()
    assert {(each["_shutdown"], each["MetadataOptions"]["InstanceMetadataTags"]) for each in things} == {
        ("terminate", "enabled")
    }
    (reservation,) = lab.cloud.things("capacity-reservation").values()
    assert reservation["EndDateType"] == "limited"
    data = lab.user_data("p5-0").decode()
    assert f"ends={end}" in data
    assert "[systemctl, enable, --now, orch-ttl.service]" in data
    assert {each.op for each in lab.preview(fleet(ttl="2h"))} == {"same"}

    # In place, and counted from the creation.
    changed = {each.name: each.op for each in lab.up(fleet(ttl="3h")) if each.op != "same"}
    assert set(changed.values()) == {"update"}
    assert {"p5-0", "p5-1", "p5-bastion", "p5-capacity"} <= set(changed)
    assert set(ends(lab).values()) == {end + 3600}

    # A `ttl` that is over by the file alone: the machines know of another end, and run on.
    with pytest.raises(PlanErrors, match="its machines run: they end themselves at"):
        lab.plan(fleet(ttl="1s"))

    # Its time is over: what ended itself is not brought back, whatever `nodes` says.
    monkeypatch.setattr(request, "time", SimpleNamespace(time=lambda: end + 3601.0))
    ids = [each["InstanceId"] for each in lab.live()]
    for each in ids:
        lab.cloud.shut_down(each)
    over = lab.plan(fleet(ttl="3h"))
    assert (over.pending, over.unrecorded, over.drift) == (False, False, ())
    assert [each.code for each in over.findings] == ["ORCH233"]
    assert lab.up(fleet(ttl="3h", nodes=4)) == ()
    assert lab.live() == []
    # A longer one brings it back.
    assert {each.op for each in lab.preview(fleet(ttl="9h"))} >= {"create"}
    monkeypatch.undo()
    operations.down(lab.project, "p5", quiet)
    assert lab.cloud.everything() == {}

    # Nobody is there when it is over: a controller removes what is left, and a pass would.
    lab.up(fleet(ttl="1s", gang="best-effort"))
    with closing(open_ledger(lab.project.ledger_url)) as ledger:
        told = [(each.text, each.level) for each in see_to_fleets(lab.project, ledger)]
    assert told == [("fleet p5: its time is over: removed", "info")]
    assert lab.cloud.everything() == {}
    assert sweep(lab.project, quiet) == ()
