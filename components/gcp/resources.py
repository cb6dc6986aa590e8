"""A GCP fleet as Pulumi resources: the plan, one to one. Decides nothing.

Beside a constant number of resources there is one per node; a group that is made all at once is one resource
with a request per batch.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pulumi
import pulumi_gcp as gcp

from orch.components.cloud.cloudinit import JUMP_USER
from orch.components.cloud.plan import Node
from orch.components.gcp.account.facts import Member
from orch.components.gcp.labels import label
from orch.components.gcp.network_resources import SCOPES, NetworkResources, Text
from orch.components.gcp.plan import GcpPlan, Group, Interface
from orch.components.gcp.tunnels import through_iap
from orch.spec.models.backends.gcp import GcpSettings
from orch.spec.state import SCHEMA

# A node that is gone may be a restart after maintenance, which takes minutes.
UNREACHABLE_GRACE_S = 600.0
Members = Callable[[str, int], Sequence[Member]]


class GcpFleet(pulumi.ComponentResource):
    """The whole fleet. `state` is its FleetState, `identity` the client's private key (secret).

    `members` is asked, in a thread of its own, for the instances of a label, when there are so many.
    """

    state: pulumi.Output[dict[str, Any]]
    identity: Text

    def __init__(self, plan: GcpPlan, settings: GcpSettings, members: Members | None = None) -> None:
        super().__init__("orch:fleet:Gcp", plan.fleet, None, pulumi.ResourceOptions(protect=plan.protect))
        self._plan, self._settings = plan, settings
        self._ground = ground = NetworkResources(plan, settings, self)
        policy = self._policy()
        template = self._template(policy)
        if plan.group is not None:
            made = self._group(plan.group, template, policy)
            waits: list[pulumi.Output[Any]] = [each.id for each in made]
            machines: list[gcp.compute.InstanceFromTemplate] = []
        else:
            machines = [self._node(node, template) for node in plan.nodes]
            waits = [each.instance_id for each in machines]
        asks = plan.group is not None or plan.rank_by_host
        told = self._members(waits, members) if asks else None
        nodes = [self._state(place, node, machines, told) for place, node in enumerate(plan.nodes)]
        self.identity = ground.keys.client_private_key
        self.state = pulumi.Output.from_input(
            {
                "schema_version": SCHEMA,
                "name": plan.fleet,
                "stack": pulumi.get_stack(),
                "backend": "gcp",
                "placement": plan.placement,
                "interconnect": plan.interconnect,
                "unreachable_grace_s": UNREACHABLE_GRACE_S,
                "image": plan.job_image,
                "env": dict(plan.env),
                "beside_hourly": plan.bastion.price if plan.bastion else None,
                "nodes": nodes,
            }
        )
        # Recorded at once, unlike the stack's outputs: an `up` that is killed leaves word of where it was.
        self.register_outputs({"pins": dict(plan.pins)})

    # Capacity and nodes

    def _policy(self) -> gcp.compute.ResourcePolicy | None:
        """A compact or topology placement of instances, or the workload policy of a group."""
        placement = self._plan.placement_policy
        if placement is None:
            return None
        words: dict[str, Any] = {}
        if placement.kind == "workload":
            workload: dict[str, Any] = {"type": "HIGH_THROUGHPUT"}
            if placement.topology:
                workload["accelerator_topology"] = placement.topology
            words["workload_policy"] = workload
        else:
            close: dict[str, Any] = {"collocation": "COLLOCATED"}
            if placement.topology:
                close["gpu_topology"] = placement.topology
            words["group_placement_policy"] = close
        return gcp.compute.ResourcePolicy(
            f"{self._plan.fleet}-placement",
            name=placement.name,
            region=self._plan.region,
            description=self._ground.marks.words("gcp:compute/resourcePolicy:ResourcePolicy", placement.name),
            **words,
            opts=self._ground.opts,
        )

    def _template(self, policy: gcp.compute.ResourcePolicy | None) -> gcp.compute.InstanceTemplate:
        """What all nodes have in common. A template never changes: another content is another name."""
        plan, ground, token = self._plan, self._ground, "gcp:compute/instanceTemplate:InstanceTemplate"
        name = f"{plan.fleet}-template"
        accelerators: Any = None
        if plan.accelerator is not None:
            accelerators = [{"type": plan.accelerator[0], "count": plan.accelerator[1]}]
        affinity: Any = None
        if plan.reservation is not None:
            held = {"key": "compute.googleapis.com/reservation-name", "values": [plan.reservation]}
            affinity = {"type": "SPECIFIC_RESERVATION", "specific_reservation": held}
        elif plan.scheduling.model != "STANDARD":
            affinity = {"type": "NO_RESERVATION"}
        # None at all unless one is named: with an empty name GCP attaches the project's default one.
        account: Any = None
        if plan.service_account is not None:
            account = {"email": plan.service_account, "scopes": SCOPES}
        grouped = plan.group is not None
        shared = f"{plan.fleet}-group"
        return gcp.compute.InstanceTemplate(
            name,
            name=plan.template,
            machine_type=plan.instance_type,
            disks=[  # type: ignore[arg-type]
                {
                    "source_image": plan.image,
                    "boot": True,
                    "auto_delete": True,
                    "disk_size_gb": plan.disk.size_gb,
                    "disk_type": plan.disk.type,
                    "labels": dict(plan.labels),
                }
            ],
            network_interfaces=[self._interface(place, each) for place, each in enumerate(plan.interfaces)],
            guest_accelerators=accelerators,
            scheduling=self._scheduling(),
            reservation_affinity=affinity,
            resource_policies=policy.id if policy is not None and not grouped else plan.given_policy,
            service_account=account,
            tags=[plan.tag],
            metadata=ground.metadata(shared, plan.cloud_init) if grouped else None,
            labels={**ground.labels(token, name), "orch-group": label(plan.base)},
            description=ground.marks.words(token, name),
            # Nodes that run hold on to theirs: the new one comes first.
            opts=ground.after(ground.networks.ready, delete_before_replace=False),
        )

    def _interface(self, place: int, each: Interface) -> Any:
        nic: dict[str, Any] = {
            "subnetwork": self._ground.networks.subnet(each.vpc, each.subnet),
            "nic_type": each.kind,
        }
        if each.stack != "IPV4_ONLY":
            nic["stack_type"] = each.stack
        if place == 0 and self._plan.public:
            nic["access_configs"] = [{"network_tier": "PREMIUM"}]
        return nic

    def _scheduling(self) -> Any:
        taken = self._plan.scheduling
        words: dict[str, Any] = {
            "provisioning_model": taken.model,
            "on_host_maintenance": taken.on_maintenance,
            "automatic_restart": taken.restart,
        }
        if taken.model == "SPOT":
            words["preemptible"] = True
        if taken.ends is not None:
            words["instance_termination_action"] = taken.ends
        if taken.run_s is not None:
            words["max_run_duration"] = {"seconds": taken.run_s}
        return words

    def _node(self, node: Node, template: gcp.compute.InstanceTemplate) -> gcp.compute.InstanceFromTemplate:
        """One instance.

        A newer template or newer user data is for new nodes: those that run stay as they are, until
        `orch-layout` changes, which marks what only a new instance can have.
        """
        plan, ground = self._plan, self._ground
        token = "gcp:compute/instanceFromTemplate:InstanceFromTemplate"
        settled = ['metadata["user-data"]', "sourceInstanceTemplate"] if plan.settled else None
        return gcp.compute.InstanceFromTemplate(
            node.name,
            name=f"{plan.base}-{node.index}",
            zone=plan.zone,
            source_instance_template=template.self_link_unique,
            metadata=ground.metadata(node.name, plan.cloud_init),
            labels=ground.labels(
                token, node.name, **{"orch-layout": plan.layout, "orch-group": label(plan.base)}
            ),
            opts=ground.after(
                ground.networks.ready, ignore_changes=settled, replace_on_changes=['labels["orch-layout"]']
            ),
        )

    def _group(
        self,
        group: Group,
        template: gcp.compute.InstanceTemplate,
        policy: gcp.compute.ResourcePolicy | None,
    ) -> list[gcp.compute.ResizeRequest]:
        """The group, empty at first, and a request per batch, which GCP fulfils whole or not at all."""
        plan, ground = self._plan, self._ground
        made = gcp.compute.InstanceGroupManager(
            f"{plan.fleet}-group",
            name=group.name,
            zone=plan.zone,
            base_instance_name=plan.base,
            versions=[{"instance_template": template.self_link_unique}],  # type: ignore[list-item]
            target_size=0,
            instance_lifecycle_policy={"default_action_on_failure": "DO_NOTHING"},  # type: ignore[arg-type]
            update_policy={  # type: ignore[arg-type]
                "type": "OPPORTUNISTIC",
                "minimal_action": "REPLACE",
                "max_unavailable_fixed": 1,
                "max_surge_fixed": 0,
            },
            resource_policies={"workload_policy": policy.id} if policy is not None else None,  # type: ignore[arg-type]
            description=ground.marks.words(
                "gcp:compute/instanceGroupManager:InstanceGroupManager", group.name
            ),
            # Requests change the size.
            opts=ground.after(ground.networks.ready, ignore_changes=["targetSize"]),
        )
        return [
            gcp.compute.ResizeRequest(
                f"{plan.fleet}-batch-{index}",
                name=f"{group.name}-{index}",
                zone=plan.zone,
                instance_group_manager=made.name,
                resize_by=size,
                requested_run_duration={"seconds": str(group.run_s)},  # type: ignore[arg-type]
                description=f"nodes of the orch fleet {plan.fleet}",
                opts=ground.opts,
            )
            for index, size in enumerate(group.batches)
        ]

    # What a runner needs

    def _members(
        self, waits: Sequence[pulumi.Output[Any]], members: Members | None
    ) -> pulumi.Output[Sequence[Member]] | None:
        if members is None or not waits:
            return None
        group, count = label(self._plan.base), len(self._plan.nodes)

        async def ask(_: Sequence[Any]) -> Sequence[Member]:
            import asyncio

            return await asyncio.to_thread(members, group, count)

        return pulumi.Output.all(*waits).apply(ask)

    def _state(
        self,
        place: int,
        node: Node,
        machines: Sequence[gcp.compute.InstanceFromTemplate],
        told: pulumi.Output[Sequence[Member]] | None,
    ) -> dict[str, Any]:
        plan, ground = self._plan, self._ground
        way = plan.access.way
        key = node.name
        if plan.group is None:
            machine = machines[place]
            name, nic = machine.name, machine.network_interfaces[0]
            internal = nic.apply(_internal)
            public = nic.apply(_public)
            host = told.apply(lambda all_: _host(all_, f"{plan.base}-{node.index}")) if told else []
        else:
            key = f"{plan.fleet}-group"
            if told is None:
                raise ValueError("the members of a group are read from the cloud")
            mine = told.apply(lambda all_: all_[place])
            name, internal = mine.apply(lambda each: each.name), mine.apply(lambda each: each.address)
            public, host = mine.apply(lambda each: each.public), mine.apply(lambda each: list(each.host))
        return {
            "index": node.index,
            "name": node.name,
            "address": public if way == "direct" else internal,
            "user": "root",
            "host_key": ground.public_key(key),
            "jump": self._jumps(),
            "proxy_command": self._through_iap(name) if way == "iap" else None,
            "internal_ip": internal,
            "cpus": plan.cpus,
            "memory_mib": plan.memory_mib,
            "arch": plan.arch,
            "disk_mib": plan.disk.size_gb * 1024,
            "gpus": dict(plan.gpus),
            "blocks": plan.blocks,
            "region": plan.region,
            "zone": plan.zone,
            "instance_type": plan.instance_type,
            "topology": host,
            "price_hourly": plan.price,
            "made_by": plan.makers.get(node.name),
        }

    def _jumps(self) -> list[dict[str, Any]]:
        bastion, machine = self._plan.bastion, self._ground.bastion
        if bastion is None or machine is None:
            return [
                {
                    "address": jump.hostname,
                    "port": jump.port,
                    "user": jump.user or getpass.getuser(),
                    "identity": jump.identity_file,
                }
                for jump in self._plan.access.jumps
            ]
        nic = machine.network_interfaces[0]
        return [
            {
                "address": nic.apply(_public if bastion.public else _internal),
                "user": JUMP_USER,
                "host_key": self._ground.public_key(f"{self._plan.fleet}-bastion"),
                "proxy_command": None if bastion.public else self._through_iap(machine.name),
            }
        ]

    def _through_iap(self, name: pulumi.Input[str]) -> Text:
        plan, settings = self._plan, self._settings
        return pulumi.Output.from_input(name).apply(
            lambda known: through_iap(plan.project, plan.zone, settings, known)
        )


def _field(nic: Any, name: str) -> Any:
    return nic.get(name) if isinstance(nic, Mapping) else getattr(nic, name)


def _internal(nic: Any) -> str:
    return str(_field(nic, "network_ip") or "")


def _public(nic: Any) -> str | None:
    configs = _field(nic, "access_configs") or ()
    return next((str(_field(each, "nat_ip")) for each in configs if _field(each, "nat_ip")), None)


def _host(members: Sequence[Member], name: str) -> list[str]:
    return next((list(each.host) for each in members if each.name == name), [])
