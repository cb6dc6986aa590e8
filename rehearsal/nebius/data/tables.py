"""The account's tables: platforms with their presets, regions, fabrics, image families. Read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from orch.rehearsal.tables import read_rows

TENANT = "tenant-e00orchrehearsal000000"
IMAGE_FAMILIES: Mapping[str, int] = {"ubuntu24.04-cuda13.0": 40, "ubuntu24.04-driverless": 10}
"""Public image families, and the least size of a boot disk in GiB."""


@dataclass(frozen=True)
class Preset:
    """A preset of a platform. `fabrics`: region -> its InfiniBand fabrics; `gpu_price` and `spot_price`: of a
    GPU, in US dollars an hour.
    """

    platform: str
    name: str
    vcpus: int
    memory_gib: int
    gpus: int
    clustering: bool
    quota: str
    spot: bool
    gpu_price: float
    spot_price: float
    regions: tuple[str, ...]
    fabrics: Mapping[str, tuple[str, ...]]

    @property
    def type(self) -> str:
        """As capacity is set by: `gpu-h100-sxm_8gpu-128vcpu-1600gb`."""
        return f"{self.platform}_{self.name}"


@cache
def presets() -> Mapping[tuple[str, str], Preset]:
    known = (
        Preset(
            row["platform"],
            row["preset"],
            int(row["vcpus"]),
            int(row["memory_gib"]),
            int(row["gpus"]),
            row["clustering"] == "yes",
            row["quota"],
            row["spot"] == "yes",
            float(row["gpu_price"] or 0),
            float(row["spot_price"] or 0),
            tuple(row["regions"].split()),
            _fabrics(row["fabrics"]),
        )
        for row in read_rows(__name__, "platforms.csv")
    )
    return {(each.platform, each.name): each for each in known}


@cache
def regions() -> tuple[str, ...]:
    return tuple(sorted({region for each in presets().values() for region in each.regions}))


@cache
def platform_of_fabric() -> Mapping[tuple[str, str], str]:
    """(region, fabric) -> the platform whose machines are on it."""
    return {
        (region, fabric): each.platform
        for each in presets().values()
        for region, names in each.fabrics.items()
        for fabric in names
    }


def _fabrics(text: str) -> dict[str, tuple[str, ...]]:
    fabrics: dict[str, tuple[str, ...]] = {}
    for word in text.split():
        region, _, fabric = word.partition(":")
        fabrics[region] = (*fabrics.get(region, ()), fabric)
    return fabrics
