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
    current_candidate,
    divisible,
    fits_of,
    in_reservation,
    query_on,
    with_required_fabric,
)
from orch.components.request import PriorState
from orch.offers.match import aws_zone_name, names_zone
from orch.offers.query import MachineQuery
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
    other_backends: Collection[str] = (),
) -> tuple[CloudCandidate, ...]:
    """All of them, in the order to try; the one the stack is in alone, as long as the file allows it.

    Clusters try types that a cluster placement group takes before the others.

    `zones` of regions that were asked: there a written name (`us-east-1a`) means one zone; elsewhere any of
    its region. `reservation` is the fleet's, looked up.

    `other_backends`: other backends where the fleet may go, whose types are no mistakes.

    Raises PlanErrors when there is none: ORCH200, 202, 205, 208, 223, 323.
    """
    query = _query(fleet, settings, catalog)
    reserved = (reservation.zone, reservation.instance_type) if reservation else None
    kept = current_candidate(
        query, catalog, previous, lambda offer: _in_zones(query, offer, zones or {}), reserved
    )
    if kept is not None:
        return divisible(fleet, (kept,))
    fits = fits_of(
        fleet,
        query,
        catalog,
        other_backends,
        usable=lambda offer: offer.region and _in_zones(query, offer, zones or {}),
    )
    matches = tuple(candidate_of(fit) for fit in fits if fit.offer.zone or not fit.offer.listed)
    if reservation is not None:
        matches = tuple(_reserved(each, reservation) for each in matches)
        matches = in_reservation(matches, reservation.instance_type, reservation.zone)
    cards = nics()
    matches = with_required_fabric(
        fleet,
        matches,
        cards.__contains__,
        lambda name: cards[name].fast,
        what="network cards",
        hint=f"types with EFA: {with_efa()}",
        unsure=lambda name: cards[name].efa > 0 and not cards[name].fast,
    )
    matches = divisible(fleet, matches)
    if fleet.placement != "cluster":
        return matches
    return tuple(sorted(matches, key=lambda each: not cards[each.type.name].cluster))


def in_written_zones(
    fleet: Fleet, settings: AwsSettings, catalog: Catalog, zones: Zones
) -> Callable[[CloudCandidate], bool]:
    """Whether a zone that the account named is one that the file means: a local zone only when written."""
    query = _query(fleet, settings, catalog)

    def fits(each: CloudCandidate) -> bool:
        offer = Offer(each.type, each.region, each.zone, None, None)
        return _in_zones(query, offer, zones) and (bool(query.zones) or not offer.local_zone)

    return fits


def _reserved(each: CloudCandidate, reservation: Reservation) -> CloudCandidate:
    """Where no list tells the zones of a type, it is in that of its reservation."""
    same = (each.type.name, each.region) == (reservation.instance_type, reservation.region)
    return each if each.listed or not same else replace(each, zone=reservation.zone, listed=True)


def _query(fleet: Fleet, settings: AwsSettings, catalog: Catalog) -> MachineQuery:
    return replace(query_on(settings, fleet, catalog), fabric=None)


def _in_zones(query: MachineQuery, offer: Offer, zones: Zones) -> bool:
    """Whether an offer lies in a written zone, with names as the account has them where it was asked."""
    if not query.zones:
        return True
    if offer.zone is None:
        return any(names_zone(written, offer) for written in query.zones)
    zone_ids = {zone.name.lower(): zone.id for zone in zones.get(offer.region or "", ())}
    return any(
        offer.zone == zone_ids[written.lower()] if written.lower() in zone_ids else names_zone(written, offer)
        for written in query.zones
        if written.lower() in zone_ids or not (zone_ids and aws_zone_name(written))
    )


def with_efa() -> str:
    """Types that have EFA: the names of some, and how many more there are."""
    fast = {name: each for name, each in sorted(nics().items()) if each.fast}
    names = [name for name, each in fast.items() if each.counted]
    return f"{', '.join(names)} and {len(fast) - len(names)} more"


Offered = Callable[[str, Collection[str]], Mapping[str, Sequence[str]]]
"""Of a region and types: the ids of the zones that have each; none of a region that is not enabled."""


def with_known_zone(
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
        types = {each.type.name for each in places if not each.listed and each.region == place.region}
        zones = offered(place.region, types).get(place.type.name, ())
        in_zones = [replace(place, zone=zone, listed=True) for zone in zones if place.zone in ("", zone)]
        if in_zones := [each for each in in_zones if fits(each)]:
            return (*in_zones, *places[index + 1 :])
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
