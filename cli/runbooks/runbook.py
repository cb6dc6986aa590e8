"""`orch runbook`: steps that were reviewed in daylight, planned, run, gone on with and reported."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli.context import MOST, project_at
from orch.cli.errors import UsageError, end, print_json, say, tell
from orch.cli.options import Json, Rehearse, Yes, with_records
from orch.cli.output.files import require_writable
from orch.cli.runbooks.runs import (
    SCHEMA,
    carry_out,
    change_of,
    in_project,
    parsed,
    plans_of_verbs,
    run_of,
    run_plan,
    runbook_of,
    shell_environment,
    source_of_plan,
    write_report,
)
from orch.cli.runbooks.screen import approver_of
from orch.spec.errors import ExitCode

if TYPE_CHECKING:
    from orch.runbooks.engine import Run
    from orch.stacks.record.change_log import Journal

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


@dataclass(frozen=True)
class Output:
    """Options that say where a run is shown, and whether it is one on a simulated cloud."""

    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write how the run went, as Markdown.", dir_okay=False),
    ] = None
    as_json: Json = False
    rehearse: Rehearse = False


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
            runbook = parsed(text_of(str(place.path)))
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
    runbook = parsed(source_of(project.root, name))
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
    runbook = parsed(source_of(project.root, name))
    kept = run_plan(runbook, values)
    steps = in_project(project, planned(runbook, kept.known))
    where = {**shell_environment(project), "project": project.name, "runbook": runbook.name}
    gates = [each.step for each in steps if each.step.kind == "approval" and each.needed is not False]
    marks = {each.name: gate_of(each.name, each.text, kept, steps, where).mark for each in gates}
    plans = {} if words_only else dict(plans_of_verbs(project, steps))
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
@with_records
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
    output: Output,
) -> None:
    """Show the plan, ask, then do a runbook step by step.

    The same command goes on with a run that was interrupted or failed, from where it stopped.
    """
    from orch.cli.output.review import confirm, need_terminal
    from orch.cli.runbooks.screen import plan_lines
    from orch.runbooks.library import source_of
    from orch.runbooks.plan import RUN, holds, planned, subject
    from orch.stacks.record.change_log import undertaken

    project = project_at(rehearse=output.rehearse)
    runbook = parsed(source_of(project.root, name))
    kept = run_plan(runbook, values)
    steps = in_project(project, planned(runbook, kept.known))
    if not yes:
        need_terminal(shlex.join(("orch", "runbook", "run", name, *(values or ()), "--yes")), project)
        plans = {} if words_only else dict(plans_of_verbs(project, steps))
        for line in plan_lines(runbook, steps, plans):
            tell(line)
        confirm(f"Run {runbook.name} with these {len(steps)} steps?")
    require_writable(output.report)
    project.prepare()
    what, held = subject(runbook.name, kept.values), holds(runbook.name, kept.values)
    approver = approver_of(project, approved_by, approve=False)

    def begun(journal: Journal) -> Run:
        made = run_of(project, journal, kept.answers, approver, as_json=output.as_json)
        if journal.resumed and made.plan.text != kept.text:
            tell("note: the runbook was changed since; the run goes on by the text that it was begun with")
            if not yes:
                for line in plan_lines(
                    made.runbook, in_project(project, planned(made.runbook, made.plan.known)), {}
                ):
                    tell(line)
                confirm("Go on with these steps?")
        if approved_by is not None and approver is not None and (gate := made.next_gate()) is not None:
            approver(gate)  # before anything is done
        return made

    opened = undertaken(project, RUN, what, plan=kept.as_json(), holds=held, resume=not restart)
    undo = True if undo_on_failure else False if yes else None
    carry_out(project, opened, begun, undo=undo, report=output.report, as_json=output.as_json)


@app.command("status", epilog="Example: orch runbook status 12")
@with_records
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
    output: Output,
) -> None:
    """Runs of runbooks, the newest first; with ID, each step of one: done, failed, waiting."""
    from orch.cli.runbooks.screen import status_json, status_lines
    from orch.runbooks.plan import RUN
    from orch.runner.ledger.ledger import open_ledger

    if output.report is not None and number is None:
        raise UsageError("a report is of one run", hint="`orch runbook status ID --report FILE`")
    project = project_at(rehearse=output.rehearse)
    if number is not None:
        change, steps = change_of(project, number)
        row = status_json(change, steps, runbook_of(change))
        if output.report is not None:
            write_report(project, change, steps, output.report)
        if output.as_json:
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
                rows.append(status_json(change, ledger.changes.steps(change.id), runbook_of(change)))
    if output.as_json:
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
@with_records
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
    output: Output,
) -> None:
    """Go on with a run that was interrupted, failed or waits; steps that are done are not done again."""
    from orch.runbooks.parameters import values_of
    from orch.runbooks.plan import RunPlan
    from orch.stacks.record.change_log import gone_on_with

    project = project_at(rehearse=output.rehearse)
    change, _ = change_of(project, number)
    if change.status != "running":
        hint = "`orch runbook run` begins another one"
        raise UsageError(f"run {number} is {change.status}: there is nothing to go on with", hint=hint)
    answers = values_of(parsed(source_of_plan(RunPlan.of(change.plan))).questions, tuple(values or ()))
    require_writable(output.report)
    approver = approver_of(project, approved_by, approve=approve)

    def begun(journal: Journal) -> Run:
        return run_of(project, journal, answers, approver, as_json=output.as_json)

    undo = True if undo_on_failure else None
    carry_out(
        project, gone_on_with(project, number), begun, undo=undo, report=output.report, as_json=output.as_json
    )
