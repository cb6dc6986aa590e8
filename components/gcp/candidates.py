"""Where a GCP fleet may go: each type in each zone that fits, the cheapest first. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from orch.catalog.gcp.machines import shapes
from orch.catalog.records import Catalog, Offer
from orch.components.cloud.candidates import (
    CloudCandidate,
    candidate_of,
    current_candidate,
    divisible,
    fits_of,
    in_reservation,
    places,
    query_on,
    with_required_fabric,
)
from orch.components.gcp.account.facts import Reservation
from orch.components.request import PriorState
from orch.offers.match import judge, names_zone
from orch.offers.query import MachineQuery
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.gcp import GcpSettings

__all__ = ["CloudCandidate", "candidates", "with_fabric"]


def candidates(
    fleet: Fleet,
    settings: GcpSettings,
    catalog: Catalog,
    *,
    previous: PriorState = PriorState(),  # noqa: B008 - frozen
    reservation: Reservation | None = None,
    other_backends: Collection[str] = (),
    network: PriorState = PriorState(),  # noqa: B008 - frozen
) -> tuple[CloudCandidate, ...]:
    """All of them, in the order to try; the one the stack is in alone, as long as the file allows it.

    `reservation` is the fleet's, looked up. `network`: what the stack of the networks it shares has decided.

    `other_backends`: other backends where the fleet may go, whose types are no mistakes.

    Raises PlanErrors when there is none: ORCH200, 202, 205, 208, 223, 225, 323.
    """
    query = query_on(settings, fleet, catalog)
    reserved = (reservation.zone, reservation.instance_type) if reservation else None
    kept = current_candidate(query, catalog, previous, lambda offer: _in_zones(query, offer), reserved)
    if kept is not None:
        return divisible(fleet, (kept,))
    fits = fits_of(
        fleet,
        query,
        catalog,
        other_backends,
        usable=lambda offer: offer.region and offer.zone,
        instead=_elsewhere,
    )
    matches = _networked(fleet, tuple(candidate_of(fit) for fit in fits), network)
    if reservation is not None:
        matches = in_reservation(matches, reservation.instance_type, reservation.zone)
    known_shapes = shapes()
    connected = with_required_fabric(
        fleet,
        matches,
        known_shapes.__contains__,
        lambda name: known_shapes[name].fast,
        what="network interfaces",
        hint=f"types with one: {', '.join(with_fabric())}",
    )
    return divisible(fleet, connected)


def _in_zones(query: MachineQuery, offer: Offer) -> bool:
    return not query.zones or any(names_zone(written, offer) for written in query.zones)


def _elsewhere(query: MachineQuery, catalog: Catalog) -> Finding | None:
    """That the types are sold, but not in the zones that are written."""
    if not query.zones:
        return None
    fits = judge(replace(query, zones=(), regions=()), catalog).fits
    zones = sorted({fit.offer.zone for fit in fits if fit.offer.zone})
    if not zones or any(names_zone(written, fit.offer) for written in query.zones for fit in fits):
        return None
    names = ", ".join(dict.fromkeys(fit.offer.type.name for fit in fits))
    return Finding(
        "ORCH205",
        "availability_zones[0]" if len(query.zones) == 1 else "availability_zones",
        f"{names} is not offered in {', '.join(query.zones)}",
        hint=f"it is in {', '.join(zones)}",
    )


def _networked(
    fleet: Fleet, matches: tuple[CloudCandidate, ...], network: PriorState
) -> tuple[CloudCandidate, ...]:
    """Only where the shared networks are."""
    pins = network.pins
    place = pins.get("zone") or pins.get("region")
    narrowed = tuple(
        each
        for each in matches
        if pins.get("region", each.region) == each.region and pins.get("zone", each.zone) == each.zone
    )
    if narrowed or fleet.network is None:
        return narrowed
    raise PlanErrors(
        [
            Finding(
                "ORCH225",
                "network.name",
                f"the networks '{fleet.network.name}' are in {place}, where the fleet does not go",
                detail=f"the fleet goes to {places(matches)}",
                hint="name other networks, or change `regions` or `availability_zones`",
            )
        ]
    )


def with_fabric() -> tuple[str, ...]:
    """Names of the types with a fast interconnect."""
    return tuple(name for name, each in sorted(shapes().items()) if each.fast)
