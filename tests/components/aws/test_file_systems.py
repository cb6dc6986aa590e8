"""File systems that are created with AWS fleets, through the real engine on a simulated account."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.clouds.aws_engine import Stack, stack
from kit.clouds.rehearsals import Rehearsed

from orch.runner.preparation.mounts import CREATED, created_name
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet


@pytest.fixture
def lab(tmp_path: Path) -> Stack:
    return stack(tmp_path / "project")


def fleet(*mounts: dict[str, Any], nodes: str = "1", **more: Any) -> Fleet:
    base = {"type": "fleet", "name": "p5", "backends": ["aws"], "regions": ["us-east-1"]}
    base |= {"instance_types": ["g5.xlarge"], "nodes": nodes, "mounts": list(mounts)}
    return Fleet.model_validate({**base, **more})


def efs(**create: str) -> dict[str, Any]:
    return {"type": "efs", "path": "/shared", "create": create or "true"}


def lustre(**create: str) -> dict[str, Any]:
    return {"type": "fsx-lustre", "path": "/fast", "create": create or "true"}


def changed(changes: Any) -> list[tuple[str, str]]:
    return sorted((each.op, each.type.rpartition(":")[2]) for each in changes if each.op != "same")


def sources(lab: Stack, node: str) -> dict[str, str]:
    """What a node was told to mount."""
    config = yaml.safe_load(lab.user_data(node))
    (file,) = [each for each in config["write_files"] if each["path"] == CREATED]
    lines = [line.split(" ", 2) for line in b64decode(file["content"]).decode().splitlines()]
    return {path: source for name, source, path in lines if name == created_name(path)}


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked_providers")
def test_file_systems_come_with_the_fleet_grow_and_go_with_it(lab: Stack) -> None:
    wanted = fleet(efs(), lustre())
    lab.up(wanted)
    (file_system,) = lab.cloud.things("efs-file-system").values()
    (target,) = lab.cloud.things("efs-mount-target").values()
    (fast,) = lab.cloud.things("fsx-file-system").values()
    (instance,) = lab.live(instance_type="g5.xlarge")
    assert file_system["Encrypted"]
    assert target["SubnetId"] == instance["SubnetId"] == fast["SubnetIds"][0]
    assert (fast["StorageCapacity"], fast["LustreConfiguration"]["PerUnitStorageThroughput"]) == (1200, 125)
    assert sources(lab, "p5-0") == {
        "/shared": f"{file_system['FileSystemId']}.efs.us-east-1.amazonaws.com:/",
        "/fast": f"{fast['DNSName']}@tcp:/{fast['LustreConfiguration']['MountName']}",
    }
    assert changed(lab.plan(wanted).changes) == []
    assert lab.drift() == ()
    larger = fleet(efs(throughput="256"), lustre(size="2400GB", throughput="250"), nodes="2")
    assert changed(lab.up(larger)) == [
        ("create", "Instance"),
        ("update", "FileSystem"),
        ("update", "LustreFileSystem"),
    ]
    (grown,) = lab.cloud.things("fsx-file-system").values()
    assert (grown["FileSystemId"], grown["StorageCapacity"]) == (fast["FileSystemId"], 2400)
    assert sources(lab, "p5-1") == sources(lab, "p5-0")

    with pytest.raises(PlanErrors, match="would shrink") as caught:
        lab.plan(wanted)
    assert [(each.code, each.path) for each in caught.value.findings] == [
        ("ORCH264", "mounts[1].create.size")
    ]
    protected = larger.model_copy(update={"mounts": larger.mounts[:1], "protect": True})
    with pytest.raises(PlanErrors, match="is protected"):
        lab.plan(protected)

    lab.cloud.call("DeleteMountTarget", {"MountTargetId": target["MountTargetId"]}, service="efs")
    assert [each.name for each in lab.drift()]
    assert ("create", "MountTarget") in changed(lab.up(larger))
    lab.down()
    assert lab.cloud.everything() == {}


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("engine")
def test_an_up_that_is_killed_goes_on_and_leaves_no_second_file_system(tmp_path: Path) -> None:
    there = Rehearsed.make(tmp_path)
    there.fleet(1, name="p5", instance_types=["g5.xlarge"], placement="any", mounts=[efs()])
    for action in ("CreateFileSystem", "CreateMountTarget"):
        there.killed_at({"action": action, "nth": 1, "when": "after"}, "up", "p5.yml")
        assert there.kinds()["efs-file-system"] == 1
    # No `up` has ended yet: without a terminal nothing is removed, but what would be is told.
    said = there.orch("down", "p5", "--rehearse")
    assert "the file system at /shared (EFS fs-" in said.err, said.err
    said = there.up()
    assert said.code == 0, said.err
    assert (there.kinds()["efs-file-system"], there.kinds()["efs-mount-target"]) == (1, 1)
    assert there.unrecorded() == {}

    there.fleet(1, name="p5", instance_types=["g5.xlarge"], placement="any")
    said = there.orch("up", "p5.yml", "--yes", "--force", "--rehearse")
    assert "ORCH275" in said.err, said.err
    assert "--lose-data /shared" in said.err
    assert there.kinds()["efs-file-system"] == 1
    said = there.orch("up", "p5.yml", "--yes", "--lose-data", "/shared", "--rehearse")
    assert said.code == 0, said.err
    assert "efs-file-system" not in there.kinds()
    assert there.down().code == 0
    assert there.cloud.everything() == {}
