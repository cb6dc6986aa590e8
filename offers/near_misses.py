"""Near misses: the types that almost fit and the conditions that they fail, the nearest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orch.offers.match import Fit, Judgement, Miss

SHOWN_VALUES = 3


@dataclass(frozen=True)
class Reason:
    """A failed condition: what it requires, and its values in the places where the type is offered."""

    constraint: str
    required: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class NearMiss:
    """A type that fails the same conditions in all of `regions`; `cheapest` is the best price there."""

    backend: str
    instance_type: str
    spot: bool
    reasons: tuple[Reason, ...]
    regions: tuple[str, ...]
    cheapest: Fit

    @property
    def failed(self) -> int:
        return len(self.reasons)


def reason_text(reason: Reason) -> str:
    """`gpu count: 4 (wanted 8)`, with a few of the values where there are many."""
    hidden = len(reason.values) - SHOWN_VALUES
    values = ", ".join(reason.values[:SHOWN_VALUES]) + (f" and {hidden} more" if hidden > 0 else "")
    return f"{reason.constraint}: {values} (wanted {reason.required})"


def near_misses(judgement: Judgement) -> tuple[NearMiss, ...]:
    """Return all misses, the nearest first: see `nearest_first`."""
    return tuple(nearest_first(judgement))


def nearest_first(judgement: Judgement) -> Iterator[NearMiss]:
    """Iterate over misses, one per type and set of failed conditions, each created when it is requested.

    Sorted by how many conditions fail, then by how far off they are at the best place, then by price.
    """
    groups: dict[tuple[object, ...], list[tuple[Fit, tuple[Miss, ...]]]] = {}
    for fit, misses in judgement.misses:
        each = fit.offer.type
        key = (each.backend, each.name, fit.spot, *(miss.constraint for miss in misses))
        groups.setdefault(key, []).append((fit, misses))
    ranked = sorted((_rank(group), index) for index, group in enumerate(groups.values()))
    members = list(groups.values())
    return (_near_miss(members[index]) for _, index in ranked)


def _distance(misses: Sequence[Miss]) -> float:
    return sum(miss.distance for miss in misses)


def _rank(group: Sequence[tuple[Fit, tuple[Miss, ...]]]) -> tuple[object, ...]:
    fit, misses = group[0]
    distance = min(_distance(each) for _, each in group)
    price = _cheapest(group).price
    each = fit.offer.type
    return (len(misses), round(distance, 6), price is None, price or 0.0, each.backend, each.name, fit.spot)


def _cheapest(group: Sequence[tuple[Fit, tuple[Miss, ...]]]) -> Fit:
    return min((fit for fit, _ in group), key=lambda fit: (fit.price is None, fit.price or 0.0))


def _near_miss(group: Sequence[tuple[Fit, tuple[Miss, ...]]]) -> NearMiss:
    fit, first = group[0]
    by_nearness = sorted(group, key=lambda each: _distance(each[1]))
    reasons = tuple(
        Reason(
            miss.constraint,
            miss.required,
            tuple(dict.fromkeys(misses[index].actual for _, misses in by_nearness)),
        )
        for index, miss in enumerate(first)
    )
    return NearMiss(
        backend=fit.offer.type.backend,
        instance_type=fit.offer.type.name,
        spot=fit.spot,
        reasons=reasons,
        regions=tuple(sorted({each.offer.region for each, _ in group if each.offer.region})),
        cheapest=_cheapest(group),
    )
