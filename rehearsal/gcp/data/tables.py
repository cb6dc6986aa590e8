"""The account's tables: machine types, regions, network profiles, quotas, images. Read once."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from orch.rehearsal.tables import read_rows, read_text

RELEASES = ("v20261001", "v20261101")
"""Dates of the releases of each public image, the newest last."""


@dataclass(frozen=True)
class Type:
    """A machine type. `nics`: types of a host interface, the first is the default; `hosts`: how many."""

    name: str
    vcpus: int
    memory_mb: int
    arch: str
    gpu: str | None
    gpus: int
    nics: tuple[str, ...]
    hosts: int
    rdma: int
    disks: tuple[int, int]
    cpu_metric: str | None
    gpu_metric: str | None
    flags: frozenset[str]
    zones: frozenset[str]

    @property
    def migrates(self) -> bool:
        return "m" in self.flags

    @property
    def spot(self) -> bool:
        return "s" in self.flags

    @property
    def flex(self) -> bool:
        return "f" in self.flags

    @property
    def compact(self) -> bool:
        return "c" in self.flags

    @property
    def workload(self) -> bool:
        return "w" in self.flags

    @property
    def domain(self) -> bool:
        """Whether GPUs of several machines are in one NVLink domain."""
        return "d" in self.flags

    @property
    def dense(self) -> bool:
        """Whether machines tell where they stand, also without a placement policy."""
        return self.workload

    def metrics(self, *, preemptible: bool) -> tuple[tuple[str, int], ...]:
        """(quota metric, how much one machine takes)."""
        metrics: list[tuple[str, int]] = []
        if self.gpu_metric:
            metrics.append(
                (f"{'PREEMPTIBLE_' if preemptible else ''}NVIDIA_{self.gpu_metric}_GPUS", self.gpus)
            )
        if self.cpu_metric:
            metrics.append((self.cpu_metric, self.vcpus))
        return tuple(metrics)

    def device_files(self) -> tuple[str, ...]:
        """Device files of this type: GPUs, and what its fabric has: RDMA, or the helper of TCPXO.

        Source of the helper: Google Cloud "Deploy an A3 Mega Slurm cluster", containers.
        """
        paths = [f"/dev/nvidia{number}" for number in range(self.gpus)]
        paths += ["/dev/nvidiactl", "/dev/nvidia-uvm"] if self.gpus else []
        paths += [f"/dev/infiniband/uverbs{number}" for number in range(self.rdma)]
        paths += ["/dev/gdrdrv"] if self.rdma else []
        paths += ["/dev/dmabuf_import_helper"] if self.name.startswith("a3-megagpu-") else []
        return tuple(paths)


@dataclass(frozen=True)
class NetworkProfile:
    """A kind of network profile; ZONE-KIND is one profile."""

    kind: str
    types: tuple[str, ...]
    mtu: int
    subnets: bool
    interface: str


@functools.cache
def regions() -> Mapping[str, tuple[str, ...]]:
    """Region -> its zones."""
    table: dict[str, str] = yaml.safe_load(read_text(__name__, "regions.yml"))
    return {region: tuple(f"{region}-{letter}" for letter in letters) for region, letters in table.items()}


@functools.cache
def zones() -> Mapping[str, str]:
    """Zone -> its region."""
    return {zone: region for region, names in regions().items() for zone in names}


@functools.cache
def types() -> Mapping[str, Type]:
    return {row["type"]: _type(row) for row in read_rows(__name__, "machine-types.csv")}


def _type(row: dict[str, str]) -> Type:
    count, _, gpu = row["gpus"].partition(" ")
    nics, _, hosts = row["nics"].partition(":")
    number, _, size = row["ssd"].partition("x")
    zones_of_type = frozenset(zones())
    if row["zones"] != "*":
        pairs = (each.split(":") for each in row["zones"].split())
        zones_of_type = frozenset(f"{region}-{letter}" for region, letters in pairs for letter in letters)
    return Type(
        name=row["type"],
        vcpus=int(row["vcpus"]),
        memory_mb=int(row["memory_mb"]),
        arch=row["arch"],
        gpu=gpu or None,
        gpus=int(count or 0),
        nics=tuple(nics.split()),
        hosts=int(hosts),
        rdma=int(row["rdma"]),
        disks=(int(number or 0), int(size or 0)),
        cpu_metric=row["cpus"] or None,
        gpu_metric=row["quota"] or None,
        flags=frozenset(row["flags"]),
        zones=zones_of_type,
    )


@functools.cache
def profiles() -> Mapping[str, NetworkProfile]:
    """Profile kind -> what it fixes."""
    table: dict[str, dict[str, Any]] = yaml.safe_load(read_text(__name__, "network-profiles.yml"))
    return {
        kind: NetworkProfile(kind, tuple(row["types"]), row["mtu"], row["subnets"], row["interface"])
        for kind, row in table.items()
    }


@functools.cache
def quotas() -> Mapping[str, Mapping[str, float]]:
    """project | region | family -> metric -> limit."""
    return yaml.safe_load(read_text(__name__, "quotas.yml"))


@functools.cache
def images() -> tuple[Mapping[str, Any], ...]:
    """Public images, the releases of a family in their order."""
    return tuple(
        {**row, "name": f"{row['name']}-{release}"}
        for row in yaml.safe_load(read_text(__name__, "images.yml"))
        for release in RELEASES
    )
