"""What a fleet becomes on Nebius: network, GPU cluster and instances, with the reasons. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orch.catalog.fabrics import Fabric
from orch.catalog.records import Catalog
from orch.components import file_systems
from orch.components.cloud.backend import place_reason
from orch.components.cloud.cloudinit import (
    RUNS_INIT,
    bastion_config,
    ended_by_time,
    first_boot_findings,
    first_boot_pins,
    node_config,
    node_files,
    prepared,
    wrapped,
)
from orch.components.cloud.node_groups import OtherGroups
from orch.components.cloud.plan import Bastion, plan_fields
from orch.components.cloud.quotas import unread_findings
from orch.components.cloud.sizing import (
    budget_findings,
    disk_findings,
    disk_gb,
    fingerprint,
    nvidia,
    user_data_findings,
)
from orch.components.cloud.ssh_access import PRIVATE, WORLD, AccessMethod, access_findings, network_of, way_in
from orch.components.idleness import SCRIPT as IDLE_SCRIPT
from orch.components.idleness import IdleRule, idle_rule
from orch.components.lifetime import Lifetime, lifetime
from orch.components.nebius import explain as told
from orch.components.nebius.account.facts import (
    CPU_IMAGE_FAMILY,
    IMAGE_FAMILY,
    Lookups,
    NebiusFacts,
)
from orch.components.nebius.candidates import NebiusCandidate, types_with_fabric
from orch.components.nebius.plan import Disk, NebiusPlan, Network
from orch.components.node_count import all_there, count_words, folded, live_indices, node_indices
from orch.components.request import PriorState
from orch.runner.preparation.init_steps import steps
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, settle
from orch.spec.models import Fleet
from orch.spec.models.backends.nebius import NebiusSettings
from orch.spec.models.blocks import Network as NetworkBlock
from orch.templates import ShellText, render

# Source: nebius/api compute/v1/instance.proto, cloud_init_user_data.
MOST_USER_DATA = 32_768
# InfiniBand cards of a machine with eight GPUs. Source: skypilot provision/nebius/constants.py.
CARDS = 8
PREPARE = "/usr/local/sbin/orch-prepare"
OFF = ShellText("systemctl poweroff")
# What a machine's host key takes in its user data, which does not compress, with the client's.
_KEYS_SIZE = 1024


@dataclass(frozen=True)
class Context:
    """What a plan is made of besides the fleet.

    `tags` are the project's; `scripts` the text of `init[].file`, by path; `scope` six hex digits that tell
    one project's names from another's, used for a new stack only. `indices`: the nodes to plan, None: as many
    as the file asks for; `other_groups`: the fleet's other nodes; `created`: when the fleet was, in seconds
    since the epoch.
    """

    settings: NebiusSettings
    catalog: Catalog
    scope: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    scripts: Mapping[str, str] = field(default_factory=dict[str, str])
    indices: tuple[int, ...] | None = None
    other_groups: OtherGroups[NebiusPlan, NebiusFacts] = field(
        default_factory=OtherGroups["NebiusPlan", NebiusFacts]
    )
    created: int = 0


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


def plan(
    fleet: Fleet, candidate: NebiusCandidate, facts: NebiusFacts, previous: PriorState, context: Context
) -> NebiusPlan:
    """The whole fleet at one candidate.

    Raises PlanErrors with all that is wrong: ORCH205, 213, 220-232, 235, 281, 313.
    """
    indices = node_indices(fleet, previous) if context.indices is None else context.indices
    live = live_indices(previous) if candidate.kept else frozenset[int]()
    new = len(set(indices) - live)
    scope = previous.pins.get("scope", context.scope)
    settings, block = context.settings, network_of(fleet)
    access = way_in(block, settings)
    whole = fleet.gang == "all-or-nothing"
    findings = [
        *access_findings("Nebius", block, access),
        *_given_findings(block, facts),
        *_bastion_findings(access, facts, candidate.region),
        *_image_findings(fleet, candidate, facts, previous),
        *_fabric_findings(fleet, candidate, context.catalog),
        *_quota_findings(candidate, facts, new, context.other_groups),
        *unread_findings(facts.unread),
        *disk_findings(fleet, facts.image.least_gb if facts.image else None),
    ]
    idle, ending = idle_rule(fleet), lifetime(fleet, context.created)
    cloud_init = node_init(fleet, candidate, context.scripts, idle, ending)
    findings += user_data_findings("Nebius", len(wrapped(cloud_init)) + _KEYS_SIZE, MOST_USER_DATA)
    boot = first_boot_pins(fleet, context.scripts, idle, ending.stamp if ending else "")
    findings += first_boot_findings(previous, boot, len(live))
    bastion = _bastion_of(access, facts, candidate.region, context.catalog)
    fixed = (bastion.price or 0.0) if bastion else 0.0
    findings += budget_findings(
        fleet,
        candidate.price,
        fixed,
        candidate.price_of,
        backend="nebius",
        nodes=len(indices),
        other_nodes=context.other_groups.prices,
        later=context.other_groups.later,
    )
    warnings = settle(findings)
    if facts.image is None:
        raise AssertionError("an image that is missing is an error")
    network = _network_plan(block, facts, access)
    disk = Disk(disk_gb(fleet))
    layout = fingerprint(
        candidate.type.name,
        candidate.zone,
        facts.image.id,
        candidate.spot,
        access.public,
        disk,
        fleet.reservation,
    )
    by_topology = fleet.topology == "rank-ordered" and candidate.infiniband is not None
    jumps = block.proxy_jump or ()
    fields = plan_fields(
        fleet,
        candidate,
        scope=scope,
        indices=indices,
        interconnect="infiniband" if candidate.infiniband else "ethernet",
        bastion=bastion,
        bastion_init=bastion_config(fleet.name, PRIVATE, ending.script(OFF) if ending else None)
        if bastion
        else "",
        cloud_init=cloud_init,
        layout=layout,
        layout_unchanged=previous.pins.get("layout") == layout,
        idle=idle,
        lifetime=ending,
        fixed=fixed,
    )
    fast: Fabric | None = fields["fabric"]
    return NebiusPlan(
        **fields,
        project=facts.project,
        infiniband=candidate.infiniband,
        network=network,
        access=access.kind,
        public=access.public,
        jumps=jumps if access.kind == "given" else (),
        image=facts.image.id,
        disk=disk,
        reservation=fleet.reservation,
        rank_by_topology=by_topology,
        labels={**fleet.tags, **context.tags, **settings.tags, "orch-fleet": fleet.name},
        whole=whole,
        unpriced=tuple(told.unpriced(candidate.price, bastion, public=access.public)),
        pins=_pins(fleet, candidate, facts)
        | boot
        | file_systems.mounted(fleet.mounts)
        | {"scope": scope, "indices": folded(indices), "layout": layout},
        reasons=(
            count_words(fleet, len(indices), candidate.words),
            *place_reason(candidate, previous),
            *told.ending_reasons(idle, ending),
            *told.fabric_reasons(candidate, facts, new),
            *told.network_reasons(network, access, bastion, jumps=len(jumps)),
            *told.capacity_reasons(fleet, candidate, whole=whole),
            *told.image_reasons(facts, previous),
            *told.rank_reasons(fleet, by_topology=by_topology),
            *(fast.words() if fast else ()),
        ),
        warnings=warnings,
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
        *prepared(PREPARE, prepare, init, cloud=None, idle=idle.script(OFF) if idle else None),
        *ended_by_time(ending.script(OFF) if ending else None),
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


# Pieces


def _pins(fleet: Fleet, candidate: NebiusCandidate, facts: NebiusFacts) -> dict[str, str]:
    assert facts.image is not None
    return {
        "backend": "nebius",
        "project": facts.project,
        "region": candidate.region,
        "zone": candidate.zone,
        "instance_type": candidate.type.name,
        "spot": "true" if candidate.spot else "false",
        "image": facts.image.id,
        "image_of": _family(fleet, candidate),
        "image_region": candidate.region,
        **({"bastion_type": facts.bastion_type} if facts.bastion_type else {}),
        **({"bastion_image": facts.bastion_image.id} if facts.bastion_image else {}),
    }


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


def _bastion_of(access: AccessMethod, facts: NebiusFacts, region: str, catalog: Catalog) -> Bastion | None:
    """The smallest machine without GPUs that the region has, with a public address."""
    if access.kind != "bastion" or facts.bastion_type is None or facts.bastion_image is None:
        return None
    prices = [
        offer.price
        for offer in catalog.lists["nebius"].offers
        if (offer.type.name, offer.region) == (facts.bastion_type, region) and offer.price is not None
    ]
    cidrs = access.cidrs or (WORLD,)
    return Bastion(facts.bastion_type, facts.bastion_image.id, True, cidrs, min(prices, default=None))


def _bastion_findings(access: AccessMethod, facts: NebiusFacts, region: str) -> Iterator[Finding]:
    if access.kind == "bastion" and (facts.bastion_type is None or facts.bastion_image is None):
        what = "type" if facts.bastion_type is None else "image"
        yield Finding(
            "ORCH213",
            "network",
            f"no machine {what} was found for a bastion in {region}",
            hint="write `ssh_cidrs`, the networks that you come from, or give `proxy_jump`",
        )
