"""One pod of a node: its containers from the first to the last, and what the API server is told of them."""

from __future__ import annotations

import base64
import json
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from docker.errors import APIError, ImageNotFound, NotFound

from orch.rehearsal.kubernetes.api import STRATEGIC, Api, ApiError, Doc
from orch.rehearsal.kubernetes.kubelet.containers import (
    CannotStart,
    contents,
    environment,
    expanded,
    field_of,
    limits,
    mounts,
    quantity,
)

LABEL = "orch.kubernetes"
"""The label of all containers and volumes of a cluster; its value is the cluster's name."""

BACKOFF_S = 10.0
"""How long a kubelet waits before it starts a failed container again, or asks for an image again; each time
twice as long, 300 s at most."""

_REFUSED = ("hostNetwork", "hostPID", "hostIPC", "runtimeClassName", "ephemeralContainers", "resourceClaims")
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe", "lifecycle")


@dataclass(frozen=True)
class Machine:
    """What all pods of a cluster share. `sandbox`: the image of the container that holds a pod's network."""

    api: Api
    docker: Any
    cluster: str
    network: str
    sandbox: str
    folder: Path


@dataclass
class _Container:
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
        self._init = [_Container(spec) for spec in pod["spec"].get("initContainers", ())]
        self._main = [_Container(spec) for spec in pod["spec"]["containers"]]
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
                with suppress(Exception):
                    docker.api.pause(each.id) if silent else docker.api.unpause(each.id)
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

    def _restarts(self, each: _Container) -> bool:
        policy = self.pod["spec"].get("restartPolicy", "Always")
        assert each.ended is not None
        return policy == "Always" or (policy == "OnFailure" and each.ended[0] != 0)

    def _restart(self, each: _Container) -> None:
        each.waiting = ("CrashLoopBackOff", "back-off restarting failed container")
        each.last = {"terminated": self._terminated(each)}
        each.started, each.ended = "", None
        self._report()
        self._pause(min(BACKOFF_S * 2**each.restarts, 300.0))
        each.restarts += 1
        with suppress(Exception):
            self._machine.docker.api.remove_container(each.id, force=True, v=True)
        self._begin(each)

    def _begin(self, each: _Container) -> None:
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
        each.started = _now()
        threading.Thread(target=self._await, args=(each, each.id), daemon=True).start()
        self._report()

    def _await(self, each: _Container, container: str) -> None:
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
        each.ended = (code, _now())
        self._news.put(self.pod)

    def _image(self, each: _Container) -> str:
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
            secret = self._lookup("secrets", reference["name"])
            text = contents("secrets", secret or {}).get(".dockerconfigjson")
            for registry, entry in (json.loads(text)["auths"] if text else {}).items():
                if image.startswith(registry.removeprefix("https://").rstrip("/")):
                    user, _, password = base64.b64decode(entry.get("auth", "")).decode().partition(":")
                    return {
                        "username": entry.get("username", user),
                        "password": entry.get("password", password),
                    }
        return None

    def _options(self, each: _Container, image: str) -> Doc:
        spec = each.spec
        values = environment(self.pod, spec, self._lookup, self.ip)
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
                "Mounts": mounts(spec, self._volumes(spec)),
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
        service = self._lookup("services", subdomain) if subdomain else None
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

    def _volumes(self, container: Doc) -> dict[str, Doc]:
        """Docker's source of each volume that a container mounts. Raises CannotStart."""
        used = {mount["name"] for mount in container.get("volumeMounts", ())}
        rows = [row for row in self.pod["spec"].get("volumes", ()) if row["name"] in used]
        return {row["name"]: self._volume(row) for row in rows}

    def _volume(self, row: Doc) -> Doc:
        name, folder = row["name"], self._folder / row["name"]
        if "emptyDir" in row:
            empty = row["emptyDir"] or {}
            if empty.get("medium") != "Memory":
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o777)
                return {"Type": "bind", "Source": str(folder)}
            volume = f"orch-k8s-{self.uid}-{name}"
            size = int(quantity(empty.get("sizeLimit", "64Gi")))
            options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={size}"}
            self._machine.docker.volumes.create(
                volume, driver_opts=options, labels={LABEL: self._machine.cluster, f"{LABEL}.pod": self.uid}
            )
            return {"Type": "volume", "Source": volume}
        if "hostPath" in row:
            path = Path(row["hostPath"]["path"])
            if row["hostPath"].get("type") == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True)
            elif not path.exists():
                raise CannotStart("CreateContainerError", f"hostPath {path} does not exist")
            return {"Type": "bind", "Source": str(path)}
        if "persistentVolumeClaim" in row:
            return self._claim(row["persistentVolumeClaim"])
        files = dict(self._files(row))
        folder.mkdir(parents=True, exist_ok=True)
        for path, (content, mode) in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(mode)
        return {"Type": "bind", "Source": str(folder), "ReadOnly": True}

    def _claim(self, reference: Doc) -> Doc:
        claim = self._lookup("persistentvolumeclaims", reference["claimName"])
        if claim is None or claim.get("status", {}).get("phase") != "Bound":
            raise CannotStart("ContainerCreating", f"claim {reference['claimName']} is not bound")
        volume = self._machine.api.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
        path = Path(volume["spec"]["hostPath"]["path"])
        path.mkdir(parents=True, exist_ok=True)
        return {"Type": "bind", "Source": str(path), "ReadOnly": bool(reference.get("readOnly"))}

    def _files(self, row: Doc) -> Iterator[tuple[str, tuple[bytes, int]]]:
        """Files of a volume that is made of documents, by path. Raises CannotStart."""
        if "projected" in row:
            mode = row["projected"].get("defaultMode", 0o644)
            for source in row["projected"].get("sources", ()):
                if "serviceAccountToken" in source:
                    yield (
                        source["serviceAccountToken"]["path"],
                        (self._token(source["serviceAccountToken"]), mode),
                    )
                else:
                    yield from self._files({**source, "mode": mode})
            return
        for kind, plural in (("configMap", "configmaps"), ("secret", "secrets")):
            if kind not in row:
                continue
            source = row[kind]
            name = source.get("name") or source.get("secretName")
            document = self._lookup(plural, name)
            if document is None:
                if source.get("optional"):
                    return
                raise CannotStart(
                    "ContainerCreating", f'MountVolume.SetUp failed: {plural[:-1]} "{name}" not found'
                )
            mode = source.get("defaultMode", row.get("mode", 0o644))
            data = contents(plural, document)
            items: list[Doc] = source.get("items") or [{"key": key, "path": key} for key in data]
            for item in items:
                yield item["path"], (data[item["key"]], item.get("mode", mode))
            return
        if "downwardAPI" in row:
            for item in row["downwardAPI"].get("items", ()):
                text = field_of(self.pod, item["fieldRef"]["fieldPath"], self.ip)
                yield item["path"], (text.encode(), row.get("mode", 0o644))
            return
        raise CannotStart("RehearsalFailed", f"a rehearsed node does not know the volume {row}")

    def _token(self, source: Doc) -> bytes:
        account = self.pod["spec"].get("serviceAccountName", "default")
        namespace = self.pod["metadata"]["namespace"]
        request = {"spec": {"audiences": [source["audience"]] if "audience" in source else []}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self._machine.api.create(path, request)["status"]["token"]).encode()

    def _lookup(self, plural: str, name: str) -> Doc | None:
        return self._machine.api.find(
            f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/{plural}/{name}"
        )

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

    def _wait_for(self, containers: list[_Container]) -> None:
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

        def stop(each: _Container) -> None:
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
        ended = [each.ended for each in self._main]
        codes = [each[0] for each in ended if each is not None]
        init_failed = any(
            each.ended is not None and each.ended[0] != 0 for each in self._init if not each.running
        ) and not any(each.started for each in self._main)
        if failure is not None or init_failed:
            phase = "Failed"
        elif len(codes) == len(self._main) and not any(self._restarts(each) for each in self._main):
            phase = "Succeeded" if not any(codes) else "Failed"
        elif any(each.started for each in self._main):
            phase = "Running"
        else:
            phase = "Pending"
        ready = phase == "Running" and all(each.running for each in self._main)
        initialized = any(each.started for each in self._main) or not self._init
        now = _now()
        conditions = [
            _condition("PodReadyToStartContainers", bool(self.ip), now),
            _condition("Initialized", initialized, now),
            _condition("Ready", ready, now, "" if ready else "ContainersNotReady"),
            _condition("ContainersReady", ready, now, "" if ready else "ContainersNotReady"),
        ]
        if failure is not None and failure[0] == "Evicted":
            conditions.append(_condition("DisruptionTarget", True, now, "TerminationByKubelet"))
        status: Doc = {
            "phase": phase,
            "hostIP": "127.0.0.1",
            "podIP": self.ip or None,
            "podIPs": [{"ip": self.ip}] if self.ip else None,
            "startTime": self.pod.get("status", {}).get("startTime") or now,
            "reason": failure[0] if failure else None,
            "message": failure[1] if failure else None,
            "conditions": conditions,
            "containerStatuses": [self._status(each) for each in self._main],
            "initContainerStatuses": [self._status(each) for each in self._init] or None,
        }
        try:
            self.pod = self._machine.api.patch(f"{self._path}/status", {"status": status}, STRATEGIC)
        except ApiError as error:
            if error.status == 404:
                raise _Deleted from error
            raise

    def _status(self, each: _Container) -> Doc:
        if each.ended is not None:
            state: Doc = {"terminated": self._terminated(each)}
        elif each.started:
            state = {"running": {"startedAt": each.started}}
        else:
            state = {"waiting": {"reason": each.waiting[0], "message": each.waiting[1]}}
        return {
            "name": each.spec["name"],
            "image": each.spec["image"],
            "imageID": each.image,
            "containerID": f"docker://{each.id}" if each.id else "",
            "ready": each.running,
            "started": each.running,
            "restartCount": each.restarts,
            "state": {"terminated": None, "running": None, "waiting": None, **state},
            "lastState": each.last,
        }

    def _terminated(self, each: _Container) -> Doc:
        assert each.ended is not None
        code, when = each.ended
        return {
            "exitCode": code,
            "reason": "OOMKilled" if each.oom else "Completed" if code == 0 else "Error",
            "startedAt": each.started,
            "finishedAt": when,
            "containerID": f"docker://{each.id}",
        }

    def _event(self, reason: str, message: str) -> None:
        meta, now = self.pod["metadata"], _now()
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
                    "firstTimestamp": now,
                    "lastTimestamp": now,
                    "count": 1,
                },
            )


def _condition(kind: str, true: bool, now: str, reason: str = "") -> Doc:
    row = {"type": kind, "status": "True" if true else "False", "lastTransitionTime": now}
    return {**row, "reason": reason} if reason else row


def _deadline(pod: Doc) -> float | None:
    """When the pod's `activeDeadlineSeconds` are over."""
    seconds = pod["spec"].get("activeDeadlineSeconds")
    return None if seconds is None else time.time() + float(seconds)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
