"""Where a fleet of a cloud may go: what its list of candidates and its errors have in common. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from orch.catalog.records import Catalog, InstanceType, Offer
from orch.catalog.unpriced import unlisted_offers
from orch.components.cloud.sizing import blocks
from orch.components.request import PriorState
from orch.offers.match import Fit, Judgement, money, type_misses
from orch.offers.name_warnings import name_warnings
from orch.offers.near_misses import near_misses, reason_text
from orch.offers.query import MachineQuery
from orch.offers.search import PROPERTIES
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends import title
from orch.spec.suggest import few, hint_for


@dataclass(frozen=True)
class CloudCandidate:
    """A type in a zone (on AWS by the zone's id) at one of its prices. `price`: US dollars an hour, None: not
    known; `price_of`: the region whose price it is, where its own is not known.

    `kept`: the stack is there already. `additional`: a place for more nodes of a fleet that is up in the same
    region. `listed`: a list says that the place has the type; else the account is
    asked before the fleet is planned there, and the zone is empty until then where the file names none.
    """

    type: InstanceType
    region: str
    zone: str
    spot: bool
    price: float | None
    kept: bool = False
    additional: bool = False
    listed: bool = True
    price_of: str | None = None

    @property
    def backend(self) -> str:
        return self.type.backend

    def same_place(self, other: CloudCandidate) -> bool:
        return (self.type.name, self.zone, self.spot) == (other.type.name, other.zone, other.spot)

    @property
    def place(self) -> str:
        """Zones of GCP tell their region."""
        if not self.zone:
            return self.region
        return self.zone if self.zone.startswith(self.region) else f"{self.region}, zone {self.zone}"

    @property
    def words(self) -> str:
        market = "spot" if self.spot else "on demand"
        price = money(self.price) + " an hour each" if self.price is not None else "price not known"
        price += f" (price of {self.price_of})" if self.price_of else ""
        return f"{self.type.name} in {self.place}, {market}, {price}"


def candidate_of(fit: Fit) -> CloudCandidate:
    offer = fit.offer
    return CloudCandidate(
        offer.type,
        offer.region or "",
        offer.zone or "",
        fit.spot,
        fit.price,
        listed=offer.listed,
        price_of=fit.price_of,
    )


def where_it_is(
    wanted: MachineQuery,
    catalog: Catalog,
    previous: PriorState,
    in_zones: Callable[[Offer], bool],
    reserved: tuple[str, str] | None,
) -> CloudCandidate | None:
    """Where the stack is, if the file still allows that. What prices do since does not move it.

    `reserved`: zone and type of the fleet's reservation.
    """
    (backend,), pins = wanted.backends, previous.pins
    each = catalog.types.get((backend, pins.get("instance_type", "")))
    region, zone = pins.get("region"), pins.get("zone")
    if each is None or region is None or zone is None or any(type_misses(wanted, each)):
        return None
    spot = pins.get("spot") == "true"
    offer = _offer_at(catalog, each, region, zone)
    outside = wanted.regions and region not in wanted.regions
    other_market = wanted.spot_policy not in ("auto", "spot" if spot else "on-demand")
    elsewhere = reserved is not None and reserved != (zone, each.name)
    if outside or other_market or elsewhere or not in_zones(offer):
        return None
    price, price_of = (offer.spot_price, None) if spot else (offer.price, offer.price_of)
    return CloudCandidate(each, region, zone, spot, price, kept=True, price_of=price_of)


def _offer_at(catalog: Catalog, each: InstanceType, region: str, zone: str) -> Offer:
    """What is known of a type in a zone that has it."""
    listed = (
        offer for offer in catalog.lists[each.backend].offers if (offer.type, offer.zone) == (each, zone)
    )
    others = (offer for offer in unlisted_offers(catalog, each) if offer.region == region)
    found = next(listed, None) or next(others, None) or Offer(each, region, zone, None, None)
    return replace(found, zone=zone)


def known_types(wanted: MachineQuery, catalog: Catalog, beside: Collection[str] = ()) -> None:
    """Raises PlanErrors for names of types that the catalogue has not, nor for the backends `beside` this."""
    (cloud,) = wanted.backends
    known = sorted(name for backend, name in catalog.types if backend == cloud or backend in beside)
    unknown = [
        Finding(
            "ORCH202",
            f"instance_types[{index}]",
            f"the catalogue has no {title(cloud)} type '{written}'",
            hint=hint_for(written, known),
        )
        for index, written in enumerate(wanted.instance_types)
        if not set("*?[") & set(written) and written.lower() not in known
    ]
    if unknown:
        raise PlanErrors(unknown)


def no_offer(
    fleet: Fleet, wanted: MachineQuery, catalog: Catalog, judgement: Judgement, instead: Finding | None = None
) -> PlanErrors:
    """That nothing fits and what comes nearest, or `instead` of that; with names that nobody knows."""
    unknown = [each.finding for each in name_warnings(wanted, catalog) if each.severity is Severity.WARNING]
    return PlanErrors([*unknown, instead or _nothing(fleet, wanted, judgement)])


def _nothing(fleet: Fleet, wanted: MachineQuery, judgement: Judgement) -> Finding:
    summary = f"no {title(wanted.backends[0])} offer fits the fleet '{fleet.name}'"
    listed = near_misses(judgement)
    # Another type would be the nearest as soon as types are written: what these lack tells more.
    own = (each for each in listed if all(r.constraint != "instance type" for r in each.reasons))
    nearest = next(own, next(iter(listed), None))
    if nearest is None:
        return Finding("ORCH200", "resources", summary)
    why = "; ".join(reason_text(reason) for reason in nearest.reasons)
    path = PROPERTIES.get(nearest.reasons[0].constraint, "resources") if nearest.failed == 1 else "resources"
    return Finding(
        "ORCH200",
        path,
        summary,
        detail=f"nearest is {nearest.instance_type}: {why}",
        hint="change a condition that the nearest types fail: `orch offers FILE --explain` lists them",
    )


def where_reserved(
    found: Sequence[CloudCandidate], instance_type: str, zone: str
) -> tuple[CloudCandidate, ...]:
    """Only where the reservation is. Raises PlanErrors."""
    narrowed = tuple(each for each in found if (each.type.name, each.zone) == (instance_type, zone))
    if narrowed:
        return narrowed
    types = ", ".join(dict.fromkeys(each.type.name for each in found))
    raise PlanErrors(
        [
            Finding(
                "ORCH323",
                "reservation",
                f"the reservation is of {instance_type} in {zone}, which the fleet does not ask for",
                detail=f"the fleet asks for {types}, in {places(found)}",
                hint="change `instance_types`, `resources`, `regions` or `availability_zones`",
            )
        ]
    )


def places(found: Sequence[CloudCandidate], most: int = 4) -> str:
    return few(dict.fromkeys(each.zone for each in found), most)


def into_blocks(fleet: Fleet, found: Sequence[CloudCandidate]) -> tuple[CloudCandidate, ...]:
    """Those whose GPUs divide into the fleet's blocks. Raises PlanError when none's do."""
    refused: PlanErrors | None = None
    fitting: list[CloudCandidate] = []
    for each in found:
        try:
            blocks(fleet, each.type)
        except PlanErrors as error:
            refused = refused or error
        else:
            fitting.append(each)
    if refused is not None and not fitting:
        raise refused
    return tuple(fitting)


def with_fabric_alone(
    fleet: Fleet,
    found: Sequence[CloudCandidate],
    known: Callable[[str], bool],
    fast: Callable[[str], bool],
    *,
    what: str,
    hint: str,
    unsure: Callable[[str], bool] = lambda name: False,
) -> tuple[CloudCandidate, ...]:
    """Types that are `known`; the `fast` ones alone where the file says that it is required.

    `what` of them is known. `unsure`: types that have a fast interconnect of which too little is known.

    Raises PlanErrors.
    """
    shaped = tuple(each for each in found if known(each.type.name))
    if not shaped:
        names = ", ".join(dict.fromkeys(each.type.name for each in found))
        path = "instance_types" if fleet.instance_types else "resources"
        raise PlanErrors([Finding("ORCH208", path, f"the catalogue does not know the {what} of {names}")])
    if fleet.network is None or fleet.network.interconnect != "required":
        return shaped
    quick = tuple(each for each in shaped if fast(each.type.name))
    if not quick:
        names = ", ".join(dict.fromkeys(each.type.name for each in shaped))
        doubtful = ", ".join(dict.fromkeys(each.type.name for each in shaped if unsure(each.type.name)))
        summary = (
            f"a fast interconnect is required, and the catalogue does not know the {what} of {doubtful}"
            if doubtful
            else f"a fast interconnect is required, and {names} has Ethernet only"
        )
        raise PlanErrors([Finding("ORCH223", "network.interconnect", summary, hint=hint)])
    return quick
