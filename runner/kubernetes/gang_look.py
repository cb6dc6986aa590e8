"""What a gang waits for, or what it failed of, from the documents of the API server. Pure.

Their texts are a stranger's: they are cut to one line, and shown as data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from ClusterShell.RangeSet import RangeSet

from orch.runner.kubernetes.manifests import CONTAINER, INDEX, RELEASED

Doc = dict[str, Any]
State = Literal["waiting", "starting", "running", "failed", "ended", "gone"]
Cause = Literal["infrastructure", "application"]

LONGEST_TEXT = 400
MOST_REASONS = 6
PAUSE_S, LONGEST_PAUSE_S = 10.0, 300.0
WRONG_S, STARTS_WITHIN_S = 60.0, 1800.0
"""How long pods are waited for that kubelet says cannot start, and those of which it says nothing."""

_NO_PREEMPTION = re.compile(r"[.,]? (?:no new claims to deallocate, )?preemption: ")
_NOT_CREATED = re.compile(
    r"Error creating: (?:pods \"[^\"]*\" is forbidden: )?(?:Pod \"[^\"]*\" is (?=invalid))?(.*)", re.S
)
_NEVER_CREATED = re.compile(
    r"is invalid: |violates PodSecurity|(?:maximum|minimum) \S+ usage per |limit to request ratio per "
)
_NO_FLAVOR = re.compile(r"couldn't assign flavors to pod set [^:]*: ")
_PULLS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_WRONG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff")
_REMOVED = re.compile(r"DisruptionTarget|exit code (?:137|143)\b")
_DISRUPTIONS = {
    "PreemptionByScheduler": "pods of a higher priority took its place",
    "DeletionByTaintManager": "its node is lost, or no longer takes it",
    "EvictionByEvictionAPI": "it was evicted, as when a node is drained",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node evicted it",
}


@dataclass(frozen=True)
class GangPod:
    """One pod of a gang. `placed_at`: when it got its node; `exit_code`: of its first process.
    `waits`: what kubelet calls the reason why its container does not run yet."""

    index: int
    name: str
    uid: str
    phase: str
    ip: str | None = None
    node: str | None = None
    running: bool = False
    exit_code: int | None = None
    placed_at: datetime | None = None
    waits: str = ""


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


@dataclass(frozen=True)
class GangFacts:
    """The documents of a gang. `job` None: there is none. `workload`, `pod_group`: of its form of gang.

    `events`: those of the Job and of pods that do not start; `kueue`: whether Kueue starts it.
    """

    name: str
    job: Doc | None
    pods: Sequence[Doc] = ()
    kueue: bool = False
    workload: Doc | None = None
    pod_group: Doc | None = None
    events: Sequence[Doc] = field(default_factory=tuple[Doc, ...])


@dataclass(frozen=True)
class Taken:
    """Why a pod was taken away, the one of this index; None where it was the whole gang."""

    index: int | None
    why: str


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
        if held_s >= (WRONG_S if pod.waits in (*_PULLS, *_WRONG) else STARTS_WITHIN_S):
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
        denied = _denied_since(facts) if state in ("waiting", "starting") and len(pods) < wanted else None
        return GangLook(facts.name, state, wanted, pods, rows, cause, uid, whole, denied)

    if _is_true(job, "Complete", "SuccessCriteriaMet"):
        return look("ended")
    suspended = bool(job["spec"].get("suspend"))
    failure = _failure(job, facts.pods, suspended=suspended)
    if failure is not None:
        return look("failed", failure[0], failure[1])
    if not suspended and (vanished := _vanished(job, facts.pods, wanted)) is not None:
        return look("failed", [vanished], "infrastructure")
    workload = facts.workload
    if facts.kueue and workload is not None and not workload["spec"].get("active", True):
        too_long = "MaximumExecutionTime" in str(_condition(workload, "Evicted").get("reason"))
        return look("failed", list(_kueue(facts)), "application" if too_long else "infrastructure")
    if suspended:
        return look("waiting", list(_kueue(facts) if facts.kueue else _suspended(job)))
    running = sum(1 for pod in pods if pod.running or pod.phase == "Succeeded")
    if running >= wanted:
        return look("running")
    placed = sum(1 for pod in pods if pod.node is not None)
    return look("starting" if placed else "waiting", list(_not_running(facts, wanted, running, placed)))


def unexplained(documents: Sequence[Doc]) -> Iterator[Doc]:
    """Pods that have a node and no running container, and do not say why."""
    for pod in _newest(documents):
        if _node(pod) is None or _runs(pod):
            continue
        waiting = _container(pod).get("state", {}).get("waiting", {})
        if waiting.get("reason") in ("ContainerCreating", "PodInitializing", "ImagePullBackOff", None):
            yield pod


def pods_of(documents: Sequence[Doc]) -> tuple[GangPod, ...]:
    """The pods of a gang by index; of two for one index the one that is not being removed, then the newer."""
    return tuple(_pod(each) for each in _newest(documents))


def _pod(document: Doc) -> GangPod:
    metadata, status = document["metadata"], document.get("status") or {}
    state = _container(document).get("state") or {}
    terminated = state.get("terminated")
    scheduled = _condition(document, "PodScheduled")
    return GangPod(
        index=_index(document),
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        phase=str(status.get("phase", "Pending")),
        ip=status.get("podIP"),
        node=_node(document),
        running=_runs(document) and not metadata.get("deletionTimestamp"),
        exit_code=None if terminated is None else int(terminated["exitCode"]),
        placed_at=_moment(scheduled.get("lastTransitionTime"))
        if scheduled.get("status") == "True" and _node(document) is not None
        else None,
        waits=str((state.get("waiting") or {}).get("reason") or ""),
    )


def _newest(documents: Sequence[Doc]) -> list[Doc]:
    found: dict[int, Doc] = {}
    for each in sorted(
        documents,
        key=lambda pod: (
            not pod["metadata"].get("deletionTimestamp"),
            str(pod["metadata"].get("creationTimestamp")),
        ),
    ):
        found[_index(each)] = each
    return [found[index] for index in sorted(found)]


def _index(pod: Doc) -> int:
    metadata = pod["metadata"]
    text = (metadata.get("labels") or {}).get(INDEX) or (metadata.get("annotations") or {}).get(INDEX) or "0"
    return int(text) if str(text).isdigit() else 0


def _node(pod: Doc) -> str | None:
    return (pod.get("spec") or {}).get("nodeName") or None


def _container(pod: Doc) -> Doc:
    rows: list[Doc] = (pod.get("status") or {}).get("containerStatuses") or []
    return next((row for row in rows if row.get("name") == CONTAINER), {})


def _runs(pod: Doc) -> bool:
    return (_container(pod).get("state") or {}).get("running") is not None


def _condition(document: Doc, *kinds: str) -> Doc:
    rows: list[Doc] = (document.get("status") or {}).get("conditions") or []
    return next((row for row in rows if row.get("type") in kinds), {})


def _is_true(document: Doc, *kinds: str) -> bool:
    rows: list[Doc] = (document.get("status") or {}).get("conditions") or []
    return any(row.get("type") in kinds and row.get("status") == "True" for row in rows)


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None


def _plain(text: object) -> str:
    """One line of a stranger's text, not too long."""
    words = " ".join(str(text or "").split())
    return words if len(words) <= LONGEST_TEXT else words[:LONGEST_TEXT].rstrip() + "…"


def _with(phrase: str, text: object) -> str:
    plain = _plain(text).rstrip(".")
    return f"{phrase}: {plain}" if plain else phrase


# Why it failed.


def _failure(job: Doc, documents: Sequence[Doc], *, suspended: bool) -> tuple[list[str], Cause] | None:
    """Why the gang has failed and who is to blame; None where it has not."""
    ended = next(
        (
            row
            for kind in ("Failed", "FailureTarget")
            for row in [_condition(job, kind)]
            if row.get("status") == "True"
        ),
        None,
    )
    # A pod that Kueue's queue takes back is deleted, as all others: that is no failure.
    lost = [] if suspended else [pod for pod in documents if _disrupted(pod)]
    failed = [pod for pod in documents if (pod.get("status") or {}).get("phase") == "Failed"]
    if ended is None and not lost and (suspended or not failed):
        return None
    first = lost or _first(failed)
    reasons = [f"pod {_index(pod)}: {_why(pod)}" for pod in first]
    if not reasons:
        message = (
            "" if ended is None else _with(str(ended.get("reason") or "the job failed"), ended.get("message"))
        )
        reasons = [message or "the job failed"]
    blamed = bool(lost) or any(_of_infrastructure(pod) for pod in first)
    if not first and ended is not None:
        # Pods that fail by themselves stay: one that was ended by a signal and is gone was removed.
        blamed = _REMOVED.search(str(ended.get("message") or "")) is not None
    return reasons, "infrastructure" if blamed else "application"


def _vanished(job: Doc, documents: Sequence[Doc], wanted: int) -> str | None:
    """What became of pods that ended with 0 when they were taken away: to their Job they are done."""
    done = int((job.get("status") or {}).get("succeeded") or 0)
    here = sum(1 for pod in documents if (pod.get("status") or {}).get("phase") == "Succeeded")
    if done <= here or done >= wanted:
        return None
    return f"{done - here} of {wanted} pods ended and were removed"


def _disrupted(pod: Doc) -> bool:
    """Whether the cluster takes a pod away, or took it."""
    return _is_true(pod, "DisruptionTarget")


def _first(failed: Sequence[Doc]) -> list[Doc]:
    """The pods that failed first: with them the others are removed."""
    rows = [pod for pod in failed if not pod["metadata"].get("deletionTimestamp")] or list(failed)
    ends = {str(pod["metadata"]["uid"]): _ended_at(pod) for pod in rows}
    earliest = min(ends.values(), default="")
    return [pod for pod in rows if ends[str(pod["metadata"]["uid"])] == earliest]


def _ended_at(pod: Doc) -> str:
    terminated: Doc = (_container(pod).get("state") or {}).get("terminated") or {}
    return str(terminated.get("finishedAt") or "9999")


def _of_infrastructure(pod: Doc) -> bool:
    reason = (pod.get("status") or {}).get("reason")
    removed = bool(pod["metadata"].get("deletionTimestamp"))
    return removed or _disrupted(pod) or (bool(reason) and reason != "DeadlineExceeded")


def _why(pod: Doc) -> str:
    status = pod.get("status") or {}
    node = _node(pod)
    at = f" ({node})" if node else ""
    disruption = _condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        reason = str(disruption.get("reason") or "")
        phrase = _DISRUPTIONS.get(reason, "the cluster took it away")
        text = status.get("message") or ("" if reason in _DISRUPTIONS else disruption.get("message"))
        return _with(f"{phrase}{at}{f' [{_plain(reason)}]' if reason else ''}", text)
    if pod["metadata"].get("deletionTimestamp"):
        return f"somebody removes it{at}"
    if status.get("reason") == "DeadlineExceeded":
        return "it ran longer than it may [DeadlineExceeded]"
    if status.get("reason"):
        return _with(f"its node refused or ended it{at} [{_plain(status['reason'])}]", status.get("message"))
    for row in [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]:
        terminated: Doc = (row.get("state") or {}).get("terminated") or {}
        if terminated.get("reason") == "OOMKilled":
            return f"its container was killed because it had no memory left{at} [OOMKilled]"
    terminated = (_container(pod).get("state") or {}).get("terminated") or {}
    if terminated:
        return _with(
            f"its first process ended with exit code {int(terminated['exitCode'])}", terminated.get("message")
        )
    return _with(f"it failed{at}", status.get("message"))


def taken_because(facts: GangFacts) -> Taken | None:
    """Why the cluster takes pods of a gang away, or took them; None where nothing says so."""
    taken = [pod for pod in facts.pods if _disrupted(pod)]
    if taken:
        return Taken(_index(taken[0]), _why(taken[0]))
    workload = facts.workload
    if workload is not None and _is_true(workload, "Evicted"):
        return Taken(None, next(_kueue(facts)))
    job = facts.job
    if job is None or job["spec"].get("suspend") or _is_true(job, "Failed", "FailureTarget"):
        return None
    # Of a Job that goes on nobody but a stranger removes pods.
    removed = next((pod for pod in facts.pods if pod["metadata"].get("deletionTimestamp")), None)
    return None if removed is None else Taken(_index(removed), _why(removed))


def event_of_removal(events: Sequence[Doc]) -> str | None:
    """What the events of a pod that is gone say of why it had to go."""
    rows = [row for row in events if row.get("reason") in ("Evicted", "Preempted", "TaintManagerEviction")]
    if not rows:
        return None
    last = max(rows, key=_told_at)
    return _with(f"it was taken away [{_plain(last['reason'])}]", last.get("message"))


# What it waits for.


def _kueue(facts: GangFacts) -> Iterator[str]:
    """What Kueue says of the gang: the condition first, its reason, its text last."""
    row = facts.workload
    if row is None:
        yield "Kueue: has not taken the job into its queue yet"
        return
    evicted, quota = _condition(row, "Evicted"), _condition(row, "QuotaReserved")
    if not row["spec"].get("active", True):
        why = _with("deactivated", evicted.get("message")) if evicted else "deactivated"
        yield f"Kueue: {why}{_word(evicted)}"
        return
    if _is_true(row, "Admitted"):
        yield "Kueue: admitted, the pods are being created"
        return
    if evicted.get("status") == "True":
        yield f"Kueue: {_with('evicted, and waits again', evicted.get('message'))}{_word(evicted)}"
    if quota.get("status") == "True":
        checks = [
            each
            for each in (row.get("status") or {}).get("admissionChecks") or ()
            if each.get("state") != "Ready"
        ]
        for each in checks:
            check = f"Kueue: waits for the admission check {_plain(each.get('name'))}"
            yield _with(check, each.get("message"))
        if not checks:
            yield "Kueue: has reserved quota, and does not admit the job yet"
    elif evicted.get("status") != "True":
        text = _NO_FLAVOR.sub("", _plain(quota.get("message")))
        yield f"Kueue: {text or 'waits for quota'}{_word(quota, but=('Pending', 'Inadmissible'))}"


def _suspended(job: Doc) -> Iterator[str]:
    """Why a Job that no queue of Kueue has is suspended."""
    if RELEASED in (job["metadata"].get("annotations") or {}):
        yield "somebody has suspended its Job: Kueue does so where it manages all Jobs of a cluster"
    else:
        yield "it is not whole yet: who asked for it has not finished"


def _word(row: Mapping[str, Any], but: Sequence[str] = ()) -> str:
    reason = str(row.get("reason") or "")
    return f" [{_plain(reason)}]" if reason and reason not in but else ""


def _not_running(facts: GangFacts, wanted: int, running: int, placed: int) -> Iterator[str]:
    if running:
        yield f"{running} of {wanted} pods run"
    elif placed:
        yield f"{placed} of {wanted} pods have a node"
    documents = _newest(facts.pods)
    if len(documents) < wanted:
        yield from _not_created(facts)
    group = _condition(facts.pod_group or {}, "PodGroupScheduled")
    if not placed and group.get("status") == "False":
        yield _with("the gang has no place yet", _NO_PREEMPTION.split(str(group.get("message") or ""))[0])
    told: dict[str, list[int]] = {}
    for pod in documents:
        if (why := _waits_for(pod, facts.events)) is not None:
            told.setdefault(why, []).append(_index(pod))
    for why, indices in told.items():
        yield f"{_pods(indices)}: {why}"
    if len(documents) < wanted and not told and not any(True for _ in _not_created(facts)):
        yield f"{wanted - len(documents)} of {wanted} pods are being created"


def _pods(indices: Sequence[int]) -> str:
    folded = RangeSet.fromlist([str(index) for index in indices])
    return f"pod {indices[0]}" if len(indices) == 1 else f"pods {folded}"


def _not_created(facts: GangFacts) -> Iterator[str]:
    """Why the Job's controller creates no pods: quota, pod security, webhooks. The newest is true."""
    rows = _failed_creations(facts)
    if rows:
        newest = max(rows, key=_told_at)
        found = _NOT_CREATED.match(str(newest.get("message") or ""))
        yield _with("its pods cannot be created", found[1] if found else newest.get("message"))


def _failed_creations(facts: GangFacts) -> list[Doc]:
    assert facts.job is not None
    uid = facts.job["metadata"]["uid"]
    return [
        each
        for each in facts.events
        if each.get("reason") == "FailedCreate" and (each.get("involvedObject") or {}).get("uid") == uid
    ]


def _denied_since(facts: GangFacts) -> datetime | None:
    """Since when pods are refused for what they are; None where the newest try failed of something else."""
    rows = sorted(_failed_creations(facts), key=_told_at)
    if not rows or not _NEVER_CREATED.search(str(rows[-1].get("message") or "")):
        return None
    begun = [str(each.get("firstTimestamp") or each.get("eventTime") or "") for each in rows]
    return _moment(min(filter(None, begun), default=""))


def _told_at(event: Doc) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


def _waits_for(pod: Doc, events: Sequence[Doc]) -> str | None:
    """Why a pod does not run; None where it does, or is only about to."""
    scheduled = _condition(pod, "PodScheduled")
    if _node(pod) is None:
        if scheduled.get("reason") == "SchedulingGated":
            return "Kueue has not told its node yet"
        text = _NO_PREEMPTION.split(str(scheduled.get("message") or ""))[0]
        return _plain(text).rstrip(".") or "has no node yet"
    status = pod.get("status") or {}
    for row in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting: Doc = (row.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason in _PULLS:
            told = _event(pod, events, "Failed") if reason == "ImagePullBackOff" else None
            text = told or waiting.get("message") or reason
            return _with(f"image {_plain(row.get('image'))} cannot be pulled", text)
        if reason not in ("", "ContainerCreating", "PodInitializing"):
            return _with(f"its container does not start [{_plain(reason)}]", waiting.get("message"))
    if _runs(pod):
        return None
    told = _event(pod, events, "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
    return f"on {_node(pod)}: {_plain(told)}" if told else None


def _event(pod: Doc, events: Sequence[Doc], *reasons: str) -> str | None:
    uid = pod["metadata"]["uid"]
    rows = [
        each
        for each in events
        if each.get("reason") in reasons and (each.get("involvedObject") or {}).get("uid") == uid
    ]
    return str(max(rows, key=_told_at).get("message")) if rows else None
