"""The FleetState of a cloud's fleet, as `spec.state.FleetState` reads it.

It is the plan, and what became known when it was carried out.
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orch.components.cloud.machines.cloudinit import JUMP_USER
from orch.components.cloud.machines.host_keys import HostKey, public_host_key
from orch.components.cloud.plan import CloudPlan, Node
from orch.spec.models.ssh import Jump
from orch.spec.state import SCHEMA


def fleet_state(
    plan: CloudPlan, stack: str, nodes: Sequence[dict[str, Any]], *, backend: str, grace_s: float
) -> dict[str, Any]:
    """The whole fleet. `grace_s`: how long a node that is not reached may be rebooting, in seconds."""
    return {
        "schema_version": SCHEMA,
        "name": plan.fleet,
        "stack": stack,
        "backend": backend,
        "placement": plan.placement,
        "interconnect": plan.interconnect,
        "unreachable_grace_s": grace_s,
        "image": plan.job_image,
        "env": dict(plan.env),
        "beside_hourly": plan.bastion.price if plan.bastion else None,
        **({"mounts": [mount.model_dump() for mount in plan.mounts]} if plan.mounts else {}),
        "nodes": list(nodes),
    }


@dataclass(frozen=True)
class Route:
    """How a node is reached. `address`: by SSH; `internal`: in its network; `jumps`: the
    hops before it; `proxy_command`: the tunnel to it."""

    address: str | None
    internal: str
    jumps: Sequence[dict[str, Any]] = ()
    proxy_command: str | None = None


def node_state(
    group: CloudPlan,
    node: Node,
    key: HostKey,
    route: Route,
    *,
    topology: Sequence[str],
    disk_gb: int,
    made_by: str | None = None,
    reservation: str | None = None,
) -> dict[str, Any]:
    """A node of a group. `reservation`: the one that the group's nodes are in."""
    return {
        "index": node.index,
        "name": node.name,
        "address": route.address,
        "user": "root",
        "host_key": key.public,
        "machine": key.machine,
        "jump": list(route.jumps),
        "proxy_command": route.proxy_command,
        "internal_ip": route.internal,
        "cpus": group.cpus,
        "memory_mib": group.memory_mib,
        "arch": group.arch,
        "disk_mib": disk_gb * 1024,
        "gpus": dict(group.gpus),
        "blocks": group.blocks,
        "region": group.region,
        "zone": group.zone,
        "instance_type": group.instance_type,
        "topology": list(topology),
        "price_hourly": group.price,
        **({"scratch": dict(group.scratch)} if group.scratch else {}),
        **({"made_by": made_by} if made_by is not None else {}),
        **({"spot": True} if group.spot else {}),
        **({"reservation": reservation} if reservation is not None else {}),
    }


def given_jumps(jumps: Sequence[Jump]) -> list[dict[str, Any]]:
    """Hops that the file gives."""
    return [
        {
            "address": jump.hostname,
            "port": jump.port,
            "user": jump.user or getpass.getuser(),
            "identity": jump.identity_file,
        }
        for jump in jumps
    ]


def bastion_jump(
    plan: CloudPlan, seed: str, address: str | None, proxy_command: str | None
) -> dict[str, Any]:
    """The fleet's own bastion, whose host key follows from the stack's seed."""
    return {
        "address": address,
        "user": JUMP_USER,
        "host_key": public_host_key(seed, f"{plan.fleet}-bastion"),
        "proxy_command": proxy_command,
    }
