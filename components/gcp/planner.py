"""What a fleet becomes on GCP: every network, interface, policy and instance, with the reasons. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from orch.catalog.gcp.machines import Shape, gcp_image
from orch.components import file_systems
from orch.components.cloud.findings import ethernet_only, missing_bastion, missing_image, written_image
from orch.components.cloud.machines.cloudinit import bastion_config, wrapped
from orch.components.cloud.plan import Bastion
from orch.components.cloud.planner import Planner
from orch.components.cloud.quotas import unread_findings
from orch.components.cloud.reasons import image_reason, rank_reasons
from orch.components.cloud.sizing import disk_findings, disk_gb, fingerprint, key_findings, nvidia
from orch.components.gcp import capacity as capacities
from orch.components.gcp import explain as told
from orch.components.gcp import network as networks
from orch.components.gcp import userdata
from orch.components.gcp.account.facts import GcpFacts
from orch.components.gcp.account.labels import label_findings, labels
from orch.components.gcp.account.lookups import (
    BASTION_TYPE,
    NetworkLookup,
    bastion_image,
    image_fabric,
    image_lookup,
    network_lookup,
    shape_of,
)
from orch.components.gcp.candidates import CloudCandidate, with_fabric
from orch.components.gcp.capacity import Demand
from orch.components.gcp.network_findings import address_findings, lock_findings, shared_findings
from orch.components.gcp.plan import (
    Access,
    Disk,
    GcpPlan,
    ManagedGroup,
    Networks,
    Placement,
    Scheduling,
    base_name,
)
from orch.components.gcp.ssh_access import cidr_findings, iap_key_findings
from orch.components.idleness import IdleRule
from orch.spec.findings import Finding, settle
from orch.spec.models import Fleet
from orch.spec.models.backends.gcp import GcpSettings
from orch.spec.models.blocks import Scratch


class GcpPlanner(Planner[CloudCandidate, GcpFacts, GcpPlan, GcpSettings]):
    """Plan a fleet on GCP. Errors: ORCH200-231, 281, 310-323."""

    backend = "gcp"
    title = "GCP"
    most_user_data = userdata.MOST_BYTES

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self.fleet, self.candidate)

    @cached_property
    def base(self) -> str:
        """What names of cloud resources begin with."""
        return base_name(self.fleet.name, self.scope)

    @cached_property
    def lookup(self) -> NetworkLookup:
        return network_lookup(self.fleet, self.settings, self.candidate.region)

    @cached_property
    def decision(self) -> networks.NetworkDecision:
        """The networks. Raises PlanErrors with all that is wrong so far."""
        context = self.context
        net_base = context.network.pins.get("base", f"orch-net-{self.lookup.shared}-{context.scope}")
        decision = networks.decide_networks(
            self.lookup, self.candidate, self.shape, self.facts, self.base, net_base=net_base
        )
        if not isinstance(decision, networks.NetworkDecision):
            alone = Demand(len(self.indices), 0, 0)
            refused = capacities.placement_findings(self.fleet, self.shape, alone)
            settle([*self.place_findings(), *decision, *refused])
            raise AssertionError("networks without a decision have an error")
        return decision

    @cached_property
    def demand(self) -> Demand:
        made = sum(each.origin == "made" for each in self.decision.networks.vpcs)
        return Demand(len(self.indices), self.new, 0 if self.live else made)

    @cached_property
    def os(self) -> str:
        return node_os(self.fleet, self.candidate)

    @cached_property
    def idle(self) -> IdleRule | None:
        return capacities.idleness(self.fleet)

    @cached_property
    def cloud_init(self) -> str:
        return userdata.node_init(
            self.fleet,
            self.shape,
            gpus=nvidia(self.candidate.type),
            os=self.os,
            scripts=self.context.scripts,
            idle=self.idle,
            account=self.settings.vm_service_account is not None,
        )

    @cached_property
    def user_data_size(self) -> int:
        return len(wrapped(self.cloud_init)) + 160  # about what the client's key takes, incompressible

    @cached_property
    def group(self) -> ManagedGroup | None:
        """The managed group that makes the nodes, if any."""
        count = len(self.indices)
        return capacities.group(self.fleet, self.previous, self.base, live=len(self.live), nodes=count)

    @cached_property
    def scheduling(self) -> Scheduling:
        return capacities.scheduling(self.fleet, self.candidate, self.facts)

    @cached_property
    def placement_policy(self) -> Placement | None:
        grouped = self.group is not None
        return capacities.placement(self.fleet, self.shape, self.facts, self.base, grouped=grouped)

    @cached_property
    def bastion(self) -> Bastion | None:
        way, image = self.decision.way.bastion, self.facts.bastion_image
        if way is None or image is None:
            return None
        price = self.machine_price(BASTION_TYPE)
        cidrs = self.lookup.ssh_cidrs if way == "public" else ()
        return Bastion(BASTION_TYPE, image.link, way == "public", cidrs, price)

    @cached_property
    def bastion_init(self) -> str:
        """GCP itself ends the machines of a fleet whose time is over."""
        return bastion_config(self.fleet.name, _node_cidrs(self.decision))

    @cached_property
    def created_file_systems(self) -> tuple[file_systems.FileSystem, ...]:
        return file_systems.created(self.fleet)

    @cached_property
    def file_system_place(self) -> str:
        return _network_words(self.decision.networks)

    @cached_property
    def node_scratch(self) -> Scratch | None:
        return userdata.node_scratch(self.fleet, self.shape, self.os)

    @cached_property
    def disk(self) -> Disk:
        return Disk(disk_gb(self.fleet), self.shape.boot)

    @cached_property
    def interconnect(self) -> str:
        return self.shape.fabric

    @cached_property
    def place_words(self) -> str:
        return told.words(self.candidate, self.scheduling)

    @cached_property
    def layout_parts(self) -> tuple[object, ...]:
        candidate, decision = self.candidate, self.decision
        return (
            candidate.type.name, candidate.zone, self.image.link, self.scheduling, decision.interfaces,
            decision.public, self.node_scratch, self.disk, self.fleet.reservation, self.group is not None,
        )  # fmt: skip

    @cached_property
    def labels(self) -> dict[str, str]:
        own = {"orch-fleet": self.fleet.name}
        return labels(self.fleet.tags, self.context.tags, self.settings.tags, own)

    @cached_property
    def template(self) -> str:
        """The name of the instance template: it changes with what the template holds."""
        account, given = self.settings.vm_service_account, capacities.given_policy(self.facts)
        content = (self.layout, self.cloud_init, self.labels, self.placement_policy, account)
        content += (given,) if given else ()
        content += (self.ending,) if self.ending else ()
        return f"{self.base}-{fingerprint(*content)[:8]}"

    @cached_property
    def rank_by_host(self) -> bool:
        close = self.placement_policy or self.facts.reservation
        return self.ranked and self.shape.levels > 0 and close is not None

    def place_findings(self) -> Iterator[Finding]:
        """What is wrong before the networks are decided."""
        fleet, candidate, facts = self.fleet, self.candidate, self.facts
        path = "availability_zones" if fleet.availability_zones else "regions"
        name, zone = candidate.type.name, candidate.zone
        if zone not in facts.zones or facts.offered is False:
            what = f"the project sees no {name} in {zone}"
            yield Finding(
                "ORCH205", path, what, detail="the catalogue lists it there", hint="name another zone"
            )
        elif facts.profile is False:
            yield Finding(
                "ORCH205",
                path,
                f"{zone} has no network profile {zone}-{self.shape.profile}, which {name} needs",
                detail="`gcloud compute network-profiles list` lists them",
                hint="name another zone",
            )
        if facts.image is None:
            yield missing_image(
                f"no machine image was found for {name}",
                "name one in `os_image`: `projects/P/global/images/NAME`, or a name of the project's own",
                written=fleet.os_image is not None,
            )
        if not self.shape.fast:
            yield from ethernet_only(
                fleet,
                f"{name} has no fast interconnect: Ethernet only between the nodes",
                f"with one: {', '.join(with_fabric())}",
            )
        yield from capacities.option_findings(fleet, candidate, self.shape)
        yield from capacities.reservation_findings(fleet, facts, Demand(len(self.indices), self.new, 0))
        yield from cidr_findings(self.lookup)
        yield from label_findings(fleet.tags)

    def findings(self) -> Iterator[Finding]:
        decision, fleet = self.decision, self.fleet
        yield from self.place_findings()
        yield from decision.findings
        if "iap" in (decision.way.kind, decision.way.bastion):
            yield from iap_key_findings(self.settings)
        yield from shared_findings(decision.shared, self.context.network)
        yield from lock_findings(decision.networks, self.created_file_systems)
        yield from address_findings(self.lookup, decision.networks, self.new)
        yield from capacities.placement_findings(fleet, self.shape, self.demand)
        others = self.context.other_groups
        yield from capacities.quota_findings(self.candidate, self.facts, self.demand, others)
        yield from unread_findings(self.facts.unread)
        yield from capacities.lifetime_findings(self.ending, self.facts)

    def key_findings(self) -> Iterator[Finding]:
        return key_findings(self.facts.attribute_refusal, self.new, "compute.instances.getGuestAttributes")

    def size_findings(self) -> Iterator[Finding]:
        yield from disk_findings(self.fleet, self.facts.image.size_gb if self.facts.image else None)
        yield from capacities.group_findings(self.group, self.demand)
        if self.decision.way.kind == "bastion" and self.facts.bastion_image is None:
            hint = "write `bastion: false` to reach the nodes through IAP, or give `proxy_jump`"
            yield missing_bastion(self.candidate.region, "network.bastion", hint)

    def node_facts(self) -> dict[str, str | int | bool | None]:
        """Container-Optimized OS comes without NVIDIA's toolkit."""
        bare = self.os == "cos" and self.candidate.type.gpu is not None
        return super().node_facts() | ({"toolkit": False} if bare else {})

    def own_costs(self) -> Iterator[str]:
        if self.decision.networks.nat is not None:
            yield "Cloud NAT and its traffic"
        if self.decision.public or (self.bastion is not None and self.bastion.public):
            yield "public IPv4 addresses"
        yield "root disks"

    def own_pins(self) -> dict[str, str]:
        pins = {"project": self.facts.project}
        lookup = image_lookup(self.fleet, self.settings, self.candidate)
        for pin, image, of in (
            ("image", self.facts.image, lookup.of if lookup else None),
            ("bastion_image", self.facts.bastion_image, bastion_image().of),
        ):
            if image is not None and of is not None:
                pins |= {pin: image.link, f"{pin}_of": of}
        if self.group:
            pins["batches"] = ",".join(map(str, self.group.batches))
        if self.decision.shared:
            pins["network"] = self.decision.shared.name
        return pins

    def own_reasons(self) -> Iterator[str]:
        fleet, shape, facts = self.fleet, self.shape, self.facts
        if self.ending:
            yield self.ending.reason
        yield from networks.reasons(self.decision, shape, self.lookup)
        placement = capacities.placement_reason(fleet, shape, facts, self.placement_policy)
        yield from filter(None, [placement])
        yield from told.capacity_reasons(fleet, self.group, self.scheduling, facts)
        link = self.image.link
        yield image_reason(link, link.removeprefix("projects/"), self.previous)
        yield from told.account_reasons(self.settings.vm_service_account)
        yield from told.software_reasons(shape)
        yield from told.scratch_reasons(self.node_scratch, shape)
        first = "neighbours first, by the block, subblock and host that GCP tells of"
        unknown = f"GCP tells nothing of where a {shape.type} without a placement stands"
        yield from rank_reasons(fleet, first if self.rank_by_host else None, unknown)

    def record(self, fields: dict[str, Any]) -> GcpPlan:
        decision = self.decision
        name, _, count = self.shape.accelerator.partition(":")
        return GcpPlan(
            **fields,
            project=self.facts.project,
            networks=decision.networks,
            shared=decision.shared,
            interfaces=decision.interfaces,
            access=Access(decision.way.kind, self.lookup.block.proxy_jump or ()),
            public=decision.public,
            placement_policy=self.placement_policy,
            given_policy=capacities.given_policy(self.facts),
            group=self.group,
            reservation=_reservation(self.facts),
            scheduling=self.scheduling,
            template=self.template,
            image=self.image.link,
            disk=self.disk,
            accelerator=(name, int(count)) if name else None,
            service_account=self.settings.vm_service_account,
            confidential=self.confidential,
            host_keys=self.known_host_keys,
            labels=self.labels,
            rank_by_host=self.rank_by_host,
        )


# Pieces


def node_os(fleet: Fleet, candidate: CloudCandidate) -> str:
    """The OS of the nodes: that of the catalogue's image, or by the name of a written one."""
    written = written_image(fleet, "gcp")
    if written:
        return "cos" if "cos" in written.split("/")[-1].split("-") else "ubuntu"
    row = gcp_image(candidate.type, image_fabric(candidate))
    return row.os if row else "ubuntu"


def _node_cidrs(decision: networks.NetworkDecision) -> tuple[str, ...]:
    """Networks of the nodes' first interfaces; nothing for those that were there before."""
    return tuple(each.cidr for each in decision.networks.first.subnets if each.cidr)


def _reservation(facts: GcpFacts) -> str | None:
    reservation = facts.reservation
    if reservation is None:
        return None
    own_project = reservation.project == facts.project
    return (
        reservation.name if own_project else f"projects/{reservation.project}/reservations/{reservation.name}"
    )


def _network_words(networks: Networks) -> str:
    """The network of the nodes' first interface, with its project where that is another's."""
    return f"{networks.project}/{networks.first.name}" if networks.project else networks.first.name
