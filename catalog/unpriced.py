"""Offers that no price list has: types that were not surveyed, and regions without a price of their own.

A known type with a price in one region may be sold in any other: there is an offer in each region, without a
zone, at the price of that one region. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from orch.catalog.records import Catalog, InstanceType, Offer

# The region whose price stands for that of others: most types are sold there first, at the lowest price.
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


def types_possibly_unlisted(catalog: Catalog, backend: str) -> Iterator[InstanceType]:
    """Types that may be sold in regions where no price list of the backend has them."""
    if backend in catalog.regions:
        yield from (each for each in catalog.types.values() if each.backend == backend)


def unlisted_offers(catalog: Catalog, each: InstanceType, zones: Sequence[str] = ()) -> Iterator[Offer]:
    """One offer in each region that may have the type and is in no price list; the home region first.

    For a surveyed type these are the regions that the survey left out. `zones`: zone ids that the fleet
    names; a region with some of them gets one offer for each instead.
    """
    prices = catalog.lists.get(each.backend)
    if prices is None or each.backend not in catalog.regions:
        return
    own_prices = prices.prices.get(each.name, {})
    covered = prices.complete | (prices.regions if each.surveyed else own_prices.keys())
    home = HOME[each.backend]
    reference = reference_price(each, own_prices)
    for region in _home_first(catalog.regions[each.backend], home):
        if region in covered or (region == home and each.home_price is None):
            continue
        of, price = (None, each.home_price) if region == home else reference
        prefix = f"{zone_prefix(region)}-"
        named_zones = dict.fromkeys(zone.lower() for zone in zones if zone.lower().startswith(prefix))
        for zone in named_zones or (None,):
            yield Offer(each, region, zone, price, None, listed=False, price_of=of)


@lru_cache(maxsize=16)
def _home_first(regions: tuple[str, ...], home: str) -> tuple[str, ...]:
    return tuple(sorted(regions, key=lambda name: (name != home, name)))


def reference_price(
    each: InstanceType, prices: Mapping[str, float | None]
) -> tuple[str, float] | tuple[None, None]:
    """The region whose price stands for that of others, and that price in US dollars an hour.

    The home region, else the first region by name that has a price; (None, None) where no price is known.
    """
    home = HOME.get(each.backend, "")
    known = {region: price for region, price in prices.items() if price is not None}
    if home not in known and each.home_price is not None:
        return home, each.home_price
    region = home if home in known else min(known, default=None)
    return (region, known[region]) if region is not None else (None, None)


def with_reference_prices(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The same offers; one in a region without a known price takes the price of another region."""
    offers = tuple(offers)
    prices: dict[InstanceType, dict[str, float | None]] = {}
    for offer in offers:
        if offer.region and offer.price is not None:
            prices.setdefault(offer.type, {}).setdefault(offer.region, offer.price)

    def priced(offer: Offer) -> Offer:
        if offer.price is not None or offer.region is None:
            return offer
        by_region = prices.get(offer.type, {})
        of, price = (
            (None, by_region[offer.region])
            if offer.region in by_region
            else reference_price(offer.type, by_region)
        )
        return offer if price is None else replace(offer, price=price, price_of=of)

    return tuple(priced(offer) for offer in offers)


def zone_prefix(region: str) -> str:
    """Return the prefix of the zone ids of an AWS region: `use1` of us-east-1."""
    area, _, rest = region.partition("-")
    *middle, number = rest.split("-")
    return area + "".join(_SHORT.get(word, word) for word in middle) + number
