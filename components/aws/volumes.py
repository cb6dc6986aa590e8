"""Volumes of the backend `aws`: EBS volumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from orch.components.aws.account import gather_facts
from orch.components.aws.account.client import RegionClient
from orch.components.aws.account.client_errors import client_error, translate_errors
from orch.components.cloud.volumes import CloudDisks, DiskType, DiskZone, ExistingDisk, Holders
from orch.components.volumes import Account, VolumeError, VolumeRequest
from orch.spec.findings import PlanError
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState

if TYPE_CHECKING:
    import pulumi

# Names for more disks of an instance. Source: EC2 user guide, "Device names for volumes".
DEVICES = tuple(f"/dev/sd{letter}" for letter in "fghijklmnop")

# What DetachVolume answers for a volume that is not attached, or not any more. Source: EC2 API reference,
# "Error codes for the Amazon EC2 API".
NOT_ATTACHED = ("IncorrectState", "InvalidAttachment.NotFound")


class AwsVolumes(CloudDisks[RegionClient]):
    cloud: ClassVar[str] = "aws"
    product: ClassVar[str] = "EBS"
    # Source: EC2 API reference, CreateVolume.
    types: ClassVar[Mapping[str, DiskType]] = {
        "gp3": DiskType(iops=True, throughput=True),
        "gp2": DiskType(),
        "io1": DiskType(iops=True, needs_iops=True),
        "io2": DiskType(iops=True, needs_iops=True),
        "st1": DiskType(),
        "sc1": DiskType(),
        "standard": DiskType(),
    }
    default_type: ClassVar[str] = "gp3"
    own_key: ClassVar[str] = "the account's own key for EBS"
    better_types: ClassVar[Mapping[str, str]] = {"iops": "gp3, io1 or io2", "throughput": "gp3"}
    fixed: ClassVar[Mapping[str, str]] = {
        "backend": "backend",
        "region": "region",
        "zone": "availability_zone",
        "kms_key": "kms_key",
        "external": "volume_id",
    }

    def client(self, account: Account, region: str) -> RegionClient:
        settings = entry_of(account.settings, AwsSettings)
        session = account.session("aws") or gather_facts.open_session(settings)
        return RegionClient(session, region, settings.endpoint_url)

    def zones(self, client: RegionClient, region: str) -> tuple[DiskZone, ...]:
        return tuple(DiskZone(each.id, each.name) for each in client.zones())

    def usual_key(self, request: VolumeRequest) -> str | None:
        return _settings(request).kms_key

    def existing(
        self, client: RegionClient, request: VolumeRequest, zones: tuple[DiskZone, ...]
    ) -> ExistingDisk:
        volume = request.volume
        doc = _describe(client, str(volume.volume_id))
        if doc is None:
            raise PlanError(
                "ORCH268",
                f"the account has no volume {volume.volume_id} in {volume.region}",
                path="volume_id",
                hint="ids are listed by `aws ec2 describe-volumes`",
            )
        zone = next((each for each in zones if each.name == doc["AvailabilityZone"]), None)
        key = str(doc["KmsKeyId"]) if doc.get("KmsKeyId") else None
        return ExistingDisk(str(volume.volume_id), int(doc["Size"]), str(doc["VolumeType"]), zone, key)

    def register(
        self, state: VolumeState, zone: DiskZone, request: VolumeRequest
    ) -> Callable[[], pulumi.Output[str]]:
        tags = {**request.tags, **request.volume.tags}
        return partial(_register, state, zone.name, _settings(request), tags, request.scope)

    def register_existing(
        self, state: VolumeState, request: VolumeRequest
    ) -> Callable[[], pulumi.Output[str]]:
        return partial(_register_existing, state, _settings(request))

    def instance(self, client: RegionClient, volume: VolumeState, node: NodeState) -> str | None:
        return node.machine

    def holders(self, client: RegionClient, volume: VolumeState) -> Holders | None:
        doc = _describe(client, volume.volume_id)
        if doc is None:
            return None
        rows: list[Mapping[str, Any]] = list(doc.get("Attachments") or ())
        states = {str(each["State"]) for each in rows}
        devices = {str(each["InstanceId"]): str(each.get("Device", "")) for each in rows}
        if states == {"attached"} or (not rows and doc["State"] == "available"):
            return Holders(devices)
        return Holders(devices, " and ".join(sorted(states)) or str(doc["State"]))

    def attach_disk(
        self, client: RegionClient, volume: VolumeState, instance: str, *, read_only: bool
    ) -> None:
        """Attach under the first device name that is free; somebody may be quicker to take one."""
        ec2 = client.client("ec2")
        with translate_errors(f"look at the disks of {instance}"):
            row = ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
        used = {str(each["DeviceName"]) for each in row.get("BlockDeviceMappings", ())}
        free = [device for device in DEVICES if device not in used]
        for last, device in enumerate(free, start=1):
            with translate_errors(f"attach {volume.volume_id} to {instance}"):
                try:
                    ec2.attach_volume(Device=device, InstanceId=instance, VolumeId=volume.volume_id)
                except client_error() as error:
                    message = str(error.response.get("Error", {}).get("Message", ""))
                    if device in message and "already in use" in message and last < len(free):
                        continue
                    if _code(error) != "VolumeInUse":
                        raise
            return  # somebody may have been quicker: the caller looks where it is
        raise VolumeError(
            f"instance {instance} has no device name left for volume {volume.name}",
            detail=f"{DEVICES[0]} to {DEVICES[-1]} are taken",
            hint="detach volumes that nobody uses",
        )

    def detach_disk(self, client: RegionClient, volume: VolumeState, instance: str) -> None:
        with translate_errors(f"detach {volume.volume_id}"):
            try:
                client.client("ec2").detach_volume(VolumeId=volume.volume_id, InstanceId=instance)
            except client_error() as error:
                # Detached or detaching already, maybe by a first try of this call whose answer was lost: the
                # caller looks where it is.
                if _code(error) not in NOT_ATTACHED:
                    raise

    def paths(self, volume: VolumeState, device: str) -> tuple[str, ...]:
        # On Nitro instances the NVMe disk is known by the volume's id; on older ones by the device's name.
        nvme = f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{volume.volume_id.replace('-', '')}"
        xen = device.replace("/dev/sd", "/dev/xvd")
        return (nvme, *dict.fromkeys(each for each in (xen, device) if each))

    def detach_hint(self, volume: VolumeState, machine: str) -> str:
        return f"aws ec2 detach-volume --volume-id {volume.volume_id}"


def _settings(request: VolumeRequest) -> AwsSettings:
    return entry_of(request.account.settings, AwsSettings)


def _describe(ec2: RegionClient, volume_id: str) -> Mapping[str, Any] | None:
    """A volume as EC2 has it, None for none. Raises CloudRefused."""
    with translate_errors(f"look at {volume_id}"):
        try:
            return ec2.client("ec2").describe_volumes(VolumeIds=[volume_id])["Volumes"][0]
        except client_error() as error:
            if _code(error) in ("InvalidVolume.NotFound", "InvalidParameterValue"):
                return None
            raise


def _code(error: Any) -> str:
    """What EC2 calls an error of boto3's."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _options(state: VolumeState, settings: AwsSettings) -> pulumi.ResourceOptions:
    import pulumi

    from orch.components.aws.provider import provider_of

    provider = provider_of(f"{state.name}-aws", str(state.region), settings)
    return pulumi.ResourceOptions(provider=provider, protect=state.protect and not state.external)


def _register(
    state: VolumeState, zone_name: str, settings: AwsSettings, tags: Mapping[str, str], scope: str
) -> pulumi.Output[str]:
    import pulumi
    import pulumi_aws as aws

    stack = f"{pulumi.get_project()}/{pulumi.get_stack()}/{scope}"
    token = "aws:ebs/volume:Volume"
    own = {"Name": state.name, "orch:stack": stack, "orch:urn": f"{token}::{state.name}"}
    volume = aws.ebs.Volume(
        state.name,
        availability_zone=zone_name,
        size=(state.size_mib or 0) // 1024,
        type=state.disk_type,
        iops=state.iops,
        throughput=state.throughput,
        encrypted=True,
        kms_key_id=state.kms_key,
        tags={**tags, **own},
        opts=_options(state, settings),
    )
    return volume.id


def _register_existing(state: VolumeState, settings: AwsSettings) -> pulumi.Output[str]:
    import pulumi_aws as aws

    return aws.ebs.Volume.get(state.name, state.volume_id, opts=_options(state, settings)).id
