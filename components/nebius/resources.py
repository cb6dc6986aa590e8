"""A Nebius fleet as Pulumi resources: the plan, one to one. Decides nothing.

A constant number of resources, one per node, and one that waits for all machines together. Those of a fleet
that keeps what it got are waited for one by one, when they are made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pulumi

from orch.components.cloud import fleet_state as cloud_state
from orch.components.cloud.cloudinit import filled, wrapped
from orch.components.cloud.host_keys import HostKey, private_host_key, public_host_key
from orch.components.cloud.plan import Bastion, Node
from orch.components.keys import Keys
from orch.components.nebius.account.orphans import MARK
from orch.components.nebius.explain import GANG, PACKAGE
from orch.components.nebius.plan import DISK_TYPE, NebiusPlan, rules_of

if TYPE_CHECKING:
    from orch.components.nebius.backend import NebiusBackend
    from orch.components.request import PlanRequest

# A machine that is stopped starts again in minutes, if at all.
UNREACHABLE_GRACE_S = 300.0

# Source: skypilot provision/nebius/utils.py, the rules of its security group.
_ANY_PROTOCOL = "ANY"
_OUT: dict[str, Any] = {"protocol": _ANY_PROTOCOL, "egress": {"destination_cidrs": ["0.0.0.0/0"]}}

BASTION_GB = 20
"""The root disk of a bastion."""


class NebiusResource(pulumi.CustomResource):
    """A resource of Nebius, or what waits for machines: `machines` by node."""

    machines: pulumi.Output[dict[str, Any]]

    def __init__(self, kind: str, name: str, props: dict[str, Any], opts: pulumi.ResourceOptions) -> None:
        outputs = {"machines": None} if kind == GANG else {}
        super().__init__(kind, name, {**props, **outputs}, opts)


class NebiusFleet(pulumi.ComponentResource):
    """The whole fleet. `state` is its FleetState, `identity` the client's private key (secret)."""

    state: pulumi.Output[dict[str, Any]]
    identity: pulumi.Output[str]

    def __init__(self, plan: NebiusPlan, key: Mapping[str, str]) -> None:
        super().__init__("orch:fleet:Nebius", plan.fleet, None, pulumi.ResourceOptions(protect=plan.protect))
        self._plan = plan
        self._stack = f"{pulumi.get_project()}/{pulumi.get_stack()}/{plan.scope}"
        self._keys = Keys(f"{plan.fleet}-keys", opts=pulumi.ResourceOptions(parent=self))
        secrets = {name: pulumi.Output.secret(value) for name, value in key.items()}
        # A project lies in one region, and nothing else here says which: rules over resources look for it.
        config = {**secrets, "region": plan.region}
        own = pulumi.ResourceOptions(parent=self)
        provider = pulumi.ProviderResource(PACKAGE, f"{plan.fleet}-nebius", config, own)
        # Names are unique in a project: what replaces something comes after it.
        self._opts = pulumi.ResourceOptions(parent=self, provider=provider, delete_before_replace=True)
        subnet, network = self._network()
        bastion_group = self._bastion_group(network)
        groups = self._node_security(network, bastion_group)
        cluster = self._cluster()
        machines = {
            node.name: self._node(group, node, subnet, groups, cluster)
            for group in plan.node_groups
            for node in group.nodes
        }
        if plan.bastion is not None and bastion_group is not None:
            machines[self._bastion_name] = self._bastion(plan.bastion, subnet, bastion_group)
        self.identity = self._keys.client_private_key
        self.state = self._state(self._gang(machines))
        # Recorded at once, unlike the stack's outputs: an interrupted `up` still records where it was.
        self.register_outputs({"pins": dict(plan.pins)})

    def _make(
        self,
        kind: str,
        name: str,
        resource: str,
        spec: Any,
        *,
        parent: pulumi.Input[str] | None = None,
        opts: pulumi.ResourceOptions | None = None,
        **more: Any,
    ) -> NebiusResource:
        """`name` is that of the engine, `resource` that of Nebius; `parent`: what it is in, the project if
        not given."""
        props = {
            "project": self._plan.project if parent is None else parent,
            "name": resource,
            "labels": {**self._plan.labels, MARK: self._stack},
            "spec": spec,
            **more,
        }
        return NebiusResource(f"{PACKAGE}:index:{kind}", name, props, opts or self._opts)

    # Network

    def _network(self) -> tuple[pulumi.Input[str], pulumi.Input[str]]:
        """The subnet of the nodes, and the network that it is in."""
        plan, network = self._plan, self._plan.network
        if network.subnet is not None:
            return network.subnet, network.network or ""
        network_id = self._make("Network", f"{plan.fleet}-network", plan.base, {}).id
        subnet = self._make("Subnet", f"{plan.fleet}-subnet", plan.base, {"network_id": network_id})
        return subnet.id, network_id

    def _node_security(
        self, network: pulumi.Input[str], bastion: pulumi.Output[str] | None
    ) -> list[pulumi.Input[str]]:
        """The security groups of the nodes."""
        plan = self._plan
        if plan.network.groups is not None:
            return list(plan.network.groups)
        group = self._make("SecurityGroup", f"{plan.fleet}-group", plan.base, {"network_id": network}).id
        rules = _ssh_rules(plan.network.ssh_rules)
        if bastion is not None:
            ssh = {"source_security_group_id": bastion, "destination_ports": [22]}
            rules["bastion"] = {"protocol": "TCP", "ingress": ssh}
        within = {"protocol": _ANY_PROTOCOL, "ingress": {"source_security_group_id": group}}
        self._rules(group, {"within": within, **rules, "out": _OUT})
        return [group]

    def _bastion_group(self, network: pulumi.Input[str]) -> pulumi.Output[str] | None:
        plan = self._plan
        if plan.bastion is None:
            return None
        name = f"{plan.base}-bastion"
        group = self._make("SecurityGroup", f"{plan.fleet}-bastion-group", name, {"network_id": network}).id
        rules = {**_ssh_rules(rules_of(plan.bastion.cidrs)), "out": _OUT}
        self._rules(group, {f"bastion-{key}": rule for key, rule in rules.items()})
        return group

    def _rules(self, group: pulumi.Input[str], rules: Mapping[str, dict[str, Any]]) -> None:
        plan = self._plan
        for name, rule in rules.items():
            spec = {"access": "ALLOW", **rule}
            self._make("SecurityRule", f"{plan.fleet}-{name}", f"{plan.base}-{name}", spec, parent=group)

    def _cluster(self) -> pulumi.Output[str] | None:
        plan = self._plan
        if plan.infiniband is None:
            return None
        spec = {"infiniband_fabric": plan.infiniband}
        return self._make("GpuCluster", f"{plan.fleet}-cluster", plan.base, spec).id

    # Nodes

    def _node(
        self,
        plan: NebiusPlan,
        node: Node,
        subnet: pulumi.Input[str],
        groups: Sequence[pulumi.Input[str]],
        cluster: pulumi.Output[str] | None,
    ) -> NebiusResource:
        """One machine. A running one keeps its user data until `layout` changes, the fingerprint of what only
        a new machine can have."""
        name = f"{plan.base}-{node.index}"
        disk = (plan.disk.size_gb, plan.image)
        nic = _interface(subnet, groups, public=plan.public)
        spec = _machine(name, node.name, plan.instance_type, nic, disk)
        if cluster is not None:
            spec["gpu_cluster"] = {"id": cluster}
        if plan.spot:
            spec |= {"preemptible": {"on_preemption": "STOP"}, "recovery_policy": "FAIL"}
            spec["follows_spot_price"] = {}
        if plan.reservation is not None:
            spec["reservation_policy"] = {"policy": "STRICT", "reservation_ids": [plan.reservation]}
        if plan.ends_itself:
            spec["recovery_policy"] = "FAIL"  # else Nebius starts it again
        ignored = ["user_data", "spec.recovery_policy"] if plan.layout_unchanged else None
        opts = pulumi.ResourceOptions.merge(self._opts, pulumi.ResourceOptions(ignore_changes=ignored))
        return self._make(
            "Instance",
            node.name,
            name,
            spec,
            opts=opts,
            user_data=self._user_data(plan.cloud_init, node.name),
            layout=plan.layout,
            status="running",
            waits=not plan.whole,
        )

    @property
    def _bastion_name(self) -> str:
        return f"{self._plan.fleet}-bastion"

    def _bastion(
        self, bastion: Bastion, subnet: pulumi.Input[str], group: pulumi.Input[str]
    ) -> NebiusResource:
        """One that runs stays as it is: it may be the only way in."""
        plan, name = self._plan, f"{self._plan.base}-bastion"
        nic = _interface(subnet, [group, *(plan.network.groups or ())], public=True)
        disk = (BASTION_GB, bastion.image)
        spec = _machine(name, self._bastion_name, bastion.instance_type, nic, disk)
        if plan.lifetime is not None:
            spec["recovery_policy"] = "FAIL"
        return self._make(
            "Instance",
            self._bastion_name,
            name,
            spec,
            opts=pulumi.ResourceOptions.merge(
                self._opts, pulumi.ResourceOptions(ignore_changes=["user_data", "spec.recovery_policy"])
            ),
            user_data=self._user_data(plan.bastion_init, self._bastion_name),
            status="running",
            waits=not plan.whole,
        )

    def _user_data(self, text: str, machine: str) -> pulumi.Output[str]:
        """The user data of one machine, with the key of its own host alone."""

        def fill(keys: Sequence[str]) -> str:
            seed, authorized = keys
            return wrapped(
                filled(
                    text,
                    name=machine,
                    host_key=private_host_key(seed, machine),
                    host_key_public=public_host_key(seed, machine),
                    authorized_key=authorized,
                )
            )

        both = pulumi.Output.all(self._keys.host_seed, self._keys.client_public_key)
        return pulumi.Output.secret(both.apply(fill))

    def _gang(self, machines: Mapping[str, NebiusResource]) -> pulumi.Output[dict[str, Any]]:
        plan = self._plan
        ids = {name: _value_of(machine.id) for name, machine in machines.items()}
        gang = {"name": plan.base, "instances": ids}
        return NebiusResource(GANG, f"{plan.fleet}-gang", gang, self._opts).machines

    # The FleetState, in one output: an output for each value of a thousand nodes is slow.

    def _state(self, gang: pulumi.Output[dict[str, Any]]) -> pulumi.Output[dict[str, Any]]:
        plan, stack = self._plan, pulumi.get_stack()
        groups = {node.name: group for group in plan.node_groups for node in group.nodes}

        def assemble(values: Sequence[Any]) -> dict[str, Any]:
            seed, machines = values[0], values[1] or {}
            jumps = cloud_state.given_jumps(plan.jumps)
            if plan.bastion is not None and self._bastion_name in machines:
                address = machines[self._bastion_name]["public"]
                jumps = [cloud_state.bastion_jump(plan, seed, address, None)]
            nodes = [
                self._node_state(groups[node.name], node, machines[node.name], seed, jumps)
                for node in plan.all_nodes
                if node.name in machines
            ]
            return cloud_state.fleet_state(plan, stack, nodes, backend="nebius", grace_s=UNREACHABLE_GRACE_S)

        values = pulumi.Output.all(self._keys.host_seed, gang)
        return pulumi.Output.unsecret(values.apply(assemble))

    def _node_state(
        self,
        group: NebiusPlan,
        node: Node,
        machine: Mapping[str, Any],
        seed: str,
        jumps: Sequence[dict[str, Any]],
    ) -> dict[str, Any]:
        return cloud_state.node_state(
            group,
            node,
            key=HostKey(public_host_key(seed, node.name), machine["id"]),
            address=machine["public" if group.access == "direct" else "address"],
            internal=machine["address"],
            jumps=jumps,
            proxy_command=None,
            topology=machine["topology"] if group.rank_by_topology else (),
            disk_gb=group.disk.size_gb,
            reservation=group.reservation,
        )


def _value_of(output: pulumi.Output[str]) -> pulumi.Output[str]:
    """The same value, through which nothing depends on its resource: a machine that ended itself is taken
    away alone."""
    value = cast("Awaitable[str]", output.future(with_unknowns=True))
    return pulumi.Output(set(), value, output.is_known(), output.is_secret())


def _ssh_rules(networks: Sequence[Sequence[str]]) -> dict[str, dict[str, Any]]:
    """A rule for each few of the networks that may reach SSH."""
    return {
        f"ssh-{number}" if number else "ssh": {
            "protocol": "TCP",
            "ingress": {"source_cidrs": [*cidrs], "destination_ports": [22]},
        }
        for number, cidrs in enumerate(networks)
    }


def _interface(
    subnet: pulumi.Input[str], groups: Sequence[pulumi.Input[str]], *, public: bool
) -> dict[str, Any]:
    nic: dict[str, Any] = {
        "name": "eth0",
        "subnet_id": subnet,
        "ip_address": {},
        "security_groups": [{"id": each} for each in groups],
    }
    return {**nic, "public_ip_address": {}} if public else nic


def _machine(
    name: str, hostname: str, instance_type: str, nic: dict[str, Any], disk: tuple[int, str]
) -> dict[str, Any]:
    """The spec of a machine. `disk`: the size of its root disk in GiB, and the image."""
    platform, _, preset = instance_type.rpartition("_")
    size, image = disk
    boot = {"type": DISK_TYPE, "size_gibibytes": str(size), "source_image_id": image}
    return {
        "resources": {"platform": platform, "preset": preset},
        "hostname": hostname,
        "network_interfaces": [nic],
        "boot_disk": {
            "attach_mode": "READ_WRITE",
            "managed_disk": {"name": f"{name}-boot", "spec": boot},
        },
    }


def register(
    backend: NebiusBackend, request: PlanRequest, plan: NebiusPlan
) -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
    """See `Backend.register`."""
    component = NebiusFleet(plan, backend.session(request).key)
    return component.state, component.identity
