"""Examines the nodes of fleets and keeps in the ledger what was found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal

from orch.runner.errors import LedgerUnusable
from orch.runner.health.examination import Depth
from orch.runner.health.gate import Examined, depth_of, examine_nodes
from orch.runner.ledger.history.node_health import Examination
from orch.runner.ledger.ledger import Ledger
from orch.runner.node.status import node_statuses
from orch.runner.node_api.connector import Connector
from orch.runner.node_api.status import NodeStatus
from orch.runner.node_api.verdict import Verdict
from orch.spec.state import FleetHealth, FleetState
from orch.stacks.project.project import Project, ledger_scope

Due = Callable[[NodeStatus], bool]
"""Whether a node of this status is to be examined now."""


@dataclass(frozen=True)
class Watched:
    """Result of examining the nodes of a fleet. `left_out`: nodes that could not be examined, by name,
    each with the reason."""

    fleet: FleetState
    examined: tuple[Examined, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the nodes whose health is a failure."""
        return tuple(each.node.name for each in self.examined if each.status == "failure")


def watch(
    project: Project,
    ledger: Ledger,
    connector: Connector,
    fleet: FleetState,
    *,
    names: Collection[str] | None = None,
    depth: Depth = "light",
    due: Due = lambda status: True,
    unkept: Callable[[LedgerUnusable], None] | None = None,
) -> Watched:
    """Examine nodes of a fleet at once, write to each what came of it, and keep it in the ledger.

    `names`: of these alone. A node that does not answer, or is still being prepared, is left out, and by a
    deep examination one that has a job. `unkept` is told where the ledger keeps nothing; raises
    LedgerUnusable without it.
    """
    nodes = [node for node in project.machines(fleet) if names is None or node.name in names]
    statuses = node_statuses(fleet.model_copy(update={"nodes": tuple(nodes)}), connector)
    present = {node.name: status for node, status in zip(nodes, statuses, strict=True)}
    left = {name: why for name, status in present.items() if (why := _left_out(status, depth)) is not None}
    chosen = [node for node in nodes if node.name not in left and due(present[node.name])]
    examined = examine_nodes(chosen, connector, depth, simulated=fleet.simulated)
    found = [
        # Where a deeper look's failure stands, so does its report.
        Examination(
            each.node.name,
            each.status,
            each.reason,
            each.report.to_json() if each.report.status == each.status else None,
        )
        for each in examined
        if each.report is not None and each.status is not None
    ]
    try:
        if found:
            ledger.record_health(project.name, ledger_scope(project), fleet.name, found)
    except LedgerUnusable as error:
        if unkept is None:
            raise
        unkept(error)
    return Watched(fleet, examined, tuple(left.items()))


def watch_due(project: Project, ledger: Ledger, connector: Connector, fleet: FleetState) -> Watched:
    """Examine the nodes of a fleet that were not for its `interval`, and at the depth of its gate those that
    have not passed that. Raises LedgerUnusable."""
    health = fleet.health
    if health is None or health.gate == "none":
        return Watched(fleet)
    due = is_due(health)
    if depth_of(health.gate) == "light":
        return watch(project, ledger, connector, fleet, due=due)
    deep = watch(
        project,
        ledger,
        connector,
        fleet,
        depth=depth_of(health.gate),
        due=lambda status: not status.has_passed(health.gate),
    )
    known = {each.node.name for each in deep.examined}
    names = [node.name for node in fleet.nodes if node.name not in known]
    light = watch(project, ledger, connector, fleet, names=names, due=due)
    return Watched(fleet, (*deep.examined, *light.examined), light.left_out)


def news(watched: Watched) -> Iterator[tuple[str, Literal["info", "warning"]]]:
    """Yield a message and its level for each node whose health has changed."""
    for each in watched.examined:
        if each.verdict is None or each.verdict.status == (each.verdict.former or "healthy"):
            continue
        name, status = each.node.name, each.verdict.status
        if status == "healthy":
            yield f"node {name}: healthy again", "info"
        else:
            kept = ", takes no new jobs" if status == "failure" else ""
            yield f"node {name}: {status}{kept}: {each.verdict.reason}", "warning"


def _left_out(status: NodeStatus, depth: Depth) -> str | None:
    if status.status == "provisioning":
        return "its preparation is under way"
    if status.status in ("unreachable", "terminated"):
        return status.reason or "it does not answer"
    if depth != "light" and status.claims:
        return "a job is on it, which a deep examination would disturb"
    return None


def is_due(health: FleetHealth, now: datetime | None = None) -> Due:
    """Return a filter for nodes to examine by `interval`: those not examined for so long in this boot."""
    moment = now or datetime.now(timezone.utc)

    def due(status: NodeStatus) -> bool:
        verdict = status.health
        return verdict is None or verdict.stale or age_s(verdict, moment) >= health.interval_s

    return due


def age_s(verdict: Verdict, now: datetime) -> float:
    """Return the time since a node was examined, in seconds; infinity if the node does not tell. Clocks may
    differ: a time in the future counts as long ago."""
    try:
        at = datetime.strptime(verdict.at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return float("inf")
    seconds = (now - at).total_seconds()
    return seconds if seconds >= -300 else float("inf")
