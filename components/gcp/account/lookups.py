"""What a file and `orch.yml` together want of GCP beside machines: networks, images, provisioning. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orch.catalog.gcp.machines import Shape, gcp_image, shapes, type_quota
from orch.components.cloud.findings import wants_fabric, written_image
from orch.components.cloud.machines.ssh_access import subnets_in
from orch.components.gcp.account.labels import label
from orch.components.gcp.candidates import CloudCandidate
from orch.components.gcp.plan import base_name
from orch.components.node_count import all_there
from orch.components.request import PriorState
from orch.spec.models import Fleet
from orch.spec.models.backends.gcp import GcpSettings
from orch.spec.models.blocks import Network

BASTION_TYPE = "e2-medium"
WEEK_S = 7 * 86_400


@dataclass(frozen=True)
class NetworkLookup:
    """Given networks by name, the file's before those of `orch.yml`. None and () are made with the fleet.

    `shared`: the name under which fleets share networks that are made. `host_project`: where given ones are.
    """

    vpc: str | None
    subnets: tuple[str, ...]
    extras: tuple[str, ...]
    roce: tuple[str, ...]
    ssh_cidrs: tuple[str, ...]
    public_ips: bool | Literal["auto"]
    host_project: str | None
    shared: str | None
    nat_check: bool
    block: Network

    @property
    def names(self) -> tuple[str, ...]:
        """All that are given, each once."""
        first = (self.vpc,) if self.vpc else ()
        return tuple(dict.fromkeys((*first, *self.extras, *self.roce)))

    def path(self, kind: Literal["vpc", "extra_vpcs", "roce_vpcs"], index: int | None = None) -> str:
        """The property that gives it: in the file if it is there, else the block."""
        written = {
            "vpc": self.block.vpc,
            "extra_vpcs": self.block.extra_vpcs,
            "roce_vpcs": self.block.roce_vpcs,
        }[kind]
        if not written:
            return "network"
        return f"network.{kind}" + ("" if index is None else f"[{index}]")


@dataclass(frozen=True)
class ImageLookup:
    """An image to find: `name` of `project`, or the newest of `family`. `of` is what pins say it is of."""

    project: str | None
    name: str | None = None
    family: str | None = None

    @property
    def of(self) -> str:
        return f"{self.project or 'self'}/{self.name or self.family}"


@dataclass(frozen=True)
class Lookups:
    """All that a plan for one candidate has to ask. `own`: the label `orch-group` of nodes there may be."""

    region: str
    zone: str
    instance_type: str
    networks: tuple[str, ...]
    host_project: str | None
    profile: str | None
    image: ImageLookup | None
    bastion_image: ImageLookup | None
    reservation: str | None
    metric: str | None
    made_networks: bool
    own: str | None


def network_lookup(fleet: Fleet, settings: GcpSettings, region: str) -> NetworkLookup:
    """The networks a fleet wants in a region."""
    block = fleet.network or Network()
    subnets = subnets_in(block, region)
    vpc = block.vpc or settings.vpc_name
    return NetworkLookup(
        vpc=short(vpc) if vpc else None,
        subnets=tuple(short(each) for each in subnets),
        extras=tuple(short(each) for each in block.extra_vpcs or settings.extra_vpcs),
        roce=tuple(short(each) for each in block.roce_vpcs or settings.roce_vpcs),
        ssh_cidrs=settings.ssh_cidrs if block.ssh_cidrs is None else block.ssh_cidrs,
        public_ips=settings.public_ips if block.public_ips == "auto" else block.public_ips,
        host_project=settings.vpc_project_id,
        shared=block.name,
        nat_check=settings.nat_check,
        block=block,
    )


def short(name: str) -> str:
    """`research` of `projects/p/global/networks/research`."""
    return name.rstrip("/").rpartition("/")[2]


def shape_of(fleet: Fleet, candidate: CloudCandidate) -> Shape:
    """The candidate's shape, with the interfaces of its fabric only where the fleet wants one."""
    from dataclasses import replace

    shape = shapes()[candidate.type.name]
    if shape.fast and wants_fabric(fleet):
        return shape
    return replace(shape, fabric="ethernet", hosts=1, datas=0, rdmas=0, rdma_subnets=0, profile="", gbps=0)


def image_fabric(candidate: CloudCandidate) -> str:
    """The fabric whose kernel the type's image needs, also for nodes that stand alone."""
    return shapes()[candidate.type.name].fabric


def image_lookup(fleet: Fleet, settings: GcpSettings, candidate: CloudCandidate) -> ImageLookup | None:
    """The image of the nodes; None when none is written and the catalogue has none for the type."""
    written = written_image(fleet, "gcp")
    if written:
        return _written(written)
    row = gcp_image(candidate.type, image_fabric(candidate))
    return ImageLookup(row.project, family=row.family) if row else None


def _written(text: str) -> ImageLookup:
    """`projects/P/global/images/NAME`, `…/images/family/NAME`, `P/NAME`, or a name of the own project."""
    parts = text.strip("/").split("/")
    project = parts[parts.index("projects") + 1] if "projects" in parts[:-1] else None
    if project is None and len(parts) == 2:
        project = parts[0]
    family = len(parts) > 1 and parts[-2] == "family"
    return ImageLookup(project, family=parts[-1]) if family else ImageLookup(project, name=parts[-1])


def bastion_image() -> ImageLookup:
    """The image of the bastion: plain Ubuntu."""
    from orch.catalog.gcp.machines import gcp_images

    row = next(row for row in gcp_images() if (row.kind, row.arch) == ("cpu", "x86"))
    return ImageLookup(row.project, family=row.family)


def options(fleet: Fleet) -> tuple[int | None, dict[str, object]]:
    """The fleet's `backend_options` for gcp, and where in the list they are."""
    for index, each in enumerate(fleet.backend_options):
        if each.get("type") == "gcp":
            return index, {key: value for key, value in each.items() if key != "type"}
    return None, {}


def flex_start(fleet: Fleet) -> bool:
    """Whether the fleet waits in the queue of the Dynamic Workload Scheduler for all its nodes at once."""
    return options(fleet)[1].get("provisioning") == "flex-start"


def needed_lookups(
    fleet: Fleet,
    settings: GcpSettings,
    candidate: CloudCandidate,
    previous: PriorState,
    *,
    indices: Sequence[int] | None = None,
) -> Lookups:
    """What has to be asked for a plan. An image that the stack has pinned is asked for by its name; nodes are
    looked for where some have to be made. `indices`: the nodes, None: as many as the file asks for."""
    network = network_lookup(fleet, settings, candidate.region)
    shape = shape_of(fleet, candidate)
    # What waits in a queue counts as preemptible. Source: Google Cloud "About Flex-start VMs", quota.
    preemptible = candidate.spot or flex_start(fleet)
    quota = type_quota(candidate.type.name, "spot" if preemptible else "on-demand")
    count_own = "scope" in previous.pins and not (candidate.kept and all_there(fleet, previous, indices))
    return Lookups(
        region=candidate.region,
        zone=candidate.zone,
        instance_type=candidate.type.name,
        networks=network.names,
        host_project=network.host_project,
        profile=f"{candidate.zone}-{shape.profile}" if shape.profile else None,
        image=pinned(image_lookup(fleet, settings, candidate), "image", previous),
        bastion_image=pinned(bastion_image(), "bastion_image", previous),
        reservation=fleet.reservation,
        metric=quota.metric if quota else None,
        made_networks=network.shared is None,
        own=label(base_name(fleet.name, previous.pins["scope"])) if count_own else None,
    )


def pinned(lookup: ImageLookup | None, pin: str, previous: PriorState) -> ImageLookup | None:
    """The image by the name that was pinned, when the same is wanted."""
    pins = previous.pins
    if lookup is None or pin not in pins or pins.get(f"{pin}_of") != lookup.of:
        return lookup
    return ImageLookup(lookup.project, name=short(pins[pin]))
