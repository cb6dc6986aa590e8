"""What becomes of a GCP fleet that is up when its file changes; the simulated account is the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gcp_engine import Stack, stack

from orch.spec.models import Fleet

TYPE = "g2-standard-8"

pytestmark = pytest.mark.usefixtures("forked_providers")


@pytest.fixture
def lab(tmp_path: Path) -> Stack:
    return stack(tmp_path / "project")


def fleet(nodes: int = 2, **more: Any) -> Fleet:
    base = {"type": "fleet", "name": "train", "backends": ["gcp"], "placement": "cluster"}
    base |= {"nodes": str(nodes), "instance_types": [TYPE], "regions": ["us-central1"]}
    return Fleet.model_validate({**base, "network": {"bastion": False}, **more})


def pending(changes: Any) -> list[tuple[str, str]]:
    return [(change.op, change.name) for change in changes if change.op != "same"]


def ids(lab: Stack) -> dict[str, str]:
    """Node -> the number that no other instance has, or had."""
    return {each["labels"]["orch-urn"].rpartition("__")[2]: each["id"] for each in lab.live(TYPE)}


def test_a_fleet_grows_shrinks_is_replaced_and_gets_a_bastion_as_its_file_says(lab: Stack) -> None:
    lab.up(fleet())
    before = ids(lab)
    # A newer start script is for new nodes: growing touches none.
    grown = pending(lab.up(fleet(3, init=["echo new"])))
    assert ("create", "train-2") in grown
    assert {name for op, name in grown if op != "create"} <= {"train-template"}
    after = ids(lab)
    assert before.items() < after.items()
    assert len(lab.cloud.things("instance-template")) == 1
    assert pending(lab.preview(fleet(3, init=["echo new"]))) == []

    # Shrinking takes the last.
    shrunk = pending(lab.up(fleet(1, init=["echo new"])))
    assert [name for op, name in shrunk if op == "delete"] == ["train-1", "train-2"]
    assert ids(lab) == {name: after[name] for name in after if name.endswith("0")}

    # What only a new instance can have replaces it.
    before = ids(lab)
    local: dict[str, Any] = {"scratch": {"path": "/local"}}
    changed = pending(lab.up(fleet(1, **local)))
    assert [op for op, name in changed if name == "train-0"] == ["replace"]
    assert ids(lab).keys() == before.keys()
    assert ids(lab) != before
    assert pending(lab.preview(fleet(1, **local))) == []

    # A bastion and its rules come beside the nodes, and go with the fleet.
    before = ids(lab)
    wanted = fleet(1, network={"bastion": True, "ssh_cidrs": ["198.51.100.0/24"]}, **local)
    changed = pending(lab.up(wanted))
    assert ("create", "train-bastion") in changed
    assert ids(lab).items() >= before.items()
    bastion = lab.instance(next(each["name"] for each in lab.live("e2-medium")))
    assert bastion["networkInterfaces"][0]["accessConfigs"][0]["natIP"]
    assert (
        lab.state().nodes[0].ssh.jump[0].address
        == bastion["networkInterfaces"][0]["accessConfigs"][0]["natIP"]
    )
    assert pending(lab.preview(wanted)) == []
    assert lab.drift() == ()
    lab.down()
    assert lab.cloud.everything() == {}
