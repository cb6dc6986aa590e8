"""What was asked of a Crusoe project before a plan is made: frozen, and small enough to write down in a test.

`client.py` asks; the simulated account answers the same calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Stock = Mapping[tuple[str, str], int]
"""(type, location) -> how much there is; 0: nothing. The unit of what is no cluster is not documented."""


@dataclass(frozen=True)
class IbNetwork:
    """An InfiniBand network. `slices`: type -> free slices, of which a machine takes one for each GPU.

    Source of the unit: crusoecloud/terraform-provider-crusoe examples/infiniband/main.tf.
    """

    id: str
    name: str
    location: str
    slices: Mapping[str, int]

    def room(self, instance_type: str, gpus: int) -> int | None:
        """How many machines of a type may be had on it; None: it is not for this type."""
        free = self.slices.get(instance_type)
        return None if free is None else free // max(gpus, 1)


@dataclass(frozen=True)
class Image:
    """A machine image, `name:tag`."""

    name: str

    @property
    def id(self) -> str:
        return self.name


@dataclass(frozen=True)
class Subnet:
    """A given subnet, and the network that it is in."""

    id: str
    name: str
    network: str
    location: str


@dataclass(frozen=True)
class Quota:
    """A quota of the project, in GPUs."""

    name: str
    limit: int
    used: int

    @property
    def free(self) -> int:
        return self.limit - self.used


@dataclass(frozen=True)
class Reservation:
    """What the project's organization has bought, in GPUs, of types without GPUs in vCPUs: only VMs that run
    take from it. `projects`, `locations`: where it may be used, all where empty.

    Source: docs.crusoecloud.com usage-billing/reservations/overview.
    """

    id: str
    quantity: int
    used: int
    projects: tuple[str, ...] = ()
    locations: tuple[str, ...] = ()

    @property
    def free(self) -> int:
        return max(0, self.quantity - self.used)


@dataclass(frozen=True)
class Lookups:
    """All that a plan for one candidate has to ask.

    `image`, `bastion_image`: as `name:tag`, the bastion's None without one. `quota`: whether new machines
    have to fit into it.
    """

    instance_type: str
    location: str
    image: str
    network: str | None
    subnets: Sequence[str]
    quota: bool
    bastion_image: str | None = None


@dataclass(frozen=True)
class CrusoeFacts:
    """The answers. `missing`: names of given pieces that are not there. `room`: how many machines the place
    has now, `reservations`: those of the organization; None: nobody tells."""

    project: str
    image: Image | None = None
    bastion_image: Image | None = None
    subnets: tuple[Subnet, ...] = ()
    missing: tuple[str, ...] = ()
    quota: Quota | None = None
    reservations: tuple[Reservation, ...] | None = None
    unread: tuple[str, ...] = ()
    """Why quotas are not known that were asked for."""
    room: int | None = None
