"""Makes nodes for a run that finds too few: shown first and asked about, else `--yes`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from orch.cli.errors import say, tell
from orch.spec.suggest import counted

if TYPE_CHECKING:
    from orch.runner.ledger.records import RunRow
    from orch.runner.runs.context import RunContext
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.spec.errors import OrchError
    from orch.spec.models import Task
    from orch.spec.state import FleetState
    from orch.stacks.project.project import Project
    from orch.stacks.runs.nodes_for_runs import Growth
    from orch.stacks.stack.state import StackState

LOCKED_PAUSE_S = 3.0
"""How often a stack that somebody holds is asked for again."""


@dataclass(frozen=True)
class NewNodes:
    """Permission of a command to create nodes. `yes`: without asking; `command`: what a user types to agree;
    `as_json`: stdout is for others; `waits`: for whoever holds the fleet's stack; `wanted`: returns whether
    the run still needs them; `asked`: False for a later attempt, whose plan nobody sees."""

    allowed: bool
    yes: bool
    command: str
    as_json: bool = False
    waits: bool = True
    wanted: Callable[[], bool] = lambda: True
    asked: bool = True


def growth_of(
    project: Project,
    runner: RunnerContext | RunContext,
    task: Task,
    fleets: Iterable[FleetState],
    lost: Collection[str] | None = None,
    *,
    refused: Mapping[str, OrchError] = MappingProxyType({}),
) -> Growth | None:
    """Return the growth that gives a task room, on the first of the fleets that may grow; None if the task
    can start on the nodes that exist, or no fleet can grow.

    `lost`, of a later attempt, where nobody is asked: names of nodes that the run has lost, and that count as
    gone if they are silent. Then no fleet grows one of whose nodes cannot be prepared, or does not answer and
    may still come: else each attempt would make one more.

    `refused`: reasons by name of fleets that cannot grow for this task; these are not asked again. Raises the
    first of such reasons, or BadTask, ImageError or VolumeMisfit, if no other fleet can serve the task, now
    or when it is free.
    """
    from orch.images.errors import ImageError
    from orch.runner.errors import BadTask
    from orch.runner.events import Notice
    from orch.runner.launch.volumes import VolumeMisfit
    from orch.runner.placement.placement import misfit
    from orch.runner.runs.seats.choose import free_now
    from orch.spec.grammar.hosts import fold
    from orch.spec.state import own_nodes
    from orch.stacks.runs.nodes_for_runs import growth_for, too_small

    growths: list[Growth] = []
    refusals: list[OrchError] = [*refused.values()]
    waits = False
    for state in fleets:
        without_others = own_nodes(state, None)
        waits = waits or misfit(task, without_others) is None
        now = free_now(runner, task, without_others)
        if now.starts and task.array is None:  # of an array more than one begins
            return None
        if growths or state.name in refused:
            continue
        gone = now.silent.intersection(lost or ())
        try:
            growth = growth_for(project, task, state, now.idle, gone=gone, leaving=now.leaving)
        except (BadTask, ImageError, VolumeMisfit) as error:
            refusals.append(error)
            continue
        if growth is None and lost is None and (why_never := too_small(project, task, state)):
            refusals.append(why_never)
        names = {node.name for node in growth.state.nodes} if growth is not None else set[str]()
        silent = now.silent.difference(lost) & names if lost is not None else None
        if growth is not None and lost is not None and (now.unfit or silent):
            why = (
                f"{fold(sorted(now.unfit))} could not be prepared"
                if now.unfit
                else f"{fold(sorted(silent or ()))} does not answer"
            )
            runner.processor.handle(Notice(f"no node of fleet {state.name} is made: {why}", "warning"))
            continue
        growths += filter(None, [growth])
    if refusals and not growths and not waits:
        raise refusals[0]
    return growths[0] if growths else None


def make(project: Project, growth: Growth, how: NewNodes) -> bool:
    """Show what making the nodes comes to, ask, and make them; False when somebody holds the fleet's stack,
    or they are not wanted any more.

    Raises UsageError where nobody can be asked, NoFit, and what `up` raises; then nothing of them is left.
    """
    from orch.cli.output.plan import cost_line, counts
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal, shown_lines, tell_problems
    from orch.stacks.errors import StackLocked
    from orch.stacks.provisioning import operations
    from orch.stacks.provisioning.nodes_with_runs import making
    from orch.stacks.runs.nodes_for_runs import make_nodes, plan_growth, still_lacking

    name, more = growth.state.name, counted(growth.more, "more node")
    mark = growth.request.made_for
    tell(f"fleet {name}: the run needs {more}")
    told = False
    if not how.yes:
        need_terminal(how.command, project)
    while True:
        with watching(as_json=how.as_json) as listener:
            plan = plan_growth(project, growth, listener, asked=how.asked)
        if not plan.pending:
            return True
        now = None if mark is not None else still_lacking(project, growth)
        if now is not None and now.more != growth.more:
            tell("the plan is made again: nodes ended meanwhile")
            growth = now
            continue
        for line in (*shown_lines(plan, verbose=False), f"plan: {counts(plan.changes)}; {cost_line(plan)}"):
            tell(line)
        if not told and plan.prepared is not None:
            told = True
            backend = plan.prepared.compiled.pins.get("backend", growth.state.backend)
            _tell_credentials(project, backend, f"fleet {name}: they")
        if not how.yes:
            confirm(f"Make {more} of the fleet {name} for this run?")
        try:
            with watching(as_json=how.as_json) as listener:
                reason = operations.outdated(plan, growth.request, listener)
                if reason is None and not how.wanted():
                    return False
                if reason is None:
                    with making(project, mark):
                        result = make_nodes(project, growth, plan, listener)
                    break
        except StackLocked:
            if how.waits:
                _wait(project, name)
            return False
        tell(f"the plan is made again: {reason}")
    (tell if how.as_json else say)(f"fleet {name}: {counts(result.changes, done=True)}")
    tell_problems(result, growth.document)
    return True


def tell_of_later_nodes(project: Project, stack: StackState, row: RunRow) -> None:
    """Tell whose credentials the driver of a detached run makes nodes with, where its fleet may get some."""
    from orch.components.node_count import may_grow
    from orch.components.request import PriorState

    if not may_grow(stack.outputs.get("pins") or {}):
        return
    backend = PriorState.of_outputs(stack.outputs).backend
    _tell_credentials(project, backend, f"run {row.name}: nodes for later attempts")


def _tell_credentials(project: Project, backend: str | None, what: str) -> None:
    """Tell whose credentials nodes are made with on a backend, where it wants some; `what`: those nodes.

    None: it is not known yet where they go. A backend that cannot be asked is a warning."""
    from orch.spec.errors import OrchError
    from orch.stacks.runs.nodes_for_runs import account_words

    whose: str | None = "this shell"
    try:
        whose = account_words(project, backend) if backend is not None else whose
    except OrchError as error:
        tell(f"warning: whose credentials make nodes could not be asked: {error.summary}")
    if whose is not None:
        tell(f"{what} are made with the credentials of {whose}")


def _wait(project: Project, fleet: str) -> None:
    """Wait in line for a stack. Of a remote state nobody here knows the holder: it is asked for again."""
    from orch.stacks.stack.locks import locks

    holders = ", ".join(str(lock) for lock in locks(project, fleet) if not lock.dead)
    tell(f"fleet {fleet} is held by {holders or 'another process'}: waiting for it")
    time.sleep(LOCKED_PAUSE_S)
    while any(not lock.dead for lock in locks(project, fleet)):
        time.sleep(LOCKED_PAUSE_S)
