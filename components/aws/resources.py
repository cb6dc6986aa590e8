"""An AWS fleet as Pulumi resources: the plan, one to one. Decides nothing.

The number of resources is a constant and one per node, two where each node has an Elastic IP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pulumi
import pulumi_aws as aws

from orch.components.aws.account import gather_facts
from orch.components.aws.fleet_state import FleetOutputs, fleet_state
from orch.components.aws.network_resources import NetworkResources, Text
from orch.components.aws.plan import AwsPlan, Capacity
from orch.components.cloud import polling
from orch.components.cloud.machines.host_keys import HostKey, known_keys
from orch.components.cloud.plan import Node
from orch.components.cloud.polling import in_background
from orch.components.resources import new_host_keys
from orch.spec.models.backends.aws import AwsSettings

if TYPE_CHECKING:
    from orch.components.aws.backend import AwsBackend
    from orch.components.request import PlanRequest

Topology = Callable[[Sequence[str]], Mapping[str, tuple[str, ...]]]
HostKeys = Callable[[Sequence[str]], Mapping[str, str]]


class AwsFleet(pulumi.ComponentResource):
    """The whole fleet. `state` is its FleetState, `identity` the client's private key (secret).

    Both readers run in threads of their own. `read_host_keys` returns the host keys that instances show on
    their consoles, `read_topology` the network nodes above them; each by the instance's id.
    """

    state: pulumi.Output[dict[str, Any]]
    identity: Text

    def __init__(
        self,
        plan: AwsPlan,
        settings: AwsSettings,
        read_host_keys: HostKeys,
        read_topology: Topology | None = None,
    ) -> None:
        super().__init__("orch:fleet:Aws", plan.fleet, None, pulumi.ResourceOptions(protect=plan.protect))
        self._plan = plan
        self._resources = NetworkResources(plan, settings, self)
        rows = [row for group in plan.node_groups for row in self._node_group(group)]
        rows.sort(key=lambda row: row[0].index)
        machines, addresses = [machine for _, machine, _ in rows], [address for *_, address in rows]
        self.identity = self._resources.keys.client_private_key
        self.state = self._state(machines, addresses, settings, read_host_keys, read_topology)
        # Recorded at once, unlike the stack's outputs: an interrupted `up` still records where it was.
        self.register_outputs({"pins": dict(plan.pins)})

    # Capacity and nodes

    def _node_group(self, plan: AwsPlan) -> list[tuple[Node, aws.ec2.Instance, aws.ec2.Eip | None]]:
        """The nodes of one group, each with its Elastic IP, and what they are launched from."""
        group = self._placement_group()
        capacity = self._capacity(plan, group)
        dependencies = [*self._resources.ready_with_file_systems, *([capacity] if capacity else [])]
        template = self._template(plan, group, capacity, dependencies)
        launch_template = {"id": template.id, "version": template.latest_version.apply(str)}
        machines = [(node, self._node(plan, node, launch_template)) for node in plan.nodes]
        return [(node, machine, self._address(plan, node, machine)) for node, machine in machines]

    def _placement_group(self) -> aws.ec2.PlacementGroup | None:
        group = self._plan.group
        if group is None or not group.new:
            return None
        name = f"{self._plan.fleet}-group"
        return aws.ec2.PlacementGroup(
            name,
            name=group.name,
            strategy="cluster",
            tags=self._resources.tags("aws:ec2/placementGroup:PlacementGroup", name),
            opts=self._resources.opts,
        )

    def _capacity(
        self, plan: AwsPlan, group: aws.ec2.PlacementGroup | None
    ) -> aws.ec2.CapacityReservation | None:
        if plan.capacity.reserved_nodes is None:
            return None
        name = f"{plan.fleet}-capacity{plan.suffix}"
        return aws.ec2.CapacityReservation(
            name,
            instance_type=plan.instance_type,
            instance_platform="Linux/UNIX",
            availability_zone=plan.zone_name,
            instance_count=plan.capacity.reserved_nodes,
            instance_match_criteria="targeted",
            end_date_type="limited" if plan.lifetime else "unlimited",
            end_date=plan.lifetime.stamp if plan.lifetime else None,
            placement_group_arn=group.arn if group is not None else None,
            tags=self._resources.tags("aws:ec2/capacityReservation:CapacityReservation", name),
            opts=self._resources.opts,
        )

    def _template(
        self,
        plan: AwsPlan,
        group: aws.ec2.PlacementGroup | None,
        capacity: aws.ec2.CapacityReservation | None,
        dependencies: Sequence[pulumi.Resource],
    ) -> aws.ec2.LaunchTemplate:
        """What all nodes of a group have in common.

        The template depends on the `dependencies` of the nodes, in their place: the engine's state repeats
        dependencies at each resource.
        """
        name = f"{plan.fleet}-template{plan.suffix}"
        target: pulumi.Input[str] | None = capacity.id if capacity is not None else plan.capacity.id
        reservation: Any = (
            {"capacity_reservation_target": {"capacity_reservation_id": target}} if target else None
        )
        group_name: pulumi.Input[str] | None = plan.group.name if plan.group is not None else None
        disk: Any = {
            "volume_size": plan.disk.size_gb,
            "volume_type": "gp3",
            "delete_on_termination": "true",
            "encrypted": "true",
            **({"kms_key_id": plan.disk.kms_key} if plan.disk.kms_key else {}),
        }
        metadata: Any = {
            "http_endpoint": "enabled",
            "http_tokens": "required",
            "http_put_response_hop_limit": 1,
            **({"instance_metadata_tags": "enabled"} if plan.tags_readable else {}),
        }
        tags = self._resources.tags("aws:ec2/launchTemplate:LaunchTemplate", name)
        profile = plan.profile
        if plan.ssm == "nodes" and self._resources.profile is not None:
            profile = self._resources.profile.name
        return aws.ec2.LaunchTemplate(
            name,
            name=f"{plan.base}{plan.suffix}",
            network_interfaces=[self._interface(plan, index) for index in range(len(plan.interfaces))],
            block_device_mappings=[{"device_name": plan.disk.device, "ebs": disk}],
            metadata_options=metadata,
            user_data=self._resources.common_data(plan),
            placement={"group_name": group.name if group is not None else group_name} if group_name else None,
            capacity_reservation_specification=reservation,
            instance_market_options=self._market(plan.capacity),
            instance_initiated_shutdown_behavior="terminate" if plan.idle or plan.lifetime else None,
            iam_instance_profile={"name": profile} if profile is not None else None,
            tag_specifications=[
                {"resource_type": kind, "tags": {**plan.tags, "orch:stack": tags["orch:stack"]}}
                for kind in ("volume", "network-interface")
            ],
            tags=tags,
            opts=self._resources.after(dependencies),
        )

    def _interface(self, plan: AwsPlan, index: int) -> Any:
        interface = plan.interfaces[index]
        public = {}
        if index == 0:
            at_launch = plan.addresses.kind == "launch"
            public = {"associate_public_ip_address": "true" if at_launch else "false"}
        return {
            "network_card_index": interface.card,
            "device_index": interface.device,
            "interface_type": interface.kind,
            "subnet_id": self._resources.subnets[plan.number],
            "security_groups": self._resources.groups,
            "delete_on_termination": "true",
            **public,
        }

    def _market(self, capacity: Capacity) -> Any:
        if capacity.market == "block":
            return {"market_type": "capacity-block"}
        if capacity.market != "spot":
            return None
        spot = {"spot_instance_type": "one-time", "instance_interruption_behavior": "terminate"}
        if capacity.max_price is not None:
            spot["max_price"] = capacity.max_price
        return {"market_type": "spot", "spot_options": spot}

    def _node(self, plan: AwsPlan, node: Node, template: Any) -> aws.ec2.Instance:
        """One instance.

        A newer template, with newer user data, applies to new nodes. A running node stays as it is until
        `orch:layout` changes, the fingerprint of what only a new instance can have. A node that an earlier
        version made has user data of its own, and keeps it.
        """
        return aws.ec2.Instance(
            node.name,
            ami=plan.image,
            instance_type=plan.instance_type,
            launch_template=template,
            user_data_replace_on_change=True,
            tags=self._resources.tags(
                "aws:ec2/instance:Instance", node.name, **{"orch:layout": plan.layout}, **self._resources.ends
            ),
            opts=self._resources.with_options(
                ignore_changes=["userDataBase64", "launchTemplate"] if plan.layout_unchanged else None,
                replace_on_changes=['tags["orch:layout"]'],
                delete_before_replace=node.name not in plan.moved,
                # The provider returns the user data of the template.
                additional_secret_outputs=["userData"] if plan.confidential else None,
            ),
        )

    def _address(self, plan: AwsPlan, node: Node, machine: aws.ec2.Instance) -> aws.ec2.Eip | None:
        if plan.addresses.kind != "elastic":
            return None
        name = f"{node.name}-address"
        return aws.ec2.Eip(
            name,
            domain="vpc",
            network_interface=machine.primary_network_interface_id,
            tags=self._resources.tags("aws:ec2/eip:Eip", name),
            opts=self._resources.opts,
        )

    # The FleetState, in one output: an output for each value of a thousand nodes is slow.

    def _state(
        self,
        machines: Sequence[aws.ec2.Instance],
        addresses: Sequence[aws.ec2.Eip | None],
        settings: AwsSettings,
        read_host_keys: HostKeys,
        read_topology: Topology | None,
    ) -> pulumi.Output[dict[str, Any]]:
        plan, bastion, stack = self._plan, self._resources.bastion, pulumi.get_stack()

        async def assemble(values: Sequence[Any]) -> dict[str, Any]:
            seed, ids, have_user_data, internal, public, jump = values
            names = [node.name for node in plan.all_nodes]
            # User data of its own has a node that an earlier version made, with a host key of the seed.
            seeded = [name if own else None for name, own in zip(names, have_user_data, strict=True)]
            keys = known_keys(plan.host_keys, seed, zip(names, ids, seeded, strict=True))
            new = [each for each in ids if each not in keys]
            shown = await new_host_keys(new, read_host_keys)
            keys |= {each: HostKey(public_key, each) for each, public_key in shown.items()}
            topology: Mapping[str, Sequence[str]] = {}
            if read_topology is not None and plan.rank_by_topology and ids:
                topology = await in_background(partial(read_topology, ids))
            outputs = FleetOutputs(
                seed=seed,
                ids=ids,
                host_keys=[keys.get(each) for each in ids],
                internal=internal,
                public=public,
                topology=[topology.get(each, ()) for each in ids],
                bastion=(jump[0], jump[1]) if jump else None,
            )
            return fleet_state(plan, settings, stack, outputs)

        public: list[pulumi.Input[str]] = []
        if plan.access.way == "direct":
            pairs = zip(machines, addresses, strict=True)
            public = [each.public_ip if address is None else address.public_ip for each, address in pairs]
        jump: list[pulumi.Input[str]] = []
        if bastion is not None and plan.bastion is not None:
            jump = [bastion.id, bastion.public_ip if plan.bastion.public else bastion.private_ip]
        values = pulumi.Output.all(
            self._resources.keys.host_seed,
            [each.id for each in machines],
            [each.user_data_base64.apply(bool) for each in machines],
            [each.private_ip for each in machines],
            public,
            jump,
        )
        return pulumi.Output.unsecret(values.apply(assemble))


def register(
    backend: AwsBackend, request: PlanRequest, plan: AwsPlan
) -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
    """See `Backend.register`."""
    session, settings = backend.session(request), backend.settings_of(request)
    endpoint, whole = settings.endpoint_url, request.fleet.gang == "all-or-nothing"

    def read_host_keys(ids: Sequence[str]) -> Mapping[str, str]:
        def read(instances: Sequence[str]) -> dict[str, str]:
            return gather_facts.host_keys(session, plan.region, instances, endpoint)

        where = "see `aws ec2 get-console-output --latest --instance-id …`"
        return polling.wait_for_host_keys(read, ids, whole=whole, where=where)

    def read_topology(ids: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        def read() -> Mapping[str, tuple[str, ...]]:
            return gather_facts.topology(session, plan.region, ids, endpoint)

        return polling.wait_for_topology(read, lambda topology: len(topology) == len(ids), {})

    component = AwsFleet(plan, settings, read_host_keys, read_topology)
    return component.state, component.identity
