"""Volumes of the backend `gcp`: persistent disks and Hyperdisks, planned, registered, and attached."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from orch.catalog.disks import monthly_price
from orch.components.gcp.account import gather_facts
from orch.components.gcp.account.client import ProjectClient
from orch.components.gcp.account.client_errors import not_found, translate_errors
from orch.components.gcp.account.lookups import short
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
from orch.spec.models.backends.gcp import GcpSettings
from orch.spec.state import NodeState
from orch.spec.suggest import listed
from orch.spec.volume_state import VolumeState

if TYPE_CHECKING:
    import pulumi

# Disk type -> whether IOPS and throughput may be chosen. Source: Compute Engine documentation, "About Google
# Cloud Hyperdisk" and "About Persistent Disk".
TYPES: Mapping[str, tuple[bool, bool]] = {
    "pd-standard": (False, False),
    "pd-balanced": (False, False),
    "pd-ssd": (False, False),
    "pd-extreme": (True, False),
    "hyperdisk-balanced": (True, True),
    "hyperdisk-extreme": (True, False),
    "hyperdisk-ml": (False, True),
    "hyperdisk-throughput": (False, True),
}
DEFAULT_TYPE = "pd-balanced"
LEAST_GB = 10
WAIT_S = 300.0


class GcpVolumes(VolumeBackend):
    fixed: ClassVar[Mapping[str, str]] = {
        "backend": "backend",
        "project": "backend",
        "region": "region",
        "zone": "availability_zone",
        "disk_type": "disk_type",
        "kms_key": "kms_key",
        "external": "volume_id",
    }

    def plan(self, request: VolumeRequest) -> VolumePlan:
        volume, previous = request.volume, request.previous
        client, region = client_of(request.account), str(volume.region)
        zones = client.zones(region)
        settings = entry_of(request.account.settings, GcpSettings)
        before = previous if previous is not None and not previous.external else None
        zone = volume.availability_zone or (previous.zone if previous else None)
        zone = zone or next((each for each in zones if each in request.near), next(iter(zones), None))
        if zone not in zones:
            raise PlanError(
                "ORCH225",
                f"{region} has no zone {zone}" if zones else f"the project sees no zone of {region}",
                path="availability_zone" if zones else "region",
                hint=f"its zones are {', '.join(zones)}" if zones else "look for a typo in `region`",
            )
        if volume.volume_id is not None:
            return self._registered(request, client, zone, settings)
        disk_type = volume.disk_type or (before.disk_type if before else None) or DEFAULT_TYPE
        _check_type(disk_type, volume.iops, volume.throughput)
        size_gb = max(LEAST_GB, math.ceil((volume.size_mib or 0) / 1024))
        state = VolumeState(
            name=volume.name,
            backend="gcp",
            volume_id=before.volume_id if before else f"orch-{volume.name}-{request.scope}",
            region=region,
            zone=zone,
            project=client.project,
            size_mib=size_gb * 1024,
            disk_type=disk_type,
            iops=volume.iops,
            throughput=volume.throughput,
            kms_key=volume.kms_key or (before.kms_key if before else None),
            read_only=volume.read_only,
            sharing=volume.sharing,
            protect=volume.protect,
            auto_cleanup_s=volume.auto_cleanup_duration_s,
            monthly=monthly_price(
                "gcp", disk_type, region, size_gb, performance=bool(volume.iops or volume.throughput)
            ),
        )
        key = f"the key {state.kms_key}" if state.kms_key else "Google's own key"
        price = (
            f"list price ${state.monthly:.2f} a month in {region}"
            if state.monthly is not None
            else "its price is not in the catalogue"
        )
        reasons = (
            f"{disk_type} of {in_words(state.size_mib)} in {zone}, encrypted with {key}",
            "nodes in that zone alone can have it, one at a time",
            price,
        )
        tags = {**request.tags, **volume.tags}
        return VolumePlan(state, reasons, partial(_register, state, settings, tags, request.scope))

    def _registered(
        self, request: VolumeRequest, client: ProjectClient, zone: str, settings: GcpSettings
    ) -> VolumePlan:
        """An existing disk as it is."""
        volume, name = request.volume, short(str(request.volume.volume_id))
        disk = _disk(client, zone, name)
        if disk is None:
            raise PlanError(
                "ORCH268",
                f"the project {client.project} has no disk {name} in {zone}",
                path="volume_id",
                hint="`gcloud compute disks list` names disks and their zones; write the zone beside it",
            )
        state = VolumeState(
            name=volume.name,
            backend="gcp",
            volume_id=name,
            external=True,
            region=volume.region,
            zone=zone,
            project=client.project,
            size_mib=int(disk.size_gb) * 1024,
            disk_type=short(str(disk.type_)),
            read_only=volume.read_only,
            sharing=volume.sharing,
            protect=volume.protect,
            monthly=0.0,
        )
        reasons = (
            f"{name} exists: {state.disk_type} of {in_words(state.size_mib)} in {zone}",
            "orch neither changes, formats nor deletes it",
        )
        return VolumePlan(state, reasons, partial(_register_existing, state, settings))

    def attach(
        self, account: Account, volume: VolumeState, node: NodeState, *, read_only: bool
    ) -> Attachment:
        client, zone = client_of(account), str(volume.zone)
        instance = _instance_name(client, zone, node)
        users = _users(client, volume)
        # Google's guest environment names the disk after the device name that it was attached with.
        paths = Attachment((f"/dev/disk/by-id/google-{volume.volume_id}",))
        if instance in users:
            return paths
        if users:
            raise VolumeError(
                f"volume {volume.name} is attached to {', '.join(users)}, not to {node.name} ({instance})",
                detail="it is attached for writing to one instance at a time",
                hint=f"end what uses it there, or `gcloud compute instances detach-disk {users[0]} "
                f"--disk {volume.volume_id} --zone {zone}`",
                code="ORCH267",
            )
        body = {
            "source": f"projects/{client.project}/zones/{zone}/disks/{volume.volume_id}",
            "device_name": volume.volume_id,
            "mode": "READ_ONLY" if read_only else "READ_WRITE",
            "auto_delete": False,
        }
        with translate_errors(f"attach {volume.volume_id} to {instance}"):
            client.client("InstancesClient").attach_disk(
                project=client.project, zone=zone, instance=instance, attached_disk_resource=body
            ).result(timeout=WAIT_S)
        return paths

    def detach(self, account: Account, volume: VolumeState, node: NodeState) -> None:
        client, zone = client_of(account), str(volume.zone)
        if _disk(client, zone, volume.volume_id) is None:
            return
        instance = _instance_name(client, zone, node, gone_is_none=True)
        if instance is None or instance not in _users(client, volume):
            return
        with translate_errors(f"detach {volume.volume_id} from {instance}"):
            client.client("InstancesClient").detach_disk(
                project=client.project, zone=zone, instance=instance, device_name=volume.volume_id
            ).result(timeout=WAIT_S)


def client_of(account: Account) -> ProjectClient:
    """The project. Raises CloudRefused, NoSdk."""
    settings = entry_of(account.settings, GcpSettings)
    return ProjectClient(account.session("gcp") or gather_facts.open_session(settings))


def _disk(client: ProjectClient, zone: str, name: str) -> Any | None:
    """A disk as GCP has it, None for none. Raises CloudRefused."""
    with translate_errors(f"look at the disk {name}"):
        try:
            return client.client("DisksClient").get(project=client.project, zone=zone, disk=name)
        except not_found():
            return None


def _users(client: ProjectClient, volume: VolumeState) -> list[str]:
    """Names of the instances that have a disk. Raises VolumeError (ORCH268) when it is gone."""
    disk = _disk(client, str(volume.zone), volume.volume_id)
    if disk is None:
        raise VolumeError(
            f"volume {volume.name} is gone: {volume.volume_id}",
            hint="`orch up` with its file creates it again, empty",
            code="ORCH268",
        )
    return [short(str(user)) for user in disk.users]


def _instance_name(
    client: ProjectClient, zone: str, node: NodeState, *, gone_is_none: bool = False
) -> str | None:
    """The name of a node's instance, by its id: members of a group have names that the cloud chose."""
    with translate_errors("list the instances"):
        rows = list(client.client("InstancesClient").list(project=client.project, zone=zone))
    name = next((str(row.name) for row in rows if node.machine and str(row.id) == node.machine), None)
    if name is None and not gone_is_none:
        raise VolumeError(
            f"the instance of node {node.name} is not known",
            detail=f"{zone} has no instance with the id {node.machine}"
            if node.machine
            else "an earlier version made the node, and recorded no instance id with it",
            hint="replace the node: `orch fleet delete NAME -i INDEX`, then `orch up`",
        )
    return name


def _check_type(disk_type: str, iops: int | None, throughput: int | None) -> None:
    """Raises PlanError (ORCH111, ORCH270) for an unknown disk type, or one that does not take what is set."""
    if disk_type not in TYPES:
        hint = f"use {listed(list(TYPES))}"
        raise PlanError("ORCH111", f"GCP has no disk type {disk_type}", path="disk_type", hint=hint)
    for value, able, key in zip((iops, throughput), TYPES[disk_type], ("iops", "throughput"), strict=True):
        if value is not None and not able:
            hint = "use hyperdisk-balanced"
            raise PlanError("ORCH270", f"{disk_type} has no `{key}` to choose", path=key, hint=hint)


def _options(state: VolumeState, settings: GcpSettings) -> pulumi.ResourceOptions:
    import pulumi

    from orch.components.gcp.network_resources import provider_of

    provider = provider_of(f"{state.name}-gcp", settings, str(state.project), str(state.region), parent=None)
    return pulumi.ResourceOptions(provider=provider, protect=state.protect and not state.external)


def _register(
    state: VolumeState, settings: GcpSettings, tags: Mapping[str, str], scope: str
) -> pulumi.Output[str]:
    import pulumi_gcp as gcp

    from orch.components.gcp.account.labels import labels
    from orch.components.gcp.network_resources import Marks

    marks = Marks(scope).labels("gcp:compute/disk:Disk", state.name)
    disk = gcp.compute.Disk(
        state.name,
        name=state.volume_id,
        zone=state.zone,
        type=state.disk_type,
        size=(state.size_mib or 0) // 1024,
        provisioned_iops=state.iops,
        provisioned_throughput=state.throughput,
        disk_encryption_key={"kms_key_self_link": state.kms_key} if state.kms_key else None,
        labels={**labels(tags), **marks},
        opts=_options(state, settings),
    )
    return disk.name


def _register_existing(state: VolumeState, settings: GcpSettings) -> pulumi.Output[str]:
    import pulumi_gcp as gcp

    path = f"projects/{state.project}/zones/{state.zone}/disks/{state.volume_id}"
    return gcp.compute.Disk.get(state.name, path, opts=_options(state, settings)).name
