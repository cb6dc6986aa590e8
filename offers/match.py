"""Which offers fit a query, the cheapest first, and which conditions the others fail.

Pure: `judge` looks at every offer of the catalogue and lists the conditions that it fails. The rules are in
docs/reference/offers.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain, islice

from orch.catalog.records import ANY_FABRIC, Catalog, GpuModel, InstanceType, Offer, gpu_key
from orch.catalog.unpriced import types_possibly_unlisted, unlisted_offers
from orch.offers.query import MachineQuery
from orch.spec.grammar.values import render_range, render_size
from orch.spec.models import Range
from orch.spec.models.selection import has_no_driver

GIB = 1024
UNKNOWN = "not known"

# A driver shows less than the size on the box (81,559 MiB of 80 GB), price lists count in 1000s (22.35 GiB of
# 24 GB, 262 of 288): within a tenth of a size the model is sold with, that size is meant.
NOMINAL_TOLERANCE = 0.1

# `us-east-1a` names a zone, `us-west-2-lax-1a` one of a local zone; which zone a name means differs from
# account to account. Source: AWS, "Availability Zone IDs for your AWS resources".
_AZ_NAME = re.compile(r"([a-z]{2}(?:-[a-z]+)+-[0-9]+)([a-z])")
_LOCAL_ZONE_NAME = re.compile(r"([a-z]{2}(?:-[a-z]+)+-[0-9]+)-([a-z]+)-([0-9]+)[a-z]?")


@dataclass(frozen=True)
class Miss:
    """One condition that an offer fails. `distance` says how far off it is, in doublings for numbers."""

    constraint: str
    required: str
    actual: str
    distance: float


@dataclass(frozen=True)
class Fit:
    """An offer at one of its two prices. None: the price is not known."""

    offer: Offer
    spot: bool

    @property
    def price(self) -> float | None:
        return self.offer.spot_price if self.spot else self.offer.price

    @property
    def price_of(self) -> str | None:
        """The region whose price this is, where the offer's own region has no known price."""
        return None if self.spot else self.offer.price_of

    @property
    def sure(self) -> bool:
        """Return True if a price list has the offer, at its own price if any price is known."""
        return self.price_of is None and (self.price is not None or self.offer.listed)


Missed = tuple[Fit, tuple[Miss, ...]]


@dataclass(frozen=True)
class Judgement:
    """`fits` in the order of choice; `misses` are all others, each with at least one failed condition."""

    fits: tuple[Fit, ...]
    find_misses: Callable[[], Iterable[Missed]] = tuple

    @cached_property
    def misses(self) -> tuple[Missed, ...]:
        """Computed on first use: most offers are misses, and they are shown only where nothing fits."""
        return tuple(self.find_misses())


def judge(query: MachineQuery, catalog: Catalog) -> Judgement:
    """Every offer of the catalogue, judged. Backends without a driver count only when the query names them.

    The cheapest come first; with the number of GPUs left open, those with the fewest GPUs. Of equal ones
    those at their own price come first, then by backend, type, region, zone. Offers without a price come
    last. A type whose regions no price list has is offered in each region that may have it.
    """
    fits = [
        fit
        for offer in _offers_of_fitting_types(query, catalog)
        for fit in _fits(query, offer)
        if next(iter(offer_misses(query, fit)), None) is None
    ]

    def find_misses() -> Iterator[Missed]:
        misses_of = _misses_by_type(query)
        for offer in _offers_to_judge(query, catalog, misses_of):
            for fit in _fits(query, offer):
                if misses := (*misses_of(offer.type), *offer_misses(query, fit)):
                    yield fit, misses

    return Judgement(tuple(sorted(fits, key=_order(query))), find_misses)


TypeMisses = Callable[[InstanceType], tuple[Miss, ...]]


def _misses_by_type(query: MachineQuery) -> TypeMisses:
    """The failed conditions of a type, computed once for each type."""
    cache: dict[tuple[str, str], tuple[Miss, ...]] = {}

    def misses_of(each: InstanceType) -> tuple[Miss, ...]:
        key = (each.backend, each.name)
        if key not in cache:
            cache[key] = tuple(type_misses(query, each))
        return cache[key]

    return misses_of


def _offers_of_fitting_types(query: MachineQuery, catalog: Catalog) -> Iterator[Offer]:
    """Offers of types that fail no condition of the type itself; the first that fails rules a type out."""
    for name, prices in catalog.lists.items():
        if name not in query.backends:
            continue
        fits = dict[str, bool]()
        for each, offers in prices.by_type:
            fits[each.name] = _type_fits(query, each)
            if fits[each.name]:
                yield from offers
        for each in types_possibly_unlisted(catalog, name):
            if each.name not in fits:
                fits[each.name] = _type_fits(query, each)
            if fits[each.name]:
                yield from unlisted_offers(catalog, each, query.zones)


def _offers_to_judge(query: MachineQuery, catalog: Catalog, misses_of: TypeMisses) -> Iterator[Offer]:
    """Offers to find misses among. A type that fails a condition of its own is judged in one unlisted region
    only: the answer would be the same in all of them."""
    for name, prices in catalog.lists.items():
        if has_no_driver(name) and name not in query.backends:
            continue
        yield from prices.offers
        for each in types_possibly_unlisted(catalog, name):
            if not misses_of(each):
                yield from unlisted_offers(catalog, each, query.zones)
            elif not each.surveyed:
                yield from islice(unlisted_offers(catalog, each), 1)


def _order(query: MachineQuery) -> Callable[[Fit], tuple[object, ...]]:
    def key(fit: Fit) -> tuple[object, ...]:
        offer, each = fit.offer, fit.offer.type
        gpus = each.gpu_count if query.fewest_first else 0
        place = (each.backend, each.name, offer.region or "", offer.zone or "")
        return (fit.price is None, gpus, fit.price or 0.0, not fit.sure, *place, fit.spot)

    return key


def _fits(query: MachineQuery, offer: Offer) -> Iterator[Fit]:
    if query.spot_policy != "spot":
        yield Fit(offer, spot=False)
    if query.spot_policy == "spot" or (query.spot_policy == "auto" and offer.spot_price is not None):
        yield Fit(offer, spot=True)


# The machine


def _type_fits(query: MachineQuery, each: InstanceType) -> bool:
    """Return True if a type fails no condition of its own; the checks that rule out most types run first."""
    return next(chain(_gpu_misses(query, each), type_misses(query, each)), None) is None


def type_misses(query: MachineQuery, each: InstanceType) -> Iterator[Miss]:
    """The conditions that a type fails wherever it is offered."""
    if each.backend not in query.backends:
        yield Miss("backend", " or ".join(query.backends), each.backend, 1.0)
    patterns = query.instance_types
    if patterns and not any(names_type(pattern, each) for pattern in patterns):
        yield Miss("instance type", " or ".join(patterns), each.name, 1.0)
    yield from _host_misses(query, each)
    yield from _gpu_misses(query, each)


def names_type(pattern: str, each: InstanceType) -> bool:
    """Return True if a pattern (`p5*`) or a full name matches the type's name; case does not matter."""
    return fnmatchcase(each.name.lower(), pattern.lower())


def _host_misses(query: MachineQuery, each: InstanceType) -> Iterator[Miss]:
    resources = query.resources
    arch = resources.cpu.arch
    if arch is None and each.arch == "arm" and not _requested_by_name(query, each):
        yield Miss("cpu architecture", "x86, as nothing says `arm`", "arm", 1.0)
    elif arch is not None and arch != each.arch:
        yield Miss("cpu architecture", arch, each.arch, 1.0)
    yield from _within("cpu", resources.cpu.count, each.vcpus, str, needed=query.cpu_written)
    yield from _within(
        "memory", resources.memory_mib, each.memory_mib, render_size, needed=query.memory_written
    )


def _gpu_misses(query: MachineQuery, each: InstanceType) -> Iterator[Miss]:
    required = query.resources.gpu
    gpu = each.gpu
    if gpu is None:
        if (required.count.min or 0) > 0:
            yield Miss("gpu", gpu_text(query), "none", 4.0)
        return
    named = any(gpu_has_name(each, name) for name in required.names)
    if required.names and not named:
        yield Miss("gpu model", " or ".join(required.names), gpu.name, 1.5)
    if required.vendor is not None and required.vendor != gpu.vendor:
        yield Miss("gpu vendor", required.vendor, gpu.vendor, 2.0)
    if gpu.kind == "accelerator" and not required.names and not _requested_by_name(query, each):
        yield Miss("gpu", "a GPU; other accelerators are offered when named", gpu.name, 2.0)
    yield from _within("gpu count", required.count, each.gpu_count, str)
    memory = gpu_memory_mib(each)
    total = None if memory is None else memory * each.gpu_count
    if required.memory_mib is not None:
        yield from _within("gpu memory", required.memory_mib, memory, render_size)
    if required.total_memory_mib is not None:
        yield from _within("total gpu memory", required.total_memory_mib, total, render_size)
    if required.compute_capability is not None:
        yield from _within("compute capability", required.compute_capability, gpu.compute_capability, str)


def _requested_by_name(query: MachineQuery, each: InstanceType) -> bool:
    """Return True if the query names the type, or a GPU that only ARM hosts carry and this type has."""
    if any(pattern.lower() == each.name.lower() for pattern in query.instance_types):
        return True
    return (
        each.gpu is not None
        and each.gpu.arm_only
        and any(gpu_has_name(each, name) for name in query.resources.gpu.names)
    )


def gpu_has_name(each: InstanceType, name: str) -> bool:
    """Return True if a name means the type's GPU: `A100`, `a100`, `A100-80GB`; with a known form,
    `A100-SXM`."""
    if each.gpu is None:
        return False
    wanted_key = gpu_key(name)
    memory = gpu_memory_mib(each)
    size = f"{memory // GIB}gb" if memory else ""
    form = each.form.lower()
    return any(wanted_key in (key, key + size, key + form, key + size + form) for key in each.gpu.keys)


def gpu_memory_mib(each: InstanceType) -> int | None:
    """Memory of one GPU of a type, as the card is sold."""
    if each.gpu is None or each.gpu_memory_mib is None:
        return None
    return nominal_mib(each.gpu, each.gpu_memory_mib)


def nominal_mib(gpu: GpuModel, mib: int) -> int:
    """The advertised size of a GPU for the size that its driver reports: 80 GB for 81,559 MiB.

    A size near none of the advertised ones is rounded up to a GB."""
    nearest = min(gpu.sizes_mib, key=lambda size: abs(size - mib), default=0)
    if nearest and abs(nearest - mib) <= NOMINAL_TOLERANCE * nearest:
        return nearest
    return math.ceil(mib / GIB) * GIB


# The place and the price


def offer_misses(query: MachineQuery, fit: Fit) -> Iterator[Miss]:
    """The conditions on place and price that an offer fails."""
    offer = fit.offer
    if query.regions and not any(_same(region, offer.region) for region in query.regions):
        yield Miss("region", " or ".join(query.regions), offer.region or UNKNOWN, 0.5)
    named = any(names_zone(zone, offer) for zone in query.zones)
    if query.zones and not named:
        yield Miss("zone", " or ".join(query.zones), offer.zone or "has no zones", 0.4)
    elif offer.local_zone and not named:
        yield Miss("local zone", "named in `availability_zones`", offer.zone or "", 0.3)
    on_fabric = ANY_FABRIC in offer.fabrics or any(_same(query.fabric or "", each) for each in offer.fabrics)
    if query.fabric is not None and not on_fabric:
        yield Miss("fabric", query.fabric, " or ".join(offer.fabrics) or "none", 0.5)
    if fit.spot and fit.price is None and offer.listed:
        yield Miss("spot", "spot", "on-demand only", 0.5)
    elif query.max_price is not None:
        most = f"at most {money(query.max_price)}"
        if fit.price is None:
            yield Miss("price", most, UNKNOWN, 1.0)
            return
        distance = 0.0
        if fit.price > query.max_price:
            distance = math.log2(fit.price / query.max_price) if query.max_price > 0 else 8.0
        if fit.price_of is not None:
            # That of another region is no promise.
            yield Miss("price", most, f"{UNKNOWN} there, {price_text(fit)}", distance + 0.2)
        elif distance:
            yield Miss("price", most, money(fit.price), distance)


def names_zone(zone: str, offer: Offer) -> bool:
    """Return True if a zone of the query covers the offer's: by name or id, on AWS also by account name.

    AWS gives each account its own mapping of names (`us-east-1a`) to ids (`use1-az4`), so a name covers all
    zones of its region, and that of a local zone all of its group.
    """
    if _same(zone, offer.zone):
        return True
    region = aws_zone_name(zone) if offer.type.backend == "aws" else None
    if region is None or not _same(region[0], offer.region):
        return False
    return f"-{region[1]}-" in (offer.zone or "") if region[1] else not offer.local_zone


def aws_zone_name(zone: str) -> tuple[str, str] | None:
    """Region and local zone group of an AWS zone's name: (us-east-1, "") of us-east-1a."""
    if plain := _AZ_NAME.fullmatch(zone.lower()):
        return plain[1], ""
    if local := _LOCAL_ZONE_NAME.fullmatch(zone.lower()):
        return local[1], local[2] + local[3]
    return None


def _same(name: str, actual: str | None) -> bool:
    return actual is not None and name.lower() == actual.lower()


# Values


def _within(
    constraint: str,
    required: Range,
    actual: float | None,
    render: Callable[[int], str],
    *,
    needed: bool = True,
) -> Iterable[Miss]:
    """A miss when `actual` is out of the range. An unknown value fails only a condition that is `needed`."""
    if actual is None:
        return (Miss(constraint, range_text(required, render), UNKNOWN, 1.0),) if needed else ()
    distance = range_distance(required, actual)
    return (
        (Miss(constraint, range_text(required, render), _text(actual, render), distance),) if distance else ()
    )


def range_distance(required: Range, value: float) -> float:
    """Return the distance of a number from a range, in doublings: 0 inside, 1 at half the minimum."""
    if value in required:
        return 0.0
    low, high = required.min, required.max
    if low is not None and value < low:
        return math.log2(low / value) if value > 0 else 8.0
    return math.log2(value / high) if high else 8.0


def range_text(bounds: Range, render: Callable[[int], str] = str) -> str:
    """`8`, `40GB..80GB`, `2..`."""
    return render_range(bounds.min, bounds.max, lambda end: _text(end, render))


def _text(value: float, render: Callable[[int], str]) -> str:
    whole = int(value)
    return render(whole) if whole == value else f"{value:g}"


def gpu_text(query: MachineQuery) -> str:
    """The GPUs of a query in the short form of the language: `H100:80GB:8`."""
    gpu = query.resources.gpu
    parts = [gpu.vendor] if gpu.vendor else []
    parts += [",".join(gpu.names)] if gpu.names else []
    parts += [range_text(gpu.memory_mib, render_size)] if gpu.memory_mib else []
    return ":".join([*parts, range_text(gpu.count)])


def money(price: float | None) -> str:
    """`$55.04`, `$1.006`, `$0.0104`; `unpriced` for one that is not known."""
    if price is None:
        return "unpriced"
    whole, _, part = f"{price:,.{3 if price >= 1 else 4}f}".partition(".")
    return f"${whole}.{part.rstrip('0'):0<2}"


def price_text(fit: Fit) -> str:
    """`$55.04`; `$4.602 (price of us-east-1)` where the offer's own region has no known price."""
    return money(fit.price) + (f" (price of {fit.price_of})" if fit.price_of else "")
