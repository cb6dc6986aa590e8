"""The report of a maintenance as Markdown, for a pull request or an issue. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone

from orch.runner.ledger.changes import Change, Step
from orch.spec.grammar.values import render_duration
from orch.stacks.maintenance.plan import MaintenancePlan


def report(plan: MaintenancePlan, change: Change, steps: Sequence[Step], evidence: Sequence[str]) -> str:
    """What was planned, and what each step came to. `evidence`: files that were collected."""
    lines = [
        f"# `orch {plan.title}` of {_cell(plan.subject)}",
        "",
        f"Change {change.id} of {_cell(change.project)}, by {_cell(change.by)}, "
        f"begun {_time(change.began_at)}: **{change.shown_status}**"
        + (f", {_cell(change.result)}" if change.result else ""),
        "",
        "## Plan",
        "",
        "```text",
        *(line.replace("```", "'''") for line in plan.lines()),
        "```",
        "",
        "## Steps",
        "",
        "| node | step | status | began | took | told |",
        "|---|---|---|---|---|---|",
    ]
    for each in sorted(steps, key=lambda step: step.began_at):
        took = "" if each.ended_at is None else render_duration(max(0, round(each.ended_at - each.began_at)))
        cells = (each.host or "all", each.name, each.status, _time(each.began_at), took, each.message or "")
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    stopped = [each for each in steps if each.name.startswith("stop run ") and each.status == "done"]
    lines += ["", "## Runs stopped", ""]
    lines += [f"- {_cell(each.name.removeprefix('stop '))}" for each in stopped] or ["None."]
    if evidence:
        lines += ["", "## Evidence", "", *(f"- `{each.replace('`', '')}`" for each in evidence)]
    return "\n".join(lines) + "\n"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _cell(text: str) -> str:
    """Text of nodes and users in a cell of a table: one line, nothing of it is Markdown or HTML."""
    plain = " ".join(text.split())
    return re.sub(r"([\\|`*_<>\[\]#!@])", r"\\\1", plain)
