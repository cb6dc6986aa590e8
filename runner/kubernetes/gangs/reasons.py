"""Why a gang waits, or failed, in sentences. Pure.

The texts of a cluster are a stranger's: they are cut to one line, and shown as data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ClusterShell.RangeSet import RangeSet

from orch.runner.kubernetes.gangs.documents import (
    GangFacts,
    condition,
    container_of,
    index_of,
    is_true,
    moment,
    newest,
    node_of,
    runs,
)
from orch.runner.kubernetes.gangs.names import RELEASED

Doc = dict[str, Any]
Cause = Literal["infrastructure", "application"]
LONGEST_TEXT = 400

_NO_PREEMPTION = re.compile(r"[.,]? (?:no new claims to deallocate, )?preemption: ")
_NOT_CREATED = re.compile(
    r"Error creating: (?:pods \"[^\"]*\" is forbidden: )?(?:Pod \"[^\"]*\" is (?=invalid))?(.*)", re.S
)
_NEVER_CREATED = re.compile(
    r"is invalid: |violates PodSecurity|(?:maximum|minimum) \S+ usage per |limit to request ratio per "
)
_NO_FLAVOR = re.compile(r"couldn't assign flavors to pod set [^:]*: ")
# What Multus says of a network that a pod names, alone and at the end of kubelet's words about the sandbox.
# Source: Multus CNI, pkg/k8sclient/k8sclient.go.
_NO_NETWORK = re.compile(
    r"cannot find a network-attachment-definition \(([-.a-z0-9]+)\) in namespace \(([-a-z0-9]+)\)"
)
_FOREIGN_NETWORK = re.compile(r"namespace isolation enabled, .* refers to target namespace ([-a-z0-9]+)")
PULLS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
WRONG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff")
_REMOVED = re.compile(r"DisruptionTarget|exit code (?:137|143)\b")
_DISRUPTIONS = {
    "PreemptionByScheduler": "pods of a higher priority took its place",
    "DeletionByTaintManager": "its node is lost, or no longer takes it",
    "EvictionByEvictionAPI": "it was evicted, as when a node is drained",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node evicted it",
}


@dataclass(frozen=True)
class Taken:
    """Why a pod was taken away, the one of this index; None where it was the whole gang."""

    index: int | None
    why: str


def _plain(text: object) -> str:
    """One line of a stranger's text, not too long."""
    words = " ".join(str(text or "").split())
    return words if len(words) <= LONGEST_TEXT else words[:LONGEST_TEXT].rstrip() + "…"


def _with(phrase: str, text: object) -> str:
    plain = _plain(text).rstrip(".")
    return f"{phrase}: {plain}" if plain else phrase


# Why it failed.


def failure_of(job: Doc, documents: Sequence[Doc], *, suspended: bool) -> tuple[list[str], Cause] | None:
    """Why the gang has failed and who is to blame; None where it has not."""
    ended = next(
        (
            row
            for kind in ("Failed", "FailureTarget")
            for row in [condition(job, kind)]
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
    reasons = [f"pod {index_of(pod)}: {_why(pod)}" for pod in first]
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


def why_vanished(job: Doc, documents: Sequence[Doc], wanted: int) -> str | None:
    """What became of pods that ended with 0 when they were taken away: to their Job they are done."""
    done = int((job.get("status") or {}).get("succeeded") or 0)
    here = sum(1 for pod in documents if (pod.get("status") or {}).get("phase") == "Succeeded")
    if done <= here or done >= wanted:
        return None
    return f"{done - here} of {wanted} pods ended and were removed"


def _disrupted(pod: Doc) -> bool:
    """Whether the cluster takes a pod away, or took it."""
    return is_true(pod, "DisruptionTarget")


def _first(failed: Sequence[Doc]) -> list[Doc]:
    """The pods that failed first: with them the others are removed."""
    rows = [pod for pod in failed if not pod["metadata"].get("deletionTimestamp")] or list(failed)
    ends = {str(pod["metadata"]["uid"]): _ended_at(pod) for pod in rows}
    earliest = min(ends.values(), default="")
    return [pod for pod in rows if ends[str(pod["metadata"]["uid"])] == earliest]


def _ended_at(pod: Doc) -> str:
    terminated: Doc = (container_of(pod).get("state") or {}).get("terminated") or {}
    return str(terminated.get("finishedAt") or "9999")


def _of_infrastructure(pod: Doc) -> bool:
    reason = (pod.get("status") or {}).get("reason")
    removed = bool(pod["metadata"].get("deletionTimestamp"))
    return removed or _disrupted(pod) or (bool(reason) and reason != "DeadlineExceeded")


def _why(pod: Doc) -> str:
    status = pod.get("status") or {}
    node = node_of(pod)
    at = f" ({node})" if node else ""
    disruption = condition(pod, "DisruptionTarget")
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
    terminated = (container_of(pod).get("state") or {}).get("terminated") or {}
    if terminated:
        return _with(
            f"its first process ended with exit code {int(terminated['exitCode'])}", terminated.get("message")
        )
    return _with(f"it failed{at}", status.get("message"))


def taken_because(facts: GangFacts) -> Taken | None:
    """Why the cluster takes pods of a gang away, or took them; None where nothing says so."""
    taken = [pod for pod in facts.pods if _disrupted(pod)]
    if taken:
        return Taken(index_of(taken[0]), _why(taken[0]))
    workload = facts.workload
    if workload is not None and is_true(workload, "Evicted"):
        return Taken(None, next(kueue_reasons(facts)))
    job = facts.job
    if job is None or job["spec"].get("suspend") or is_true(job, "Failed", "FailureTarget"):
        return None
    # Of a Job that goes on nobody but a stranger removes pods.
    removed = next((pod for pod in facts.pods if pod["metadata"].get("deletionTimestamp")), None)
    return None if removed is None else Taken(index_of(removed), _why(removed))


def event_of_removal(events: Sequence[Doc]) -> str | None:
    """What the events of a pod that is gone say of why it had to go."""
    rows = [row for row in events if row.get("reason") in ("Evicted", "Preempted", "TaintManagerEviction")]
    if not rows:
        return None
    last = max(rows, key=_told_at)
    return _with(f"it was taken away [{_plain(last['reason'])}]", last.get("message"))


# What it waits for.


def kueue_reasons(facts: GangFacts) -> Iterator[str]:
    """What Kueue says of the gang: the condition first, its reason, its text last."""
    row = facts.workload
    if row is None:
        yield "Kueue: has not taken the job into its queue yet"
        return
    evicted, quota = condition(row, "Evicted"), condition(row, "QuotaReserved")
    if not row["spec"].get("active", True):
        why = _with("deactivated", evicted.get("message")) if evicted else "deactivated"
        yield f"Kueue: {why}{_word(evicted)}"
        return
    if is_true(row, "Admitted"):
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


def suspended_reasons(job: Doc) -> Iterator[str]:
    """Why a Job that no queue of Kueue has is suspended."""
    if RELEASED in (job["metadata"].get("annotations") or {}):
        yield "somebody has suspended its Job: Kueue does so where it manages all Jobs of a cluster"
    else:
        yield "it is not whole yet: who asked for it has not finished"


def _word(row: Mapping[str, Any], but: Sequence[str] = ()) -> str:
    reason = str(row.get("reason") or "")
    return f" [{_plain(reason)}]" if reason and reason not in but else ""


def start_reasons(facts: GangFacts, wanted: int, running: int, placed: int) -> Iterator[str]:
    """Why a gang that has been let go does not run with all of its pods."""
    if running:
        yield f"{running} of {wanted} pods run"
    elif placed:
        yield f"{placed} of {wanted} pods have a node"
    documents = newest(facts.pods)
    if len(documents) < wanted:
        yield from _not_created(facts)
    group = condition(facts.pod_group or {}, "PodGroupScheduled")
    if not placed and group.get("status") == "False":
        yield _with("the gang has no place yet", _NO_PREEMPTION.split(str(group.get("message") or ""))[0])
    told: dict[str, list[int]] = {}
    for pod in documents:
        if (why := _waits_for(pod, facts.events)) is not None:
            told.setdefault(why, []).append(index_of(pod))
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
        last = max(rows, key=_told_at)
        found = _NOT_CREATED.match(str(last.get("message") or ""))
        yield _with("its pods cannot be created", found[1] if found else last.get("message"))


def _failed_creations(facts: GangFacts) -> list[Doc]:
    assert facts.job is not None
    uid = facts.job["metadata"]["uid"]
    return [
        each
        for each in facts.events
        if each.get("reason") == "FailedCreate" and (each.get("involvedObject") or {}).get("uid") == uid
    ]


def denied_since(facts: GangFacts) -> datetime | None:
    """Since when pods are refused for what they are; None where the newest try failed of something else."""
    rows = sorted(_failed_creations(facts), key=_told_at)
    if not rows or not _NEVER_CREATED.search(str(rows[-1].get("message") or "")):
        return None
    begun = [str(each.get("firstTimestamp") or each.get("eventTime") or "") for each in rows]
    return moment(min(filter(None, begun), default=""))


def _told_at(event: Doc) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


def _waits_for(pod: Doc, events: Sequence[Doc]) -> str | None:
    """Why a pod does not run; None where it does, or is only about to."""
    scheduled = condition(pod, "PodScheduled")
    if node_of(pod) is None:
        if scheduled.get("reason") == "SchedulingGated":
            return "Kueue has not told its node yet"
        text = _NO_PREEMPTION.split(str(scheduled.get("message") or ""))[0]
        return _plain(text).rstrip(".") or "has no node yet"
    status = pod.get("status") or {}
    for row in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting: Doc = (row.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason in PULLS:
            told = _event(pod, events, "Failed") if reason == "ImagePullBackOff" else None
            text = told or waiting.get("message") or reason
            return _with(f"image {_plain(row.get('image'))} cannot be pulled", text)
        if reason not in ("", "ContainerCreating", "PodInitializing"):
            return _with(f"its container does not start [{_plain(reason)}]", waiting.get("message"))
    if runs(pod):
        return None
    told = _event(
        pod, events, "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "NoNetworkFound"
    )
    return f"on {node_of(pod)}: {_network_words(told) or _plain(told)}" if told else None


def _network_words(text: str) -> str | None:
    """Why a pod cannot join a network that it names; None where the text is about something else."""
    if (missing := _NO_NETWORK.search(text)) is not None:
        return f"Multus finds no NetworkAttachmentDefinition {missing[1]} in namespace {missing[2]}"
    if (foreign := _FOREIGN_NETWORK.search(text)) is not None:
        return f"Multus lets it join no networks of namespace {foreign[1]} (namespaceIsolation)"
    return None


def _event(pod: Doc, events: Sequence[Doc], *reasons: str) -> str | None:
    uid = pod["metadata"]["uid"]
    rows = [
        each
        for each in events
        if each.get("reason") in reasons and (each.get("involvedObject") or {}).get("uid") == uid
    ]
    return str(max(rows, key=_told_at).get("message")) if rows else None
