"""Where a GCP fleet may go: each type in each zone that fits, the cheapest first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orch.catalog.records import Catalog, InstanceType, Offer
from orch.catalog.shapes import shapes
from orch.components.findings import Finding, PlanErrors
from orch.components.gcp.facts import Reservation
from orch.components.misses import near_misses, reason_text
from orch.components.offers import Fit, Judgement, judge, money, names_zone, type_misses
from orch.components.plan import Previous
from orch.components.searches import PROPERTIES
from orch.components.wanted import Wanted, wanted_of
from orch.spec.models import Fleet
from orch.spec.models.backends import GcpBackend
from orch.spec.suggest import hint_for


@dataclass(frozen=True)
class Candidate:
    """A type in a zone at one of its prices. `price`: US dollars an hour, None: not known.

    `kept`: the stack is there already.
    """

    type: InstanceType
    region: str
    zone: str
    spot: bool
    price: float | None
    kept: bool = False

    @property
    def words(self) -> str:
        market = "spot" if self.spot else "on demand"
        price = money(self.price) + " an hour each" if self.price is not None else "price not known"
        return f"{self.type.name} in {self.zone}, {market}, {price}"


def candidates(
    fleet: Fleet,
    settings: GcpBackend,
    catalog: Catalog,
    *,
    previous: Previous = Previous(),  # noqa: B008 - frozen
    reservation: Reservation | None = None,
    network: Previous = Previous(),  # noqa: B008 - frozen
) -> tuple[Candidate, ...]:
    """All of them, in the order to try; the one the stack is in alone, as long as the file allows it.

    `reservation` is the fleet's, looked up. `network`: what the stack of the networks it shares has decided.

    Raises PlanErrors when there is none: ORCH200, 202, 205, 208, 223, 225, 323.
    """
    wanted = _wanted(fleet, settings, catalog)
    kept = _kept(wanted, catalog, previous, reservation)
    if kept is not None:
        return (kept,)
    _known_types(wanted, catalog)
    judgement = judge(wanted, catalog)
    fits = [fit for fit in judgement.fits if fit.offer.region and fit.offer.zone]
    if not fits:
        raise PlanErrors([_elsewhere(wanted, catalog) or _no_offer(fleet, judgement)])
    found = _networked(fleet, tuple(_candidate(fit) for fit in fits), network)
    if reservation is not None:
        found = _reserved(found, reservation)
    return _shaped(fleet, found)


def _wanted(fleet: Fleet, settings: GcpBackend, catalog: Catalog) -> Wanted:
    wanted = wanted_of(fleet, catalog)
    return replace(
        wanted,
        backends=("gcp",),
        regions=wanted.regions or settings.regions,
        spot_policy="on-demand" if fleet.reservation is not None else wanted.spot_policy,
    )


def _candidate(fit: Fit) -> Candidate:
    return Candidate(fit.offer.type, fit.offer.region or "", fit.offer.zone or "", fit.spot, fit.price)


def _kept(
    wanted: Wanted, catalog: Catalog, previous: Previous, reservation: Reservation | None
) -> Candidate | None:
    """Where the stack is, if the file still allows that. What prices do since does not move it."""
    pins = previous.pins
    each = catalog.types.get(("gcp", pins.get("instance_type", "")))
    region, zone = pins.get("region"), pins.get("zone")
    if each is None or region is None or zone is None or any(type_misses(wanted, each)):
        return None
    spot = pins.get("spot") == "true"
    listed = [offer for offer in catalog.lists["gcp"].offers if (offer.type, offer.zone) == (each, zone)]
    offer = listed[0] if listed else Offer(each, region, zone, None, None)
    outside = wanted.regions and region not in wanted.regions
    off_zone = wanted.zones and not any(names_zone(written, offer) for written in wanted.zones)
    other_market = wanted.spot_policy not in ("auto", "spot" if spot else "on-demand")
    elsewhere = reservation is not None and (reservation.zone, reservation.instance_type) != (zone, each.name)
    if outside or off_zone or other_market or elsewhere:
        return None
    return Candidate(each, region, zone, spot, offer.spot_price if spot else offer.price, kept=True)


def _known_types(wanted: Wanted, catalog: Catalog) -> None:
    known = sorted(name for backend, name in catalog.types if backend == "gcp")
    unknown = [
        Finding(
            "ORCH202",
            f"instance_types[{index}]",
            f"the catalogue has no GCP type '{written}'",
            hint=hint_for(written, known),
        )
        for index, written in enumerate(wanted.instance_types)
        if not set("*?[") & set(written) and written.lower() not in known
    ]
    if unknown:
        raise PlanErrors(unknown)


def _elsewhere(wanted: Wanted, catalog: Catalog) -> Finding | None:
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


def _no_offer(fleet: Fleet, judgement: Judgement) -> Finding:
    listed = near_misses(judgement)
    # Another type would be the nearest as soon as types are written: what these lack tells more.
    own = (each for each in listed if all(r.constraint != "instance type" for r in each.reasons))
    nearest = next(own, next(iter(listed), None))
    if nearest is None:
        return Finding("ORCH200", "resources", f"no GCP offer fits the fleet '{fleet.name}'")
    why = "; ".join(reason_text(reason) for reason in nearest.reasons)
    path = PROPERTIES.get(nearest.reasons[0].constraint, "resources") if nearest.failed == 1 else "resources"
    return Finding(
        "ORCH200",
        path,
        f"no GCP offer fits the fleet '{fleet.name}'",
        detail=f"nearest is {nearest.instance_type}: {why}",
        hint="change a condition that the nearest types fail: `orch offers FILE --explain` lists them",
    )


def _networked(fleet: Fleet, found: tuple[Candidate, ...], network: Previous) -> tuple[Candidate, ...]:
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
                detail=f"the fleet goes to {_places(found)}",
                hint="name other networks, or change `regions` or `availability_zones`",
            )
        ]
    )


def _reserved(found: Sequence[Candidate], reservation: Reservation) -> tuple[Candidate, ...]:
    """Only where the reservation is."""
    place = (reservation.instance_type, reservation.zone)
    narrowed = tuple(each for each in found if (each.type.name, each.zone) == place)
    if narrowed:
        return narrowed
    types = ", ".join(dict.fromkeys(each.type.name for each in found))
    raise PlanErrors(
        [
            Finding(
                "ORCH323",
                "reservation",
                f"the reservation is of {reservation.instance_type} in {reservation.zone}, "
                "which the fleet does not ask for",
                detail=f"the fleet asks for {types}, in {_places(found)}",
                hint="change `instance_types`, `resources`, `regions` or `availability_zones`",
            )
        ]
    )


def _places(found: Sequence[Candidate], most: int = 4) -> str:
    zones = list(dict.fromkeys(each.zone for each in found))
    return ", ".join(zones[:most]) + (f" and {len(zones) - most} more" if len(zones) > most else "")


def _shaped(fleet: Fleet, found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Types whose networks are known; with a fast interconnect alone where the file says it is required."""
    known = shapes()
    shaped = tuple(each for each in found if each.type.name in known)
    path = "instance_types" if fleet.instance_types else "resources"
    if not shaped:
        names = ", ".join(dict.fromkeys(each.type.name for each in found))
        summary = f"the catalogue does not know the network interfaces of {names}"
        raise PlanErrors([Finding("ORCH208", path, summary)])
    if fleet.network is None or fleet.network.interconnect != "required":
        return shaped
    fast = tuple(each for each in shaped if known[each.type.name].fast)
    if not fast:
        names = ", ".join(dict.fromkeys(each.type.name for each in shaped))
        raise PlanErrors(
            [
                Finding(
                    "ORCH223",
                    "network.interconnect",
                    f"a fast interconnect is required, and {names} has Ethernet only",
                    hint=f"types with one: {', '.join(with_fabric())}",
                )
            ]
        )
    return fast


def with_fabric() -> tuple[str, ...]:
    """Names of the types with a fast interconnect."""
    return tuple(name for name, each in sorted(shapes().items()) if each.fast)
