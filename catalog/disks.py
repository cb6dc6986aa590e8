"""Prices of disks, each with its source and date: what a GB costs a month, in the region of the list."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files


@cache
def _prices() -> dict[tuple[str, str, str], float]:
    text = files("orch.catalog").joinpath("disks.csv").read_text("utf-8")
    return {
        (row["backend"], row["type"], row["region"]): float(row["usd_per_gb_month"])
        for row in csv.DictReader(text.splitlines())
    }


def monthly_price(
    backend: str, disk_type: str, region: str | None, size_gb: int, *, performance: bool
) -> float | None:
    """US dollars a month for a disk; None where the list does not know.

    `performance`: IOPS or throughput beyond what the size includes, which cost extra and are in no list here.
    """
    price = _prices().get((backend, disk_type, region or ""))
    return None if price is None or performance else round(price * size_gb, 2)
