"""Runs of runbooks: what their steps would do, what they go by, and how they are carried out and reported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.cli.errors import UsageError, print_json, say, tell, terminated_as_interrupted
from orch.cli.options import REHEARSE
from orch.spec.errors import OrchError

if TYPE_CHECKING:
    from orch.cli.runbooks.screen import Approver
    from orch.runbooks.engine import Run
    from orch.runbooks.model import Runbook
    from orch.runbooks.plan import PlannedStep, RunPlan
    from orch.runner.ledger.changes import Change
    from orch.runner.ledger.changes import Step as Written
    from orch.spec.document.text import Source
    from orch.stacks.project.project import Project
    from orch.stacks.record.change_log import Journal

SCHEMA = 1


def parsed(source: Source) -> Runbook:
    from orch.cli.runbooks.verb_words import wrong_words
    from orch.runbooks.parse import parse

    return parse(source, wrong_words)


def source_of_plan(kept: RunPlan) -> Source:
    from orch.spec.document.text import Source

    return Source.of(kept.file, kept.text)


def runbook_of(change: Change) -> Runbook | None:
    """The runbook of a run; None where this version does not read it."""
    from orch.runbooks.parse import parse
    from orch.runbooks.plan import RunPlan

    try:
        return parse(source_of_plan(RunPlan.of(change.plan)))
    except (OrchError, KeyError, ValueError):
        return None


def run_plan(runbook: Runbook, words: list[str] | None) -> RunPlan:
    """Return the plan of a run: parameters with their defaults, and answers that were given with them."""
    from orch.runbooks.parameters import bound, values_of
    from orch.runbooks.plan import RunPlan

    questions = runbook.questions
    answers = [each for each in words or () if each.partition("=")[0] in questions]
    values = bound(runbook.parameters, tuple(each for each in words or () if each not in answers))
    return RunPlan(runbook.file, runbook.text, values, values_of(questions, tuple(answers)))


def change_of(project: Project, number: int) -> tuple[Change, tuple[Written, ...]]:
    """A run by its number. Raises UsageError."""
    from orch.runbooks.plan import RUN
    from orch.runner.ledger.ledger import open_ledger

    path = project.local_ledger
    found = None
    if path is None or path.exists():
        with closing(open_ledger(project.ledger_url)) as ledger:
            found = ledger.changes.get(number)
            steps = ledger.changes.steps(number)
            if found is not None and found.project == project.name and found.verb == RUN:
                return found, steps
    what = f"change {number} is no run of a runbook" if found is not None else f"there is no run {number}"
    raise UsageError(what, hint="`orch runbook status` lists them")


def plans_of_verbs(project: Project, steps: tuple[PlannedStep, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the plans of the verbs of steps: by the step's name, their words, exit code and output."""
    import subprocess

    from orch.cli.runbooks.verb_words import plan_words, rehearsed
    from orch.runbooks.process import orch_words

    for each in steps:
        if each.do is None or each.do.words is None or each.do.missing or each.needed is False:
            continue
        if (words := plan_words(each.do.words)) is None:
            continue
        words = rehearsed(words) if project.rehearsal else words
        done = subprocess.run(
            orch_words(words),
            cwd=project.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output = done.stdout.decode("utf-8", "replace")
        yield each.step.name, {"words": ["orch", *words], "exit_code": done.returncode, "output": output}


def in_project(project: Project, steps: tuple[PlannedStep, ...]) -> tuple[PlannedStep, ...]:
    """The steps as they are done in the project."""
    from orch.cli.runbooks.verb_words import rehearsed
    from orch.runbooks.plan import in_words

    return tuple(in_words(each, rehearsed) for each in steps) if project.rehearsal else steps


def shell_environment(project: Project) -> dict[str, str]:
    """Return additional variables for shells of steps on this machine."""
    return {REHEARSE: "1"} if project.rehearsal else {}


def run_of(
    project: Project,
    journal: Journal,
    answers: Mapping[str, str],
    approver: Approver | None,
    *,
    as_json: bool,
) -> Run:
    """The run of a journal, by the text and the values that it was begun with, whatever the file is now."""
    from orch.cli.runbooks.screen import Screen, terminal
    from orch.cli.runbooks.verb_words import rehearsed
    from orch.runbooks.engine import Run
    from orch.runbooks.plan import RunPlan

    kept = RunPlan.of(journal.change.plan)
    kept = replace(kept, answers={**kept.answers, **answers})
    runbook = parsed(source_of_plan(kept))
    stream = sys.stderr if as_json else sys.stdout
    screen = Screen(len(runbook.steps), stream, terminal=terminal(), approver=approver)
    if journal.resumed:
        done = sum(each.status in ("done", "skipped") for each in journal.steps)
        tell(f"run {journal.change.id} goes on: {done} of {len(runbook.steps)} steps are done")
    logs, environment = _logs(project, journal.change.id), shell_environment(project)
    more_words = rehearsed if project.rehearsal else tuple
    return Run(runbook, kept, journal, screen, project.root, logs, more_words, environment)


def _logs(project: Project, number: int) -> Path:
    return project.dot / "runbooks" / str(number)


def carry_out(
    project: Project,
    opened: AbstractContextManager[Journal],
    begun: Callable[[Journal], Run],
    *,
    undo: bool | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Do a run, and tell how it ended, also where it failed. `undo`: None asks, where somebody is there."""
    made: Run | None = None
    done = False
    try:
        with terminated_as_interrupted(), opened as journal:
            made = begun(journal)
            _do_steps(made, undo=undo)
            done = True
    finally:
        if made is not None:
            _tell_end(project, made, done=done, report=report, as_json=as_json)


def _do_steps(made: Run, *, undo: bool | None) -> None:
    """Raises what a step raises; what it leaves is undone where that is wished for."""
    from orch.runbooks.engine import StepFailed

    try:
        made.go()
    except StepFailed as error:
        can = made.can_undo()
        if can and (undo or (undo is None and _undo_is_wished(can, error))):
            undone = made.undo()
            made.journal.final = True
            error.hint = f"undone: {', '.join(undone)}; `orch runbook run` begins anew"
        elif can:
            error.detail = f"{error.detail}\nnothing is undone; what can be: {', '.join(can)}"
        raise
    made.journal.result = f"{len(made.runbook.steps)} steps"


def _undo_is_wished(can: tuple[str, ...], error: OrchError) -> bool:
    from orch.cli.runbooks.screen import terminal

    if not terminal():
        return False
    tell(error.text())
    tell(f"Undo {', '.join(can)}? [y/N] ")
    return input().strip().lower() in ("y", "yes")


def _tell_end(project: Project, made: Run, *, done: bool, report: Path | None, as_json: bool) -> None:
    """Tell how a run ended, once that is written."""
    from orch.cli.runbooks.screen import status_json
    from orch.stacks.errors import ProjectError

    change, steps = change_of(project, made.number)
    if report is not None:
        try:
            write_report(project, change, steps, report)
        except ProjectError as error:  # what became of the run is what counts
            tell(error.text().replace("error", "warning", 1))
    if as_json:
        print_json({"schema": SCHEMA, "run": status_json(change, steps, made.runbook)})
    elif done:
        say(f"runbook {made.runbook.name}: done, {len(made.runbook.steps)} steps (run {made.number})")


def write_report(project: Project, change: Change, steps: tuple[Written, ...], file: Path) -> None:
    """Raises ProjectError."""
    from orch.cli.runbooks.screen import report_of, status_json
    from orch.runbooks.plan import RunPlan
    from orch.stacks.errors import ProjectError

    runbook = runbook_of(change)
    if runbook is None:
        raise ProjectError(f"this version does not read the runbook of run {change.id}")
    row = status_json(change, steps, runbook)
    text = report_of(runbook, RunPlan.of(change.plan), row, _logs(project, change.id))
    try:
        file.write_text(text)
    except OSError as error:
        raise ProjectError("the report cannot be written", where=str(file), detail=error.strerror) from error
