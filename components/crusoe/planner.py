"""What a fleet becomes on Crusoe: network, InfiniBand partition and VMs, with the reasons. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

from orch.components.cloud.findings import ethernet_only, missing_image, missing_pieces, written_image
from orch.components.cloud.machines.cloudinit import filled
from orch.components.cloud.machines.ssh_access import access_findings, network_of, subnets_in, way_in
from orch.components.cloud.neocloud import NeocloudPlanner
from orch.components.cloud.node_groups import OtherGroups
from orch.components.cloud.quotas import unread_findings
from orch.components.cloud.reasons import ending_reasons, image_reason, rank_reasons
from orch.components.cloud.sizing import disk_gb
from orch.components.crusoe import explain as told
from orch.components.crusoe.account.facts import CrusoeFacts, Image, Lookups
from orch.components.crusoe.candidates import CrusoeCandidate, Machine, machines
from orch.components.crusoe.plan import BASTION_IMAGE, BASTION_TYPE, CrusoePlan, Network
from orch.components.crusoe.startup import MOST, startup_script
from orch.components.node_count import all_there
from orch.components.request import PriorState
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.models import Fleet
from orch.spec.models.backends.crusoe import CrusoeSettings
from orch.spec.models.blocks import Network as NetworkBlock
from orch.spec.suggest import few

# What a host key and the client's take in a script, when it is planned.
_KEY = "x" * 400


def needed_lookups(
    fleet: Fleet,
    settings: CrusoeSettings,
    candidate: CrusoeCandidate,
    previous: PriorState,
    indices: Sequence[int] | None = None,
) -> Lookups:
    """What has to be asked for a plan: an image that the stack has pinned by that tag; a quota where machines
    have to be made."""
    block, pins = network_of(fleet), previous.pins
    pinned = pins.get("image") if pins.get("image_of") == _image_of(fleet, candidate) else None
    behind = way_in(block, settings).kind == "bastion"
    return Lookups(
        instance_type=candidate.type.name,
        location=candidate.region,
        image=pinned or _image_of(fleet, candidate),
        network=block.vpc,
        subnets=subnets_in(block, candidate.region),
        quota=not (candidate.kept and all_there(fleet, previous, indices)),
        bastion_image=(pins.get("bastion_image") or BASTION_IMAGE) if behind else None,
    )


def _image_of(fleet: Fleet, candidate: CrusoeCandidate) -> str:
    """The image of the nodes as it is looked up: what the file writes, else the one of the type."""
    return written_image(fleet, "crusoe") or f"{machines()[candidate.type.name].image}:latest"


class CrusoePlanner(NeocloudPlanner[CrusoeCandidate, CrusoeFacts, CrusoePlan, CrusoeSettings]):
    """Plan a fleet on Crusoe. Errors: ORCH213, 223-238, 281, 313, 321-323."""

    backend = "crusoe"
    title = "Crusoe"
    most_user_data = MOST

    @cached_property
    def bastion_parts(self) -> tuple[str, Image | None]:
        return BASTION_TYPE, self.facts.bastion_image

    @cached_property
    def network(self) -> Network:
        region = self.candidate.region
        given = next((each for each in self.facts.subnets if each.location == region), None)
        return Network(given.id if given else None, given.network if given else None, self.access.sources)

    @cached_property
    def machine(self) -> Machine:
        """What the catalogue has of the type beside what it has of those of all clouds."""
        return machines()[self.candidate.type.name]

    @cached_property
    def cards(self) -> int:
        return self.machine.hcas if self.candidate.infiniband else 0

    @cached_property
    def data(self) -> Literal["local", "disk"]:
        return "local" if self.machine.nvme else "disk"

    @cached_property
    def user_data_size(self) -> int:
        text = filled(self.cloud_init, name="node", host_key=_KEY, host_key_public=_KEY, authorized_key=_KEY)
        return len(startup_script(text))

    @cached_property
    def data_gib(self) -> int | None:
        """The size of a node's data disk; None where it has disks of its own."""
        return None if self.machine.nvme else disk_gb(self.fleet)

    @cached_property
    def layout_parts(self) -> tuple[object, ...]:
        place = self.candidate
        return (
            place.type.name,
            place.region,
            place.network_id,
            self.image,
            self.data_gib,
            self.fleet.reservation,
        )

    def findings(self) -> Iterator[Finding]:
        fleet, candidate, facts = self.fleet, self.candidate, self.facts
        yield from access_findings("Crusoe", self.block, self.access, all_public=True)
        yield from missing_pieces(self.block, facts.missing, facts.project, "name it by its id or its name")
        yield from _subnet_findings(self.block, facts, candidate.region)
        if facts.image is None:
            yield missing_image(
                f"Crusoe has no machine image {_image_of(fleet, candidate)} in {candidate.region}",
                "name one in `os_image`, as `name:tag`: `crusoe compute images list` shows them",
                written=fleet.os_image is not None,
                pinned=self.previous.pins.get("image"),
            )
        if self.machine.nvme and "disk_mib" in fleet.resources.model_fields_set:
            yield Finding(
                "ORCH237",
                "resources.disk",
                f"{candidate.type.name} has local disks: no disk of {disk_gb(fleet)} GB is created",
                hint="remove it: images and containers of jobs use the local disks",
                severity=Severity.WARNING,
            )
        if candidate.infiniband is None:
            yield from _fabric_findings(fleet, candidate)
        yield from _reservation_findings(fleet, candidate, facts, self.new)
        yield from _quota_findings(candidate, facts, self.new, self.context.other_groups)
        yield from unread_findings(facts.unread)

    def own_costs(self) -> Iterator[str]:
        yield "public IPv4 addresses"
        if self.data_gib is not None:
            yield "data disks"

    def own_pins(self) -> dict[str, str]:
        bastion, network = self.facts.bastion_image, self.candidate.network_id
        return {
            "project": self.facts.project,
            "spot": "false",
            "image": self.image.id,
            "image_of": _image_of(self.fleet, self.candidate),
            **({"ib_network": network} if network else {}),
            **({"bastion_image": bastion.name} if bastion else {}),
        }

    def own_reasons(self) -> Iterator[str]:
        fleet, candidate, facts = self.fleet, self.candidate, self.facts
        yield from ending_reasons(self.idle, self.ending, told.left_words(fleet))
        yield from told.fabric_reasons(candidate, facts, self.new)
        yield from told.network_reasons(self.network, self.access, self.bastion, jumps=len(self.jumps))
        yield from told.capacity_reasons(fleet, candidate, facts, self.new, whole=self.whole)
        yield image_reason(self.image.id, self.image.name, self.previous)
        yield from told.disk_reasons(self.data_gib)
        yield from rank_reasons(
            fleet,
            "nodes of one rail-optimised pod first, which Crusoe tells of" if self.rank_by_topology else None,
            "Crusoe tells where machines of a partition stand, of others nothing",
        )

    def record(self, fields: dict[str, Any]) -> CrusoePlan:
        bastion = self.facts.bastion_image
        return CrusoePlan(
            **fields,
            project=self.facts.project,
            ib_network=self.candidate.network_id or None,
            network=self.network,
            public=True,
            bastion_image=bastion.name if self.bastion and bastion else None,
            disk_gib=self.data_gib,
            reservation=self.fleet.reservation,
            rank_by_topology=self.rank_by_topology,
        )


# What is found out


def _subnet_findings(block: NetworkBlock, facts: CrusoeFacts, region: str) -> Iterator[Finding]:
    """Report a given network that has no subnet in the fleet's region."""
    here = [each for each in facts.subnets if each.location == region]
    if (block.vpc or block.subnets) and not facts.missing and not here:
        others = ", ".join(f"{each.name} in {each.location}" for each in facts.subnets)
        yield Finding(
            "ORCH225",
            "network.vpc" if block.vpc else "network.subnets",
            f"the given network has no subnet in {region}",
            detail=f"it has {others}" if others else None,
            hint="make one, name another network, or name its location in `regions`",
        )


def _fabric_findings(fleet: Fleet, candidate: CrusoeCandidate) -> Iterator[Finding]:
    name = candidate.type.name
    fast = sorted(kind for kind, each in machines().items() if each.hcas)
    return ethernet_only(
        fleet,
        f"the project has no InfiniBand network for {name} in {candidate.region}: Ethernet only"
        if name in fast
        else f"{name} has no InfiniBand: Ethernet only between the nodes",
        f"with InfiniBand: {', '.join(fast)}",
    )


def _reservation_findings(
    fleet: Fleet, candidate: CrusoeCandidate, facts: CrusoeFacts, new: int
) -> Iterator[Finding]:
    name = candidate.type.name
    if fleet.reservation is not None and facts.reservations is not None:
        yield from _named_reservation(fleet.reservation, candidate, facts, new)
    elif machines()[name].sold == "reserved" and fleet.reservation is None:
        yield Finding(
            "ORCH238",
            "instance_types" if fleet.instance_types else "resources",
            f"{name} is sold with a reservation only: without one of this project it is out of stock",
            detail="Crusoe looks for one that fits by itself; `reservation: ID` takes that one alone",
            hint="name the reservation, or take a type that is sold on demand: "
            + ", ".join(sorted(kind for kind, each in machines().items() if each.sold == "on-demand")),
            severity=Severity.WARNING,
        )


def _named_reservation(
    name: str, candidate: CrusoeCandidate, facts: CrusoeFacts, new: int
) -> Iterator[Finding]:
    """Whether the given reservation is there, is for this project and place, and holds what is new."""
    known = facts.reservations or ()
    found = next((each for each in known if each.id == name), None)
    if found is None:
        there = few(each.id for each in known)
        yield Finding(
            "ORCH322",
            "reservation",
            f"the organization of the project has no reservation {name}",
            hint=f"it has {there}" if there else "it has none: remove the line",
        )
        return
    if found.projects and facts.project not in found.projects:
        yield Finding(
            "ORCH323",
            "reservation",
            f"the reservation {name} is not for the project {facts.project}",
            hint="name one that is, or ask Crusoe's support to let this project use it",
        )
    if found.locations and candidate.region not in found.locations:
        yield Finding(
            "ORCH323",
            "reservation",
            f"the reservation {name} is in {few(found.locations)}, not in {candidate.region}",
            hint=f"write `regions: [{found.locations[0]}]`, or name another reservation",
        )
    needed = new * (candidate.type.gpu_count or candidate.type.vcpus or 1)
    unit = "GPUs" if candidate.type.gpu_count else "vCPUs"
    if needed > found.free:
        yield Finding(
            "ORCH321",
            "reservation",
            f"{found.free} of the reservation's {found.quantity} {unit} are free, this needs {needed} more",
            detail="VMs that run use the rest; what is stopped uses none",
            hint="ask for fewer nodes, or name another reservation",
        )


def _quota_findings(
    candidate: CrusoeCandidate,
    facts: CrusoeFacts,
    new: int,
    others: OtherGroups[CrusoePlan, CrusoeFacts],
) -> Iterator[Finding]:
    quota = facts.quota
    if quota is None or not new:
        return
    before = sum(
        each.new * candidate.type.gpu_count
        for each in others.planned
        if each.plan.instance_type == candidate.type.name
    )
    needed = before + new * (candidate.type.gpu_count or 1)
    if needed > quota.free:
        yield Finding(
            "ORCH313",
            "nodes",
            f"the quota {quota.name} of the project is {quota.limit}, {quota.used} are in use: "
            f"this needs {needed} more",
            hint="ask Crusoe's support for more, or ask for fewer nodes",
        )
