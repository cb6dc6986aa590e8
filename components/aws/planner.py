"""What a fleet becomes on AWS: every network, interface, group and instance, and the user data that makes an
instance a node, with the reasons. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from orch.catalog.aws.machines import Nics, nics
from orch.components import file_systems
from orch.components.aws import capacity as capacities
from orch.components.aws import explain as told
from orch.components.aws import network as networks
from orch.components.aws import nics as cards
from orch.components.aws.account.facts import AwsFacts
from orch.components.aws.account.lookups import (
    BASTION_TYPE,
    NetworkLookup,
    bastion_image,
    image_lookup,
    layout,
    network_lookup,
)
from orch.components.aws.candidates import CloudCandidate, with_efa
from orch.components.aws.capacity import Demand
from orch.components.aws.nics import Interface
from orch.components.aws.plan import AwsPlan, Capacity, Disk, ExistingNetwork, PlacementGroup
from orch.components.aws.storage.rules import open_to_servers, server_findings
from orch.components.cloud.findings import ethernet_only, missing_bastion, missing_image
from orch.components.cloud.machines.cloudinit import (
    RUNS_INIT,
    File,
    ended_by_time,
    node_config,
    node_files,
    prepared,
    scratch,
    wrapped,
)
from orch.components.cloud.node_groups import SPREADS, may_spread, spreads
from orch.components.cloud.plan import Bastion
from orch.components.cloud.planner import Planner
from orch.components.cloud.quotas import unread_findings
from orch.components.cloud.reasons import image_reason, rank_reasons
from orch.components.cloud.sizing import disk_findings, disk_gb, key_findings, nvidia
from orch.components.idleness import SCRIPT as IDLE_SCRIPT
from orch.runner.preparation.init_steps import steps
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, settle
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.models.blocks import Scratch
from orch.templates import render

# Source: EC2 user guide, "Run commands when you launch an EC2 instance with user data input".
MOST_BYTES = 16_384
PREPARE = "/usr/local/sbin/orch-prepare"
EFA_INSTALLER = "1.43.2"
# Linux gives EFA's libfabric huge pages of 2 MiB; the EFA installer reserves as many.
HUGE_PAGES = 5128
_KEY_SIZE = 160
"""Bytes of user data that the client's key takes, about, which does not compress."""


class AwsPlanner(Planner[CloudCandidate, AwsFacts, AwsPlan, AwsSettings]):
    """Plan a fleet on AWS. Errors: ORCH200-231, 281, 310-323."""

    backend = "aws"
    title = "AWS"
    most_user_data = MOST_BYTES

    @cached_property
    def nics(self) -> Nics:
        return nics()[self.candidate.type.name]

    @cached_property
    def interfaces(self) -> tuple[Interface, ...]:
        return layout(self.fleet, self.candidate)

    @cached_property
    def demand(self) -> Demand:
        return Demand(len(self.indices), self.new, len(self.interfaces))

    @cached_property
    def stays(self) -> bool:
        return self.candidate.kept or self.candidate.additional

    @cached_property
    def spread(self) -> bool:
        """Whether the fleet may get nodes in other zones."""
        return spreads(self.fleet, self.previous) if self.stays else may_spread(self.fleet)

    @cached_property
    def base(self) -> str:
        """What names of cloud resources begin with."""
        return f"orch-{self.fleet.name}-{self.scope}"

    @cached_property
    def efa(self) -> int:
        return sum(interface.kind != "interface" for interface in self.interfaces)

    @cached_property
    def interconnect(self) -> str:
        return "efa" if self.efa else "ethernet"

    @cached_property
    def prepaid(self) -> bool:
        """Whether the nodes are of a capacity block, which is paid in advance."""
        return self.facts.reservation is not None and self.facts.reservation.kind == "block"

    @cached_property
    def price(self) -> float | None:
        return None if self.prepaid else self.candidate.price

    @cached_property
    def place_words(self) -> str:
        return told.words(self.candidate, block=self.prepaid)

    @cached_property
    def lookup(self) -> NetworkLookup:
        return network_lookup(self.fleet, self.settings, self.candidate.region)

    @cached_property
    def decision(self) -> networks.NetworkDecision:
        """The network. Raises PlanErrors with all that is wrong so far."""
        decision = networks.decide_network(self.lookup, self.candidate, self.facts, self.demand, self.base)
        if not isinstance(decision, networks.NetworkDecision):
            reserved = capacities.reservation_findings(self.fleet, self.facts, self.demand)
            settle([*self.card_findings(), *decision, *self.place_findings(bastion=False), *reserved])
            raise AssertionError("a network without a decision has an error")
        return decision

    @cached_property
    def cloud_init(self) -> str:
        """The cloud-config of all nodes, with a mark for the client's key."""
        init = steps(self.fleet, self.context.scripts)
        prepare = render(
            "cloud-init-prepare.sh.j2",
            gpus=nvidia(self.candidate.type),
            efa=self.efa,
            efa_installer=EFA_INSTALLER,
            scratch=self.node_scratch,
            idle=IDLE_SCRIPT if self.idle else None,
            steps=init,
            **RUNS_INIT,
        )
        ssm = self.decision.access.way == "ssm"
        files = [
            *node_files(PREPARE),
            *prepared(PREPARE, prepare, init, cloud="aws", ssm=ssm, idle=self.idle_script),
            *ended_by_time(self.ending_script),
        ]
        if self.efa:
            files.append(File("/etc/sysctl.d/90-orch.conf", f"vm.nr_hugepages = {HUGE_PAGES}\n"))
        return node_config(self.fleet, files)

    @cached_property
    def user_data_size(self) -> int:
        """None is sent where no node is new."""
        return len(wrapped(self.cloud_init)) + _KEY_SIZE if self.new else 0

    @cached_property
    def tags(self) -> dict[str, str]:
        own = {"orch:fleet": self.fleet.name}
        return {**self.fleet.tags, **self.context.tags, **self.settings.tags, **own}

    @cached_property
    def tags_readable(self) -> bool:
        """The one key of ours that EC2 does not let an instance read: such a launch fails."""
        return "_index" not in self.tags

    @cached_property
    def ending_stamp(self) -> str:
        """A node that reads its tags finds a later moment there."""
        if self.ending is None:
            return ""
        return "on" if self.tags_readable else self.ending.stamp

    @cached_property
    def group(self) -> PlacementGroup | None:
        return capacities.placement_group(self.fleet, self.facts, self.nics, self.base)

    @cached_property
    def capacity(self) -> Capacity:
        return capacities.capacity(self.fleet, self.candidate, self.facts, self.demand)

    @cached_property
    def bastion(self) -> Bastion | None:
        image = self.facts.bastion_image
        if self.decision.bastion is None or image is None:
            return None
        public = self.decision.bastion == "public"
        cidrs = self.lookup.ssh_cidrs if public else ()
        return Bastion(BASTION_TYPE, image.id, public, cidrs, self.machine_price(BASTION_TYPE))

    @cached_property
    def bastion_leads_to(self) -> Sequence[str]:
        """The networks of nodes, also of those that other node groups may get."""
        network = self.decision.network
        if isinstance(network, ExistingNetwork):
            return [network.cidr]
        return [network.nodes_cidr, *(networks.MORE if self.spread else ())]

    @cached_property
    def created_file_systems(self) -> tuple[file_systems.FileSystem, ...]:
        return file_systems.created(self.fleet)

    @cached_property
    def file_system_place(self) -> str:
        network = self.decision.network
        return network.vpc if isinstance(network, ExistingNetwork) else "the fleet's own"

    @cached_property
    def disk(self) -> Disk:
        return Disk(self.image.root_device, disk_gb(self.fleet), self.settings.kms_key)

    @cached_property
    def node_scratch(self) -> Scratch | None:
        return scratch(self.fleet, self.nics.disks)

    @cached_property
    def layout_parts(self) -> tuple[object, ...]:
        return (
            self.candidate.type.name,
            self.candidate.zone,
            self.image.id,
            self.capacity.market,
            self.interfaces,
            self.decision.addresses.kind,
            self.node_scratch,
            self.disk,
        )

    def place_findings(self, *, bastion: bool) -> Iterator[Finding]:
        """Report a missing zone, and images. `bastion`: a bastion leads in."""
        fleet, candidate, facts = self.fleet, self.candidate, self.facts
        if facts.zone(candidate.zone) is None:
            path = "availability_zones" if fleet.availability_zones else "regions"
            summary = f"this account has no zone {candidate.zone} in {candidate.region}"
            zones = ", ".join(zone.id for zone in facts.zones)
            yield Finding("ORCH205", path, summary, hint=f"it has {zones}")
        if bastion and facts.bastion_image is None:
            hint = "write `bastion: false` to reach the nodes through SSM, or give `proxy_jump`"
            yield missing_bastion(candidate.region, "network.bastion", hint)
        if facts.image is None:
            yield missing_image(
                f"no machine image was found for {candidate.type.name} in {candidate.region}",
                "name one in `os_image`: an id (`ami-…`) or a name",
                written=fleet.os_image is not None,
                pinned=self.previous.pins.get("image"),
            )

    def card_findings(self) -> Iterator[Finding]:
        """Report network cards that AWS and the catalogue differ in, and a cluster without EFA."""
        fleet, each, reported = self.fleet, self.nics, self.facts.cards
        if reported is not None and each.cards and reported != (each.cards, each.efa):
            words = "{} network cards and {} EFA interfaces".format(*reported)
            yield Finding(
                "ORCH209",
                "instance_types" if fleet.instance_types else "resources",
                f"AWS tells of {words} on {each.type}, the catalogue of {each.cards} and {each.efa}",
                detail="the plan goes by the catalogue",
                severity=Severity.WARNING,
            )
        if not each.fast:
            name = self.candidate.type.name
            yield from ethernet_only(
                fleet,
                f"the catalogue does not know the network cards of {name}: Ethernet only between the nodes"
                if each.efa
                else f"{name} has no fast interconnect: Ethernet only between the nodes",
                f"types with EFA: {with_efa()}",
            )

    def findings(self) -> Iterator[Finding]:
        decision, facts, demand = self.decision, self.facts, self.demand
        yield from self.card_findings()
        yield from self.place_findings(bastion=decision.bastion is not None)
        yield from decision.findings
        yield from capacities.reservation_findings(self.fleet, facts, demand)
        nat_ips = 0 if self.stays else networks.elastic_ips(decision, demand)[1]
        others = self.context.other_groups
        yield from capacities.quota_findings(self.candidate, facts, demand, others, nat_ips)
        yield from unread_findings(facts.unread)

    def key_findings(self) -> Iterator[Finding]:
        refusal = self.facts.console_refusal
        return key_findings(refusal, self.new, "ec2:GetConsoleOutput", Severity.WARNING)

    def size_findings(self) -> Iterator[Finding]:
        return disk_findings(self.fleet, self.facts.image.size_gb if self.facts.image else None)

    def budget_findings(self) -> Iterable[Finding]:
        return () if self.prepaid else super().budget_findings()

    @cached_property
    def servers(self) -> tuple[Any, ...]:
        """What decides who may reach the servers of file systems."""
        decision = self.decision
        return decision.groups, decision.network, self.facts.subnets, self.created_file_systems

    def last_findings(self) -> Iterable[Finding]:
        return server_findings(*self.servers)

    @cached_property
    def unpriced_nodes(self) -> str | None:
        return "nodes: paid for with the Capacity Block" if self.prepaid else super().unpriced_nodes

    def own_costs(self) -> Iterator[str]:
        return told.own_costs(self.decision, self.bastion)

    def own_pins(self) -> dict[str, str]:
        pins: dict[str, str] = {SPREADS: "true"} if self.spread else {}
        lookup = image_lookup(self.fleet, self.settings, self.candidate)
        for pin, image, of in (
            ("image", self.facts.image, lookup.of if lookup else None),
            ("bastion_image", self.facts.bastion_image, bastion_image(self.candidate).of),
        ):
            if image is not None and of is not None:
                pins |= {pin: image.id, f"{pin}_name": image.name, f"{pin}_of": of}
                pins[f"{pin}_region"] = self.candidate.region
        return pins

    def own_reasons(self) -> Iterator[str]:
        fleet, facts = self.fleet, self.facts
        yield from cards.words(self.nics, self.interfaces)
        group = capacities.group_reason(fleet, facts, self.nics, self.group)
        yield from filter(None, [group])
        yield from told.capacity_reasons(self.capacity.reserved_nodes, facts, self.candidate)
        if self.ending:
            yield self.ending.reason
        yield from networks.reasons(self.lookup, self.decision, self.demand)
        yield image_reason(self.image.id, f"{self.image.id} ({self.image.name})", self.previous)
        yield from told.scratch_reasons(fleet, self.nics)
        first = f"neighbours in the network first, by the {self.nics.levels} levels that AWS tells of"
        unknown = f"AWS tells nothing of where a {self.nics.type} is in the network"
        yield from rank_reasons(fleet, first if self.nics.levels else None, unknown)

    def record(self, fields: dict[str, Any]) -> AwsPlan:
        facts, decision = self.facts, self.decision
        zone = facts.zone(self.candidate.zone)
        if zone is None:
            raise AssertionError("a place that is missing is an error")
        return AwsPlan(
            **fields,
            zone_name=zone.name,
            network=decision.network,
            groups=open_to_servers(*self.servers),
            access=decision.access,
            addresses=decision.addresses,
            group=self.group,
            capacity=self.capacity,
            interfaces=self.interfaces,
            image=self.image.id,
            disk=self.disk,
            profile=self.settings.iam_instance_profile,
            ssm=decision.profile_for,
            confidential=self.confidential,
            host_keys=self.known_host_keys,
            tags_readable=self.tags_readable,
            tags=self.tags,
            rank_by_topology=self.ranked and self.nics.levels > 0,
            starts=facts.reservation.start if facts.reservation else None,
            ends=facts.reservation.end if facts.reservation else None,
        )
