"""What a planned AWS fleet consists of: frozen records that `resources.py` registers one to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orch.components.aws.nics import Interface
from orch.components.cloud.plan import CloudPlan
from orch.spec.models.ssh import Jump


@dataclass(frozen=True)
class NewNetwork:
    """A VPC of the fleet's own.

    Nodes are in `nodes_cidr`, which leads to the internet by itself when `public`, else through a NAT gateway
    in `edge_cidr`.
    """

    cidr: str
    nodes_cidr: str
    edge_cidr: str | None
    public: bool


@dataclass(frozen=True)
class ExistingNetwork:
    """A network that was there before. `edge_subnet` leads to the internet, for a bastion with an address."""

    vpc: str
    cidr: str
    subnet: str
    edge_subnet: str | None


@dataclass(frozen=True)
class SecurityRule:
    """One rule of a security group. `peer`: `itself`, `bastion`, `nodes`, or a network.

    `port`: one of TCP, or the first and the last; None: all traffic.
    """

    peer: str
    port: int | tuple[int, int] | None
    why: str


@dataclass(frozen=True)
class SecurityGroups:
    """Security of the nodes: `given` ids, or one group of our own with these rules."""

    given: tuple[str, ...]
    name: str | None
    ingress: tuple[SecurityRule, ...]
    egress: tuple[SecurityRule, ...]


@dataclass(frozen=True)
class Access:
    """How SSH reaches the nodes: over the bastion, over given hops, through SSM, or straight."""

    way: Literal["bastion", "given", "ssm", "direct"]
    jumps: tuple[Jump, ...] = ()


@dataclass(frozen=True)
class Addresses:
    """Public addresses of the nodes: none, at the launch, or an Elastic IP each after it."""

    kind: Literal["none", "launch", "elastic"]


@dataclass(frozen=True)
class Capacity:
    """The capacity of the instances.

    `reserved_nodes`: the size of a reservation that is made for the fleet; `id`: that of a given one.
    """

    reserved_nodes: int | None = None
    id: str | None = None
    market: Literal["on-demand", "spot", "block"] = "on-demand"
    max_price: str | None = None


@dataclass(frozen=True)
class PlacementGroup:
    """The placement group: a `new` one, or that of a given reservation."""

    name: str
    new: bool


@dataclass(frozen=True)
class Disk:
    """The root disk."""

    device: str
    size_gb: int
    kms_key: str | None


@dataclass(frozen=True, kw_only=True)
class AwsPlan(CloudPlan):
    """A fleet on AWS.

    `profile`: an instance profile that was given; `ssm`: who gets one of our own, to be reached through SSM.
    `confidential`: the user data may hold secrets. `host_keys`: by node, the instance that showed its host
    key, and the key. `tags_readable`: an instance may read its own
    tags. `tags` are on everything.
    """

    zone_name: str
    network: NewNetwork | ExistingNetwork
    groups: SecurityGroups
    access: Access
    addresses: Addresses
    group: PlacementGroup | None
    capacity: Capacity
    interfaces: tuple[Interface, ...]
    image: str
    disk: Disk
    profile: str | None
    ssm: Literal["nodes", "bastion"] | None
    confidential: bool
    host_keys: Mapping[str, tuple[str, str]]
    tags_readable: bool
    tags: Mapping[str, str]
    rank_by_topology: bool
    starts: str | None
    ends: str | None

    @property
    def base(self) -> str:
        """What names of cloud resources begin with."""
        return f"orch-{self.fleet}-{self.scope}"
