"""What was asked of a GCP project before a plan is made: frozen, and small enough to write down in a test.

`gather_facts.py` asks; the simulated cloud answers the same questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Subnet:
    """A subnet of a given network. `free` is not told by the cloud: its range is what there is."""

    name: str
    region: str
    cidr: str | None
    stack: str = "IPV4_ONLY"


@dataclass(frozen=True)
class Network:
    """A given network. `profile`: its network profile (`us-central1-b-vpc-roce`), None for a plain one.

    `subnets` are those of the region that was asked. `nat`: whether Cloud NAT leads out of them; `within`:
    whether a firewall rule lets its instances reach each other on all ports.
    """

    name: str
    mtu: int
    profile: str | None = None
    subnets: tuple[Subnet, ...] = ()
    nat: bool = False
    within: bool = False


@dataclass(frozen=True)
class Reservation:
    """A reservation of a zone.

    `specific`: only instances that name it use it; `policy`: the placement policy its instances must have;
    `dense`: its hosts stand together, as those of the newest types do.
    """

    name: str
    project: str
    zone: str
    instance_type: str
    total: int
    used: int
    status: str = "READY"
    specific: bool = True
    policy: str | None = None
    dense: bool = False

    @property
    def free(self) -> int:
        return self.total - self.used


@dataclass(frozen=True)
class Image:
    """A machine image. `link` is its full name, `size_gb` the least its disk may have."""

    link: str
    name: str
    size_gb: int


@dataclass(frozen=True)
class Allowance:
    """A quota and what counts against it already."""

    metric: str
    name: str
    limit: float
    used: float


@dataclass(frozen=True)
class GcpFacts:
    """One zone of one project. What was not asked is empty or None.

    `zones`: those of the region. `offered`: whether the zone has the type; `profile`: whether it has the
    network profile the type needs. `missing`: given things that are not there, by name.
    `own`: instances of the fleet that run in the zone already, recorded or not: `capacity` counts them too.
    `attribute_refusal`: the message of GCP where guest attributes may not be read.
    """

    project: str
    region: str
    zones: tuple[str, ...]
    offered: bool | None = None
    profile: bool | None = None
    image: Image | None = None
    bastion_image: Image | None = None
    networks: tuple[Network, ...] = ()
    reservation: Reservation | None = None
    capacity: Allowance | None = None
    network_quota: Allowance | None = None
    missing: tuple[str, ...] = ()
    own: int = 0
    attribute_refusal: str | None = None
    unread: tuple[str, ...] = ()
    """Why quotas are not known that were asked for."""

    def network(self, name: str) -> Network | None:
        return next((each for each in self.networks if each.name == name), None)


@dataclass(frozen=True)
class Member:
    """An instance: what a node's state needs that is known only afterwards.

    `id`: the number that no other instance has, or had. `host`: where it stands (block, subblock, host),
    outermost first; empty where the cloud does not tell. `keyed`: its user data holds its host key.
    `started`: when it last was; `stopped`: whether it is, or is about to be.
    """

    name: str
    address: str
    public: str | None
    created: str
    host: tuple[str, ...] = ()
    id: str = ""
    keyed: bool = False
    started: datetime | None = None
    stopped: bool = False


@dataclass(frozen=True)
class Operation:
    """What was done to the instance with the number `instance`."""

    type: str
    instance: str
    at: datetime
