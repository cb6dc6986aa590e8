"""Where a GCP fleet may go: each type in each zone that fits, the cheapest first. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from orch.catalog.gcp.machines import shapes
from orch.catalog.records import Catalog, Offer
from orch.components.cloud.candidates import (
    CloudCandidate,
    candidate_of,
    into_blocks,
    known_types,
    no_offer,
    places,
    where_it_is,
    where_reserved,
    with_fabric_alone,
)
from orch.components.gcp.account.facts import Reservation
from orch.components.request import PriorState
from orch.offers.match import judge, names_zone
from orch.offers.query import MachineQuery, machine_query
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
    beside: Collection[str] = (),
    network: PriorState = PriorState(),  # noqa: B008 - frozen
) -> tuple[CloudCandidate, ...]:
    """All of them, in the order to try; the one the stack is in alone, as long as the file allows it.

    `reservation` is the fleet's, looked up. `network`: what the stack of the networks it shares has decided.

    `beside`: other backends where the fleet may go, whose types are no mistakes.

    Raises PlanErrors when there is none: ORCH200, 202, 205, 208, 223, 225, 323.
    """
    wanted = _wanted(fleet, settings, catalog)
    reserved = (reservation.zone, reservation.instance_type) if reservation else None
    kept = where_it_is(wanted, catalog, previous, lambda offer: _in_zones(wanted, offer), reserved)
    if kept is not None:
        return into_blocks(fleet, (kept,))
    known_types(wanted, catalog, beside)
    judgement = judge(wanted, catalog)
    fits = [fit for fit in judgement.fits if fit.offer.region and fit.offer.zone]
    if not fits:
        raise no_offer(fleet, wanted, catalog, judgement, _elsewhere(wanted, catalog))
    found = _networked(fleet, tuple(candidate_of(fit) for fit in fits), network)
    if reservation is not None:
        found = where_reserved(found, reservation.instance_type, reservation.zone)
    known = shapes()
    connected = with_fabric_alone(
        fleet,
        found,
        known.__contains__,
        lambda name: known[name].fast,
        what="network interfaces",
        hint=f"types with one: {', '.join(with_fabric())}",
    )
    return into_blocks(fleet, connected)


def _wanted(fleet: Fleet, settings: GcpSettings, catalog: Catalog) -> MachineQuery:
    wanted = machine_query(fleet, catalog)
    return replace(
        wanted,
        backends=("gcp",),
        regions=wanted.regions or settings.regions,
        spot_policy="on-demand" if fleet.reservation is not None else wanted.spot_policy,
    )


def _in_zones(wanted: MachineQuery, offer: Offer) -> bool:
    return not wanted.zones or any(names_zone(written, offer) for written in wanted.zones)


def _elsewhere(wanted: MachineQuery, catalog: Catalog) -> Finding | None:
    """That the types are sold, but not in the zones that are written."""
    if not wanted.zones:
        return None
    fits = judge(replace(wanted, zones=(), regions=()), catalog).fits
    there = sorted({fit.offer.zone for fit in fits if fit.offer.zone})
    if not there or any(names_zone(written, fit.offer) for written in wanted.zones for fit in fits):
        return None
    names = ", ".join(dict.fromkeys(fit.offer.type.name for fit in fits))
    return Finding(
        "ORCH205",
        "availability_zones[0]" if len(wanted.zones) == 1 else "availability_zones",
        f"{names} is not offered in {', '.join(wanted.zones)}",
        hint=f"it is in {', '.join(there)}",
    )


def _networked(
    fleet: Fleet, found: tuple[CloudCandidate, ...], network: PriorState
) -> tuple[CloudCandidate, ...]:
    """Only where the shared networks are."""
    pins = network.pins
    place = pins.get("zone") or pins.get("region")
    narrowed = tuple(
        each
        for each in found
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
                detail=f"the fleet goes to {places(found)}",
                hint="name other networks, or change `regions` or `availability_zones`",
            )
        ]
    )


def with_fabric() -> tuple[str, ...]:
    """Names of the types with a fast interconnect."""
    return tuple(name for name, each in sorted(shapes().items()) if each.fast)
