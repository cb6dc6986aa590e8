"""How many nodes a fleet has, also where its file leaves that open (`nodes: 0..8`), and which, by index.

What the file says of `nodes` is recorded with the stack when it is reached. As long as the file says the
same, the fleet keeps the nodes that it has; an edit makes `target` act again. A record that is missing, or
that cannot be compared, never takes a node away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from orch.components.file_systems import created
from orch.components.lifetime import lifetime
from orch.components.request import TEMPLATE, PlanRequest, PriorState
from orch.runner.preparation.mounts import fleet_mounts
from orch.spec.models import Fleet, Nodes
from orch.spec.models.backends import made_with_runs
from orch.spec.state import SCHEMA

if TYPE_CHECKING:
    import pulumi

    from orch.components.deployment import Deployment

PIN = "nodes"
"""The pin with the last `nodes` of the file that the fleet has reached: `min/target/max`; empty when it got
fewer."""


RESERVATION = "reservation"
"""The pin with the reservation that a run had the fleet's nodes made from, where the file names none. It is
the fleet's as long as it has nodes."""


def is_range(nodes: Nodes | None) -> bool:
    """Whether the number of nodes may change while the file stays the same."""
    return nodes is not None and nodes.min != nodes.max


def may_grow(pins: Mapping[str, str]) -> bool:
    """Whether the file that a fleet was last brought up with leaves room for more nodes."""
    low, _, rest = pins.get(PIN, "").partition("/")
    return bool(rest) and low != rest.partition("/")[2]


def with_node_count(request: PlanRequest) -> PlanRequest:
    """The request with the number of nodes as `target`, and what the stack decided for the nodes that exist.

    The fleet's nodes are those of the last finished `up` that the state still records, and those that a call
    which did not end made beside them; not those that ended themselves since.
    """
    nodes, previous = request.fleet.nodes, request.previous
    if nodes is None:
        return request
    recorded, new = previous.pins.get(PIN), not previous.pins
    reservation = previous.pins.get(RESERVATION)
    pins = {key: value for key, value in previous.pins.items() if key not in (PIN, TEMPLATE)}
    ended = indices_of(request.fleet.name, previous.ended)
    if is_range(nodes) or ended:
        live = live_indices(previous) - ended
        others = frozenset[int]()
        if previous.existing_nodes is not None:
            existing = indices_of(request.fleet.name, previous.existing_nodes) - ended
            live, others = live & existing, existing - live
            names = previous.existing_nodes - previous.ended
            previous = replace(previous, existing_nodes=names)
        if pins:
            pins["indices"] = folded(sorted(live))
        if not (live or others):
            reservation = request.reservation
        count = request.count if is_range(nodes) else nodes.target
        if count is None:
            there = len(live) + len(others)
            count = max(request.at_least, _count(nodes, recorded, there, new=new))
            count = max(count, there + request.more) if request.more else count
        nodes = nodes.model_copy(update={"target": _bounded(nodes, count)})
    fleet = request.fleet.model_copy(update={"nodes": nodes})
    if fleet.reservation is not None:
        reservation = None
    elif reservation is not None:
        fleet = fleet.model_copy(update={"reservation": reservation})
    pins.pop(RESERVATION, None)
    ending = lifetime(request.fleet, request.created)
    return replace(
        request,
        fleet=fleet,
        previous=replace(previous, pins=pins),
        own_pins={
            PIN: text(request.fleet.nodes),
            **({} if reservation is None else {RESERVATION: reservation}),
            **(ending.pins if ending else {}),
        },
    )


def recorded_minimum(pins: Mapping[str, str]) -> int:
    """`min` of the `nodes` that a stack records; 0 where it does not tell."""
    return int(pins.get(PIN, "").partition("/")[0] or 0)


def own_pins(request: PlanRequest, planned: int) -> dict[str, str]:
    """The pins of a plan of so many nodes that no backend decides."""
    nodes = request.fleet.nodes
    reached = nodes is None or planned >= nodes.target
    return {key: value if reached or key != PIN else "" for key, value in request.own_pins.items()}


def text(nodes: Nodes | None) -> str:
    """`0/2/4`, and `2/2/` without an upper bound."""
    return "" if nodes is None else f"{nodes.min}/{nodes.target}/{'' if nodes.max is None else nodes.max}"


def count_words(fleet: Fleet, count: int, each: str) -> str:
    """`2 x H100 at …`; of a fleet without nodes how many there may be."""
    if count or fleet.nodes is None:
        return f"{count} x {each}"
    return f"{no_node(fleet)}: {each}"


def no_node(fleet: Fleet) -> str:
    """What a plan says of a fleet without nodes."""
    most = fleet.nodes.max if fleet.nodes is not None else None
    if most is None:
        return "no node now; runs make as many as they need"
    return f"no node now; runs make up to {most}" if most else "no node now"


def _count(nodes: Nodes, recorded: str | None, there: int, *, new: bool) -> int:
    """`target` of a new fleet and of an edited file, else the nodes that are there.

    A range states no number to have now: an edited one only bounds what is there.
    """
    if new:
        return nodes.target
    # A former version recorded nothing to compare with.
    unedited = recorded is None or recorded == text(nodes)
    return there if unedited or nodes.target == nodes.min else nodes.target


def _bounded(nodes: Nodes, count: int) -> int:
    return max(nodes.min, count if nodes.max is None else min(count, nodes.max))


# Which nodes.


def node_indices(fleet: Fleet, previous: PriorState) -> tuple[int, ...]:
    """The indices of the fleet's nodes.

    Running nodes keep theirs, new nodes get the lowest free ones, and a smaller fleet loses the highest.
    Nodes that a call which did not end has made count as new, and come before others. One that ended itself
    may not be gone yet: its index is not taken again before the next `up` has forgotten it.
    """
    count = fleet.nodes.target if fleet.nodes is not None else 0
    live = sorted(live_indices(previous))
    kept = live[:count]
    begun = [each for each in indices_of(fleet.name, previous.existing_nodes or ()) if each not in live]
    taken = {*live, *begun, *indices_of(fleet.name, previous.ended)}
    lowest = (index for index in range(len(taken) + count) if index not in taken)
    free = chain(sorted(begun), lowest)
    return tuple(sorted([*kept, *(next(free) for _ in range(count - len(kept)))]))


def indices_of(fleet: str, names: Iterable[str]) -> frozenset[int]:
    """The indices of nodes by their names."""
    matches = (re.fullmatch(rf"{re.escape(fleet)}-(\d+)", name) for name in names)
    return frozenset(int(match[1]) for match in matches if match)


def live_indices(previous: PriorState) -> frozenset[int]:
    """Indices of the nodes that the stack has, from its pin `indices`; a former version recorded none of
    local nodes."""
    pinned = previous.pins.get("indices")
    return frozenset((node.index for node in previous.nodes) if pinned is None else unfolded(pinned))


def all_there(fleet: Fleet, previous: PriorState, indices: Sequence[int] | None = None) -> bool:
    """Whether the state records every node of the fleet.

    `indices`: the planned nodes, None: as many as the file asks for. False where they are only a part of the
    fleet: the state of the others is not known here.
    """
    expected = node_indices(fleet, previous) if indices is None else indices
    whole = fleet.nodes is None or len(expected) >= fleet.nodes.target
    existing = previous.existing_nodes or frozenset()
    return whole and all(f"{fleet.name}-{index}" in existing for index in expected)


def unfolded(text: str) -> tuple[int, ...]:
    """0, 1, 2, 3, 5 of `0-3,5`."""
    indices: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        indices += range(int(low), int(high or low) + 1)
    return tuple(indices)


def folded(indices: Sequence[int]) -> str:
    """`0-3,5` of 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


# A fleet that has had no node yet: a record of what it is, without a place and without resources.


def is_template(request: PlanRequest) -> bool:
    """Whether the fleet is to have no node and is nowhere yet. File systems that are created with a fleet
    have a place before its nodes."""
    nodes = request.fleet.nodes
    return (
        nodes is not None
        and not nodes.target
        and not request.previous.pins
        and not request.previous.file_systems
        and not created(request.fleet)
    )


def as_template(request: PlanRequest, backend: str, planned: Deployment) -> Deployment:
    """The record of a fleet without nodes. `planned`: the fleet where its first nodes would go, which shows
    that they can be made."""
    from orch.components.deployment import Deployment

    return Deployment(
        # Of machines the others tell what would stand around its nodes.
        reasons=planned.reasons if made_with_runs([backend]) else planned.reasons[:1],
        pins={**own_pins(request, 0), TEMPLATE: "true"},
        hourly=0.0,
        register=partial(_register, request, backend),
        findings=planned.findings,
        explained=planned.explained,
        health=planned.health,
        spares=planned.spares,
    )


def _register(request: PlanRequest, backend: str) -> tuple[pulumi.Output[dict[str, Any]], None]:
    """The fleet alone, under the name and type that it keeps when it gets nodes at this backend."""
    import pulumi

    fleet = request.fleet
    component = pulumi.ComponentResource(
        f"orch:fleet:{backend.capitalize()}",
        fleet.name,
        None,
        pulumi.ResourceOptions(protect=fleet.protect),
    )
    component.register_outputs({})
    state: dict[str, Any] = {
        "schema_version": SCHEMA,
        "name": fleet.name,
        "stack": pulumi.get_stack(),
        "backend": backend,
        "placement": fleet.placement,
        "image": fleet.image,
        "env": {key: value for key, value in fleet.env.items() if value is not None},
        "mounts": [mount.model_dump() for mount in fleet_mounts(fleet.mounts)],
        "nodes": [],
    }
    return pulumi.Output.from_input(state), None
