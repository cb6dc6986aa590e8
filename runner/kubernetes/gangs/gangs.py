"""Gangs on an API server: asked for, looked at, taken back.

A look costs two requests while a gang runs (its Job, its pods by label) and three to five before: what its
form of gang says of it, and events where pods do not come or do not start. All lists are of the gang alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from orch.runner.errors import RunConflict
from orch.runner.kubernetes.errors import Conflict, Forbidden, NotFound
from orch.runner.kubernetes.gangs.documents import GangFacts, GangPod, pods_of, unexplained
from orch.runner.kubernetes.gangs.look import GangLook, look_of
from orch.runner.kubernetes.gangs.names import (
    ATTEMPT,
    FLEET,
    JOB_NAME,
    MANAGED_BY,
    PROJECT,
    QUEUE_NAME,
    RELEASED,
    RUN,
    RUN_ID,
)
from orch.runner.kubernetes.gangs.objects import gang, held, owned, release
from orch.runner.kubernetes.gangs.reasons import Taken, event_of_removal, taken_because
from orch.runner.kubernetes.gangs.request import GangRequest
from orch.runner.kubernetes.namespace_limits import with_limits
from orch.spec.state import PodQueue

if TYPE_CHECKING:
    from orch.runner.kubernetes.client import KubernetesClient

Doc = dict[str, Any]

WORKLOAD_OF = "kueue.x-k8s.io/job-uid"
KUEUE_VERSIONS = ("v1beta2", "v1beta1")

REMOVED_WITHIN_S = 120.0
LOOKS_EVERY_S = 1.0

_PLURALS = {
    "Service": "services",
    "Secret": "secrets",
    "PodGroup": "podgroups",
    "ComputeDomain": "computedomains",
}


class GangOfAnother(RunConflict):
    """There is a Job of the gang's name that is not of this run."""


@dataclass(frozen=True)
class ListedGang:
    """A gang of a project as its Job says. `token`: that of its run; `leaving`: it is being removed."""

    name: str
    uid: str
    fleet: str
    run: str
    attempt: int
    token: str
    created_at: datetime | None
    leaving: bool


class Gangs:
    """The gangs of one queue. `pause` waits between two looks at what is being removed."""

    def __init__(
        self, client: KubernetesClient, queue: PodQueue, *, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._client, self._queue, self._pause = client, queue, pause
        self._namespace = queue.namespace
        self._kueue_version = KUEUE_VERSIONS[0]

    def apply(self, request: GangRequest) -> bool:
        """Have the gang be there, whole and let go; False while one of its name is still being removed.

        Who is cut short in between leaves a suspended Job, which the next call goes on with; two at once make
        one. What has been let go is not touched again: `suspend` is Kueue's then.
        Raises BadTask, GangOfAnother and KubernetesError.
        """
        job, *others = gang(request)
        found = self._make(job)
        metadata = found["metadata"]
        if metadata.get("deletionTimestamp"):
            return False
        token = (metadata.get("annotations") or {}).get(RUN_ID)
        if token != request.token:
            raise GangOfAnother(
                f"there is a Job {request.name} in namespace {self._namespace} that is not of this run",
                where=f"{self._namespace}/{request.name}",
                hint="delete it, or give the run another name",
            )
        if RELEASED in (metadata.get("annotations") or {}):
            return True
        for each in others:
            mine = owned(each, request.name, str(metadata["uid"]))
            self._client.apply(self._path(each["apiVersion"], _PLURALS[each["kind"]], request.name), mine)
        self._client.patch(
            self._job(request.name), {**release(job), "metadata": self._of(metadata, release(job))}
        )
        return True

    def now(self) -> datetime:
        """The time by the API server's clock, which stamps what a look shows."""
        return self._client.now()

    def look(self, name: str) -> GangLook:
        """The gang as it is now. Raises KubernetesError."""
        job = self._client.find(self._job(name))
        uid = None if job is None else str(job["metadata"]["uid"])
        pods = [pod for pod in self._pods(name) if uid is None or _owner(pod) == uid]
        first = look_of(GangFacts(name, job, pods, self._kueue))
        if job is None or uid is None or first.state not in ("waiting", "starting"):
            return first
        events: list[Doc] = []
        suspended = bool(job["spec"].get("suspend"))
        if not suspended:
            if len(first.pods) < first.wanted:
                events += self._events(uid)
            silent = next(unexplained(pods), None)
            if silent is not None:
                events += self._events(str(silent["metadata"]["uid"]))
        workload = self._workload(uid) if self._kueue and suspended else None
        group = None
        if self._queue.gang == "podgroup" and first.state == "waiting":
            group = self._client.find(self._path("scheduling.k8s.io/v1alpha2", "podgroups", name))
        return look_of(GangFacts(name, job, pods, self._kueue, workload, group, events))

    def why_taken(self, name: str, uids: Sequence[str | None] = ()) -> tuple[Taken | None, bool]:
        """Why the cluster takes pods of a gang away, None where it has not said so yet; and whether it will
        not any more. `uids`: those of its pods, by index. Raises KubernetesError."""
        job, pods = self._client.find(self._job(name)), self._pods(name)
        if job is None and not pods:
            return None, True
        workload = None
        if (
            job is not None
            and job["spec"].get("suspend")
            and QUEUE_NAME in (job["metadata"].get("labels") or {})
        ):
            workload = self._workload(str(job["metadata"]["uid"]))
        facts = GangFacts(name, job, pods, workload=workload)
        found, over = taken_because(facts), look_of(facts).state in ("failed", "gone")
        if found is None and over:
            there = {str(pod["metadata"]["uid"]) for pod in pods}
            gone = [(index, uid) for index, uid in enumerate(uids) if uid is not None and uid not in there]
            told = ((index, event_of_removal(self._events(uid))) for index, uid in gone)
            found = next((Taken(index, why) for index, why in told if why is not None), None)
        return found, over

    def delete(self, name: str, *, uid: str | None = None) -> bool:
        """Have a gang removed, its pods first; whether there was one. `uid`: only that one of its name."""
        return self._client.delete(self._job(name), propagation="Foreground", uid=uid) is not None

    def take_back(
        self, name: str, *, uid: str | None = None, within_s: float = REMOVED_WITHIN_S
    ) -> tuple[GangPod, ...]:
        """Remove a gang and wait until no pod of it is left; those that are, after `within_s`.

        A pod on a node that does not answer stays until the node comes back or is removed from the cluster.
        """
        self.delete(name, uid=uid)
        ends = time.monotonic() + within_s
        while True:
            left = [pod for pod in self._pods(name) if uid is None or _owner(pod) == uid]
            gone = not left and self._client.find(self._job(name)) is None
            if gone or time.monotonic() >= ends:
                return pods_of(left)
            self._pause(LOOKS_EVERY_S)

    def listed(self, project: str) -> tuple[ListedGang, ...]:
        """All gangs of a project in the queue's namespace, also of runs that nobody knows any more."""
        selector = f"{MANAGED_BY}=orch,{PROJECT}={project}"
        rows = self._client.items(self._path("batch/v1", "jobs"), labelSelector=selector)
        return tuple(sorted(map(_listed, rows), key=lambda each: each.name))

    def _make(self, job: Doc) -> Doc:
        """The Job, made where there is none: only one of two that make it at once does."""
        name, whole = str(job["metadata"]["name"]), None
        for last in (*[False] * 4, True):
            if (found := self._client.find(self._job(name))) is not None:
                return found
            try:
                whole = whole or self._within_limits(job)
                return self._client.create(self._path("batch/v1", "jobs"), held(whole))
            except Conflict:  # somebody else was faster, or one of the name has just gone
                if last:
                    raise
        raise AssertionError("a Job is asked for five times at most")

    def _within_limits(self, job: Doc) -> Doc:
        return with_limits(job, self._readable("limitranges"), self._readable("resourcequotas"))

    def _of(self, metadata: Mapping[str, Any], patch: Doc) -> Doc:
        """What is patched belongs to this very Job, and not to a later one of its name."""
        return {**patch["metadata"], "uid": metadata["uid"]}

    @property
    def _kueue(self) -> bool:
        return self._queue.gang == "kueue"

    def _pods(self, name: str) -> list[Doc]:
        return self._client.items(self._path("v1", "pods"), labelSelector=f"{JOB_NAME}={name}")

    def _events(self, uid: str) -> list[Doc]:
        """Events about one object."""
        return self._readable("events", fieldSelector=f"involvedObject.uid={uid}")

    def _readable(self, plural: str, **query: str) -> list[Doc]:
        """Objects of the namespace; none for who may not read them."""
        try:
            return self._client.items(self._path("v1", plural), **query)
        except Forbidden:
            return []

    def _workload(self, uid: str) -> Doc | None:
        """What Kueue keeps of a Job. Kueue 0.14 and older serve v1beta1 alone."""
        selector = f"{WORKLOAD_OF}={uid}"
        for version in dict.fromkeys((self._kueue_version, *KUEUE_VERSIONS)):
            path = self._path(f"kueue.x-k8s.io/{version}", "workloads")
            try:
                rows: Sequence[Doc] = self._client.items(path, labelSelector=selector)
            except NotFound:
                if version == KUEUE_VERSIONS[-1]:
                    raise
                continue
            self._kueue_version = version
            return rows[0] if rows else None
        return None

    def _job(self, name: str) -> str:
        return self._path("batch/v1", "jobs", name)

    def _path(self, version: str, plural: str, name: str = "") -> str:
        root = "/api/v1" if version == "v1" else f"/apis/{version}"
        path = f"{root}/namespaces/{self._namespace}/{plural}"
        return f"{path}/{name}" if name else path


def _owner(pod: Doc) -> str:
    owners: list[Doc] = pod["metadata"].get("ownerReferences") or []
    return next((str(each["uid"]) for each in owners if each.get("kind") == "Job"), "")


def _listed(job: Doc) -> ListedGang:
    metadata = job["metadata"]
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    attempt = str(labels.get(ATTEMPT, ""))
    created = str(metadata.get("creationTimestamp") or "")
    return ListedGang(
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        fleet=str(labels.get(FLEET, "")),
        run=str(labels.get(RUN, "")),
        attempt=int(attempt) if attempt.isdigit() else 0,
        token=str(notes.get(RUN_ID, "")),
        created_at=datetime.fromisoformat(created.replace("Z", "+00:00")) if created else None,
        leaving=bool(metadata.get("deletionTimestamp")),
    )
