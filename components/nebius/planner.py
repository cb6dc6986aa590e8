"""What a fleet becomes on Nebius: network, GPU cluster and instances, with the reasons. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from orch.catalog.records import Catalog
from orch.components.cloud.cloudinit import (
    RUNS_INIT,
    ended_by_time,
    node_config,
    node_files,
    prepared,
    wrapped,
)
from orch.components.cloud.node_groups import OtherGroups
from orch.components.cloud.plan import Bastion
from orch.components.cloud.planner import Planner
from orch.components.cloud.quotas import unread_findings
from orch.components.cloud.sizing import disk_findings, disk_gb, nvidia
from orch.components.cloud.ssh_access import WORLD, AccessMethod, access_findings, network_of, way_in
from orch.components.idleness import SCRIPT as IDLE_SCRIPT
from orch.components.idleness import IdleRule
from orch.components.lifetime import Lifetime
from orch.components.nebius import explain as told
from orch.components.nebius.account.facts import (
    CPU_IMAGE_FAMILY,
    IMAGE_FAMILY,
    Image,
    Lookups,
    NebiusFacts,
)
from orch.components.nebius.candidates import NebiusCandidate, types_with_fabric
from orch.components.nebius.plan import Disk, NebiusPlan, Network
from orch.components.node_count import all_there
from orch.components.request import PriorState
from orch.runner.preparation.init_steps import steps
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.models import Fleet
from orch.spec.models.backends.nebius import NebiusSettings
from orch.spec.models.blocks import Network as NetworkBlock
from orch.templates import render

# Source: nebius/api compute/v1/instance.proto, cloud_init_user_data.
MOST_USER_DATA = 32_768
# InfiniBand cards of a machine with eight GPUs. Source: skypilot provision/nebius/constants.py.
CARDS = 8
PREPARE = "/usr/local/sbin/orch-prepare"
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
    block, written, pins = network_of(fleet), _image_of(fleet), previous.pins
    of = _family(fleet, candidate)
    here = pins.get("image_region") == candidate.region
    pinned = pins.get("image") if here and pins.get("image_of") == of else None
    by_region = block.subnets.get(candidate.region, ()) if isinstance(block.subnets, dict) else block.subnets
    return Lookups(
        instance_type=candidate.type.name,
        region=candidate.region,
        image=pinned or (written if _is_id(written) else None),
        family=of,
        network=block.vpc,
        subnets=by_region,
        groups=block.security_groups,
        quota=not (candidate.kept and all_there(fleet, previous, indices)),
        bastion=way_in(block, settings).kind == "bastion",
        bastion_type=pins.get("bastion_type") if candidate.kept else None,
        bastion_image=pins.get("bastion_image") if here else None,
    )


def _image_of(fleet: Fleet) -> str | None:
    return fleet.os_image.get("nebius") if isinstance(fleet.os_image, dict) else fleet.os_image


def _family(fleet: Fleet, candidate: NebiusCandidate) -> str:
    """The image of the nodes as it is looked up: what the file writes, else a family by what the type has."""
    return _image_of(fleet) or (IMAGE_FAMILY if candidate.type.gpu_count else CPU_IMAGE_FAMILY)


def _is_id(written: str | None) -> bool:
    return written is not None and written.startswith("computeimage-")


class NebiusPlanner(Planner[NebiusCandidate, NebiusFacts, NebiusPlan, NebiusSettings]):
    """Plan a fleet on Nebius. Errors: ORCH205, 213, 220-232, 235, 281, 313."""

    backend = "nebius"
    title = "Nebius"
    most_user_data = MOST_USER_DATA

    @cached_property
    def access(self) -> AccessMethod:
        return way_in(self.block, self.settings)

    @cached_property
    def bastion(self) -> Bastion | None:
        """The smallest machine without GPUs that the region has, with a public address."""
        kind, image = self.facts.bastion_type, self.facts.bastion_image
        if self.access.kind != "bastion" or kind is None or image is None:
            return None
        return Bastion(kind, image.id, True, self.access.cidrs or (WORLD,), self.machine_price(kind))

    @cached_property
    def image(self) -> Image:
        if self.facts.image is None:
            raise AssertionError("an image that is missing is an error")
        return self.facts.image

    @cached_property
    def network(self) -> Network:
        return _network_plan(self.block, self.facts, self.access)

    @cached_property
    def interconnect(self) -> str:
        return "infiniband" if self.candidate.infiniband else "ethernet"

    @cached_property
    def rank_by_topology(self) -> bool:
        return self.fleet.topology == "rank-ordered" and self.candidate.infiniband is not None

    @cached_property
    def cloud_init(self) -> str:
        return node_init(self.fleet, self.candidate, self.context.scripts, self.idle, self.ending)

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
        yield from _given_findings(self.block, facts)
        yield from _bastion_findings(self.access, facts, candidate.region)
        yield from _image_findings(fleet, candidate, facts, self.previous)
        yield from _fabric_findings(fleet, candidate, self.context.catalog)
        yield from _quota_findings(candidate, facts, self.new, self.context.other_groups)
        yield from unread_findings(facts.unread)
        yield from disk_findings(fleet, facts.image.least_gb if facts.image else None)

    def unpriced(self) -> Iterable[str]:
        return told.unpriced(self.price, self.bastion, public=self.access.public)

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
        jumps = len(self.block.proxy_jump or ())
        yield from told.ending_reasons(self.idle, self.ending)
        yield from told.fabric_reasons(self.candidate, self.facts, self.new)
        yield from told.network_reasons(self.network, self.access, self.bastion, jumps=jumps)
        yield from told.capacity_reasons(self.fleet, self.candidate, whole=self.whole)
        yield from told.image_reasons(self.facts, self.previous)
        yield from told.rank_reasons(self.fleet, by_topology=self.rank_by_topology)

    def record(self, fields: dict[str, Any]) -> NebiusPlan:
        own = {**self.fleet.tags, **self.context.tags, **self.settings.tags, "orch-fleet": self.fleet.name}
        return NebiusPlan(
            **fields,
            project=self.facts.project,
            infiniband=self.candidate.infiniband,
            network=self.network,
            access=self.access.kind,
            public=self.access.public,
            jumps=(self.block.proxy_jump or ()) if self.access.kind == "given" else (),
            image=self.image.id,
            disk=self.disk,
            reservation=self.fleet.reservation,
            rank_by_topology=self.rank_by_topology,
            labels=own,
            whole=self.whole,
        )


def node_init(
    fleet: Fleet,
    candidate: NebiusCandidate,
    scripts: Mapping[str, str],
    idle: IdleRule | None = None,
    ending: Lifetime | None = None,
) -> str:
    """The cloud-config of a node, with marks for its name and its keys.

    `scripts`: the text of `init[].file` by path; `idle` and `ending`: when it ends itself.
    """
    init = steps(fleet, scripts)
    prepare = render(
        "image-prepare.sh.j2",
        gpus=nvidia(candidate.type),
        toolkit=None,
        data=None,
        cards=CARDS if candidate.infiniband else 0,
        idle=IDLE_SCRIPT if idle else None,
        steps=init,
        **RUNS_INIT,
    )
    files = [
        *node_files(PREPARE, sshd="AllowTcpForwarding yes\n"),
        *prepared(PREPARE, prepare, init, cloud=None, idle=idle.script(NebiusPlanner.off) if idle else None),
        *ended_by_time(ending.script(NebiusPlanner.off) if ending else None),
    ]
    return node_config(fleet, files, host_key="given")


# What is found out


def _image_findings(
    fleet: Fleet, candidate: NebiusCandidate, facts: NebiusFacts, previous: PriorState
) -> Iterator[Finding]:
    if facts.image is None:
        written, pinned = _image_of(fleet) is not None, previous.pins.get("image")
        yield Finding(
            "ORCH213",
            "os_image" if written else "resources",
            f"no machine image was found for {candidate.type.name} in {candidate.region}",
            detail=f"{pinned} is pinned, and gone" if pinned else None,
            hint="`orch up --upgrade` takes the newest"
            if pinned and not written
            else "name one in `os_image`: an id (`computeimage-…`) or a family",
        )


def _fabric_findings(fleet: Fleet, candidate: NebiusCandidate, catalog: Catalog) -> Iterator[Finding]:
    plain = fleet.network is not None and fleet.network.interconnect == "ethernet"
    if fleet.placement == "cluster" and candidate.infiniband is None and not plain:
        name = candidate.type.name
        fast = types_with_fabric(catalog)
        yield Finding(
            "ORCH223",
            "instance_types" if fleet.instance_types else "placement",
            f"no fabric is known for {name} in {candidate.region}: Ethernet only between the nodes"
            if name in fast
            else f"{name} has no InfiniBand: Ethernet only between the nodes",
            hint=f"with InfiniBand: {', '.join(fast)}; or write `network: {{interconnect: ethernet}}`",
            severity=Severity.WARNING,
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


def _given_findings(block: NetworkBlock, facts: NebiusFacts) -> Iterator[Finding]:
    """Given pieces that are not there."""
    for name in facts.missing:
        path = "network"
        if name == block.vpc:
            path = "network.vpc"
        elif not isinstance(block.subnets, dict) and name in block.subnets:
            path = f"network.subnets[{block.subnets.index(name)}]"
        elif name in block.security_groups:
            path = f"network.security_groups[{block.security_groups.index(name)}]"
        yield Finding(
            "ORCH226",
            path,
            f"the project {facts.project} has no {name}",
            hint="name it by its id or its name, in the project of the fleet's region",
        )
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
        yield Finding(
            "ORCH213",
            "network",
            f"no machine {what} was found for a bastion in {region}",
            hint="write `ssh_cidrs`, the networks that you come from, or give `proxy_jump`",
        )
