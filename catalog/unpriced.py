"""What no price list tells: offers of types that were not surveyed, and prices that regions lend each other.

A type that is known, and its price in one region, may be in any other: there is an offer in each region,
without a zone, at the price of that one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from orch.catalog.records import Catalog, InstanceType, Offer

# The region whose price stands for that of others: most types are sold there first, and for least.
HOME = {"aws": "us-east-1", "gcp": "us-central1"}

# How AWS shortens a region's name in the ids of its zones: `use1-az4` is in us-east-1.
# Source: AWS, "Availability Zone IDs for your AWS resources".
_SHORT = {
    "north": "n",
    "south": "s",
    "east": "e",
    "west": "w",
    "central": "c",
    "northeast": "ne",
    "northwest": "nw",
    "southeast": "se",
    "southwest": "sw",
}


def doubtful(catalog: Catalog, backend: str) -> Iterator[InstanceType]:
    """Types that may be where no list of the backend tells of them."""
    if backend in catalog.regions:
        yield from (each for each in catalog.types.values() if each.backend == backend)


def unlisted(catalog: Catalog, each: InstanceType, zones: Sequence[str] = ()) -> Iterator[Offer]:
    """One offer in each region that may have the type and of which no list tells; the home region first.
    That of a type that was surveyed are those that the survey left out.

    `zones`: where zones of a region are written by their ids, one offer for each of these instead.
    """
    known = catalog.lists.get(each.backend)
    if known is None or each.backend not in catalog.regions:
        return
    listed = known.prices.get(each.name, {})
    told = known.complete | (known.regions if each.surveyed else listed.keys())
    home = HOME[each.backend]
    lender = lends(each, listed)
    for region in _home_first(catalog.regions[each.backend], home):
        if region in told or (region == home and each.home_price is None):
            continue
        of, price = (None, each.home_price) if region == home else lender
        written = (zone.lower() for zone in zones if zone.lower().startswith(f"{zone_prefix(region)}-"))
        inside = list(dict.fromkeys(written))
        for zone in inside or (None,):
            yield Offer(each, region, zone, price, None, listed=False, price_of=of)


@lru_cache(maxsize=16)
def _home_first(regions: tuple[str, ...], home: str) -> tuple[str, ...]:
    return tuple(sorted(regions, key=lambda name: (name != home, name)))


def lends(each: InstanceType, prices: Mapping[str, float | None]) -> tuple[str, float] | tuple[None, None]:
    """The region whose price stands for that of others, and the price: the home region, else the first by
    name."""
    home = HOME.get(each.backend, "")
    known = {region: price for region, price in prices.items() if price is not None}
    if home not in known and each.home_price is not None:
        return home, each.home_price
    region = home if home in known else min(known, default=None)
    return (region, known[region]) if region is not None else (None, None)


def lent(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The same, those in a region without a known price at that of another."""
    listed = tuple(offers)
    prices: dict[InstanceType, dict[str, float | None]] = {}
    for offer in listed:
        if offer.region and offer.price is not None:
            prices.setdefault(offer.type, {}).setdefault(offer.region, offer.price)

    def at(offer: Offer) -> Offer:
        if offer.price is not None or offer.region is None:
            return offer
        own = prices.get(offer.type, {})
        of, price = (None, own[offer.region]) if offer.region in own else lends(offer.type, own)
        return offer if price is None else replace(offer, price=price, price_of=of)

    return tuple(at(offer) for offer in listed)


def zone_prefix(region: str) -> str:
    """How ids of an AWS region's zones begin: `use1` of us-east-1."""
    area, _, rest = region.partition("-")
    *middle, number = rest.split("-")
    return area + "".join(_SHORT.get(word, word) for word in middle) + number
