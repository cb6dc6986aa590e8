"""What a planned Kubernetes fleet consists of: frozen records that `resources.py` registers one to one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orch.components.cloud.plan import Node
from orch.components.kubernetes.account.facts import FLEET, KUEUE, MANAGED_BY, MARK, ClusterNode
from orch.components.kubernetes.shapes import PodSize
from orch.spec.findings import Finding
from orch.spec.state import Gpus, PodQueue

STACK = "orch.dev/stack"
"""The annotation of a namespace that tells whose it is, also where its state is lost: PROJECT/STACK/SCOPE."""
LONGEST_NAME = 63
"""Of an object whose name becomes the value of a label. Source: Kubernetes, "Object Names and IDs"."""

CLUSTER_ID = "kube-system/"
"""Prefix of a provider's `cluster_identifier` that is followed by the identity of its cluster."""
OTHER_CLUSTER = (
    "have the kubeconfig lead to the fleet's cluster again; where that is gone for good, "
    "`orch down {} --force` forgets what the fleet had there"
)


def base_name(fleet: str, scope: str) -> str:
    """How names of a fleet's objects begin: cluster-scoped ones are shared by all who use the cluster."""
    name = f"orch-{fleet}-{scope}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(fleet.encode()).hexdigest()[:8]
    return f"orch-{fleet[: LONGEST_NAME - len(scope) - 15]}-{digest}-{scope}"


Gang = Literal["kueue", "podgroup", "job"]


@dataclass(frozen=True)
class Chosen:
    """What a pod of the fleet is, and where it goes. `blind`: nodes could not be read."""

    requests: Mapping[str, str]
    gpu_resource: str | None
    gpus: Gpus
    cpus: float | None
    memory_mib: int | None
    labels: Mapping[str, str]
    tolerations: tuple[Mapping[str, str], ...]
    size: PodSize | None
    fabric: str | None = None
    fabric_resource: str | None = None
    interconnect: str = "ethernet"
    privileges: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[ClusterNode, ...]:
        return self.size.fits if self.size is not None else ()


@dataclass(frozen=True)
class Queueing:
    """How all pods of a run begin together. `made`: the fleet's own queue; `topology`: the labels that its
    queue knows, the widest first, None where any label serves."""

    gang: Gang
    local_queue: str | None = None
    made: bool = False
    topology: tuple[str, ...] | None = None


@dataclass(frozen=True)
class KueueObjects:
    """What is made of Kueue for a fleet. `version`: of its API; `levels`: labels of the Topology, the widest
    first, none where none is made; `node_labels`: of the nodes of the flavor; `quota`: of all pods together,
    by resource."""

    version: str
    levels: tuple[str, ...]
    node_labels: Mapping[str, str]
    tolerations: tuple[Mapping[str, str], ...]
    quota: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class KubernetesPlan:
    """A fleet on a Kubernetes cluster: where its runs' pods go, and what is made for that.

    `namespace_labels`: of the namespace that is made, None where it is there. `service_account`: whether one
    is made, by the name of `queue`. `kueue`: what is made of it, None where nothing is. `login`: what the
    provider is configured with, `cluster_identifier` what it knows the cluster by.
    """

    fleet: str
    scope: str
    base: str
    labels: Mapping[str, str]
    placement: str
    interconnect: str
    queue: PodQueue
    namespace_labels: Mapping[str, str] | None
    service_account: bool
    kueue: KueueObjects | None
    login: Mapping[str, str]
    cluster_identifier: str
    job_image: str | None
    env: Mapping[str, str]
    protect: bool
    pins: Mapping[str, str]
    reasons: tuple[str, ...]
    warnings: tuple[Finding, ...]
    nodes: tuple[Node, ...] = ()
    hourly: float = 0.0

    @property
    def objects(self) -> tuple[dict[str, Any], ...]:
        """The documents of all that is made, what others stand on first."""
        made = list[dict[str, Any]]()
        namespace = self.queue.namespace
        if self.namespace_labels is not None:
            labels = {**self.labels, **self.namespace_labels}
            made.append({**_head("v1", "Namespace", namespace, labels)})
        if self.service_account:
            account = _head("v1", "ServiceAccount", self.base, self.labels, namespace)
            # Pods of runs ask the API server for nothing.
            made.append({**account, "automountServiceAccountToken": False})
        return (*made, *(self._of_kueue(self.kueue) if self.kueue is not None else ()))

    def _of_kueue(self, kueue: KueueObjects) -> list[dict[str, Any]]:
        api, namespace = f"{KUEUE}/{kueue.version}", self.queue.namespace
        topology = {"topologyName": self.base} if kueue.levels else {}
        tolerations = {"tolerations": [dict(each) for each in kueue.tolerations]} if kueue.tolerations else {}
        flavor = {"nodeLabels": dict(kueue.node_labels), **tolerations, **topology}
        resources = [{"name": name, "nominalQuota": text} for name, text in kueue.quota.items()]
        group = {
            "coveredResources": list(kueue.quota),
            "flavors": [{"name": self.base, "resources": resources}],
        }
        queue = {
            # Nobody else's jobs: other namespaces cannot name it.
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "queueingStrategy": "BestEffortFIFO",
            "resourceGroups": [group],
            "preemption": {"withinClusterQueue": "LowerPriority"},
        }
        levels = {"levels": [{"nodeLabel": each} for each in kueue.levels]}
        rows = [
            *([("Topology", levels, None)] if kueue.levels else []),
            ("ResourceFlavor", flavor, None),
            ("ClusterQueue", queue, None),
            ("LocalQueue", {"clusterQueue": self.base}, namespace),
        ]
        return [
            {**_head(api, kind, self.base, self.labels, where), "spec": spec} for kind, spec, where in rows
        ]


def _head(
    api: str, kind: str, name: str, labels: Mapping[str, str], namespace: str | None = None
) -> dict[str, Any]:
    within = {"namespace": namespace} if namespace is not None else {}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **within, "labels": dict(labels)}}


def labels_of(fleet: str, scope: str, tags: Mapping[str, str]) -> dict[str, str]:
    """What every object of a fleet bears; `orch.dev/mark` tells whose it is."""
    mark = base_name(fleet, scope).removeprefix("orch-")
    return {**tags, MANAGED_BY: "orch", FLEET: fleet[:LONGEST_NAME], MARK: mark}
