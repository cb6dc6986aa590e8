"""A rehearsed Kubernetes cluster for tests, and what they do in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from orch.rehearsal.kubernetes.api import Api, Doc
from orch.rehearsal.kubernetes.service import RehearsedCluster

WAIT_S = 180.0


class Cluster:
    """The cluster, and what tests do in it: each has a namespace of its own."""

    def __init__(self, cluster: RehearsedCluster) -> None:
        self.cluster = cluster
        self.api = Api(cluster.kubeconfig)
        self.spaces: list[str] = []

    def namespace(self, name: str) -> str:
        meta = {"name": name}
        self.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        self.until(lambda: self.api.find(f"/api/v1/namespaces/{name}/serviceaccounts/default"))
        self.spaces.append(name)
        return name

    def empty(self, space: str) -> None:
        """Have no pods in a namespace, which others need the nodes of."""
        for group, plural in (("jobset.x-k8s.io/v1alpha2", "jobsets"), ("batch/v1", "jobs")):
            path = f"/apis/{group}/namespaces/{space}/{plural}"
            for each in self.api.items(path):
                self.api.remove(f"{path}/{each['metadata']['name']}", propagationPolicy="Background")
        path = f"/api/v1/namespaces/{space}/pods"

        def none() -> bool:
            rows = self.api.items(path)
            for each in rows:
                self.api.remove(f"{path}/{each['metadata']['name']}", gracePeriodSeconds=0)
            return not rows

        self.until(none)

    def until(self, ask: Callable[[], Any]) -> Any:
        """What `ask` answers once that is true."""
        ends = time.monotonic() + WAIT_S
        while time.monotonic() < ends:
            if answer := ask():
                return answer
            time.sleep(0.1)
        raise AssertionError(f"not within {WAIT_S:.0f} s: {ask()}")

    def job(self, namespace: str, name: str, command: str, pods: int = 1, **spec: Any) -> Doc:
        """An indexed job of the image of jobs. `spec`: more of its pods."""
        document = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": indexed(command, pods, subdomain=name, **spec),
        }
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {
                "clusterIP": "None",
                "selector": {"batch.kubernetes.io/job-name": name},
                "publishNotReadyAddresses": True,
            },
        }
        self.api.create(f"/api/v1/namespaces/{namespace}/services", service)
        return self.api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", document)

    def pods(self, namespace: str, name: str = "", label: str = "batch.kubernetes.io/job-name") -> list[Doc]:
        """The pods of a job, by index."""
        words = {"labelSelector": f"{label}={name}"} if name else {}
        rows = self.api.items(f"/api/v1/namespaces/{namespace}/pods", **words)
        return sorted(rows, key=lambda pod: int(pod["metadata"]["labels"].get(INDEX, 0)))

    def ended(self, namespace: str, name: str) -> str:
        """How a job ended: `Complete` or `Failed`; empty before."""
        status = self.api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}").get("status", {})
        rows = [row["type"] for row in status.get("conditions", ()) if row["status"] == "True"]
        return next((each for each in rows if each in ("Complete", "Failed")), "")

    def log(self, pod: Doc) -> str:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/log"
        return self.api._http.get(path).text  # pyright: ignore[reportPrivateUsage]


INDEX = "batch.kubernetes.io/job-completion-index"


def indexed(command: str, pods: int = 1, gpus: int = 8, **spec: Any) -> Doc:
    """The spec of an indexed job of so many pods."""
    container = {
        "name": "main",
        "image": "orch/base:bookworm",
        "command": ["sh", "-c", command],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {},
        **spec.pop("container", {}),
    }
    return {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "suspend": spec.pop("suspend", False),
        "template": {
            "metadata": {"annotations": spec.pop("annotations", {})},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 2,
                "containers": [container],
                **spec,
            },
        },
    }
