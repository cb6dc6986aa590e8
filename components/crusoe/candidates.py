"""Where a Crusoe fleet may go, and what its file may not ask of Crusoe. Pure.

Locations are regions, and have no zones. A cluster has one InfiniBand partition in one network of its
location, whose name stands where other clouds have a zone: the next place to try is another network, or
location. Which networks there are, and what is in stock where, the account tells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from orch.catalog.load import SHIPPED, read_rows
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
from orch.components.cloud.machines.ssh_access import private_by_settings
from orch.components.cloud.restrictions import NO, SPOT, Restriction, rejected
from orch.components.crusoe.account.facts import IbNetwork, Reservation, Stock
from orch.components.request import PriorState
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.crusoe import CrusoeSettings
from orch.spec.suggest import few, hint_for


@dataclass(frozen=True)
class Machine:
    """What a type has beside what the catalogue of all clouds tells. `sold`: `reserved`, `on-demand`, or
    empty where no source tells."""

    hcas: int
    nvme: bool
    sold: str
    image: str


@cache
def machines() -> Mapping[str, Machine]:
    """By type."""
    return {
        row["type"]: Machine(int(row["hcas"]), row["nvme"] == "yes", row["sold"], row["image"])
        for row in read_rows(SHIPPED / "crusoe" / "machines.csv")
    }


_PUBLIC = "Crusoe gives each VM a public address: its API has no field against it"
RESTRICTIONS = (
    Restriction(
        "spot_policy",
        "Crusoe's API makes no spot machines: a create has no field for it",
        "write `spot_policy: on-demand`, or leave it out",
        SPOT,
    ),
    Restriction(
        "network.public_ips",
        _PUBLIC,
        "remove it: the firewall of the fleet's network lets in from `ssh_cidrs` alone",
        NO,
    ),
    Restriction(
        "network.security_groups[0]",
        "Crusoe has no security groups: firewall rules are of a whole VPC network",
        "remove it; with `subnets` the rules of their network decide who comes in",
    ),
)


@dataclass(frozen=True)
class CrusoeCandidate(CloudCandidate):
    """`zone`: the name of the InfiniBand network of a cluster, else the location; `network_id`: the network's
    id, empty without one. `room`: how many machines there are now, None: nobody tells. `listed`: the account
    was asked about it."""

    network_id: str = ""
    room: int | None = None

    @property
    def infiniband(self) -> str | None:
        return self.zone if self.network_id else None

    @property
    def place(self) -> str:
        return f"{self.region}, InfiniBand network {self.zone}" if self.infiniband else self.region


def candidates(
    fleet: Fleet,
    settings: CrusoeSettings,
    catalog: Catalog,
    *,
    previous: PriorState = PriorState(),  # noqa: B008 - frozen
    other_backends: Collection[str] = (),
) -> tuple[CrusoeCandidate, ...]:
    """Each type in each location that the catalogue knows, the cheapest first; the place that the stack is in
    alone, as long as the file allows it.

    `other_backends`: other backends where the fleet may go, whose types are no mistakes.

    Raises PlanErrors when there is none: ORCH200, 202, 223, 237.
    """
    if wrong := list(refusals(fleet, settings)):
        raise PlanErrors(wrong)
    query = query_on(settings, fleet, catalog, spot=False)
    kept = current_candidate(query, catalog, previous)
    network = previous.pins.get("ib_network", "")
    named = named_network(fleet)
    if kept is not None and (named is None or named.lower() in (kept.zone.lower(), network)):
        return tuple(CrusoeCandidate.at(each, network_id=network) for each in divisible(fleet, (kept,)))
    fits = fits_of(fleet, query, catalog, other_backends)
    fast = sorted(name for name, each in machines().items() if each.hcas)
    required = "a network `fabric`" if named is not None else "InfiniBand"
    found = with_required_fabric(
        fleet,
        tuple(candidate_of(fit) for fit in fits),
        machines().__contains__,
        fast.__contains__,
        what=required,
        hint=f"types with InfiniBand: {', '.join(fast)}",
    )
    return tuple(CrusoeCandidate.at(each, listed=False) for each in divisible(fleet, found))


def refusals(fleet: Fleet, settings: CrusoeSettings) -> Iterator[Finding]:
    """Report what Crusoe cannot do for any fleet, each where it is written."""
    yield from rejected(fleet, RESTRICTIONS)
    yield from private_by_settings(fleet.network, settings, _PUBLIC)


def named_network(fleet: Fleet) -> str | None:
    """The InfiniBand network that the file names, by its name or id."""
    return fleet.network.fabric if fleet.network is not None else None


def placed(
    fleet: Fleet,
    settings: CrusoeSettings,
    types: Sequence[CrusoeCandidate],
    *,
    stock: Stock,
    networks: Sequence[IbNetwork],
    nodes: int,
    reservations: Sequence[Reservation] | None = None,
) -> tuple[CrusoeCandidate, ...]:
    """The places that the account has for these types, in the order to try: those with room for all nodes
    first, what is sold without a reservation before what is not, by price; of the InfiniBand networks of one
    type and location the smallest that holds all nodes, then by name. A reservation that the file names keeps
    them to its locations.

    Raises PlanErrors (ORCH205, 223) where it has none.
    """
    if named_network(fleet) is not None:
        networks = tuple(_named(fleet, networks, types))
    known = tuple(_with_new_locations(fleet, settings, types, stock))
    bought = next((each for each in reservations or () if each.id == fleet.reservation), None)
    if bought is not None:
        known = tuple(each for each in known if each.region in (bought.locations or (each.region,))) or known
    there = [each for each in known if (each.type.name, each.region) in stock]
    if not there:
        raise PlanErrors([_nowhere(fleet, settings, types, stock)])
    places = [place for each in there for place in _in_networks(fleet, each, stock, networks)]
    if not places:
        raise PlanErrors([_no_network(fleet, there, networks)])
    order = list(dict.fromkeys((each.type.name, each.region) for each in there))

    def rank(each: CrusoeCandidate) -> tuple[bool, bool, int, int, str]:
        short = each.room is not None and each.room < nodes
        reserved = fleet.reservation is None and machines()[each.type.name].sold == "reserved"
        size = each.room or 0
        at = order.index((each.type.name, each.region))
        return short, reserved, at, -size if short else size, each.zone

    return tuple(replace(each, listed=True) for each in sorted(places, key=rank))


def _with_new_locations(
    fleet: Fleet, settings: CrusoeSettings, types: Sequence[CrusoeCandidate], stock: Stock
) -> Iterator[CrusoeCandidate]:
    """The same, and the locations that the account tells of and the catalogue does not know."""
    yield from types
    known = {(each.type.name, each.region) for each in types}
    if not (fleet.regions or settings.regions):
        first = {each.type.name: each for each in reversed(types)}
        for kind, location in sorted(stock):
            if kind in first and (kind, location) not in known:
                yield replace(first[kind], region=location)


def _in_networks(
    fleet: Fleet, each: CrusoeCandidate, stock: Stock, networks: Sequence[IbNetwork]
) -> Iterator[CrusoeCandidate]:
    hcas = machines()[each.type.name].hcas
    fast = clustered(fleet) and hcas > 0
    found = [
        replace(each, zone=network.name, network_id=network.id, room=room)
        for network in networks
        if fast and network.location == each.region
        if (room := network.room(each.type.name, each.type.gpu_count)) is not None
    ]
    if found:
        yield from found
        return
    block = fleet.network
    needed = block is not None and (block.interconnect == "required" or block.fabric is not None)
    if not needed:
        empty = stock[each.type.name, each.region] == 0
        yield replace(each, zone=each.region, room=0 if empty else None)


def _named(
    fleet: Fleet, networks: Sequence[IbNetwork], types: Sequence[CrusoeCandidate]
) -> Iterator[IbNetwork]:
    """The network that the file names. Raises PlanErrors where the project has none of that name, or not for
    these types and locations."""
    name = str(named_network(fleet))
    found = [each for each in networks if name.lower() in (each.name.lower(), each.id.lower())]
    kinds, regions = {each.type.name for each in types}, {each.region for each in types}
    for each in found:
        if kinds & set(each.slices) and each.location in regions:
            yield each
    if any(kinds & set(each.slices) and each.location in regions for each in found):
        return
    if not found:
        summary = f"the project has no InfiniBand network {name}"
    elif not any(each.location in regions for each in found):
        places = few(dict.fromkeys(each.location for each in found))
        summary = f"the InfiniBand network {name} is in {places}, not in {few(sorted(regions))}"
    else:
        slices = few(dict.fromkeys(kind for each in found for kind in each.slices))
        summary = f"the InfiniBand network {name} is of {slices}, not of {few(sorted(kinds))}"
    usable = [each.name for each in networks if kinds & set(each.slices) and each.location in regions]
    others = f"those have {few(usable)}" if usable else "those have none: remove `fabric`"
    hint = hint_for(name, usable) or others
    raise PlanErrors([Finding("ORCH205", "network.fabric", summary, hint=hint)])


def _nowhere(
    fleet: Fleet, settings: CrusoeSettings, types: Sequence[CrusoeCandidate], stock: Stock
) -> Finding:
    names = few(dict.fromkeys(each.type.name for each in types))
    kinds = {each.type.name for each in types}
    there = few(sorted({location for kind, location in stock if kind in kinds}))
    written = fleet.regions or settings.regions
    path = "regions" if written else "instance_types" if fleet.instance_types else "resources"
    where = f" in {few(written)}" if written else ""
    return Finding(
        "ORCH205",
        path,
        f"Crusoe has no {names}{where} for this project",
        hint=f"it has some in {there}" if there else "ask Crusoe's sales for it, or take another type",
    )


def _no_network(fleet: Fleet, there: Sequence[CrusoeCandidate], networks: Sequence[IbNetwork]) -> Finding:
    names = few(dict.fromkeys(each.type.name for each in there))
    regions = few(dict.fromkeys(each.region for each in there))
    kinds = {each.type.name for each in there}
    others = few(sorted({each.location for each in networks if kinds & set(each.slices)}))
    return Finding(
        "ORCH223",
        "network.interconnect",
        f"a fast interconnect is required: the project has no InfiniBand network for {names} in {regions}",
        hint=f"it has one in {others}" if others else "ask Crusoe's support for one, or take another type",
    )
