"""The account's tables: instance types, regions, quotas, images. Read once."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from orch.rehearsal.tables import read_rows, read_text


@dataclass(frozen=True)
class Accelerator:
    count: int
    manufacturer: str
    name: str
    memory_mib: int


@dataclass(frozen=True)
class Card:
    """One network card: how many interfaces it carries, and of which kinds."""

    index: int
    interfaces: int
    efa: bool
    efa_with_ena: bool


@dataclass(frozen=True)
class Type:
    """An instance type. `group`: whose vCPU quota it counts towards."""

    name: str
    vcpus: int
    memory_mib: int
    arch: str
    cards: tuple[Card, ...]
    addresses: int
    efa: int
    accelerator: Accelerator | None
    disks: tuple[int, int]
    group: str
    cluster: bool
    spot: bool
    capacity_block: bool

    @property
    def interfaces(self) -> int:
        return sum(card.interfaces for card in self.cards)

    def device_files(self) -> tuple[str, ...]:
        """Device files of this type: accelerators, and EFA where it has some."""
        paths: list[str] = []
        nvidia = self.accelerator is not None and self.accelerator.manufacturer == "NVIDIA"
        if self.accelerator is not None:
            name = "nvidia" if nvidia else "neuron"
            paths += [f"/dev/{name}{number}" for number in range(self.accelerator.count)]
            paths += ["/dev/nvidiactl", "/dev/nvidia-uvm"] if nvidia else []
        if self.efa:
            paths += [f"/dev/infiniband/uverbs{number}" for number in range(self.efa)]
            paths += ["/dev/gdrdrv"] if nvidia else []
        return tuple(paths)


@dataclass(frozen=True)
class Quota:
    code: str
    service: str
    name: str
    value: float
    group: str | None = None
    market: str | None = None


@dataclass(frozen=True)
class Zone:
    name: str
    id: str
    region: str


@functools.cache
def types() -> Mapping[str, Type]:
    return {row["type"]: _type(row) for row in read_rows(__name__, "instance-types.csv")}


def _type(row: dict[str, str]) -> Type:
    count, each = (int(part) for part in row["cards"].split("x"))
    ena_only = {int(index) for index in row["ena_only"].split()}
    cards = tuple(
        Card(
            index,
            each,
            bool(int(row["efa"])) and index not in ena_only,
            "e" not in row["flags"],
        )
        for index in range(count)
    )
    accelerator = None
    if row["accelerators"]:
        number, rest = row["accelerators"].split("x", 1)
        manufacturer, name, memory = rest.split()
        accelerator = Accelerator(int(number), manufacturer, name, int(memory))
    disks = (0, 0)
    if row["disks"]:
        number, size = row["disks"].split("x")
        disks = (int(number), int(size))
    return Type(
        name=row["type"],
        vcpus=int(row["vcpus"]),
        memory_mib=int(row["memory_mib"]),
        arch=row["arch"],
        cards=cards,
        addresses=int(row["addresses"]),
        efa=int(row["efa"]),
        accelerator=accelerator,
        disks=disks,
        group=row["group"],
        cluster="c" in row["flags"],
        spot="s" in row["flags"],
        capacity_block="b" in row["flags"],
    )


@functools.cache
def quotas() -> Mapping[str, Quota]:
    return {
        code: Quota(code=code, **row)
        for code, row in yaml.safe_load(read_text(__name__, "quotas.yml")).items()
    }


def vcpu_quota(group: str, market: str) -> Quota:
    return next(q for q in quotas().values() if (q.group, q.market) == (group, market))


@functools.cache
def regions() -> Mapping[str, tuple[Zone, ...]]:
    return {
        region: tuple(
            Zone(f"{region}{letter}", f"{row['prefix']}-az{number}", region)
            for letter, number in row["zones"].items()
        )
        for region, row in yaml.safe_load(read_text(__name__, "regions.yml")).items()
    }


@functools.cache
def image_rows() -> tuple[Mapping[str, Any], ...]:
    return tuple(yaml.safe_load(read_text(__name__, "images.yml")))


def image_id(region: str, name: str) -> str:
    """AWS's images have another id in each region."""
    return "ami-0" + hashlib.sha256(f"{region} {name}".encode()).hexdigest()[:16]
