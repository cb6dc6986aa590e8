"""What a file and `orch.yml` together want of AWS beside machines: networks, addresses, images. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orch.catalog.aws.machines import default_image, image_kind, nics
from orch.components.aws.candidates import CloudCandidate
from orch.components.aws.nics import Interface, interfaces
from orch.components.cloud.findings import wants_fabric, written_image
from orch.components.cloud.machines.ssh_access import subnets_in
from orch.components.node_count import all_there
from orch.components.request import PriorState
from orch.spec.models import Fleet
from orch.spec.models.backends.aws import AwsSettings, OsImage
from orch.spec.models.blocks import Network

BASTION_TYPE = "t3.micro"


@dataclass(frozen=True)
class NetworkLookup:
    """Given pieces, the file's before those of `orch.yml`. None and () are made with the fleet."""

    vpc: str | None
    subnets: tuple[str, ...]
    groups: tuple[str, ...]
    ssh_cidrs: tuple[str, ...]
    public_ips: bool | Literal["auto"]
    block: Network

    @property
    def given(self) -> bool:
        return self.vpc is not None or bool(self.subnets)


@dataclass(frozen=True)
class ImageLookup:
    """An image to find: one of `id`, `name` (of `owner`) and `parameter`. `of` is what pins say it is of."""

    user: str
    id: str | None = None
    name: str | None = None
    owner: str = "self"
    parameter: str | None = None

    @property
    def of(self) -> str:
        return self.id or self.parameter or f"{self.owner}/{self.name}"


@dataclass(frozen=True)
class Lookups:
    """All that a plan for one candidate has to ask.

    `image` and `bastion_image` are None where pinned. `own`: how the tag `orch:stack` of the fleet's own
    resources ends. `quotas`: those of machines, with all that counts against them. To count is to list every
    instance and network interface of the region, tens of thousands where there is a large fleet.
    """

    region: str
    instance_type: str
    spot: bool
    network: NetworkLookup
    image: ImageLookup | None
    bastion_image: ImageLookup | None
    reservation: str | None
    addresses: bool
    own: str
    quotas: bool = True


def network_lookup(fleet: Fleet, settings: AwsSettings, region: str) -> NetworkLookup:
    """The network a fleet wants in a region."""
    block = fleet.network or Network()
    subnets = subnets_in(block, region)
    public = settings.public_ips if block.public_ips == "auto" else block.public_ips
    return NetworkLookup(
        vpc=block.vpc or settings.vpc_ids.get(region) or settings.vpc_name,
        subnets=subnets or settings.subnet_ids,
        groups=block.security_groups or settings.security_group_ids,
        ssh_cidrs=settings.ssh_cidrs if block.ssh_cidrs is None else block.ssh_cidrs,
        public_ips=public,
        block=block,
    )


def layout(fleet: Fleet, candidate: CloudCandidate) -> tuple[Interface, ...]:
    """Interfaces of each node: EFA for clusters, unless the file wants Ethernet."""
    return interfaces(nics()[candidate.type.name], efa=wants_fabric(fleet))


def image_lookup(fleet: Fleet, settings: AwsSettings, candidate: CloudCandidate) -> ImageLookup | None:
    """The image of the nodes; None when none is written and the catalogue has none for the type."""
    written = written_image(fleet, "aws")
    kind = image_kind(candidate.type)
    row = default_image(candidate.type)
    user = row.user if row else "ubuntu"
    if written:
        return (
            ImageLookup(user, id=written) if written.startswith("ami-") else ImageLookup(user, name=written)
        )
    configured: OsImage | None = {"cpu": settings.os_images.cpu, "nvidia": settings.os_images.nvidia}.get(
        kind
    )
    if configured is not None:
        return ImageLookup(configured.user, name=configured.name, owner=configured.owner)
    return ImageLookup(row.user, parameter=row.parameter) if row else None


def bastion_image(candidate: CloudCandidate) -> ImageLookup:
    """The image of the bastion: plain Ubuntu."""
    from orch.catalog.aws.machines import images

    row = next(row for row in images() if (row.kind, row.arch) == ("cpu", "x86"))
    return ImageLookup(row.user, parameter=row.parameter)


def needed_lookups(
    fleet: Fleet,
    settings: AwsSettings,
    candidate: CloudCandidate,
    previous: PriorState,
    scope: str,
    *,
    indices: Sequence[int] | None = None,
) -> Lookups:
    """What has to be asked for a plan. An image that the stack has pinned is asked for by its id; no quota is
    where all nodes are there. `indices`: the nodes, None: as many as the file asks for."""
    network = network_lookup(fleet, settings, candidate.region)
    return Lookups(
        region=candidate.region,
        instance_type=candidate.type.name,
        spot=candidate.spot,
        network=network,
        image=pinned(image_lookup(fleet, settings, candidate), "image", candidate, previous),
        bastion_image=pinned(bastion_image(candidate), "bastion_image", candidate, previous),
        reservation=fleet.reservation,
        addresses=not network.given or network.public_ips is True,
        own=f"/{fleet.name}/{previous.pins.get('scope', scope)}",
        quotas=not (candidate.kept and all_there(fleet, previous, indices)),
    )


def pinned(
    lookup: ImageLookup | None, pin: str, candidate: CloudCandidate, previous: PriorState
) -> ImageLookup | None:
    """The image by the id that was pinned, when the same is wanted in the same region."""
    pins = previous.pins
    if lookup is None or pin not in pins:
        return lookup
    region = pins.get(f"{pin}_region", pins.get("region"))  # an id is of one region
    if (region, pins.get(f"{pin}_of")) != (candidate.region, lookup.of):
        return lookup
    return ImageLookup(lookup.user, id=pins[pin])
