"""Where an AWS fleet may go: each type in each zone that fits, the cheapest first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orch.catalog.nics import nics
from orch.catalog.records import Catalog, InstanceType, Offer
from orch.components.aws.facts import Reservation, Zone
from orch.components.findings import Finding, PlanErrors
from orch.components.misses import near_misses, reason_text
from orch.components.offers import Fit, Judgement, aws_zone_name, judge, money, names_zone, type_misses
from orch.components.plan import Previous
from orch.components.searches import PROPERTIES
from orch.components.wanted import Wanted, wanted_of
from orch.spec.models import Fleet
from orch.spec.models.backends import AwsBackend
from orch.spec.suggest import hint_for

Zones = Mapping[str, Sequence[Zone]]


@dataclass(frozen=True)
class Candidate:
    """A type in a zone, by the zone's id, at one of its prices. `price`: US dollars an hour, None: not known.

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
        return f"{self.type.name} in {self.region}, zone {self.zone}, {market}, {price}"


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
    kept = _kept(wanted, catalog, previous, zones or {}, reservation)
    if kept is not None:
        return (kept,)
    _known_types(wanted, catalog)
    judgement = judge(wanted, catalog)
    fits = [fit for fit in judgement.fits if fit.offer.region and _in_zones(wanted, fit.offer, zones or {})]
    if not fits:
        raise PlanErrors([_no_offer(fleet, judgement)])
    found = tuple(_candidate(fit) for fit in fits if fit.offer.zone)
    if reservation is not None:
        found = _reserved(found, reservation)
    return _laid_out(fleet, found)


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


def _candidate(fit: Fit) -> Candidate:
    return Candidate(fit.offer.type, fit.offer.region or "", fit.offer.zone or "", fit.spot, fit.price)


def _kept(
    wanted: Wanted, catalog: Catalog, previous: Previous, zones: Zones, reservation: Reservation | None
) -> Candidate | None:
    """Where the stack is, if the file still allows that. What prices do since does not move it."""
    pins = previous.pins
    each = catalog.types.get(("aws", pins.get("instance_type", "")))
    region, zone = pins.get("region"), pins.get("zone")
    if each is None or region is None or zone is None or any(type_misses(wanted, each)):
        return None
    spot = pins.get("spot") == "true"
    listed = [offer for offer in catalog.lists["aws"].offers if (offer.type, offer.zone) == (each, zone)]
    offer = listed[0] if listed else Offer(each, region, zone, None, None)
    outside = wanted.regions and region not in wanted.regions
    other_market = wanted.spot_policy not in ("auto", "spot" if spot else "on-demand")
    elsewhere = reservation is not None and (reservation.zone, reservation.instance_type) != (zone, each.name)
    if outside or other_market or elsewhere or not _in_zones(wanted, offer, zones):
        return None
    return Candidate(each, region, zone, spot, offer.spot_price if spot else offer.price, kept=True)


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


def _known_types(wanted: Wanted, catalog: Catalog) -> None:
    known = sorted(name for backend, name in catalog.types if backend == "aws")
    unknown = [
        Finding(
            "ORCH202",
            f"instance_types[{index}]",
            f"the catalogue has no AWS type '{written}'",
            hint=hint_for(written, known),
        )
        for index, written in enumerate(wanted.instance_types)
        if not set("*?[") & set(written) and written.lower() not in known
    ]
    if unknown:
        raise PlanErrors(unknown)


def _no_offer(fleet: Fleet, judgement: Judgement) -> Finding:
    listed = near_misses(judgement)
    # Another type would be the nearest as soon as types are written: what these lack tells more.
    own = (each for each in listed if all(r.constraint != "instance type" for r in each.reasons))
    nearest = next(own, next(iter(listed), None))
    if nearest is None:
        return Finding("ORCH200", "resources", f"no AWS offer fits the fleet '{fleet.name}'")
    why = "; ".join(reason_text(reason) for reason in nearest.reasons)
    path = PROPERTIES.get(nearest.reasons[0].constraint, "resources") if nearest.failed == 1 else "resources"
    return Finding(
        "ORCH200",
        path,
        f"no AWS offer fits the fleet '{fleet.name}'",
        detail=f"nearest is {nearest.instance_type}: {why}",
        hint="change a condition that the nearest types fail: `orch offers FILE --explain` lists them",
    )


def _reserved(found: Sequence[Candidate], reservation: Reservation) -> tuple[Candidate, ...]:
    """Only where the reservation is."""
    place = (reservation.instance_type, reservation.zone)
    narrowed = tuple(each for each in found if (each.type.name, each.zone) == place)
    if not narrowed:
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
    return narrowed


def _places(found: Sequence[Candidate], most: int = 4) -> str:
    zones = list(dict.fromkeys(each.zone for each in found))
    return ", ".join(zones[:most]) + (f" and {len(zones) - most} more" if len(zones) > most else "")


def _laid_out(fleet: Fleet, found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Types whose network cards are known; with EFA alone where the file says it is required."""
    known = nics()
    laid_out = tuple(each for each in found if each.type.name in known)
    if not laid_out:
        names = ", ".join(dict.fromkeys(each.type.name for each in found))
        raise PlanErrors(
            [
                Finding(
                    "ORCH208", _types_path(fleet), f"the catalogue does not know the network cards of {names}"
                )
            ]
        )
    if fleet.network is None or fleet.network.interconnect != "required":
        return laid_out
    fast = tuple(each for each in laid_out if known[each.type.name].efa > 0)
    if not fast:
        names = ", ".join(dict.fromkeys(each.type.name for each in laid_out))
        raise PlanErrors(
            [
                Finding(
                    "ORCH223",
                    "network.interconnect",
                    f"a fast interconnect is required, and {names} has Ethernet only",
                    hint=f"types with EFA: {', '.join(with_efa())}",
                )
            ]
        )
    return fast


def _types_path(fleet: Fleet) -> str:
    return "instance_types" if fleet.instance_types else "resources"


def with_efa() -> Iterator[str]:
    """Names of the types that have EFA."""
    return (name for name, each in sorted(nics().items()) if each.efa > 0)
