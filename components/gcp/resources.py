"""A GCP fleet as Pulumi resources: the plan, one to one. Decides nothing.

Beside a constant number of resources there is one per node; a group that is made all at once is one resource
with a request per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pulumi
import pulumi_gcp as gcp

from orch.components.cloud import polling
from orch.components.cloud.fleet_state import bastion_jump, given_jumps, node_state
from orch.components.cloud.fleet_state import fleet_state as of_cloud
from orch.components.cloud.host_keys import HostKey, known_keys
from orch.components.cloud.plan import Node
from orch.components.cloud.polling import in_background
from orch.components.gcp.account import gather_facts
from orch.components.gcp.account.client import carries_key
from orch.components.gcp.account.facts import Member
from orch.components.gcp.account.labels import label
from orch.components.gcp.network_resources import SCOPES, NetworkResources, Text
from orch.components.gcp.plan import GcpPlan, Interface, ManagedGroup, Scheduling
from orch.components.gcp.tunnels import through_iap
from orch.spec.models.backends.gcp import GcpSettings

if TYPE_CHECKING:
    from orch.components.gcp.backend import GcpBackend
    from orch.components.request import PlanRequest

Members = Callable[[str, int], Sequence[Member]]
HostKeys = Callable[[Sequence[str]], Mapping[str, str]]


class GcpFleet(pulumi.ComponentResource):
    """The whole fleet. `state` is its FleetState, `identity` the client's private key (secret).

    Asked in threads of their own are `shown` for the host keys that instances show, by their names, and
    `members` for the instances of a label, when there are so many.
    """

    state: pulumi.Output[dict[str, Any]]
    identity: Text

    def __init__(
        self, plan: GcpPlan, settings: GcpSettings, shown: HostKeys, members: Members | None = None
    ) -> None:
        super().__init__("orch:fleet:Gcp", plan.fleet, None, pulumi.ResourceOptions(protect=plan.protect))
        self._plan, self._settings = plan, settings
        self._ground = ground = NetworkResources(plan, settings, self)
        policy = self._policy()
        machines: list[gcp.compute.InstanceFromTemplate] = []
        requests: list[gcp.compute.ResizeRequest] = []
        if plan.group is not None:
            requests = self._group(plan.group, self._template(plan, policy), policy)
        else:
            made = [pair for group in plan.node_groups for pair in self._node_group(group, policy)]
            machines = [machine for _, machine in sorted(made, key=lambda pair: pair[0].index)]
        self.identity = ground.keys.client_private_key
        self.state = self._state(machines, requests, shown, members)
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

    def _node_group(
        self, plan: GcpPlan, policy: gcp.compute.ResourcePolicy | None
    ) -> list[tuple[Node, gcp.compute.InstanceFromTemplate]]:
        """The nodes of one group, each an instance of its own."""
        template = self._template(plan, policy)
        return [(node, self._node(plan, node, template)) for node in plan.nodes]

    def _template(
        self, plan: GcpPlan, policy: gcp.compute.ResourcePolicy | None
    ) -> gcp.compute.InstanceTemplate:
        """What all nodes of a group have in common. A template never changes: another content is another
        name."""
        ground, token = self._ground, "gcp:compute/instanceTemplate:InstanceTemplate"
        name = f"{plan.fleet}-template{plan.suffix}"
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
            scheduling=self._scheduling(plan.scheduling),
            reservation_affinity=affinity,
            resource_policies=policy.id if policy is not None and not grouped else plan.given_policy,
            service_account=account,
            tags=[plan.tag],
            metadata=ground.common_metadata(plan),
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

    def _scheduling(self, taken: Scheduling) -> Any:
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

    def _node(
        self, plan: GcpPlan, node: Node, template: gcp.compute.InstanceTemplate
    ) -> gcp.compute.InstanceFromTemplate:
        """One instance.

        A newer template, with newer user data, is for new nodes: those that run stay as they are, until
        `orch-layout` changes, which marks what only a new instance can have. Metadata of its own has a node
        that an earlier version made; it keeps it.
        """
        ground = self._ground
        token = "gcp:compute/instanceFromTemplate:InstanceFromTemplate"
        settled = ["metadata", "sourceInstanceTemplate"] if plan.settled else None
        return gcp.compute.InstanceFromTemplate(
            node.name,
            name=f"{plan.base}-{node.index}",
            zone=plan.zone,
            source_instance_template=template.self_link_unique,
            labels=ground.labels(
                token, node.name, **{"orch-layout": plan.layout, "orch-group": label(plan.base)}
            ),
            opts=ground.with_options(
                ignore_changes=settled,
                replace_on_changes=['labels["orch-layout"]'],
                # The provider answers with what the template has.
                additional_secret_outputs=["metadata"] if plan.confidential else None,
            ),
        )

    def _group(
        self,
        group: ManagedGroup,
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

    # What a runner needs, made in one go: an output for each value of a thousand nodes is slow.

    def _state(
        self,
        machines: Sequence[gcp.compute.InstanceFromTemplate],
        requests: Sequence[gcp.compute.ResizeRequest],
        shown: HostKeys,
        members: Members | None,
    ) -> pulumi.Output[dict[str, Any]]:
        plan, settings, stack, bastion = self._plan, self._settings, pulumi.get_stack(), self._ground.bastion
        asked = members if requests or plan.rank_by_host else None
        group, count = label(plan.base), len(plan.nodes)

        async def made(seen: Sequence[Any]) -> dict[str, Any]:
            seed, ids, names, nics, metadata, _, jump = seen
            told: Sequence[Member] = ()
            if asked is not None and (ids or requests):
                told = await in_background(partial(asked, group, count))
            found = [_member(each, plan) for each in told[:count]]
            if not requests:
                hosts = {each.name: each.host for each in told}
                seen_each = zip(plan.all_nodes, ids, names, nics, metadata, strict=True)
                found = [
                    KnownInstance(
                        name,
                        id,
                        str(_address(nic, public=False) or ""),
                        _address(nic, public=True),
                        node.name if carries_key(str((items or {}).get("user-data", ""))) else None,
                        hosts.get(name, ()),
                    )
                    for node, id, name, nic, items in seen_each
                ]
            given = [(node.name, each.id, each.key) for node, each in zip(plan.all_nodes, found, strict=True)]
            known = known_keys(plan.host_keys, seed, given)
            # Nobody logs in after a preview: it does not wait for machines that are booting.
            new = [each for each in found if each.id not in known]
            keys = dict.fromkeys((each.name for each in new), "")
            if new and not pulumi.runtime.is_dry_run():
                keys = await in_background(lambda: shown([*keys]))
            known |= {each.id: HostKey(keys[each.name], each.id) for each in new if each.name in keys}
            hop = (jump[0], _address(jump[1], public=public)) if jump else None
            return fleet_state(plan, settings, stack, FleetOutputs(seed, found, known, hop))

        public = plan.bastion is not None and plan.bastion.public
        jump: list[pulumi.Input[Any]] = []
        if bastion is not None:
            jump = [bastion.name, bastion.network_interfaces]
        seen = pulumi.Output.all(
            self._ground.keys.host_seed,
            [each.instance_id for each in machines],
            [each.name for each in machines],
            [each.network_interfaces for each in machines],
            [each.metadata for each in machines],
            [each.id for each in requests],
            jump,
        )
        return pulumi.Output.unsecret(seen.apply(made))


def _member(each: Member, plan: GcpPlan) -> KnownInstance:
    """Members of a group that an earlier version made have one host key."""
    key = f"{plan.fleet}-group" if each.keyed else None
    return KnownInstance(each.name, each.id, each.address, each.public, key, each.host)


def _address(nics: Any, *, public: bool) -> str | None:
    """That of the first interface."""
    if not public:
        return _field(nics[0], "network_ip")
    configs = _field(nics[0], "access_configs") or ()
    return next((str(_field(each, "nat_ip")) for each in configs if _field(each, "nat_ip")), None)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name)


# A node that is gone may be a restart after maintenance, which takes minutes.
UNREACHABLE_GRACE_S = 600.0


@dataclass(frozen=True)
class KnownInstance:
    """An instance: what a node's state needs that is known only afterwards.

    `key`: the name for which an earlier version gave it a host key of the seed, in user data of its own.
    `host`: where it stands, outermost first.
    """

    name: str
    id: str
    internal: str
    public: str | None
    key: str | None
    host: tuple[str, ...] = ()


@dataclass(frozen=True)
class FleetOutputs:
    """What the cloud gave. `machines`: in order of nodes; `host_keys`: by the instance's id, and who has none
    is no node yet. `bastion` is its name and address."""

    seed: str
    machines: Sequence[KnownInstance]
    host_keys: Mapping[str, HostKey]
    bastion: tuple[str, str | None] | None


def fleet_state(plan: GcpPlan, settings: GcpSettings, stack: str, seen: FleetOutputs) -> dict[str, Any]:
    """All that a runner needs, as `spec.state.FleetState` reads it."""
    jumps = _jumps(plan, settings, seen)
    way, makers = plan.access.way, plan.makers
    groups = {node.name: group for group in plan.node_groups for node in group.nodes}
    nodes = [
        node_state(
            groups[node.name],
            node,
            key=seen.host_keys[machine.id],
            address=machine.public if way == "direct" else machine.internal,
            internal=machine.internal,
            jumps=jumps,
            proxy_command=_through_iap(groups[node.name], settings, machine.name) if way == "iap" else None,
            topology=machine.host,
            disk_gb=groups[node.name].disk.size_gb,
            made_by=makers.get(node.name),
        )
        for node, machine in zip(plan.all_nodes, seen.machines, strict=True)
        if machine.id in seen.host_keys
    ]
    return of_cloud(plan, stack, nodes, backend="gcp", grace_s=UNREACHABLE_GRACE_S)


def _jumps(plan: GcpPlan, settings: GcpSettings, seen: FleetOutputs) -> list[dict[str, Any]]:
    if plan.bastion is None or seen.bastion is None:
        return given_jumps(plan.access.jumps)
    name, address = seen.bastion
    tunnel = None if plan.bastion.public else _through_iap(plan, settings, name)
    return [bastion_jump(plan, seen.seed, address, tunnel)]


def _through_iap(plan: GcpPlan, settings: GcpSettings, instance: str) -> str:
    return through_iap(plan.project, plan.zone, settings, instance)


def register(
    backend: GcpBackend, request: PlanRequest, plan: GcpPlan
) -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
    """See `Backend.register`."""
    session = backend.session(request)
    whole = request.fleet.gang == "all-or-nothing"
    zones = {f"{plan.base}-{node.index}": group.zone for group in plan.node_groups for node in group.nodes}

    def shown(names: Sequence[str]) -> Mapping[str, str]:
        def look(some: Sequence[str]) -> dict[str, str]:
            found: dict[str, str] = {}
            for zone in sorted({zones.get(name, plan.zone) for name in some}):
                here = [name for name in some if zones.get(name, plan.zone) == zone]
                found |= gather_facts.host_keys(session, zone, here)
            return found

        where = "see `gcloud compute instances get-serial-port-output …`"
        return polling.host_keys(look, names, whole=whole, where=where)

    def members(group: str, count: int) -> Sequence[Member]:
        def look() -> Sequence[Member]:
            return gather_facts.members(session, plan.zone, group)

        def told(found: Sequence[Member]) -> bool:
            hosts = not plan.rank_by_host or all(each.host for each in found)
            return len(found) >= count and hosts

        if plan.group is None:
            return polling.places(look, told, ())
        where = f"instances in {plan.zone} with the label orch-group={group}"
        return polling.members(look, told, count, where=where)

    component = GcpFleet(plan, backend.settings_of(request), shown, members)
    return component.state, component.identity
