"""A Nebius fleet as Pulumi resources: the plan, one to one. Decides nothing.

A constant number of resources, one per node, and one that waits for all machines together. Those of a fleet
that keeps what it got are waited for one by one, when they are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pulumi

from orch.components.cloud.machines.cloudinit import wrapped
from orch.components.cloud.plan import Bastion, Node
from orch.components.nebius.account.orphans import MARK
from orch.components.nebius.explain import PACKAGE
from orch.components.nebius.plan import DISK_TYPE, NebiusPlan, rules_of
from orch.components.resources import ServedFleet, ServedResource

# Source: skypilot provision/nebius/utils.py, the rules of its security group.
_ANY_PROTOCOL = "ANY"
_OUT: dict[str, Any] = {"protocol": _ANY_PROTOCOL, "egress": {"destination_cidrs": ["0.0.0.0/0"]}}

BASTION_GB = 20
"""The root disk of a bastion."""


class NebiusFleet(ServedFleet[NebiusPlan]):
    """Of a fleet that keeps what it got, machines are waited for one by one, when they are made."""

    backend: ClassVar[str] = "nebius"
    package: ClassVar[str] = PACKAGE

    def make(self) -> dict[str, ServedResource]:
        plan = self._plan
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
            machines[self.bastion_name] = self._bastion(plan.bastion, subnet, bastion_group)
        return machines

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
    ) -> ServedResource:
        """`name` is that of the engine, `resource` that of Nebius; `parent`: what it is in, the project if
        not given."""
        props = {
            "project": self._plan.project if parent is None else parent,
            "name": resource,
            "labels": {**self._plan.labels, MARK: self._mark},
            "spec": spec,
            **more,
        }
        return ServedResource(f"{PACKAGE}:index:{kind}", name, props, opts or self._opts)

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
    ) -> ServedResource:
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
            user_data=self._wrapped(plan.cloud_init, node.name),
            layout=plan.layout,
            status="running",
            waits=not plan.whole,
        )

    def _bastion(
        self, bastion: Bastion, subnet: pulumi.Input[str], group: pulumi.Input[str]
    ) -> ServedResource:
        """One that runs stays as it is: it may be the only way in."""
        plan, name = self._plan, f"{self._plan.base}-bastion"
        nic = _interface(subnet, [group, *(plan.network.groups or ())], public=True)
        disk = (BASTION_GB, bastion.image)
        spec = _machine(name, self.bastion_name, bastion.instance_type, nic, disk)
        if plan.lifetime is not None:
            spec["recovery_policy"] = "FAIL"
        return self._make(
            "Instance",
            self.bastion_name,
            name,
            spec,
            opts=pulumi.ResourceOptions.merge(
                self._opts, pulumi.ResourceOptions(ignore_changes=["user_data", "spec.recovery_policy"])
            ),
            user_data=self._wrapped(plan.bastion_init, self.bastion_name),
            status="running",
            waits=not plan.whole,
        )

    def _wrapped(self, text: str, machine: str) -> pulumi.Output[str]:
        return pulumi.Output.secret(self.user_data(text, machine).apply(wrapped))

    def disk_gb(self, group: NebiusPlan) -> int:
        return group.disk.size_gb


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


register = NebiusFleet.register
