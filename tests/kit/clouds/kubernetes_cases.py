"""Clusters as their API servers tell them, in few words, and fleets planned on them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

from kit.clouds.plan_cases import PlanCase

from orch.components.kubernetes.account.facts import (
    ATTACHMENT_KIND,
    ATTACHMENTS,
    COMPUTE_DOMAINS,
    KUEUE,
    SCHEDULING,
    ClusterFacts,
    NamespaceFacts,
    cluster_queues_of,
    flavors_of,
    local_queues_of,
    namespace_of,
    nodes_of,
    topologies_of,
)
from orch.components.kubernetes.account.rights import (
    OF_ACCOUNTS,
    OF_COMPUTE_DOMAINS,
    OF_KUEUE_RUNS,
    OF_NAMESPACES,
    OF_POD_GROUPS,
    OF_QUEUES,
    OF_RUNS,
)
from orch.components.kubernetes.backend import jump_note
from orch.components.kubernetes.candidates import KubernetesCandidate, candidates
from orch.components.kubernetes.login import kubeconfig_file
from orch.components.kubernetes.plan import KubernetesPlan
from orch.components.kubernetes.planner import Context, KubernetesPlanner
from orch.components.node_count import with_node_count
from orch.components.request import PlanRequest
from orch.spec.models.backends.kubernetes import KubernetesSettings

KUEUE_KINDS = (
    "topologies",
    "resourceflavors",
    "clusterqueues",
    "localqueues",
    "workloads",
    "workloadpriorityclasses",
)
APIS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "kueue": (KUEUE, "v1beta2", KUEUE_KINDS),
    "old-kueue": (KUEUE, "v1beta1", tuple(each for each in KUEUE_KINDS if each != "topologies")),
    "podgroups": (SCHEDULING, "v1alpha2", ("podgroups", "workloads")),
    "compute-domains": (COMPUTE_DOMAINS, "v1beta1", ("computedomains",)),
    "networks": (ATTACHMENTS, "v1", (ATTACHMENT_KIND,)),
}
ALL = (
    *OF_RUNS,
    *OF_ACCOUNTS,
    *OF_NAMESPACES,
    *OF_QUEUES,
    *OF_KUEUE_RUNS,
    *OF_POD_GROUPS,
    *OF_COMPUTE_DOMAINS,
)
POOL = {"name": "gpu", "count": 2, "allocatable": {"nvidia.com/gpu": "8", "rdma/ib": "63"}}
# Nodes with a fabric, some of which have taints of their own.
ROOMY = {
    "nodes": [POOL, {**POOL, "name": "pool", "taints": ["pool|gpus|NoSchedule", "other|x|NoExecute"]}],
    "apis": ["kueue", "networks"],
}
DEFAULT = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1000Gi", "pods": "110"}


def node_documents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`{name, count, labels, allocatable, taints, ready, domains: {LABEL: nodes in each}}` as nodes."""
    found = list[dict[str, Any]]()
    for row in rows:
        for index in range(row.get("count", 1)):
            name = f"{row['name']}-{index}" if "count" in row else row["name"]
            labels = {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            }
            labels |= row.get("labels", {})
            for label, each in row.get("domains", {}).items():
                labels[label] = f"{label.rpartition('/')[2]}-{index // each}"
            taints = [
                dict(zip(("key", "value", "effect"), text.split("|"), strict=True))
                for text in row.get("taints", ())
            ]
            ready = "True" if row.get("ready", True) else "False"
            found.append(
                {
                    "metadata": {"name": name, "labels": labels, "annotations": row.get("annotations", {})},
                    "spec": {"taints": taints, "unschedulable": row.get("cordoned", False)},
                    "status": {
                        "allocatable": {**DEFAULT, **row.get("allocatable", {})},
                        "conditions": [{"type": "Ready", "status": ready}],
                    },
                }
            )
    return found


def pod_documents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`{name, node, requests, daemon, namespace}` as pods."""
    return [
        {
            "metadata": {
                "name": row["name"],
                "namespace": row.get("namespace", "work"),
                "ownerReferences": [{"kind": "DaemonSet"}] if row.get("daemon") else [],
            },
            "spec": {"nodeName": row["node"], "containers": [{"resources": {"requests": row["requests"]}}]},
            "status": {"phase": "Running"},
        }
        for row in rows
    ]


def facts_of(data: dict[str, Any], namespace: str) -> ClusterFacts:
    """The facts of a case's `cluster`."""
    denied = frozenset(data.get("denied", ()))
    apis: dict[str, dict[str, frozenset[str]]] = {}
    for name in data.get("apis", ()):
        group, version, kinds = APIS[name]
        apis.setdefault(group, {})[version] = frozenset(kinds)
    where = data.get("namespace", {})
    hidden = set(data.get("hidden", ()))
    pods = None if "pods" in hidden else pod_documents(data.get("pods", []))
    meta = {"name": namespace, "labels": where.get("labels", {})}
    place: NamespaceFacts | None = namespace_of(namespace, {"metadata": meta})
    if where.get("exists") is False:
        place = namespace_of(namespace, None)
    if "namespace" in hidden:
        place = None
    queues = data.get("queues", {})
    rows = {
        kind: [_named(name, spec) for name, spec in queues.get(kind, {}).items()]
        for kind in ("local", "cluster", "flavors", "topologies")
    }
    return ClusterFacts(
        server="v1.36.3",
        apis=apis,
        nodes=None if "nodes" in hidden else nodes_of(node_documents(data.get("nodes", [])), pods),
        namespace=place,
        service_accounts=frozenset(data.get("service_accounts", ["default"])),
        local_queues=None if "local" in hidden else local_queues_of(rows["local"]),
        cluster_queues=None if "cluster" in hidden else cluster_queues_of(rows["cluster"]),
        flavors=None if "flavors" in hidden else flavors_of(rows["flavors"]),
        topologies=topologies_of(rows["topologies"]),
        priority_classes=dict(data.get("priority_classes", {})),
        pod_groups=data.get("pod_groups", "podgroups" in data.get("apis", ())),
        networks=data.get("networks", {}),
        pods_read=pods is not None,
        allowed=frozenset(" ".join(act) for act in ALL) - denied,
        denied=denied,
        unread=tuple(f"{each}: you may not list them" for each in sorted(hidden)),
    )


def _named(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


class Case(PlanCase):
    """A case with the `cluster` that `facts_of` reads, and `tags` of the project."""

    backend = "kubernetes"
    usual_fleet: ClassVar = {"name": "train"}
    roomy: ClassVar = {"cluster": ROOMY}
    wish: ClassVar = {"nodes": "0..2", "placement": "cluster", "resources": {"gpu": "8"}}

    @staticmethod
    def log_in(settings: KubernetesSettings, folder: Path) -> None:
        kubeconfig_file(settings, folder)
        jump_note(settings)

    @property
    def request(self) -> PlanRequest:
        here = Path("/nonexistent")
        return with_node_count(
            PlanRequest(self.fleet, (), self.previous, "abc123", root=here, folder=here, created=1)
        )

    def candidates(self) -> tuple[KubernetesCandidate, ...]:
        request = self.request
        return candidates(request.fleet, self.settings, request.previous)

    def facts(self, chosen: KubernetesCandidate) -> ClusterFacts:
        return facts_of(self.data.get("cluster", {}), chosen.namespace or "work")

    def plan(self, chosen: KubernetesCandidate | None = None) -> KubernetesPlan:
        request, chosen = self.request, chosen or self.candidates()[0]
        login = {} if chosen.context is None else {"context": chosen.context}
        context = Context("abc123", self.settings, login=login, tags=self.data.get("tags", {}))
        chosen = replace(chosen, namespace=chosen.namespace or "work")
        return KubernetesPlanner(request.fleet, chosen, self.facts(chosen), request.previous, context).plan()

    def written(self, plan: KubernetesPlan) -> dict[str, Any]:
        fields = asdict(plan)
        kept = ("interconnect", "namespace_labels", "service_account", "pins", "reasons", "warnings")
        queue = plan.queue.model_dump(mode="json", exclude_defaults=True)
        return {**{name: fields[name] for name in kept}, "queue": queue, "objects": plan.objects}
