"""Where an AWS fleet may go: each type in each zone that fits, the cheapest first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orch.catalog.nics import nics
from orch.catalog.records import Catalog, Offer
from orch.components.aws.facts import Reservation, Zone
from orch.components.candidates import (
    Candidate,
    candidate_of,
    into_blocks,
    known_types,
    no_offer,
    where_it_is,
    where_reserved,
    with_fabric_alone,
)
from orch.components.offers import aws_zone_name, judge, names_zone
from orch.components.plan import Previous
from orch.components.wanted import Wanted, wanted_of
from orch.spec.models import Fleet
from orch.spec.models.backends import AwsBackend

__all__ = ["Candidate", "candidates", "with_efa"]

Zones = Mapping[str, Sequence[Zone]]


def candidates(
    fleet: Fleet,
    settings: AwsBackend,
    catalog: Catalog,
    *,
    previous: Previous = Previous(),  # noqa: B008 - frozen
    zones: Zones | None = None,
    reservation: Reservation | None = None,
) -> tuple[Candidate, ...]:
    """All of them, in the order to try; the one the stack is in alone, as long as the file allows it.

    `zones` of regions that were asked: there a written name (`us-east-1a`) means one zone; elsewhere any of
    its region. `reservation` is the fleet's, looked up.

    Raises PlanErrors when there is none: ORCH200, 202, 205, 208, 223, 323.
    """
    wanted = _wanted(fleet, settings, catalog)
    reserved = (reservation.zone, reservation.instance_type) if reservation else None
    kept = where_it_is(
        wanted, catalog, previous, lambda offer: _in_zones(wanted, offer, zones or {}), reserved
    )
    if kept is not None:
        return into_blocks(fleet, (kept,))
    known_types(wanted, catalog)
    judgement = judge(wanted, catalog)
    fits = [fit for fit in judgement.fits if fit.offer.region and _in_zones(wanted, fit.offer, zones or {})]
    if not fits:
        raise no_offer(fleet, wanted, catalog, judgement)
    found = tuple(candidate_of(fit) for fit in fits if fit.offer.zone)
    if reservation is not None:
        found = where_reserved(found, reservation.instance_type, reservation.zone)
    known = nics()
    connected = with_fabric_alone(
        fleet,
        found,
        known.__contains__,
        lambda name: known[name].efa > 0,
        what="network cards",
        hint=f"types with EFA: {', '.join(with_efa())}",
    )
    return into_blocks(fleet, connected)


def _wanted(fleet: Fleet, settings: AwsBackend, catalog: Catalog) -> Wanted:
    wanted = wanted_of(fleet, catalog)
    reserved = fleet.reservation is not None
    return Wanted(
        resources=wanted.resources,
        backends=("aws",),
        regions=wanted.regions or settings.regions,
        zones=wanted.zones,
        instance_types=wanted.instance_types,
        spot_policy="on-demand" if reserved else wanted.spot_policy,
        max_price=wanted.max_price,
    )


def _in_zones(wanted: Wanted, offer: Offer, zones: Zones) -> bool:
    """Whether an offer lies in a written zone, with names as the account has them where it was asked."""
    if not wanted.zones:
        return True
    known = {zone.name.lower(): zone.id for zone in zones.get(offer.region or "", ())}
    return any(
        offer.zone == known[written.lower()] if written.lower() in known else names_zone(written, offer)
        for written in wanted.zones
        if written.lower() in known or not (known and aws_zone_name(written))
    )


def with_efa() -> Iterator[str]:
    """Names of the types that have EFA."""
    return (name for name, each in sorted(nics().items()) if each.efa > 0)
