"""The kubelet of all nodes of a rehearsed cluster: watches bound pods, runs a worker for each."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

from orch.rehearsal.kubernetes.api import ApiError, Doc
from orch.rehearsal.kubernetes.kubelet.machine import LABEL, Machine
from orch.rehearsal.kubernetes.kubelet.nodes import Nodes
from orch.rehearsal.kubernetes.kubelet.pods import PodWorker


class Kubelet:
    """Pods of the nodes that `nodes` has, until the event is set."""

    def __init__(self, machine: Machine, nodes: Nodes, until: threading.Event) -> None:
        self._machine, self._nodes, self._until = machine, nodes, until
        self._workers: dict[str, PodWorker] = {}
        self._lock = threading.Lock()

    def worker(self, namespace: str, name: str) -> PodWorker | None:
        """Who runs a pod, by its name."""
        with self._lock:
            for worker in self._workers.values():
                meta = worker.pod["metadata"]
                if (meta["namespace"], meta["name"]) == (namespace, name):
                    return worker
        return None

    def watch(self) -> None:
        """Follow pods that are bound to a node."""
        for kind, document in self._machine.api.watch(
            "/api/v1/pods", self._until, fieldSelector="spec.nodeName!="
        ):
            if kind == "SYNC":
                rows: list[Doc] = document["items"]
                self._sync(rows)
            elif kind == "DELETED":
                self._lost(document["metadata"]["uid"])
            else:
                self._take(document)

    def lose(self, node: str) -> None:
        """The node does not answer any more; what runs there stands still."""
        self._nodes.silence(node)
        for worker in self._of(node):
            worker.mute(True)

    def find_again(self, node: str) -> None:
        """A node that was lost is back with all that ran there."""
        for worker in self._of(node):
            worker.mute(False)
        self._nodes.speak(node)

    def silent(self, namespace: str, name: str) -> bool:
        """Whether the node of a pod is lost."""
        worker = self.worker(namespace, name)
        return worker is not None and self._nodes.silent(str(worker.pod["spec"].get("nodeName")))

    def evict(self, namespace: str, name: str, message: str) -> None:
        """As a node does that runs out of memory or disk."""
        worker = self.worker(namespace, name)
        if worker is not None:
            worker.evict(message)

    def stop(self) -> None:
        """Remove all containers and volumes of the cluster."""
        docker = self._machine.docker
        chosen = {"label": f"{LABEL}={self._machine.cluster}"}
        for row in docker.api.containers(all=True, filters=chosen):
            with suppress(Exception):
                docker.api.remove_container(row["Id"], force=True, v=True)
        for volume in docker.volumes.list(filters=chosen):
            with suppress(Exception):
                volume.remove(force=True)

    def _sync(self, pods: Iterable[Doc]) -> None:
        there = {pod["metadata"]["uid"]: pod for pod in pods}
        for pod in there.values():
            self._take(pod)
        with self._lock:
            gone = [uid for uid in self._workers if uid not in there]
        for uid in gone:
            self._lost(uid)

    def _take(self, pod: Doc) -> None:
        uid = pod["metadata"]["uid"]
        with self._lock:
            worker = self._workers.get(uid)
            if worker is None and pod["spec"]["nodeName"] in self._nodes.names():
                if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                    self._bury(pod)
                    return
                worker = self._workers[uid] = PodWorker(self._machine, pod, self._forget)
                worker.start()
                return
        if worker is not None:
            worker.changed(pod)

    def _bury(self, pod: Doc) -> None:
        """A pod that ended under a former kubelet goes when somebody deletes it."""
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            with suppress(ApiError):
                self._machine.api.remove(path, gracePeriodSeconds=0, preconditions={"uid": meta["uid"]})

    def _lost(self, uid: str) -> None:
        with self._lock:
            worker = self._workers.get(uid)
        if worker is not None:
            worker.lost()

    def _forget(self, uid: str) -> None:
        with self._lock:
            self._workers.pop(uid, None)

    def _of(self, node: str) -> list[PodWorker]:
        with self._lock:
            return [each for each in self._workers.values() if each.pod["spec"].get("nodeName") == node]
