"""Volumes of the backend `gcp`: persistent disks and Hyperdisks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from orch.components.cloud.volumes import (
    WAIT_S,
    CloudDisks,
    DiskType,
    DiskZone,
    ExistingDisk,
    Holders,
    StillChanging,
)
from orch.components.cloud_errors import CloudRefused
from orch.components.gcp.account import gather_facts
from orch.components.gcp.account.client import ProjectClient
from orch.components.gcp.account.client_errors import not_found, translate_errors
from orch.components.gcp.account.lookups import short
from orch.components.volumes import Account, VolumeRequest
from orch.spec.findings import PlanError
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.gcp import GcpSettings
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState

if TYPE_CHECKING:
    import pulumi

# What attachDisk answers for a disk that an instance has, this one or another: at once, or by its operation.
# Source: catalog/errors-gcp.csv.
IN_USE = ("resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE")


class GcpVolumes(CloudDisks[ProjectClient]):
    cloud: ClassVar[str] = "gcp"
    product: ClassVar[str] = "GCP"
    # Source: Compute Engine documentation, "About Google Cloud Hyperdisk" and "About Persistent Disk".
    types: ClassVar[Mapping[str, DiskType]] = {
        "pd-standard": DiskType(),
        "pd-balanced": DiskType(),
        "pd-ssd": DiskType(),
        "pd-extreme": DiskType(iops=True),
        "hyperdisk-balanced": DiskType(iops=True, throughput=True),
        "hyperdisk-extreme": DiskType(iops=True),
        "hyperdisk-ml": DiskType(throughput=True),
        "hyperdisk-throughput": DiskType(throughput=True),
    }
    default_type: ClassVar[str] = "pd-balanced"
    least_gb: ClassVar[int] = 10
    own_key: ClassVar[str] = "Google's own key"
    better_types: ClassVar[Mapping[str, str]] = dict.fromkeys(("iops", "throughput"), "hyperdisk-balanced")
    fixed: ClassVar[Mapping[str, str]] = {
        "backend": "backend",
        "project": "backend",
        "region": "region",
        "zone": "availability_zone",
        "disk_type": "disk_type",
        "kms_key": "kms_key",
        "external": "volume_id",
    }

    def client(self, account: Account, region: str) -> ProjectClient:
        settings = entry_of(account.settings, GcpSettings)
        return ProjectClient(account.session("gcp") or gather_facts.open_session(settings))

    def zones(self, client: ProjectClient, region: str) -> tuple[DiskZone, ...]:
        return tuple(DiskZone(name, name) for name in client.zones(region))

    def properties(
        self, client: ProjectClient, request: VolumeRequest, before: VolumeState | None
    ) -> Mapping[str, Any]:
        name = before.volume_id if before else f"orch-{request.volume.name}-{request.scope}"
        return {"project": client.project, "volume_id": name}

    def existing(
        self, client: ProjectClient, request: VolumeRequest, zones: tuple[DiskZone, ...]
    ) -> ExistingDisk:
        name, zone = short(str(request.volume.volume_id)), self.zone_of(request, zones, request.previous)
        disk = _disk(client, zone.id, name)
        if disk is None:
            raise PlanError(
                "ORCH268",
                f"the project {client.project} has no disk {name} in {zone}",
                path="volume_id",
                hint="`gcloud compute disks list` names disks and their zones; write the zone beside it",
            )
        return ExistingDisk(name, int(disk.size_gb), short(str(disk.type_)), zone)

    def register(
        self, state: VolumeState, zone: DiskZone, request: VolumeRequest
    ) -> Callable[[], pulumi.Output[str]]:
        tags = {**request.tags, **request.volume.tags}
        return partial(_register, state, _settings(request), tags, request.scope)

    def register_existing(
        self, state: VolumeState, request: VolumeRequest
    ) -> Callable[[], pulumi.Output[str]]:
        return partial(_register_existing, state, _settings(request))

    def instance(self, client: ProjectClient, volume: VolumeState, node: NodeState) -> str | None:
        """By the instance's id: members of a group have names that the cloud chose."""
        with translate_errors("list the instances"):
            rows = list(client.client("InstancesClient").list(project=client.project, zone=str(volume.zone)))
        return next((str(row.name) for row in rows if node.machine and str(row.id) == node.machine), None)

    def holders(self, client: ProjectClient, volume: VolumeState) -> Holders | None:
        # Asked for first: what ends between the two answers is in that of the disk.
        detaching = _detaching(client, str(volume.zone))
        disk = _disk(client, str(volume.zone), volume.volume_id)
        if disk is None:
            return None
        users = {short(str(user)) for user in disk.users}
        return Holders(dict.fromkeys(sorted(users), ""), "detaching" if users & detaching else "")

    def attach_disk(
        self, client: ProjectClient, volume: VolumeState, instance: str, *, read_only: bool
    ) -> None:
        zone = str(volume.zone)
        body = {
            "source": f"projects/{client.project}/zones/{zone}/disks/{volume.volume_id}",
            "device_name": volume.volume_id,
            "mode": "READ_ONLY" if read_only else "READ_WRITE",
            "auto_delete": False,
        }
        try:
            with translate_errors(f"attach {volume.volume_id} to {instance}"):
                operation = client.client("InstancesClient").attach_disk(
                    project=client.project, zone=zone, instance=instance, attached_disk_resource=body
                )
                _wait(operation, f"volume {volume.name} is being attached to {instance}")
        except CloudRefused as refused:
            # Somebody was quicker: the caller looks where it is.
            if refused.error is None or refused.error.code not in IN_USE:
                raise

    def detach_disk(self, client: ProjectClient, volume: VolumeState, instance: str) -> None:
        with translate_errors(f"detach {volume.volume_id} from {instance}"):
            operation = client.client("InstancesClient").detach_disk(
                project=client.project,
                zone=str(volume.zone),
                instance=instance,
                device_name=volume.volume_id,
            )
            _wait(operation, f"volume {volume.name} is being detached from {instance}")

    def paths(self, volume: VolumeState, device: str) -> tuple[str, ...]:
        # Google's guest environment names the disk after the device name that it was attached with.
        return (f"/dev/disk/by-id/google-{volume.volume_id}",)

    def detach_hint(self, volume: VolumeState, machine: str) -> str:
        return (
            f"gcloud compute instances detach-disk {machine} --disk {volume.volume_id} --zone {volume.zone}"
        )


def _settings(request: VolumeRequest) -> GcpSettings:
    return entry_of(request.account.settings, GcpSettings)


def _wait(operation: Any, action: str) -> None:
    """Wait for an operation, and raise its error where it failed.

    Raises StillChanging when it has not ended in time, or cannot be asked for: it goes on without us.
    """
    hint = "`gcloud compute operations list` tells how far it is"
    try:
        with translate_errors("ask how far that is"):
            try:
                failure = operation.exception(timeout=WAIT_S)
            except FutureTimeout as error:
                raise StillChanging(f"{action} for {WAIT_S:.0f} s", hint=hint) from error
    except CloudRefused as error:
        summary = f"{action}, and {error.summary}"
        raise StillChanging(summary, detail=error.detail, hint=error.hint or hint, code=error.code) from error
    if failure is not None:
        raise failure


def _detaching(client: ProjectClient, zone: str) -> set[str]:
    """The instances of a zone from which a disk is being detached. Raises CloudRefused.

    The `users` of a disk have its instance until that is over. The operation does not name the disk.
    """
    unfinished = '(operationType = "detachDisk") (status != "DONE")'
    with translate_errors(f"look for detachings in {zone}"):
        rows = client.client("ZoneOperationsClient").list(
            request={"project": client.project, "zone": zone, "filter": unfinished}
        )
        return {short(str(row.target_link)) for row in rows}


def _disk(client: ProjectClient, zone: str, name: str) -> Any | None:
    """A disk as GCP has it, None for none. Raises CloudRefused."""
    with translate_errors(f"look at the disk {name}"):
        try:
            return client.client("DisksClient").get(project=client.project, zone=zone, disk=name)
        except not_found():
            return None


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
