"""Which nodes the pods of a fleet go to, and what a pod of it asks for there. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from orch.components.cloud.sizing import gpus
from orch.components.kubernetes.account.facts import (
    ATTACHMENT_KIND,
    ATTACHMENTS,
    COMMON_NAMESPACE,
    ClusterFacts,
    ClusterNode,
)
from orch.components.kubernetes.account.rights import GRANT
from orch.components.kubernetes.fabrics import SHARED, rows
from orch.components.kubernetes.plan import Chosen, Queueing
from orch.components.kubernetes.queueing import flavor_labels
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
from orch.spec.findings import Finding
from orch.spec.grammar.quantities import amount
from orch.spec.models import Fleet
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.spec.state import Gpus
from orch.spec.suggest import counted, few, hint_for

_DIGITS = re.compile(r"([0-9]+)")


def chosen_nodes(
    fleet: Fleet,
    facts: ClusterFacts,
    settings: KubernetesSettings,
    previous: PriorState,
    queueing: Queueing,
) -> tuple[Chosen | None, list[Finding]]:
    """What a pod of the fleet is and where it goes; None where no node serves. Findings: ORCH200, 451."""
    query = MachineQuery(fleet.resources, ("kubernetes",), instance_types=fleet.instance_types)
    if facts.nodes is None:
        return _blind(fleet, settings, query)
    tolerance = Tolerance(tuple(_toleration(each) for each in settings.tolerations))
    nodes, left_out = usable_nodes(facts.nodes, settings.node_selector, tolerance, fleet.instance_types)
    flavors = flavor_labels(facts, queueing)
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
    return _of_size(size, tolerance, with_fabric=fast), findings


def _of_size(size: PodSize, tolerance: Tolerance, *, with_fabric: bool) -> Chosen:
    shape = size.shape
    requests = size.requests(fabric=with_fabric)
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


# Networks that pods join for their fabric


def pod_networks(
    fleet: Fleet, facts: ClusterFacts, settings: KubernetesSettings, namespace: str, chosen: Chosen
) -> tuple[tuple[str, ...], list[Finding]]:
    """The NetworkAttachmentDefinitions that pods join, as `NAME` or `NAMESPACE/NAME`: those of orch.yml, else
    those that give devices of the fabric's resource. One alone is joined for each device, several once each.

    Those of the fleet's namespace come before those of the common one. Findings: ORCH457. Source: Multus CNI,
    pkg/k8sclient getKubernetesDelegate: each network takes the next device of its resource.
    """
    if chosen.fabric is None:
        return (), []
    path = "network.interconnect" if _interconnect(fleet) == "required" else "placement"
    row, resource = rows()[chosen.fabric], chosen.fabric_resource
    counted_devices = resource is not None and row.count == "devices"
    devices = int(amount(chosen.requests[resource])) if resource is not None and counted_devices else 1
    if given := settings.rdma_networks:
        most = devices if counted_devices else len(given)
        alone = len(given) == 1 and _gives(facts, given[0], namespace, resource, row.attached)
        findings = list(_given_networks(facts, given, namespace, resource, most))
        return given * (devices if alone else 1), findings
    for where in dict.fromkeys((namespace, COMMON_NAMESPACE)):
        here = facts.networks.get(where, {})
        found = sorted((each for each, gives in here.items() if gives == resource), key=_natural)
        if found and resource is not None:
            names = tuple(each if where == namespace else f"{where}/{each}" for each in found)
            doubts = list(_doubts(path, names, resource, devices))
            return (names * (devices if len(names) == 1 else 1) if len(names) <= devices else ()), doubts
    if row.attached:
        return (), [_no_network(facts, namespace, resource, path)]
    return (), []


def _gives(facts: ClusterFacts, name: str, namespace: str, resource: str | None, unread: bool) -> bool:
    """Whether a network gives devices of a resource; `unread` where that could not be read."""
    where, _, plain = name.rpartition("/")
    here = facts.networks.get(where or namespace)
    return unread if here is None else here.get(plain) == resource


def _given_networks(
    facts: ClusterFacts, names: Sequence[str], namespace: str, resource: str | None, most: int
) -> Iterator[Finding]:
    """What is certain of the networks that orch.yml names: those of a namespace that could not be read are
    taken at its word. `most`: how many of them may take a device of the resource."""
    if facts.version_of(ATTACHMENTS, ATTACHMENT_KIND) is None:
        yield Finding(
            "ORCH457",
            "backends",
            "`rdma_networks` is given in orch.yml, and the cluster knows no networks that pods may join",
            hint="install Multus and its NetworkAttachmentDefinitions, or remove it",
        )
        return
    taking = 0
    for name in dict.fromkeys(names):
        where, _, plain = name.rpartition("/")
        here = facts.networks.get(where or namespace)
        if here is None:
            continue
        if plain not in here:
            few_names = f"it has {few(sorted(here, key=_natural))}" if here else "it has none"
            yield Finding(
                "ORCH457",
                "backends",
                f"the namespace {where or namespace} has no NetworkAttachmentDefinition {plain}",
                hint=hint_for(plain, sorted(here)) or f"{few_names}; `rdma_networks` in orch.yml names them",
            )
        elif here[plain] == resource:
            taking += names.count(name)
        elif here[plain] is not None:
            yield Finding(
                "ORCH457",
                "backends",
                f"the network {name} gives devices of {here[plain]}, and pods ask for "
                f"{resource or 'none of a resource'}",
                hint="in orch.yml name one of that resource by `rdma_networks`, or its resource by "
                "`rdma_resource`",
                severity=Severity.WARNING,
            )
    if len(names) > 1 and taking > most:
        yield Finding(
            "ORCH457",
            "backends",
            f"the networks of `rdma_networks` take {taking} {resource}, and a pod has {most}: no pod "
            "would start",
            hint="name one for all devices, or each as often as it is to give one",
        )


def _doubts(path: str, names: Sequence[str], resource: str, devices: int) -> Iterator[Finding]:
    """Networks that are neither one for all devices nor one for each."""
    if len(names) in (1, devices):
        return
    joined = (
        "which of them pods join is not certain, and they join none"
        if len(names) > devices
        else f"a pod joins each once, and {devices - len(names)} of its devices get no interface"
    )
    yield Finding(
        "ORCH457",
        path,
        f"{len(names)} networks give devices of {resource}, of which a pod has {devices}: {joined}",
        detail=", ".join(names),
        hint="write `rdma_networks` of `kubernetes` in orch.yml: one name for all devices, or one for each, "
        "which may be the same",
        severity=Severity.WARNING,
    )


def _no_network(facts: ClusterFacts, namespace: str, resource: str | None, path: str) -> Finding:
    """A warning: where the cards are InfiniBand's and nodes share them, pods do without interfaces."""
    places = tuple(dict.fromkeys((namespace, COMMON_NAMESPACE)))
    unread = [each for each in places if each not in facts.networks]
    if facts.version_of(ATTACHMENTS, ATTACHMENT_KIND) is None:
        why = "the cluster knows no networks that pods may join"
        hint = "install Multus and a NetworkAttachmentDefinition of the resource"
    elif unread:
        why = f"you may not list the NetworkAttachmentDefinitions of {' and '.join(unread)}"
        hint = "name them by `rdma_networks` of `kubernetes` in orch.yml, or have them listed"
    else:
        why = f"no NetworkAttachmentDefinition of {' or '.join(places)} gives devices of it"
        hint = "have one made, or name it by `rdma_networks` of `kubernetes` in orch.yml"
    return Finding(
        "ORCH457",
        path,
        f"pods get {resource} without network interfaces: {why}",
        detail="InfiniBand may do without them, RoCE needs them; where they are needed NCCL ends the job, it "
        "does not go on over TCP",
        hint=hint,
        severity=Severity.WARNING,
    )


def _natural(name: str) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in _DIGITS.split(name)]
