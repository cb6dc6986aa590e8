"""GCP types that no price list names, as parts and multiples of one that does.

A machine of GCP costs what its vCPUs, memory and GPUs cost, so the price of a type whose parts are multiples
of those of others is known, in the zones that have these. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orch.catalog.records import InstanceType, Offer

Parts = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Sibling:
    """A type. `like`: the one whose zones and networks it has; `parts`: what its price is the sum of, types
    by how many of each, nothing where it is not known; `disks`: its local SSDs."""

    type: InstanceType
    like: str
    parts: Parts
    disks: int


def siblings(rows: Sequence[Mapping[str, str]], types: Mapping[str, InstanceType]) -> Iterator[Sibling]:
    """Those of a data file; `types` are the others. Raises KeyError, ValueError for a row that is wrong."""
    for row in rows:
        like = types[row["like"]]
        yield Sibling(
            InstanceType(
                backend=like.backend,
                name=row["type"],
                arch=like.arch,
                vcpus=int(row["vcpus"]),
                memory_mib=round(float(row["memory_gib"]) * 1024),
                gpu=like.gpu,
                gpu_count=int(row["gpu_count"] or 0),
                gpu_memory_mib=like.gpu_memory_mib,
            ),
            like.name,
            tuple(_part(word) for word in row["price"].split()),
            int(row["disks"] or 0),
        )


def offered(known: Sequence[Sibling], offers: Sequence[Offer]) -> Iterator[Offer]:
    """Where each is, and for how much: in the zones of the one it is like, at the sum of its parts there."""
    priced: dict[str, dict[str, Offer]] = {}
    for offer in offers:
        priced.setdefault(offer.type.name, {})[offer.zone or ""] = offer
    for each in known:
        if each.type.name in priced:  # a list names it after all
            continue
        for zone, like in priced.get(each.like, {}).items():
            there = [(priced.get(name, {}).get(zone), count) for name, count in each.parts]
            price = _sum([(offer and offer.price, count) for offer, count in there])
            spot = _sum([(offer and offer.spot_price, count) for offer, count in there])
            yield Offer(each.type, like.region, like.zone, price, spot)


def _sum(parts: Sequence[tuple[float | None, float]]) -> float | None:
    total = 0.0
    for price, count in parts:
        if price is None:
            return None
        total += price * count
    return round(total, 6) if parts and total > 0 else None


def _part(word: str) -> tuple[str, float]:
    """`n2-standard-8:0.25`."""
    name, _, count = word.partition(":")
    return name, float(count)
