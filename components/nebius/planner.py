"""What a fleet becomes on Nebius: network, GPU cluster and instances, with the reasons. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from orch.catalog.records import Catalog
from orch.components.cloud.findings import (
    ethernet_only,
    missing_bastion,
    missing_image,
    missing_pieces,
    written_image,
)
from orch.components.cloud.machines.cloudinit import wrapped
from orch.components.cloud.machines.ssh_access import (
    AccessMethod,
    access_findings,
    network_of,
    subnets_in,
    way_in,
)
from orch.components.cloud.neocloud import NeocloudPlanner
from orch.components.cloud.node_groups import OtherGroups
from orch.components.cloud.quotas import unread_findings
from orch.components.cloud.reasons import ending_reasons, image_reason, rank_reasons
from orch.components.cloud.sizing import disk_findings, disk_gb
from orch.components.nebius import explain as told
from orch.components.nebius.account.facts import CPU_IMAGE_FAMILY, IMAGE_FAMILY, Image, Lookups, NebiusFacts
from orch.components.nebius.candidates import NebiusCandidate, types_with_fabric
from orch.components.nebius.plan import Disk, NebiusPlan, Network
from orch.components.node_count import all_there
from orch.components.request import PriorState
from orch.spec.findings import Finding
from orch.spec.models import Fleet
from orch.spec.models.backends.nebius import NebiusSettings
from orch.spec.models.blocks import Network as NetworkBlock

# Source: nebius/api compute/v1/instance.proto, cloud_init_user_data.
MOST_USER_DATA = 32_768
# InfiniBand cards of a machine with eight GPUs. Source: skypilot provision/nebius/constants.py.
CARDS = 8
LEFT = "its root disk is billed until the next `up` or `orch reconcile`"
"""What a node costs that ended itself."""

GIVEN_HINT = "name it by its id or its name, in the project of the fleet's region"
# What a machine's host key takes in its user data, which does not compress, with the client's.
_KEYS_SIZE = 1024


def needed_lookups(
    fleet: Fleet,
    settings: NebiusSettings,
    candidate: NebiusCandidate,
    previous: PriorState,
    indices: Sequence[int] | None = None,
) -> Lookups:
    """What has to be asked for a plan. An image that the stack has pinned is asked for by its id; a quota
    where machines have to be made."""
    block, written, pins = network_of(fleet), written_image(fleet, "nebius"), previous.pins
    of = _family(fleet, candidate)
    here = pins.get("image_region") == candidate.region
    pinned = pins.get("image") if here and pins.get("image_of") == of else None
    return Lookups(
        instance_type=candidate.type.name,
        region=candidate.region,
        image=pinned or (written if _is_id(written) else None),
        family=of,
        network=block.vpc,
        subnets=subnets_in(block, candidate.region),
        groups=block.security_groups,
        quota=not (candidate.kept and all_there(fleet, previous, indices)),
        bastion=way_in(block, settings).kind == "bastion",
        bastion_type=pins.get("bastion_type") if candidate.kept else None,
        bastion_image=pins.get("bastion_image") if here else None,
    )


def _family(fleet: Fleet, candidate: NebiusCandidate) -> str:
    """The image of the nodes as it is looked up: what the file writes, else a family by what the type has."""
    return written_image(fleet, "nebius") or (IMAGE_FAMILY if candidate.type.gpu_count else CPU_IMAGE_FAMILY)


def _is_id(written: str | None) -> bool:
    return written is not None and written.startswith("computeimage-")


class NebiusPlanner(NeocloudPlanner[NebiusCandidate, NebiusFacts, NebiusPlan, NebiusSettings]):
    """Plan a fleet on Nebius. Errors: ORCH205, 213, 220-232, 235, 281, 313."""

    backend = "nebius"
    title = "Nebius"
    most_user_data = MOST_USER_DATA

    @cached_property
    def bastion_parts(self) -> tuple[str | None, Image | None]:
        """The smallest type without GPUs that the region has."""
        return self.facts.bastion_type, self.facts.bastion_image

    @cached_property
    def network(self) -> Network:
        return _network_plan(self.block, self.facts, self.access)

    @cached_property
    def cards(self) -> int:
        return CARDS if self.candidate.infiniband else 0

    @cached_property
    def user_data_size(self) -> int:
        return len(wrapped(self.cloud_init)) + _KEYS_SIZE

    @cached_property
    def disk(self) -> Disk:
        return Disk(disk_gb(self.fleet))

    @cached_property
    def layout_parts(self) -> tuple[object, ...]:
        place, image = self.candidate, self.image.id
        return (
            place.type.name,
            place.zone,
            image,
            place.spot,
            self.access.public,
            self.disk,
            self.fleet.reservation,
        )

    def findings(self) -> Iterator[Finding]:
        fleet, candidate, facts = self.fleet, self.candidate, self.facts
        yield from access_findings("Nebius", self.block, self.access)
        yield from missing_pieces(self.block, facts.missing, facts.project, GIVEN_HINT)
        yield from _subnet_findings(self.block, facts)
        yield from _bastion_findings(self.access, facts, candidate.region)
        if facts.image is None:
            yield missing_image(
                f"no machine image was found for {candidate.type.name} in {candidate.region}",
                "name one in `os_image`: an id (`computeimage-…`) or a family",
                written=written_image(fleet, "nebius") is not None,
                pinned=self.previous.pins.get("image"),
            )
        if candidate.infiniband is None:
            yield from _fabric_findings(fleet, candidate, self.context.catalog)
        yield from _quota_findings(candidate, facts, self.new, self.context.other_groups)
        yield from unread_findings(facts.unread)
        yield from disk_findings(fleet, facts.image.least_gb if facts.image else None)

    def own_costs(self) -> Iterator[str]:
        if self.access.public or self.bastion is not None:
            yield "public IPv4 addresses"
        yield "root disks"

    def own_pins(self) -> dict[str, str]:
        facts = self.facts
        return {
            "project": facts.project,
            "image": self.image.id,
            "image_of": _family(self.fleet, self.candidate),
            "image_region": self.candidate.region,
            **({"bastion_type": facts.bastion_type} if facts.bastion_type else {}),
            **({"bastion_image": facts.bastion_image.id} if facts.bastion_image else {}),
        }

    def own_reasons(self) -> Iterator[str]:
        yield from ending_reasons(self.idle, self.ending, LEFT)
        yield from told.fabric_reasons(self.candidate, self.facts, self.new)
        yield from told.network_reasons(self.network, self.access, self.bastion, jumps=len(self.jumps))
        yield from told.capacity_reasons(self.fleet, self.candidate, whole=self.whole)
        yield image_reason(self.image.id, f"{self.image.name} ({self.image.id})", self.previous)
        first = "neighbours in the InfiniBand network first, by the 3 levels that Nebius tells of"
        yield from rank_reasons(
            self.fleet,
            first if self.rank_by_topology else None,
            "Nebius tells where machines of a GPU cluster stand, of others nothing",
        )

    def record(self, fields: dict[str, Any]) -> NebiusPlan:
        own = {**self.fleet.tags, **self.context.tags, **self.settings.tags, "orch-fleet": self.fleet.name}
        return NebiusPlan(
            **fields,
            project=self.facts.project,
            infiniband=self.candidate.infiniband,
            network=self.network,
            public=self.access.public,
            disk=self.disk,
            reservation=self.fleet.reservation,
            rank_by_topology=self.rank_by_topology,
            labels=own,
        )


# What is found out


def _fabric_findings(fleet: Fleet, candidate: NebiusCandidate, catalog: Catalog) -> Iterator[Finding]:
    name, fast = candidate.type.name, types_with_fabric(catalog)
    return ethernet_only(
        fleet,
        f"no fabric is known for {name} in {candidate.region}: Ethernet only between the nodes"
        if name in fast
        else f"{name} has no InfiniBand: Ethernet only between the nodes",
        f"with InfiniBand: {', '.join(fast)}",
    )


def _quota_findings(
    candidate: NebiusCandidate,
    facts: NebiusFacts,
    new: int,
    others: OtherGroups[NebiusPlan, NebiusFacts],
) -> Iterator[Finding]:
    quota = facts.quota
    if quota is None or not new:
        return
    platform = candidate.type.name.rpartition("_")[0]
    before = sum(
        each.new * int(each.plan.gpus.get("count") or 0)
        for each in others.planned
        if each.plan.platform == platform
    )
    needed = new * candidate.type.gpu_count
    if before + needed > quota.free:
        yield Finding(
            "ORCH313",
            "nodes",
            f"the quota {quota.name} in {candidate.region} is {quota.limit} GPUs, {quota.usage} are in use: "
            f"this needs {before + needed} more",
            hint="ask for more in the console: Limits, Quotas; or use another region",
        )


# The network: what is given, what is made, and its bastion


def _subnet_findings(block: NetworkBlock, facts: NebiusFacts) -> Iterator[Finding]:
    if (block.vpc or block.subnets) and not facts.missing and not facts.subnets:
        yield Finding(
            "ORCH226",
            "network.vpc" if block.vpc else "network.subnets",
            "the given network has no subnet in this region",
            hint="make one, or name another network",
        )


def _network_plan(block: NetworkBlock, facts: NebiusFacts, access: AccessMethod) -> Network:
    given = facts.subnets[0] if facts.subnets else None
    return Network(
        subnet=given.id if given else None,
        network=given.network if given else None,
        groups=facts.groups if block.security_groups else None,
        ssh_from=access.sources,
    )


def _bastion_findings(access: AccessMethod, facts: NebiusFacts, region: str) -> Iterator[Finding]:
    if access.kind == "bastion" and (facts.bastion_type is None or facts.bastion_image is None):
        what = "type" if facts.bastion_type is None else "image"
        hint = "write `ssh_cidrs`, the networks that you come from, or give `proxy_jump`"
        yield missing_bastion(region, "network", hint, part=what)
