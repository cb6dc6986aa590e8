"""File systems: what EFS and FSx for Lustre take, in which order, and what they refuse, by boto3."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from orch.rehearsal.aws.client_hook import session


@pytest.fixture
def efs(account: Any) -> Any:
    return session(account.cloud).client("efs")


@pytest.fixture
def fsx(account: Any) -> Any:
    return session(account.cloud).client("fsx")


def code(call: Any, **arguments: Any) -> str:
    """The code that a call is refused with."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return str(caught.value.response["Error"]["Code"])


def lustre(account: Any, size: int = 1200, throughput: int = 125) -> dict[str, Any]:
    return {
        "FileSystemType": "LUSTRE",
        "FileSystemTypeVersion": "2.15",
        "StorageCapacity": size,
        "SubnetIds": [account.subnet],
        "SecurityGroupIds": [account.group],
        "LustreConfiguration": {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": throughput},
    }


def test_mount_targets_come_after_their_file_system_and_go_before_it(account: Any, efs: Any) -> None:
    account.cloud.turn(clock=1000.0, pending_s=30)
    made = efs.create_file_system(CreationToken="t", Encrypted=True, Tags=[{"Key": "Name", "Value": "n"}])
    where = {"FileSystemId": made["FileSystemId"], "SubnetId": account.subnet}
    assert (made["LifeCycleState"], made["Name"]) == ("creating", "n")
    assert code(efs.create_mount_target, **where) == "IncorrectFileSystemLifeCycleState"
    assert code(efs.create_file_system, CreationToken="t") == "FileSystemAlreadyExists"
    account.cloud.turn(clock=1031.0)
    target = efs.create_mount_target(**where, SecurityGroups=[account.group])
    assert code(efs.create_mount_target, **where) == "MountTargetConflict"
    assert code(efs.delete_file_system, FileSystemId=made["FileSystemId"]) == "FileSystemInUse"
    efs.delete_mount_target(MountTargetId=target["MountTargetId"])
    assert code(efs.describe_mount_targets, MountTargetId=target["MountTargetId"]) == "MountTargetNotFound"
    efs.delete_file_system(FileSystemId=made["FileSystemId"])
    assert code(efs.describe_file_systems, FileSystemId=made["FileSystemId"]) == "FileSystemNotFound"
    assert efs.describe_file_systems()["FileSystems"] == []


def test_a_mount_target_holds_its_subnet_and_its_group(account: Any, efs: Any, refused: Any) -> None:
    identifier = efs.create_file_system(CreationToken="t")["FileSystemId"]
    efs.create_mount_target(FileSystemId=identifier, SubnetId=account.subnet, SecurityGroups=[account.group])
    for action, name, value in (
        ("DeleteSecurityGroup", "GroupId", account.group),
        ("DeleteSubnet", "SubnetId", account.subnet),
    ):
        assert refused(account.call, action, **{name: value}).code == "DependencyViolation"


def test_the_throughput_of_an_efs_has_bounds_and_falls_once_a_day(account: Any, efs: Any) -> None:
    provisioned = {"CreationToken": "t", "ThroughputMode": "provisioned"}
    assert code(efs.create_file_system, **provisioned) == "BadRequest"
    account.cloud.turn(clock=1_000_000.0)
    made = efs.create_file_system(**provisioned, ProvisionedThroughputInMibps=256.0)
    change = {"FileSystemId": made["FileSystemId"], "ThroughputMode": "provisioned"}
    over = {**change, "ProvisionedThroughputInMibps": 3415.0}
    assert code(efs.update_file_system, **over) == "ThroughputLimitExceeded"
    efs.update_file_system(**change, ProvisionedThroughputInMibps=128.0)
    less = {**change, "ProvisionedThroughputInMibps": 64.0}
    assert code(efs.update_file_system, **less) == "TooManyRequests"
    account.cloud.turn(clock=1_000_000.0 + 25 * 3600)
    assert efs.update_file_system(**less)["ProvisionedThroughputInMibps"] == 64.0


@pytest.mark.parametrize(("size", "throughput"), [(1000, 125), (3600, 125), (1200, 300)])
def test_a_lustre_of_another_size_is_refused(account: Any, fsx: Any, size: int, throughput: int) -> None:
    assert code(fsx.create_file_system, **lustre(account, size, throughput)) in (
        "BadRequest",
        "InvalidPerUnitStorageThroughput",
    )


def test_a_lustre_grows_only_and_not_twice_in_six_hours(account: Any, fsx: Any) -> None:
    account.cloud.turn(clock=1_000_000.0)
    made = fsx.create_file_system(**lustre(account))["FileSystem"]
    identifier = made["FileSystemId"]
    assert len(made["LustreConfiguration"]["MountName"]) == 8
    for size in (1200, 3600):
        assert code(fsx.update_file_system, FileSystemId=identifier, StorageCapacity=size) == "BadRequest"
    fsx.update_file_system(FileSystemId=identifier, StorageCapacity=2400)
    assert code(fsx.update_file_system, FileSystemId=identifier, StorageCapacity=4800) == "BadRequest"
    account.cloud.turn(clock=1_000_000.0 + 7 * 3600, quotas={"lustre-persistent-2-storage": 2400})
    grows = {"FileSystemId": identifier, "StorageCapacity": 4800}
    assert code(fsx.update_file_system, **grows) == "ServiceLimitExceeded"
    fsx.delete_file_system(FileSystemId=identifier)
    assert code(fsx.describe_file_systems, FileSystemIds=[identifier]) == "FileSystemNotFound"
