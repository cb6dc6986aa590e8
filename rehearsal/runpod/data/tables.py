"""The account's tables: GPUs with their prices and data centers. Read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from orch.rehearsal.tables import read_rows

REGIONS: Mapping[str, str] = {"US": "NORTH_AMERICA", "CA": "NORTH_AMERICA", "EU": "EUROPE"}
"""What a data center's name begins with -> where it is."""


CLUSTER_SURCHARGE = 1.2
"""What a GPU of a cluster costs more than one of a pod, here. Nobody publishes by how much it does."""


@dataclass(frozen=True)
class Gpu:
    """A type of GPU. Prices are dollars an hour for one; `max_count` is the most of one pod."""

    id: str
    name: str
    memory: int
    secure: float
    community: float
    max_count: int
    cluster: bool
    data_centers: tuple[str, ...]

    @property
    def cluster_price(self) -> float:
        return round(self.secure * CLUSTER_SURCHARGE, 4)


@cache
def gpus() -> Mapping[str, Gpu]:
    known = (
        Gpu(
            row["id"],
            row["name"],
            int(row["memory"]),
            float(row["secure"]),
            float(row["community"]),
            int(row["max_count"]),
            row["cluster"] == "yes",
            tuple(row["data_centers"].split()),
        )
        for row in read_rows(__name__, "gpus.csv")
    )
    return {each.id: each for each in known}


@cache
def data_centers() -> tuple[str, ...]:
    return tuple(sorted({center for each in gpus().values() for center in each.data_centers}))
