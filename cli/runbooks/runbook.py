"""`orch runbook`: steps that were reviewed in daylight, planned, run, gone on with and reported."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli.context import MOST, REHEARSE, Json, Rehearse, Yes, project_at
from orch.cli.errors import UsageError, end, print_json, say, tell, terminated_as_interrupted
from orch.cli.output.files import require_writable
from orch.cli.runbooks.approvals import approver_of
from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from orch.cli.runbooks.screen import Approver
    from orch.runbooks.engine import Run
    from orch.runbooks.model import Runbook
    from orch.runbooks.plan import PlannedStep, RunPlan
    from orch.runner.ledger.changes import Change
    from orch.runner.ledger.changes import Step as Written
    from orch.spec.loader.text import Source
    from orch.stacks.project.project import Project
    from orch.stacks.record.change_log import Journal

SCHEMA = 1
SHOWN = 50
"""How many runs are shown where nobody asks for more."""

app = typer.Typer(no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help="Of the project's runbooks/ or the library; or a file.")
]
Values = Annotated[
    list[str] | None, typer.Argument(metavar="[PARAMETER=VALUE]...", help="What the runbook needs to know.")
]
Number = Annotated[
    int, typer.Argument(metavar="ID", min=1, max=MOST, help="Of a run: `orch runbook status` lists them.")
]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Write how the run went, as Markdown.", dir_okay=False),
]
Undo = Annotated[bool, typer.Option("--undo-on-failure", help="Take back what was done when a step fails.")]
ApprovedBy = Annotated[
    int | None,
    typer.Option(
        "--approved-by",
        metavar="NUMBER",
        min=1,
        help="A pull or merge request that was approved and has the mark of the plan in its text.",
    ),
]
WordsOnly = Annotated[
    bool, typer.Option("--words-only", help="Do not ask the verbs of steps for their own plans.")
]


@app.command("init", epilog="Example: orch runbook init bad-node broken-lock")
def init(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Of the library; default: all.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Copy runbooks of the library into the project's runbooks/, to change and review them there.

    A file that was changed is never overwritten.
    """
    from orch.runbooks.library import FOLDER, copy
    from orch.stacks.errors import ProjectError

    project = project_at()
    try:
        done = copy(project.root, tuple(names or ()))
    except OSError as error:
        raise ProjectError(
            "the runbooks cannot be written", where=str(project.root / FOLDER), detail=error.strerror
        ) from error
    if as_json:
        print_json({"schema": SCHEMA, "runbooks": done})
        return
    words = {"kept": "kept as it is: it differs from the library's", "unchanged": "there already"}
    for name, what in done.items():
        say(f"{FOLDER}/{name}.md: {words.get(what, what)}")


@app.command("list", epilog="Example: orch runbook list")
def list_(*, as_json: Json = False) -> None:
    """The runbooks of the project and of the library: the alarm, and what each does."""
    from orch.runbooks.library import places, text_of
    from orch.spec.loader.load import InvalidConfiguration

    project = project_at()
    rows: list[dict[str, Any]] = []
    wrong: list[InvalidConfiguration] = []
    for place in places(project.root).values():
        row: dict[str, Any] = {"name": place.name, "file": str(place.path), "own": place.own}
        try:
            runbook = _parsed(text_of(str(place.path)))
        except InvalidConfiguration as error:
            wrong.append(error)
            rows.append({**row, "summary": None, "when": None, "parameters": None, "valid": False})
            continue
        parameters = {name: each.type for name, each in runbook.parameters.items()}
        more = {"summary": runbook.summary, "when": runbook.when, "parameters": parameters, "valid": True}
        rows.append({**row, **more})
    if as_json:
        print_json({"schema": SCHEMA, "runbooks": rows})
    else:
        for row in rows:
            words = row["summary"] or "it cannot be run: see below"
            say(f"{row['name']:<20} {'project' if row['own'] else 'library'}  {words}")
            if row["when"]:
                say(f"{'':<20} when: {row['when']}")
    for error in wrong:
        tell(error.text())
    end(ExitCode.CONFIG if wrong else ExitCode.OK)


@app.command("show", epilog="Example: orch runbook show bad-node")
def show(name: Name, *, as_json: Json = False) -> None:
    """The text of a runbook as it is, with its parameters."""
    from orch.runbooks.library import source_of
    from orch.runbooks.plan import plan_json, planned

    project = project_at()
    runbook = _parsed(source_of(project.root, name))
    if not as_json:
        say(runbook.text.rstrip("\n"))
        return
    print_json(
        {
            "schema": SCHEMA,
            "name": runbook.name,
            "summary": runbook.summary,
            "when": runbook.when,
            "file": runbook.file,
            "parameters": [
                {
                    "name": each.name,
                    "type": each.type,
                    "description": each.description,
                    "default": each.default,
                    "choices": list(each.choices),
                    "pattern": each.pattern,
                }
                for each in runbook.parameters.values()
            ],
            "steps": plan_json(planned(runbook, {})),
            "text": runbook.text,
        }
    )


@app.command("plan", epilog="Example: orch runbook plan bad-node node=gpu3 fleet=lab")
def plan(
    name: Name,
    values: Values = None,
    *,
    words_only: WordsOnly = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Show what a run would do, step by step, with the plans of its verbs. Changes nothing."""
    from orch.cli.runbooks.screen import plan_lines
    from orch.runbooks.library import source_of
    from orch.runbooks.plan import gate_of, plan_json, planned

    project = project_at(rehearse=rehearse)
    runbook = _parsed(source_of(project.root, name))
    kept = _kept(runbook, values)
    steps = _in_words(project, planned(runbook, kept.known))
    where = {**_environment(project), "project": project.name, "runbook": runbook.name}
    gates = [each.step for each in steps if each.step.kind == "approval" and each.needed is not False]
    marks = {each.name: gate_of(each.name, each.text, kept, steps, where).mark for each in gates}
    plans = {} if words_only else dict(_plans_of_verbs(project, steps))
    if as_json:
        rows = [{**row, "plan": plans.get(row["name"])} for row in plan_json(steps)]
        print_json(
            {
                "schema": SCHEMA,
                "runbook": runbook.name,
                "file": runbook.file,
                "values": dict(kept.values),
                "answers": dict(kept.answers),
                "marks": marks,
                "steps": rows,
            }
        )
        return
    for line in plan_lines(runbook, steps, plans):
        say(line)
    for step, mark in marks.items():
        say(f"mark for an approval of {step} by pull request: {mark}")


@app.command("run", epilog="Example: orch runbook run bad-node node=gpu3 fleet=lab --report report.md")
def run(
    name: Name,
    values: Values = None,
    *,
    yes: Yes = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Give up an interrupted run of the same, and begin anew.")
    ] = False,
    undo_on_failure: Undo = False,
    approved_by: ApprovedBy = None,
    words_only: WordsOnly = False,
    report: Report = None,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Show the plan, ask, then do a runbook step by step.

    The same command goes on with a run that was interrupted or failed, from where it stopped.
    """
    from orch.cli.output.review import confirm, need_terminal
    from orch.cli.runbooks.screen import plan_lines
    from orch.runbooks.library import source_of
    from orch.runbooks.plan import RUN, holds, planned, subject
    from orch.stacks.record.change_log import undertaken

    project = project_at(rehearse=rehearse)
    runbook = _parsed(source_of(project.root, name))
    kept = _kept(runbook, values)
    steps = _in_words(project, planned(runbook, kept.known))
    if not yes:
        need_terminal(shlex.join(("orch", "runbook", "run", name, *(values or ()), "--yes")), project)
        plans = {} if words_only else dict(_plans_of_verbs(project, steps))
        for line in plan_lines(runbook, steps, plans):
            tell(line)
        confirm(f"Run {runbook.name} with these {len(steps)} steps?")
    require_writable(report)
    project.prepare()
    what, held = subject(runbook.name, kept.values), holds(runbook.name, kept.values)
    approver = approver_of(project, approved_by, approve=False)

    def begun(journal: Journal) -> Run:
        made = _run(project, journal, kept.answers, approver, as_json=as_json)
        if journal.resumed and made.plan.text != kept.text:
            tell("note: the runbook was changed since; the run goes on by the text that it was begun with")
            if not yes:
                for line in plan_lines(
                    made.runbook, _in_words(project, planned(made.runbook, made.plan.known)), {}
                ):
                    tell(line)
                confirm("Go on with these steps?")
        if approved_by is not None and approver is not None and (gate := made.next_gate()) is not None:
            approver(gate)  # before anything is done
        return made

    opened = undertaken(project, RUN, what, plan=kept.as_json(), holds=held, resume=not restart)
    undo = True if undo_on_failure else False if yes else None
    _carry_out(project, opened, begun, undo=undo, report=report, as_json=as_json)


@app.command("status", epilog="Example: orch runbook status 12")
def status(
    number: Annotated[
        int | None,
        typer.Argument(
            metavar="[ID]", min=1, max=MOST, help="A run, with its steps; default: all.", show_default=False
        ),
    ] = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help=f"All runs, not the latest {SHOWN}.")
    ] = False,
    report: Report = None,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Runs of runbooks, the newest first; with ID, each step of one: done, failed, waiting."""
    from orch.cli.runbooks.screen import status_json, status_lines
    from orch.runbooks.plan import RUN
    from orch.runner.ledger.ledger import open_ledger

    if report is not None and number is None:
        raise UsageError("a report is of one run", hint="`orch runbook status ID --report FILE`")
    project = project_at(rehearse=rehearse)
    if number is not None:
        change, steps = _change(project, number)
        row = status_json(change, steps, _of_change(change))
        if report is not None:
            _write_report(project, change, steps, report)
        if as_json:
            print_json({"schema": SCHEMA, "run": row})
            return
        for line in status_lines(row):
            say(line)
        return
    path = project.local_ledger
    rows: list[dict[str, Any]] = []
    left_out = 0
    if path is None or path.exists():  # a look makes no ledger
        with closing(open_ledger(project.ledger_url)) as ledger:
            found = ledger.changes.listed(project.name, verbs=(RUN,))
            shown = found if everything else found[:SHOWN]
            left_out = len(found) - len(shown)
            for change in shown:
                rows.append(status_json(change, ledger.changes.steps(change.id), _of_change(change)))
    if as_json:
        print_json({"schema": SCHEMA, "runs": rows, "left_out": left_out})
        return
    if not rows:
        say("no runbook was run in this project")
    for row in rows:
        done = sum(each["status"] in ("done", "skipped") for each in row["steps"])
        progress = f"{done}/{len(row['steps'])}"
        say(f"{row['id']:>4}  {row['began_at']}  {row['status']:<11}  {progress:<5}  {row['subject']}")
    if left_out:
        say(f"… and {left_out} earlier: `orch runbook status --all`")


@app.command("resume", epilog="Example: orch runbook resume 12 --approve")
def resume(
    number: Number,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[QUESTION=ANSWER]...", help="Answers that it waits for.")
    ] = None,
    *,
    approve: Annotated[
        bool, typer.Option("--approve", help="Approve the step that the run waits at.")
    ] = False,
    approved_by: ApprovedBy = None,
    undo_on_failure: Undo = False,
    report: Report = None,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Go on with a run that was interrupted, failed or waits; steps that are done are not done again."""
    from orch.runbooks.parameters import values_of
    from orch.runbooks.plan import RunPlan
    from orch.stacks.record.change_log import gone_on_with

    project = project_at(rehearse=rehearse)
    change, _ = _change(project, number)
    if change.status != "running":
        hint = "`orch runbook run` begins another one"
        raise UsageError(f"run {number} is {change.status}: there is nothing to go on with", hint=hint)
    answers = values_of(_parsed(_source(RunPlan.of(change.plan))).questions, tuple(values or ()))
    require_writable(report)
    approver = approver_of(project, approved_by, approve=approve)

    def begun(journal: Journal) -> Run:
        return _run(project, journal, answers, approver, as_json=as_json)

    undo = True if undo_on_failure else None
    _carry_out(project, gone_on_with(project, number), begun, undo=undo, report=report, as_json=as_json)


# What they share


def _parsed(source: Source) -> Runbook:
    from orch.cli.runbooks.verb_words import wrong_words
    from orch.runbooks.parse import parse

    return parse(source, wrong_words)


def _source(kept: RunPlan) -> Source:
    from orch.spec.loader.text import Source

    return Source.of(kept.file, kept.text)


def _of_change(change: Change) -> Runbook | None:
    """The runbook of a run; None where this version does not read it."""
    from orch.runbooks.parse import parse
    from orch.runbooks.plan import RunPlan

    try:
        return parse(_source(RunPlan.of(change.plan)))
    except (OrchError, KeyError, ValueError):
        return None


def _kept(runbook: Runbook, words: list[str] | None) -> RunPlan:
    """What a run goes by: parameters with their defaults, and answers that were given with them."""
    from orch.runbooks.parameters import bound, values_of
    from orch.runbooks.plan import RunPlan

    questions = runbook.questions
    answers = [each for each in words or () if each.partition("=")[0] in questions]
    values = bound(runbook.parameters, tuple(each for each in words or () if each not in answers))
    return RunPlan(runbook.file, runbook.text, values, values_of(questions, tuple(answers)))


def _change(project: Project, number: int) -> tuple[Change, tuple[Written, ...]]:
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


def _plans_of_verbs(project: Project, steps: tuple[PlannedStep, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the verbs of steps say that they would do: by the step's name, their words, code and output."""
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


def _in_words(project: Project, steps: tuple[PlannedStep, ...]) -> tuple[PlannedStep, ...]:
    """The steps as they are done in the project."""
    from orch.cli.runbooks.verb_words import rehearsed
    from orch.runbooks.plan import in_words

    return tuple(in_words(each, rehearsed) for each in steps) if project.rehearsal else steps


def _environment(project: Project) -> dict[str, str]:
    """What shells of steps on this machine have besides."""
    return {REHEARSE: "1"} if project.rehearsal else {}


def _run(
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
    runbook = _parsed(_source(kept))
    stream = sys.stderr if as_json else sys.stdout
    screen = Screen(len(runbook.steps), stream, terminal=terminal(), approver=approver)
    if journal.resumed:
        done = sum(each.status in ("done", "skipped") for each in journal.steps)
        tell(f"run {journal.change.id} goes on: {done} of {len(runbook.steps)} steps are done")
    logs, environment = _logs(project, journal.change.id), _environment(project)
    more_words = rehearsed if project.rehearsal else tuple
    return Run(runbook, kept, journal, screen, project.root, logs, more_words, environment)


def _logs(project: Project, number: int) -> Path:
    return project.dot / "runbooks" / str(number)


def _carry_out(
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

    change, steps = _change(project, made.number)
    if report is not None:
        try:
            _write_report(project, change, steps, report)
        except ProjectError as error:  # what became of the run is what counts
            tell(error.text().replace("error", "warning", 1))
    if as_json:
        print_json({"schema": SCHEMA, "run": status_json(change, steps, made.runbook)})
    elif done:
        say(f"runbook {made.runbook.name}: done, {len(made.runbook.steps)} steps (run {made.number})")


def _write_report(project: Project, change: Change, steps: tuple[Written, ...], file: Path) -> None:
    """Raises ProjectError."""
    from orch.cli.runbooks.screen import report_of, status_json
    from orch.runbooks.plan import RunPlan
    from orch.stacks.errors import ProjectError

    runbook = _of_change(change)
    if runbook is None:
        raise ProjectError(f"this version does not read the runbook of run {change.id}")
    row = status_json(change, steps, runbook)
    text = report_of(runbook, RunPlan.of(change.plan), row, _logs(project, change.id))
    try:
        file.write_text(text)
    except OSError as error:
        raise ProjectError("the report cannot be written", where=str(file), detail=error.strerror) from error
