"""Disks of clouds as volumes: planned, checked, attached to instances and detached again."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from orch.catalog.load import disk_price
from orch.components.cloud_errors import CloudRefused
from orch.components.volumes import (
    Account,
    Attachment,
    DiskVolumes,
    VolumeError,
    VolumePlan,
    VolumeRequest,
    in_words,
    state_of,
)
from orch.runner.errors import DetachPending
from orch.spec.errors import OrchError
from orch.spec.findings import PlanError
from orch.spec.state import NodeState
from orch.spec.suggest import listed
from orch.spec.volume_state import VolumeState

if TYPE_CHECKING:
    import pulumi

WAIT_S, PAUSE_S = 300.0, 1.0
"""How long a disk may take to be created, attached or detached, and how often the cloud is asked."""
STALE_S = 20.0
"""How long a cloud may go on to show a disk as it was before a request that it has accepted."""

Client = TypeVar("Client")
Expected = Callable[[Mapping[str, str]], bool]
"""Whether an answer, the instances that have a disk, shows what was asked for."""


class StillChanging(VolumeError):
    """Whether a disk is attached or detached in the end is not known yet."""


@dataclass(frozen=True)
class DiskType:
    """Which figures of a type of disks may be chosen; `needs_iops`: IOPS must be."""

    iops: bool = False
    throughput: bool = False
    needs_iops: bool = False


@dataclass(frozen=True)
class DiskZone:
    """A zone of a region: its id, and the account's name for it where that is another."""

    id: str
    name: str

    def __str__(self) -> str:
        return self.name if self.name == self.id else f"{self.name} ({self.id})"


@dataclass(frozen=True)
class ExistingDisk:
    """A disk that is there. `zone` is None where the account does not see the disk's zone."""

    id: str
    size_gb: int
    type: str
    zone: DiskZone | None
    kms_key: str | None = None


@dataclass(frozen=True)
class Holders:
    """The instances that have a disk, each with the device name it has there ("" where clouds name none).

    `changing`: the disk is being created, attached or detached; in words of the cloud.
    """

    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    changing: str = ""


class CloudDisks(DiskVolumes, Generic[Client]):
    """The disks of one cloud.

    `cloud`: the backend's name. `product`: what the cloud calls its disks. `own_key`: the key of disks that
    name none, in words. `better_types`: for each figure the types to choose where a type has none to choose.
    """

    cloud: ClassVar[str]
    product: ClassVar[str]
    types: ClassVar[Mapping[str, DiskType]]
    default_type: ClassVar[str]
    least_gb: ClassVar[int] = 1
    own_key: ClassVar[str]
    better_types: ClassVar[Mapping[str, str]]

    # --- what each cloud tells in its own way

    @abstractmethod
    def client(self, account: Account, region: str) -> Client:
        """What asks the cloud. Raises CloudRefused, NoSdk."""

    @abstractmethod
    def zones(self, client: Client, region: str) -> tuple[DiskZone, ...]:
        """The zones of a region. Raises CloudRefused."""

    @abstractmethod
    def existing(self, client: Client, request: VolumeRequest, zones: tuple[DiskZone, ...]) -> ExistingDisk:
        """The disk that a file registers. Raises PlanError (ORCH268) when it is not there, CloudRefused."""

    @abstractmethod
    def holders(self, client: Client, volume: VolumeState) -> Holders | None:
        """Who has a disk now; None when it is gone. Raises CloudRefused."""

    @abstractmethod
    def instance(self, client: Client, volume: VolumeState, node: NodeState) -> str | None:
        """The instance of a node, as `holders` names it; None for one that is not known."""

    @abstractmethod
    def attach_disk(self, client: Client, volume: VolumeState, instance: str, *, read_only: bool) -> None:
        """Ask the cloud to attach a disk. Somebody else may be quicker: the caller looks where it is."""

    @abstractmethod
    def detach_disk(self, client: Client, volume: VolumeState, instance: str) -> None:
        """Ask the cloud to detach a disk.

        Raises CloudRefused, with `final` when the cloud will not do it, and StillChanging when it has begun
        and how that ended is not known.
        """

    @abstractmethod
    def paths(self, volume: VolumeState, device: str) -> tuple[str, ...]:
        """The paths by which a node may know a disk."""

    @abstractmethod
    def register(
        self, state: VolumeState, zone: DiskZone, request: VolumeRequest
    ) -> Callable[[], pulumi.Output[str]]:
        """What registers a new disk inside a Pulumi program and gives its id."""

    @abstractmethod
    def register_existing(
        self, state: VolumeState, request: VolumeRequest
    ) -> Callable[[], pulumi.Output[str]]:
        """The same for a disk that is there already."""

    def properties(
        self, client: Client, request: VolumeRequest, before: VolumeState | None
    ) -> Mapping[str, Any]:
        """Properties of a new disk's state that this cloud alone has."""
        return {}

    def usual_key(self, request: VolumeRequest) -> str | None:
        """The key of the backend's settings that encrypts new disks."""
        return None

    # --- planning

    def plan(self, request: VolumeRequest) -> VolumePlan:
        volume, previous, region = request.volume, request.previous, str(request.volume.region)
        client = self.client(request.account, region)
        zones = self.zones(client, region)
        if volume.volume_id is not None:
            return self._plan_existing(request, client, zones)
        before = previous if previous is not None and not previous.external else None
        zone = self.zone_of(request, zones, before)
        disk_type = volume.disk_type or (before.disk_type if before else None) or self.default_type
        self._check_type(disk_type, volume.iops, volume.throughput)
        size_gb = max(self.least_gb, math.ceil((volume.size_mib or 0) / 1024))
        performance = bool(volume.iops or volume.throughput)
        state = state_of(
            volume,
            self.cloud,
            zone=zone.id,
            size_mib=size_gb * 1024,
            disk_type=disk_type,
            iops=volume.iops,
            throughput=volume.throughput,
            kms_key=volume.kms_key or (before.kms_key if before else self.usual_key(request)),
            monthly=disk_price(self.cloud, disk_type, region, size_gb, performance=performance),
            **self.properties(client, request, before),
        )
        key = f"the key {state.kms_key}" if state.kms_key else self.own_key
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
        return VolumePlan(state, reasons, self.register(state, zone, request))

    def _plan_existing(
        self, request: VolumeRequest, client: Client, zones: tuple[DiskZone, ...]
    ) -> VolumePlan:
        """An existing disk as it is."""
        volume, disk = request.volume, self.existing(client, request, zones)
        state = state_of(
            volume,
            self.cloud,
            external=True,
            zone=disk.zone.id if disk.zone else None,
            size_mib=disk.size_gb * 1024,
            disk_type=disk.type,
            kms_key=disk.kms_key,
            auto_cleanup_s=None,
            monthly=0.0,
            **{**self.properties(client, request, None), "volume_id": disk.id},
        )
        reasons = (
            f"{disk.id} exists: {disk.type} of {disk.size_gb} GB in {disk.zone or state.region}",
            "orch neither changes, formats nor deletes it",
        )
        return VolumePlan(state, reasons, self.register_existing(state, request))

    def zone_of(
        self, request: VolumeRequest, zones: Sequence[DiskZone], before: VolumeState | None
    ) -> DiskZone:
        """The zone that the file names, else where the disk is, else that of the nodes there are, else the
        first. Raises PlanError (ORCH225)."""
        volume = request.volume
        wanted = volume.availability_zone or (before.zone if before else None)
        if wanted is None and zones:
            return next((each for each in zones if each.id in request.near), zones[0])
        for zone in zones:
            if wanted in (zone.id, zone.name):
                return zone
        raise PlanError(
            "ORCH225",
            f"{volume.region} has no zone {wanted} in this account"
            if zones
            else f"this account sees no zone of {volume.region}",
            path="availability_zone" if zones else "region",
            hint=f"its zones are {', '.join(map(str, zones))}" if zones else "look for a typo in `region`",
        )

    def _check_type(self, disk_type: str, iops: int | None, throughput: int | None) -> None:
        """Raises PlanError: ORCH111 for an unknown disk type, ORCH270 for figures that it does not take."""
        known = self.types.get(disk_type)
        if known is None:
            hint = f"use {listed(list(self.types))}"
            summary = f"{self.product} has no disk type {disk_type}"
            raise PlanError("ORCH111", summary, path="disk_type", hint=hint)
        for value, able, key in ((iops, known.iops, "iops"), (throughput, known.throughput, "throughput")):
            if value is not None and not able:
                hint = f"use {self.better_types[key]}"
                raise PlanError("ORCH270", f"{disk_type} has no `{key}` to choose", path=key, hint=hint)
        if iops is None and known.needs_iops:
            raise PlanError(
                "ORCH270", f"{disk_type} needs `iops`", path="disk_type", hint="add `iops: 10000`"
            )

    # --- attaching

    def attach(
        self, account: Account, volume: VolumeState, node: NodeState, *, read_only: bool
    ) -> Attachment:
        client = self.client(account, str(volume.region))
        instance = self.instance(client, volume, node)
        if instance is None:
            raise VolumeError(
                f"the instance of node {node.name} is not known",
                detail=f"{volume.place} has no instance with the id {node.machine}"
                if node.machine
                else "an earlier version made the node, and recorded no instance id with it",
                hint="replace the node: `orch fleet delete NAME -i INDEX`, then `orch up`",
            )
        devices = self._devices(client, volume)
        if not devices:
            self.attach_disk(client, volume, instance, read_only=read_only)
            devices = self._devices(client, volume, bool)
            if not devices:
                raise VolumeError(
                    f"volume {volume.name} was to be attached to {node.name}, and is attached to nothing",
                    detail=f"{volume.place} was asked {STALE_S:.0f} s ago: {volume.volume_id} to {instance}",
                    hint="start the run again",
                )
        if instance not in devices:
            others = ", ".join(devices)
            hint = f"end what uses it there, or `{self.detach_hint(volume, next(iter(devices)))}`"
            raise VolumeError(
                f"volume {volume.name} is attached to {others}, not to {node.name} ({instance})",
                detail="a disk can be attached to one instance at a time",
                hint=hint,
                code="ORCH267",
            )
        return Attachment(self.paths(volume, devices[instance]))

    def detach(self, account: Account, volume: VolumeState, node: NodeState) -> None:
        client = self.client(account, str(volume.region))
        accepted = False
        try:
            # An earlier call may have been accepted: what this one does not learn of it is open too.
            devices = self._settled(client, volume)
            instance = self.instance(client, volume, node) if devices else None
            if devices is None or instance is None or instance not in devices:
                return
            self.detach_disk(client, volume, instance)
            accepted = True
            left = self._settled(client, volume, lambda devices: instance not in devices) or {}
        except OrchError as error:
            if not accepted and isinstance(error, CloudRefused) and error.final:
                raise
            raise DetachPending(
                error.summary, detail=error.detail, hint=error.hint, code=error.code
            ) from error
        if instance in left:
            raise DetachPending(
                f"volume {volume.name} is still attached to {node.name}",
                hint=f"`{self.detach_hint(volume, instance)}` tells why",
            )

    def users(self, account: Account, volume: VolumeState) -> tuple[str, ...]:
        holders = self.holders(self.client(account, str(volume.region)), volume)
        return tuple(holders.devices) if holders else ()

    def _devices(
        self, client: Client, volume: VolumeState, expected: Expected = lambda devices: True
    ) -> Mapping[str, str]:
        devices = self._settled(client, volume, expected)
        if devices is None:
            raise VolumeError(
                f"volume {volume.name} is gone: {volume.volume_id}",
                hint="`orch up` with its file creates it again, empty",
                code="ORCH268",
            )
        return devices

    def _settled(
        self, client: Client, volume: VolumeState, expected: Expected = lambda devices: True
    ) -> Mapping[str, str] | None:
        """Who has a disk once it is no longer changing; None when it is gone. Raises StillChanging.

        An answer that does not show what is `expected` may be stale for STALE_S.
        """
        begun = time.monotonic()
        while True:
            holders = self.holders(client, volume)
            if holders is None:
                return None
            passed = time.monotonic() - begun
            if not holders.changing and (expected(holders.devices) or passed > STALE_S):
                return holders.devices
            if holders.changing and passed > WAIT_S:
                raise StillChanging(
                    f"volume {volume.name} is {holders.changing} for {WAIT_S:.0f} s",
                    detail=f"the disk is {volume.volume_id} in {volume.place}",
                    hint="look at it in the cloud's console",
                )
            time.sleep(PAUSE_S)
