"""What was asked of a Nebius tenant before a plan is made: frozen, and small enough to write down in a test.

`client.py` asks; the simulated account answers the same calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Stock = Mapping[tuple[str, str, str], "tuple[int | None, int | None]"]
"""(type, region, fabric) -> machines that may be had now, on demand and preemptible; None: not known."""

# Drivers, CUDA, InfiniBand drivers and Docker are on it. Source: dstack core/backends/nebius; nebius/api
# compute/v1/image_service.proto.
IMAGE_FAMILY = "ubuntu24.04-cuda13.0"
CPU_IMAGE_FAMILY = "ubuntu24.04-driverless"
"""Of machines without GPUs: nodes, and bastions."""


@dataclass(frozen=True)
class Image:
    """A machine image. `least_gb`: the smallest root disk that holds it."""

    id: str
    name: str
    least_gb: int


@dataclass(frozen=True)
class Subnet:
    """A given subnet, and the network that it is in."""

    id: str
    name: str
    network: str


@dataclass(frozen=True)
class Allowance:
    """A quota of the tenant in a region, in GPUs."""

    name: str
    limit: int
    usage: int

    @property
    def free(self) -> int:
        return self.limit - self.usage


@dataclass(frozen=True)
class Lookups:
    """All that a plan for one candidate has to ask.

    `image`: the id that is pinned, or that the file names; None: the newest of `family`. `quota`: whether
    new machines have to fit into it. `bastion`: whether one leads in; `bastion_type`, `bastion_image`: what
    it is made of already.
    """

    instance_type: str
    region: str
    image: str | None
    family: str
    network: str | None
    subnets: Sequence[str]
    groups: Sequence[str]
    quota: bool
    bastion: bool = False
    bastion_type: str | None = None
    bastion_image: str | None = None


@dataclass(frozen=True)
class NebiusFacts:
    """The answers. `project`: the one of the region. `missing`: names of given pieces that are not there.
    `bastion_type`: the smallest machine without GPUs."""

    project: str
    image: Image | None = None
    subnets: tuple[Subnet, ...] = ()
    groups: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    quota: Allowance | None = None
    stock: int | None = None
    unread: tuple[str, ...] = ()
    """Why quotas are not known that were asked for."""
    bastion_type: str | None = None
    bastion_image: Image | None = None
