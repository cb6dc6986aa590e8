"""The FleetState of a GCP fleet: the plan, and what became known when it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orch.components.cloud.fleet_state import bastion_jump, given_jumps, node_state
from orch.components.cloud.fleet_state import fleet_state as of_cloud
from orch.components.cloud.host_keys import HostKey
from orch.components.gcp.plan import GcpPlan
from orch.components.gcp.tunnels import through_iap
from orch.spec.models.backends.gcp import GcpSettings

# A node that is gone may be a restart after maintenance, which takes minutes.
UNREACHABLE_GRACE_S = 600.0


@dataclass(frozen=True)
class Machine:
    """An instance: what a node's state needs that is known only afterwards.

    `key`: the name for which an earlier version gave it a host key of the seed, in user data of its own.
    `host`: where it stands, outermost first.
    """

    name: str
    id: str
    internal: str
    public: str | None
    key: str | None
    host: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """What the cloud gave. `machines`: in order of nodes; `host_keys`: by the instance's id, and who has none
    is no node yet. `bastion` is its name and address."""

    seed: str
    machines: Sequence[Machine]
    host_keys: Mapping[str, HostKey]
    bastion: tuple[str, str | None] | None


def fleet_state(plan: GcpPlan, settings: GcpSettings, stack: str, seen: Seen) -> dict[str, Any]:
    """All that a runner needs, as `spec.state.FleetState` reads it."""
    jumps = _jumps(plan, settings, seen)
    way, makers = plan.access.way, plan.makers
    groups = {node.name: group for group in plan.node_groups for node in group.nodes}
    nodes = [
        node_state(
            groups[node.name],
            node,
            key=seen.host_keys[machine.id],
            address=machine.public if way == "direct" else machine.internal,
            internal=machine.internal,
            jumps=jumps,
            proxy_command=_through_iap(groups[node.name], settings, machine.name) if way == "iap" else None,
            topology=machine.host,
            disk_gb=groups[node.name].disk.size_gb,
            made_by=makers.get(node.name),
        )
        for node, machine in zip(plan.all_nodes, seen.machines, strict=True)
        if machine.id in seen.host_keys
    ]
    return of_cloud(plan, stack, nodes, backend="gcp", grace_s=UNREACHABLE_GRACE_S)


def _jumps(plan: GcpPlan, settings: GcpSettings, seen: Seen) -> list[dict[str, Any]]:
    if plan.bastion is None or seen.bastion is None:
        return given_jumps(plan.access.jumps)
    name, address = seen.bastion
    tunnel = None if plan.bastion.public else _through_iap(plan, settings, name)
    return [bastion_jump(plan, seen.seed, address, tunnel)]


def _through_iap(plan: GcpPlan, settings: GcpSettings, instance: str) -> str:
    return through_iap(plan.project, plan.zone, settings, instance)
