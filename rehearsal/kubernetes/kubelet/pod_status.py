"""What the API server is told of a pod, from how its containers are. Nothing here asks Docker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from orch.rehearsal.kubernetes.api import Doc


@dataclass
class PodContainer:
    """A container of the pod as it runs. `ended`: its exit code and when."""

    spec: Doc
    id: str = ""
    image: str = ""
    started: str = ""
    ended: tuple[int, str] | None = None
    oom: bool = False
    restarts: int = 0
    waiting: tuple[str, str] = ("ContainerCreating", "")
    last: Doc = field(default_factory=dict[str, Any])

    @property
    def running(self) -> bool:
        return bool(self.started) and self.ended is None

    def restarts_by(self, policy: str) -> bool:
        """Whether it is started again after its end, by the pod's `restartPolicy`."""
        assert self.ended is not None
        return policy == "Always" or (policy == "OnFailure" and self.ended[0] != 0)

    @property
    def status(self) -> Doc:
        """As the API server has it."""
        if self.ended is not None:
            state: Doc = {"terminated": self.terminated}
        elif self.started:
            state = {"running": {"startedAt": self.started}}
        else:
            state = {"waiting": {"reason": self.waiting[0], "message": self.waiting[1]}}
        return {
            "name": self.spec["name"],
            "image": self.spec["image"],
            "imageID": self.image,
            "containerID": f"docker://{self.id}" if self.id else "",
            "ready": self.running,
            "started": self.running,
            "restartCount": self.restarts,
            "state": {"terminated": None, "running": None, "waiting": None, **state},
            "lastState": self.last,
        }

    @property
    def terminated(self) -> Doc:
        """How it ended."""
        assert self.ended is not None
        code, when = self.ended
        return {
            "exitCode": code,
            "reason": "OOMKilled" if self.oom else "Completed" if code == 0 else "Error",
            "startedAt": self.started,
            "finishedAt": when,
            "containerID": f"docker://{self.id}",
        }


def restart_policy(pod: Doc) -> str:
    return str(pod["spec"].get("restartPolicy", "Always"))


def status_of(
    pod: Doc,
    main: Sequence[PodContainer],
    init: Sequence[PodContainer],
    ip: str,
    failure: tuple[str, str] | None,
) -> Doc:
    """The status of a pod. `failure`: why it failed, a word and a text, where no exit code tells."""
    moment, phase = now(), _phase(pod, main, init, failed=failure is not None)
    ready = phase == "Running" and all(each.running for each in main)
    initialized = any(each.started for each in main) or not init
    conditions = [
        _condition("PodReadyToStartContainers", bool(ip), moment),
        _condition("Initialized", initialized, moment),
        _condition("Ready", ready, moment, "" if ready else "ContainersNotReady"),
        _condition("ContainersReady", ready, moment, "" if ready else "ContainersNotReady"),
    ]
    if failure is not None and failure[0] == "Evicted":
        conditions.append(_condition("DisruptionTarget", True, moment, "TerminationByKubelet"))
    return {
        "phase": phase,
        "hostIP": "127.0.0.1",
        "podIP": ip or None,
        "podIPs": [{"ip": ip}] if ip else None,
        "startTime": pod.get("status", {}).get("startTime") or moment,
        "reason": failure[0] if failure else None,
        "message": failure[1] if failure else None,
        "conditions": conditions,
        "containerStatuses": [each.status for each in main],
        "initContainerStatuses": [each.status for each in init] or None,
    }


def _phase(pod: Doc, main: Sequence[PodContainer], init: Sequence[PodContainer], *, failed: bool) -> str:
    begun = any(each.started for each in main)
    if failed or (not begun and any(each.ended is not None and each.ended[0] != 0 for each in init)):
        return "Failed"
    ends = [each.ended[0] for each in main if each.ended is not None]
    if len(ends) == len(main) and not any(each.restarts_by(restart_policy(pod)) for each in main):
        return "Failed" if any(ends) else "Succeeded"
    return "Running" if begun else "Pending"


def _condition(kind: str, true: bool, moment: str, reason: str = "") -> Doc:
    row = {"type": kind, "status": "True" if true else "False", "lastTransitionTime": moment}
    return {**row, "reason": reason} if reason else row


def now() -> str:
    """The moment as Kubernetes writes one."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
