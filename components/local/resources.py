"""A local fleet as Pulumi resources: the plan, one to one. Decides nothing."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

import pulumi

from orch.components.cloud.machines.host_keys import host_key_seed, public_host_key
from orch.components.local.plan import LocalNodePlan, LocalPlan
from orch.components.resources import Keys
from orch.spec.state import SCHEMA

if TYPE_CHECKING:
    from orch.components.local.backend import LocalBackend
    from orch.components.request import PlanRequest

UNREACHABLE_GRACE_S = 10.0
"""A container that is gone answers at once; one that restarts is back in a second (measured)."""


class LocalNetwork(pulumi.CustomResource):
    """`orch:local:Network`: a bridge network of this machine's Docker."""

    subnet: pulumi.Output[str]

    def __init__(self, name: str, *, network: str, stack: str, opts: pulumi.ResourceOptions) -> None:
        props = {"name": network, "stack": stack, "subnet": None, "gateway": None}
        super().__init__("orch:local:Network", name, props, opts)


class LocalNode(pulumi.CustomResource):
    """`orch:local:Node`: a container that is a cluster node."""

    ssh_address: pulumi.Output[str]
    ssh_port: pulumi.Output[int]

    def __init__(self, name: str, props: dict[str, Any], *, opts: pulumi.ResourceOptions) -> None:
        super().__init__("orch:local:Node", name, {**props, "ssh_address": None, "ssh_port": None}, opts)


class LocalFleet(pulumi.ComponentResource):
    """The whole fleet. `state` is its FleetState, `identity` the client's private key (secret)."""

    state: pulumi.Output[dict[str, Any]]
    identity: pulumi.Output[str]

    def __init__(self, plan: LocalPlan) -> None:
        super().__init__("orch:fleet:Local", plan.fleet, None, pulumi.ResourceOptions(protect=plan.protect))
        opts = pulumi.ResourceOptions(parent=self)
        keys = Keys(f"{plan.fleet}-keys", opts=opts)
        network = LocalNetwork(
            f"{plan.fleet}-network", network=plan.network, stack=stack_label(plan), opts=opts
        )
        nodes = [self._node(plan, node, keys, network) for node in plan.nodes]
        self.identity = keys.client_private_key
        self.state = pulumi.Output.from_input(
            {
                "schema_version": SCHEMA,
                "name": plan.fleet,
                "stack": pulumi.get_stack(),
                "backend": "local",
                "placement": plan.placement,
                "unreachable_grace_s": UNREACHABLE_GRACE_S,
                "image": plan.job_image,
                "env": plan.env,
                **({"mounts": [mount.model_dump() for mount in plan.mounts]} if plan.mounts else {}),
                # What says of its nodes that a job gets no devices there.
                **({"simulated": True} if plan.gpus.count else {}),
                "nodes": nodes,
            }
        )
        self.register_outputs({})

    def _node(
        self, plan: LocalPlan, node: LocalNodePlan, keys: Keys, network: LocalNetwork
    ) -> dict[str, Any]:
        address = network.subnet.apply(lambda subnet, offset=node.address_offset: nth_address(subnet, offset))
        init_inputs = {step.key: pulumi.Output.secret(step.record) for step in plan.init}
        container = LocalNode(
            node.name,
            {
                "name": node.container,
                "hostname": node.name,
                "stack": stack_label(plan),
                "network": network.id,
                "ip": address,
                "image": plan.image,
                "cpus": node.cpus,
                "memory_mib": node.memory_mib,
                "authorized_key": keys.client_public_key.apply(
                    lambda own: (
                        "\n".join((own.strip(), *plan.authorized_keys)) if plan.authorized_keys else own
                    )
                ),
                "host_key_seed": pulumi.Output.secret(
                    keys.host_seed.apply(lambda seed: host_key_seed(seed, node.name))
                ),
                "status": "running",
                # Each a secret of its own: a plan tells which of them changes.
                **({"init": init_inputs} if init_inputs else {}),
                **({"placeholders": list(plan.placeholders)} if plan.placeholders else {}),
            },
            opts=pulumi.ResourceOptions(parent=self),
        )
        return {
            "index": node.index,
            "name": node.name,
            "address": container.ssh_address,
            "port": container.ssh_port,
            "user": "root",
            "host_key": pulumi.Output.unsecret(
                keys.host_seed.apply(lambda seed: public_host_key(seed, node.name))
            ),
            "internal_ip": address,
            "cpus": node.cpus,
            "memory_mib": node.memory_mib,
            "arch": plan.arch,
            "blocks": plan.blocks,
            **({"scratch": plan.scratch.model_dump()} if plan.scratch else {}),
            **({"gpus": plan.gpus.model_dump()} if plan.gpus.count else {}),
        }


def nth_address(subnet: str, offset: int) -> str:
    """The address `offset` places above the network's own."""
    return str(ipaddress.ip_network(subnet)[offset])


def stack_label(plan: LocalPlan) -> str:
    """What marks this stack's containers and network among all of the machine."""
    return f"{pulumi.get_project()}/{pulumi.get_stack()}/{plan.scope}"


def register(
    backend: LocalBackend, request: PlanRequest, plan: LocalPlan
) -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
    """See `Backend.register`."""
    component = LocalFleet(plan)
    return component.state, component.identity
