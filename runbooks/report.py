"""A run of a runbook as Markdown, for an issue, a pull request or a folder of reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orch.runbooks.model import Runbook
from orch.runbooks.plan import RunPlan
from orch.spec.confidential import hidden
from orch.spec.errors import visible_lines

LAST_LINES = 20
MOST_CHARACTERS = 4000
READ_BYTES = 1 << 20


def report_of(runbook: Runbook, plan: RunPlan, run: dict[str, Any], logs: Path) -> str:
    """`run`: what `orch runbook status --json` tells of it; `logs`: the folder with the output of steps."""
    lines = [
        f"# {_plain(runbook.name)}: {_plain(run['status'])}",
        "",
        _plain(runbook.summary),
        "",
        f"- run {run['id']}, by {_plain(run['by'])}, from {_plain(run['from'])}",
        f"- {run['began_at']} to {run['ended_at'] or 'now'}, in {run['calls']} calls",
        f"- runbook `{_plain(runbook.file)}`, mark `{plan.digest}`",
        *(f"- {name}: {_code(value)}" for name, value in sorted(plan.known.items())),
        *([f"- result: {_plain(run['result'])}"] if run["result"] else []),
        "",
        "| step | where | status | took | |",
        "|---|---|---|---|---|",
    ]
    for each in run["steps"]:
        took = "" if each["seconds"] is None else f"{each['seconds']:g} s"
        cells = (each["name"], each["host"] or "", each["status"], took, each["message"] or "")
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    for each in run["steps"]:
        if output := _tail(logs / f"{each['name']}.log"):
            ticks = _fence(output)
            lines += ["", f"## {each['name']}", "", f"{ticks}text", output, ticks]
    return "\n".join([*lines, ""])


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - READ_BYTES))
            text = hidden(file.read().decode("utf-8", "replace"))  # before a cut leaves a part of a secret
    except OSError:
        return ""
    last = "\n".join(text.rstrip("\n").split("\n")[-LAST_LINES:])[-MOST_CHARACTERS:]
    return visible_lines(last)


def _fence(text: str) -> str:
    """Backticks that no line of the text begins with."""
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return ticks


def _plain(text: str) -> str:
    return visible_lines(hidden(" ".join(text.split()))).translate(str.maketrans({"<": "&lt;", "|": "\\|"}))


def _cell(text: str) -> str:
    return _plain(text)


def _code(text: str) -> str:
    return f"`{_plain(text).replace('`', chr(39))}`" if text else "empty"
