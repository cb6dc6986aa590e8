"""What a gang has come to, from the documents of the API server. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from orch.runner.kubernetes.gangs.documents import GangFacts, GangPod, condition, is_true, pods_of
from orch.runner.kubernetes.gangs.names import RELEASED
from orch.runner.kubernetes.gangs.reasons import (
    PULLS,
    WRONG,
    Cause,
    denied_since,
    failure_of,
    kueue_reasons,
    start_reasons,
    suspended_reasons,
    why_vanished,
)

State = Literal["waiting", "starting", "running", "failed", "ended", "gone"]
MOST_REASONS = 6
PAUSE_S, LONGEST_PAUSE_S = 10.0, 300.0
WRONG_S, STARTS_WITHIN_S = 60.0, 1800.0
"""How long pods are waited for that kubelet says cannot start, and those of which it says nothing."""


@dataclass(frozen=True)
class GangLook:
    """A gang as it was at one moment.

    waiting: no pod has a node. starting: some have, not all run. running: all run. failed: it does not come
    to that any more, `cause` says whether the cluster is to blame. ended: all first processes ended with 0.
    gone: there is no such Job, or it is being removed; `pods` are those that are left.
    `reasons`: why, a sentence each. `uid`: that of the Job. `pods`: those that are there, by index.
    `whole`: it was let go; who was cut short before that has to ask for it once more. `denied_since`: since
    when the API server takes no pods of it, for what they are and not for want of room.
    """

    name: str
    state: State
    wanted: int = 0
    pods: tuple[GangPod, ...] = ()
    reasons: tuple[str, ...] = ()
    cause: Cause | None = None
    uid: str | None = None
    whole: bool = True
    denied_since: datetime | None = None

    @property
    def partial_since(self) -> datetime | None:
        """Since when some of its pods hold nodes while others have none; None where that is not so."""
        moments = [pod.placed_at for pod in self.pods if pod.placed_at is not None]
        if self.state != "starting" or not moments or len(moments) >= self.wanted:
            return None
        return min(moments)


def due_back(look: GangLook, now: datetime, limit_s: float) -> bool:
    """Whether a gang without a scheduler of gangs is to be taken back whole: it held nodes for `limit_s`, and
    others of its pods got none. Pods that have a node and pull a large image hold nobody up.

    `now` is aware, on the API server's clock as far as that is known.
    """
    since = look.partial_since
    return since is not None and now - since >= timedelta(seconds=limit_s)


def refused(look: GangLook, now: datetime) -> bool:
    """Whether pods that have their nodes will not run: an image that cannot be pulled, a container that is
    wrong, or no word of them for so long that nobody waits any more. `now` as in `due_back`."""
    if look.denied_since is not None and (now - look.denied_since).total_seconds() >= WRONG_S:
        return True
    if look.state != "starting":
        return False
    for pod in look.pods:
        if pod.placed_at is None or pod.running:
            continue
        held_s = (now - pod.placed_at).total_seconds()
        if held_s >= (WRONG_S if pod.waits in (*PULLS, *WRONG) else STARTS_WITHIN_S):
            return True
    return False


def pause_before_retry(tries: int, chance: float) -> float:
    """Seconds between taking a gang back and asking for it again.

    `chance`, 0 to 1, differs from gang to gang: two that took each other's nodes would do so again.
    """
    return min(PAUSE_S * 2 ** min(tries, 10), LONGEST_PAUSE_S) * (0.5 + chance)


def look_of(facts: GangFacts) -> GangLook:
    """What the documents of a gang come to."""
    job = facts.job
    pods = pods_of(facts.pods)
    if job is None or job["metadata"].get("deletionTimestamp"):
        left = [f"{len(pods)} of its pods are being removed"] if pods else []
        uid = None if job is None else str(job["metadata"]["uid"])
        return GangLook(facts.name, "gone", 0, pods, tuple(left), uid=uid)
    wanted = int(job["spec"].get("completions") or 1)
    uid = str(job["metadata"]["uid"])
    whole = RELEASED in (job["metadata"].get("annotations") or {})

    def look(
        state: State, reasons: Iterator[str] | Sequence[str] = (), cause: Cause | None = None
    ) -> GangLook:
        rows = tuple(dict.fromkeys(reasons))
        if len(rows) > MOST_REASONS:
            rows = (*rows[:MOST_REASONS], f"and {len(rows) - MOST_REASONS} reasons more")
        denied = denied_since(facts) if state in ("waiting", "starting") and len(pods) < wanted else None
        return GangLook(facts.name, state, wanted, pods, rows, cause, uid, whole, denied)

    if is_true(job, "Complete", "SuccessCriteriaMet"):
        return look("ended")
    suspended = bool(job["spec"].get("suspend"))
    failure = failure_of(job, facts.pods, suspended=suspended)
    if failure is not None:
        return look("failed", failure[0], failure[1])
    if not suspended and (vanished := why_vanished(job, facts.pods, wanted)) is not None:
        return look("failed", [vanished], "infrastructure")
    workload = facts.workload
    if facts.kueue and workload is not None and not workload["spec"].get("active", True):
        too_long = "MaximumExecutionTime" in str(condition(workload, "Evicted").get("reason"))
        return look("failed", list(kueue_reasons(facts)), "application" if too_long else "infrastructure")
    if suspended:
        return look("waiting", list(kueue_reasons(facts) if facts.kueue else suspended_reasons(job)))
    running = sum(1 for pod in pods if pod.running or pod.phase == "Succeeded")
    if running >= wanted:
        return look("running")
    placed = sum(1 for pod in pods if pod.node is not None)
    return look("starting" if placed else "waiting", list(start_reasons(facts, wanted, running, placed)))
