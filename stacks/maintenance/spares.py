"""Spare nodes of a rollout: where the file allows more nodes, some are made before the first wave, so that as
many as before do work while a wave is made anew. They go when the last wave is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orch.components.node_count import is_range, node_indices
from orch.components.request import PriorState
from orch.runner.node_api.cordon import unmark_of
from orch.spec.models import Fleet
from orch.spec.state import NodeState
from orch.stacks.errors import NoCapacity
from orch.stacks.events.notation import fold
from orch.stacks.maintenance.context import Maintenance
from orch.stacks.maintenance.drain import NODE_S, put_mark
from orch.stacks.maintenance.errors import MaintenanceError
from orch.stacks.maintenance.plan import LIMIT_S
from orch.stacks.maintenance.reboot import wait_ready
from orch.stacks.provisioning import operations
from orch.stacks.provisioning.busy_nodes import occupants
from orch.stacks.record.fleets import fleet_state
from orch.stacks.stack.state import StackState

MISSING = "those of a wave are missing meanwhile"
MAKE, REMOVE = "make spare", "remove spare"


def spares_of(fleet: Fleet, stack: StackState, waves: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], str]:
    """The names of the spare nodes that a rollout in such waves makes, and what a plan says of it."""
    nodes, there = fleet.nodes, len(stack.nodes)
    if nodes is None or not is_range(nodes) or (nodes.max is not None and nodes.max <= there):
        return (), f"no spare node: the file allows no more nodes; {MISSING}"
    if fleet.placement == "cluster" or fleet.gang == "all-or-nothing":
        return (), f"no spare node: the fleet gets its nodes all at once; {MISSING}"
    most = max((len(wave) for wave in waves), default=0)
    count = most if nodes.max is None else min(most, nodes.max - there)
    larger = fleet.model_copy(update={"nodes": nodes.model_copy(update={"target": there + count})})
    indices = [int(node["index"]) for node in stack.nodes]
    prior = PriorState({"indices": ",".join(map(str, indices))}, existing_nodes=stack.node_names)
    names = tuple(f"{fleet.name}-{each}" for each in node_indices(larger, prior) if each not in indices)
    words = "a spare node" if len(names) == 1 else f"{len(names)} spare nodes"
    return names, f"{words} first, {fold(names)}: gone after the last wave, where no run is on it by then"


def make_spares(at: Maintenance) -> None:
    """Make the spare nodes of the plan, and see that they are in order. Where there is no room for them the
    rollout goes on without. Raises OrchError."""
    (fleet,), names, request = at.plan.fleets, at.plan.spares, at.request
    assert request is not None

    def do() -> str:
        size = max(each.fleet_size for each in at.plan.nodes) + len(names)
        try:
            at.when_free(
                fleet,
                lambda: operations.up(at.project, replace(request, count=size, only=names), at.listener),
            )
        except NoCapacity as error:
            at.tell(f"no spare node, {error.summary}: {MISSING}")
            return f"none: {error.summary}"
        present = _present(at, fleet)
        if not present:  # a fleet that takes what it gets has got none
            at.tell(f"no spare node, there is no room: {MISSING}")
            return "none: there is no room"
        for node in present:
            wait_ready(at, node, LIMIT_S["rollout"])
        if reasons := at.health(fleet, [node.name for node in present]):
            raise MaintenanceError(
                f"the spare nodes of the fleet {fleet} are not in order: no other node is touched",
                detail="\n".join(f"{name}: {reason}" for name, reason in reasons.items()),
                hint=f"`orch check {fleet}` says how to mend what fails; the same command goes on",
                code="ORCH403",
            )
        return f"made {fold(node.name for node in present)}"

    at.journal.step("", f"{MAKE} {fold(names)}", do)


def remove_spares(at: Maintenance) -> None:
    """Remove the spare nodes that no run is on; the others are nodes of the fleet as any."""
    (fleet,) = at.plan.fleets
    for node in _present(at, fleet):
        at.journal.step("", f"{REMOVE} {node.name}", lambda node=node: _remove(at, fleet, node))


def _remove(at: Maintenance, fleet: str, node: NodeState) -> str:
    put_mark(at, node, at.title)
    busy = [
        each
        for each in occupants(StackState(at.project, fleet), frozenset({node.name}), at.listener)
        if not each.ended
    ]
    if busy:
        unmark_of([node], at.connector, at.mark, deadline_s=NODE_S)
        at.tell(
            f"{node.name} stays: run {busy[0].run} is on it; `orch down {fleet} -i {node.index}` removes it"
        )
        return f"stays: run {busy[0].run} is on it"
    at.when_free(fleet, lambda: operations.remove_nodes(at.project, fleet, [node.index], at.listener))
    return f"removed {node.name}"


def _present(at: Maintenance, fleet: str) -> list[NodeState]:
    machines = at.project.machines(fleet_state(at.project, fleet))
    return [node for node in machines if node.name in at.plan.spares]
