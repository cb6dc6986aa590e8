"""The report of a maintenance: its plan, and how each step ended, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from orch.review.escape import escape, fenced
from orch.runner.ledger.changes import Change, Step
from orch.spec.grammar.values import render_duration
from orch.stacks.maintenance.plan import MaintenancePlan


def report(plan: MaintenancePlan, change: Change, steps: Sequence[Step], evidence: Sequence[str]) -> str:
    """Return what was planned, and how each step ended, as Markdown for a pull request or an issue.

    `evidence`: files that were collected.
    """
    lines = [
        f"# `orch {plan.title}` of {escape(plan.subject)}",
        "",
        f"Change {change.id} of {escape(change.project)}, by {escape(change.by)}, "
        f"begun {_time(change.began_at)}: **{change.shown_status}**"
        + (f", {escape(change.result)}" if change.result else ""),
        "",
        "## Plan",
        "",
        *fenced(plan.lines(), "text"),
        "",
        "## Steps",
        "",
        "| node | step | status | began | took | told |",
        "|---|---|---|---|---|---|",
    ]
    for each in sorted(steps, key=lambda step: step.began_at):
        took = "" if each.ended_at is None else render_duration(max(0, round(each.ended_at - each.began_at)))
        cells = (each.host or "all", each.name, each.status, _time(each.began_at), took, each.message or "")
        lines.append(f"| {' | '.join(escape(cell) for cell in cells)} |")
    stopped = [each for each in steps if each.name.startswith("stop run ") and each.status == "done"]
    lines += ["", "## Runs stopped", ""]
    lines += [f"- {escape(each.name.removeprefix('stop '))}" for each in stopped] or ["None."]
    if evidence:
        lines += ["", "## Evidence", "", *(f"- {escape(each)}" for each in evidence)]
    return "\n".join(lines) + "\n"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
