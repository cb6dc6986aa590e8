"""A fleet of existing hosts as Pulumi resources: the plan, one to one. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pulumi

from orch.components.ssh.plan import SshHostPlan, SshPlan
from orch.spec.access import Jump, SshAccess
from orch.spec.state import SCHEMA

if TYPE_CHECKING:
    from orch.components.request import PlanRequest
    from orch.components.ssh.backend import SshBackend

UNREACHABLE_GRACE_S = 120.0
"""A server's network may be away for a minute; its job goes on meanwhile."""


class SshHost(pulumi.CustomResource):
    """`orch:ssh:Host`: an existing server registered in a fleet."""

    def __init__(self, name: str, props: dict[str, Any], *, opts: pulumi.ResourceOptions) -> None:
        super().__init__("orch:ssh:Host", name, {**props, "facts": None}, opts)


class SshFleet(pulumi.ComponentResource):
    """The whole fleet. `state` is its FleetState, known before anything is registered: a host that fails must
    not take the others' record along.
    """

    state: pulumi.Output[dict[str, Any]]

    def __init__(self, plan: SshPlan) -> None:
        super().__init__("orch:fleet:Ssh", plan.fleet, None, pulumi.ResourceOptions(protect=plan.protect))
        for host in plan.hosts:
            SshHost(host.node.name, _inputs(plan, host), opts=pulumi.ResourceOptions(parent=self))
        self.state = pulumi.Output.from_input(
            {
                "schema_version": SCHEMA,
                "name": plan.fleet,
                "stack": pulumi.get_stack(),
                "backend": "ssh",
                "placement": plan.placement,
                "interconnect": plan.interconnect,
                "unreachable_grace_s": UNREACHABLE_GRACE_S,
                "image": plan.image,
                "env": plan.env,
                **({"mounts": [mount.model_dump() for mount in plan.mounts]} if plan.mounts else {}),
                "nodes": [host.node.model_dump(mode="json") for host in plan.hosts],
            }
        )
        self.register_outputs({})


def _hop(hop: Jump) -> dict[str, Any]:
    """As before there were aliases, where there is none: no host is registered anew for a null."""
    return {**hop.model_dump(mode="json", exclude={"ssh_alias"}), **_alias(hop)}


def _alias(hop: Jump | SshAccess) -> dict[str, Any]:
    return {"ssh_alias": hop.ssh_alias} if hop.ssh_alias else {}


def _inputs(plan: SshPlan, host: SshHostPlan) -> dict[str, Any]:
    node, access = host.node, host.node.ssh
    init_inputs = {step.key: pulumi.Output.secret(step.record) for step in plan.init}
    return {
        "name": node.name,
        "stack": f"{pulumi.get_project()}/{pulumi.get_stack()}/{plan.scope}",
        "address": access.address,
        "port": access.port,
        "user": access.user,
        "identity": access.identity,
        "jump": [_hop(hop) for hop in access.jump],
        "proxy_command": None,
        **_alias(access),
        "host_key": access.host_key,
        "internal_ip": node.internal_ip,
        "blocks": node.blocks,
        # Each a secret of its own: a plan tells which of them changes.
        "env": {name: pulumi.Output.secret(value) for name, value in {**plan.env, **node.env}.items()},
        "rack": node.rack,
        "tags": host.tags,
        "authorized_keys": list(plan.authorized_keys),
        "status": "reachable",
        **({"init": init_inputs} if init_inputs else {}),
        **host.registered,
    }


def register(
    backend: SshBackend, request: PlanRequest, plan: SshPlan
) -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
    """See `Backend.register`."""
    return SshFleet(plan).state, None
