"""What a verification of a fleet makes of its nodes: those that fall short take no new jobs.

It looks deeper than examinations do: what it found stands until a verification of the same boot is fine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orch.runner.errors import RunFailed
from orch.runner.health.findings import Finding, HealthReport, Status, report
from orch.runner.health.gate import WRITE_S
from orch.runner.ledger.history.node_health import Examination
from orch.runner.ledger.records import RunRow
from orch.runner.node_api.verdict import Verdict, record
from orch.runner.runs.context import RunnerContext
from orch.runner.verify.judge import judge, unmeasured, with_health
from orch.runner.verify.report import Report, Shortfall
from orch.runner.verify.verification import (
    RUNS,
    Request,
    conditions_of,
    figures_of,
    results_of,
    terms_of,
    unreached,
)
from orch.spec.state import FleetState
from orch.stacks.health.watch import Watched, watch
from orch.stacks.project.project import Project, ledger_scope

DEPTH = "nccl"
UNHEALTHY = "ORCH448"


def unconnected(
    project: Project, runner: RunnerContext, fleet: FleetState
) -> tuple[Report, Mapping[str, Verdict]] | None:
    """The report on a fleet whose nodes do not all connect to each other, which no run can verify, and the
    verdicts as of `judged`; None where they do. Raises LedgerUnusable."""
    found = unreached(fleet, runner.connector)
    if not found:
        return None
    report = unmeasured(fleet.name, found)
    verdicts = _keep_verdicts(project, runner, fleet, report, whole=False)
    return _with_health(report, watch(project, runner.ledger, runner.connector, fleet), verdicts)


def judged(
    project: Project, runner: RunnerContext, fleet: FleetState, request: Request, row: RunRow
) -> tuple[Report, Mapping[str, Verdict]]:
    """The report on a verification that ended, after the ledger has kept it; the verdicts on nodes that get
    no new job because of it, by name. The nodes are examined besides, after what was measured has strained
    them. Raises RunFailed without results and without a node that explains that, LedgerUnusable."""
    try:
        found = results_of(runner.context(row).folder, row, request)
    except RunFailed as error:
        watched = watch(project, runner.ledger, runner.connector, fleet)
        if not unhealthy(watched)[0]:
            raise
        why = f"{error.summary}: {'; '.join((error.detail or '').splitlines())}"
        return _with_health(unmeasured(fleet.name, (), why), watched, {})
    kept = runner.ledger.verifications(project.name, ledger_scope(project))
    terms = terms_of(request, fleet, row, {})
    conditions = conditions_of(found, terms)
    report = judge(found, replace(terms, former=kept.former(fleet.name, conditions)))
    kept.keep(fleet.name, row.id, conditions, figures_of(report))
    verdicts: Mapping[str, Verdict] = {}
    if request.min_busbw is None:  # what somebody tries out says nothing of the nodes
        verdicts = _keep_verdicts(project, runner, fleet, report, whole=request.runs == RUNS)
    # After the verdicts of the verification, which say nothing of an Xid or a port and replace what stood.
    return _with_health(report, watch(project, runner.ledger, runner.connector, fleet), verdicts)


def _with_health(
    verified: Report, watched: Watched, verdicts: Mapping[str, Verdict]
) -> tuple[Report, Mapping[str, Verdict]]:
    """A report with what an examination of the nodes found, and the verdicts that keep jobs away after it."""
    found, notes = unhealthy(watched)
    known = {**verdicts}
    known.update({each.node.name: each.verdict for each in watched.examined if each.verdict is not None})
    kept_out = {name: each for name, each in known.items() if each.status == "failure"}
    return with_health(verified, found, notes), kept_out


def unhealthy(watched: Watched) -> tuple[tuple[Shortfall, ...], tuple[str, ...]]:
    """Return what an examination adds to a verification: failures fall short, everything else is a note."""
    found: list[Shortfall] = []
    notes: list[str] = []
    for each in watched.examined:
        name = each.node.name
        if each.report is None:
            why = each.error.summary if each.error is not None else "it tells nothing"
            notes.append(f"{name} was not examined: {why}")
            continue
        for finding in each.report.findings:
            text = f"{name}: {finding}"
            if finding.severity == "failure":
                found.append(Shortfall(UNHEALTHY, text, (name,), "health"))
            else:
                notes.append(f"warning of {text}")
    notes += [f"{name} was not examined: {why}" for name, why in watched.left_out]
    return tuple(found), tuple(notes)


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
    """Return the health report of a node that falls short: a failure for a card, a node, a wrong result, a
    fall-back from the fleet's interconnect. A slow link may be either end's, and a figure of all nodes any
    one's: a warning, unless that figure is the fleet's gate (`gated`)."""
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
