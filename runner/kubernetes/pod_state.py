"""A pod as its document tells it: which one it is, and whether it runs, may still start, has ended, or is
lost with its node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orch.runner.errors import HostUnreachable, PodGone, RunnerError
from orch.runner.kubernetes.client import api_path
from orch.runner.kubernetes.errors import shortened
from orch.runner.kubernetes.transport import Doc
from orch.spec.state import NodeState


@dataclass(frozen=True)
class Pod:
    """A pod as the record of a node's access has it. `kubeconfig` and `context`: as in `log_in`."""

    namespace: str
    pod: str
    uid: str | None = None
    container: str = "job"
    kubeconfig: str | None = None
    context: str | None = None

    @classmethod
    def of(cls, node: NodeState) -> Pod:
        """Raises RunnerError for a record that is none of a pod's."""
        record = {**(node.access.model_extra or {})}
        if not node.made_for and not record.get("pod"):
            raise RunnerError(
                f"{node.name} has no pod: its run has not got it yet, or never had it",
                where=node.name,
                hint="`orch ps -a` tells what runs wait for, `orch show RUN` why one ended",
            )
        try:
            pod = cls(**{name: record[name] for name in cls.__dataclass_fields__ if record.get(name)})
        except TypeError as error:
            raise RunnerError(
                f"the record of node {node.name} says not which pod it is",
                where=node.name,
                detail=f"it has {', '.join(sorted(record)) or 'nothing'}",
                hint="upgrade orch on this machine",
            ) from error
        return pod

    @property
    def where(self) -> str:
        return f"pod {self.namespace}/{self.pod}"

    def path(self, *more: str) -> str:
        return api_path("v1", "pods", self.namespace, self.pod, *more)


def refuse_gone(pod: Pod, document: Doc) -> None:
    """Raises PodGone for a pod that has ended or is another one, NotYet for one that may still start."""
    meta, status = document.get("metadata") or {}, document.get("status") or {}
    if pod.uid and meta.get("uid") != pod.uid:
        raise PodGone(
            f"{pod.where} is gone, another one has its name",
            where=pod.where,
            detail=f"its uid was {pod.uid}, that of the one there is {shortened(meta.get('uid'))}",
            reason="Deleted",
            taken=True,
        )
    state, rows = {}, status.get("containerStatuses") or ()
    for row in rows:
        if row.get("name") == pod.container:
            state = row.get("state") or {}
    if "running" in state:
        if meta.get("deletionTimestamp") and silent_node(document):
            raise PodGone(
                f"{pod.where} is lost with its node, and its cluster gives it up",
                where=pod.where,
                detail=with_silence(document, None),
                reason=shortened(_disruption(status).get("reason")) or "Deleted",
                taken=True,
            )
        return
    ended: Mapping[str, Any] = state.get("terminated") or {}
    phase = str(status.get("phase") or "")
    if ended or phase in ("Failed", "Succeeded"):
        reason = str(status.get("reason") or ended.get("reason") or phase)
        said = [shortened(status.get("message")), shortened(ended.get("message"))]
        if "exitCode" in ended:
            said.append(f"container {pod.container} ended with exit code {ended['exitCode']}")
        raise PodGone(
            f"{pod.where} has ended: {shortened(reason)}",
            where=pod.where,
            detail="; ".join(filter(None, said)) or None,
            reason=reason,
            container_code=ended.get("exitCode"),
            taken=not ended or _is_disrupted(status),
        )
    waiting: Mapping[str, Any] = state.get("waiting") or {}
    why = [shortened(waiting.get("reason")), shortened(waiting.get("message"))]
    raise NotYet(
        f"{pod.where} has not started",
        where=pod.where,
        detail=": ".join(filter(None, why)) or f"its phase is {shortened(phase) or 'unknown'}",
        hint="its events say what it waits for",
    )


def _is_disrupted(status: Doc) -> bool:
    return bool(_disruption(status))


def _disruption(status: Doc) -> Mapping[str, Any]:
    """The condition of a pod that its cluster takes away, which says why."""
    return _condition(status, "DisruptionTarget", "True")


def _condition(status: Doc, kind: str, value: str) -> Mapping[str, Any]:
    rows: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    return next((row for row in rows if row.get("type") == kind and row.get("status") == value), {})


def silent_node(document: Doc) -> str | None:
    """The node of a pod of which its cluster hears nothing any more; None where it does.

    The node controller writes then that the pod is not ready, and leaves what the kubelet has said last:
    that all containers are (kubernetes pkg/controller/util/node, MarkPodsNotReady).
    """
    status = document.get("status") or {}
    rows = status.get("containerStatuses") or ()
    if not rows or not all(row.get("ready") for row in rows) or not _condition(status, "Ready", "False"):
        return None
    return shortened((document.get("spec") or {}).get("nodeName")) or "unknown"


def with_silence(document: Doc, detail: str | None) -> str | None:
    """A detail of an error, after what is known of the pod's node."""
    node = silent_node(document)
    if node is None:
        return detail
    since = shortened(_condition(document.get("status") or {}, "Ready", "False").get("lastTransitionTime"))
    told = f"its cluster hears nothing of its node {node} either" + (f", since {since}" if since else "")
    return "; ".join(filter(None, (told, detail)))


class NotYet(HostUnreachable):
    """The container has not started: it may come."""
