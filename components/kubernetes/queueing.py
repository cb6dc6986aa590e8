"""What starts the pods of a run together: Kueue's queues, the scheduler's gangs, or a Job alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from orch.components.kubernetes.account.facts import (
    KUEUE,
    SCHEDULING,
    ClusterFacts,
    ClusterNode,
    LocalQueueFacts,
)
from orch.components.kubernetes.account.rights import OF_QUEUES
from orch.components.kubernetes.fabrics import topology_sets
from orch.components.kubernetes.plan import Chosen, KueueObjects, Queueing
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.grammar.quantities import amount, rendered
from orch.spec.models import Fleet
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.spec.suggest import few, hint_for

HOSTNAME = "kubernetes.io/hostname"


def queueing_of(
    facts: ClusterFacts, settings: KubernetesSettings, mark: str, base: str, *, new_namespace: bool
) -> tuple[Queueing, list[Finding]]:
    """How all pods of a run begin together; `mark` is of the fleet's objects, `base` begins their names.

    Findings: ORCH450, 454.
    """
    has_kueue = facts.version_of(KUEUE, "clusterqueues") is not None
    asked = settings.gang
    if settings.queue is not None:
        return _named_queue(facts, settings, has_kueue=has_kueue, new_namespace=new_namespace)
    if asked in ("auto", "kueue") and has_kueue:
        denied = sorted({" ".join(act) for act in OF_QUEUES} & facts.denied)
        if not denied:
            return Queueing("kueue", base, made=True), []
        usable = [each for each in facts.local_queues or () if each.active and each.mark in (None, mark)]
        if len(usable) == 1:
            return _existing(facts, usable[0]), []
        why = f"you may not {', '.join(denied[:3])}{' …' if len(denied) > 3 else ''}"
        names = few([each.name for each in usable])
        some = f"the namespace has several queues: {names}" if usable else "the namespace has no queue"
        severity = Severity.ERROR if asked == "kueue" or usable else Severity.WARNING
        finding = Finding(
            "ORCH450",
            "backends",
            f"no queue of Kueue can be chosen: {some}, and {why}"
            if severity is Severity.ERROR
            else f"Kueue is there and cannot be used: {some}, and {why}",
            hint=f"name one by `queue` of `kubernetes` in orch.yml: {names}"
            if usable
            else "have a LocalQueue made in the namespace and name it by `queue`, or the rights granted",
            severity=severity,
        )
        if severity is Severity.ERROR:
            return Queueing("kueue"), [finding]
        other, more = _without_kueue(facts, "auto")
        return other, [finding, *more]
    if asked == "kueue":
        summary = "`gang: kueue` is asked for in orch.yml, and the cluster has no Kueue"
        return Queueing("kueue"), [
            Finding("ORCH450", "backends", summary, hint="install it (0.14 or newer), or write `gang: auto`")
        ]
    return _without_kueue(facts, asked)


def _without_kueue(facts: ClusterFacts, asked: str) -> tuple[Queueing, list[Finding]]:
    groups = facts.version_of(SCHEDULING, "podgroups") is not None and facts.pod_groups is not False
    if asked in ("auto", "podgroup") and groups:
        return Queueing("podgroup"), []
    if asked == "podgroup":
        off = facts.version_of(SCHEDULING, "podgroups") is not None
        why = "the feature gate GenericWorkload is off" if off else f"it serves no PodGroup of {SCHEDULING}"
        return Queueing("podgroup"), [
            Finding(
                "ORCH450",
                "backends",
                f"`gang: podgroup` is asked for in orch.yml, and the cluster has none: {why}",
                hint="Kubernetes 1.36 has it behind the gates GenericWorkload and GangScheduling; or write "
                "`gang: auto`",
            )
        ]
    return Queueing("job"), []


def _named_queue(
    facts: ClusterFacts, settings: KubernetesSettings, *, has_kueue: bool, new_namespace: bool
) -> tuple[Queueing, list[Finding]]:
    name = settings.queue or ""
    if settings.gang in ("podgroup", "none"):
        summary = f"`queue: {name}` is one of Kueue, and `gang: {settings.gang}` does not use it"
        return Queueing("kueue", name), [
            Finding("ORCH450", "backends", summary, hint="remove one of them in orch.yml")
        ]
    known = facts.local_queues
    found = next((each for each in known or () if each.name == name), None)
    if not has_kueue:
        summary = f"`queue: {name}` is given in orch.yml, and the cluster has no Kueue"
        return Queueing("kueue", name), [
            Finding("ORCH450", "backends", summary, hint="install it, or remove it")
        ]
    if found is None and (known is not None or new_namespace):
        names = [each.name for each in known or ()]
        summary = f"the namespace has no LocalQueue {name}"
        hint = hint_for(name, names) or (
            f"it has {few(names)}" if names else "have it made, or remove `queue`"
        )
        return Queueing("kueue", name), [Finding("ORCH450", "backends", summary, hint=hint)]
    if found is None:
        return Queueing("kueue", name), []
    findings = list[Finding]()
    if not found.active:
        summary = f"the LocalQueue {name} is not active: it admits nothing now"
        hint = f"`kubectl describe clusterqueue {found.cluster_queue}` tells why"
        findings.append(Finding("ORCH454", "backends", summary, hint=hint, severity=Severity.WARNING))
    return _existing(facts, found), findings


def _existing(facts: ClusterFacts, queue: LocalQueueFacts) -> Queueing:
    return Queueing("kueue", queue.name, topology=_topology_of(facts, queue.cluster_queue))


def _topology_of(facts: ClusterFacts, cluster_queue: str) -> tuple[str, ...]:
    """The levels that the queue places pods by: those of its first flavor that has a topology."""
    names = next((each.flavors for each in facts.cluster_queues or () if each.name == cluster_queue), ())
    for flavor in facts.flavors or ():
        if flavor.name in names and flavor.topology is not None:
            return (facts.topologies or {}).get(flavor.topology, ())
    return ()


def flavor_labels(facts: ClusterFacts, queueing: Queueing) -> tuple[Mapping[str, str], ...]:
    """What nodes of a queue that is there must have, for each of its flavors."""
    queue = next((each for each in facts.local_queues or () if each.name == queueing.local_queue), None)
    found = next(
        (each for each in facts.cluster_queues or () if queue and each.name == queue.cluster_queue), None
    )
    if queueing.made or found is None or not facts.flavors:
        return ()
    return tuple(each.labels for each in facts.flavors if each.name in found.flavors)


def own_queue(facts: ClusterFacts, chosen: Chosen, pods: int, levels: tuple[str, ...]) -> KueueObjects:
    """What is made: room for as many pods as a run may have, of each resource that one asks for. Where pods
    have whole nodes it is what nodes have: pods of another sort may be smaller."""
    quota = dict[str, str]()
    for name, text in chosen.requests.items():
        each = amount(text)
        if chosen.size is not None and chosen.size.whole:
            each = max(each, *(node.allocatable.get(name, Fraction(0)) for node in chosen.nodes))
        quota[name] = rendered(name, each * pods)
    labels = dict(chosen.labels)
    if levels and not labels:
        # A flavor with a topology needs a label. Source: Kueue, resourceflavor_types.go.
        common = ("kubernetes.io/os", "kubernetes.io/arch")
        labels = {
            key: chosen.nodes[0].labels[key]
            for key in common
            if all(key in node.labels for node in chosen.nodes)
        }
        levels = levels if labels else ()
    return KueueObjects(
        version=facts.version_of(KUEUE, "clusterqueues") or "v1beta2",
        levels=levels if facts.version_of(KUEUE, "topologies") is not None else (),
        node_labels=labels,
        tolerations=tuple(chosen.tolerations),
        quota=quota,
    )


def given_queue(facts: ClusterFacts, queueing: Queueing, chosen: Chosen, pods: int) -> Iterator[Finding]:
    """Whether a queue that is there would ever admit a run. Source: Kueue, `quotaCheckStrategy`: a workload
    that asks for a resource that the queue does not cover is inadmissible."""
    local = next((each for each in facts.local_queues or () if each.name == queueing.local_queue), None)
    queue = next(
        (each for each in facts.cluster_queues or () if local and each.name == local.cluster_queue), None
    )
    if queue is None:
        return
    uncovered = [name for name in chosen.requests if name not in queue.quota]
    if uncovered:
        yield Finding(
            "ORCH454",
            "resources",
            f"the ClusterQueue {queue.name} covers no {', '.join(uncovered)}: it would never admit a run",
            hint="have it added to `coveredResources` with a quota",
        )
    for name, text in chosen.requests.items():
        if name not in queue.quota:
            continue
        has, each = queue.quota[name], amount(text)
        if has < each:
            yield Finding(
                "ORCH454",
                "resources",
                f"the ClusterQueue {queue.name} has {rendered(name, has)} of {name}, and a pod needs {text}",
                hint="ask for less, or have its quota raised; what it may borrow is not counted",
                severity=Severity.WARNING,
            )
        elif has < each * pods:
            yield Finding(
                "ORCH454",
                "nodes",
                f"the ClusterQueue {queue.name} has {rendered(name, has)} of {name}, and a run of {pods} "
                f"needs {rendered(name, each * pods)}",
                hint="ask for fewer nodes, or have its quota raised; what it may borrow is not counted",
                severity=Severity.WARNING,
            )
            return


# Where the pods of a run stand to each other


@dataclass(frozen=True)
class PodPlacement:
    """How close pods of a run are to each other.

    `label`: of nodes, the same for all pods of a run, who must share it if `required`. `levels`: those of a
    Topology of Kueue's.
    """

    label: str | None = None
    required: bool = False
    levels: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def placement_of(
    fleet: Fleet, settings: KubernetesSettings, queueing: Queueing, chosen: Chosen, pods: int
) -> PodPlacement:
    if fleet.placement != "cluster":
        return PodPlacement()
    levels = _levels(settings, chosen.nodes)
    if queueing.topology is not None:
        levels = tuple(each for each in queueing.topology if each != HOSTNAME)
        if not levels:
            return _far_apart("the queue knows no topology", "give its flavor a Topology of Kueue")
    if not levels:
        if chosen.size is None:
            return PodPlacement()
        hint = "name labels by `topology_labels` of `kubernetes` in orch.yml, the widest first"
        return _far_apart("nodes have no label that tells where they stand", hint)
    made = (*levels, HOSTNAME) if all(HOSTNAME in node.labels for node in chosen.nodes) else levels
    each = chosen.size.per_node if chosen.size is not None else 1
    for label in reversed(levels):
        domains = dict[str, int]()
        for node in chosen.nodes:
            if label in node.labels:
                domains[node.labels[label]] = domains.get(node.labels[label], 0) + each
        if max(domains.values(), default=0) >= pods:
            return PodPlacement(label, True, made)
    return PodPlacement(levels[0], False, made)


def _far_apart(why: str, hint: str) -> PodPlacement:
    summary = f"{why}: pods of a run may be far from each other"
    warning = Finding("ORCH454", "placement", summary, hint=hint, severity=Severity.WARNING)
    return PodPlacement(findings=(warning,))


def _levels(settings: KubernetesSettings, nodes: Sequence[ClusterNode]) -> tuple[str, ...]:
    """The labels that all nodes have, of the first known set of which they have any, the widest first."""
    sets = [("orch.yml", settings.topology_labels)] if settings.topology_labels else topology_sets()
    for _, labels in sets:
        common = tuple(each for each in labels if nodes and all(each in node.labels for node in nodes))
        if common:
            return common
    return ()
