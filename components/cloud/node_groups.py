"""Node groups: nodes of one fleet that are of one type in one zone at one market. Pure.

A cluster is one group. Another fleet may have several, in one region: its first group is where the fleet
began, and where that has no room left, nodes that are still missing go to the next best place.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from orch.components.cloud.candidates import CloudCandidate
from orch.components.cloud.plan import CloudPlan
from orch.components.node_count import folded, node_indices, unfolded
from orch.components.request import PriorState
from orch.spec.models import Fleet

Plan = TypeVar("Plan", bound=CloudPlan)
Facts = TypeVar("Facts")

PIN = "groups"
"""The pin with the groups beside the first: a JSON list of their pins."""

OWN = ("indices", "layout", "zone", "instance_type", "spot")
"""Pins that each group has of its own."""

SPREADS = "spreads"
"""The pin of a fleet whose bastion leads to the networks of more groups."""

MOST = 8
"""Groups of one fleet: each has a network range of its own in the fleet's network."""


@dataclass(frozen=True)
class NodeGroup:
    """Some nodes of a fleet, by index. `pins`: what the stack has decided for them, none of a new group."""

    number: int
    pins: Mapping[str, str]
    indices: tuple[int, ...]

    def same_place(self, other: NodeGroup) -> bool:
        return all(self.pins.get(key) == other.pins.get(key) for key in ("zone", "instance_type", "spot"))


@dataclass(frozen=True)
class Planned(Generic[Plan, Facts]):
    """A node group that is planned. `new`: how many of its nodes do not run yet."""

    plan: Plan
    facts: Facts
    new: int


@dataclass(frozen=True)
class OtherGroups(Generic[Plan, Facts]):
    """The other node groups of a fleet: quotas and the budget bound all groups together.

    `planned`: the groups before this one. `later`: the number of nodes of the groups after it.
    """

    planned: tuple[Planned[Plan, Facts], ...] = ()
    later: int = 0

    @property
    def prices(self) -> tuple[tuple[int, float | None], ...]:
        """How many nodes there are at which price."""
        return tuple((len(each.plan.nodes), each.plan.price) for each in self.planned)


def may_spread(fleet: Fleet) -> bool:
    """Whether the nodes of a fleet may differ in type, zone and market."""
    return fleet.placement != "cluster" and fleet.reservation is None


def node_groups(previous: PriorState) -> tuple[NodeGroup, ...]:
    """The groups that the stack records, with their nodes. There is always a first one."""
    rows: list[dict[str, str]] = json.loads(previous.pins.get(PIN, "[]"))
    others = [NodeGroup(int(row["number"]), row, unfolded(row["indices"])) for row in rows]
    in_others = {index for each in others for index in each.indices}
    first_pins = {key: value for key, value in previous.pins.items() if key != PIN}
    live = unfolded(previous.pins.get("indices", ""))
    first = NodeGroup(0, first_pins, tuple(index for index in live if index not in in_others))
    return (first, *others)


def keep_and_missing(fleet: Fleet, previous: PriorState) -> tuple[tuple[NodeGroup, ...], tuple[int, ...]]:
    """The groups with the nodes they keep, and the indices of the missing nodes."""
    indices = node_indices(fleet, previous)
    current = node_groups(previous)
    kept = [replace(each, indices=tuple(i for i in each.indices if i in indices)) for each in current]
    kept_indices = {index for each in kept for index in each.indices}
    first, *others = kept
    missing = tuple(index for index in indices if index not in kept_indices)
    return (first, *(each for each in others if each.indices)), missing


def spreads(fleet: Fleet, previous: PriorState) -> bool:
    """Whether the fleet can get more groups. One that an earlier version made cannot."""
    new = "zone" not in previous.pins
    return may_spread(fleet) and (new or SPREADS in previous.pins)


def free_number(groups: Iterable[NodeGroup]) -> int | None:
    """The number for one more group; None at the limit of MOST groups."""
    taken = {each.number for each in groups}
    return next((number for number in range(1, MOST) if number not in taken), None)


def leaving_aside(previous: PriorState, leaving: Collection[int]) -> PriorState:
    """What the stack has decided, but for the places of nodes that leave theirs: they count as missing."""
    if not leaving or "indices" not in previous.pins:
        return previous
    pins = dict(previous.pins)

    def left(indices: str) -> str:
        return folded([index for index in unfolded(indices) if index not in leaving])

    pins["indices"] = left(pins["indices"])
    if PIN in pins:
        rows = [{**row, "indices": left(row["indices"])} for row in json.loads(pins[PIN])]
        pins[PIN] = json.dumps(rows, sort_keys=True)
    return replace(previous, pins=pins)


def moved_on(
    fleet: Fleet, previous: PriorState, unfinished: Mapping[str, str], evacuated: Collection[str]
) -> frozenset[int]:
    """Nodes in evacuated zones whose machines an interrupted `up` has made elsewhere: by their layouts, in
    which the zone is."""
    if not evacuated:
        return frozenset()

    def groups(pins: Mapping[str, str]) -> dict[int, NodeGroup]:
        return {index: each for each in node_groups(PriorState(dict(pins))) for index in each.indices}

    before, begun = groups(previous.pins), groups(unfinished)
    return frozenset(
        index
        for index, group in before.items()
        if group.pins.get("zone") in evacuated
        and index in begun
        and begun[index].pins.get("zone") not in evacuated
        and begun[index].pins.get("layout") == previous.layouts.get(f"{fleet.name}-{index}")
    )


def with_unfinished(
    groups: Sequence[NodeGroup],
    missing: tuple[int, ...],
    pins: Mapping[str, str],
    evacuated: Collection[str] = (),
) -> tuple[tuple[NodeGroup, ...], tuple[int, ...]]:
    """Assign missing nodes to the groups where an interrupted `up` was creating them (`pins`), but for groups
    in `evacuated` zones."""
    result = list(groups)
    for other in node_groups(PriorState(dict(pins)))[1:]:
        if other.pins.get("zone") in evacuated:
            continue
        indices = tuple(index for index in missing if index in other.indices)
        position = next((index for index, each in enumerate(result) if each.number == other.number), None)
        if not indices or (position is not None and not other.same_place(result[position])):
            continue
        missing = tuple(index for index in missing if index not in indices)
        if position is None:
            result.append(replace(other, indices=indices))
        else:
            group = result[position]
            result[position] = replace(group, indices=tuple(sorted((*group.indices, *indices))))
    return tuple(result), missing


def with_missing(
    places: Sequence[tuple[NodeGroup, CloudCandidate]], missing: Sequence[int], candidate: CloudCandidate
) -> list[tuple[NodeGroup, CloudCandidate]]:
    """Assign the missing nodes to the candidate: to the group that is there already, else to a new one."""
    result = list(places)
    position = next((index for index, (_, place) in enumerate(result) if place.same_place(candidate)), None)
    number = free_number(group for group, _ in result)
    if position is None and number is not None:
        return [*result, (NodeGroup(number, {}, tuple(sorted(missing))), candidate)]
    group, place = result[position or 0]
    result[position or 0] = (replace(group, indices=tuple(sorted((*group.indices, *missing)))), place)
    return result


def prior_of_group(group: NodeGroup, previous: PriorState) -> PriorState:
    """What the stack has decided for one group, as if it were the whole fleet."""
    shared = {key: value for key, value in previous.pins.items() if key not in (*OWN, PIN)}
    pins = {**shared, **{key: value for key, value in group.pins.items() if key != "number"}}
    live = set(unfolded(previous.pins.get("indices", "")))
    return replace(previous, pins={**pins, "indices": folded([i for i in group.indices if i in live])})


def joined(first: Plan, others: Sequence[Plan]) -> Plan:
    """The plan of a fleet of these groups, each of which was planned as a whole fleet.

    What a fleet has only once, as its bastion, is in the plan of the first group.
    """
    others = tuple(replace(each, bastion=None, bastion_init="") for each in others)
    groups = (first, *others)
    group_pins = [{"number": str(each.number), **_own(_pins(each), first.pins)} for each in others]
    nodes = [node.index for each in groups for node in each.nodes]
    bastion_price = first.bastion.price or 0.0 if first.bastion is not None else 0.0
    return replace(
        first,
        others=others,
        pins=_pins(first)
        | {"indices": folded(nodes)}
        | ({PIN: json.dumps(group_pins, sort_keys=True)} if group_pins else {}),
        hourly=round(bastion_price + sum((each.price or 0.0) * len(each.nodes) for each in groups), 6),
        unpriced=tuple(dict.fromkeys(what for each in groups for what in each.unpriced)),
    )


def _pins(plan: CloudPlan) -> dict[str, str]:
    """The pins of a group alone."""
    pins = {key: value for key, value in plan.pins.items() if key != PIN}
    return {**pins, "indices": folded([node.index for node in plan.nodes])}


def _own(pins: Mapping[str, str], first: Mapping[str, str]) -> dict[str, str]:
    """The pins in which a group differs from the first."""
    return {key: value for key, value in pins.items() if key in OWN or first.get(key) != value}


def reasons(plan: CloudPlan) -> tuple[str, ...]:
    """The reasons of the first group, then one line per other group: its nodes and where they are."""
    first, *others = plan.node_groups
    more = (f"{', '.join(node.name for node in each.nodes)}: {each.reasons[0]}" for each in others)
    return (*first.reasons, *more)
