"""What `orch runbook` shows and how it asks: plans, live steps, questions, approvals; a run as Markdown."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from orch.cli.errors import tell
from orch.review.escape import escape, fenced
from orch.spec.confidential import hidden
from orch.spec.errors import visible, visible_lines

if TYPE_CHECKING:
    from orch.runbooks.engine import Consent
    from orch.runbooks.model import Runbook
    from orch.runbooks.parameters import Parameter
    from orch.runbooks.plan import Gate, PlannedStep, RunPlan
    from orch.runner.ledger.changes import Change
    from orch.runner.ledger.changes import Step as Written
    from orch.stacks.project.project import Project

Approver = Callable[["Gate"], "Consent | None"]


class Screen:
    """Shows steps as they go. `stream`: where that goes; `terminal`: whether somebody can be asked."""

    def __init__(self, steps: int, stream: TextIO, *, terminal: bool, approver: Approver | None) -> None:
        self._steps = steps
        self._stream = stream
        self._terminal = terminal
        self._approver = approver

    def begins(self, at: int, step: PlannedStep, *, again: bool) -> None:
        from orch.runbooks.engine import shown

        where = f" on {step.host}" if step.host else ""
        words = f"[{at}/{self._steps}] {step.step.name}{where}{' (begun before)' if again else ''}"
        self._line(words)
        if step.do is not None and step.needed:
            for line in shown(step).split("\n"):
                self._line(f"  $ {line}")

    def shows(self, output: bytes) -> None:
        from orch.spec.confidential import hidden

        if not output:
            return
        text = output.decode("utf-8", "replace").replace("\r\n", "\n")
        self._stream.write(
            "".join(f"{visible_lines(hidden(each))}" for each in text.splitlines(keepends=True))
        )
        self._stream.flush()

    def tells(self, text: str) -> None:
        self._line(f"  {text}")

    def answer(self, question: Parameter) -> str | None:
        from orch.spec.grammar.values import Problem

        if not self._terminal:
            return question.default
        while True:
            default = "" if question.default is None else f" [{question.default}]"
            tell(f"  {question.description} ({question.expected}){default}")
            text = input("  > ").strip() or question.default or ""
            try:
                return question.value(text)
            except Problem as problem:
                tell(f"  {problem.summary}{f'; {problem.hint}' if problem.hint else ''}")

    def approval(self, gate: Gate) -> Consent | None:
        if self._approver is not None and (consent := self._approver(gate)) is not None:
            return consent
        if not self._terminal:
            return None
        from orch.runbooks.engine import Consent, Refused
        from orch.runner.processes import here

        tell(f"  {gate.text}\n  Go on? [yes/no]")
        word = input("  > ").strip().lower()
        if word == "yes":
            return Consent(here())
        raise Refused(
            f"{gate.name} was not approved",
            hint="the run stays where it is; `orch runbook status` shows how to go on",
            code="ORCH418",
        )

    def _line(self, text: str) -> None:
        self._stream.write(f"{visible(text)}\n")
        self._stream.flush()


def plan_lines(
    runbook: Runbook, steps: tuple[PlannedStep, ...], plans: Mapping[str, dict[str, Any]]
) -> list[str]:
    """A plan for people. `plans`: what verbs say of their own, by the names of steps."""
    lines = [f"runbook {runbook.name}: {runbook.summary}"]
    total = 0
    for at, each in enumerate(steps, 1):
        lines += step_lines(at, each)
        if (own := plans.get(each.step.name)) is not None:
            code = f" (exit code {own['exit_code']})" if own["exit_code"] else ""
            lines.append(f"   its own plan, by `{' '.join(own['words'])}`{code}:")
            lines += [f"     {line}" for line in own["output"].rstrip().split("\n")]
        total += each.step.takes_s if each.needed is not False else 0
    if total:
        from orch.spec.grammar.values import render_duration

        lines.append(f"expected to take {render_duration(total)}, by what its author says")
    return lines


def step_lines(at: int, each: PlannedStep) -> list[str]:
    from orch.runbooks.engine import shown
    from orch.spec.grammar.values import render_duration

    step = each.step
    notes = [f"on {each.host}"] if each.host else []
    notes += [f"takes {render_duration(step.takes_s)}"] if step.takes_s else []
    if each.needed is False:
        notes.append(f"left out: only where {step.when}")
    elif each.needed is None:
        notes.append(f"only where {step.when}")
    head = f"{at}. {step.name} ({step.kind}{''.join(f', {note}' for note in notes)})"
    body: list[str] = []
    if step.question is not None:
        body.append(f"? {step.question.description} ({step.question.expected})")
    elif step.kind == "approval":
        body.append(f"! {step.text}")
    else:
        body += [f"$ {line}" for line in shown(each).split("\n")]
    for name, action in (("check", each.check), ("undo", each.undo)):
        if action is not None:
            text = " ".join(("orch", *action.words)) if action.words is not None else action.script.strip()
            first, *more = text.split("\n")
            body += [f"{name}: {first}", *(f"{' ' * len(name)}  {line}" for line in more)]
    return [head, *(f"   {line}" for line in body)]


def status_json(change: Change, steps: tuple[Written, ...], runbook: Runbook | None) -> dict[str, Any]:
    """A run for programs: each step of the text, with what the journal says of it."""
    written = {each.name: each for each in steps}
    names = [each.name for each in runbook.steps] if runbook is not None else list(written)
    kinds = {each.name: each.kind for each in runbook.steps} if runbook is not None else {}
    rows: list[dict[str, Any]] = []
    for name in names:
        row = written.get(name)
        status = "not begun" if row is None else _status(row.status, kinds.get(name), held=change.held)
        ended = None if row is None else row.ended_at
        rows.append(
            {
                "name": name,
                "kind": kinds.get(name),
                "host": row.host or None if row is not None else None,
                "status": status,
                "message": None if row is None or row.status == "running" else row.message,
                "began_at": None if row is None else stamp(row.began_at),
                "ended_at": None if ended is None else stamp(ended),
                "seconds": None if row is None or ended is None else round(ended - row.began_at, 1),
            }
        )
    waits = any(each["status"] == "waits" for each in rows)
    return {
        "id": change.id,
        "runbook": change.subject.partition(" ")[0],
        "subject": change.subject,
        "status": "waits"
        if waits and change.status == "running" and not change.held
        else change.shown_status,
        "result": change.result,
        "by": change.by,
        "from": change.origin,
        "calls": change.calls,
        "began_at": stamp(change.began_at),
        "ended_at": None if change.ended_at is None else stamp(change.ended_at),
        "steps": rows,
    }


def _status(status: str, kind: str | None, *, held: bool) -> str:
    """A step that runs, of a run nobody is at work on, was interrupted or waits for somebody."""
    if status != "running" or held:
        return status
    return "waits" if kind in ("question", "approval") else "interrupted"


def status_lines(run: dict[str, Any]) -> list[str]:
    lines = [f"run {run['id']}: {run['subject']}", f"  status  {run['status']}"]
    lines += [f"  result  {run['result']}"] if run["result"] else []
    lines += [f"  by      {run['by']}", f"  from    {run['from']}", f"  began   {run['began_at']}"]
    lines += [f"  ended   {run['ended_at']}"] if run["ended_at"] else []
    for at, each in enumerate(run["steps"], 1):
        took = "" if each["seconds"] is None else f" ({each['seconds']:g} s)"
        where = f" on {each['host']}" if each["host"] else ""
        message = f": {each['message']}" if each["message"] else ""
        lines.append(f"  {at:>2}. {each['name']}{where}  {each['status']}{took}{message}")
    if run["status"] in ("interrupted", "waits"):
        lines.append(f"  {_way_on(run)} goes on; `orch log {run['id']} --abandon` gives it up")
    return [visible(each) for each in lines]


def _way_on(run: dict[str, Any]) -> str:
    waiting = next((each for each in run["steps"] if each["status"] == "waits"), None)
    if waiting is None:
        return f"`orch runbook resume {run['id']}`"
    more = "--approve" if waiting["kind"] == "approval" else f"{waiting['name']}=VALUE"
    return f"`orch runbook resume {run['id']} {more}`"


def stamp(seconds: float) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def terminal() -> bool:
    """Return True if there is a person who can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


LAST_LINES = 20
MOST_CHARACTERS = 4000
READ_BYTES = 1 << 20


def report_of(runbook: Runbook, plan: RunPlan, run: dict[str, Any], logs: Path) -> str:
    """Return a run as Markdown, for an issue, a pull request or a folder of reports.

    `run`: what `orch runbook status --json` tells of it; `logs`: the folder with the output of steps."""
    lines = [
        f"# {_plain(runbook.name)}: {_plain(run['status'])}",
        "",
        _plain(runbook.summary),
        "",
        f"- run {run['id']}, by {_plain(run['by'])}, from {_plain(run['from'])}",
        f"- {run['began_at']} to {run['ended_at'] or 'now'}, in {run['calls']} calls",
        f"- runbook {_plain(runbook.file)}",
        *(f"- {name}: {_plain(value) or 'empty'}" for name, value in sorted(plan.known.items())),
        *([f"- result: {_plain(run['result'])}"] if run["result"] else []),
        "",
        "| step | where | status | took | |",
        "|---|---|---|---|---|",
    ]
    for each in run["steps"]:
        took = "" if each["seconds"] is None else f"{each['seconds']:g} s"
        cells = (each["name"], each["host"] or "", each["status"], took, each["message"] or "")
        lines.append(f"| {' | '.join(map(_plain, cells))} |")
    for each in run["steps"]:
        if output := _tail(logs / f"{each['name']}.log"):
            lines += ["", f"## {_plain(each['name'])}", "", *fenced(output.split("\n"), "text")]
    return "\n".join([*lines, ""])


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - READ_BYTES))
            text = hidden(file.read().decode("utf-8", "replace"))  # before a cut leaves a part of a secret
    except OSError:
        return ""
    return "\n".join(text.rstrip("\n").split("\n")[-LAST_LINES:])[-MOST_CHARACTERS:]


def _plain(text: str) -> str:
    """Return text of users, answers and nodes on one line of Markdown."""
    return escape(hidden(" ".join(text.split())))


def approver_of(project: Project, approved_by: int | None, *, approve: bool) -> Approver | None:
    """Return who approves gates; None when only the terminal does. Raises NoPipeline, NoLibrary.

    `approve` lets a run pass the gate at which it stopped before, and no other.
    """
    if approved_by is not None:
        return _by_pull(project, approved_by)
    return _by_caller() if approve else None


def _by_caller() -> Approver:
    from orch.runbooks.engine import Consent
    from orch.runner.processes import here

    left = [here()]

    def approval(gate: Gate) -> Consent | None:
        if not gate.asked:
            tell(f"note: --approve is for the gate at which the run stopped; {gate.name} is another one now")
        return Consent(left.pop()) if gate.asked and left else None

    return approval


def _by_pull(project: Project, number: int) -> Approver:
    from orch.ci.pipeline import approved_in_pull, pipeline
    from orch.runbooks.engine import Consent

    where = pipeline(os.environ)
    forge = where.forge()

    def approval(gate: Gate) -> Consent:
        found = approved_in_pull(where, forge, number, gate.mark, frozenset(_used(project)))
        return Consent(found.by, found.proof)

    return approval


def _used(project: Project) -> Iterator[str]:
    """Yield the approvals that runs of the project have spent."""
    from orch.runbooks.plan import RUN, RunPlan
    from orch.runner.ledger.ledger import open_ledger

    with closing(open_ledger(project.ledger_url)) as ledger:
        for change in ledger.changes.listed(project.name, verbs=(RUN,)):
            try:
                yield from RunPlan.of(change.plan).used
            except (KeyError, ValueError):  # of a version that kept something else
                continue
