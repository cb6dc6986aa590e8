"""An AWS fleet as Pulumi resources: the plan, one to one. Decides nothing.

Beside a constant number of resources there is one per node, and an Elastic IP each where nodes have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pulumi
import pulumi_aws as aws

from orch.components.aws.account import gather_facts
from orch.components.aws.network_resources import NetworkResources, Text
from orch.components.aws.plan import AwsPlan, Capacity
from orch.components.aws.tunnels import through_ssm
from orch.components.cloud import polling
from orch.components.cloud.fleet_state import bastion_jump, given_jumps, node_state
from orch.components.cloud.fleet_state import fleet_state as of_cloud
from orch.components.cloud.host_keys import HostKey, known_keys
from orch.components.cloud.plan import Node
from orch.components.cloud.polling import in_background
from orch.spec.models.backends.aws import AwsSettings

if TYPE_CHECKING:
    from orch.components.aws.backend import AwsBackend
    from orch.components.request import PlanRequest

Topology = Callable[[Sequence[str]], Mapping[str, tuple[str, ...]]]
HostKeys = Callable[[Sequence[str]], Mapping[str, str]]


class AwsFleet(pulumi.ComponentResource):
    """The whole fleet. `state` is its FleetState, `identity` the client's private key (secret).

    `topology` is asked, in a thread of its own, for the network nodes above instances, `shown` for the host
    keys that they show on their consoles.
    """

    state: pulumi.Output[dict[str, Any]]
    identity: Text

    def __init__(
        self, plan: AwsPlan, settings: AwsSettings, shown: HostKeys, topology: Topology | None = None
    ) -> None:
        super().__init__("orch:fleet:Aws", plan.fleet, None, pulumi.ResourceOptions(protect=plan.protect))
        self._plan = plan
        self._ground = ground = NetworkResources(plan, settings, self)
        made = [pair for group in plan.node_groups for pair in self._node_group(group)]
        made.sort(key=lambda pair: pair[0].index)
        machines, addresses = [machine for _, machine, _ in made], [address for *_, address in made]
        self.identity = ground.keys.client_private_key
        self.state = self._state(machines, addresses, settings, shown, topology)
        # Recorded at once, unlike the stack's outputs: an `up` that is killed leaves word of where it was.
        self.register_outputs({"pins": dict(plan.pins)})

    # Capacity and nodes

    def _node_group(self, plan: AwsPlan) -> list[tuple[Node, aws.ec2.Instance, aws.ec2.Eip | None]]:
        """What the nodes of one group are taken from, and these, each with its Elastic IP."""
        group = self._placement_group()
        capacity = self._capacity(plan, group)
        waits = [*self._ground.ready, *([capacity] if capacity else [])]
        template = self._template(plan, group, capacity, waits)
        started = {"id": template.id, "version": template.latest_version.apply(str)}
        machines = [(node, self._node(plan, node, started)) for node in plan.nodes]
        return [(node, machine, self._address(plan, node, machine)) for node, machine in machines]

    def _placement_group(self) -> aws.ec2.PlacementGroup | None:
        group = self._plan.group
        if group is None or not group.made:
            return None
        name = f"{self._plan.fleet}-group"
        return aws.ec2.PlacementGroup(
            name,
            name=group.name,
            strategy="cluster",
            tags=self._ground.tags("aws:ec2/placementGroup:PlacementGroup", name),
            opts=self._ground.opts,
        )

    def _capacity(
        self, plan: AwsPlan, group: aws.ec2.PlacementGroup | None
    ) -> aws.ec2.CapacityReservation | None:
        if plan.capacity.made is None:
            return None
        name = f"{plan.fleet}-capacity{plan.suffix}"
        return aws.ec2.CapacityReservation(
            name,
            instance_type=plan.instance_type,
            instance_platform="Linux/UNIX",
            availability_zone=plan.zone_name,
            instance_count=plan.capacity.made,
            instance_match_criteria="targeted",
            end_date_type="unlimited",
            placement_group_arn=group.arn if group is not None else None,
            tags=self._ground.tags("aws:ec2/capacityReservation:CapacityReservation", name),
            opts=self._ground.opts,
        )

    def _template(
        self,
        plan: AwsPlan,
        group: aws.ec2.PlacementGroup | None,
        capacity: aws.ec2.CapacityReservation | None,
        waits: Sequence[pulumi.Resource],
    ) -> aws.ec2.LaunchTemplate:
        """What all nodes of a group have in common.

        It `waits` for what must be there before nodes are, in their place: a state repeats at each resource
        what that stands on.
        """
        name = f"{plan.fleet}-template{plan.suffix}"
        target: pulumi.Input[str] | None = capacity.id if capacity is not None else plan.capacity.id
        reserved: Any = (
            {"capacity_reservation_target": {"capacity_reservation_id": target}} if target else None
        )
        placed: pulumi.Input[str] | None = plan.group.name if plan.group is not None else None
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
            **({"instance_metadata_tags": "enabled"} if plan.shown else {}),
        }
        tags = self._ground.tags("aws:ec2/launchTemplate:LaunchTemplate", name)
        profile = plan.profile
        if plan.ssm == "nodes" and self._ground.profile is not None:
            profile = self._ground.profile.name
        return aws.ec2.LaunchTemplate(
            name,
            name=f"{plan.base}{plan.suffix}",
            network_interfaces=[self._interface(plan, place) for place in range(len(plan.interfaces))],
            block_device_mappings=[{"device_name": plan.disk.device, "ebs": disk}],
            metadata_options=metadata,
            user_data=self._ground.common_data(plan),
            placement={"group_name": group.name if group is not None else placed} if placed else None,
            capacity_reservation_specification=reserved,
            instance_market_options=self._market(plan.capacity),
            iam_instance_profile={"name": profile} if profile is not None else None,
            tag_specifications=[
                {"resource_type": kind, "tags": {**plan.tags, "orch:stack": tags["orch:stack"]}}
                for kind in ("volume", "network-interface")
            ],
            tags=tags,
            opts=self._ground.after(waits),
        )

    def _interface(self, plan: AwsPlan, place: int) -> Any:
        each = plan.interfaces[place]
        public = {}
        if place == 0:
            at_launch = plan.addresses.kind == "launch"
            public = {"associate_public_ip_address": "true" if at_launch else "false"}
        return {
            "network_card_index": each.card,
            "device_index": each.device,
            "interface_type": each.kind,
            "subnet_id": self._ground.subnets[plan.number],
            "security_groups": self._ground.groups,
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

        A newer template, with newer user data, is for new nodes: those that run stay as they are, until
        `orch:layout` changes, which marks what only a new instance can have. User data of its own has a node
        that an earlier version made; it keeps it.
        """
        return aws.ec2.Instance(
            node.name,
            ami=plan.image,
            instance_type=plan.instance_type,
            launch_template=template,
            user_data_replace_on_change=True,
            tags=self._ground.tags("aws:ec2/instance:Instance", node.name, **{"orch:layout": plan.layout}),
            opts=self._ground.with_options(
                ignore_changes=["userDataBase64", "launchTemplate"] if plan.settled else None,
                replace_on_changes=['tags["orch:layout"]'],
                # The provider answers with what the template has.
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
            tags=self._ground.tags("aws:ec2/eip:Eip", name),
            opts=self._ground.opts,
        )

    # What a runner needs, made in one go: an output for each value of a thousand nodes is slow.

    def _state(
        self,
        machines: Sequence[aws.ec2.Instance],
        addresses: Sequence[aws.ec2.Eip | None],
        settings: AwsSettings,
        shown: HostKeys,
        topology: Topology | None,
    ) -> pulumi.Output[dict[str, Any]]:
        plan, bastion, stack = self._plan, self._ground.bastion, pulumi.get_stack()
        asked = topology if plan.rank_by_topology else None

        async def made(seen: Sequence[Any]) -> dict[str, Any]:
            seed, ids, own, internal, public, jump = seen
            names = [node.name for node in plan.all_nodes]
            given = [name if each else None for name, each in zip(names, own, strict=True)]
            known = known_keys(plan.host_keys, seed, zip(names, ids, given, strict=True))
            # Nobody logs in after a preview: it does not wait for machines that are booting.
            new = [each for each in ids if each not in known]
            told: Mapping[str, str] = dict.fromkeys(new, "")
            if new and not pulumi.runtime.is_dry_run():
                told = await in_background(lambda: shown(new))
            known |= {each: HostKey(key, each) for each, key in told.items()}
            keys = [known.get(each) for each in ids]
            places = await in_background(partial(asked, ids)) if asked is not None and ids else {}
            above = [places.get(each, ()) for each in ids]
            hop = (jump[0], jump[1]) if jump else None
            return fleet_state(
                plan, settings, stack, FleetOutputs(seed, ids, keys, internal, public, above, hop)
            )

        public: list[pulumi.Input[str]] = []
        if plan.access.way == "direct":
            pairs = zip(machines, addresses, strict=True)
            public = [each.public_ip if address is None else address.public_ip for each, address in pairs]
        jump: list[pulumi.Input[str]] = []
        if bastion is not None and plan.bastion is not None:
            jump = [bastion.id, bastion.public_ip if plan.bastion.public else bastion.private_ip]
        seen = pulumi.Output.all(
            self._ground.keys.host_seed,
            [each.id for each in machines],
            [each.user_data_base64.apply(bool) for each in machines],
            [each.private_ip for each in machines],
            public,
            jump,
        )
        return pulumi.Output.unsecret(seen.apply(made))


# A node that is gone may be a reboot: EC2 takes minutes for it.
UNREACHABLE_GRACE_S = 300.0


@dataclass(frozen=True)
class FleetOutputs:
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


def fleet_state(plan: AwsPlan, settings: AwsSettings, stack: str, seen: FleetOutputs) -> dict[str, Any]:
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


def _jumps(plan: AwsPlan, settings: AwsSettings, seen: FleetOutputs) -> list[dict[str, Any]]:
    if plan.bastion is None or seen.bastion is None:
        return given_jumps(plan.access.jumps)
    instance, address = seen.bastion
    tunnel = None if plan.bastion.public else through_ssm(plan.region, settings, instance)
    return [bastion_jump(plan, seen.seed, address, tunnel)]


def register(
    backend: AwsBackend, request: PlanRequest, plan: AwsPlan
) -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
    """See `Backend.register`."""
    session, settings = backend.session(request), backend.settings_of(request)
    where, whole = settings.endpoint_url, request.fleet.gang == "all-or-nothing"
    seen = "see `aws ec2 get-console-output --latest --instance-id …`"

    def shown(ids: Sequence[str]) -> Mapping[str, str]:
        def look(some: Sequence[str]) -> dict[str, str]:
            return gather_facts.host_keys(session, plan.region, some, where)

        return polling.host_keys(look, ids, whole=whole, where=seen)

    def topology(ids: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        def look() -> Mapping[str, tuple[str, ...]]:
            return gather_facts.topology(session, plan.region, ids, where)

        return polling.places(look, lambda found: len(found) == len(ids), {})

    component = AwsFleet(plan, settings, shown, topology)
    return component.state, component.identity
