"""What a planned AWS fleet consists of: frozen records that `resources.py` registers one to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orch.catalog.fabrics import Fabric
from orch.catalog.records import Arch
from orch.components.aws.nics import Interface
from orch.spec.findings import Finding
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
class Rule:
    """One rule of a security group. `peer`: `itself`, `bastion`, or a network. `port` None: all traffic."""

    peer: str
    port: int | None
    why: str


@dataclass(frozen=True)
class Groups:
    """Security of the nodes: `given` ids, or one group of our own with these rules."""

    given: tuple[str, ...]
    name: str | None
    ingress: tuple[Rule, ...]
    egress: tuple[Rule, ...]


@dataclass(frozen=True)
class Bastion:
    """A small machine to jump over. `public`: it has an address and answers `cidrs`; else SSM leads to it."""

    instance_type: str
    image: str
    public: bool
    cidrs: tuple[str, ...]
    price: float | None


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
    """What the instances are taken from. `made`: a reservation of our own for so many; `id`: a given one."""

    made: int | None = None
    id: str | None = None
    market: Literal["on-demand", "spot", "block"] = "on-demand"
    max_price: str | None = None


@dataclass(frozen=True)
class Group:
    """The placement group: one of our own, or the one a given reservation lies in."""

    name: str
    made: bool


@dataclass(frozen=True)
class Disk:
    """The root disk."""

    device: str
    size_gb: int
    kms_key: str | None


@dataclass(frozen=True)
class Node:
    index: int
    name: str


@dataclass(frozen=True)
class AwsPlan:
    """A whole fleet. Prices in US dollars an hour.

    `layout` changes with what only a new instance can have; `settled`: the stack's nodes have this one.
    `profile`: an instance profile that was given; `ssm`: who gets one of our own, to be reached through SSM.
    `cloud_init` is the user data of all nodes, with a mark for what is known later; `confidential`: it may
    hold secrets. `host_keys`: by node, the instance that showed its host key, and the key. `shown`: an
    instance may read its own tags. `tags` are on everything.
    """

    fleet: str
    scope: str
    region: str
    zone: str
    zone_name: str
    instance_type: str
    network: NewNetwork | ExistingNetwork
    groups: Groups
    bastion: Bastion | None
    access: Access
    addresses: Addresses
    group: Group | None
    capacity: Capacity
    interfaces: tuple[Interface, ...]
    image: str
    disk: Disk
    profile: str | None
    ssm: Literal["nodes", "bastion"] | None
    nodes: tuple[Node, ...]
    cloud_init: str
    confidential: bool
    host_keys: Mapping[str, tuple[str, str]]
    shown: bool
    bastion_init: str
    tags: Mapping[str, str]
    layout: str
    settled: bool
    placement: Literal["any", "cluster"]
    rank_by_topology: bool
    interconnect: Literal["efa", "ethernet"]
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
    starts: str | None
    ends: str | None
    pins: Mapping[str, str]
    reasons: tuple[str, ...]
    warnings: tuple[Finding, ...]

    @property
    def base(self) -> str:
        """What names of cloud resources begin with."""
        return f"orch-{self.fleet}-{self.scope}"
