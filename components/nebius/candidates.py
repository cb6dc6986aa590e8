"""Where a Nebius fleet may go: each type in each region, a cluster on each fabric there. Pure.

Regions have no zones. The fabric of a cluster stands where other clouds have a zone: its machines are on one,
and the next place to try is another fabric, or another region.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orch.catalog.records import Catalog
from orch.components.cloud.candidates import (
    CloudCandidate,
    candidate_of,
    clustered,
    current_candidate,
    divisible,
    fits_of,
    query_on,
    with_required_fabric,
)
from orch.components.nebius.account.facts import Stock
from orch.components.request import PriorState
from orch.offers.match import judge
from orch.offers.query import MachineQuery
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.nebius import NebiusSettings
from orch.spec.suggest import few, hint_for


@dataclass(frozen=True)
class NebiusCandidate(CloudCandidate):
    """`zone`: the fabric of a cluster, else the region. `listed`: Nebius was asked about its stock."""

    @property
    def infiniband(self) -> str | None:
        return self.zone if self.zone != self.region else None

    @property
    def place(self) -> str:
        return f"{self.region}, fabric {self.zone}" if self.infiniband else self.region


def candidates(
    fleet: Fleet,
    settings: NebiusSettings,
    catalog: Catalog,
    *,
    previous: PriorState = PriorState(),  # noqa: B008 - frozen
    other_backends: Collection[str] = (),
) -> tuple[NebiusCandidate, ...]:
    """All of them, the cheapest first; the one the stack is in alone, as long as the file allows it.

    `other_backends`: other backends where the fleet may go, whose types are no mistakes.

    Raises PlanErrors when there is none: ORCH200, 202, 205, 223.
    """
    query = query_on(settings, fleet, catalog)
    allowed = _allowed(fleet, settings)
    zone = previous.pins.get("zone", "")
    kept = current_candidate(query, catalog, previous)
    if kept is not None and (not allowed or zone in allowed or zone == kept.region):
        return tuple(NebiusCandidate.at(each) for each in divisible(fleet, (kept,)))
    fits = fits_of(
        fleet,
        query,
        catalog,
        other_backends,
        usable=lambda offer: offer.region,
        instead=_on_another_fabric,
    )
    fast = types_with_fabric(catalog)
    fabrics = {(fit.offer.type.name, fit.offer.region): fit.offer.fabrics for fit in fits}
    matches = with_required_fabric(
        fleet,
        tuple(candidate_of(fit) for fit in fits),
        lambda name: True,
        fast.__contains__,
        what="InfiniBand",
        hint=f"types with InfiniBand: {', '.join(fast)}",
    )
    places = [
        place
        for each in divisible(fleet, matches)
        for place in _places(fleet, each, fabrics[each.type.name, each.region], allowed)
    ]
    if places:
        return tuple(places)
    there = list(dict.fromkeys(name for names in fabrics.values() for name in names))
    written = fleet.network is not None and fleet.network.fabric is not None
    raise PlanErrors(
        [
            Finding(
                "ORCH205",
                "network.fabric" if written else "network",
                f"no offer is on the fabric {few(allowed)}",
                detail=None if written else "`fabrics` of orch.yml names those that may be used",
                hint=hint_for(next(iter(allowed), ""), there) or f"the offers are on {few(there)}",
            )
        ]
    )


def _allowed(fleet: Fleet, settings: NebiusSettings) -> tuple[str, ...]:
    """The fabrics that may be used; none: all."""
    named = fleet.network.fabric if fleet.network is not None else None
    return (named,) if named else settings.fabrics


def _on_another_fabric(query: MachineQuery, catalog: Catalog) -> Finding | None:
    """That there are offers, but on other fabrics than the one that is written."""
    if query.fabric is None:
        return None
    fits = [fit.offer for fit in judge(replace(query, fabric=None), catalog).fits]
    if not fits:
        return None
    there = list(dict.fromkeys(name for offer in fits for name in offer.fabrics))
    types = few(dict.fromkeys(offer.type.name for offer in fits))
    regions = few(dict.fromkeys(offer.region for offer in fits if offer.region))
    return Finding(
        "ORCH205",
        "network.fabric",
        f"{types} in {regions} is not on the fabric {query.fabric}",
        hint=hint_for(query.fabric, there) or (f"it is on {few(there)}" if there else "it has no InfiniBand"),
    )


def types_with_fabric(catalog: Catalog) -> tuple[str, ...]:
    """Names of the types whose machines can join a GPU cluster."""
    offers = catalog.lists["nebius"].offers
    return tuple(sorted({each.type.name for each in offers if each.fabrics}))


def _places(
    fleet: Fleet, each: CloudCandidate, fabrics: Sequence[str], allowed: Sequence[str]
) -> Iterator[NebiusCandidate]:
    if not clustered(fleet) or not fabrics:
        if not (fabrics == () and fleet.network is not None and fleet.network.interconnect == "required"):
            yield NebiusCandidate.at(each, zone=each.region, listed=False)
        return
    names = {name.lower() for name in allowed}
    for fabric in fabrics:
        if not names or fabric.lower() in names:
            yield NebiusCandidate.at(each, zone=fabric, listed=False)


def told_fabrics(
    fleet: Fleet, settings: NebiusSettings, places: Sequence[NebiusCandidate], stock: Stock
) -> tuple[NebiusCandidate, ...]:
    """The same places on the fabrics that the account tells of, where it tells of some for a type and region:
    the catalogue's are those that a list knew once."""
    names = {name.lower() for name in _allowed(fleet, settings)}
    told: dict[NebiusCandidate, None] = {}
    for each in places:
        fabrics = [
            fabric
            for kind, region, fabric in stock
            if fabric and (kind, region) == (each.type.name, each.region)
            if not names or fabric.lower() in names
        ]
        own = [replace(each, zone=fabric) for fabric in fabrics] if each.infiniband else []
        told |= dict.fromkeys(own or [each])
    return tuple(told)


def by_stock(
    places: Sequence[NebiusCandidate], stock: Stock, projects: Mapping[str, str], nodes: int
) -> tuple[NebiusCandidate, ...]:
    """The places of regions that have a project, in the order to try: those that have room for all nodes
    first, by price; among the fabrics of one type and region the one with the most room first."""
    usable = [each for each in places if each.region in projects]
    order = list(dict.fromkeys((each.type.name, each.region, each.spot) for each in usable))

    def rank(each: NebiusCandidate) -> tuple[bool, int, int]:
        room = room_at(stock, each)
        position = order.index((each.type.name, each.region, each.spot))
        return room is not None and room < nodes, position, -(room or 0)

    return tuple(replace(each, listed=True) for each in sorted(usable, key=rank))


def room_at(stock: Stock, place: NebiusCandidate) -> int | None:
    """How many machines may be had at a place now; None: nobody tells."""
    known = stock.get((place.type.name, place.region, place.infiniband or ""))
    return known[place.spot] if known else None
