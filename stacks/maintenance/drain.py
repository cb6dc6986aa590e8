"""Drains nodes: no new job begins on them, and those that run end, as the plan says."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from orch.runner.errors import CommandTimeout, HostUnreachable
from orch.runner.node_api.cordon import Cordon, mark, mark_for, unmark_of
from orch.runner.processes import here
from orch.runner.runs.lifecycle import stop
from orch.spec.errors import OrchError
from orch.spec.grammar.values import render_duration
from orch.spec.state import NodeState
from orch.stacks.errors import Conflict
from orch.stacks.maintenance.context import Failures, Maintenance, raise_if_over
from orch.stacks.maintenance.errors import MaintenanceError, NotDrained
from orch.stacks.maintenance.look import RunKey, key_of, runs_on
from orch.stacks.maintenance.plan import PlannedRun

NODE_S = 15.0
"""How long a node may take to answer."""
PAUSES_S = (1.0, 2.0, 5.0, 10.0)
"""Pauses between looks at whether runs have ended; the last one repeats."""

CORDON, DRAIN, UNCORDON = "cordon", "drain", "uncordon"

NOT_IN_ORDER = "not in order"
"""How the reason begins for which a node stays cordoned that maintenance did not help."""


def cordon(at: Maintenance, names: Sequence[str], failures: Failures) -> None:
    """Cordon nodes; a mark that its caller made before stays, and is nobody else's."""

    def do(node: NodeState) -> str:
        try:
            return put_mark(at, node, at.plan.reason or at.title)
        except (HostUnreachable, CommandTimeout):
            if at.plan.node(node.name).answers:
                raise
            return "does not answer, so it has no mark"

    at.on_each(names, CORDON, do, failures)


def put_mark(at: Maintenance, node: NodeState, reason: str) -> str:
    """Cordon a node for this change; what its mark is. Raises MaintenanceError where somebody else did."""
    (result,) = mark_for([node], at.connector, reason, at.mark, deadline_s=NODE_S)
    standing = _value(result.value, result.error)
    if f"({at.mark})" in standing.reason:
        return "cordoned"
    if standing.by == here() and standing.reason.startswith(NOT_IN_ORDER):
        # Left by maintenance that did not help: this one may.
        (again,) = mark([node], at.connector, f"{reason} ({at.mark})", deadline_s=NODE_S)
        _value(again.value, again.error)
        return f"cordoned, and was so: {standing}"
    if standing.by == here() or standing.of_cloud:
        return f"was cordoned before, and stays so: {standing}"
    raise MaintenanceError(
        f"somebody else cordoned node {node.name} meanwhile",
        detail=str(standing),
        hint=f"ask them, or `orch cordon --undo {node.name}` first",
        code="ORCH400",
    )


def uncordon(at: Maintenance, names: Sequence[str], failures: Failures) -> None:
    """Let nodes take jobs again that this change cordoned."""

    def do(node: NodeState) -> str:
        (result,) = unmark_of([node], at.connector, at.mark, deadline_s=NODE_S)
        if result.error is not None:
            raise result.error
        return f"stays cordoned: {result.value}" if result.value is not None else "may take jobs again"

    at.on_each(names, UNCORDON, do, failures)


def drain(at: Maintenance, names: Sequence[str], failures: Failures) -> None:
    """Wait until no run is on the nodes, and stop those that the plan stops after that.

    A run that is not in the plan is told, and not stopped.
    """
    left = [name for name in names if name not in failures and not at.journal.is_done(name, DRAIN)]
    if not left:
        return
    deadline = time.monotonic() + at.plan.wait_s
    planned = {key_of(each): each for each in at.plan.runs}
    told = set[RunKey]()
    present = _runs(at, left)
    pauses = iter(PAUSES_S)
    while present and time.monotonic() < deadline:
        for each in present:
            if key_of(each) not in planned and key_of(each) not in told:
                at.tell(f"run {each} came after the plan: it is not stopped, its end is waited for")
                told.add(key_of(each))
        if not told:
            at.tell(f"waiting for runs to end, at most {render_duration(at.plan.wait_s)}: {_names(present)}")
            told.update(key_of(each) for each in present)
        time.sleep(min(next(pauses, PAUSES_S[-1]), max(0.0, deadline - time.monotonic())))
        present = _runs(at, left)
    stops = [planned[key_of(each)] for each in present if key_of(each) in planned]
    _stop(at, [each for each in stops if each.stops])
    if stops:
        present = _runs(at, left)
    for name in left:
        here_still = [each for each in present if name in each.nodes]
        try:
            at.journal.step(name, DRAIN, lambda name=name, runs=here_still: _drained(name, runs, planned))
        except OrchError as error:
            raise_if_over(error)
            failures[name] = error


def _drained(name: str, runs: Sequence[PlannedRun], planned: Collection[RunKey]) -> str:
    if not runs:
        return "no run is on it"
    new = [each for each in runs if key_of(each) not in planned]
    words = "came after the plan and is not stopped" if new else "has not ended"
    raise NotDrained(
        f"node {name} is not drained: run {_names(new or runs)} {words}",
        detail="\n".join(map(str, runs)),
        hint="the same command goes on when they have ended; `orch node drain --undo` lets the node back",
        code="ORCH401",
    )


def _runs(at: Maintenance, names: Sequence[str]) -> list[PlannedRun]:
    return runs_on(at.project, at.by_fleet(names), at.listener)


def _names(runs: Sequence[PlannedRun]) -> str:
    return ", ".join(dict.fromkeys(each.name or "?" for each in runs))


def _stop(at: Maintenance, runs: Sequence[PlannedRun]) -> None:
    """Stop runs of the plan, each once and all at the same time. One that cannot be stopped is still there,
    which its nodes tell."""
    if not runs:
        return
    at.tell(f"stopping {_names(runs)}")
    with ThreadPoolExecutor(len(runs), thread_name_prefix="orch-stop") as pool:
        errors = list(pool.map(lambda run: _stop_one(at, run), runs))
    for error in errors:
        if error is not None:
            raise_if_over(error)
            at.tell(f"warning: {error.summary}")


def _stop_one(at: Maintenance, run: PlannedRun) -> OrchError | None:
    def do() -> str:
        if run.number is None:
            raise Conflict(f"run {run.name} is of another project", code="ORCH386")
        return stop(at.runner, at.runner.ledger.by_id(run.number)).status

    try:
        at.journal.step("", f"stop run {run.name} ({run.number})", do)
    except OrchError as error:
        return error
    return None


def _value(value: Cordon | None, error: OrchError | None) -> Cordon:
    if value is None:
        assert error is not None
        raise error
    return value
