"""Whether, and when, a run is tried again after an attempt failed: pure.

The events are those of `retry.on_events`, the delays those of dstack: 15 s, 30 s, 1 m, 2 m, 5 m, then 10 m.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from orch.runner.errors import HostUnreachable, NodeUnfit, NoFit
from orch.runner.ledger.records import AttemptRow, RankRow, RunRow
from orch.runner.plan.run_plan import RetryPlan, RunPlan
from orch.runner.runs.decide import INTERRUPTED
from orch.spec.errors import OrchError
from orch.spec.grammar.values import render_duration

Event = Literal["no-capacity", "error", "interruption"]
Events = frozenset[Event]

DELAYS_S = (15, 30, 60, 120, 300, 600)

# Termination reasons (configuration 8) of ranks that end a run for good, whatever the others did.
_FINAL = frozenset(
    {"max_duration_exceeded", "inactivity_duration_exceeded", "terminated_due_to_utilization_policy"}
)
# That of ranks for which something is missing that no other attempt brings: a secret, files that are not kept
# any more, what is only on the machine that submitted the run.
_NOT_STARTABLE = "executor_error"
# Those of ranks whose node was lost, or could not be used. A container that disappears while its commands
# run went with its node, or with the node's Docker.
_NODE_LOST = frozenset({"instance_unreachable", "health_failure"})
# Those of ranks that did not fail by themselves.
_OF_OTHERS = frozenset({"done", "sibling_failed", "terminated_by_user", "aborted_by_user"})


def attempt_events(plan: RunPlan, ranks: Iterable[RankRow], *, started: bool) -> Events:
    """The events that an attempt failed by; none for one that is not tried again.

    A distributed run whose node is lost has both: ranks that the loss made fail, and the one that was lost.
    `started`: whether commands had begun.
    """
    events: set[Event] = set()
    for rank in ranks:
        if rank.reason in _FINAL or (rank.reason == _NOT_STARTABLE and not started):
            return frozenset()
        if rank.reason is not None and rank.reason not in _OF_OTHERS:
            events |= _rank_events(rank.reason, started=started, spot=plan.ranks[rank.rank].node.spot)
    return frozenset(events)


def _rank_events(reason: str, *, started: bool, spot: bool) -> Events:
    if reason == "failed_to_start_due_to_no_capacity":
        return frozenset({"no-capacity"})
    if reason in _NODE_LOST or reason in (INTERRUPTED, "executor_error"):
        return lost_node_events(started=started, spot=spot)
    return frozenset({"error"})


def lost_node_events(*, started: bool, spot: bool) -> Events:
    """The events of a lost node: `interruption`; `error` too where the node is none of the spot market, as in
    dstack; and `no-capacity` before anything ran there."""
    events: set[Event] = {"interruption"}
    if not spot:
        events.add("error")
    if not started:
        events.add("no-capacity")
    return frozenset(events)


def known_events(words: Collection[str]) -> Events:
    """Those of the words in the ledger that are events."""
    return frozenset(event for event in get_args(Event) if event in words)


def shortage_events(error: OrchError) -> Events:
    """The events of nodes that an attempt could not be given: they are taken, or they are not there."""
    if isinstance(error, (HostUnreachable, NodeUnfit, NoFit)):
        return lost_node_events(started=False, spot=False)
    return frozenset({"no-capacity"})


def counts(events: Collection[str]) -> bool:
    """Whether an attempt that ended by `events` counts for `max_attempts`: not where others took its nodes
    first."""
    return set(events) != {"no-capacity"}


def attempts_made(ended: Iterable[AttemptRow]) -> int:
    """How many of these attempts count for `max_attempts`."""
    return sum(counts(each.events) for each in ended)


@dataclass(frozen=True)
class TryAgain:
    """Try again in `delay_s` seconds. `since`: when the tries began, seconds since the epoch; `tries`: how
    many were in vain, this one included."""

    delay_s: float
    since: float
    tries: int


@dataclass(frozen=True)
class GiveUp:
    """The event is one to try again on, but a limit is reached: `why` names it."""

    why: str


def next_try(
    policy: RetryPlan | None,
    row: RunRow,
    events: Collection[Event],
    *,
    made: int,
) -> TryAgain | GiveUp | None:
    """What follows on a failure by `events` now, `row.now`; None where they are not to be tried again on.

    `made`: how many attempts count for `max_attempts` so far.

    `duration` counts from the submission for `no-capacity` alone, and from the first failure for the others.
    An attempt that ran for `duration` or longer begins a new count, and the delays anew.
    """
    covered = set(events) & set(policy.on_events) if policy is not None else ()
    if policy is None or not covered:
        return None
    since, tries = _count(policy, row, covered)
    if policy.max_attempts is not None and made >= policy.max_attempts:
        return GiveUp(f"`max_attempts` ({policy.max_attempts}) is reached")
    delay_s: float = DELAYS_S[min(tries, len(DELAYS_S) - 1)]
    if policy.duration_s is not None:
        left_s = since + policy.duration_s - row.now
        if left_s <= 0:
            return GiveUp(f"the `duration` of its retry ({render_duration(policy.duration_s)}) is over")
        delay_s = min(delay_s, left_s)
    return TryAgain(delay_s, since, tries + 1)


def _count(policy: RetryPlan, row: RunRow, covered: Collection[str]) -> tuple[float, int]:
    """Since when tries are counted, and how many there were before this one."""
    if set(covered) == {"no-capacity"}:
        return row.created_at if row.retry_since is None else row.retry_since, row.retry_tries
    first = row.retry_since is None or row.retry_since == row.created_at
    long_s = DELAYS_S[-1] if policy.duration_s is None else policy.duration_s
    if first or (row.started_at is not None and row.now - row.started_at >= long_s):
        return row.now, 0
    return row.retry_since or row.now, row.retry_tries
