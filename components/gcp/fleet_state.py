"""The FleetState of a GCP fleet: the plan, and what became known when it was made."""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orch.components.cloud.cloudinit import JUMP_USER
from orch.components.cloud.host_keys import HostKey, public_host_key
from orch.components.gcp.plan import GcpPlan
from orch.components.gcp.tunnels import through_iap
from orch.spec.models.backends.gcp import GcpSettings
from orch.spec.state import SCHEMA

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
    nodes: list[dict[str, Any]] = []
    for node, machine in zip(plan.nodes, seen.machines, strict=True):
        key = seen.host_keys.get(machine.id)
        if key is None:
            continue
        nodes.append(
            {
                "index": node.index,
                "name": node.name,
                "address": machine.public if way == "direct" else machine.internal,
                "user": "root",
                "host_key": key.public,
                "machine": key.machine,
                "jump": jumps,
                "proxy_command": _through_iap(plan, settings, machine.name) if way == "iap" else None,
                "internal_ip": machine.internal,
                "cpus": plan.cpus,
                "memory_mib": plan.memory_mib,
                "arch": plan.arch,
                "disk_mib": plan.disk.size_gb * 1024,
                "gpus": dict(plan.gpus),
                "blocks": plan.blocks,
                "region": plan.region,
                "zone": plan.zone,
                "instance_type": plan.instance_type,
                "topology": list(machine.host),
                "price_hourly": plan.price,
                "made_by": makers.get(node.name),
            }
        )
    return {
        "schema_version": SCHEMA,
        "name": plan.fleet,
        "stack": stack,
        "backend": "gcp",
        "placement": plan.placement,
        "interconnect": plan.interconnect,
        "unreachable_grace_s": UNREACHABLE_GRACE_S,
        "image": plan.job_image,
        "env": dict(plan.env),
        "beside_hourly": plan.bastion.price if plan.bastion else None,
        "nodes": nodes,
    }


def _jumps(plan: GcpPlan, settings: GcpSettings, seen: Seen) -> list[dict[str, Any]]:
    if plan.bastion is None or seen.bastion is None:
        return [
            {
                "address": jump.hostname,
                "port": jump.port,
                "user": jump.user or getpass.getuser(),
                "identity": jump.identity_file,
            }
            for jump in plan.access.jumps
        ]
    name, address = seen.bastion
    return [
        {
            "address": address,
            "user": JUMP_USER,
            "host_key": public_host_key(seen.seed, f"{plan.fleet}-bastion"),
            "proxy_command": None if plan.bastion.public else _through_iap(plan, settings, name),
        }
    ]


def _through_iap(plan: GcpPlan, settings: GcpSettings, instance: str) -> str:
    return through_iap(plan.project, plan.zone, settings, instance)
