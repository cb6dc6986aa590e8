"""The project's tables: types by location, InfiniBand networks, images. Read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from orch.rehearsal.tables import read_rows

PLENTY = 1024
"""Slices, or machines that are no cluster's, of a type whose capacity nobody set."""

IMAGES = (
    "ubuntu22.04",
    "ubuntu22.04-nvidia-sxm-docker",
    "ubuntu22.04-nvidia-pcie-docker",
    "ubuntu24.04-nvidia-sxm-docker-b200",
    "ubuntu24.04-nvidia-sxm-docker-b300",
    "ubuntu-rocm",
)
TAGS = ("latest", "20260801")


@dataclass(frozen=True)
class Kind:
    """A type. `slices`: of an InfiniBand network that a machine takes, 0: it joins none."""

    name: str
    gpu_type: str
    gpus: int
    cpus: int
    memory_gb: int
    disk_gb: int
    slices: int
    quota: str
    locations: tuple[str, ...]


@dataclass(frozen=True)
class IbNetwork:
    """An InfiniBand network that the project may use, of one type."""

    id: str
    name: str
    location: str
    kind: str


@cache
def kinds() -> Mapping[str, Kind]:
    return {
        row["product_name"]: Kind(
            row["product_name"],
            row["gpu_type"],
            int(row["num_gpu"]),
            int(row["cpu_cores"]),
            int(row["memory_gb"]),
            int(row["disk_gb"]),
            int(row["slices"]),
            row["quota"],
            tuple(row["locations"].split()),
        )
        for row in read_rows(__name__, "types.csv")
    }


@cache
def locations() -> tuple[str, ...]:
    return tuple(sorted({location for each in kinds().values() for location in each.locations}))


@cache
def ib_networks() -> Mapping[str, IbNetwork]:
    """Two for each type in each of its locations: `h200-us-east1-1`."""
    found: dict[str, IbNetwork] = {}
    for each in kinds().values():
        for location in each.locations if each.slices else ():
            for number in (1, 2):
                name = f"{each.name.partition('-')[0]}-{location.removesuffix('-a')}-{number}"
                found[f"ibn-{name}"] = IbNetwork(f"ibn-{name}", name, location, each.name)
    return found
