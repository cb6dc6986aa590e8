"""What the properties of a fleet's objects say of it, and why a plan is as it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orch.components.explain import ChangeRow, Explained
from orch.components.kubernetes.fabrics import rows
from orch.components.node_count import no_node
from orch.spec.grammar.quantities import amount
from orch.spec.models import Fleet
from orch.spec.state import PodQueue
from orch.spec.suggest import counted, few

if TYPE_CHECKING:
    from orch.components.kubernetes.account.facts import ClusterFacts
    from orch.components.kubernetes.candidates import KubernetesCandidate
    from orch.components.kubernetes.plan import Chosen, KubernetesPlan, KueueObjects, Queueing

PACKAGE = "kubernetes"
PROVIDER = f"pulumi:providers:{PACKAGE}"

_QUEUES = r"kubernetes:kueue\.x-k8s\.io/.*"

EXPLAINED = Explained(
    traits={
        "cluster": "cluster",
        "namespace": "namespace",
        "gang": "gang",
        "queue": "queue",
        "pods": "most pods of a run",
        "pod": "each pod",
        "fabric": "fabric",
        "topology": "topology",
        "quota": "quota",
        "tags": "labels",
    },
    new_nodes=frozenset(),
    rows=(
        ChangeRow(rf"{_QUEUES}:ClusterQueue", r"spec(\..*|\[.*)?", "quota"),
        ChangeRow(rf"{_QUEUES}:ResourceFlavor", r"spec(\..*|\[.*)?", "pod"),
        ChangeRow(rf"{_QUEUES}:Topology", r"spec(\..*|\[.*)?", "topology"),
        ChangeRow(rf"{_QUEUES}:LocalQueue", r"spec(\..*|\[.*)?", "queue"),
        ChangeRow(r"kubernetes:.*", r"metadata(\..*|\[.*)?", "tags"),
        ChangeRow(r"pulumi:providers:kubernetes", r".*", None),
    ),
    noun="pod",
    lost="all that their jobs did not save elsewhere",
)


def traits(plan: KubernetesPlan) -> dict[str, str]:
    """What a fleet is there."""
    queue = plan.queue
    own = {key: value for key, value in plan.labels.items() if "/" not in key}
    quota = plan.kueue.quota if plan.kueue is not None else {}
    return {
        "cluster": queue.context or "the current context",
        "namespace": queue.namespace,
        "gang": queue.gang,
        "queue": queue.local_queue or "none",
        "pods": str(queue.pods),
        "pod": requests_words(queue),
        "fabric": _fabric_words(queue),
        "topology": queue.topology_key or "none",
        "quota": ", ".join(f"{name} {text}" for name, text in quota.items()) or "none of ours",
        "tags": ", ".join(f"{key}={value}" for key, value in sorted(own.items())) or "none",
    }


def _fabric_words(queue: PodQueue) -> str:
    by = f" by {_networks_words(queue)}" if queue.networks else ""
    return f"{queue.fabric or 'none'}{by}"


def _networks_words(queue: PodQueue) -> str:
    names, count = tuple(dict.fromkeys(queue.networks)), len(queue.networks)
    return f"{names[0]}, {count} times" if len(names) == 1 < count else few(queue.networks)


def requests_words(queue: PodQueue) -> str:
    return ", ".join(f"{name} {text}" for name, text in queue.requests.items())


def reasons(
    fleet: Fleet,
    candidate: KubernetesCandidate,
    facts: ClusterFacts,
    queue: PodQueue,
    chosen: Chosen,
    queueing: Queueing,
    kueue: KueueObjects | None,
    makes_namespace: bool,
) -> Iterator[str]:
    """Why a plan is as it is, a line each."""
    yield no_node(fleet)
    yield f"cluster: {candidate.words}, Kubernetes {facts.server or 'of a version that it does not tell'}"
    size = chosen.size
    if size is not None:
        part = "a whole node" if size.whole else "a part of a node"
        if 0 < size.share < 1:
            part = f"{size.share.numerator}/{size.share.denominator} of a node"
        free = _free(queue, chosen) if facts.pods_read else None
        now = "" if free is None else f", {free} of them free now"
        serve = "serves" if len(size.fits) == 1 else "serve"
        yield f"a pod has {part} of {size.shape.words}; {counted(len(size.fits), 'node')} {serve}{now}"
    else:
        yield "a pod has what the file asks for: nodes could not be read"
    yield f"each pod asks for {requests_words(queue)}"
    yield _gang_words(queue, queueing, kueue)
    if queue.fabric is not None:
        row = rows()[queue.fabric]
        by = f" ({queue.fabric_resource})" if queue.fabric_resource else ""
        yield f"fabric: {row.title}{by}"
        if queue.networks:
            yield f"each pod joins {_networks_words(queue)}"
    elif fleet.placement == "cluster":
        yield "fabric: none, pods talk over plain TCP"
    if queue.topology_key is not None:
        how = "share" if queue.topology_required else "are placed close by"
        yield f"placement: pods of a run {how} the label {queue.topology_key}"
    if makes_namespace:
        yield f"the namespace {queue.namespace} is made, and goes with the fleet once nothing else is in it"
    else:
        yield f"the namespace {queue.namespace} is there and stays as it is"
    if queue.service_account is not None and queue.service_account.startswith("orch-"):
        yield "pods run as a service account of the fleet's own, without rights and without a token"


def _free(queue: PodQueue, chosen: Chosen) -> int:
    """On how many of the nodes all that a pod asks for is free."""
    return sum(
        all(node.free(name) >= amount(text) for name, text in queue.requests.items()) for node in chosen.nodes
    )


def _gang_words(queue: PodQueue, queueing: Queueing, kueue: KueueObjects | None) -> str:
    if queue.gang == "podgroup":
        return "gang: the scheduler's own (PodGroup) starts all pods of a run, or none"
    if queue.gang == "job":
        return (
            "gang: the cluster has no scheduler of gangs: a run whose pods do not all start within "
            f"{queue.start_limit_s} s is taken back and tried again"
        )
    if queueing.made and kueue is not None:
        made = ["ResourceFlavor", "ClusterQueue", "LocalQueue", *(["Topology"] if kueue.levels else [])]
        return f"gang: Kueue admits whole runs, by a queue of the fleet's own ({few(made, 4)})"
    return (
        f"gang: Kueue admits whole runs, by the queue {queue.local_queue} that is there; nothing "
        "cluster-wide is made"
    )
