"""The FleetState of an AWS fleet: the plan, and what became known when it was made."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orch.components.aws.plan import AwsPlan
from orch.components.aws.tunnels import through_ssm
from orch.components.cloud.cloudinit import JUMP_USER
from orch.components.cloud.host_keys import public_host_key
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.state import SCHEMA

# A node that is gone may be a reboot: EC2 takes minutes for it.
UNREACHABLE_GRACE_S = 300.0


@dataclass(frozen=True)
class HostKey:
    """The public host key of a node. `machine`: the instance that made it; None: it follows from the seed."""

    public: str
    machine: str | None = None


@dataclass(frozen=True)
class Seen:
    """What the cloud gave. One entry per node each, in order of nodes; `bastion` is its id and address.

    `topology`: network nodes above each node, the outermost first.
    """

    seed: str
    ids: Sequence[str]
    host_keys: Sequence[HostKey]
    internal: Sequence[str]
    public: Sequence[str]
    topology: Sequence[Sequence[str]]
    bastion: tuple[str, str] | None


def known_keys(plan: AwsPlan, seed: str, ids: Sequence[str], own: Sequence[bool]) -> dict[str, HostKey]:
    """The host keys of instances that need not be asked for, by instance.

    `own`: the instance has user data of its own, in which an earlier version gave it a key from the seed.
    """
    known: dict[str, HostKey] = {}
    shown = {name: key for group in plan.node_groups for name, key in group.host_keys.items()}
    for node, each, carried in zip(plan.all_nodes, ids, own, strict=True):
        machine, public = shown.get(node.name, ("", ""))
        if machine == each and public:
            known[each] = HostKey(public, each)
        elif carried:
            known[each] = HostKey(public_host_key(seed, node.name))
    return known


def fleet_state(plan: AwsPlan, settings: AwsSettings, stack: str, seen: Seen) -> dict[str, Any]:
    """All that a runner needs, as `spec.state.FleetState` reads it."""
    jumps = _jumps(plan, settings, seen)
    ssm = plan.access.way == "ssm"
    groups = {node.name: group for group in plan.node_groups for node in group.nodes}
    nodes = [
        {
            "index": node.index,
            "name": node.name,
            "address": (seen.public if plan.access.way == "direct" else seen.internal)[place],
            "user": "root",
            "host_key": seen.host_keys[place].public,
            "machine": seen.host_keys[place].machine,
            "jump": jumps,
            "proxy_command": through_ssm(plan.region, settings, seen.ids[place]) if ssm else None,
            "internal_ip": seen.internal[place],
            "cpus": groups[node.name].cpus,
            "memory_mib": groups[node.name].memory_mib,
            "arch": groups[node.name].arch,
            "disk_mib": groups[node.name].disk.size_gb * 1024,
            "gpus": dict(groups[node.name].gpus),
            "blocks": groups[node.name].blocks,
            "region": plan.region,
            "zone": groups[node.name].zone,
            "instance_type": groups[node.name].instance_type,
            "topology": list(seen.topology[place]) if seen.topology else [],
            "price_hourly": groups[node.name].price,
        }
        for place, node in enumerate(plan.all_nodes)
    ]
    return {
        "schema_version": SCHEMA,
        "name": plan.fleet,
        "stack": stack,
        "backend": "aws",
        "placement": plan.placement,
        "interconnect": plan.interconnect,
        "unreachable_grace_s": UNREACHABLE_GRACE_S,
        "image": plan.job_image,
        "env": dict(plan.env),
        "beside_hourly": plan.bastion.price if plan.bastion else None,
        "nodes": nodes,
    }


def _jumps(plan: AwsPlan, settings: AwsSettings, seen: Seen) -> list[dict[str, Any]]:
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
    instance, address = seen.bastion
    return [
        {
            "address": address,
            "user": JUMP_USER,
            "host_key": public_host_key(seen.seed, f"{plan.fleet}-bastion"),
            "proxy_command": None if plan.bastion.public else through_ssm(plan.region, settings, instance),
        }
    ]
