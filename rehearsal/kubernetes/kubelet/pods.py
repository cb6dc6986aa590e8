"""One pod of a node: its containers from the first to the last, and what the API server is told of them."""

from __future__ import annotations

import base64
import json
import queue
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from docker.errors import APIError, ImageNotFound, NotFound

from orch.rehearsal.kubernetes.api import STRATEGIC, ApiError, Doc
from orch.rehearsal.kubernetes.kubelet.containers import (
    CannotStart,
    contents,
    environment,
    expanded,
    limits,
    mounts,
)
from orch.rehearsal.kubernetes.kubelet.machine import LABEL, Machine
from orch.rehearsal.kubernetes.kubelet.pod_status import PodContainer, now, restart_policy, status_of
from orch.rehearsal.kubernetes.kubelet.pod_volumes import PodVolumes

BACKOFF_S = 10.0
"""How long a kubelet waits before it starts a failed container again, or asks for an image again; each time
twice as long, 300 s at most."""

FREEZES = 20
"""How often a container of a lost node is tried to be frozen."""

_REFUSED = ("hostNetwork", "hostPID", "hostIPC", "runtimeClassName", "ephemeralContainers", "resourceClaims")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe", "lifecycle")


class _Deleted(Exception):
    """The pod is to go."""


class PodWorker(threading.Thread):
    """Runs one pod. `gone` is called once nothing of it is left here."""

    def __init__(self, machine: Machine, pod: Doc, gone: Callable[[str], None]) -> None:
        meta = pod["metadata"]
        super().__init__(name=f"pod-{meta['namespace']}-{meta['name']}", daemon=True)
        self.pod, self._machine, self._gone = pod, machine, gone
        self.uid: str = meta["uid"]
        self._path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._news: queue.Queue[Doc | None] = queue.Queue()
        self._mute = threading.Event()
        self.ip = ""
        self.sandbox = ""
        self._init = [PodContainer(spec) for spec in pod["spec"].get("initContainers", ())]
        self._main = [PodContainer(spec) for spec in pod["spec"]["containers"]]
        self._deadline = _deadline(pod)
        self._folder = machine.folder / "pods" / self.uid

    # What others ask of it.

    def changed(self, pod: Doc) -> None:
        self.pod = pod
        self._news.put(pod)

    def lost(self) -> None:
        """The API server has no such pod any more."""
        self._news.put(None)

    def mute(self, silent: bool) -> None:
        """Whether the node tells nothing, and does nothing."""
        docker = self._machine.docker
        for each in (*self._init, *self._main):
            if each.running:
                for _ in range(FREEZES if silent else 1):
                    with suppress(Exception):
                        docker.api.pause(each.id) if silent else docker.api.unpause(each.id)
                        break
                    time.sleep(0.1)  # what starts processes all the time cannot always be frozen
        self._mute.set() if silent else self._mute.clear()
        self._news.put(self.pod)

    def evict(self, message: str) -> None:
        """As a node does that runs out of memory or disk: containers end, the pod has failed."""
        self._evicted = message
        self._news.put(self.pod)

    def container(self, name: str) -> str:
        """The id of a running or ended container, "" without. An empty name: the first."""
        rows = [*self._main, *self._init]
        return next((each.id for each in rows if name in ("", each.spec["name"])), "")

    # Its life.

    _evicted: str | None = None

    def run(self) -> None:
        failure: tuple[str, str] | None = None
        deleted = False
        try:
            failure = self._live()
        except _Deleted:
            deleted = True
        except CannotStart as error:
            failure = (error.reason, str(error))
        except (ApiError, APIError, OSError, KeyError, ValueError, TypeError) as error:
            failure = ("RehearsalFailed", f"{type(error).__name__}: {error}")
        try:
            self._stop_all()
            self._report(failure=failure)
            while not deleted:  # it stays as it ended until somebody deletes it
                self._next(None)
        except _Deleted:
            pass
        self._remove()
        self._gone(self.uid)

    def _live(self) -> tuple[str, str] | None:
        """Until all containers ended; why the pod failed, where it is not a container's exit code."""
        self._check()
        self._start_sandbox()
        self._report()
        for each in self._init:
            self._begin(each)
            if each.spec.get("restartPolicy") == "Always":
                continue
            while each.ended is None:
                self._wait_for([each])
            if each.ended[0] != 0:
                return None
        for each in self._main:
            self._begin(each)
        while True:
            if self._evicted is not None:
                return "Evicted", self._evicted
            if self._deadline is not None and time.time() > self._deadline:
                return "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
            open_ones = [each for each in self._main if each.ended is None]
            again = [each for each in self._main if each.ended is not None and self._restarts(each)]
            if not open_ones and not again:
                return None
            for each in again:
                self._restart(each)
            self._wait_for([*open_ones, *(each for each in self._init if each.running)])

    def _check(self) -> None:
        spec = self.pod["spec"]
        rows = [*spec.get("initContainers", ()), *spec["containers"]]
        found = [name for name in _REFUSED if spec.get(name)]
        found += [f"{row['name']}.{name}" for row in rows for name in _PROBES if row.get(name)]
        if found:
            raise CannotStart("RehearsalFailed", f"a rehearsed node does not know {', '.join(found)}")

    def _restarts(self, each: PodContainer) -> bool:
        return each.restarts_by(restart_policy(self.pod))

    def _restart(self, each: PodContainer) -> None:
        each.waiting = ("CrashLoopBackOff", "back-off restarting failed container")
        each.last = {"terminated": each.terminated}
        each.started, each.ended = "", None
        self._report()
        self._pause(min(BACKOFF_S * 2**each.restarts, 300.0))
        each.restarts += 1
        with suppress(Exception):
            self._machine.docker.api.remove_container(each.id, force=True, v=True)
        self._begin(each)

    def _begin(self, each: PodContainer) -> None:
        image = self._image(each)
        while True:
            try:
                options = self._options(each, image)
                break
            except CannotStart as error:  # a secret that is not there yet may come
                each.waiting = (error.reason, str(error))
                self._report()
                self._pause(BACKOFF_S / 5)
        docker = self._machine.docker
        created = docker.api.create_container_from_config(
            options, f"orch-k8s-{self.uid}-{each.spec['name']}-{each.restarts}"
        )
        each.id, each.image = created["Id"], image
        docker.api.start(each.id)
        each.started = now()
        threading.Thread(target=self._await, args=(each, each.id), daemon=True).start()
        self._report()

    def _await(self, each: PodContainer, container: str) -> None:
        docker = self._machine.docker
        while True:
            try:
                code = int(docker.api.wait(container, timeout=3600)["StatusCode"])
                state = docker.api.inspect_container(container)["State"]
                break
            except NotFound:
                return  # removed with the pod
            except (APIError, OSError):
                time.sleep(0.5)
        each.oom = bool(state.get("OOMKilled"))
        each.ended = (code, now())
        self._news.put(self.pod)

    def _image(self, each: PodContainer) -> str:
        """The image, pulled where it is not here. Waits for one that is not to be had."""
        name, policy = each.spec["image"], each.spec.get("imagePullPolicy", "IfNotPresent")
        pause = BACKOFF_S
        while True:
            try:
                self._machine.docker.images.get(name)
                if policy != "Always" or "/" not in name:
                    return name
            except ImageNotFound:
                if policy == "Never":
                    each.waiting = ("ErrImageNeverPull", f'Container image "{name}" is not present')
                    self._report()
                    self._pause(pause)
                    continue
            try:
                self._machine.docker.api.pull(name, auth_config=self._login(name))
                return name
            except (APIError, ImageNotFound, OSError) as error:
                each.waiting = ("ErrImagePull", f'failed to pull image "{name}": {error}')
                self._report()
                self._event("Failed", f'Failed to pull image "{name}": {error}')
                self._pause(1.0)
                each.waiting = ("ImagePullBackOff", f'Back-off pulling image "{name}"')
                self._report()
                self._pause(pause)
                pause = min(pause * 2, 300.0)

    def _login(self, image: str) -> Doc | None:
        """The log-in that the pod's `imagePullSecrets` have for the image's registry."""
        for reference in self.pod["spec"].get("imagePullSecrets", ()):
            secret = self._machine.lookup(self.pod, "secrets", reference["name"])
            text = contents("secrets", secret or {}).get(".dockerconfigjson")
            for registry, entry in (json.loads(text)["auths"] if text else {}).items():
                if image.startswith(registry.removeprefix("https://").rstrip("/")):
                    user, _, password = base64.b64decode(entry.get("auth", "")).decode().partition(":")
                    return {
                        "username": entry.get("username", user),
                        "password": entry.get("password", password),
                    }
        return None

    def _options(self, each: PodContainer, image: str) -> Doc:
        spec = each.spec
        values = environment(self.pod, spec, partial(self._machine.lookup, self.pod), self.ip)
        volumes = PodVolumes(self._machine, self.pod, self.ip, self._folder)
        context = spec.get("securityContext", {})
        pod_context = self.pod["spec"].get("securityContext", {})
        user = context.get("runAsUser", pod_context.get("runAsUser"))
        group = context.get("runAsGroup", pod_context.get("runAsGroup"))
        if context.get("privileged"):
            raise CannotStart("CreateContainerError", "a rehearsed node has no privileged containers")
        words: Doc = {
            "Image": image,
            "Env": [f"{name}={text}" for name, text in values.items()],
            "Labels": {LABEL: self._machine.cluster, f"{LABEL}.pod": self.uid},
            "HostConfig": {
                "NetworkMode": f"container:{self.sandbox}",
                "IpcMode": f"container:{self.sandbox}",
                "Mounts": mounts(spec, volumes.sources(spec)),
                "CapAdd": context.get("capabilities", {}).get("add", []),
                "CapDrop": context.get("capabilities", {}).get("drop", []),
                **limits(spec),
            },
        }
        if spec.get("command"):
            words["Entrypoint"] = [expanded(word, values) for word in spec["command"]]
            words["Cmd"] = []
        if spec.get("args"):
            words["Cmd"] = [expanded(word, values) for word in spec["args"]]
        if spec.get("workingDir"):
            words["WorkingDir"] = spec["workingDir"]
        if user is not None:
            words["User"] = f"{user}" if group is None else f"{user}:{group}"
        return words

    def _start_sandbox(self) -> None:
        """The container that the pod's network, host name and shared memory belong to."""
        docker, meta, spec = self._machine.docker, self.pod["metadata"], self.pod["spec"]
        hostname = spec.get("hostname", meta["name"])
        networking = docker.api.create_networking_config(
            {self._machine.network: docker.api.create_endpoint_config(aliases=self._names(hostname))}
        )
        created = docker.api.create_container_from_config(
            {
                "Image": self._machine.sandbox,
                "Entrypoint": ["sleep", "infinity"],
                "Hostname": hostname[:63],
                "Labels": {
                    LABEL: self._machine.cluster,
                    f"{LABEL}.pod": self.uid,
                    f"{LABEL}.sandbox": meta["name"],
                },
                "HostConfig": {
                    "NetworkMode": self._machine.network,
                    "IpcMode": "shareable",
                    "Init": True,
                    "DnsSearch": [
                        f"{meta['namespace']}.svc.cluster.local",
                        "svc.cluster.local",
                        "cluster.local",
                    ],
                },
                "NetworkingConfig": networking,
            },
            f"orch-k8s-{self.uid}",
        )
        self.sandbox = created["Id"]
        docker.api.start(self.sandbox)
        networks = docker.api.inspect_container(self.sandbox)["NetworkSettings"]["Networks"]
        self.ip = networks[self._machine.network]["IPAddress"]

    def _names(self, hostname: str) -> list[str]:
        """Its names in DNS: those of a headless service that bears its subdomain and selects it."""
        subdomain, namespace = self.pod["spec"].get("subdomain"), self.pod["metadata"]["namespace"]
        service = self._machine.lookup(self.pod, "services", subdomain) if subdomain else None
        if service is None or service["spec"].get("clusterIP") != "None":
            return []
        labels = self.pod["metadata"].get("labels", {})
        selector = service["spec"].get("selector") or {}
        if not selector or any(labels.get(key) != value for key, value in selector.items()):
            return []
        base = f"{hostname}.{subdomain}"
        return [
            base,
            f"{base}.{namespace}",
            f"{base}.{namespace}.svc",
            f"{base}.{namespace}.svc.cluster.local",
        ]

    # Waiting.

    def _next(self, wait_s: float | None) -> None:
        """Wait for news at most so long (None: for ever). Raises _Deleted."""
        ends = None if wait_s is None else time.monotonic() + wait_s
        while True:
            left = None if ends is None else max(ends - time.monotonic(), 0.0)
            try:
                news = self._news.get(timeout=left)
            except queue.Empty:
                return
            if self._mute.is_set() and news is not None:
                continue
            if news is None or news["metadata"].get("deletionTimestamp"):
                raise _Deleted
            return

    def _pause(self, wait_s: float) -> None:
        ends = time.monotonic() + wait_s
        while (left := ends - time.monotonic()) > 0:
            self._next(left)

    def _wait_for(self, containers: list[PodContainer]) -> None:
        """Until something changes, or the pod's time is up."""
        if any(each.ended is not None for each in containers) and self._news.empty():
            return
        left = None if self._deadline is None else max(self._deadline - time.time(), 0.0)
        self._next(left)
        self._report()

    def _stop_all(self) -> None:
        grace = self.pod["metadata"].get("deletionGracePeriodSeconds")
        if grace is None:
            grace = self.pod["spec"].get("terminationGracePeriodSeconds", 30)
        running = [each for each in (*self._main, *self._init) if each.running]

        def stop(each: PodContainer) -> None:
            with suppress(Exception):
                self._machine.docker.api.stop(each.id, timeout=int(grace))

        threads = [threading.Thread(target=stop, args=(each,), daemon=True) for each in running]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ends = time.monotonic() + 10
        while any(each.ended is None for each in running) and time.monotonic() < ends:
            time.sleep(0.05)

    def _remove(self) -> None:
        docker = self._machine.docker
        for row in docker.api.containers(all=True, filters={"label": f"{LABEL}.pod={self.uid}"}):
            with suppress(Exception):
                docker.api.remove_container(row["Id"], force=True, v=True)
        for volume in docker.volumes.list(filters={"label": f"{LABEL}.pod={self.uid}"}):
            with suppress(Exception):
                volume.remove(force=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(ApiError):
            self._machine.api.remove(self._path, gracePeriodSeconds=0, preconditions={"uid": self.uid})

    # Telling.

    def _report(self, failure: tuple[str, str] | None = None) -> None:
        """Write the pod's status."""
        if self._mute.is_set():
            return
        status = status_of(self.pod, self._main, self._init, self.ip, failure)
        try:
            self.pod = self._machine.api.patch(f"{self._path}/status", {"status": status}, STRATEGIC)
        except ApiError as error:
            if error.status == 404:
                raise _Deleted from error
            raise

    def _event(self, reason: str, message: str) -> None:
        meta, moment = self.pod["metadata"], now()
        with suppress(ApiError):
            self._machine.api.create(
                f"/api/v1/namespaces/{meta['namespace']}/events",
                {
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {"generateName": f"{meta['name']}."},
                    "involvedObject": {
                        "kind": "Pod",
                        "name": meta["name"],
                        "namespace": meta["namespace"],
                        "uid": self.uid,
                    },
                    "reason": reason,
                    "message": message[:1000],
                    "type": "Warning",
                    "source": {"component": "kubelet", "host": self.pod["spec"]["nodeName"]},
                    "firstTimestamp": moment,
                    "lastTimestamp": moment,
                    "count": 1,
                },
            )


def _deadline(pod: Doc) -> float | None:
    """When the pod's `activeDeadlineSeconds` are over."""
    seconds = pod["spec"].get("activeDeadlineSeconds")
    return None if seconds is None else time.time() + float(seconds)
