"""EBS volumes on the simulated account: what is planned, refused, attached and detached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orch.components.aws.volumes import AwsVolumes
from orch.components.cloud_errors import CloudRefused
from orch.components.registry.volumes import plan_volume
from orch.components.volumes import Account, VolumeError, VolumePlan, VolumeRequest
from orch.rehearsal.aws import client_hook
from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.aws.api.errors import AwsError
from orch.runner.errors import DetachPending
from orch.spec.findings import PlanError
from orch.spec.models import Volume
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud.create(tmp_path / "account.db")


@pytest.fixture
def account(cloud: Cloud) -> Account:
    session = client_hook.session(cloud)
    return Account((), lambda backend: session)


Plan = Callable[..., VolumePlan]


@pytest.fixture
def plan(account: Account) -> Plan:
    def planned(previous: VolumeState | None = None, near: tuple[str, ...] = (), **more: Any) -> VolumePlan:
        given = {"name": "data", "backend": "aws", "region": "us-east-1", "size": "100GB"}
        volume = Volume.model_validate({key: value for key, value in (given | more).items() if value})
        return plan_volume(VolumeRequest(volume, account, previous, "ab12cd", near=near))

    return planned


def instance(cloud: Cloud, zone: str = "us-east-1a") -> NodeState:
    """A running instance, as a node."""
    vpc = cloud.call("CreateVpc", {"CidrBlock": "10.0.0.0/16"})["Vpc"]["VpcId"]
    subnet = {"VpcId": vpc, "CidrBlock": "10.0.0.0/24", "AvailabilityZone": zone}
    subnet_id = cloud.call("CreateSubnet", subnet)["Subnet"]["SubnetId"]
    names = [{"Name": "name", "Values": ["Deep Learning Base OSS*Ubuntu 22.04*"]}]
    image = cloud.call("DescribeImages", {"Owners": ["amazon"], "Filters": names})["Images"][-1]["ImageId"]
    launch = {
        "ImageId": image,
        "InstanceType": "m7i.large",
        "MinCount": 1,
        "MaxCount": 1,
        "SubnetId": subnet_id,
    }
    identifier = cloud.call("RunInstances", launch)["Instances"][0]["InstanceId"]
    record = {"index": 0, "name": f"node-{identifier}", "address": "10.0.0.9", "user": "root"}
    return NodeState.model_validate(record | {"host_key": "ssh-ed25519 AAAA", "machine": identifier})


def ebs(cloud: Cloud, **more: Any) -> VolumeState:
    """A volume of the account."""
    given = {"AvailabilityZone": "us-east-1a", "Size": 100, "VolumeType": "gp3"} | more
    identifier = cloud.call("CreateVolume", given)["VolumeId"]
    return VolumeState(name="data", backend="aws", region="us-east-1", zone="use1-az2", volume_id=identifier)


def test_a_volume_goes_where_nodes_are_else_to_the_first_zone(plan: Plan) -> None:
    first, near = plan(), plan(near=("use1-az4",))
    assert (first.state.zone, near.state.zone) == ("use1-az2", "use1-az4")
    assert (first.state.disk_type, first.state.size_mib, first.state.monthly) == ("gp3", 102400, 8.0)
    assert plan(availability_zone="us-east-1b").state.zone == plan(availability_zone="use1-az4").state.zone


def test_what_was_decided_stays_when_the_file_leaves_it_open(plan: Plan) -> None:
    before = plan(availability_zone="us-east-1c", disk_type="gp2").state.model_copy(
        update={"volume_id": "vol-1"}
    )
    after = plan(before, near=("use1-az2",)).state
    assert (after.zone, after.disk_type) == (before.zone, "gp2")


def test_a_price_that_the_list_does_not_have_is_unknown(plan: Plan) -> None:
    assert plan(region="eu-west-1").state.monthly is None
    assert plan(iops="6000").state.monthly is None


@pytest.mark.parametrize(
    ("wrong", "code", "path"),
    [
        ({"availability_zone": "us-east-1z"}, "ORCH225", "availability_zone"),
        ({"disk_type": "gp4"}, "ORCH111", "disk_type"),
        ({"disk_type": "io2"}, "ORCH270", "disk_type"),
        ({"disk_type": "st1", "iops": "500"}, "ORCH270", "iops"),
        ({"disk_type": "gp2", "throughput": "200"}, "ORCH270", "throughput"),
        ({"volume_id": "vol-0123456789abcdef0", "size": None}, "ORCH268", "volume_id"),
    ],
)
def test_what_ebs_does_not_have_is_refused_at_its_property(
    plan: Plan, wrong: dict[str, Any], code: str, path: str
) -> None:
    with pytest.raises(PlanError) as caught:
        plan(**wrong)
    assert (caught.value.code, caught.value.path) == (code, path)
    assert caught.value.hint


def test_a_protected_volume_is_not_replaced_and_none_shrinks(plan: Plan) -> None:
    before = plan().state.model_copy(update={"volume_id": "vol-1"})
    with pytest.raises(PlanError, match="all that is on it would be lost") as caught:
        plan(before, availability_zone="us-east-1c")
    assert (caught.value.code, caught.value.path) == ("ORCH348", "availability_zone")
    bare = before.model_copy(update={"protect": False})
    assert plan(bare, availability_zone="us-east-1c").state.zone != before.zone
    with pytest.raises(PlanError, match="100 GB, and 50 GB are less") as caught:
        plan(bare, size="50GB")
    assert caught.value.code == "ORCH264"
    assert plan(before, size="150GB").state.size_mib == 150 * 1024


def test_an_existing_volume_is_taken_as_it_is(cloud: Cloud, plan: Plan) -> None:
    known = ebs(cloud, Size=30, VolumeType="gp2")
    state = plan(volume_id=known.volume_id, size=None).state
    assert (state.external, state.volume_id, state.size_mib) == (True, known.volume_id, 30 * 1024)
    assert (state.zone, state.disk_type) == ("use1-az2", "gp2")


def test_a_volume_is_attached_once_and_detached_again(cloud: Cloud, account: Account) -> None:
    node, volume, volumes = instance(cloud), ebs(cloud), AwsVolumes()
    paths = volumes.attach(account, volume, node, read_only=False).paths
    assert paths == volumes.attach(account, volume, node, read_only=False).paths
    assert paths[0] == f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{volume.volume_id.replace('-', '')}"
    assert [call.action for call in cloud.calls].count("AttachVolume") == 1
    volumes.detach(account, volume, node)
    volumes.detach(account, volume, node)
    doc = cloud.call("DescribeVolumes", {"VolumeIds": [volume.volume_id]})["Volumes"][0]
    assert (doc["State"], doc["Attachments"]) == ("available", [])


def test_a_volume_whose_detaching_was_accepted_before_is_detached(cloud: Cloud, account: Account) -> None:
    class Twice(AwsVolumes):
        """A client that sends a call again, for the first answer was lost."""

        def detach_disk(self, client: Any, volume: VolumeState, instance: str) -> None:
            super().detach_disk(client, volume, instance)
            super().detach_disk(client, volume, instance)

    node, volume = instance(cloud), ebs(cloud)
    AwsVolumes().attach(account, volume, node, read_only=False)
    Twice().detach(account, volume, node)
    assert [call.action for call in cloud.calls].count("DetachVolume") == 2


@pytest.mark.parametrize(
    ("code", "raised"),
    [("UnauthorizedOperation", CloudRefused), ("InternalError", DetachPending), ("Odd", CloudRefused)],
)
def test_a_detaching_is_over_when_ec2_refuses_it_and_may_happen_after_other_errors(
    cloud: Cloud, account: Account, code: str, raised: type[Exception]
) -> None:
    node, volume = instance(cloud), ebs(cloud)
    AwsVolumes().attach(account, volume, node, read_only=False)
    cloud.turn(failures=[{"code": code, "action": "DetachVolume"}])
    with pytest.raises(raised, match=f"could not detach {volume.volume_id}"):
        AwsVolumes().detach(account, volume, node)


def test_two_volumes_of_an_instance_have_two_device_names(cloud: Cloud, account: Account) -> None:
    node, volumes = instance(cloud), AwsVolumes()
    attached = [volumes.attach(account, ebs(cloud), node, read_only=False).paths for _ in range(2)]
    assert [paths[-1] for paths in attached] == ["/dev/sdf", "/dev/sdg"]


def test_a_volume_that_another_instance_has_is_a_conflict_and_stays_there(
    cloud: Cloud, account: Account
) -> None:
    one, other, volume = instance(cloud), instance(cloud), ebs(cloud)
    AwsVolumes().attach(account, volume, one, read_only=False)
    with pytest.raises(VolumeError, match=f"is attached to {one.machine}") as caught:
        AwsVolumes().attach(account, volume, other, read_only=False)
    assert caught.value.code == "ORCH267"
    AwsVolumes().detach(account, volume, other)
    doc = cloud.call("DescribeVolumes", {"VolumeIds": [volume.volume_id]})["Volumes"][0]
    assert doc["Attachments"][0]["InstanceId"] == one.machine


def test_a_volume_outlives_the_instance_that_had_it(cloud: Cloud, account: Account) -> None:
    node, volume = instance(cloud), ebs(cloud)
    AwsVolumes().attach(account, volume, node, read_only=False)
    cloud.call("TerminateInstances", {"InstanceIds": [node.machine]})
    doc = cloud.call("DescribeVolumes", {"VolumeIds": [volume.volume_id]})["Volumes"][0]
    assert (doc["State"], doc["Attachments"]) == ("available", [])
    AwsVolumes().detach(account, volume, node)


def test_a_volume_that_is_gone_is_told(cloud: Cloud, account: Account) -> None:
    node, volume = instance(cloud), ebs(cloud)
    cloud.call("DeleteVolume", {"VolumeId": volume.volume_id})
    with pytest.raises(VolumeError, match="volume data is gone") as caught:
        AwsVolumes().attach(account, volume, node, read_only=False)
    assert caught.value.code == "ORCH268"
    AwsVolumes().detach(account, volume, node)


@pytest.mark.parametrize(
    ("action", "wrong", "code"),
    [
        ("CreateVolume", {"Size": 20_000, "VolumeType": "st1"}, "InvalidParameterValue"),
        ("CreateVolume", {"Size": 10, "VolumeType": "st1"}, "InvalidParameterValue"),
        ("CreateVolume", {"VolumeType": "io2"}, "MissingParameter"),
        ("CreateVolume", {"VolumeType": "gp3", "Iops": 100}, "InvalidParameterValue"),
        ("CreateVolume", {"VolumeType": "gp2", "Throughput": 200}, "InvalidParameterCombination"),
        ("CreateVolume", {"VolumeType": "gp9"}, "UnknownVolumeType"),
        ("CreateVolume", {"AvailabilityZone": "eu-west-1a"}, "InvalidZone.NotFound"),
        ("CreateVolume", {"KmsKeyId": "key"}, "InvalidParameterDependency"),
        ("ModifyVolume", {"Size": 50}, "InvalidParameterValue"),
        ("AttachVolume", {"zone": "us-east-1b"}, "InvalidVolume.ZoneMismatch"),
        ("AttachVolume", {"Device": "/dev/sda1"}, "InvalidParameterValue"),
    ],
)
def test_the_account_refuses_as_ec2_documents_it(
    cloud: Cloud, action: str, wrong: dict[str, Any], code: str
) -> None:
    given: dict[str, Any] = {"AvailabilityZone": "us-east-1a", "Size": 100}
    if action != "CreateVolume":
        given = {"VolumeId": ebs(cloud).volume_id}
    if action == "AttachVolume":
        node = instance(cloud, wrong.pop("zone", "us-east-1a"))
        given |= {"InstanceId": node.machine, "Device": "/dev/sdf"}
    with pytest.raises(AwsError) as caught:
        cloud.call(action, given | wrong)
    assert caught.value.code == code


def test_a_volume_is_modified_once_in_six_hours_and_kept_while_attached(cloud: Cloud) -> None:
    cloud.turn(clock=1_000.0)
    volume, node = ebs(cloud), instance(cloud)
    cloud.call("ModifyVolume", {"VolumeId": volume.volume_id, "Size": 200})
    with pytest.raises(AwsError, match="Wait at least 6 hours"):
        cloud.call("ModifyVolume", {"VolumeId": volume.volume_id, "Size": 300})
    cloud.turn(clock=1_000.0 + 6 * 3600)
    cloud.call("ModifyVolume", {"VolumeId": volume.volume_id, "Size": 300})
    attach = {"VolumeId": volume.volume_id, "InstanceId": node.machine, "Device": "/dev/sdf"}
    cloud.call("AttachVolume", attach)
    for action, given in (("DeleteVolume", {"VolumeId": volume.volume_id}), ("AttachVolume", attach)):
        with pytest.raises(AwsError) as caught:
            cloud.call(action, given)
        assert caught.value.code == "VolumeInUse"
