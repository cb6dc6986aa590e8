"""Examines nodes, and writes to each what that came to: before their first job, and again after each boot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from orch.runner.errors import CommandTimeout, HostUnreachable
from orch.runner.events import Notice, Processor
from orch.runner.health.examination import Depth, examine
from orch.runner.health.findings import Finding, HealthReport, Status, report
from orch.runner.node_api.connector import Connector
from orch.runner.node_api.status import NodeStatus
from orch.runner.node_api.verdict import Verdict, record
from orch.spec.errors import OrchError
from orch.spec.grammar.hosts import fold
from orch.spec.state import FleetState, NodeState

WRITE_S = 15.0
REACH_S = 10.0


@dataclass(frozen=True)
class Examined:
    """What the examination of a node came to: its report, and its verdict as it stands on the node. `error`:
    why there is none; a node that does not answer keeps the verdict that it has."""

    node: NodeState
    report: HealthReport | None = None
    verdict: Verdict | None = None
    error: OrchError | None = None

    @property
    def status(self) -> Status | None:
        """How the node is, also by what a deeper look found before; None where that is not known."""
        return (
            self.verdict.status if self.verdict is not None else self.report.status if self.report else None
        )

    @property
    def reason(self) -> str:
        """Why; "" for a healthy node."""
        return self.verdict.reason if self.verdict is not None else self.report.reason if self.report else ""


def depth_of(gate: str) -> Depth:
    """How deep a gate looks at a single node."""
    return "light" if gate in ("none", "light") else "dcgm"


def examine_nodes(
    nodes: Sequence[NodeState], connector: Connector, depth: Depth, *, simulated: bool
) -> tuple[Examined, ...]:
    """Examine nodes at once and write to each what came of it; in their order.

    One whose examination does not end in time is a failure, for tools that hang are the first sign of one.
    """
    found: dict[str, Examined] = {}
    for result in examine(nodes, connector, depth, simulated=simulated, deadline_s=REACH_S):
        told, error = result.value, result.error
        if isinstance(error, CommandTimeout):
            hangs = Finding("examination", "failure", "node", "its examination does not end", "reboot")
            told, error = report([hangs]), None
        found[result.node.name] = Examined(result.node, told, None, error)
    reports = {name: each.report for name, each in found.items() if each.report is not None}
    verdicts: dict[str, tuple[Status, str]] = {
        name: (each.status, each.reason) for name, each in reports.items()
    }
    asked = [node for node in nodes if node.name in verdicts]
    for written in record(verdicts, asked, connector, depth, deadline_s=WRITE_S):
        each = found[written.node.name]
        found[written.node.name] = replace(each, verdict=written.value, error=written.error)
    return tuple(found[node.name] for node in nodes)


def through_gate(
    fleet: FleetState,
    statuses: Sequence[NodeStatus],
    connector: Connector,
    processor: Processor,
    *,
    suspects: Collection[str] = (),
) -> tuple[NodeStatus, ...]:
    """The statuses of a fleet's nodes, in order, after those that had not passed its gate were examined.

    `suspects`: names of nodes that are examined again, whatever they passed. A deep examination waits until
    no job is on the node. One that cannot be examined is told of, and stays as it is.
    """
    health = fleet.health
    if health is None or health.gate == "none":
        return tuple(statuses)
    depth = depth_of(health.gate)
    present = {node.name: status for node, status in zip(fleet.nodes, statuses, strict=True)}
    due = [node for node in fleet.nodes if _is_due(present[node.name], health.gate, node.name in suspects)]
    if not due:
        return tuple(statuses)
    names = fold([node.name for node in due])
    if depth != "light":
        processor.handle(Notice(f"examining {names} of fleet {fleet.name} before its first job: minutes"))
    for each in examine_nodes(due, connector, depth, simulated=fleet.simulated):
        if each.verdict is not None:
            present[each.node.name] = replace(present[each.node.name], health=each.verdict)
        elif each.error is not None and not isinstance(each.error, HostUnreachable):
            words = f"node {each.node.name} could not be examined: {each.error.summary}"
            processor.handle(Notice(words, "warning"))
    return tuple(present[node.name] for node in fleet.nodes)


def _is_due(status: NodeStatus, gate: str, suspect: bool) -> bool:
    if status.status not in ("idle", "busy", "cordoned"):
        return False
    if suspect:
        return True
    return not status.has_passed(gate) and (depth_of(gate) == "light" or not status.claims)
