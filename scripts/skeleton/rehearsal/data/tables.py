"""The tables of the simulated account: types, the regions that have them, images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from orch.rehearsal.tables import read_rows

IMAGES = ("gpu-ubuntu-22.04", "gpu-ubuntu-24.04")
"""Names, the oldest first; each in every region."""


@dataclass(frozen=True)
class Kind:
    """A type."""

    name: str
    gpus: int
    disk_gib: int
    regions: tuple[str, ...]


@cache
def kinds() -> Mapping[str, Kind]:
    """Return the types by name."""
    rows = read_rows(__name__, "types.csv")
    return {
        row["name"]: Kind(row["name"], int(row["gpus"]), int(row["disk_gib"]), tuple(row["regions"].split()))
        for row in rows
    }


def regions() -> frozenset[str]:
    """Return all regions."""
    return frozenset(region for kind in kinds().values() for region in kind.regions)
