"""A Crusoe fleet as Pulumi resources: the plan, one to one. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pulumi

from orch.components.cloud.plan import Bastion, Node
from orch.components.crusoe.explain import PACKAGE
from orch.components.crusoe.plan import CIDR, OS_DISK_GIB, CrusoePlan
from orch.components.crusoe.startup import startup_script
from orch.components.resources import ServedFleet, ServedResource, untracked

_ALL = ["tcp", "udp", "icmp"]


class CrusoeFleet(ServedFleet[CrusoePlan]):
    backend: ClassVar[str] = "crusoe"
    package: ClassVar[str] = PACKAGE

    def make(self) -> dict[str, ServedResource]:
        plan = self._plan
        subnet, network = self._network()
        partition = self._partition()
        machines = {
            node.name: self._node(group, node, subnet, partition)
            for group in plan.node_groups
            for node in group.nodes
        }
        if plan.bastion is not None:
            machines[self.bastion_name] = self._bastion(plan.bastion, subnet, network)
        return machines

    def _resource(
        self,
        kind: str,
        name: str,
        spec: dict[str, Any],
        *,
        computed: Sequence[str] = (),
        ignored: Sequence[str] = (),
        **more: Any,
    ) -> ServedResource:
        """`name` is that of the engine; that of Crusoe begins with it."""
        opts = pulumi.ResourceOptions.merge(
            self._opts, pulumi.ResourceOptions(ignore_changes=list(ignored) or None)
        )
        props = {"name": name, "mark": self._mark, "spec": spec, **more}
        return ServedResource(f"{PACKAGE}:index:{kind}", name, props, opts, computed=computed)

    # Network

    def _network(self) -> tuple[pulumi.Input[str], pulumi.Input[str]]:
        """The subnet of the machines, and the network that it is in."""
        plan = self._plan
        if plan.network.subnet is not None:
            return plan.network.subnet, plan.network.network or ""
        network = self._resource("VpcNetwork", f"{plan.fleet}-network", {"cidr": CIDR}).id
        spec = {"cidr": CIDR, "location": plan.region, "vpc_network_id": network}
        subnet = self._resource("VpcSubnet", f"{plan.fleet}-subnet", spec).id
        within = {"resource_id": network}
        self._rule("within", network, _ALL, [within], [within])
        self._rule("out", network, _ALL, [within], [{"cidr": "0.0.0.0/0"}], direction="egress")
        if plan.network.ssh_from:
            sources = [{"cidr": each} for each in plan.network.ssh_from]
            self._rule("ssh", network, ["tcp"], sources, [within], ports=["22"])
        return subnet, network

    def _rule(
        self,
        name: str,
        network: pulumi.Input[str],
        protocols: Sequence[str],
        sources: Sequence[Mapping[str, Any]],
        destinations: Sequence[Mapping[str, Any]],
        *,
        direction: str = "ingress",
        ports: Sequence[str] = ("1-65535",),
    ) -> None:
        spec: dict[str, Any] = {
            "action": "allow",
            "direction": direction,
            "protocols": [*protocols],
            "sources": [*sources],
            "source_ports": ["1-65535"],
            "destinations": [*destinations],
            "destination_ports": [*ports],
            "vpc_network_id": network,
        }
        self._resource("FirewallRule", f"{self._plan.fleet}-{name}", spec)

    def _partition(self) -> pulumi.Output[str] | None:
        plan = self._plan
        if plan.ib_network is None:
            return None
        spec = {"ib_network_id": plan.ib_network}
        return self._resource("IbPartition", f"{plan.fleet}-partition", spec).id

    # Machines

    def _node(
        self,
        plan: CrusoePlan,
        node: Node,
        subnet: pulumi.Input[str],
        partition: pulumi.Output[str] | None,
    ) -> ServedResource:
        """One machine. A running one keeps its startup script until `layout` changes, the fingerprint of what
        only a new machine can have."""
        spec = self._machine(plan.instance_type, plan.image, subnet)
        if partition is not None:
            spec["host_channel_adapters"] = [{"ib_partition_id": partition}]
        if plan.reservation is not None:
            spec["reservation_specification"] = {"id": plan.reservation}
        if plan.disk_gib is not None:
            size = {"size": f"{plan.disk_gib}GiB", "type": "persistent-ssd", "location": plan.region}
            disk = self._resource("Disk", f"{node.name}-disk", size).id
            spec["disks"] = [{"disk_id": disk, "attachment_type": "data", "mode": "read-write"}]
        return self._instance(
            node.name,
            spec,
            plan.cloud_init,
            ignored=("script", "public_key") if plan.layout_unchanged else (),
            layout=plan.layout,
        )

    def _bastion(
        self, bastion: Bastion, subnet: pulumi.Input[str], network: pulumi.Input[str]
    ) -> ServedResource:
        """One that runs stays as it is: it may be the only way in. Its rule lets in to it alone."""
        spec = self._machine(bastion.instance_type, bastion.image, subnet)
        machine = self._instance(
            self.bastion_name, spec, self._plan.bastion_init, ignored=("script", "public_key")
        )
        sources = [{"cidr": each} for each in bastion.cidrs]
        self._rule("bastion-ssh", network, ["tcp"], sources, [{"resource_id": machine.id}], ports=["22"])
        return machine

    def _machine(self, kind: str, image: str, subnet: pulumi.Input[str]) -> dict[str, Any]:
        """The watch agent, which Crusoe installs otherwise, is a container of its own on each node."""
        nic: dict[str, Any] = {"subnet": subnet, "ips": [{"public_ipv4": {"type": "dynamic"}}]}
        return {
            "type": kind,
            "location": self._plan.region,
            "image": image,
            "network_interfaces": [nic],
            "install_crusoe_watch_agent": False,
        }

    def _instance(
        self, name: str, spec: dict[str, Any], config: str, *, ignored: Sequence[str], **more: Any
    ) -> ServedResource:
        return self._resource(
            "Instance",
            name,
            spec,
            computed=("operation",),
            ignored=ignored,
            script=pulumi.Output.secret(self.user_data(config, name).apply(startup_script)),
            public_key=self._keys.client_public_key,
            status="running",
            waits=not self._plan.whole,
            **more,
        )

    def awaited(self, machine: ServedResource) -> Any:
        """One that was waited for needs no operation."""
        return {
            "id": untracked(machine.id),
            "operation": untracked(machine.operation) if self._plan.whole else "",
        }

    def disk_gb(self, group: CrusoePlan) -> int:
        return group.disk_gib or OS_DISK_GIB


register = CrusoeFleet.register
