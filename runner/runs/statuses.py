"""From observations and errors to the words of the ledger: statuses, termination reasons, messages. Pure."""

from __future__ import annotations

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
from orch.runner.ledger.records import RunRow
from orch.runner.node.runtime import ObservedRank
from orch.runner.runs.decide import Verdict, rank_reason
from orch.spec.errors import OrchError


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
