"""What a verification of a fleet makes of its nodes: those that fall short take no new jobs.

It looks deeper than examinations do: what it found stands until a verification of the same boot is fine.
"""

from __future__ import annotations

from collections.abc import Sequence

from orch.runner.health.findings import Finding, HealthReport, Status, report
from orch.runner.health.gate import WRITE_S
from orch.runner.ledger.history.node_health import Examination
from orch.runner.ledger.ledger import Ledger
from orch.runner.node.connector import Connector
from orch.runner.node.verdict import Verdict, record
from orch.runner.verify.judge import Report, Shortfall
from orch.spec.state import FleetState
from orch.stacks.project import Project, ledger_scope

DEPTH = "nccl"


def keep_verdicts(
    project: Project,
    ledger: Ledger,
    connector: Connector,
    fleet: FleetState,
    verified: Report,
    *,
    whole: bool,
) -> tuple[tuple[str, Verdict], ...]:
    """Write to the nodes that were verified what that came to, and keep it in the ledger.

    `whole`: all that there is was measured, so that a node of which nothing is said is healthy. Gives the
    names of nodes that fall short, each with its verdict. A node that does not answer keeps the one it has.
    """
    gated = fleet.health is not None and fleet.health.gate == DEPTH
    found = {node.name: finding_of(node.name, verified.shortfalls, gated=gated) for node in fleet.nodes}
    told = {name: each for name, each in found.items() if whole or each.findings}
    verdicts: dict[str, tuple[Status, str]] = {
        name: (each.status, each.reason) for name, each in told.items()
    }
    nodes = [node for node in fleet.nodes if node.name in told]
    written = record(verdicts, nodes, connector, DEPTH, deadline_s=WRITE_S)
    known = [(each.node.name, each.value) for each in written if each.value is not None]
    ledger.record_health(
        project.name,
        ledger_scope(project),
        fleet.name,
        [Examination(name, each.status, each.reason, told[name].to_json()) for name, each in known],
    )
    return tuple((name, each) for name, each in known if told[name].findings)


def finding_of(node: str, shortfalls: Sequence[Shortfall], *, gated: bool) -> HealthReport:
    """What falls short of a node: a failure for a card, a node, a wrong result, a fall-back from the fleet's
    interconnect. A slow link may be either end's, and a figure of all nodes any one's: a warning, unless that
    figure is the fleet's gate (`gated`)."""
    return report(
        Finding(
            f"verify {each.kind}",
            "warning" if each.kind == "link" or (each.kind == "figure" and not gated) else "failure",
            "node" if each.kind != "link" else "a link",
            each.text,
            "replace" if each.kind in ("card", "node") else "none",
        )
        for each in shortfalls
        if node in each.nodes
    )
