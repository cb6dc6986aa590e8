"""`orch log`: who changed what in this project, from where, by which plan, with which result."""

from __future__ import annotations

import io
import json
import sys
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli.context import MOST, project_at
from orch.cli.errors import UsageError, coloured, print_json, say
from orch.cli.options import Json, Rehearse

if TYPE_CHECKING:
    from orch.runner.ledger.changes import Change, Changes, Step

SCHEMA = 1
SHOWN = 50
"""How many changes are shown where nobody asks for more."""


def log(
    number: Annotated[
        int | None,
        typer.Argument(
            metavar="[ID]", min=1, max=MOST, help="A change, with its plan and its steps.", show_default=False
        ),
    ] = None,
    *,
    verb: Annotated[
        list[str] | None,
        typer.Option("--verb", metavar="VERB", help="Only of this verb, as `up` or `node`; repeatable."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="A day, a time (RFC 3339) or an age: 30d. In UTC."),
    ] = None,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Only what is under way or was interrupted.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help=f"All, not the latest {SHOWN}; also what changed nothing.")
    ] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Give up the interrupted change ID: it is not gone on with.")
    ] = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Who changed what in this project, from where, by which plan and with which result; the audit log."""
    from orch.cli.targets.moments import moment_in_words
    from orch.runner.ledger.ledger import open_ledger

    for option, is_given in (("--verb", verb), ("--since", since), ("--unfinished", unfinished)):
        if number is not None and is_given:
            raise typer.BadParameter("it is for a list of changes, not for one", param_hint=option)
    if abandon and number is None:
        raise UsageError(
            "no change is named", hint="`orch log --unfinished` lists them: `orch log ID --abandon`"
        )
    project = project_at(rehearse=rehearse)
    path = project.local_ledger
    if path is not None and not path.exists() and number is None:
        _list((), 0, as_json=as_json)  # nothing was ever changed, and a look makes no ledger
        return
    with closing(open_ledger(project.ledger_url)) as ledger:
        changes = ledger.changes
        if number is not None:
            _one(changes, number, project.name, abandon=abandon, as_json=as_json)
            return
        moment = None if since is None else moment_in_words(since, ledger.now(), "--since")
        found = changes.listed(project.name, verbs=verb or (), since=moment, unfinished=unfinished)
    if not everything:
        from orch.stacks.record.change_log import NO_CHANGES

        found = tuple(each for each in found if each.result != NO_CHANGES)
    shown = found if everything else found[:SHOWN]
    _list(shown, len(found) - len(shown), as_json=as_json)


def _one(changes: Changes, number: int, project: str, *, abandon: bool, as_json: bool) -> None:
    change = changes.get(number)
    if change is None or change.project != project:
        raise UsageError(f"no change {number} is in the log of {project}", hint="`orch log` lists them")
    if abandon:
        if change.status != "running":
            raise UsageError(f"change {number} is {change.status}: there is nothing to give up")
        change = changes.abandon(number)
    steps = changes.steps(number)
    if as_json:
        print_json({"schema": SCHEMA, "change": _as_json(change, steps)})
        return
    for line in change_lines(change, steps):
        say(line)


def change_lines(change: Change, steps: tuple[Step, ...]) -> list[str]:
    """A change for people: who, from where, how it ended, what its plan was, and its steps."""
    from orch.spec.errors import visible

    ended = "" if change.ended_at is None else f" to {_stamp(change.ended_at)}"
    rows = [
        ("command", change.command or f"orch {change.verb}"),
        ("by", change.by + (f", in {change.calls} calls" if change.calls > 1 else "")),
        ("from", change.origin),
        ("when", f"{_stamp(change.began_at)}{ended}"),
        ("status", change.shown_status + _code(change)),
        ("result", change.result or ""),
        ("holds", ", ".join(change.holds) if change.status == "running" else ""),
    ]
    lines = [f"change {change.id}: {change.verb} of {visible(change.subject)}"]
    lines += [f"  {name:<8} {visible(text)}" for name, text in rows if text]
    if plan := json.loads(change.plan):
        lines.append("  plan")
        lines += [f"    {visible(line)}" for line in _plan_lines(plan)]
    if steps:
        lines.append("  steps")
        widest = max(len(each.host) for each in steps)
        for each in steps:
            words = f": {each.message}" if each.message else ""
            took = "" if each.ended_at is None else f" ({each.ended_at - each.began_at:.0f} s)"
            lines.append(visible(f"    {each.host:<{widest}}  {each.name}  {each.status}{took}{words}"))
    return lines


def _plan_lines(plan: dict[str, Any]) -> list[str]:
    """A plan in lines; texts of many lines, as a runbook's own, are told by their number of lines."""
    lines: list[str] = []
    for row in plan.get("changes", ()):
        lines.append(" ".join(str(row[key]) for key in ("op", "type", "name") if row.get(key)))
    others = {key: value for key, value in plan.items() if key != "changes"}
    return lines + [f"{key}: {_in_words(value)}" for key, value in others.items()]


def _in_words(value: object) -> str:
    if isinstance(value, str):
        return value if "\n" not in value.strip() else f"{len(value.splitlines())} lines"
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _list(changes: tuple[Change, ...], left_out: int, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"schema": SCHEMA, "changes": [_as_json(each, None) for each in changes], "left_out": left_out}
        )
        return
    if not changes:
        say("no change is in the log")
        return
    say(change_table(changes, colour=coloured(sys.stdout)))
    if left_out:
        say(f"… and {left_out} earlier: `orch log --all`")


def change_table(changes: tuple[Change, ...], *, colour: bool) -> str:
    """Changes, a line each."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from orch.spec.errors import visible

    table = Table(box=None, pad_edge=False, header_style="bold" if colour else "")
    for heading in ("ID", "WHEN", "BY", "CHANGE", "STATUS", "RESULT"):
        table.add_column(heading, no_wrap=heading in ("ID", "WHEN", "STATUS"))
    for each in changes:
        what = f"{each.verb} of {each.subject}"
        cells = (str(each.id), _stamp(each.began_at), each.by, what, each.shown_status, each.result or "-")
        table.add_row(*(Text(visible(cell)) for cell in cells))
    written = io.StringIO()
    Console(file=written, force_terminal=colour, width=None if colour else 200).print(table)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def _code(change: Change) -> str:
    return f", exit code {change.exit_code}" if change.exit_code else ""


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _as_json(change: Change, steps: tuple[Step, ...] | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": change.id,
        "verb": change.verb,
        "subject": change.subject,
        "command": change.command,
        "by": change.by,
        "from": change.origin,
        "status": change.shown_status,
        "result": change.result,
        "exit_code": change.exit_code,
        "began_at": _stamp(change.began_at),
        "ended_at": None if change.ended_at is None else _stamp(change.ended_at),
        "calls": change.calls,
        "holds": list(change.holds) if change.status == "running" else [],
    }
    if steps is None:
        return found
    return {
        **found,
        "plan": json.loads(change.plan),
        "steps": [
            {
                "host": each.host,
                "name": each.name,
                "status": each.status,
                "message": each.message,
                "began_at": _stamp(each.began_at),
                "ended_at": None if each.ended_at is None else _stamp(each.ended_at),
            }
            for each in steps
        ],
    }
