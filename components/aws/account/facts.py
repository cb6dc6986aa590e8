"""What was asked of an AWS account before a plan is made: frozen, and small enough to write down in a test.

`gather_facts.py` asks; the simulated cloud answers the same questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Zone:
    """A zone of a region as this account sees it: `use1-az4` goes by `us-east-1a` here."""

    id: str
    name: str


@dataclass(frozen=True)
class Vpc:
    id: str
    cidr: str


@dataclass(frozen=True)
class Subnet:
    """A subnet of a given network. `free`: addresses left. `egress`: where its default route leads.

    `nodes`: whether nodes may be in it; the others of a VPC are here for a bastion.
    """

    id: str
    vpc: str
    zone: str
    cidr: str
    free: int
    egress: Literal["nat", "internet", "other", "none"]
    nodes: bool = True


@dataclass(frozen=True)
class SecurityGroup:
    """A given security group. `itself`: whether it lets all traffic in from and out to itself."""

    id: str
    vpc: str
    itself: bool


@dataclass(frozen=True)
class Reservation:
    """A Capacity Reservation, or a Capacity Block. `zone` is an id; times are UTC, ISO 8601."""

    id: str
    kind: Literal["reservation", "block"]
    instance_type: str
    region: str
    zone: str
    total: int
    available: int
    state: str
    group: str | None = None
    start: str | None = None
    end: str | None = None
    tenancy: str = "default"


@dataclass(frozen=True)
class Image:
    """A machine image. `size_gb` is that of its root disk at least."""

    id: str
    name: str
    root_device: str
    size_gb: int


@dataclass(frozen=True)
class Allowance:
    """A quota and what counts against it already; `used` is None where it was not counted.

    Of vCPUs and interfaces, what the fleet itself has is not among it.
    """

    code: str
    name: str
    limit: float
    used: int | None = None


@dataclass(frozen=True)
class AwsFacts:
    """One region of one account. What was not asked is empty or None.

    `cards`: network cards and EFA interfaces of the instance type, as AWS reports them.

    Of the given pieces of a network, by id or name, `missing` are those that do not exist here; `elsewhere`:
    the region where such a piece is; `ambiguous`: the ids of all pieces with that name; `in_other_vpc`: the
    VPC of a subnet that is not in that of the first.

    `console_refusal`: the message of AWS where consoles may not be read.
    """

    account: str
    region: str
    zones: tuple[Zone, ...]
    image: Image | None = None
    bastion_image: Image | None = None
    vpc: Vpc | None = None
    subnets: tuple[Subnet, ...] = ()
    groups: tuple[SecurityGroup, ...] = ()
    reservation: Reservation | None = None
    vcpus: Allowance | None = None
    addresses: Allowance | None = None
    interfaces: Allowance | None = None
    cards: tuple[int, int] | None = None
    missing: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict[str, str])
    ambiguous: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    in_other_vpc: Mapping[str, str] = field(default_factory=dict[str, str])
    console_refusal: str | None = None
    unread: tuple[str, ...] = ()
    """Why quotas are not known that were asked for."""

    def zone(self, zone_id: str) -> Zone | None:
        return next((zone for zone in self.zones if zone.id == zone_id), None)
