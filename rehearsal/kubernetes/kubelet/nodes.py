"""Nodes of a rehearsed cluster: what they are registered with, and that they are alive."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from orch.rehearsal.kubernetes.api import Api, ApiError, Doc

HEARTBEAT_S = 8.0
LEASE_S = 40
"""A node's lease as kubelets have it (nodeLeaseDurationSeconds)."""

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@dataclass(frozen=True)
class NodeSpec:
    """One node. `capacity`: quantities by resource name, as Kubernetes writes them (`rdma/ib`: "63")."""

    name: str
    capacity: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[Mapping[str, str], ...] = ()

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> NodeSpec:
        """One of a scenario's file: `name`, `capacity`, `labels`, `taints`."""
        capacity = {"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"}
        return cls(
            name=str(document["name"]),
            capacity={**capacity, **{str(k): str(v) for k, v in document.get("capacity", {}).items()}},
            labels={str(k): str(v) for k, v in document.get("labels", {}).items()},
            taints=tuple(document.get("taints", ())),
        )


class Nodes:
    """Registers nodes and renews their leases until the event is set. `port`: where the kubelet listens."""

    def __init__(self, api: Api, port: int, until: threading.Event) -> None:
        self._api, self._port, self._until = api, port, until
        self._specs: dict[str, NodeSpec] = {}
        self._silent: set[str] = set()
        self._lock = threading.Lock()

    def names(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._specs)

    def silent(self, name: str) -> bool:
        with self._lock:
            return name in self._silent

    def silence(self, name: str) -> None:
        """The node's kubelet tells nothing any more."""
        with self._lock:
            self._silent.add(name)

    def speak(self, name: str) -> None:
        with self._lock:
            self._silent.discard(name)

    def register(self, specs: Iterable[NodeSpec]) -> None:
        """Make nodes that are not there yet."""
        for spec in specs:
            document: Doc = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": spec.name,
                    "labels": {
                        "kubernetes.io/hostname": spec.name,
                        "kubernetes.io/os": "linux",
                        "kubernetes.io/arch": "amd64",
                        **spec.labels,
                    },
                },
                "spec": {"taints": [dict(taint) for taint in spec.taints]},
            }
            try:
                self._api.create("/api/v1/nodes", document)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
            with self._lock:
                self._specs[spec.name] = spec
            self._tell(spec)

    def unregister(self, name: str) -> None:
        """The machine is gone, as when a cloud takes it back."""
        with self._lock:
            self._specs.pop(name, None)
        self._api.remove(f"/api/v1/nodes/{name}")

    def keep_alive(self) -> None:
        """Tell of all nodes every few seconds."""
        while not self._until.wait(HEARTBEAT_S):
            with self._lock:
                specs = [spec for spec in self._specs.values() if spec.name not in self._silent]
            for spec in specs:
                if self._until.is_set():
                    return
                try:
                    self._renew(spec.name)
                    if not self._ready(spec.name):
                        self._tell(spec)
                except ApiError:
                    continue  # deleted by somebody, or the API server is busy: the next beat tries again

    def _ready(self, name: str) -> bool:
        rows = self._api.get(f"/api/v1/nodes/{name}").get("status", {}).get("conditions", [])
        return any(row["type"] == "Ready" and row["status"] == "True" for row in rows)

    def _renew(self, name: str) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_S, "renewTime": now}
        try:
            self._api.patch(f"{_LEASES}/{name}", {"spec": spec})
        except ApiError as error:
            if error.status != 404:
                raise
            meta = {"name": name, "namespace": "kube-node-lease"}
            self._api.create(
                _LEASES,
                {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec},
            )

    def _tell(self, spec: NodeSpec) -> None:
        """The status of a node that is well."""
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        healthy = (
            ("Ready", "True", "KubeletReady"),
            ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID"),
        )
        conditions = [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": "",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }
            for kind, status, reason in healthy
        ]
        status = {
            "capacity": dict(spec.capacity),
            "allocatable": dict(spec.capacity),
            "conditions": conditions,
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": spec.name},
            ],
            # Else the API server would translate a client's WebSocket to SPDY (KEP-4006).
            "declaredFeatures": ["ExtendWebSocketsToKubelet"],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "osImage": "orch rehearsal",
                "kernelVersion": "",
                "containerRuntimeVersion": "docker://0",
                "kubeletVersion": "v1.36.3",
                "kubeProxyVersion": "",
                "bootID": spec.name,
                "machineID": spec.name,
                "systemUUID": spec.name,
            },
        }
        self._api.patch(f"/api/v1/nodes/{spec.name}/status", {"status": status})
        self._renew(spec.name)
