"""Shows the plan of a maintenance, asks, carries it out, and writes a report."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orch.cli.errors import UsageError, end, print_json, say, tell
from orch.cli.output.files import require_writable
from orch.spec.errors import ExitCode

if TYPE_CHECKING:
    from orch.cli.maintenance.options import Handling, Waves
    from orch.runner.ledger.changes import Change, Changes
    from orch.runner.runs.context import RunnerContext
    from orch.spec.state import NodeState
    from orch.stacks.maintenance.plan import MaintenancePlan, Options, Verb
    from orch.stacks.plans.request import FleetRequest
    from orch.stacks.project.project import Project
    from orch.stacks.pulumi.operation import Listener

SCHEMA = 1


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

    def command(self, how: Handling) -> str:
        """Return the command that agrees to the plan without being asked."""
        report = ["--report", str(how.report)] if how.report is not None else []
        words = ("orch", *self.words, *self.options.words(), *report, *(["--json"] if how.as_json else []))
        return shlex.join((*words, "--yes"))


def maintain(verb: Verb, words: Sequence[str], fleet: str | None, waves: Waves, how: Handling) -> None:
    """Plan a maintenance of nodes, ask, and carry it out; one that was interrupted is gone on with."""
    from orch.cli.targets.nodes import names_in

    options = waves.parsed()

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


def begin(asked: Begin, how: Handling, path: str | None) -> None:
    """Show the plan of a maintenance, ask, and carry it out, in the project of a path (default: here)."""
    from orch.cli.driver.opening import open_runner
    from orch.cli.maintenance.checks import in_order
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.spec.grammar.hosts import fold
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
    from orch.cli.targets.nodes import nodes_named
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


def _show_end(project: Project, changes: Changes, number: int, how: Handling) -> None:
    """Print what became of a change, and write its report where one is asked for."""
    from datetime import datetime, timezone

    from orch.review.markdown import maintenance_report as report
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
    """Raise UsageError if a maintenance continues with other options than its plan has for runs."""
    if (plan.stop_runs, plan.wait_s) == (options.stop_runs, options.wait_s):
        return
    raise UsageError(
        f"change {earlier.id} was begun with another `--stop-runs` or `--wait`, and is not ended",
        hint=f"`{earlier.command}` goes on with it; `orch log {earlier.id} --abandon` gives it up",
    )


def _refuse_nothing(plan: MaintenancePlan) -> None:
    from orch.spec.grammar.hosts import fold
    from orch.stacks.maintenance.errors import NothingToDo

    if plan.nodes:
        return
    raise NothingToDo(
        f"{fold([each.name for each in plan.left_alone])}: left alone, nothing was done",
        detail="\n".join(f"{each.name}: {each.why}" for each in plan.left_alone),
        hint="; ".join(dict.fromkeys(each.hint for each in plan.left_alone if each.hint)) or None,
        code="ORCH400",
    )
