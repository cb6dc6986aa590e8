"""What a verification of a fleet makes of its nodes: those that fall short take no new jobs.

It looks deeper than examinations do: what it found stands until a verification of the same boot is fine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orch.runner.health.findings import Finding, HealthReport, Status, report
from orch.runner.health.gate import WRITE_S
from orch.runner.ledger.history.node_health import Examination
from orch.runner.ledger.records import RunRow
from orch.runner.node.verdict import Verdict, record
from orch.runner.runs.context import RunnerContext
from orch.runner.verify.judge import Report, Shortfall, judge
from orch.runner.verify.verification import (
    RUNS,
    Request,
    conditions_of,
    figures_of,
    results_of,
    terms_of,
)
from orch.spec.state import FleetState
from orch.stacks.project import Project, ledger_scope

DEPTH = "nccl"


def judged(
    project: Project, runner: RunnerContext, fleet: FleetState, request: Request, row: RunRow
) -> tuple[Report, Mapping[str, Verdict]]:
    """The report on a verification that ended, after the ledger has kept it; the verdicts on nodes that get
    no new job because of it, by name. Raises RunFailed without results, LedgerUnusable."""
    found = results_of(runner.context(row).folder, row)
    kept = runner.ledger.verifications(project.name, ledger_scope(project))
    terms = terms_of(request, fleet, row, {})
    conditions = conditions_of(found, terms)
    report = judge(found, replace(terms, former=kept.former(fleet.name, conditions)))
    kept.keep(fleet.name, row.id, conditions, figures_of(report))
    if request.min_busbw is not None:  # what somebody tries out says nothing of the nodes
        return report, {}
    verdicts = _keep_verdicts(project, runner, fleet, report, whole=request.runs == RUNS)
    return report, {name: each for name, each in verdicts.items() if each.status == "failure"}


def _keep_verdicts(
    project: Project, runner: RunnerContext, fleet: FleetState, verified: Report, *, whole: bool
) -> Mapping[str, Verdict]:
    """Write to the nodes what a verification makes of them, and keep it in the ledger; the verdicts on those
    that fall short. `whole`: all was measured, so that a node of which nothing is said is healthy. A node
    that does not answer keeps the verdict that it has."""
    gated = fleet.health is not None and fleet.health.gate == DEPTH
    found = {node.name: finding_of(node.name, verified.shortfalls, gated=gated) for node in fleet.nodes}
    told = {name: each for name, each in found.items() if whole or each.findings}
    verdicts: dict[str, tuple[Status, str]] = {
        name: (each.status, each.reason) for name, each in told.items()
    }
    nodes = [node for node in fleet.nodes if node.name in told]
    written = record(verdicts, nodes, runner.connector, DEPTH, deadline_s=WRITE_S)
    known = {each.node.name: each.value for each in written if each.value is not None}
    runner.ledger.record_health(
        project.name,
        ledger_scope(project),
        fleet.name,
        [Examination(name, each.status, each.reason, told[name].to_json()) for name, each in known.items()],
    )
    return {name: each for name, each in known.items() if told[name].findings}


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
