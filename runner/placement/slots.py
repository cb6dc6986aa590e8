"""Nodes that a fleet of a scheduler could give a run: it has none before the run's pods are there. Pure."""

from __future__ import annotations

from orch.spec.access import KUBERNETES, OtherAccess
from orch.spec.state import FleetState, NodeState, PodQueue


def with_slots(fleet: FleetState) -> FleetState:
    """The fleet with a node for each pod that a run may have, where its pods come with runs."""
    queue = fleet.queue
    if queue is None or fleet.nodes:
        return fleet
    where = access_of(queue)
    slots = (
        NodeState(
            index=index,
            name=f"{fleet.name}-{index}",
            access=OtherAccess.model_validate(where),
            runtime="process",
            # Its pod will have one; until then a plan is a draft.
            internal_ip=f"{fleet.name}-{index}",
            cpus=queue.cpus,
            memory_mib=queue.memory_mib,
            gpus=queue.gpus,
            region=queue.context,
            price_hourly=queue.price_hourly,
        )
        for index in range(queue.pods)
    )
    return fleet.model_copy(update={"nodes": tuple(slots)})


def access_of(queue: PodQueue, **pod: str | None) -> dict[str, str | None]:
    """The record of how a pod is reached, or one that is not there yet."""
    where = {"kubeconfig": queue.kubeconfig, "context": queue.context, "namespace": queue.namespace}
    cluster = {"cluster": queue.cluster} if queue.cluster is not None else {}
    return {"kind": KUBERNETES, **where, **cluster, "mark": queue.mark, **pod}


def is_of_cluster(node: NodeState) -> bool:
    """Whether it is a pod of Kubernetes, or stands for one."""
    return isinstance(node.access, OtherAccess) and node.access.kind == KUBERNETES


def is_slot(node: NodeState) -> bool:
    """Whether it stands for a pod that is not there yet."""
    return is_of_cluster(node) and not node.made_for
