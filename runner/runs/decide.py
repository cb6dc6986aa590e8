"""What to do next about a run: a pure function of what was decided before and what is true now.

The order of the rules is their priority. Whatever is decided is written to the ledger before it is done
(`Phase`), so that a process that takes over knows what may already have happened; every act may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from orch.runner.errors import (
    CommandTimeout,
    HostfileIncomplete,
    HostUnreachable,
    NodeCordoned,
    NodePreparing,
    NodesBusy,
    NodeUnfit,
    RunFailed,
)
from orch.runner.launch.environment import fold
from orch.runner.launch.run_plan import RunPlan
from orch.runner.ledger.records import RunRow
from orch.runner.node.runtime import ObservedRank
from orch.spec.errors import OrchError


class Phase(str, Enum):
    """The furthest step that was decided on."""

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
    """Make the containers of these ranks."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ReleaseBarrier:
    """Lift the barrier for these ranks."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class MarkRunning:
    """All commands run: say so."""


@dataclass(frozen=True)
class Stop:
    """End these ranks; the run will come to `verdict`."""

    ranks: tuple[int, ...]
    verdict: Verdict
    kill: bool = False


@dataclass(frozen=True)
class Collect:
    """Fetch logs, clean the nodes up and finish with `verdict`."""

    verdict: Verdict


@dataclass(frozen=True)
class Wait:
    """Nothing to do now."""


Act = Start | ReleaseBarrier | MarkRunning | Stop | Collect | Wait


@dataclass(frozen=True)
class RunView:
    """What the ledger says: what people want, how far the run is, and the verdict that was reached, if any.

    `silent_s`: for how long each silent rank has been silent. `given_up`: ranks whose node is not waited for
    any more.
    """

    desired: str
    phase: Phase
    verdict: Verdict | None = None
    silent_s: Mapping[int, float] | None = None
    given_up: frozenset[int] = frozenset()


def decide(plan: RunPlan, known: RunView, seen: Sequence[ObservedRank]) -> Act:
    """The next act. `seen` holds one observation per rank, in rank order."""
    lost = {rank for rank, seconds in (known.silent_s or {}).items() if seconds >= plan.unreachable_grace_s}
    lost |= known.given_up
    verdict = known.verdict or _verdict(plan, known, seen, lost)
    if verdict is not None:
        kill = known.desired == "abort"
        live = [one.rank for one in seen if one.alive and (kill or "stopping" not in one.marks)]
        if live:
            return Stop(tuple(live), verdict, kill)
        # What was asked for once may have failed: a Docker that was restarted has forgotten it.
        late = [one.rank for one in seen if one.alive and "overdue" in one.marks]
        if late:
            return Stop(tuple(late), verdict, kill=True)
        pending = [one for one in seen if one.alive or (one.state == "silent" and one.rank not in lost)]
        return Wait() if pending else Collect(verdict)
    if any(one.state == "silent" for one in seen):
        return Wait()
    if known.phase in (Phase.SUBMITTED, Phase.STARTING):
        absent = tuple(one.rank for one in seen if one.state == "absent")
        if absent:
            return Start(absent)
    waiting = [one for one in seen if one.alive and "go" not in one.marks]
    if waiting:
        ready = _may_go(plan, seen, waiting)
        return ReleaseBarrier(ready) if ready else Wait()
    if known.phase is not Phase.RUNNING and all(one.ended or "started" in one.marks for one in seen):
        return MarkRunning()
    return Wait()


def _may_go(plan: RunPlan, seen: Sequence[ObservedRank], waiting: Sequence[ObservedRank]) -> tuple[int, ...]:
    """The ranks whose turn it is; with an order, the second group waits for the first one's commands."""
    if plan.startup_order == "any" or len(plan.ranks) == 1:
        return tuple(one.rank for one in waiting)
    master_first = plan.startup_order == "master-first"
    first = [one for one in seen if (one.rank == 0) == master_first]
    turn = [one for one in waiting if (one.rank == 0) == master_first]
    if turn:
        return tuple(one.rank for one in turn)
    begun = all(one.ended or "started" in one.marks for one in first)
    return tuple(one.rank for one in waiting) if begun else ()


def _verdict(plan: RunPlan, known: RunView, seen: Sequence[ObservedRank], lost: set[int]) -> Verdict | None:
    """How the run ends, if it is clear by now."""
    if known.desired == "stop":
        return Verdict("terminated", "stopped_by_user")
    if known.desired == "abort":
        return Verdict("terminated", "aborted_by_user")
    failed = sorted(
        (one for one in seen if rank_reason(one) not in (None, "done")), key=lambda one: one.finished_at
    )
    if failed:
        return Verdict("failed", "job_failed", describe(plan, failed[0]))
    if lost:
        names = fold([plan.ranks[rank].node.name for rank in sorted(lost)])
        told = next((one.detail for one in seen if one.rank in lost and one.detail), None)
        grace = f"{plan.unreachable_grace_s:g} s"
        return Verdict(
            "failed",
            "job_failed",
            f"node {names} did not answer for {grace}" + (f" ({told})" if told else ""),
        )
    late = [one for one in seen if one.alive and "overdue" in one.marks]
    if late and plan.max_duration_s:
        return Verdict("failed", "job_failed", describe(plan, late[0]))
    if known.phase in (Phase.GOING, Phase.RUNNING):
        gone = [one for one in seen if one.state == "absent"]
        if gone:
            return Verdict("failed", "job_failed", describe(plan, gone[0]))
    if seen[0].ended and plan.stop_criteria == "master-done":
        return Verdict("done", "all_jobs_done")
    if all(one.ended for one in seen):
        return Verdict("done", "all_jobs_done")
    return None


def rank_reason(one: ObservedRank) -> str | None:
    """The termination reason of a rank by itself (configuration 8); None while it lives."""
    if not one.ended:
        return None
    if "expired" in one.marks:
        return "max_duration_exceeded"
    if one.exit_code == 0 and not one.out_of_memory:
        return "done"
    return "container_exited_with_error"


def describe(plan: RunPlan, one: ObservedRank) -> str:
    """What became of a rank that failed, for people."""
    where = f"rank {one.rank} on node {plan.ranks[one.rank].node.name}"
    if one.state == "absent":
        return f"the container of {where} disappeared"
    if "expired" in one.marks or (one.alive and "overdue" in one.marks):
        return f"{where} reached max_duration ({plan.max_duration_s} s)"
    if one.out_of_memory:
        return f"{where} ran out of memory (exit code {one.exit_code})"
    return f"{where} exited with code {one.exit_code}"


def verdict_of(row: RunRow) -> Verdict | None:
    """The verdict that was reached, if any: the ledger gets a reason together with it and never before."""
    if row.reason is None:
        return None
    if row.reason in ("stopped_by_user", "aborted_by_user"):
        return Verdict("terminated", row.reason, row.message)
    return Verdict("done" if row.reason == "all_jobs_done" else "failed", row.reason, row.message)


def rank_status(one: ObservedRank, before: str, run_reason: str | None) -> tuple[str, str | None]:
    """Status and termination reason of a rank as now observed."""
    reason = rank_reason(one)
    if reason is None:
        if one.alive and "started" in one.marks:
            return ("terminating" if "stopping" in one.marks else "running"), None
        return before, None
    if "stopping" in one.marks and reason != "max_duration_exceeded":
        ended_well = run_reason == "all_jobs_done"
        told = {"stopped_by_user": "terminated_by_user", "aborted_by_user": "aborted_by_user"}
        if ended_well:
            return "done", "done"
        return "terminated", told.get(run_reason or "", "sibling_failed")
    return ("done" if reason == "done" else "failed"), reason


def end_reason(verdict: Verdict) -> str:
    """The reason of a rank that never came to an end of its own."""
    if verdict.status == "done":
        return "done"
    if verdict.reason == "aborted_by_user":
        return "aborted_by_user"
    return "terminated_by_user" if verdict.status == "terminated" else "sibling_failed"


def start_reason(error: OrchError) -> str:
    """The termination reason of a rank that could not be started."""
    if isinstance(error, (NodesBusy, NodeCordoned)):
        return "failed_to_start_due_to_no_capacity"
    if isinstance(error, NodeUnfit):
        return "health_failure"
    if isinstance(error, (HostUnreachable, CommandTimeout, NodePreparing)):
        return "instance_unreachable"
    if isinstance(error, HostfileIncomplete):
        return "hostfile_incomplete"
    return error.reason if isinstance(error, RunFailed) else "creating_container_error"


def told(error: OrchError) -> str:
    """An error in one line."""
    return f"{error.summary}: {error.detail}" if error.detail else error.summary
