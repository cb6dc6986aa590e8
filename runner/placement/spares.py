"""Which nodes of a fleet are held back for those that fail: its spares. Pure.

A fleet of n nodes and s spares gives runs n - s of its nodes at once. Which ones the others are is no
property of a node: they are the last ones that are idle and take jobs. So a node that fails and is left by
its runs has a spare in its place at once, and the machine that comes for it is the next spare: no run moves
for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orch.runner.placement.availability import NodeAvailability
from orch.spec.state import FleetState, NodeState


def held_back(
    fleet: FleetState,
    availability: Mapping[str, NodeAvailability],
    suits: Callable[[NodeState], bool] = lambda node: True,
) -> frozenset[str]:
    """Names of the nodes that no run gets now: of those that are idle and take jobs the ones beyond what the
    fleet gives to runs.

    A node in use counts as given, also one that failed and that its run has not left: the spare in its place
    is that run's. First those are held back that do not suit a run (`suits`), are not ready yet, or where it
    failed before; then those with the highest index.
    """
    spares = fleet.spares
    if spares is None:
        return frozenset()
    in_use, ended = 0, 0
    idle: list[tuple[tuple[object, ...], str]] = []
    for node in fleet.nodes:
        now = availability.get(node.name)
        if now is None:
            idle.append(((not suits(node), False, 0, node.index), node.name))
        elif now.busy:
            in_use += 1
        elif now.takes_jobs:
            idle.append(((not suits(node), not now.ready, now.failed, node.index), node.name))
        elif now.silent and spares.least is not None and node.index >= spares.least:
            ended += 1  # it may have ended itself, which a spare does not make up for
    given = max(0, spares.of - spares.count - ended - in_use)
    held = min(spares.count, max(0, len(idle) - given))
    return frozenset(name for _, name in sorted(idle, reverse=True)[:held])


def held_message(fleet: FleetState, names: frozenset[str]) -> str | None:
    """What is told of nodes that are held back; None where there are none."""
    if not names:
        return None
    which = ", ".join(node.name for node in fleet.nodes if node.name in names)
    return f"{which} {'is a spare' if len(names) == 1 else 'are spares'}, held back for nodes that fail"
