"""A GCP fleet as Pulumi resources: the plan, one to one. Decides nothing.

The number of resources is a constant and one per node; a managed group is one resource, with one resize
request per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pulumi
import pulumi_gcp as gcp

from orch.components.cloud.machines.host_keys import HostKey, known_keys
from orch.components.cloud.plan import Node
from orch.components.cloud.polling import in_background
from orch.components.gcp.account import new_nodes
from orch.components.gcp.account.facts import Member
from orch.components.gcp.account.labels import label
from orch.components.gcp.fleet_state import FleetOutputs, NodeInstance, fleet_state, interface_address
from orch.components.gcp.network_resources import SCOPES, NetworkResources, Text, ends_at
from orch.components.gcp.plan import GcpPlan, Interface, ManagedGroup
from orch.components.resources import new_host_keys
from orch.spec.models.backends.gcp import GcpSettings

if TYPE_CHECKING:
    from orch.components.gcp.backend import GcpBackend
    from orch.components.request import PlanRequest

Members = Callable[[str, int], Sequence[Member]]
HostKeys = Callable[[Sequence[str]], Mapping[str, str]]


# Where the provider repeats a resource's labels.
_LABEL_COPIES = frozenset({"effectiveLabels", "pulumiLabels"})


def _without_secret_labels(
    args: pulumi.ResourceTransformationArgs,
) -> pulumi.ResourceTransformationResult:
    """Record the provider's copies of a node's labels in plain text, as the labels themselves are.

    The SDK asks the engine to encrypt both copies of every resource, since a program may put a secret into a
    label. No label of a fleet is one, and a secret per node is what the engine's memory and time go into
    (docs/explanation/engine.md).
    """
    opts = pulumi.ResourceOptions.merge(args.opts, None)
    secret = [name for name in opts.additional_secret_outputs or () if name not in _LABEL_COPIES]
    opts.additional_secret_outputs = secret or None
    return pulumi.ResourceTransformationResult(args.props, opts)


class GcpFleet(pulumi.ComponentResource):
    """The whole fleet. `state` is its FleetState, `identity` the client's private key (secret).

    Both readers run in threads of their own. `read_host_keys` returns the host keys of instances by their
    names, `read_members` the instances with a value of the label `orch-group`, that many at least.
    """

    state: pulumi.Output[dict[str, Any]]
    identity: Text

    def __init__(
        self,
        plan: GcpPlan,
        settings: GcpSettings,
        read_host_keys: HostKeys,
        read_members: Members | None = None,
    ) -> None:
        super().__init__("orch:fleet:Gcp", plan.fleet, None, pulumi.ResourceOptions(protect=plan.protect))
        self._plan, self._settings = plan, settings
        self._resources = NetworkResources(plan, settings, self)
        policy = self._policy()
        machines: list[gcp.compute.InstanceFromTemplate] = []
        requests: list[gcp.compute.ResizeRequest] = []
        if plan.group is not None:
            requests = self._group(plan.group, self._template(plan, policy), policy)
        else:
            pairs = [pair for group in plan.node_groups for pair in self._node_group(group, policy)]
            machines = [machine for _, machine in sorted(pairs, key=lambda pair: pair[0].index)]
        self.identity = self._resources.keys.client_private_key
        self.state = self._state(machines, requests, read_host_keys, read_members)
        # Recorded at once, unlike the stack's outputs: an interrupted `up` still records where it was.
        self.register_outputs({"pins": dict(plan.pins)})

    # Capacity and nodes

    def _policy(self) -> gcp.compute.ResourcePolicy | None:
        """A compact or topology placement of instances, or the workload policy of a group."""
        placement, resources = self._plan.placement_policy, self._resources
        if placement is None:
            return None
        arguments: dict[str, Any] = {}
        if placement.kind == "workload":
            workload: dict[str, Any] = {"type": "HIGH_THROUGHPUT"}
            if placement.topology:
                workload["accelerator_topology"] = placement.topology
            arguments["workload_policy"] = workload
        else:
            compact: dict[str, Any] = {"collocation": "COLLOCATED"}
            if placement.topology:
                compact["gpu_topology"] = placement.topology
            arguments["group_placement_policy"] = compact
        return gcp.compute.ResourcePolicy(
            f"{self._plan.fleet}-placement",
            name=placement.name,
            region=self._plan.region,
            description=resources.marks.words("gcp:compute/resourcePolicy:ResourcePolicy", placement.name),
            **arguments,
            opts=resources.opts,
        )

    def _node_group(
        self, plan: GcpPlan, policy: gcp.compute.ResourcePolicy | None
    ) -> list[tuple[Node, gcp.compute.InstanceFromTemplate]]:
        """The nodes of one group, each an instance of its own."""
        template = self._template(plan, policy)
        return [(node, self._node(plan, node, template)) for node in plan.nodes]

    def _template(
        self, plan: GcpPlan, policy: gcp.compute.ResourcePolicy | None
    ) -> gcp.compute.InstanceTemplate:
        """What all nodes of a group have in common.

        A template never changes: its name changes with its content.
        """
        resources, token = self._resources, "gcp:compute/instanceTemplate:InstanceTemplate"
        name = f"{plan.fleet}-template{plan.suffix}"
        accelerators: Any = None
        if plan.accelerator is not None:
            accelerators = [{"type": plan.accelerator[0], "count": plan.accelerator[1]}]
        affinity: Any = None
        if plan.reservation is not None:
            reservation = {"key": "compute.googleapis.com/reservation-name", "values": [plan.reservation]}
            affinity = {"type": "SPECIFIC_RESERVATION", "specific_reservation": reservation}
        elif plan.scheduling.model != "STANDARD":
            affinity = {"type": "NO_RESERVATION"}
        # Left out unless one is named: for an empty name GCP attaches the project's default account.
        account: Any = None
        if plan.service_account is not None:
            account = {"email": plan.service_account, "scopes": SCOPES}
        grouped = plan.group is not None
        return gcp.compute.InstanceTemplate(
            name,
            name=resources.template_name(plan),
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
            network_interfaces=[self._interface(index, each) for index, each in enumerate(plan.interfaces)],
            guest_accelerators=accelerators,
            scheduling=self._scheduling(plan),
            reservation_affinity=affinity,
            resource_policies=policy.id if policy is not None and not grouped else plan.given_policy,
            service_account=account,
            tags=[plan.tag],
            metadata=resources.common_metadata(plan),
            labels={**resources.labels(token, name), "orch-group": label(plan.base)},
            description=resources.marks.words(token, name),
            # Running nodes still use the former template: the new one is made first.
            opts=resources.after(resources.ready, delete_before_replace=False),
        )

    def _interface(self, index: int, interface: Interface) -> Any:
        nic: dict[str, Any] = {
            "subnetwork": self._resources.networks.subnet(interface.vpc, interface.subnet),
            "nic_type": interface.kind,
        }
        if interface.stack != "IPV4_ONLY":
            nic["stack_type"] = interface.stack
        if index == 0 and self._plan.public:
            nic["access_configs"] = [{"network_tier": "PREMIUM"}]
        return nic

    def _scheduling(self, plan: GcpPlan) -> Any:
        scheduling = plan.scheduling
        arguments: dict[str, Any] = {
            "provisioning_model": scheduling.model,
            "on_host_maintenance": scheduling.on_maintenance,
            "automatic_restart": scheduling.restart,
        }
        if scheduling.model == "SPOT":
            arguments["preemptible"] = True
        if scheduling.ends is not None:
            arguments["instance_termination_action"] = scheduling.ends
        if scheduling.run_s is not None:
            arguments["max_run_duration"] = {"seconds": scheduling.run_s}
        elif plan.lifetime is not None:
            arguments |= ends_at(plan.lifetime)
        return arguments

    def _node(
        self, plan: GcpPlan, node: Node, template: gcp.compute.InstanceTemplate
    ) -> gcp.compute.InstanceFromTemplate:
        """One instance.

        A newer template, with newer user data, applies to new nodes. A running node stays as it is until
        `orch-layout` changes, the fingerprint of what only a new instance can have. A node that an earlier
        version made has metadata of its own, and keeps it.
        """
        resources = self._resources
        token = "gcp:compute/instanceFromTemplate:InstanceFromTemplate"
        ignored = ["metadata", "sourceInstanceTemplate"] if plan.layout_unchanged else None
        return gcp.compute.InstanceFromTemplate(
            node.name,
            name=f"{plan.base}-{node.index}",
            zone=plan.zone,
            source_instance_template=template.self_link_unique,
            labels=resources.labels(
                token, node.name, **{"orch-layout": plan.layout, "orch-group": label(plan.base)}
            ),
            opts=resources.with_options(
                ignore_changes=ignored,
                replace_on_changes=['labels["orch-layout"]'],
                delete_before_replace=node.name not in plan.moved,
                # The provider returns the metadata of the template.
                additional_secret_outputs=["metadata"] if plan.confidential else None,
                transformations=[_without_secret_labels],
            ),
        )

    def _group(
        self,
        group: ManagedGroup,
        template: gcp.compute.InstanceTemplate,
        policy: gcp.compute.ResourcePolicy | None,
    ) -> list[gcp.compute.ResizeRequest]:
        """The group, empty at first, and one resize request per batch.

        GCP fulfils a request whole or not at all.
        """
        plan, resources = self._plan, self._resources
        manager = gcp.compute.InstanceGroupManager(
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
            description=resources.marks.words(
                "gcp:compute/instanceGroupManager:InstanceGroupManager", group.name
            ),
            # Requests change the size.
            opts=resources.after(resources.ready, ignore_changes=["targetSize"]),
        )
        return [
            gcp.compute.ResizeRequest(
                f"{plan.fleet}-batch-{index}",
                name=f"{group.name}-{index}",
                zone=plan.zone,
                instance_group_manager=manager.name,
                resize_by=size,
                requested_run_duration={"seconds": str(group.run_s)},  # type: ignore[arg-type]
                description=f"nodes of the orch fleet {plan.fleet}",
                opts=resources.opts,
            )
            for index, size in enumerate(group.batches)
        ]

    # The FleetState, in one output: an output for each value of a thousand nodes is slow.

    def _state(
        self,
        machines: Sequence[gcp.compute.InstanceFromTemplate],
        requests: Sequence[gcp.compute.ResizeRequest],
        read_host_keys: HostKeys,
        read_members: Members | None,
    ) -> pulumi.Output[dict[str, Any]]:
        plan, settings, stack = self._plan, self._settings, pulumi.get_stack()
        bastion = self._resources.bastion
        bastion_public = plan.bastion is not None and plan.bastion.public
        needs_members = bool(requests) or plan.rank_by_host

        async def assemble(values: Sequence[Any]) -> dict[str, Any]:
            seed, ids, names, interfaces, metadata, _, jump = values
            members: Sequence[Member] = ()
            if read_members is not None and needs_members and (ids or requests):
                members = await in_background(partial(read_members, label(plan.base), len(plan.nodes)))
            if requests:
                instances = [NodeInstance.of_member(each, plan) for each in members[: len(plan.nodes)]]
            else:
                hosts = {each.name: each.host for each in members}
                rows = zip(plan.all_nodes, ids, names, interfaces, metadata, strict=True)
                instances = [
                    NodeInstance.of_resource(node, id, name, nics, items, host=hosts.get(name, ()))
                    for node, id, name, nics, items in rows
                ]
            pairs = zip(plan.all_nodes, instances, strict=True)
            keys = known_keys(plan.host_keys, seed, [(node.name, each.id, each.key) for node, each in pairs])
            new = {each.name: each.id for each in instances if each.id not in keys}
            shown = await new_host_keys([*new], read_host_keys)
            keys |= {new[name]: HostKey(public, new[name]) for name, public in shown.items()}
            hop = (jump[0], interface_address(jump[1], public=bastion_public)) if jump else None
            return fleet_state(plan, settings, stack, FleetOutputs(seed, instances, keys, hop))

        jump: list[pulumi.Input[Any]] = []
        if bastion is not None:
            jump = [bastion.name, bastion.network_interfaces]
        values = pulumi.Output.all(
            self._resources.keys.host_seed,
            [each.instance_id for each in machines],
            [each.name for each in machines],
            [each.network_interfaces for each in machines],
            [each.metadata for each in machines],
            [each.id for each in requests],
            jump,
        )
        return pulumi.Output.unsecret(values.apply(assemble))


def register(
    backend: GcpBackend, request: PlanRequest, plan: GcpPlan
) -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
    """See `Backend.register`."""
    session = backend.session(request)
    whole = request.fleet.gang == "all-or-nothing"
    component = GcpFleet(
        plan,
        backend.settings_of(request),
        partial(new_nodes.wait_for_host_keys, session, plan, whole=whole),
        partial(new_nodes.wait_for_members, session, plan),
    )
    return component.state, component.identity
