"""The account's tables: types and the regions that have them, images. Read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from orch.rehearsal.tables import read_rows

REGIONS: Mapping[str, str] = {
    "us-east-1": "Virginia, USA",
    "us-east-2": "Washington DC, USA",
    "us-west-1": "California, USA",
    "us-west-2": "Arizona, USA",
    "us-south-1": "Texas, USA",
    "europe-central-1": "Germany",
}

# Family, version, time of making; each in every region, for both kinds of processors.
IMAGES = (
    ("lambda-stack-22-04", "22.4.5", "2026-03-01T00:00:00Z"),
    ("lambda-stack-24-04", "24.4.2", "2026-08-01T00:00:00Z"),
    ("ubuntu-22-04", "22.4.1", "2026-06-01T00:00:00Z"),
)
ARCHITECTURES = ("x86_64", "arm64")


@dataclass(frozen=True)
class Kind:
    """A type."""

    name: str
    description: str
    gpus: int
    vcpus: int
    memory_gib: int
    storage_gib: int
    cents: int
    arch: str
    regions: tuple[str, ...]


@cache
def kinds() -> Mapping[str, Kind]:
    return {
        row["name"]: Kind(
            row["name"],
            row["gpu"],
            int(row["gpus"]),
            int(row["vcpus"]),
            int(row["memory_gib"]),
            int(row["storage_gib"]),
            int(row["cents"]),
            row["arch"],
            tuple(row["regions"].split()),
        )
        for row in read_rows(__name__, "types.csv")
    }
