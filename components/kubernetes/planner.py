"""What a fleet becomes on a Kubernetes cluster: how pods are asked for, and what is made for that. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from orch.components.cloud.sizing import gpus
from orch.components.kubernetes import explain as told
from orch.components.kubernetes.account.facts import (
    KUEUE,
    POD_SECURITY,
    SCHEDULING,
    ClusterFacts,
    ClusterNode,
    LocalQueueFacts,
)
from orch.components.kubernetes.account.rights import (
    MADE,
    OF_COMPUTE_DOMAINS,
    OF_KUEUE_RUNS,
    OF_POD_GROUPS,
    OF_QUEUES,
    OF_RUNS,
)
from orch.components.kubernetes.candidates import KubernetesCandidate
from orch.components.kubernetes.fabrics import topology_sets
from orch.components.kubernetes.plan import (
    Chosen,
    KubernetesPlan,
    KueueObjects,
    Queueing,
    base_name,
    labels_of,
)
from orch.components.kubernetes.shapes import (
    GPU_KEYS,
    PodSize,
    Shape,
    Tolerance,
    pod_size,
    shapes_of,
    usable_nodes,
)
from orch.components.request import PriorState
from orch.offers.match import Miss
from orch.offers.query import MachineQuery
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, PlanErrors, settle
from orch.spec.models import Fleet
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.spec.quantities import amount, rendered
from orch.spec.state import Gpus, PodQueue
from orch.spec.suggest import counted, few, hint_for

HOSTNAME = "kubernetes.io/hostname"
NEEDED_OF_RUNS = frozenset(
    {
        "create jobs.batch",
        "get jobs.batch",
        "patch jobs.batch",
        "delete jobs.batch",
        "create services",
        "patch services",
        "get pods",
        "list pods",
        "get pods/exec",
        "create pods/exec",
    }
)
"""Without which no run works; without the others some runs do."""

_LABEL_KEY = re.compile(r"(?:[a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
GRANT = (
    "whoever runs the cluster grants it: docs/reference/kubernetes.md lists what is needed, "
    "examples/kubernetes/rbac.yml is that to apply"
)


@dataclass(frozen=True)
class Context:
    """What a plan is made of besides the fleet.

    `scope`: of a new stack; `settings`: the backend's; `kubeconfig`: the path of its file, None for the
    user's own; `login`: what the provider is configured with; `tags`: the project's.
    """

    scope: str
    settings: KubernetesSettings
    kubeconfig: str | None = None
    login: Mapping[str, str] = field(default_factory=dict[str, str])
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


def plan(
    fleet: Fleet,
    candidate: KubernetesCandidate,
    facts: ClusterFacts,
    previous: PriorState,
    context: Context,
) -> KubernetesPlan:
    """The whole fleet at a cluster.

    Raises PlanErrors with all that is wrong: ORCH200, 223, 450, 451, 452, 453, 454, 455.
    """
    settings = context.settings
    findings = list[Finding]()
    scope = previous.pins.get("scope", context.scope)
    base = base_name(fleet.name, scope)
    tags = {**context.tags, **fleet.tags}
    findings += _tag_findings(tags)
    labels = labels_of(fleet.name, scope, tags)
    mark = next(value for key, value in labels.items() if key == "orch.dev/mark")
    namespace = candidate.namespace

    makes_namespace, of_namespace = _namespace(facts, namespace, mark)
    findings += of_namespace
    queueing, of_queue = _queueing(fleet, facts, context, mark, base, previous, new_namespace=makes_namespace)
    findings += of_queue
    chosen, of_nodes = _chosen(fleet, facts, context, previous, queueing)
    findings += of_nodes
    if chosen is None:
        raise PlanErrors(findings)
    pods = _most(fleet, chosen)
    findings += _count_findings(fleet, chosen, pods)
    findings += _security(facts, namespace, chosen, made=makes_namespace)
    account, of_account = _account(facts, settings, base)
    findings += of_account
    findings += _rights(facts, queueing, chosen)
    topology_key, required, levels, of_place = _placement(fleet, settings, queueing, chosen, pods)
    findings += of_place
    kueue = None
    if queueing.made:
        kueue = _own_queue(facts, chosen, pods, levels)
    elif queueing.gang == "kueue":
        findings += _given_queue(facts, queueing, chosen, pods)
    findings += [
        Finding("ORCH456", "backends", f"not checked, as you may not read it: {each}", severity=Severity.NOTE)
        for each in facts.unread
    ]
    queue = PodQueue(
        context=context.login.get("context"),
        kubeconfig=context.kubeconfig,
        namespace=namespace,
        mark=mark,
        gang=queueing.gang,
        local_queue=queueing.local_queue,
        service_account=account,
        pods=pods,
        cpus=chosen.cpus,
        memory_mib=chosen.memory_mib,
        gpus=chosen.gpus,
        requests=dict(chosen.requests),
        gpu_resource=chosen.gpu_resource,
        fabric=chosen.fabric,
        fabric_resource=chosen.fabric_resource,
        node_selector={**chosen.labels, **settings.node_selector},
        tolerations=tuple(dict(each) for each in chosen.tolerations),
        topology_key=topology_key,
        topology_required=required,
        priority_classes=dict(facts.priority_classes or {}) if queueing.gang == "kueue" else {},
        start_limit_s=settings.start_limit_s,
        price_hourly=None,
    )
    level = {POD_SECURITY: "privileged"} if chosen.privileges else {}
    warnings = settle(findings)
    return KubernetesPlan(
        fleet=fleet.name,
        scope=scope,
        base=base,
        labels=labels,
        placement=fleet.placement,
        interconnect=chosen.interconnect,
        queue=queue,
        namespace_labels=level if makes_namespace else None,
        service_account=account == base,
        kueue=kueue,
        login=context.login,
        job_image=fleet.image,
        env={key: value for key, value in fleet.env.items() if value is not None},
        protect=fleet.protect,
        pins={
            "backend": "kubernetes",
            "scope": scope,
            "indices": "",
            "context": candidate.context or "",
            "namespace": namespace,
            **({"nodes_like": chosen.size.shape.key} if chosen.size is not None else {}),
            "gang": queueing.gang,
        },
        reasons=tuple(told.reasons(fleet, candidate, facts, queue, chosen, queueing, kueue, makes_namespace)),
        warnings=warnings,
    )


# Where


def _namespace(facts: ClusterFacts, name: str, mark: str) -> tuple[bool, list[Finding]]:
    """Whether the fleet makes its namespace."""
    found = facts.namespace
    if found is None:
        return False, []
    if found.ending:
        summary = f"the namespace {name} is being deleted"
        hint = "wait until it is gone, or name another one: `namespace` of `kubernetes` in orch.yml"
        return False, [Finding("ORCH455", "backends", summary, hint=hint)]
    if found.exists:
        return found.mark == mark, []
    if "create namespaces" in facts.denied:
        summary = f"the cluster has no namespace {name}, and you may not make one"
        return True, [Finding("ORCH455", "backends", summary, hint="have it made, or name one that is there")]
    return True, []


def _security(facts: ClusterFacts, namespace: str, chosen: Chosen, *, made: bool) -> Iterator[Finding]:
    """What the pod security level of the namespace refuses. Source: Kubernetes, "Pod Security Standards";
    measured for IPC_LOCK."""
    level = facts.namespace.pod_security if facts.namespace is not None else None
    if made or level not in ("baseline", "restricted"):
        return
    if chosen.privileges:
        yield Finding(
            "ORCH452",
            "placement",
            f"the namespace {namespace} enforces the pod security level `{level}`, which refuses "
            f"{few(chosen.privileges)}: pods could not use {chosen.fabric}",
            hint=f"`kubectl label --overwrite namespace {namespace} {POD_SECURITY}=privileged`, another "
            "namespace, or `network: {interconnect: ethernet}` for jobs over plain TCP",
        )
    elif level == "restricted":
        yield Finding(
            "ORCH452",
            "backends",
            f"the namespace {namespace} enforces the pod security level `restricted`, which refuses pods "
            "whose jobs are started by root",
            hint=f"`kubectl label --overwrite namespace {namespace} {POD_SECURITY}=baseline`, or another "
            "namespace",
        )


def _account(
    facts: ClusterFacts, settings: KubernetesSettings, base: str
) -> tuple[str | None, list[Finding]]:
    """The service account of pods: the given one, one that is made, or the namespace's own."""
    given, known = settings.service_account, facts.service_accounts
    if given is not None:
        if known is not None and given not in known:
            summary = f"the namespace has no service account {given}"
            hint = hint_for(given, sorted(known)) or "`service_account` of `kubernetes` in orch.yml names it"
            return given, [Finding("ORCH455", "backends", summary, hint=hint)]
        return given, []
    if facts.may(*(f"{verb} serviceaccounts" for verb in MADE)):
        return base, []
    return None, []


def _rights(facts: ClusterFacts, queueing: Queueing, chosen: Chosen) -> Iterator[Finding]:
    """What runs need and the caller may not do."""
    acts = [" ".join(act) for act in OF_RUNS]
    acts += [" ".join(act) for act in OF_KUEUE_RUNS] if queueing.gang == "kueue" else []
    acts += [" ".join(act) for act in OF_POD_GROUPS] if queueing.gang == "podgroup" else []
    acts += [" ".join(act) for act in OF_COMPUTE_DOMAINS] if chosen.fabric == "compute-domain" else []
    needed = NEEDED_OF_RUNS | {" ".join(act) for act in (*OF_POD_GROUPS, *OF_COMPUTE_DOMAINS)}
    lacking = [each for each in acts if each in facts.denied]
    if vital := [each for each in lacking if each in needed]:
        summary = f"you may not {', '.join(vital)} in the namespace: no run could begin"
        yield Finding("ORCH453", "backends", summary, hint=GRANT)
    if others := [each for each in lacking if each not in needed]:
        summary = f"you may not {', '.join(others)} in the namespace: what needs it does not work"
        yield Finding("ORCH453", "backends", summary, hint=GRANT, severity=Severity.WARNING)


# What starts the pods of a run together


def _queueing(  # noqa: PLR0917
    fleet: Fleet,
    facts: ClusterFacts,
    context: Context,
    mark: str,
    base: str,
    previous: PriorState,
    *,
    new_namespace: bool,
) -> tuple[Queueing, list[Finding]]:
    settings = context.settings
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


def _flavor_labels(facts: ClusterFacts, queueing: Queueing) -> tuple[Mapping[str, str], ...]:
    """What nodes of a queue that is there must have, for each of its flavors."""
    queue = next((each for each in facts.local_queues or () if each.name == queueing.local_queue), None)
    found = next(
        (each for each in facts.cluster_queues or () if queue and each.name == queue.cluster_queue), None
    )
    if queueing.made or found is None or not facts.flavors:
        return ()
    return tuple(each.labels for each in facts.flavors if each.name in found.flavors)


# Which nodes


def _chosen(
    fleet: Fleet, facts: ClusterFacts, context: Context, previous: PriorState, queueing: Queueing
) -> tuple[Chosen | None, list[Finding]]:
    settings = context.settings
    query = MachineQuery(fleet.resources, ("kubernetes",), instance_types=fleet.instance_types)
    if facts.nodes is None:
        return _blind(fleet, settings, query)
    tolerance = Tolerance(tuple(_toleration(each) for each in settings.tolerations))
    nodes, left_out = usable_nodes(facts.nodes, settings.node_selector, tolerance, fleet.instance_types)
    flavors = _flavor_labels(facts, queueing)
    if flavors:
        inside = [node for node in nodes if any(_has(node, labels) for labels in flavors)]
        if len(inside) < len(nodes):
            left_out += (f"{counted(len(nodes) - len(inside), 'node')}: in no flavor of the queue",)
        nodes = tuple(inside)
    shapes = shapes_of(nodes, frozenset(facts.apis), settings.rdma_resource)
    sizes, misses = list[PodSize](), list[tuple[Shape, tuple[Miss, ...]]]()
    for shape in shapes:
        size, lacks = pod_size(shape, query)
        if size is not None:
            sizes.append(size)
        else:
            misses.append((shape, lacks))
    if not sizes:
        return None, [_nothing(fleet, misses, left_out)]
    fast = fleet.placement == "cluster" and _interconnect(fleet) != "ethernet"
    most = fleet.nodes.max if fleet.nodes is not None else 1
    pinned = previous.pins.get("nodes_like")
    wants_gpu = (fleet.resources.gpu.count.min or 0) > 0

    def order(size: PodSize) -> tuple[object, ...]:
        shape = size.shape
        enough = size.room >= (most or 1)
        smallest = size.type.gpu_count if query.fewest_first or not wants_gpu else 0
        room = min(size.room, most) if most is not None else size.room
        return (
            shape.key != pinned,
            fast and shape.fabric is None,
            not wants_gpu and shape.gpu_count > 0,
            not enough,
            smallest,
            -room,
            size.share < 1,
            shape.key,
        )

    size = min(sizes, key=order)
    findings = list[Finding]()
    if fast:
        findings += _fabric_findings(fleet, settings, facts, size)
    return _of_size(size, query, tolerance, with_fabric=fast), findings


def _of_size(size: PodSize, query: MachineQuery, tolerance: Tolerance, *, with_fabric: bool) -> Chosen:
    shape = size.shape
    requests = size.requests(query, fabric=with_fabric)
    fabric = shape.fabric if with_fabric else None
    if fabric is not None and fabric.resource is not None and fabric.resource not in requests:
        fabric = None  # a part of a node has none of it
    if fabric is not None and fabric.row.whole and size.share < 1:
        fabric = None
    tolerations = dict[str, Mapping[str, str]]()
    for node in size.fits:
        for taint in node.taints:
            if (needed := tolerance.needed(taint)) is not None:
                tolerations[json.dumps(needed, sort_keys=True)] = needed
    found = gpus(size.type)
    return Chosen(
        requests=requests,
        gpu_resource=shape.gpu_resource if size.type.gpu_count else None,
        gpus=Gpus.model_validate(found),
        cpus=float(amount(requests["cpu"])),
        memory_mib=int(amount(requests["memory"]) // 1024**2),
        labels=shape.labels,
        tolerations=tuple(tolerations[key] for key in sorted(tolerations)),
        size=size,
        fabric=fabric.row.id if fabric is not None else None,
        fabric_resource=fabric.resource if fabric is not None else None,
        interconnect=fabric.row.interconnect if fabric is not None else "ethernet",
        privileges=fabric.row.privileges if fabric is not None else (),
    )


def _blind(
    fleet: Fleet, settings: KubernetesSettings, query: MachineQuery
) -> tuple[Chosen | None, list[Finding]]:
    """A pod as the file asks for it, where nodes cannot be read: no more is known."""
    resources = fleet.resources
    count = int(resources.gpu.count.min or 0)
    vendor = resources.gpu.vendor or "nvidia"
    key = next((key for key, made_by in GPU_KEYS.items() if made_by == vendor), "nvidia.com/gpu")
    requests = {
        "cpu": str(int(resources.cpu.count.min or 1)),
        "memory": f"{int(resources.memory_mib.min or 1024)}Mi",
        **({key: str(count)} if count else {}),
    }
    fast = fleet.placement == "cluster" and _interconnect(fleet) != "ethernet"
    findings = list[Finding]()
    named = settings.rdma_resource if fast else None
    fabric = None
    if named is not None:
        from orch.components.kubernetes.fabrics import SHARED, rows

        fabric = next((each for each in rows().values() if each.knows(named)), rows()[SHARED])
        if fabric.count != "slots":
            summary = f"how many {named} a node has cannot be read: you may not list nodes"
            findings.append(Finding("ORCH451", "placement", summary, hint=GRANT))
        requests[named] = "1"
    elif fast and _interconnect(fleet) == "required":
        summary = "a fast interconnect is required, and you may not list nodes, which tell their fabric"
        hint = f"name its resource by `rdma_resource` of `kubernetes` in orch.yml; or {GRANT}"
        findings.append(Finding("ORCH451", "network.interconnect", summary, hint=hint))
    names = resources.gpu.names
    return Chosen(
        requests=requests,
        gpu_resource=key if count else None,
        gpus=Gpus(count=count, vendor=vendor if count else None, name=names[0] if names and count else None),
        cpus=float(amount(requests["cpu"])),
        memory_mib=int(amount(requests["memory"]) // 1024**2),
        labels={},
        tolerations=tuple(_toleration(each) for each in settings.tolerations),
        size=None,
        fabric=fabric.id if fabric is not None else None,
        fabric_resource=named,
        interconnect=fabric.interconnect if fabric is not None else "ethernet",
        privileges=fabric.privileges if fabric is not None else (),
    ), findings


def _has(node: ClusterNode, labels: Mapping[str, str]) -> bool:
    return all(node.labels.get(key) == value for key, value in labels.items())


def _toleration(each: object) -> dict[str, str]:
    values = {name: getattr(each, name) for name in ("key", "operator", "value", "effect")}
    return {name: value for name, value in values.items() if value is not None}


def _interconnect(fleet: Fleet) -> str:
    return fleet.network.interconnect if fleet.network is not None else "auto"


def _nothing(
    fleet: Fleet, misses: Sequence[tuple[Shape, tuple[Miss, ...]]], left_out: Sequence[str]
) -> Finding:
    """Why no node serves: what those that may run pods lack, the least first, and why others may not."""
    near = sorted(misses, key=lambda each: (len(each[1]), sum(miss.distance for miss in each[1])))
    words = [
        f"{counted(len(shape.nodes), 'node')} ({shape.words}): "
        + ", ".join(f"{miss.constraint} {miss.actual}, not {miss.required}" for miss in lacks)
        for shape, lacks in near
    ]
    lines = [*words, *left_out]
    return Finding(
        "ORCH200",
        "resources",
        f"no node of the cluster serves the fleet '{fleet.name}'",
        detail="\n".join(lines) if lines else "the cluster has no node",
        hint="change what they lack, or the cluster; nodes that an autoscaler would make are not known "
        "before one is up",
    )


def _fabric_findings(
    fleet: Fleet, settings: KubernetesSettings, facts: ClusterFacts, size: PodSize
) -> Iterator[Finding]:
    """A cluster without the fabric that it is asked for would run over TCP and say nothing."""
    required = _interconnect(fleet) == "required"
    fabric, shape = size.shape.fabric, size.shape
    path = "network.interconnect" if required else "placement"
    named = settings.rdma_resource
    if fabric is None:
        keys = sorted(
            {key for node in shape.nodes for key in node.allocatable if "/" in key and key not in GPU_KEYS}
        )
        if not required and named is None:
            summary = "none of the nodes has a fabric that orch knows: pods talk over plain TCP"
            hint = (
                "a device plugin brings it as a resource of nodes: name that by `rdma_resource` in orch.yml"
            )
            detail = f"nodes have {few(keys)}" if keys else None
            yield Finding("ORCH451", path, summary, detail, hint, Severity.WARNING)
            return
        what = f"`{named}`" if named is not None else "the key of a fabric that orch knows"
        yield Finding(
            "ORCH451",
            path,
            f"no node that serves the fleet has {what} allocatable: its pods would talk over plain TCP",
            detail=f"nodes have {few(keys)}"
            if keys
            else "nodes have no resource of a device plugin but their accelerators",
            hint="see that the fabric's device plugin runs there, correct `rdma_resource` of `kubernetes` in "
            "orch.yml, or write `network: {interconnect: ethernet}`",
        )
        return
    asked = size.fabric_requests
    if size.share < 1 and (fabric.row.whole or (fabric.resource is not None and not asked)):
        yield Finding(
            "ORCH451",
            path,
            f"a pod with {size.type.gpu_count} of a node's {shape.gpu_count} accelerators has none of its "
            "fabric",
            hint=f"ask for whole nodes: `gpu: {shape.gpu_count}`",
            severity=Severity.ERROR if required else Severity.WARNING,
        )
    expected = fabric.row.per_type.get(shape.instance_type)
    have = int(shape.least(fabric.resource)) if fabric.resource is not None else 0
    if expected is not None and have < expected:
        yield Finding(
            "ORCH451",
            path,
            f"{shape.instance_type} has {expected} {fabric.resource}, and a node of the cluster {have}",
            hint="are its network interfaces attached, and all of them of the kind that carries the fabric?",
            severity=Severity.WARNING,
        )


# How many


def _most(fleet: Fleet, chosen: Chosen) -> int:
    """The most pods of a run: what the file allows, else what the cluster has room for."""
    most = fleet.nodes.max if fleet.nodes is not None else 1
    if most is not None:
        return most
    return chosen.size.room if chosen.size is not None else 1


def _count_findings(fleet: Fleet, chosen: Chosen, pods: int) -> Iterator[Finding]:
    if chosen.size is None or pods <= chosen.size.room:
        return
    fits, each = len(chosen.size.fits), chosen.size.per_node
    holds = f", {each} pods each" if each > 1 else ""
    yield Finding(
        "ORCH454",
        "nodes",
        f"the cluster has {counted(fits, 'node')} for the fleet{holds}: a run of {pods} waits until there "
        "are more",
        hint="right where an autoscaler makes them; else ask for fewer",
        severity=Severity.WARNING,
    )


# Placement


def _placement(
    fleet: Fleet, settings: KubernetesSettings, queueing: Queueing, chosen: Chosen, pods: int
) -> tuple[str | None, bool, tuple[str, ...], list[Finding]]:
    """The label that pods of a run share, whether they must, and the levels of a Topology to make."""
    if fleet.placement != "cluster":
        return None, False, (), []
    levels = _levels(settings, chosen.nodes)
    if queueing.topology is not None:
        levels = tuple(each for each in queueing.topology if each != HOSTNAME)
        if not levels:
            summary = "the queue knows no topology: pods of a run may be far from each other"
            hint = "give its flavor a Topology of Kueue"
            return None, False, (), [Finding("ORCH454", "placement", summary, None, hint, Severity.WARNING)]
    if not levels:
        if chosen.size is None:
            return None, False, (), []
        summary = "nodes have no label that tells where they stand: pods of a run may be far from each other"
        hint = "name labels by `topology_labels` of `kubernetes` in orch.yml, the widest first"
        return None, False, (), [Finding("ORCH454", "placement", summary, None, hint, Severity.WARNING)]
    made = (*levels, HOSTNAME) if all(HOSTNAME in node.labels for node in chosen.nodes) else levels
    each = chosen.size.per_node if chosen.size is not None else 1
    for label in reversed(levels):
        domains = dict[str, int]()
        for node in chosen.nodes:
            if label in node.labels:
                domains[node.labels[label]] = domains.get(node.labels[label], 0) + each
        if max(domains.values(), default=0) >= pods:
            return label, True, made, []
    return levels[0], False, made, []


def _levels(settings: KubernetesSettings, nodes: Sequence[ClusterNode]) -> tuple[str, ...]:
    """The labels that all nodes have, of the first known set of which they have any, the widest first."""
    sets = [("orch.yml", settings.topology_labels)] if settings.topology_labels else topology_sets()
    for _, labels in sets:
        common = tuple(each for each in labels if nodes and all(each in node.labels for node in nodes))
        if common:
            return common
    return ()


# Queues of Kueue


def _own_queue(facts: ClusterFacts, chosen: Chosen, pods: int, levels: tuple[str, ...]) -> KueueObjects:
    """What is made: room for as many pods as a run may have, of each resource that one asks for. Where pods
    have whole nodes it is what nodes have: pods of another sort may be smaller."""
    quota = dict[str, str]()
    for name, text in chosen.requests.items():
        each = amount(text)
        if chosen.size is not None and chosen.size.share == 1:
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


def _given_queue(facts: ClusterFacts, queueing: Queueing, chosen: Chosen, pods: int) -> Iterator[Finding]:
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


def _tag_findings(tags: Mapping[str, str]) -> Iterator[Finding]:
    for key, value in tags.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            yield Finding(
                "ORCH236",
                "tags",
                f"`{key}: {value}` is no label of Kubernetes, as which tags are kept there",
                hint="at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
            )
