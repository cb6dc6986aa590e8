"""`orch run`: submits the tasks of a file, and drives their runs here or in the background."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli.driver.background import drive_afresh, drive_behind, see_through
from orch.cli.driver.new_nodes import NewNodes, tell_of_later_nodes
from orch.cli.driver.opening import EarlyStart, early_start, open_runner
from orch.cli.errors import UsageError, end, say, tell
from orch.cli.options import (
    ALSO,
    Detach,
    Json,
    NewRunName,
    OnFleet,
    Port,
    Profile,
    Rehearse,
    TraceOption,
    Variables,
    with_records,
)
from orch.cli.output.ticking import still
from orch.cli.output.tracing import span, traced
from orch.cli.runs.attach import code_of, print_run, show_end
from orch.cli.runs.ports import hold_ports, ports_of
from orch.cli.runs.submission import (
    Room,
    RunRequest,
    check_name,
    fleets_with_room,
    is_run,
    kept_if_submitted,
    of_array,
    submit_task,
)
from orch.spec.errors import ExitCode

if TYPE_CHECKING:
    from orch.runner.access.forwards import LocalPorts
    from orch.runner.ledger.records import RunRow
    from orch.runner.plan.run_plan import RankPort
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.spec.loader.load import Document
    from orch.stacks.project.project import Project


@dataclass(frozen=True)
class RunOptions:
    """The command line of `orch run`."""

    file: Annotated[str, typer.Argument(metavar="FILE", help=f"A YAML file with a task, or -. {ALSO}")]
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="For ${{ run.args }} in the task.")
    ] = None
    fleet: OnFleet = None
    name: NewRunName = None
    env: Variables = None
    profile: Profile = None
    port: Port = None
    detach: Detach = False
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait in line when the nodes are not free; else it is refused.")
    ] = False
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Make nodes for the run without asking, where it needs some.")
    ] = False
    no_provision: Annotated[bool, typer.Option("--no-provision", help="Never make nodes for the run.")] = (
        False
    )
    as_json: Json = False
    rehearse: Rehearse = False
    trace: TraceOption = False


@traced
@with_records
def run(options: RunOptions) -> None:
    """Run the tasks and dev environments of a file on a fleet, and show their logs until they end.

    Ctrl-C detaches: the run goes on, `orch attach` finds it again.
    """
    start(options)


def start(options: RunOptions, *, mixed: bool = False) -> None:
    """Run the tasks of a file. `mixed`: the caller acts on the other documents, so there is no note."""
    ports = ports_of(options.port or ())
    if ports and options.detach:
        raise typer.BadParameter(
            "nothing is forwarded with --detach; `orch attach RUN --port ...` does", param_hint="--port"
        )
    name = options.name
    if name is not None:
        from orch.runner.plan.run_names import RunName

        name = RunName.parse(name)
    variables = variables_of(options.env or ())
    file, detach, rehearse = options.file, options.detach and not mixed, options.rehearse
    with early_start(file, options.fleet, detach=detach, rehearse=rehearse) as early:
        tasks = _tasks(options, variables, ports, mixed=mixed)
        path = None if file == "-" else file
        with open_runner(path, as_json=options.as_json, rehearse=rehearse, early=early) as (project, runner):
            _require_allowed(project, tasks)
            yes = options.yes or project.nodes_for_runs == "always"
            agreed = yes and not options.no_provision
            # Who waits in line makes none without saying so.
            asked = not options.no_provision and not options.wait and project.nodes_for_runs != "never"
            new_nodes = NewNodes(agreed or asked, yes, f"orch run {file} --yes", options.as_json)
            request = RunRequest(
                options.arguments or (), options.fleet, name, variables, options.wait, agreed
            )
            launch = _Launch(project, runner, early, options, ports, request, new_nodes)
            for document in tasks:
                if (code := launch.run(document)) != ExitCode.OK:
                    end(code)


def _tasks(
    options: RunOptions, variables: Mapping[str, str], ports: Sequence[RankPort], *, mixed: bool
) -> list[Document]:
    """Return the tasks and dev environments of a file. Raises BadTask without one, UsageError."""
    file = options.file
    documents = _load(file, variables, options.profile)
    tasks = [document for document in documents if is_run(document)]
    if not tasks:
        from orch.runner.errors import BadTask

        hint = "a task begins with `type: task`, a dev environment with `type: dev-environment`"
        raise BadTask("there is no task in it", where=file, hint=hint)
    if options.name is not None and len(tasks) > 1:
        raise UsageError(
            f"`--name` names one run, and {file} has {len(tasks)} tasks",
            hint="give each task a `name` of its own",
        )
    if ports and any(map(of_array, tasks)):
        raise UsageError(
            "ports lead to the jobs of one run, and this is an array",
            hint="`orch attach NAME_INDEX --port ...` forwards those of one member",
        )
    if options.arguments:
        _warn_of_unused(tasks)
    if len(documents) > len(tasks) and not mixed:
        tell("note: only tasks and dev environments are run; documents of other types are left out")
    return tasks


def _require_allowed(project: Project, tasks: Sequence[Document]) -> None:
    from orch.policies.settings import today
    from orch.policies.task_verdicts import require_allowed

    if found := require_allowed(tasks, project.policies, str(project.root), today()):
        from orch.spec.diagnostics import render_human

        tell(render_human(found))


@dataclass(frozen=True)
class _Launch:
    """Submits tasks of a command line, and drives their runs. `ports`: of the command line."""

    project: Project
    runner: RunnerContext
    early: EarlyStart
    options: RunOptions
    ports: Sequence[RankPort]
    request: RunRequest
    new_nodes: NewNodes

    def run(self, document: Document) -> ExitCode:
        """Submit a task, and see its run through or leave it to a driver; return the exit code."""
        from orch.runner.access.forwards import LocalPorts

        options = self.options
        with LocalPorts() as held:
            check_name(self.runner, document, self.request.name)
            if not options.detach and not of_array(document):
                hold_ports(held, document, self.ports)
            row, room = self._submitted(document)
            if row.array is not None:
                from orch.cli.runs.arrays.verbs import begin

                return begin(self.project, self.runner, row, detach=options.detach, as_json=options.as_json)
            if options.detach:
                self._leave(row, room)
                return ExitCode.OK
            return self._see_through(row, held)

    def _submitted(self, document: Document) -> tuple[RunRow, Room]:
        project, runner = self.project, self.runner
        room = fleets_with_room(project, runner, document, self.request.fleet, self.new_nodes)
        asking = still(lambda: "asking the nodes and packing files")
        with span("submit"), kept_if_submitted(project, room), asking:
            return submit_task(project, runner, document, self.request, room), room

    def _leave(self, row: RunRow, room: Room) -> None:
        """Have a driver in the background see a run through, and print the run."""
        project, runner = self.project, self.runner
        makes_more = self.request.makes_nodes and runner.context(row).folder.has_launch
        if makes_more:
            drive_afresh(project, runner, row)
        elif not self.early.drive(row.id):
            drive_behind(runner, row)
        print_run(runner, row) if self.options.as_json else say(row.name)
        if makes_more:
            tell_of_later_nodes(project, room.stacks[row.fleet], row)

    def _see_through(self, row: RunRow, held: LocalPorts) -> ExitCode:
        """Drive a run to its end, and show it; return the exit code."""
        from orch.cli.output.run import nodes_text, place_text

        runner, as_json = self.runner, self.options.as_json
        if not as_json and row.status == "pending":
            place = place_text(row, runner.ledger.line(row.fleet))
            tell(f"run {row.name} waits for nodes of fleet {row.fleet}{place}: {row.message}")
        elif not as_json:
            tell(f"run {row.name} on fleet {row.fleet}: {nodes_text(row)}")
        row = see_through(self.project, runner, row, held)
        show_end(runner, row, as_json=as_json, forwards=held.open)
        return code_of(row)


def _load(file: str, variables: Mapping[str, str], profile: str | None) -> tuple[Document, ...]:
    from orch.cli.diagnostics import load
    from orch.spec.document.draft import RUNS

    return load(file, launch=RUNS, environ={**os.environ, **variables}, profile=profile)


def _warn_of_unused(tasks: Sequence[Document]) -> None:
    """Tell which tasks have no place for the words after `--`."""
    from orch.spec.document.draft import scalars

    for document in tasks:
        if not any("run.args" in scalar.text for _, scalar in scalars(document.draft.node)):
            span = document.span()
            place = f"{span.file}:{span.line}"
            tell(f"warning: {place}: no `${{{{ run.args }}}}` here uses the words after `--`")


def variables_of(items: Sequence[str]) -> dict[str, str]:
    """Variables of `--env` options: `K=V`, or `K` for the caller's own value. Raises BadParameter."""
    from orch.spec.grammar.values import Problem, parse_env_item

    variables: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            if name not in os.environ:
                raise typer.BadParameter(f"{name} is not set here; write {name}=VALUE", param_hint="--env")
            value = os.environ[name]
        try:
            parse_env_item(f"{name}={value}")
        except Problem as problem:
            raise typer.BadParameter(problem.summary, param_hint="--env") from None
        variables[name] = value
    return variables
