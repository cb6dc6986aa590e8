"""What is known of a cluster when a fleet is planned: frozen, made of the documents of an API server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from orch.spec.grammar.quantities import amount, sums

Doc = Mapping[str, Any]

KUEUE = "kueue.x-k8s.io"
SCHEDULING = "scheduling.k8s.io"
COMPUTE_DOMAINS = "resource.nvidia.com"
ATTACHMENTS = "k8s.cni.cncf.io"
ATTACHMENT_KIND = "network-attachment-definitions"
COMMON_NAMESPACE = "default"
"""The namespace whose networks pods of all namespaces may join. Source: Multus CNI, docs/configuration.md,
`namespaceIsolation`."""
POD_SECURITY = "pod-security.kubernetes.io/enforce"
MANAGED_BY = "app.kubernetes.io/managed-by"
MARK = "orch.dev/mark"
FLEET = "orch.dev/fleet"

SYSTEM_NAMESPACES = ("kube-system", "gpu-operator", "kueue-system", "jobset-system")
"""Whose pods stay where they are: what they request of a node is no pod's of a run."""

UNKNOWN = Fraction(1, 10)
"""What is left of CPUs and memory to a node's own pods where these cannot be listed."""


@dataclass(frozen=True)
class Taint:
    key: str
    value: str
    effect: str

    @property
    def words(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


@dataclass(frozen=True)
class ClusterNode:
    """A node. `allocatable`: by resource; `used`: what pods on it request, `steady` of that what stays
    whatever runs: a tenth where pods could not be listed. `annotations`: those that tell networks."""

    name: str
    ready: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    taints: tuple[Taint, ...]
    allocatable: Mapping[str, Fraction]
    used: Mapping[str, Fraction] = field(default_factory=dict[str, Fraction])
    steady: Mapping[str, Fraction] = field(default_factory=dict[str, Fraction])

    def free(self, resource: str) -> Fraction:
        return self.allocatable.get(resource, Fraction(0)) - self.used.get(resource, Fraction(0))

    def usable(self, resource: str) -> Fraction:
        """What a run can have of it, when no other is there."""
        return self.allocatable.get(resource, Fraction(0)) - self.steady.get(resource, Fraction(0))


@dataclass(frozen=True)
class NamespaceFacts:
    """A namespace. `pod_security`: the level that it enforces; `mark`: of the stack that made it; `ending`:
    it is being deleted."""

    name: str
    exists: bool
    pod_security: str | None = None
    mark: str | None = None
    ending: bool = False


@dataclass(frozen=True)
class LocalQueueFacts:
    name: str
    cluster_queue: str
    active: bool
    mark: str | None = None


@dataclass(frozen=True)
class ClusterQueueFacts:
    """A ClusterQueue: what it has of each resource, over all flavors; `flavors`: their names in its order."""

    name: str
    quota: Mapping[str, Fraction]
    flavors: tuple[str, ...]
    mark: str | None = None


@dataclass(frozen=True)
class FlavorFacts:
    name: str
    labels: Mapping[str, str]
    topology: str | None


@dataclass(frozen=True)
class ClusterFacts:
    """A cluster. Lists are None where the caller may not read them.

    `server`: its version. `apis`: group -> version -> kinds' plural names. `pod_groups`: whether a pod may be
    of a PodGroup, which the gate GenericWorkload decides; None where that could not be tried. `networks`:
    NetworkAttachmentDefinitions by namespace, of the namespaces whose could be read, each with the resource
    of nodes that it gives devices of. `allowed`: what the caller may do, `VERB RESOURCE.GROUP` as
    `create jobs.batch`, and `denied` what not; what is in neither was not asked. `unread`: what could not be
    read, each with why.
    `limit_ranges`, `quotas`: those of the namespace, as the API has them. `identity`: which cluster it is, by
    the UID of its namespace kube-system; None where that may not be read.
    """

    server: str
    apis: Mapping[str, Mapping[str, frozenset[str]]]
    nodes: tuple[ClusterNode, ...] | None
    namespace: NamespaceFacts | None
    service_accounts: frozenset[str] | None = None
    local_queues: tuple[LocalQueueFacts, ...] | None = ()
    cluster_queues: tuple[ClusterQueueFacts, ...] | None = ()
    flavors: tuple[FlavorFacts, ...] | None = ()
    topologies: Mapping[str, tuple[str, ...]] | None = field(default_factory=dict[str, "tuple[str, ...]"])
    priority_classes: Mapping[str, int] | None = field(default_factory=dict[str, int])
    pod_groups: bool | None = False
    networks: Mapping[str, Mapping[str, str | None]] = field(
        default_factory=dict[str, Mapping[str, "str | None"]]
    )
    pods_read: bool = True
    allowed: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()
    limit_ranges: tuple[Doc, ...] | None = ()
    quotas: tuple[Doc, ...] | None = ()
    identity: str | None = None

    def version_of(self, group: str, plural: str) -> str | None:
        """The version of a group that serves a kind, the newest; None where none does."""
        versions = [each for each, kinds in self.apis.get(group, {}).items() if plural in kinds]
        return max(versions, key=_age, default=None)

    def may(self, *acts: str) -> bool:
        """Whether nothing of it is denied."""
        return not self.denied.intersection(acts)


_STABILITY = {"alpha": 0, "beta": 1, "": 2}


def _age(version: str) -> tuple[int, int, int]:
    """`v1` is newer than `v1beta2`, that is newer than `v1beta1`. Source: k8s.io/apimachinery version.go."""
    found = re.fullmatch(r"v([0-9]+)(?:(alpha|beta)([0-9]+))?", version)
    return (_STABILITY[found[2] or ""], int(found[1]), int(found[3] or 0)) if found else (-1, 0, 0)


def nodes_of(nodes: Iterable[Doc], pods: Iterable[Doc] | None) -> tuple[ClusterNode, ...]:
    """The nodes of a cluster, with what its pods request where they could be listed."""
    on = dict[str, list[Doc]]()
    for pod in pods or ():
        spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
        if spec.get("nodeName") and phase not in ("Succeeded", "Failed"):
            on.setdefault(str(spec["nodeName"]), []).append(pod)
    found = [_node(each, None if pods is None else on.get(_name(each), [])) for each in nodes]
    return tuple(sorted(found, key=lambda each: each.name))


def _node(node: Doc, pods: list[Doc] | None) -> ClusterNode:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for each in status.get("conditions") or ()
    )
    meta = node["metadata"]
    allocatable = {key: amount(value) for key, value in (status.get("allocatable") or {}).items()}
    if pods is None:
        steady = {key: allocatable[key] * UNKNOWN for key in ("cpu", "memory") if key in allocatable}
    else:
        steady = sums(requests_of(each) for each in pods if _stays(each))
    return ClusterNode(
        name=str(meta["name"]),
        ready=ready and not spec.get("unschedulable"),
        labels=_texts(meta.get("labels")),
        annotations={
            key: value for key, value in _texts(meta.get("annotations")).items() if "networking" in key
        },
        taints=tuple(
            Taint(str(each.get("key", "")), str(each.get("value") or ""), str(each.get("effect", "")))
            for each in spec.get("taints") or ()
        ),
        allocatable=allocatable,
        used=sums(requests_of(each) for each in pods or ()),
        steady=steady,
    )


def _stays(pod: Doc) -> bool:
    meta = pod["metadata"]
    owners = {each.get("kind") for each in meta.get("ownerReferences") or ()}
    return bool(owners & {"DaemonSet", "Node"}) or meta.get("namespace") in SYSTEM_NAMESPACES


def requests_of(pod: Doc) -> dict[str, str]:
    """What the scheduler counts for a pod: its containers together, or the largest of those that come before
    them. Source: Kubernetes, "Resource sharing within containers"."""
    spec = pod.get("spec") or {}
    running: list[Doc] = list(spec.get("containers") or ())
    before: list[Doc] = list(spec.get("initContainers") or ())
    running += [each for each in before if each.get("restartPolicy") == "Always"]
    total = sums(((each.get("resources") or {}).get("requests") or {}) for each in running)
    for each in before:
        requests: Mapping[str, str] = (each.get("resources") or {}).get("requests") or {}
        for name, text in requests.items():
            total[name] = max(total.get(name, Fraction(0)), amount(text))
    for name, text in (spec.get("overhead") or {}).items():
        total[name] = total.get(name, Fraction(0)) + amount(text)
    return {name: f"{int(value * 1000)}m" for name, value in total.items()}


def namespace_of(name: str, document: Doc | None) -> NamespaceFacts:
    if document is None:
        return NamespaceFacts(name, exists=False)
    labels = _texts(document["metadata"].get("labels"))
    ending = document["metadata"].get("deletionTimestamp") is not None
    return NamespaceFacts(name, True, labels.get(POD_SECURITY), labels.get(MARK), ending)


def local_queues_of(documents: Iterable[Doc]) -> tuple[LocalQueueFacts, ...]:
    return tuple(
        LocalQueueFacts(
            _name(each),
            str((each.get("spec") or {}).get("clusterQueue", "")),
            _condition(each, "Active") is not False,
            _mark(each),
        )
        for each in documents
    )


def cluster_queues_of(documents: Iterable[Doc]) -> tuple[ClusterQueueFacts, ...]:
    return tuple(_cluster_queue(each) for each in documents)


def _cluster_queue(document: Doc) -> ClusterQueueFacts:
    rows = [
        (str(flavor["name"]), resource)
        for group in (document.get("spec") or {}).get("resourceGroups") or ()
        for flavor in group.get("flavors") or ()
        for resource in flavor.get("resources") or ()
    ]
    quota = sums({str(row["name"]): str(row.get("nominalQuota", 0))} for _, row in rows)
    return ClusterQueueFacts(
        _name(document), quota, tuple(dict.fromkeys(name for name, _ in rows)), _mark(document)
    )


def flavors_of(documents: Iterable[Doc]) -> tuple[FlavorFacts, ...]:
    return tuple(
        FlavorFacts(
            _name(each),
            _texts((each.get("spec") or {}).get("nodeLabels")),
            (each.get("spec") or {}).get("topologyName"),
        )
        for each in documents
    )


def topologies_of(documents: Iterable[Doc]) -> dict[str, tuple[str, ...]]:
    """The labels of each Topology, the widest first."""
    return {
        _name(each): tuple(str(row["nodeLabel"]) for row in (each.get("spec") or {}).get("levels") or ())
        for each in documents
    }


def networks_of(documents: Iterable[Doc]) -> dict[str, str | None]:
    """The resource of each NetworkAttachmentDefinition, by name; None for one that takes no device."""
    key = "k8s.v1.cni.cncf.io/resourceName"
    return {_name(each): _texts(each["metadata"].get("annotations")).get(key) for each in documents}


def apis_of(lists: Iterable[Doc]) -> dict[str, dict[str, frozenset[str]]]:
    """Group -> version -> plural names, of the resource lists of discovery."""
    found = dict[str, dict[str, frozenset[str]]]()
    for each in lists:
        group, _, version = str(each.get("groupVersion", "")).rpartition("/")
        names = frozenset(str(row["name"]) for row in each.get("resources") or ())
        found.setdefault(group, {})[version] = names
    return found


def _name(document: Doc) -> str:
    return str(document["metadata"]["name"])


def _mark(document: Doc) -> str | None:
    return _texts(document["metadata"].get("labels")).get(MARK)


def _condition(document: Doc, kind: str) -> bool | None:
    """Whether a condition holds; None where nothing tells."""
    for each in (document.get("status") or {}).get("conditions") or ():
        if each.get("type") == kind:
            return each.get("status") == "True"
    return None


def _texts(value: object) -> dict[str, str]:
    return {str(key): str(item) for key, item in value.items()} if isinstance(value, Mapping) else {}  # pyright: ignore
