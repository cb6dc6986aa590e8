"""Looks at nodes before they are worked on: whether they answer, their cordons, the runs on them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

from orch.runner.ledger.changes import Changes
from orch.runner.node.status import node_status
from orch.runner.node_api.connector import Connector, fan_out
from orch.runner.node_api.status import NodeStatus
from orch.spec.state import NodeState, hourly_price
from orch.stacks.maintenance.plan import NodeLook, PlannedRun
from orch.stacks.project.project import Project
from orch.stacks.provisioning.busy_nodes import Occupant, occupants
from orch.stacks.pulumi.progress import Listener
from orch.stacks.record.fleets import fleet_of
from orch.stacks.record.node_records import NodeRecord, node_records
from orch.stacks.stack.state import StackState

LOOK_S = 15.0
"""How long a node may take to answer."""

RunKey = tuple[str, str, int | None]
"""What tells a run from others: its name, who submitted it, its id where this project has it."""

EARLIER = 20
"""So many earlier changes tell how long a step takes."""


def look_at(stack: StackState, names: Collection[str], connector: Connector) -> tuple[NodeLook, ...]:
    """Nodes of a fleet as they are now, in their order."""
    machines, fleet = machines_of(stack), fleet_of(stack)
    # In a rehearsal some have no machine, and so cannot answer.
    present = {node.name: node for node in stack.project.machines(fleet)}
    nodes = [present.get(node.name, node) for node in fleet.nodes if node.name in names]

    def ask(node: NodeState) -> NodeStatus:
        return node_status(node, connector, deadline_s=LOOK_S)

    looks: list[NodeLook] = []
    for result in fan_out(nodes, ask):
        node, status = result.node, result.value
        looks.append(
            NodeLook(
                fleet.name,
                fleet.backend,
                node.name,
                node.index,
                machines.get(node.name, ""),
                answers=status is not None and status.status != "unreachable",
                cordon=status.cordon if status is not None else None,
                price_hourly=hourly_price(fleet.backend, node.price_hourly),
                pod=node.is_pod,
                made_by=node.made_by,
                made_for=node.made_for,
                fleet_size=len(fleet.nodes),
            )
        )
    return tuple(looks)


def machines_of(stack: StackState) -> dict[str, str]:
    """Return the identity of each node of a stack, by name: its id and its creation time."""
    return {name: machine(record) for name, record in node_records(stack.recorded).items()}


def machine(record: NodeRecord) -> str:
    """Return the identity of a node, which tells it from another one under the same name."""
    made = record.created.isoformat() if record.created is not None else ""
    return f"{record.id or ''} {made}".strip()


def runs_on(project: Project, nodes: Mapping[str, Iterable[str]], listener: Listener) -> list[PlannedRun]:
    """The runs on nodes (fleet -> names), each once. Raises LedgerUnusable."""
    of_run: dict[RunKey, list[str]] = {}
    for fleet, names in nodes.items():
        for each in occupants(StackState(project, fleet), frozenset(names), listener):
            if not each.ended:
                of_run.setdefault(key_of(each), []).append(each.node)
    return [
        PlannedRun(name, by, tuple(dict.fromkeys(here)), number, stops=False)
        for (name, by, number), here in of_run.items()
    ]


def key_of(run: Occupant | PlannedRun) -> RunKey:
    """The key of a run that a node or the plan tells of."""
    return (run.name if isinstance(run, PlannedRun) else run.run, run.by, run.number)


def usual_s(changes: Changes, project: Project, verb: str, steps: Sequence[str]) -> float | None:
    """Return the median time of these steps together on a node, in seconds; None if none was done yet."""
    took: dict[tuple[int, str], float] = {}
    for change in changes.listed(project.name, verbs=(verb,), limit=EARLIER):
        for step in changes.steps(change.id):
            if step.name in steps and step.status == "done" and step.ended_at is not None:
                key = (change.id, step.host)
                took[key] = took.get(key, 0.0) + step.ended_at - step.began_at
    return median(took.values()) if took else None
