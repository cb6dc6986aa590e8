"""Volumes of the backend `aws`: EBS volumes, planned, registered, and attached to instances."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from orch.catalog.disks import monthly_price
from orch.components.aws.account import errors, gather_facts
from orch.components.aws.account.client import RegionClient
from orch.components.aws.account.client_errors import client_error, translate_errors
from orch.components.cloud_errors import CloudError, CloudRefused
from orch.components.volumes import (
    Account,
    Attachment,
    VolumeBackend,
    VolumeError,
    VolumePlan,
    VolumeRequest,
    in_words,
)
from orch.spec.findings import PlanError
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.state import NodeState
from orch.spec.suggest import listed
from orch.spec.volume_state import VolumeState

if TYPE_CHECKING:
    import pulumi

    from orch.components.aws.account.facts import Zone

# Disk type -> whether IOPS may be chosen, must be chosen, and whether throughput may be. Source: EC2 API
# reference, CreateVolume.
TYPES: Mapping[str, tuple[bool, bool, bool]] = {
    "gp3": (True, False, True),
    "gp2": (False, False, False),
    "io1": (True, True, False),
    "io2": (True, True, False),
    "st1": (False, False, False),
    "sc1": (False, False, False),
    "standard": (False, False, False),
}
DEFAULT_TYPE = "gp3"
# Names for more disks of an instance. Source: EC2 user guide, "Device names for volumes".
DEVICES = tuple(f"/dev/sd{letter}" for letter in "fghijklmnop")
WAIT_S, PAUSE_S = 300.0, 1.0


class AwsVolumes(VolumeBackend):
    fixed: ClassVar[Mapping[str, str]] = {
        "backend": "backend",
        "region": "region",
        "zone": "availability_zone",
        "kms_key": "kms_key",
        "external": "volume_id",
    }

    def plan(self, request: VolumeRequest) -> VolumePlan:
        volume, previous = request.volume, request.previous
        ec2 = client_of(request.account, str(volume.region))
        zones = ec2.zones()
        settings = entry_of(request.account.settings, AwsSettings)
        if volume.volume_id is not None:
            return self._registered(request, ec2, zones, settings)
        before = previous if previous is not None and not previous.external else None
        zone = _zone(volume.availability_zone or (before.zone if before else None), request.near, zones)
        if zone is None:
            raise PlanError(
                "ORCH225",
                f"{volume.region} has no zone {volume.availability_zone} in this account",
                path="availability_zone",
                hint=f"its zones are {', '.join(f'{each.name} ({each.id})' for each in zones)}",
            )
        disk_type = volume.disk_type or (before.disk_type if before else None) or DEFAULT_TYPE
        _check_type(disk_type, volume.iops, volume.throughput)
        size_gb = math.ceil((volume.size_mib or 0) / 1024)
        kms_key = volume.kms_key or (before.kms_key if before else settings.kms_key)
        state = VolumeState(
            name=volume.name,
            backend="aws",
            region=volume.region,
            zone=zone.id,
            size_mib=size_gb * 1024,
            disk_type=disk_type,
            iops=volume.iops,
            throughput=volume.throughput,
            kms_key=kms_key,
            read_only=volume.read_only,
            sharing=volume.sharing,
            protect=volume.protect,
            auto_cleanup_s=volume.auto_cleanup_duration_s,
            monthly=monthly_price(
                "aws", disk_type, volume.region, size_gb, performance=bool(volume.iops or volume.throughput)
            ),
        )
        key = f"the key {kms_key}" if kms_key else "the account's own key for EBS"
        reasons = (
            f"{disk_type} of {in_words(state.size_mib)} in {zone.name} ({zone.id}), encrypted with {key}",
            "nodes in that zone alone can have it, one at a time",
            *_cost_reason(state),
        )
        register = partial(
            _register, state, zone.name, settings, {**request.tags, **volume.tags}, request.scope
        )
        return VolumePlan(state, reasons, register)

    def _registered(
        self, request: VolumeRequest, ec2: RegionClient, zones: tuple[Zone, ...], settings: AwsSettings
    ) -> VolumePlan:
        """An existing volume as it is."""
        volume = request.volume
        doc = describe(ec2, str(volume.volume_id))
        if doc is None:
            raise PlanError(
                "ORCH268",
                f"the account has no volume {volume.volume_id} in {volume.region}",
                path="volume_id",
                hint="ids are listed by `aws ec2 describe-volumes`",
            )
        zone = next((each for each in zones if each.name == doc["AvailabilityZone"]), None)
        state = VolumeState(
            name=volume.name,
            backend="aws",
            volume_id=str(volume.volume_id),
            external=True,
            region=volume.region,
            zone=zone.id if zone else None,
            size_mib=int(doc["Size"]) * 1024,
            disk_type=str(doc["VolumeType"]),
            kms_key=str(doc["KmsKeyId"]) if doc.get("KmsKeyId") else None,
            read_only=volume.read_only,
            sharing=volume.sharing,
            protect=volume.protect,
            monthly=0.0,
        )
        size = in_words(state.size_mib)
        reasons = (
            f"{volume.volume_id} exists: {state.disk_type} of {size} in {doc['AvailabilityZone']}",
            "orch neither changes, formats nor deletes it",
        )
        return VolumePlan(state, reasons, partial(_register_existing, state, settings))

    def attach(
        self, account: Account, volume: VolumeState, node: NodeState, *, read_only: bool
    ) -> Attachment:
        ec2, instance = client_of(account, str(volume.region)), _instance(node)
        attached = _settled(ec2, volume)
        if attached is None:
            self._attach(ec2, volume, instance)
            attached = _settled(ec2, volume)
        if attached is None or attached["InstanceId"] != instance:
            other = attached["InstanceId"] if attached else "nothing"
            raise VolumeError(
                f"volume {volume.name} is attached to {other}, not to {node.name} ({instance})",
                detail="an EBS volume is attached to one instance at a time",
                hint=f"end what uses it there, or `aws ec2 detach-volume --volume-id {volume.volume_id}`",
                code="ORCH267",
            )
        device = str(attached.get("Device", ""))
        # On Nitro instances the NVMe disk is known by the volume's id; on older ones by the device's name.
        nvme = f"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{volume.volume_id.replace('-', '')}"
        xen = device.replace("/dev/sd", "/dev/xvd")
        return Attachment((nvme, *dict.fromkeys(each for each in (xen, device) if each)))

    def _attach(self, ec2: RegionClient, volume: VolumeState, instance: str) -> None:
        """Attach under the first device name that is free; somebody may be quicker to take one."""
        client = ec2.client("ec2")
        with translate_errors(f"look at the disks of {instance}"):
            rows = client.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
        used = {str(each["DeviceName"]) for each in rows.get("BlockDeviceMappings", ())}
        free = [device for device in DEVICES if device not in used]
        for last, device in enumerate(free, start=1):
            try:
                client.attach_volume(Device=device, InstanceId=instance, VolumeId=volume.volume_id)
            except client_error() as error:
                told = error.response.get("Error", {})
                message = str(told.get("Message", ""))
                if device in message and "already in use" in message and last < len(free):
                    continue
                if told.get("Code") == "VolumeInUse":
                    return  # the caller looks where it is
                raise _refused(error, f"attach {volume.volume_id} to {instance}") from error
            return
        raise VolumeError(
            f"instance {instance} has no device name left for volume {volume.name}",
            detail=f"{DEVICES[0]} to {DEVICES[-1]} are taken",
            hint="detach volumes that nobody uses",
        )

    def detach(self, account: Account, volume: VolumeState, node: NodeState) -> None:
        ec2 = client_of(account, str(volume.region))
        attached = _settled(ec2, volume, gone_is_free=True)
        if attached is None or attached["InstanceId"] != node.machine:
            return
        with translate_errors(f"detach {volume.volume_id}"):
            ec2.client("ec2").detach_volume(VolumeId=volume.volume_id, InstanceId=node.machine)
        if _settled(ec2, volume, gone_is_free=True) is not None:
            raise VolumeError(
                f"volume {volume.name} is still attached to {node.name}",
                hint=f"`aws ec2 describe-volumes --volume-ids {volume.volume_id}` tells its state",
            )


def client_of(account: Account, region: str) -> RegionClient:
    """A region of the account. Raises CloudRefused, NoSdk."""
    settings = entry_of(account.settings, AwsSettings)
    session = account.session("aws") or gather_facts.open_session(settings)
    return RegionClient(session, region, settings.endpoint_url)


def describe(ec2: RegionClient, volume_id: str) -> Mapping[str, Any] | None:
    """A volume as EC2 has it, None for none. Raises CloudRefused."""
    try:
        return ec2.client("ec2").describe_volumes(VolumeIds=[volume_id])["Volumes"][0]
    except client_error() as error:
        if error.response.get("Error", {}).get("Code") in ("InvalidVolume.NotFound", "InvalidParameterValue"):
            return None
        raise _refused(error, f"look at {volume_id}") from error


def _refused(error: Any, action: str) -> CloudRefused:
    told = error.response.get("Error", {})
    cloud_error: CloudError = errors.by_code(told.get("Code", ""), told.get("Message", ""))
    return CloudRefused(
        f"{cloud_error.meaning}: could not {action}",
        error=cloud_error,
        detail=f"{error.operation_name}: {cloud_error.code}: {cloud_error.message}",
        hint=cloud_error.hint,
        code=cloud_error.orch,
    )


def _settled(
    ec2: RegionClient, volume: VolumeState, *, gone_is_free: bool = False
) -> Mapping[str, Any] | None:
    """Where a volume is attached once it is neither being attached, detached nor created; None: nowhere.

    Raises VolumeError when it is gone, or takes too long.
    """
    ends = time.monotonic() + WAIT_S
    while True:
        doc = describe(ec2, volume.volume_id)
        if doc is None and gone_is_free:
            return None
        if doc is None:
            raise VolumeError(
                f"volume {volume.name} is gone: {volume.volume_id}",
                hint="`orch up` with its file creates it again, empty",
                code="ORCH268",
            )
        attachments: list[Mapping[str, Any]] = list(doc.get("Attachments") or ())
        states = {str(each["State"]) for each in attachments}
        if doc["State"] == "available" and not attachments:
            return None
        if states == {"attached"}:
            return attachments[0]
        if time.monotonic() > ends:
            raise VolumeError(
                f"volume {volume.name} is {doc['State']} for {WAIT_S:.0f} s, attachments: {sorted(states)}",
                hint=f"`aws ec2 describe-volumes --volume-ids {volume.volume_id}` tells more",
            )
        time.sleep(PAUSE_S)


def _instance(node: NodeState) -> str:
    if node.machine is None:
        raise VolumeError(
            f"the instance of node {node.name} is not known",
            detail="an earlier version made the node, and recorded no instance id with it",
            hint="replace the node: `orch fleet delete NAME -i INDEX`, then `orch up`",
        )
    return node.machine


def _zone(wanted: str | None, near: tuple[str, ...], zones: tuple[Zone, ...]) -> Zone | None:
    """The zone of this name or id; without one, that of the nodes there are, else the first."""
    if wanted is not None:
        return next((each for each in zones if wanted in (each.id, each.name)), None)
    return next((each for each in zones if each.id in near), zones[0] if zones else None)


def _check_type(disk_type: str, iops: int | None, throughput: int | None) -> None:
    """Raises PlanError (ORCH111, ORCH270) for an unknown disk type, or one that does not take what is set."""
    if disk_type not in TYPES:
        raise PlanError(
            "ORCH111",
            f"EBS has no disk type {disk_type}",
            path="disk_type",
            hint=f"use {listed(list(TYPES))}",
        )
    may_iops, needs_iops, may_throughput = TYPES[disk_type]
    if iops is not None and not may_iops:
        raise PlanError(
            "ORCH270", f"{disk_type} has no `iops` to choose", path="iops", hint="use gp3, io1 or io2"
        )
    if iops is None and needs_iops:
        raise PlanError("ORCH270", f"{disk_type} needs `iops`", path="disk_type", hint="add `iops: 10000`")
    if throughput is not None and not may_throughput:
        raise PlanError(
            "ORCH270", f"{disk_type} has no `throughput` to choose", path="throughput", hint="use gp3"
        )


def _cost_reason(state: VolumeState) -> tuple[str, ...]:
    if state.monthly is None:
        return ("its price is not in the catalogue",)
    return (f"list price ${state.monthly:.2f} a month in {state.region}",)


Register = Callable[[], "pulumi.Output[str]"]


def _options(state: VolumeState, settings: AwsSettings) -> pulumi.ResourceOptions:
    import pulumi

    from orch.components.aws.network_resources import provider_of

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
