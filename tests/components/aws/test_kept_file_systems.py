"""File systems with data go by the user's word alone: the real engine, on a simulated account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.clouds.aws_engine import Stack, stack

from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.stacks.errors import EngineFailed, NoCapacity, StackError
from orch.stacks.pulumi.operation import EngineCall, engine
from orch.stacks.stack.state import StackState

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("forked_providers")]

EFS = {"type": "efs", "path": "/shared", "create": "true"}


@pytest.fixture
def lab(tmp_path: Path) -> Stack:
    return stack(tmp_path / "project")


def fleet(*mounts: dict[str, Any], kind: str = "g5.xlarge", **more: Any) -> Fleet:
    base = {"type": "fleet", "name": "p5", "backends": ["aws"], "regions": ["us-east-1"], "nodes": "1"}
    return Fleet.model_validate({**base, "instance_types": [kind], "mounts": list(mounts), **more})


def lustre(size: str = "1200GB") -> dict[str, Any]:
    return {"type": "fsx-lustre", "path": "/fast", "create": {"size": size}}


def ids(lab: Stack) -> set[str]:
    kinds = ("efs-file-system", "fsx-file-system")
    return {each["FileSystemId"] for kind in kinds for each in lab.cloud.things(kind).values()}


def refused(lab: Stack, wanted: Fleet) -> list[tuple[str, str | None]]:
    """The errors that `up` refuses a fleet with; no file system goes."""
    before = ids(lab)
    with pytest.raises(PlanErrors) as caught:
        lab.up(wanted)
    assert ids(lab) == before
    return [(each.code, each.path) for each in caught.value.findings]


def test_an_up_without_capacity_keeps_the_data_of_a_fleet_that_lost_its_nodes(lab: Stack) -> None:
    wanted = fleet(EFS)
    lab.up(wanted)
    kept = ids(lab)
    (instance,) = lab.live(instance_type="g5.xlarge")
    lab.cloud.call("TerminateInstances", {"InstanceIds": [instance["InstanceId"]]})
    lab.cloud.turn(capacity={"g5.xlarge": 0})
    for _ in range(2):  # the second time no node is recorded
        with pytest.raises(NoCapacity, match="they are kept"):
            lab.up(wanted)
        assert ids(lab) == kept
    lab.cloud.turn(capacity={})
    lab.up(wanted)
    assert ids(lab) == kept
    lab.down()
    assert lab.cloud.everything() == {}


def test_what_would_delete_data_is_refused_until_the_user_names_it(lab: Stack) -> None:
    wanted = fleet(EFS, lustre())
    lab.up(wanted)
    (file_system,) = lab.cloud.things("efs-file-system")
    assert refused(lab, fleet(EFS)) == [("ORCH275", "mounts")]
    assert refused(lab, fleet(lustre(), {**EFS, "type": "fsx-lustre"})) == [("ORCH275", "mounts[1].type")]
    assert set(refused(lab, fleet(EFS, lustre(), kind="g5.2xlarge"))) == {
        ("ORCH275", "mounts[0]"),
        ("ORCH275", "mounts[1]"),
    }

    # Grown elsewhere: what the file has is smaller than what is there, though orch never recorded that.
    (fast,) = lab.cloud.things("fsx-file-system").values()
    grow = {"FileSystemId": fast["FileSystemId"], "StorageCapacity": 2400}
    lab.cloud.call("UpdateFileSystem", grow, service="fsx")
    with pytest.raises(StackError, match=r"/fast .*all data on it lost") as caught:
        lab.up(wanted)
    assert caught.value.code == "ORCH275"
    assert len(ids(lab)) == 2

    lab.up(fleet(EFS), lose_data=["/fast"])
    assert not lab.cloud.things("fsx-file-system")
    assert list(lab.cloud.things("efs-file-system")) == [file_system]

    # Deleted behind our back: a new one would be empty.
    (target,) = lab.cloud.things("efs-mount-target").values()
    lab.cloud.call("DeleteMountTarget", {"MountTargetId": target["MountTargetId"]}, service="efs")
    lab.cloud.call("DeleteFileSystem", {"FileSystemId": next(iter(ids(lab)))}, service="efs")
    assert refused(lab, fleet(EFS)) == [("ORCH275", "mounts")]
    lab.up(fleet(EFS), lose_data=["/shared"])
    assert len(ids(lab)) == 1

    # By hand, past orch.
    state, call = StackState(lab.project, "p5"), EngineCall(lambda _: None, planning=False)
    with pytest.raises(EngineFailed) as by_hand:
        engine(state, ["destroy", "--yes", "--skip-preview"], call)
    assert "protected" in str(by_hand.value.detail)
    assert len(ids(lab)) == 1
    lab.down()
    assert lab.cloud.everything() == {}


def test_one_that_was_made_for_nodes_that_did_not_come_goes_with_its_place(lab: Stack) -> None:
    lab.cloud.turn(capacity={"g5.xlarge": 0})
    with pytest.raises(NoCapacity, match="nothing of it is left"):
        lab.up(fleet(EFS, availability_zones=["us-east-1a"]))
    assert lab.cloud.everything() == {}
