"""Which zones have a type of which no list tells. Pure: the account is asked through a function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from orch.components.aws.candidates import Candidate
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.suggest import few

Offered = Callable[[str, Collection[str]], Mapping[str, Sequence[str]]]
"""Of a region and types: the ids of the zones that have each; none of a region that is not enabled."""


def settled(
    fleet: Fleet, places: Sequence[Candidate], offered: Offered, fits: Callable[[Candidate], bool]
) -> tuple[Candidate, ...]:
    """The places in their order, the first one's zone known: those before it that the account has not are
    left out, and those after it are asked for when they are tried.

    `fits`: whether a zone is one that the file means.

    Raises PlanErrors when the account has none of them.
    """
    for index, place in enumerate(places):
        if place.listed:
            return tuple(places[index:])
        beside = {each.type.name for each in places if not each.listed and each.region == place.region}
        zones = offered(place.region, beside).get(place.type.name, ())
        here = [replace(place, zone=zone, listed=True) for zone in zones if place.zone in ("", zone)]
        if here := [each for each in here if fits(each)]:
            return (*here, *places[index + 1 :])
    names = few(dict.fromkeys(each.type.name for each in places))
    regions = few(dict.fromkeys(each.region for each in places))
    raise PlanErrors(
        [
            Finding(
                "ORCH205",
                "availability_zones" if fleet.availability_zones else "regions",
                f"this account has no {names} in {regions}",
                detail="no price list tells which zones have these types, so the account was asked",
                hint="widen `regions`, `availability_zones` or `instance_types`",
            )
        ]
    )
