"""Candidates of a cloud: what the lists of all clouds share, and the errors where none fits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from orch.catalog.records import Catalog, InstanceType, Offer
from orch.catalog.unpriced import unlisted_offers
from orch.components.cloud.findings import wants_fabric
from orch.components.cloud.sizing import blocks
from orch.components.request import PriorState
from orch.offers.match import Fit, Judgement, judge, money, type_misses
from orch.offers.name_warnings import name_warnings
from orch.offers.near_misses import NearMiss, nearest_first, reason_text
from orch.offers.query import MachineQuery, machine_query
from orch.offers.search import PROPERTIES
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends import title
from orch.spec.models.backends.base import CloudSettings
from orch.spec.suggest import few, hint_for

if TYPE_CHECKING:
    from typing_extensions import Self


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

    @classmethod
    def at(cls, place: CloudCandidate, **own: Any) -> Self:
        """Return the candidate of a cloud at a place. `own`: its other fields."""
        known = {each.name: getattr(place, each.name) for each in fields(CloudCandidate)}
        return cls(**{**known, **own})

    @property
    def infiniband(self) -> str | None:
        """The InfiniBand network that a cloud's machines join there, of those that have several."""
        return None

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


def query_on(settings: CloudSettings, fleet: Fleet, catalog: Catalog, *, spot: bool = True) -> MachineQuery:
    """Return the conditions of a fleet on one cloud. `spot`: the cloud has spot machines."""
    query = machine_query(fleet, catalog)
    return replace(
        query,
        backends=(settings.type,),
        regions=query.regions or settings.regions,
        spot_policy=query.spot_policy if spot and fleet.reservation is None else "on-demand",
    )


def fits_of(
    fleet: Fleet,
    query: MachineQuery,
    catalog: Catalog,
    other_backends: Collection[str],
    *,
    usable: Callable[[Offer], object] = lambda offer: True,
    instead: Callable[[MachineQuery, Catalog], Finding | None] = lambda query, catalog: None,
) -> list[Fit]:
    """Return the offers that fit a fleet, the cheapest first.

    `usable`: whether the cloud can use an offer; `instead`: the error where none fits, if one is known better
    than the nearest miss. Raises PlanErrors where there is none, and for unknown types.
    """
    known_types(query, catalog, other_backends)
    judgement = judge(query, catalog)
    fits = [fit for fit in judgement.fits if usable(fit.offer)]
    if not fits:
        raise no_offer(fleet, query, catalog, judgement, instead(query, catalog))
    return fits


def clustered(fleet: Fleet) -> bool:
    """Return whether the machines of a fleet join an InfiniBand network where their type can."""
    return wants_fabric(fleet) or (
        fleet.network is not None
        and fleet.network.interconnect != "ethernet"
        and fleet.network.fabric is not None
    )


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


def current_candidate(
    query: MachineQuery,
    catalog: Catalog,
    previous: PriorState,
    in_zones: Callable[[Offer], bool] = lambda offer: True,
    reserved: tuple[str, str] | None = None,
) -> CloudCandidate | None:
    """The stack's current placement, if the file still permits it. Price changes never move a running fleet.

    `reserved`: zone and type of the fleet's reservation.
    """
    (backend,), pins = query.backends, previous.pins
    instance_type = catalog.types.get((backend, pins.get("instance_type", "")))
    region, zone = pins.get("region"), pins.get("zone")
    if instance_type is None or region is None or zone is None or any(type_misses(query, instance_type)):
        return None
    spot = pins.get("spot") == "true"
    offer = _offer_at(catalog, instance_type, region, zone)
    outside = query.regions and region not in query.regions
    other_market = query.spot_policy not in ("auto", "spot" if spot else "on-demand")
    elsewhere = reserved is not None and reserved != (zone, instance_type.name)
    if outside or other_market or elsewhere or not in_zones(offer):
        return None
    price, price_of = (offer.spot_price, None) if spot else (offer.price, offer.price_of)
    return CloudCandidate(instance_type, region, zone, spot, price, kept=True, price_of=price_of)


def _offer_at(catalog: Catalog, instance_type: InstanceType, region: str, zone: str) -> Offer:
    """The offer of a type in a zone that is known to have it, with the prices that are known."""
    listed = (
        offer
        for offer in catalog.lists[instance_type.backend].offers
        if offer.type == instance_type and (offer.zone == zone or (not offer.zone and offer.region == region))
    )
    others = (offer for offer in unlisted_offers(catalog, instance_type) if offer.region == region)
    offer = next(listed, None) or next(others, None) or Offer(instance_type, region, zone, None, None)
    return replace(offer, zone=zone)


def known_types(query: MachineQuery, catalog: Catalog, other_backends: Collection[str] = ()) -> None:
    """Check the names of instance types.

    Raises PlanErrors for names that the catalogue has neither for this cloud nor for `other_backends`.
    """
    (cloud,) = query.backends
    known = sorted(name for backend, name in catalog.types if backend == cloud or backend in other_backends)
    small = {name.lower() for name in known}
    unknown = [
        Finding(
            "ORCH202",
            f"instance_types[{index}]",
            f"the catalogue has no {title(cloud)} type '{written}'",
            hint=hint_for(written, known),
        )
        for index, written in enumerate(query.instance_types)
        if not set("*?[") & set(written) and written.lower() not in small
    ]
    if unknown:
        raise PlanErrors(unknown)


def no_offer(
    fleet: Fleet, query: MachineQuery, catalog: Catalog, judgement: Judgement, instead: Finding | None = None
) -> PlanErrors:
    """The error that nothing fits, with the nearest miss or `instead`, and warnings of unknown names."""
    unknown = [each.finding for each in name_warnings(query, catalog) if each.severity is Severity.WARNING]
    return PlanErrors([*unknown, instead or _nothing(fleet, query, judgement)])


def _nothing(fleet: Fleet, query: MachineQuery, judgement: Judgement) -> Finding:
    summary = f"no {title(query.backends[0])} offer fits the fleet '{fleet.name}'"
    nearest = _nearest(nearest_first(judgement))
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


def _nearest(misses: Iterable[NearMiss]) -> NearMiss | None:
    """The one that tells most. Another type would be the nearest as soon as types are written, and another
    cloud's is no help to a fleet that is planned on this one."""
    first: dict[int, NearMiss] = {}
    for each in misses:
        failed = {reason.constraint for reason in each.reasons}
        rank = 2 if "backend" in failed else int("instance type" in failed)
        first.setdefault(rank, each)
        if rank == 0:
            break
    return first[min(first)] if first else None


def in_reservation(
    matches: Sequence[CloudCandidate], instance_type: str, zone: str
) -> tuple[CloudCandidate, ...]:
    """The candidates in the reservation's zone and of its type. Raises PlanErrors when there is none."""
    narrowed = tuple(each for each in matches if (each.type.name, each.zone) == (instance_type, zone))
    if narrowed:
        return narrowed
    types = ", ".join(dict.fromkeys(each.type.name for each in matches))
    raise PlanErrors(
        [
            Finding(
                "ORCH323",
                "reservation",
                f"the reservation is of {instance_type} in {zone}, which the fleet does not ask for",
                detail=f"the fleet asks for {types}, in {places(matches)}",
                hint="change `instance_types`, `resources`, `regions` or `availability_zones`",
            )
        ]
    )


def places(matches: Sequence[CloudCandidate], most: int = 4) -> str:
    return few(dict.fromkeys(each.zone for each in matches), most)


def divisible(fleet: Fleet, matches: Sequence[CloudCandidate]) -> tuple[CloudCandidate, ...]:
    """The candidates whose GPUs divide into the fleet's blocks. Raises PlanErrors when there is none."""
    refusal: PlanErrors | None = None
    fitting: list[CloudCandidate] = []
    for each in matches:
        try:
            blocks(fleet, each.type)
        except PlanErrors as error:
            refusal = refusal or error
        else:
            fitting.append(each)
    if refusal is not None and not fitting:
        raise refusal
    return tuple(fitting)


def with_required_fabric(
    fleet: Fleet,
    matches: Sequence[CloudCandidate],
    known: Callable[[str], bool],
    fast: Callable[[str], bool],
    *,
    what: str,
    hint: str,
    unsure: Callable[[str], bool] = lambda name: False,
) -> tuple[CloudCandidate, ...]:
    """The candidates of `known` types; only the `fast` ones where the file requires a fast interconnect.

    `what`: the part of a type that the catalogue knows or not, for messages. `unsure`: types whose fast
    interconnect the catalogue does not know well enough.

    Raises PlanErrors.
    """
    known_matches = tuple(each for each in matches if known(each.type.name))
    if not known_matches:
        names = ", ".join(dict.fromkeys(each.type.name for each in matches))
        path = "instance_types" if fleet.instance_types else "resources"
        raise PlanErrors([Finding("ORCH208", path, f"the catalogue does not know the {what} of {names}")])
    if fleet.network is None or fleet.network.interconnect != "required":
        return known_matches
    fast_matches = tuple(each for each in known_matches if fast(each.type.name))
    if not fast_matches:
        names = ", ".join(dict.fromkeys(each.type.name for each in known_matches))
        doubtful = ", ".join(
            dict.fromkeys(each.type.name for each in known_matches if unsure(each.type.name))
        )
        summary = (
            f"a fast interconnect is required, and the catalogue does not know the {what} of {doubtful}"
            if doubtful
            else f"a fast interconnect is required, and {names} has Ethernet only"
        )
        raise PlanErrors([Finding("ORCH223", "network.interconnect", summary, hint=hint)])
    return fast_matches


def moves(candidate: CloudCandidate, previous: PriorState) -> bool:
    """Whether the fleet moves to another zone: the network cannot change under running instances."""
    return not (candidate.kept or candidate.additional) and "zone" in previous.pins


def place_reason(candidate: CloudCandidate, previous: PriorState) -> Iterator[str]:
    """The reasons of a plan for a stack that has a placement already."""
    if candidate.kept:
        yield "it stays where it is: the stack is there"
        if any(node.machine is None for node in previous.nodes):
            yield "host keys: new nodes make their own; those that run keep what an earlier version gave them"
    elif moves(candidate, previous):
        place = "{instance_type} in {zone}".format_map(previous.pins)
        yield f"it moves: the file excludes {place}, where the fleet is; all of it is removed first"


def price_in(backend: str, instance_type: str, region: str, spot: bool) -> float | None:
    """The lowest price of a type in a region, None where no list has it."""
    from orch.catalog.load import catalog

    prices = catalog().lists[backend]
    offers = next((offers for each, offers in prices.by_type if each.name == instance_type), ())
    own = [each.spot_price if spot else each.price for each in offers if each.region == region]
    return min((each for each in own if each is not None), default=None)
