"""What the plans of all clouds hold: frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orch.catalog.fabrics import Fabric
from orch.catalog.records import Arch
from orch.components.file_systems import FileSystem
from orch.components.idleness import IdleRule
from orch.components.lifetime import Lifetime
from orch.spec.findings import Finding
from orch.spec.models.ssh import Jump
from orch.spec.state import FleetMount

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Node:
    index: int
    name: str


@dataclass(frozen=True)
class Bastion:
    """A small machine to jump over.

    `public`: it has an address and answers `cidrs`; else the cloud's own tunnel leads to it (SSM, IAP).
    """

    instance_type: str
    image: str
    public: bool
    cidrs: tuple[str, ...]
    price: float | None


@dataclass(frozen=True, kw_only=True)
class CloudPlan:
    """The nodes of one type in one zone at one market, and the fleet around them.

    A cluster is one such node group. Of another fleet this is the first group, with all that a fleet has only
    once; `others` are the plans of the other groups (see `node_groups.py`).

    `number`: of the group, 0 for the first; it is part of the names that the cloud knows the group by.
    `layout`: a fingerprint of what only a new instance can have; `layout_unchanged`: running nodes have the
    same. `cloud_init`: the user data of all nodes, with marks for values that are known later.
    `idle`: when its nodes end themselves; `lifetime`: when all of its machines do.
    `file_systems`: those that are created with the fleet. `hourly`: the price of everything, `unpriced`: what
    costs money besides. Prices are in US dollars an hour. `moved`: nodes that come from another zone, made
    before their old machines go.
    """

    fleet: str
    scope: str
    region: str
    zone: str
    instance_type: str
    spot: bool
    nodes: tuple[Node, ...]
    bastion: Bastion | None
    bastion_init: str
    cloud_init: str
    layout: str
    layout_unchanged: bool
    placement: Literal["any", "cluster"]
    interconnect: str
    fabric: Fabric | None
    gpus: Mapping[str, str | int | None]
    cpus: int | None
    memory_mib: int | None
    arch: Arch
    blocks: int
    job_image: str | None
    env: Mapping[str, str]
    mounts: tuple[FleetMount, ...]
    file_systems: tuple[FileSystem, ...]
    protect: bool
    idle: IdleRule | None
    lifetime: Lifetime | None
    scratch: Mapping[str, str | bool] | None
    price: float | None
    hourly: float
    unpriced: tuple[str, ...]
    pins: Mapping[str, str]
    reasons: tuple[str, ...]
    warnings: tuple[Finding, ...]
    number: int = 0
    moved: tuple[str, ...] = ()
    others: tuple[Self, ...] = ()

    @property
    def suffix(self) -> str:
        """What names of a node group's own resources end with; nothing for the first group's."""
        return f"-{self.number}" if self.number else ""

    @property
    def node_groups(self) -> tuple[Self, ...]:
        """The plans of all groups, this one's first."""
        return (self, *self.others)

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes of all groups, in order of their index."""
        nodes = (node for group in self.node_groups for node in group.nodes)
        return tuple(sorted(nodes, key=lambda node: node.index))


@dataclass(frozen=True, kw_only=True)
class NeocloudPlan(CloudPlan):
    """A fleet on a neocloud.

    `access`: how SSH gets in; `jumps`: given hops. `image`: the id of the nodes' machine image. `whole`: the
    fleet comes up with all of its nodes or with none.
    """

    access: Literal["direct", "given", "bastion"]
    jumps: tuple[Jump, ...]
    image: str
    whole: bool
