"""Where an AWS fleet may go: each type in each zone that fits, the cheapest first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from orch.catalog.aws.machines import nics
from orch.catalog.records import Catalog, Offer
from orch.components.aws.account.facts import Reservation, Zone
from orch.components.cloud.candidates import (
    CloudCandidate,
    candidate_of,
    into_blocks,
    known_types,
    no_offer,
    where_it_is,
    where_reserved,
    with_fabric_alone,
)
from orch.components.request import PriorState
from orch.offers.match import aws_zone_name, judge, names_zone
from orch.offers.query import MachineQuery, machine_query
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.suggest import few

__all__ = ["CloudCandidate", "candidates", "in_written_zones", "with_efa"]

Zones = Mapping[str, Sequence[Zone]]


def candidates(
    fleet: Fleet,
    settings: AwsSettings,
    catalog: Catalog,
    *,
    previous: PriorState = PriorState(),  # noqa: B008 - frozen
    zones: Zones | None = None,
    reservation: Reservation | None = None,
    beside: Collection[str] = (),
) -> tuple[CloudCandidate, ...]:
    """All of them, in the order to try; the one the stack is in alone, as long as the file allows it.

    Clusters try types that a cluster placement group takes before the others.

    `zones` of regions that were asked: there a written name (`us-east-1a`) means one zone; elsewhere any of
    its region. `reservation` is the fleet's, looked up.

    `beside`: other backends where the fleet may go, whose types are no mistakes.

    Raises PlanErrors when there is none: ORCH200, 202, 205, 208, 223, 323.
    """
    wanted = _wanted(fleet, settings, catalog)
    reserved = (reservation.zone, reservation.instance_type) if reservation else None
    kept = where_it_is(
        wanted, catalog, previous, lambda offer: _in_zones(wanted, offer, zones or {}), reserved
    )
    if kept is not None:
        return into_blocks(fleet, (kept,))
    known_types(wanted, catalog, beside)
    judgement = judge(wanted, catalog)
    fits = [fit for fit in judgement.fits if fit.offer.region and _in_zones(wanted, fit.offer, zones or {})]
    if not fits:
        raise no_offer(fleet, wanted, catalog, judgement)
    found = tuple(candidate_of(fit) for fit in fits if fit.offer.zone or not fit.offer.listed)
    if reservation is not None:
        found = tuple(_reserved(each, reservation) for each in found)
        found = where_reserved(found, reservation.instance_type, reservation.zone)
    known = nics()
    found = with_fabric_alone(
        fleet,
        found,
        known.__contains__,
        lambda name: known[name].fast,
        what="network cards",
        hint=f"types with EFA: {with_efa()}",
        unsure=lambda name: known[name].efa > 0 and not known[name].fast,
    )
    found = into_blocks(fleet, found)
    if fleet.placement != "cluster":
        return found
    return tuple(sorted(found, key=lambda each: not known[each.type.name].cluster))


def in_written_zones(
    fleet: Fleet, settings: AwsSettings, catalog: Catalog, zones: Zones
) -> Callable[[CloudCandidate], bool]:
    """Whether a zone that the account named is one that the file means: a local zone only when written."""
    wanted = _wanted(fleet, settings, catalog)

    def fits(each: CloudCandidate) -> bool:
        offer = Offer(each.type, each.region, each.zone, None, None)
        return _in_zones(wanted, offer, zones) and (bool(wanted.zones) or not offer.local_zone)

    return fits


def _reserved(each: CloudCandidate, given: Reservation) -> CloudCandidate:
    """Where no list tells the zones of a type, it is in that of its reservation."""
    there = (each.type.name, each.region) == (given.instance_type, given.region)
    return each if each.listed or not there else replace(each, zone=given.zone, listed=True)


def _wanted(fleet: Fleet, settings: AwsSettings, catalog: Catalog) -> MachineQuery:
    wanted = machine_query(fleet, catalog)
    reserved = fleet.reservation is not None
    return MachineQuery(
        resources=wanted.resources,
        backends=("aws",),
        regions=wanted.regions or settings.regions,
        zones=wanted.zones,
        instance_types=wanted.instance_types,
        spot_policy="on-demand" if reserved else wanted.spot_policy,
        max_price=wanted.max_price,
    )


def _in_zones(wanted: MachineQuery, offer: Offer, zones: Zones) -> bool:
    """Whether an offer lies in a written zone, with names as the account has them where it was asked."""
    if not wanted.zones:
        return True
    if offer.zone is None:
        return any(names_zone(written, offer) for written in wanted.zones)
    known = {zone.name.lower(): zone.id for zone in zones.get(offer.region or "", ())}
    return any(
        offer.zone == known[written.lower()] if written.lower() in known else names_zone(written, offer)
        for written in wanted.zones
        if written.lower() in known or not (known and aws_zone_name(written))
    )


def with_efa() -> str:
    """Types that have EFA: the names of some, and how many more there are."""
    fast = {name: each for name, each in sorted(nics().items()) if each.fast}
    named = [name for name, each in fast.items() if each.counted]
    return f"{', '.join(named)} and {len(fast) - len(named)} more"


Offered = Callable[[str, Collection[str]], Mapping[str, Sequence[str]]]
"""Of a region and types: the ids of the zones that have each; none of a region that is not enabled."""


def settled(
    fleet: Fleet, places: Sequence[CloudCandidate], offered: Offered, fits: Callable[[CloudCandidate], bool]
) -> tuple[CloudCandidate, ...]:
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
