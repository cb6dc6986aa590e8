"""The next act of a run: a pure function of the ledger's record and the present state of its ranks.

The order of the rules is their priority. Every decision is written to the ledger before it is carried out
(`Phase`), so that a process that takes over knows what may already have happened. Every act may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from orch.runner.ledger.records import RunRow
from orch.runner.node.runtime import CloudNotice, ObservedRank
from orch.runner.plan.run_plan import RunPlan
from orch.spec.grammar.hosts import fold
from orch.spec.grammar.values import render_duration

# The termination reason of a rank whose node its cloud took, or announced to.
INTERRUPTED = "interrupted_by_no_capacity"


class Phase(str, Enum):
    """The furthest step that was decided on."""

    WAITING = "waiting"
    SUBMITTED = "submitted"
    STARTING = "starting"
    GOING = "going"
    RUNNING = "running"
    STOPPING = "stopping"
    COLLECTING = "collecting"
    FINISHED = "finished"


@dataclass(frozen=True)
class Verdict:
    """How a run will end, once all is stopped and collected."""

    status: Literal["done", "failed", "terminated"]
    reason: str
    message: str | None = None


@dataclass(frozen=True)
class Start:
    """Start the containers of these ranks, each behind its barrier."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ReleaseBarrier:
    """Lift the barrier for these ranks."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Signal:
    """Send these ranks the run's signal: others of them have had it, for their node is taken away."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class MarkRunning:
    """All commands run: the run takes the status `running`."""


@dataclass(frozen=True)
class Stop:
    """Stop these ranks; the run will end with `verdict`."""

    ranks: tuple[int, ...]
    verdict: Verdict
    kill: bool = False


@dataclass(frozen=True)
class Collect:
    """Fetch the logs, clean up the nodes and finish with `verdict`."""

    verdict: Verdict


@dataclass(frozen=True)
class Wait:
    """Nothing to do until something changes."""


Act = Start | ReleaseBarrier | Signal | MarkRunning | Stop | Collect | Wait


@dataclass(frozen=True)
class RunView:
    """The ledger's view of a run: its desired state, its phase, and its verdict once there is one.

    `silent_s`: seconds since each silent rank last answered. `given_up`: ranks whose node is no longer
    waited for. `notices`: what their cloud announced of the nodes of ranks. `interrupted_s`: seconds since
    the first rank left its node because of that.
    """

    desired: str
    phase: Phase
    verdict: Verdict | None = None
    silent_s: Mapping[int, float] | None = None
    given_up: frozenset[int] = frozenset()
    notices: Mapping[int, CloudNotice] | None = None
    interrupted_s: float = 0.0


def decide(plan: RunPlan, view: RunView, ranks: Sequence[ObservedRank]) -> Act:
    """The next act. `ranks` holds one observation per rank, in rank order."""
    lost = _lost(plan, view)
    departed = departed_ranks(plan, view, ranks)
    remaining = [rank for rank in ranks if rank.rank not in departed]
    verdict = view.verdict or _verdict(plan, view, remaining, lost - departed)
    if verdict is not None:
        kill = view.desired == "abort"
        alive = [rank.rank for rank in ranks if rank.alive and (kill or "stopping" not in rank.marks)]
        if alive:
            return Stop(tuple(alive), verdict, kill)
        # The first stop may have been lost: a Docker that was restarted has forgotten it.
        overdue = [rank.rank for rank in ranks if rank.alive and "overdue" in rank.marks]
        if overdue:
            return Stop(tuple(overdue), verdict, kill=True)
        pending = [rank for rank in ranks if rank.alive or (rank.state == "silent" and rank.rank not in lost)]
        return Wait() if pending else Collect(verdict)
    signalled = _unsignalled(plan, ranks)
    if signalled:
        return Signal(signalled)
    if any(rank.state == "silent" for rank in remaining):
        return Wait()
    if view.phase in (Phase.SUBMITTED, Phase.STARTING):
        absent = tuple(rank.rank for rank in ranks if rank.state == "absent")
        if absent:
            return Start(absent)
    waiting = [rank for rank in ranks if rank.alive and "go" not in rank.marks]
    if waiting:
        released = _releasable(plan, ranks, waiting)
        return ReleaseBarrier(released) if released else Wait()
    if view.phase is not Phase.RUNNING and all(rank.ended or "started" in rank.marks for rank in remaining):
        return MarkRunning()
    return Wait()


def departed_ranks(plan: RunPlan, view: RunView, ranks: Sequence[ObservedRank]) -> frozenset[int]:
    """The ranks that an elastic run has lost and goes on without; none where it cannot.

    Their node does not answer any more, their container is gone, or it ended badly.
    """
    if plan.elastic is None or view.phase not in (Phase.GOING, Phase.RUNNING):
        return frozenset()
    lost = _lost(plan, view)
    departed = frozenset(
        rank.rank
        for rank in ranks
        if rank.state == "absent"
        or (rank.state == "silent" and rank.rank in lost)
        or rank_reason(rank) in ("container_exited_with_error", INTERRUPTED)
    )
    whole = plan.elastic.rendezvous_rank not in departed and len(ranks) - len(departed) >= plan.elastic.least
    return departed if whole else frozenset()


def _told_to_leave(rank: ObservedRank) -> bool:
    """Whether a rank was sent its signal because its node is taken away."""
    return {"interrupted", "signalled"} <= rank.marks


def _unsignalled(plan: RunPlan, ranks: Sequence[ObservedRank]) -> tuple[int, ...]:
    """Ranks that are to save with those which were told to leave their nodes; an elastic run goes on."""
    if plan.signal is None or plan.elastic is not None or not any(map(_told_to_leave, ranks)):
        return ()
    return tuple(
        rank.rank
        for rank in ranks
        if rank.alive and "started" in rank.marks and not {"signalled", "stopping"} & rank.marks
    )


def _saving(plan: RunPlan, view: RunView, ranks: Sequence[ObservedRank]) -> bool:
    """Whether ranks still save, or are to, while others have left their nodes: they are not stopped for as
    long as a stop would leave them."""
    patient = plan.stop_duration_s is None or view.interrupted_s < plan.stop_duration_s
    left = _unsignalled(plan, ranks) or any(rank.alive and "signalled" in rank.marks for rank in ranks)
    return plan.elastic is None and patient and bool(left)


def _lost(plan: RunPlan, view: RunView) -> set[int]:
    """Ranks whose node has not answered for so long that it is not waited for."""
    silent = {rank for rank, seconds in (view.silent_s or {}).items() if seconds >= plan.unreachable_grace_s}
    return silent | view.given_up


def _releasable(
    plan: RunPlan, ranks: Sequence[ObservedRank], waiting: Sequence[ObservedRank]
) -> tuple[int, ...]:
    """The ranks to release now. With a startup order, the second group waits until the first has started."""
    if plan.startup_order == "any" or len(plan.ranks) == 1:
        return tuple(rank.rank for rank in waiting)
    master_first = plan.startup_order == "master-first"
    first_group = [rank for rank in ranks if (rank.rank == 0) == master_first]
    ready_group = [rank for rank in waiting if (rank.rank == 0) == master_first]
    if ready_group:
        return tuple(rank.rank for rank in ready_group)
    all_started = all(rank.ended or "started" in rank.marks for rank in first_group)
    return tuple(rank.rank for rank in waiting) if all_started else ()


def _verdict(plan: RunPlan, view: RunView, ranks: Sequence[ObservedRank], lost: set[int]) -> Verdict | None:
    """The verdict of the run, None while it is open. `ranks` are those that it has not gone on without."""
    if view.desired == "stop":
        return Verdict("terminated", "stopped_by_user")
    if view.desired == "abort":
        return Verdict("terminated", "aborted_by_user")
    # A limit that one rank has reached may make others fail before that one has ended.
    saving = _saving(plan, view, ranks)
    failed = sorted(
        (
            rank
            for rank in ranks
            if rank_reason(rank) not in (None, "done") and not (saving and _left_well(rank))
        ),
        key=lambda rank: (rank_reason(rank) == "container_exited_with_error", rank.ended_at or 0.0),
    )
    if failed:
        return Verdict("failed", "job_failed", describe(plan, failed[0]))
    if lost:
        names = fold([plan.ranks[rank].node.name for rank in sorted(lost)])
        detail = next(
            (rank.detail for rank in ranks if rank.rank in lost and rank.detail),
            None,
        )
        grace = f"{plan.unreachable_grace_s:g} s"
        notice = next((each for rank, each in (view.notices or {}).items() if rank in lost), None)
        if notice is not None and notice.interrupts:
            return Verdict("failed", "job_failed", f"node {names} was interrupted: {notice}")
        return Verdict(
            "failed",
            "job_failed",
            f"node {names} did not answer for {grace}" + (f" ({detail})" if detail else ""),
        )
    overdue = [rank for rank in ranks if rank.alive and "overdue" in rank.marks]
    if overdue and plan.max_duration_s:
        return Verdict("failed", "job_failed", describe(plan, overdue[0]))
    if view.phase in (Phase.GOING, Phase.RUNNING):
        absent = [rank for rank in ranks if rank.state == "absent"]
        if absent:
            return Verdict("failed", "job_failed", describe(plan, absent[0]))
    if any(map(_told_to_leave, ranks)) and not all(rank.ended for rank in ranks):
        return None  # the master has saved, and the others may be about to
    if ranks[0].ended and ranks[0].rank == 0 and plan.stop_criteria == "master-done":
        return Verdict("done", "all_jobs_done")
    if all(rank.ended for rank in ranks):
        return Verdict("done", "all_jobs_done")
    return None


def rank_reason(rank: ObservedRank) -> str | None:
    """The termination reason of a rank by itself (configuration 8); None while it lives."""
    if not rank.ended:
        return None
    if "expired" in rank.marks:
        return "max_duration_exceeded"
    if "unused" in rank.marks:
        return "terminated_due_to_utilization_policy"
    if "inactive" in rank.marks:
        return "inactivity_duration_exceeded"
    # One that was sent its signal has saved and left; one that has none may have come to its end.
    if "interrupted" in rank.marks and not rank.out_of_memory and (rank.exit_code or _told_to_leave(rank)):
        return INTERRUPTED
    if rank.exit_code == 0 and not rank.out_of_memory:
        return "done"
    return "container_exited_with_error"


def _left_well(rank: ObservedRank) -> bool:
    return rank_reason(rank) == INTERRUPTED and rank.exit_code == 0


def describe(plan: RunPlan, rank: ObservedRank) -> str:
    """How a rank failed, for people."""
    where = f"rank {rank.rank} on node {plan.ranks[rank.rank].node.name}"
    if rank.state == "absent":
        return f"the container of {where} disappeared"
    if "expired" in rank.marks or (rank.alive and "overdue" in rank.marks):
        return f"{where} reached max_duration ({plan.max_duration_s} s)"
    if "unused" in rank.marks and plan.utilization is not None:
        policy = plan.utilization
        window = render_duration(policy.window_s)
        return f"{where} used a GPU less than {policy.min_gpu_utilization} % for {window}"
    if "inactive" in rank.marks and plan.dev is not None:
        return f"nobody was connected to {where} for inactivity_duration ({plan.dev.inactivity_s} s)"
    if rank_reason(rank) == INTERRUPTED:
        return f"{where} was interrupted: {rank.notice or rank.detail or 'its cloud takes the node'}"
    if rank.out_of_memory:
        return f"{where} ran out of memory (exit code {rank.exit_code})"
    if rank.process_limit is not None:
        limit = f"it reached its limit of {rank.process_limit} processes and threads"
        return f"{where} exited with code {rank.exit_code} after {limit}"
    return f"{where} exited with code {rank.exit_code}"


def verdict_of(row: RunRow) -> Verdict | None:
    """The verdict in the ledger, None before there is one: a reason is only written with a verdict."""
    if row.reason is None:
        return None
    if row.reason in ("stopped_by_user", "aborted_by_user"):
        return Verdict("terminated", row.reason, row.message)
    return Verdict("done" if row.reason == "all_jobs_done" else "failed", row.reason, row.message)


def rank_status(rank: ObservedRank, previous: str, run_reason: str | None) -> tuple[str, str | None]:
    """Status and termination reason of a rank as now observed."""
    reason = rank_reason(rank)
    if reason is None:
        if rank.alive and "started" in rank.marks:
            return ("terminating" if "stopping" in rank.marks else "running"), None
        return previous, None
    if "stopping" in rank.marks and reason in ("done", "container_exited_with_error", INTERRUPTED):
        ended_well = run_reason == "all_jobs_done"
        rank_reasons = {"stopped_by_user": "terminated_by_user", "aborted_by_user": "aborted_by_user"}
        if ended_well:
            return "done", "done"
        return "terminated", rank_reasons.get(run_reason or "", "sibling_failed")
    return ("done" if reason == "done" else "failed"), reason


def end_reason(verdict: Verdict) -> str:
    """The termination reason of a rank that did not end by itself."""
    if verdict.status == "done":
        return "done"
    if verdict.reason == "aborted_by_user":
        return "aborted_by_user"
    return "terminated_by_user" if verdict.status == "terminated" else "sibling_failed"
