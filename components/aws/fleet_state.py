"""The FleetState of an AWS fleet: the plan, and what became known when it was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orch.components.aws.plan import AwsPlan
from orch.components.aws.tunnels import through_ssm
from orch.components.cloud.fleet_state import bastion_jump, given_jumps, node_state
from orch.components.cloud.fleet_state import fleet_state as of_cloud
from orch.components.cloud.host_keys import HostKey
from orch.spec.models.backends.aws import AwsSettings

# A node that is gone may be a reboot: EC2 takes minutes for it.
UNREACHABLE_GRACE_S = 300.0


@dataclass(frozen=True)
class Seen:
    """What the cloud gave. One entry per node each, in order of nodes; who has no host key is no node yet.
    `bastion` is its id and address.

    `topology`: network nodes above each node, the outermost first.
    """

    seed: str
    ids: Sequence[str]
    host_keys: Sequence[HostKey | None]
    internal: Sequence[str]
    public: Sequence[str]
    topology: Sequence[Sequence[str]]
    bastion: tuple[str, str] | None


def fleet_state(plan: AwsPlan, settings: AwsSettings, stack: str, seen: Seen) -> dict[str, Any]:
    """All that a runner needs, as `spec.state.FleetState` reads it."""
    jumps = _jumps(plan, settings, seen)
    ssm = plan.access.way == "ssm"
    groups = {node.name: group for group in plan.node_groups for node in group.nodes}
    nodes = [
        node_state(
            groups[node.name],
            node,
            key=key,
            address=(seen.public if plan.access.way == "direct" else seen.internal)[place],
            internal=seen.internal[place],
            jumps=jumps,
            proxy_command=through_ssm(plan.region, settings, seen.ids[place]) if ssm else None,
            topology=seen.topology[place] if seen.topology else (),
            disk_gb=groups[node.name].disk.size_gb,
        )
        for place, (node, key) in enumerate(zip(plan.all_nodes, seen.host_keys, strict=True))
        if key is not None
    ]
    return of_cloud(plan, stack, nodes, backend="aws", grace_s=UNREACHABLE_GRACE_S)


def _jumps(plan: AwsPlan, settings: AwsSettings, seen: Seen) -> list[dict[str, Any]]:
    if plan.bastion is None or seen.bastion is None:
        return given_jumps(plan.access.jumps)
    instance, address = seen.bastion
    tunnel = None if plan.bastion.public else through_ssm(plan.region, settings, instance)
    return [bastion_jump(plan, seen.seed, address, tunnel)]
