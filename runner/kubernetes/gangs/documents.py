"""The documents of a gang as an API server has them, and its pods as they tell. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orch.runner.kubernetes.gangs.names import CONTAINER, INDEX

Doc = dict[str, Any]


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


def unexplained(documents: Sequence[Doc]) -> Iterator[Doc]:
    """Pods that have a node and no running container, and do not say why."""
    for pod in newest(documents):
        if node_of(pod) is None or runs(pod):
            continue
        waiting = container_of(pod).get("state", {}).get("waiting", {})
        if waiting.get("reason") in ("ContainerCreating", "PodInitializing", "ImagePullBackOff", None):
            yield pod


def pods_of(documents: Sequence[Doc]) -> tuple[GangPod, ...]:
    """The pods of a gang by index; of two for one index the one that is not being removed, then the newer."""
    return tuple(_pod(each) for each in newest(documents))


def _pod(document: Doc) -> GangPod:
    metadata, status = document["metadata"], document.get("status") or {}
    state = container_of(document).get("state") or {}
    terminated = state.get("terminated")
    scheduled = condition(document, "PodScheduled")
    return GangPod(
        index=index_of(document),
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        phase=str(status.get("phase", "Pending")),
        ip=status.get("podIP"),
        node=node_of(document),
        running=runs(document) and not metadata.get("deletionTimestamp"),
        exit_code=None if terminated is None else int(terminated["exitCode"]),
        placed_at=moment(scheduled.get("lastTransitionTime"))
        if scheduled.get("status") == "True" and node_of(document) is not None
        else None,
        waits=str((state.get("waiting") or {}).get("reason") or ""),
    )


def newest(documents: Sequence[Doc]) -> list[Doc]:
    found: dict[int, Doc] = {}
    for each in sorted(
        documents,
        key=lambda pod: (
            not pod["metadata"].get("deletionTimestamp"),
            str(pod["metadata"].get("creationTimestamp")),
        ),
    ):
        found[index_of(each)] = each
    return [found[index] for index in sorted(found)]


def index_of(pod: Doc) -> int:
    metadata = pod["metadata"]
    text = (metadata.get("labels") or {}).get(INDEX) or (metadata.get("annotations") or {}).get(INDEX) or "0"
    return int(text) if str(text).isdigit() else 0


def node_of(pod: Doc) -> str | None:
    return (pod.get("spec") or {}).get("nodeName") or None


def container_of(pod: Doc) -> Doc:
    rows: list[Doc] = (pod.get("status") or {}).get("containerStatuses") or []
    return next((row for row in rows if row.get("name") == CONTAINER), {})


def runs(pod: Doc) -> bool:
    return (container_of(pod).get("state") or {}).get("running") is not None


def condition(document: Doc, *kinds: str) -> Doc:
    rows: list[Doc] = (document.get("status") or {}).get("conditions") or []
    return next((row for row in rows if row.get("type") in kinds), {})


def is_true(document: Doc, *kinds: str) -> bool:
    rows: list[Doc] = (document.get("status") or {}).get("conditions") or []
    return any(row.get("type") in kinds and row.get("status") == "True" for row in rows)


def moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
