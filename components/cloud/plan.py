"""What the plans of all clouds hold: frozen records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orch.catalog.fabrics import Fabric
from orch.catalog.records import Arch
from orch.spec.findings import Finding


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
class CloudPlan(ABC):
    """The nodes of one type in one zone at one market, and the fleet around them.

    A cluster has one such node group. Of another fleet this is the first group, with all that the fleet has
    once; `others` are the plans of the other groups (see `node_groups.py`).

    `number` is the group's, 0 the first's; what the cloud knows by a name has it in its name.
    `layout` changes with what only a new instance can have; `settled`: the stack's nodes have this one.
    `cloud_init` is the user data of all nodes, with marks for what is known later. `hourly` is of all of it,
    `unpriced` what costs money beside that; prices are US dollars an hour.
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
    settled: bool
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
    protect: bool
    price: float | None
    hourly: float
    unpriced: tuple[str, ...]
    pins: Mapping[str, str]
    reasons: tuple[str, ...]
    warnings: tuple[Finding, ...]
    number: int = 0
    others: tuple[CloudPlan, ...] = ()

    @property
    def suffix(self) -> str:
        """What names of a node group's own resources end with; nothing for the first group's."""
        return f"-{self.number}" if self.number else ""

    @property
    @abstractmethod
    def node_groups(self) -> tuple[CloudPlan, ...]:
        """The plans of all groups, this one's first."""

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes of all groups, in order of their index."""
        nodes = (node for group in self.node_groups for node in group.nodes)
        return tuple(sorted(nodes, key=lambda node: node.index))
