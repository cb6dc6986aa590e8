"""The attempts of a run after its first: the wait between two, and how the next one gets nodes and a plan.

A later attempt is placed anew, on the fleet as it is then, and compiled from what the run was submitted with.
What the task takes along (`files`, `repos`), its image and its keys are those of the first attempt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orch.runner.errors import (
    ArrayFull,
    BadTask,
    HostfileIncomplete,
    HostUnreachable,
    LedgerUnusable,
    NodeUnfit,
    NoFit,
    NotAdmitted,
    PodsRefused,
    RunConflict,
    error_text,
    nodes_in_use,
)
from orch.runner.events import Notice, RunChanged
from orch.runner.launch.compile import compile_run
from orch.runner.launch.launch_record import LaunchRecord
from orch.runner.launch.volumes import Volumes
from orch.runner.ledger.lease import LeaseLost
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import ARRAY_LIMIT, Lease, RunRow, Waiting
from orch.runner.ledger.waiting_line import Line, behind
from orch.runner.placement.placement import place_task
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs.context import RunContext
from orch.runner.runs.decide import Phase, Verdict
from orch.runner.runs.pods.admission import admitted, brings_pods, give_pods_back, look_again_s
from orch.runner.runs.ranks import LOOK_DEADLINE_S, collect_ranks, stop_ranks
from orch.runner.runs.retry import (
    GiveUp,
    TryAgain,
    attempt_events,
    attempts_made,
    counts,
    known_events,
    next_try,
    shortage_events,
)
from orch.runner.runs.seats.choose import SeatSearch, choose_seats
from orch.runner.user_hosts import close_entry
from orch.spec.confidential import hidden
from orch.spec.errors import OrchError
from orch.spec.grammar.hosts import fold
from orch.spec.state import FleetState, new_nodes

if TYPE_CHECKING:
    from orch.spec.models import Task

REMOVE_EVERY_S = 15.0
"""How often nodes that did not answer when an earlier attempt ended are asked again."""
REMOVE_PATIENCE_S = 10.0
"""How long an attempt that is due waits for them; what takes longer goes on beside it."""


def finish(context: RunContext, lease: Lease, row: RunRow, verdict: Verdict) -> None:
    """End the run for good. Raises LeaseLost."""
    context.folder.forget_secrets()
    close_entry(context.folder, row.name)
    context.ledger.finish(lease, verdict.status, verdict.reason, verdict.message)
    context.processor.handle(RunChanged(row.name, verdict.status, verdict.reason, verdict.message))
    _give_nodes_back(context, row)


def _give_nodes_back(context: RunContext, row: RunRow) -> None:
    """Have the nodes removed that were made for this run alone. What fails is told, and `orch reconcile` does
    it later."""
    try:
        give_pods_back(context, row)
        if context.provisioned is not None:
            context.provisioned.attempt_ended(row)
    except OrchError as error:
        text = f"nodes that were made for run {row.name} are not removed: {error_text(error)}"
        context.ledger.tell(row.id, "nodes not removed", text)
        context.processor.handle(Notice(f"{text}; `orch reconcile` removes them", "warning"))


def end_attempt(context: RunContext, lease: Lease, row: RunRow, plan: RunPlan, verdict: Verdict) -> None:
    """After all of an attempt was collected: end the run, or let it wait for another attempt.

    Raises LeaseLost.
    """
    if verdict.status != "failed" or plan.retry is None or row.desired != "run":
        finish(context, lease, row, verdict)
        return
    started = row.started_at is not None
    events = attempt_events(plan, row.ranks, started=started)
    message = verdict.message or verdict.reason
    choice = next_try(plan.retry, row, events, made=attempts_made(row.attempts) + counts(events))
    if choice is None:
        finish(context, lease, row, verdict)
    elif isinstance(choice, GiveUp):
        finish(context, lease, row, _given_up(message, choice))
    else:
        context.ledger.wait(lease, _waiting(message, choice), sorted(events))
        outcome = f"attempt {row.attempt} failed: {message}"
        _tell_waiting(context, row, f"{outcome}; attempt {row.attempt + 1} begins in {choice.delay_s:.0f} s")
        _give_nodes_back(context, row)


def _waiting(message: str, choice: TryAgain) -> Waiting:
    return Waiting(message, choice.delay_s, choice.since, choice.tries)


def _tell_waiting(context: RunContext, row: RunRow, message: str) -> None:
    context.processor.handle(RunChanged(row.name, "pending", "retry", message))


def _given_up(message: str, choice: GiveUp) -> Verdict:
    return Verdict("failed", "retry_limit_exceeded", f"{message}; {choice.why}")


def end_waiting(
    context: RunContext, lease: Lease, row: RunRow, verdict: Verdict, *, status: str, reason: str
) -> None:
    """End a run that waits. Ranks that were never started get this status and reason. Raises LeaseLost."""
    end = {"status": status, "reason": reason}
    context.ledger.change_ranks(
        lease, row.attempt, {rank.rank: end for rank in row.ranks if rank.reason is None}
    )
    finish(context, lease, row, verdict)


def begin_attempt(
    context: RunContext, lease: Lease, row: RunRow, plan: RunPlan, leftovers: Iterable[Leftover] = ()
) -> None:
    """Write down the next attempt of a run that waits; without free nodes for it, the run waits on, or ends.

    `leftovers`: what of its earlier attempts is still on nodes, which are not free for that.

    Raises LeaseLost, LedgerUnusable, and RunFailed on a machine that the run was not submitted from.
    """
    try:
        if brings_pods(plan):
            attempt = _on_pods(context, row, plan)
            _write_attempt(context, lease, row, attempt)
            return
        line = context.ledger.line(row.fleet)
        first = line.before(row.id, row.priority)
        if first is not None:
            raise behind(first)
        attempt = _next_attempt(context, row, plan, _released_at(context, row, line))
    except NotAdmitted as error:
        # Its queue is the cluster's: a look is no try.
        delay_s, again = error.delay_s or look_again_s(row), error.delay_s is not None
        waiting = Waiting(error_text(error), delay_s, row.retry_since, row.retry_tries + again)
        context.ledger.wait(lease, waiting)
        if waiting.message != row.message:
            context.processor.handle(RunChanged(row.name, "pending", None, waiting.message))
        return
    except (RunConflict, HostUnreachable, NodeUnfit, NoFit) as error:
        _without_nodes(context, lease, row, plan, error=error, leftovers=leftovers)
        return
    except PodsRefused as error:
        message = error_text(error) + (f"; what to do: {hidden(error.hint)}" if error.hint else "")
        verdict = Verdict("failed", "job_failed", message)
        end_waiting(context, lease, row, verdict, status="failed", reason=error.reason)
        return
    except (BadTask, HostfileIncomplete) as error:
        verdict = Verdict("failed", "job_failed", error_text(error))
        end_waiting(context, lease, row, verdict, status="failed", reason="executor_error")
        return
    _write_attempt(context, lease, row, attempt)


def _released_at(context: RunContext, row: RunRow, line: Line) -> float | None:
    """When a run last left nodes of a run's fleet. An empty line does not say, and the members of an array
    that begin one after the other are to ask each node once."""
    if line.waiters or row.array is None or context.recent_statuses is None:
        return line.released_at
    return context.ledger.released_at(row.fleet)


def _write_attempt(context: RunContext, lease: Lease, row: RunRow, attempt: _Attempt) -> None:
    """Raises LeaseLost, LedgerUnusable."""
    context.ledger.renew(lease)  # whoever has lost it must not write over what another driver has written
    try:
        context.folder.write_environments(attempt.environments)
    except OSError as error:
        raise LedgerUnusable(
            "the folder of a run cannot be written",
            where=str(context.folder.path),
            detail=error.strerror or str(error),
        ) from error
    nodes = [node.name for node in attempt.plan.nodes]
    try:
        context.ledger.begin_attempt(lease, row.next_attempt, attempt.plan.model_dump_json(), nodes)
    except ArrayFull:  # another member has begun meanwhile, by somebody else
        waits_for_array(context, lease, row)
        return
    context.processor.handle(Notice(f"run {row.name}: attempt {row.next_attempt} on {fold(nodes)}"))


def waits_for_array(context: RunContext, lease: Lease, row: RunRow) -> bool:
    """Whether a run waits because as many members of its array have nodes as may; it is written down then.

    Raises LeaseLost."""
    if row.array_limit is None or not context.ledger.arrays.is_full(row):
        return False
    if row.message != ARRAY_LIMIT or row.in_line:
        waiting = Waiting(ARRAY_LIMIT, 0.0, row.retry_since, row.retry_tries, leaves_line=True)
        context.ledger.wait(lease, waiting)
    return True


def begins_here(context: RunContext, row: RunRow) -> bool:
    """Whether this machine has what the run's next containers need: the one that submitted it has."""
    if row.phase == Phase.WAITING:
        return context.folder.has_launch
    started = row.phase not in (Phase.SUBMITTED, Phase.STARTING)
    return started or context.folder.has_environments


def may_advance(row: RunRow, line: Callable[[str], Line]) -> bool:
    """Whether there may be something to do for a run; not for one that waits and is not to look for nodes."""
    return row.status != "pending" or row.desired != "run" or may_look(row, line)


def may_look(row: RunRow, line: Callable[[str], Line]) -> bool:
    """Whether a run that waits is to look for nodes now: its delay is over, or a run has left some.

    It is not while another one is before it in `line`, that of its fleet, but for the tries that its delays
    say: those tell it so.
    """
    due = row.now >= (row.next_at or 0.0)
    if due or not row.in_line:
        return due
    waiting = line(row.fleet)
    return waiting.nodes_came_free(row.id) and waiting.before(row.id, row.priority) is None


def _without_nodes(
    context: RunContext,
    lease: Lease,
    row: RunRow,
    plan: RunPlan,
    *,
    error: OrchError,
    leftovers: Iterable[Leftover],
) -> None:
    """Put off an attempt that there are no nodes for; the try counts for the delays, and is no attempt.

    It is still the failure of the attempt before it that is tried again on.
    """
    message = "; ".join([error_text(error), *map(str, leftovers)])
    events = shortage_events(error)
    if row.attempts:
        failed = row.attempts[-1]
        events |= known_events(failed.events)
        message = f"attempt {failed.attempt} failed: {failed.message}; {message}"
    unstarted = replace(row, started_at=None)
    in_use = nodes_in_use(error)
    if row.next_at is not None and row.now < row.next_at:  # a look between two tries, as nodes came free
        between = Waiting(message, row.next_at - row.now, row.retry_since, row.retry_tries)
        looked = replace(between, for_nodes=True, in_use=in_use, looked_at=row.now)
        context.ledger.wait(lease, looked)
        return
    choice = next_try(plan.retry, unstarted, events, made=attempts_made(row.attempts))
    if isinstance(choice, TryAgain):
        looked = replace(_waiting(message, choice), for_nodes=True, in_use=in_use, looked_at=row.now)
        context.ledger.wait(lease, looked)
        _tell_waiting(context, row, f"{message}; asking again in {choice.delay_s:.0f} s")
        return
    verdict = Verdict("failed", "job_failed", message) if choice is None else _given_up(message, choice)
    reason = "failed_to_start_due_to_no_capacity"
    end_waiting(context, lease, row, verdict, status="failed", reason=reason)


@dataclass(frozen=True)
class _Attempt:
    plan: RunPlan
    environments: tuple[dict[str, str], ...]


def _next_attempt(context: RunContext, row: RunRow, previous: RunPlan, released_at: float | None) -> _Attempt:
    """Raises what `choose_seats` and `compile_run` raise, and RunFailed."""
    record = LaunchRecord.kept(context.folder)
    fleet, volumes = _fleet(context, row, record), _volumes(context, row, record)
    task = record.task
    # What an earlier attempt left in a volume of the node itself is there, and nowhere else.
    on_nodes = any(mount.kind != "network" for mount in task.volumes)
    failed = context.ledger.failed_nodes(row.id, lost_only=on_nodes)
    lone = task.model_copy(update={"array": None})  # one member alone
    made = record.makes_nodes and _made_nodes(context, row, lone, fleet)
    new = frozenset[str]()
    if made:
        before, fleet = fleet, _fleet(context, row, record)
        new = new_nodes(before, fleet)
    search = SeatSearch(answering=True, failed=failed, released_at=None if made else released_at)
    seats = choose_seats(context, task, fleet, search)
    compiled = compile_run(record.request(row, fleet=fleet, seats=seats, volumes=volumes, made=new))
    return _Attempt(compiled.plan.model_copy(update={"files": previous.files}), compiled.environments)


def _on_pods(context: RunContext, row: RunRow, previous: RunPlan) -> _Attempt:
    """The next attempt on pods of its own, when all of them run. Raises NotAdmitted until then, BadTask,
    NoFit, RunFailed, and what asking the cluster raises."""
    record = LaunchRecord.kept(context.folder)
    fleet, volumes = _fleet(context, row, record), _volumes(context, row, record)
    fleet = admitted(context, row, record, fleet, volumes=volumes, plan=previous)
    seats = place_task(record.task, fleet)
    made = frozenset(node.name for node in fleet.nodes)
    compiled = compile_run(record.request(row, fleet=fleet, seats=seats, volumes=volumes, made=made))
    return _Attempt(compiled.plan.model_copy(update={"files": previous.files}), compiled.environments)


def _made_nodes(context: RunContext, row: RunRow, task: Task, fleet: FleetState) -> bool:
    """Make the nodes that the fleet lacks for the run; where that fails, it goes by those that are there.

    Raises LedgerUnusable."""
    if context.provisioned is None:
        return False
    lost = context.ledger.failed_nodes(row.id, lost_only=True)
    try:
        return context.provisioned.make_nodes(context, task, fleet, lost)
    except LedgerUnusable:
        raise
    except OrchError as error:
        text = f"no nodes are made for run {row.name}: {error_text(error)}"
        if error.hint is not None:
            text += f"; what to do: {error.hint}"
        context.ledger.tell(row.id, "no nodes made", text)
        context.processor.handle(Notice(text, "warning"))
        return False


def _fleet(context: RunContext, row: RunRow, record: LaunchRecord) -> FleetState:
    """The run's fleet now: its nodes may be others than those it had when the run was submitted."""
    if context.provisioned is None:
        return record.fleet
    try:
        fleet = context.provisioned.fleet(record.fleet.stack, row.id)
    except OrchError as error:
        text = f"run {row.name} uses fleet {row.fleet} as it was when it was submitted: {error.summary}"
        context.processor.handle(Notice(text, "warning"))
        return record.fleet
    if fleet is None:
        raise NoFit(f"fleet {row.fleet} is not up")
    return fleet


def _volumes(context: RunContext, row: RunRow, record: LaunchRecord) -> Volumes:
    """The project's volumes, but for the use that the run itself makes of them."""
    if context.provisioned is None or not record.recorded_volumes:
        return record.volumes
    try:
        volumes = context.provisioned.volumes()
    except OrchError as error:
        text = f"run {row.name} uses its volumes as they were when it was submitted: {error.summary}"
        context.processor.handle(Notice(text, "warning"))
        return record.volumes
    others = {name: [use for use in uses if use.run != row.name] for name, uses in volumes.uses.items()}
    return Volumes(volumes.known, others)


@dataclass(frozen=True)
class Leftover:
    """A rank of an earlier attempt that is still on its node, and why it could not be removed."""

    attempt: int
    rank: int
    node: str
    why: str

    def __str__(self) -> str:
        return f"attempt {self.attempt} of this run is not cleaned up on {self.node}: {self.why}"


def remove_earlier_attempts(context: RunContext, row: RunRow, lease: Lease) -> tuple[Leftover, ...]:
    """Remove what earlier attempts have left on nodes that did not answer when they ended.

    What still runs there is killed: it would go on beside the next attempt. Its outputs are kept in the
    folder of their attempt alone, for a later one may have placed its own where `to` says. Nodes that do not
    answer are left to the next call. Returns the ranks that could not be removed although their nodes answer.
    Raises LeaseLost.
    """
    leftovers: list[Leftover] = []
    for ended in row.attempts:
        ranks = [rank.rank for rank in ended.ranks if not rank.collected]
        if not ranks:
            continue
        plan, of_attempt = plan_of(replace(row, plan=ended.plan)), context.of_attempt(ended.attempt)
        answering = stop_ranks(of_attempt, plan, ranks, kill=True)
        outputs = () if ended.started_at is None else plan.outputs
        plan = plan.model_copy(
            update={"outputs": tuple(each.model_copy(update={"to": None}) for each in outputs)}
        )
        results = collect_ranks(of_attempt, plan, answering, tell=False, deadline_s=LOOK_DEADLINE_S)
        collected = {rank: {"collected": 1} for rank, error in results.items() if error is None}
        context.ledger.change_ranks(lease, ended.attempt, collected)
        for rank, error in results.items():
            if error is not None:
                node = plan.ranks[rank].node.name
                leftovers.append(Leftover(ended.attempt, rank, node, error_text(error)))
    return tuple(leftovers)


class EarlierAttempts:
    """Cleans up nodes that did not answer when an earlier attempt of a run ended, beside its driver.

    That may bring outputs for hours: the run is driven meanwhile. `leftovers`: what could not be removed yet.
    """

    def __init__(self, context: RunContext, lease: Lease) -> None:
        self._context, self._lease = context, lease
        self._thread: threading.Thread | None = None
        self._asked_at = 0.0
        self.leftovers: tuple[Leftover, ...] = ()

    def remove(self, row: RunRow, *, at_once: bool = False) -> None:
        """Begin to clean up if anything is left and it is time; `at_once`: now, and wait for it a little."""
        left = any(not rank.collected for ended in row.attempts for rank in ended.ranks)
        busy = self._thread is not None and self._thread.is_alive()
        if left and not busy and (at_once or time.monotonic() - self._asked_at > REMOVE_EVERY_S):
            self._asked_at = time.monotonic()
            self._thread = threading.Thread(target=self._remove, args=(row,), name="orch-remove", daemon=True)
            self._thread.start()
        if self._thread is not None and at_once:
            self._thread.join(REMOVE_PATIENCE_S)

    def join(self) -> None:
        """Wait for what is under way: it may be bringing outputs, under the lease."""
        if self._thread is not None:
            self._thread.join()

    def _remove(self, row: RunRow) -> None:
        """Remove what earlier attempts have left, and tell once why it could not be."""
        processor = self._context.processor
        try:
            leftovers = remove_earlier_attempts(self._context, row, self._lease)
        except (LeaseLost, LedgerUnusable):
            return  # the driver sees that itself
        except OrchError as error:
            processor.handle(Notice(f"earlier attempts are not cleaned up: {error_text(error)}", "warning"))
            return
        for leftover in leftovers:
            if leftover not in self.leftovers:
                processor.handle(Notice(str(leftover), "warning"))
        self.leftovers = leftovers
