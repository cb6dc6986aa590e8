"""What the data files say, one frozen record per row. Memory is in MiB, prices in US dollars per hour."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from orch.catalog.shortages import Shortage

Arch = Literal["x86", "arm"]
ANY_FABRIC = "*"
"""Among the fabrics of an offer: its machines can be on fabrics whose names the account alone knows."""

_MACHINES: Mapping[str, Arch] = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}

# `use1-az4` is a zone of a region; `use1-atl2-az1` lies in a city outside it, a local zone.
# Source: AWS, "Availability Zone IDs for your AWS resources" and "Available Local Zones".
_REGIONAL_AZ_ID = re.compile(r"[a-z]+[0-9]+-az[0-9]+")


def arch_of(machine: object) -> Arch | None:
    """The architecture that a kernel or Docker calls so; None for another one."""
    return _MACHINES.get(machine) if isinstance(machine, str) else None


def gpu_key(name: str) -> str:
    """A GPU's name without what people write differently: `RTX-A6000`, `rtx a6000` and `RTXA6000` are one."""
    return re.sub(r"[-_. ]", "", name).lower()


@dataclass(frozen=True)
class GpuModel:
    """A model. `sizes_mib` are the memory sizes it is sold with, `accelerator` is what is no GPU."""

    name: str
    vendor: str
    kind: Literal["gpu", "accelerator"] = "gpu"
    compute_capability: float | None = None
    sizes_mib: tuple[int, ...] = ()
    arm_only: bool = False
    aliases: tuple[str, ...] = ()

    @cached_property
    def keys(self) -> frozenset[str]:
        """`gpu_key` of each name it answers to."""
        return frozenset(gpu_key(name) for name in (self.name, *self.aliases))


@dataclass(frozen=True)
class InstanceType:
    """A machine that can be rented. `gpu_memory_mib` is of one GPU, as the source gives it.

    None: not known. `form` is SXM or PCIe where the source tells it, else empty. `surveyed`: the price list
    names all places that have it; of the others it may name none. `home_price`: on demand in the backend's
    home region, of those; None: not sold there.
    """

    backend: str
    name: str
    arch: Arch
    vcpus: int | None
    memory_mib: int | None
    gpu: GpuModel | None = None
    gpu_count: int = 0
    gpu_memory_mib: int | None = None
    form: str = ""
    surveyed: bool = True
    home_price: float | None = None


@dataclass(frozen=True)
class Offer:
    """A type in a zone. A region, zone or price that is None is unknown, or does not exist there.

    `listed`: a price list has the offer; else it is unknown whether the region has the type, in which zones,
    and at what spot price. `price_of`: the region whose price this is, where its own is unknown. `fabrics`:
    the names of the InfiniBand fabrics that its machines can be on, where the backend names them; ANY_FABRIC
    where the account alone knows them.
    """

    type: InstanceType
    region: str | None
    zone: str | None
    price: float | None
    spot_price: float | None
    listed: bool = True
    price_of: str | None = None
    fabrics: tuple[str, ...] = ()

    @cached_property
    def local_zone(self) -> bool:
        """Return True if it lies in an AWS local zone, away from the region's data centers."""
        return (
            self.type.backend == "aws" and bool(self.zone) and not _REGIONAL_AZ_ID.fullmatch(self.zone or "")
        )


@dataclass(frozen=True)
class Fetched:
    """Result of asking a cloud's own APIs: offers, the regions that were asked, and shortages there."""

    offers: tuple[Offer, ...]
    regions: tuple[str, ...]
    shortages: tuple[Shortage, ...] = ()


@dataclass(frozen=True)
class PriceList:
    """List of all offers of a backend, with source and date. `refreshed`: the list was made on this machine.

    `complete`: regions for which the list has every type that is sold there, surveyed or not.
    """

    backend: str
    source: str
    as_of: str
    note: str
    offers: tuple[Offer, ...]
    refreshed: bool = False
    complete: frozenset[str] = frozenset()

    @cached_property
    def prices(self) -> Mapping[str, Mapping[str, float | None]]:
        """For each type with a row: its regions, each with its own price, or None without one."""
        prices: dict[str, dict[str, float | None]] = {}
        for offer in self.offers:
            known = prices.setdefault(offer.type.name, {})
            if offer.region and known.get(offer.region) is None:
                known[offer.region] = None if offer.price_of else offer.price
        return prices

    @cached_property
    def by_type(self) -> tuple[tuple[InstanceType, tuple[Offer, ...]], ...]:
        """The offers of each type that has one."""
        found: dict[str, list[Offer]] = {}
        for offer in self.offers:
            found.setdefault(offer.type.name, []).append(offer)
        return tuple((offers[0].type, tuple(offers)) for offers in found.values())

    @cached_property
    def regions(self) -> frozenset[str]:
        return frozenset(offer.region for offer in self.offers if offer.region)


@dataclass(frozen=True)
class Catalog:
    """Everything known, by name. `types` is keyed by backend and type.

    `regions`: by backend, the regions that may have types which no price list has.
    """

    gpus: Mapping[str, GpuModel]
    types: Mapping[tuple[str, str], InstanceType]
    lists: Mapping[str, PriceList]
    regions: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(self.lists)

    def offers(self) -> Iterator[Offer]:
        """Yield all offers of the price lists; `unpriced.py` has the others."""
        for each in self.lists.values():
            yield from each.offers
