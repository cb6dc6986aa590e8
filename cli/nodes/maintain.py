"""What the verbs on nodes share: the plan is shown, agreed to and carried out, and a report written."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli import completion
from orch.cli.errors import UsageError, end, print_json, say, tell
from orch.cli.output.files import require_writable
from orch.spec.errors import ExitCode

if TYPE_CHECKING:
    from orch.runner.ledger.changes import Change, Changes
    from orch.runner.runs.context import RunnerContext
    from orch.spec.state import NodeState
    from orch.stacks.maintenance.plan import MaintenancePlan, Options, Verb
    from orch.stacks.plans.request import FleetRequest
    from orch.stacks.project.project import Project
    from orch.stacks.pulumi.progress import Listener

SCHEMA = 1

SERIAL = "1,10%,25%"
"""Sizes of waves: one node to see whether it works, then ever more."""

Nodes = Annotated[
    list[str],
    typer.Argument(
        metavar="NODE...", help="Names of nodes, also folded: gpu[1-4,7].", autocompletion=completion.nodes
    ),
]
Fleet = Annotated[
    str | None,
    typer.Option("--fleet", help="The fleet the nodes are of.", autocompletion=completion.fleets),
]
Serial = Annotated[
    str,
    typer.Option(
        "--serial", metavar="N|N%,...", help="Nodes of each wave, or so many of a hundred; the last repeats."
    ),
]
MaxFail = Annotated[
    str,
    typer.Option("--max-fail", metavar="N|N%", help="Go on while no more nodes than these have failed."),
]
StopRuns = Annotated[
    bool, typer.Option("--stop-runs", help="Stop the runs on the nodes that the plan names.")
]
Wait = Annotated[
    str | None, typer.Option("--wait", metavar="DURATION", help="Wait so long for runs on the nodes to end.")
]
Reason = Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Shown with the cordon.")]
PlanOnly = Annotated[bool, typer.Option("--plan-only", help="Show the plan, and change nothing.")]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="FILE", help="Write what was planned and done as Markdown.", dir_okay=False
    ),
]


@dataclass(frozen=True)
class How:
    """How a verb is called, beside what it does."""

    yes: bool
    as_json: bool
    plan_only: bool
    rehearse: bool
    report: Path | None


def refuse_with_undo(how: How) -> None:
    """Raises UsageError for options that `--undo` would not heed: it has no plan, and acts at once."""
    options = {"--plan-only": how.plan_only, "--report": how.report is not None, "--json": how.as_json}
    if given := [option for option, is_given in options.items() if is_given]:
        raise UsageError(
            f"`--undo` goes without {' and '.join(given)}; nothing was changed",
            hint="it takes back at once, without a plan, and says what",
        )


def options_of(serial: str, max_fail: str, wait: str | None, reason: str, *, stop_runs: bool) -> Options:
    """Reads the options of a command line. Raises BadParameter."""
    from orch.spec.grammar.values import parse_duration
    from orch.stacks.maintenance.plan import Options
    from orch.stacks.maintenance.serial import Share, parse_serial

    option = "--serial"
    try:
        sizes = parse_serial(serial)
        option = "--max-fail"
        most = Share.parse(max_fail, least=0)
        option = "--wait"
        wait_s = parse_duration(wait) if wait is not None else 0
        if wait_s is None:
            raise ValueError("write how long, `30m` or `2h`")
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint=option) from problem
    return Options(sizes, most, stop_runs, wait_s, " ".join(reason.split()))


@dataclass(frozen=True)
class Begin:
    """A maintenance that a command asks for.

    `same`: whether the plan of an interrupted one is of what the command names. `planned` makes the plan of a
    new one. `words`: of the command, without its options; `request`: of a rollout, what the fleet's file asks
    for.
    """

    verb: Verb
    options: Options
    same: Callable[[MaintenancePlan], bool]
    planned: Callable[[Project, RunnerContext, Listener], MaintenancePlan]
    words: Sequence[str]
    request: FleetRequest | None = None

    def command(self, how: How) -> str:
        """What a user types to agree without being asked."""
        report = ["--report", str(how.report)] if how.report is not None else []
        words = ("orch", *self.words, *self.options.words(), *report, *(["--json"] if how.as_json else []))
        return shlex.join((*words, "--yes"))


def maintain(verb: Verb, words: Sequence[str], fleet: str | None, options: Options, how: How) -> None:
    """Plan a maintenance of nodes, ask, and carry it out; one that was interrupted is gone on with."""
    from orch.cli.hosts.node_names import names_in

    def same(plan: MaintenancePlan) -> bool:
        # Some of its nodes may be gone by now.
        named = set(names_in(words, plan.names)) == set(plan.names)
        return named and (fleet is None or all(node.fleet == fleet for node in plan.nodes))

    def planned(project: Project, runner: RunnerContext, listener: Listener) -> MaintenancePlan:
        from orch.stacks.maintenance.drive import planned_for

        chosen: dict[str, list[str]] = {}
        for name, node in nodes_by_fleet(project, words, fleet):
            chosen.setdefault(name, []).append(node.name)
        return planned_for(runner, project, verb, chosen, options=options, listener=listener)

    typed = ["node", verb, *words, *(["--fleet", fleet] if fleet is not None else [])]
    begin(Begin(verb, options, same, planned, typed), how, None)


def begin(asked: Begin, how: How, path: str | None) -> None:
    """Show the plan of a maintenance, ask, and carry it out, in the project of a path (default: here)."""
    from orch.cli.hosts.check import in_order
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.cli.runs.opening import open_runner
    from orch.runner.launch.environment import fold
    from orch.stacks.maintenance.context import Maintenance
    from orch.stacks.maintenance.drive import carry_out
    from orch.stacks.maintenance.plan import MaintenancePlan
    from orch.stacks.record.change_log import undertaken

    with open_runner(path, as_json=True, rehearse=how.rehearse) as (project, runner):
        earlier = _interrupted(runner.ledger.changes, project, asked)
        with watching(as_json=how.as_json) as listener:
            if earlier is not None:
                plan = MaintenancePlan.parse(earlier.plan)
                _refuse_other_options(plan, asked.options, earlier)
                tell(f"going on with change {earlier.id} of {earlier.by}, by its plan")
            else:
                plan = asked.planned(project, runner, listener)
        for line in () if how.as_json else plan.lines():
            (say if how.plan_only else tell)(line)
        for each in plan.left_alone:
            if each.hint:
                tell(f"{each.name} is left alone, {each.why}: {each.hint}")
        if how.plan_only:
            if how.as_json:
                print_json({"schema": SCHEMA, "plan": plan.as_json()})
            end(ExitCode.OK)
        _refuse_nothing(plan)
        plan.refuse_runs()
        require_writable(how.report)
        if not how.yes:
            need_terminal(asked.command(how), project)
            confirm(f"Begin with {fold([each.name for each in plan.nodes])}?")
        begun: list[int] = []
        try:
            text = plan.text()
            with (
                watching(as_json=how.as_json) as listener,
                undertaken(project, plan.title, plan.subject, plan=text, holds=plan.holds) as journal,
            ):
                begun.append(journal.change.id)
                tell(f"change {journal.change.id}{', gone on with' if journal.resumed else ''}")
                plan = MaintenancePlan.parse(journal.change.plan)
                health = in_order(project, runner)
                carry_out(Maintenance(project, runner, plan, journal, health, listener, asked.request))
        finally:
            for number in begun:
                _show_end(project, runner.ledger.changes, number, how)


def nodes_by_fleet(project: Project, words: Sequence[str], fleet: str | None) -> list[tuple[str, NodeState]]:
    """The nodes that are named, each with its fleet. Raises UnknownNode."""
    from orch.cli.hosts.node_names import nodes_named
    from orch.stacks.record.fleets import fleet_of, known_fleets
    from orch.stacks.stack.state import StackState

    up = {fleet: StackState(project, fleet)} if fleet is not None else known_fleets(project)
    states = {name: fleet_of(stack) for name, stack in up.items()}
    found: list[tuple[str, NodeState]] = []
    for node in nodes_named(words, states):
        owners = [
            name for name, state in states.items() if any(each.name == node.name for each in state.nodes)
        ]
        if len(owners) > 1:
            raise UsageError(
                f"node {node.name} is in {len(owners)} fleets: {', '.join(owners)}",
                hint=f"say by which with `--fleet {owners[0]}`",
            )
        found.append((owners[0], node))
    return found


def _interrupted(changes: Changes, project: Project, asked: Begin) -> Change | None:
    """The same maintenance, where it was begun and nobody is at work on it. Raises UnknownNode for words that
    are no names."""
    from orch.stacks.maintenance.plan import MaintenancePlan, title_of
    from orch.stacks.project.project import ledger_scope

    title = title_of(asked.verb)
    for each in changes.listed(project.name, verbs=(title,), unfinished=True):
        own = (each.scope, each.verb) == (ledger_scope(project), title)
        if own and not each.held and asked.same(MaintenancePlan.parse(each.plan)):
            return each
    return None


def _show_end(project: Project, changes: Changes, number: int, how: How) -> None:
    """Print what became of a change, and write its report where one is asked for."""
    from datetime import datetime, timezone

    from orch.review.maintenance import report
    from orch.stacks.maintenance.gpu_reset import folder_of
    from orch.stacks.maintenance.plan import MaintenancePlan

    change = changes.get(number)
    if change is None:
        return
    plan, steps = MaintenancePlan.parse(change.plan), changes.steps(number)
    if how.report is not None:
        files = sorted(folder_of(project.dot, number).glob("*/*"))
        evidence = [str(each.relative_to(project.root)) for each in files]
        try:
            how.report.write_text(report(plan, change, steps, evidence))
        except OSError as error:
            tell(f"warning: the report cannot be written: {how.report}: {error.strerror}")
    if how.as_json:
        told = [
            {
                "node": each.host or None,
                "step": each.name,
                "status": each.status,
                "message": each.message,
                "began_at": datetime.fromtimestamp(each.began_at, timezone.utc).isoformat(),
                "seconds": None if each.ended_at is None else round(each.ended_at - each.began_at, 1),
            }
            for each in steps
        ]
        result = {"change": number, "status": change.shown_status, "result": change.result}
        print_json({"schema": SCHEMA, **result, "plan": plan.as_json(), "steps": told})
        return
    say(f"{plan.subject}: {change.shown_status}{f', {change.result}' if change.status == 'done' else ''}")


def _refuse_other_options(plan: MaintenancePlan, options: Options, earlier: Change) -> None:
    """What stops runs is what its plan said, also when somebody goes on with it."""
    if (plan.stop_runs, plan.wait_s) == (options.stop_runs, options.wait_s):
        return
    raise UsageError(
        f"change {earlier.id} was begun with another `--stop-runs` or `--wait`, and is not ended",
        hint=f"`{earlier.command}` goes on with it; `orch log {earlier.id} --abandon` gives it up",
    )


def _refuse_nothing(plan: MaintenancePlan) -> None:
    from orch.runner.launch.environment import fold
    from orch.stacks.maintenance.errors import NothingToDo

    if plan.nodes:
        return
    raise NothingToDo(
        f"{fold([each.name for each in plan.left_alone])}: left alone, nothing was done",
        detail="\n".join(f"{each.name}: {each.why}" for each in plan.left_alone),
        hint="; ".join(dict.fromkeys(each.hint for each in plan.left_alone if each.hint)) or None,
        code="ORCH400",
    )
