"""Which offers fit what is wanted, the cheapest first, and what keeps the others from fitting.

Pure: `judge` looks at every offer of the catalogue and says of each what is missing. The rules are those of
docs/reference/offers.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice

from orch.catalog.records import Catalog, GpuModel, InstanceType, Offer, gpu_key
from orch.catalog.unpriced import doubtful, unlisted
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
    """One condition that is not met. `distance` is how far off, in doublings where it is a number."""

    constraint: str
    wanted: str
    found: str
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
        """The region whose price it is, where its own is not known."""
        return None if self.spot else self.offer.price_of

    @property
    def sure(self) -> bool:
        """Whether a list has it at a price of its own, or where no price is known, has it at all."""
        return self.price_of is None and (self.price is not None or self.offer.listed)


Missed = tuple[Fit, tuple[Miss, ...]]


@dataclass(frozen=True)
class Judgement:
    """`fits` in the order of choice; `misses` are all others, each with at least one reason."""

    fits: tuple[Fit, ...]
    why: Callable[[], Iterable[Missed]] = tuple

    @cached_property
    def misses(self) -> tuple[Missed, ...]:
        """Found when they are asked for: nobody wants them where something fits, and they are the most."""
        return tuple(self.why())


def judge(wanted: MachineQuery, catalog: Catalog) -> Judgement:
    """Every offer of the catalogue, judged. Backends without a driver count only when they are written.

    Cheapest first, or with the number of GPUs left open the fewest GPUs first; of equal ones those at their
    own price, then by backend, type, region, zone. What has no price comes last. Where no list tells which
    regions have a type, it is offered in each that may.
    """
    fits = [
        fit
        for offer in _possible(wanted, catalog)
        for fit in _fits(wanted, offer)
        if next(iter(offer_misses(wanted, fit)), None) is None
    ]

    def why() -> Iterator[Missed]:
        lacks = _lacking(wanted)
        for offer in _offers(wanted, catalog, lacks):
            for fit in _fits(wanted, offer):
                if missing := (*lacks(offer.type), *offer_misses(wanted, fit)):
                    yield fit, missing

    return Judgement(tuple(sorted(fits, key=_order(wanted))), why)


Lacks = Callable[[InstanceType], tuple[Miss, ...]]


def _lacking(wanted: MachineQuery) -> Lacks:
    """What each type lacks, looked at once."""
    found: dict[tuple[str, str], tuple[Miss, ...]] = {}

    def lacks(each: InstanceType) -> tuple[Miss, ...]:
        key = (each.backend, each.name)
        if key not in found:
            found[key] = tuple(type_misses(wanted, each))
        return found[key]

    return lacks


def _possible(wanted: MachineQuery, catalog: Catalog) -> Iterator[Offer]:
    """Offers of types that lack nothing: the first thing that one lacks is enough here."""
    for name, prices in catalog.lists.items():
        if name not in wanted.backends:
            continue
        complete = dict[str, bool]()
        for each, offers in prices.by_type:
            complete[each.name] = next(type_misses(wanted, each), None) is None
            if complete[each.name]:
                yield from offers
        for each in doubtful(catalog, name):
            if each.name not in complete:
                complete[each.name] = next(type_misses(wanted, each), None) is None
            if complete[each.name]:
                yield from unlisted(catalog, each, wanted.zones)


def _offers(wanted: MachineQuery, catalog: Catalog, lacks: Lacks) -> Iterator[Offer]:
    """Those to judge. A type that lacks something is judged at one place where no list has it: at all of them
    the answer would be the same."""
    for name, prices in catalog.lists.items():
        if has_no_driver(name) and name not in wanted.backends:
            continue
        yield from prices.offers
        for each in doubtful(catalog, name):
            if not lacks(each):
                yield from unlisted(catalog, each, wanted.zones)
            elif not each.surveyed:
                yield from islice(unlisted(catalog, each), 1)


def _order(wanted: MachineQuery) -> Callable[[Fit], tuple[object, ...]]:
    def key(fit: Fit) -> tuple[object, ...]:
        offer, each = fit.offer, fit.offer.type
        gpus = each.gpu_count if wanted.fewest_first else 0
        place = (each.backend, each.name, offer.region or "", offer.zone or "")
        return (fit.price is None, gpus, fit.price or 0.0, not fit.sure, *place, fit.spot)

    return key


def _fits(wanted: MachineQuery, offer: Offer) -> Iterator[Fit]:
    if wanted.spot_policy != "spot":
        yield Fit(offer, spot=False)
    if wanted.spot_policy == "spot" or (wanted.spot_policy == "auto" and offer.spot_price is not None):
        yield Fit(offer, spot=True)


# The machine


def type_misses(wanted: MachineQuery, each: InstanceType) -> Iterator[Miss]:
    """What a type lacks, wherever it is offered."""
    if each.backend not in wanted.backends:
        yield Miss("backend", " or ".join(wanted.backends), each.backend, 1.0)
    patterns = wanted.instance_types
    if patterns and not any(names_type(pattern, each) for pattern in patterns):
        yield Miss("instance type", " or ".join(patterns), each.name, 1.0)
    yield from _host_misses(wanted, each)
    yield from _gpu_misses(wanted, each)


def names_type(pattern: str, each: InstanceType) -> bool:
    """Whether `p5*` or a full name is that of the type, in any case."""
    return fnmatchcase(each.name.lower(), pattern.lower())


def _host_misses(wanted: MachineQuery, each: InstanceType) -> Iterator[Miss]:
    resources = wanted.resources
    arch = resources.cpu.arch
    if arch is None and each.arch == "arm" and not _asked_by_name(wanted, each):
        yield Miss("cpu architecture", "x86, as nothing says `arm`", "arm", 1.0)
    elif arch is not None and arch != each.arch:
        yield Miss("cpu architecture", arch, each.arch, 1.0)
    yield from _within("cpu", resources.cpu.count, each.vcpus, str, needed=wanted.cpu_written)
    yield from _within(
        "memory", resources.memory_mib, each.memory_mib, render_size, needed=wanted.memory_written
    )


def _gpu_misses(wanted: MachineQuery, each: InstanceType) -> Iterator[Miss]:
    asked = wanted.resources.gpu
    gpu = each.gpu
    if gpu is None:
        if (asked.count.min or 0) > 0:
            yield Miss("gpu", gpu_text(wanted), "none", 4.0)
        return
    named = any(answers_to(each, name) for name in asked.names)
    if asked.names and not named:
        yield Miss("gpu model", " or ".join(asked.names), gpu.name, 1.5)
    if asked.vendor is not None and asked.vendor != gpu.vendor:
        yield Miss("gpu vendor", asked.vendor, gpu.vendor, 2.0)
    if gpu.kind == "accelerator" and not asked.names and not _asked_by_name(wanted, each):
        yield Miss("gpu", "a GPU; other accelerators are offered when named", gpu.name, 2.0)
    yield from _within("gpu count", asked.count, each.gpu_count, str)
    memory = gpu_memory_mib(each)
    total = None if memory is None else memory * each.gpu_count
    if asked.memory_mib is not None:
        yield from _within("gpu memory", asked.memory_mib, memory, render_size)
    if asked.total_memory_mib is not None:
        yield from _within("total gpu memory", asked.total_memory_mib, total, render_size)
    if asked.compute_capability is not None:
        yield from _within("compute capability", asked.compute_capability, gpu.compute_capability, str)


def _asked_by_name(wanted: MachineQuery, each: InstanceType) -> bool:
    """Whether the type is written by its name, or what it alone carries is: a GPU with ARM hosts."""
    if any(pattern.lower() == each.name.lower() for pattern in wanted.instance_types):
        return True
    return (
        each.gpu is not None
        and each.gpu.arm_only
        and any(answers_to(each, name) for name in wanted.resources.gpu.names)
    )


def answers_to(each: InstanceType, name: str) -> bool:
    """Whether the type's GPU goes by a name: `A100`, `a100`, `A100-80GB`; where it is known, `A100-SXM`."""
    if each.gpu is None:
        return False
    wanted = gpu_key(name)
    memory = gpu_memory_mib(each)
    size = f"{memory // GIB}gb" if memory else ""
    form = each.form.lower()
    return any(wanted in (key, key + size, key + form, key + size + form) for key in each.gpu.keys)


def gpu_memory_mib(each: InstanceType) -> int | None:
    """Memory of one GPU of a type, as the card is sold."""
    if each.gpu is None or each.gpu_memory_mib is None:
        return None
    return nominal_mib(each.gpu, each.gpu_memory_mib)


def nominal_mib(gpu: GpuModel, mib: int) -> int:
    """The size on the box for a size that was read: 80 GB for 81,559 MiB. Others are rounded up to a GB."""
    nearest = min(gpu.sizes_mib, key=lambda size: abs(size - mib), default=0)
    if nearest and abs(nearest - mib) <= NOMINAL_TOLERANCE * nearest:
        return nearest
    return math.ceil(mib / GIB) * GIB


# The place and the price


def offer_misses(wanted: MachineQuery, fit: Fit) -> Iterator[Miss]:
    """What is wrong with where a type is offered, and for how much."""
    offer = fit.offer
    if wanted.regions and not any(_same(region, offer.region) for region in wanted.regions):
        yield Miss("region", " or ".join(wanted.regions), offer.region or UNKNOWN, 0.5)
    named = any(names_zone(zone, offer) for zone in wanted.zones)
    if wanted.zones and not named:
        yield Miss("zone", " or ".join(wanted.zones), offer.zone or "has no zones", 0.4)
    elif offer.local_zone and not named:
        yield Miss("local zone", "named in `availability_zones`", offer.zone or "", 0.3)
    if fit.spot and fit.price is None and offer.listed:
        yield Miss("spot", "spot", "on-demand only", 0.5)
    elif wanted.max_price is not None:
        most = f"at most {money(wanted.max_price)}"
        if fit.price is None:
            yield Miss("price", most, UNKNOWN, 1.0)
            return
        off = 0.0
        if fit.price > wanted.max_price:
            off = math.log2(fit.price / wanted.max_price) if wanted.max_price > 0 else 8.0
        if fit.price_of is not None:
            # That of another region is no promise.
            yield Miss("price", most, f"{UNKNOWN} there, {price_text(fit)}", off + 0.2)
        elif off:
            yield Miss("price", most, money(fit.price), off)


def names_zone(written: str, offer: Offer) -> bool:
    """Whether a written zone covers the offer's: its own name or id, and on AWS the name of a zone.

    AWS gives each account its own mapping of names (`us-east-1a`) to ids (`use1-az4`), so a name covers all
    zones of its region, and that of a local zone all of its group.
    """
    if _same(written, offer.zone):
        return True
    region = aws_zone_name(written) if offer.type.backend == "aws" else None
    if region is None or not _same(region[0], offer.region):
        return False
    return f"-{region[1]}-" in (offer.zone or "") if region[1] else not offer.local_zone


def aws_zone_name(written: str) -> tuple[str, str] | None:
    """Region and local zone group of an AWS zone's name: (us-east-1, "") of us-east-1a."""
    if plain := _AZ_NAME.fullmatch(written.lower()):
        return plain[1], ""
    if local := _LOCAL_ZONE_NAME.fullmatch(written.lower()):
        return local[1], local[2] + local[3]
    return None


def _same(written: str, known: str | None) -> bool:
    return known is not None and written.lower() == known.lower()


# Values


def _within(
    constraint: str,
    wanted: Range,
    found: float | None,
    render: Callable[[int], str],
    *,
    needed: bool = True,
) -> Iterable[Miss]:
    """A miss when `found` is out of the range. What is not known fails only a condition that is `needed`."""
    if found is None:
        return (Miss(constraint, range_text(wanted, render), UNKNOWN, 1.0),) if needed else ()
    off = range_distance(wanted, found)
    return (Miss(constraint, range_text(wanted, render), _text(found, render), off),) if off else ()


def range_distance(wanted: Range, found: float) -> float:
    """How far a number is out of a range, in doublings: 0 inside, 1 for half the minimum."""
    if found in wanted:
        return 0.0
    low, high = wanted.min, wanted.max
    if low is not None and found < low:
        return math.log2(low / found) if found > 0 else 8.0
    return math.log2(found / high) if high else 8.0


def range_text(wanted: Range, render: Callable[[int], str] = str) -> str:
    """`8`, `40GB..80GB`, `2..`."""
    return render_range(wanted.min, wanted.max, lambda end: _text(end, render))


def _text(value: float, render: Callable[[int], str]) -> str:
    whole = int(value)
    return render(whole) if whole == value else f"{value:g}"


def gpu_text(wanted: MachineQuery) -> str:
    """The GPUs asked for, in the language's own short form."""
    asked = wanted.resources.gpu
    parts = [asked.vendor] if asked.vendor else []
    parts += [",".join(asked.names)] if asked.names else []
    parts += [range_text(asked.memory_mib, render_size)] if asked.memory_mib else []
    return ":".join([*parts, range_text(asked.count)])


def money(price: float | None) -> str:
    """`$55.04`, `$1.006`, `$0.0104`; `unpriced` for one that is not known."""
    if price is None:
        return "unpriced"
    whole, _, part = f"{price:,.{3 if price >= 1 else 4}f}".partition(".")
    return f"${whole}.{part.rstrip('0'):0<2}"


def price_text(fit: Fit) -> str:
    """`$55.04`; `$4.602 (price of us-east-1)` where that of the offer's own region is not known."""
    return money(fit.price) + (f" (price of {fit.price_of})" if fit.price_of else "")
