"""What a fleet becomes on AWS: every network, interface, group and instance, and the user data that makes an
instance a node, with the reasons. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orch.catalog.aws.machines import Nics, nics
from orch.catalog.fabrics import fabric
from orch.catalog.records import Catalog
from orch.components import file_systems
from orch.components.aws import capacity as capacities
from orch.components.aws import explain as told
from orch.components.aws import network as networks
from orch.components.aws import nics as cards
from orch.components.aws.account.facts import AwsFacts, Image
from orch.components.aws.account.lookups import (
    BASTION_TYPE,
    bastion_image,
    image_lookup,
    layout,
    network_lookup,
)
from orch.components.aws.candidates import CloudCandidate, with_efa
from orch.components.aws.capacity import Demand
from orch.components.aws.plan import AwsPlan, Disk, ExistingNetwork, NewNetwork
from orch.components.aws.storage.rules import open_to_servers, server_findings
from orch.components.cloud.backend import place_reason
from orch.components.cloud.cloudinit import (
    RUNS_INIT,
    File,
    bastion_config,
    ended_by_time,
    first_boot_findings,
    first_boot_pins,
    node_config,
    node_files,
    prepared,
    scratch,
    wrapped,
)
from orch.components.cloud.node_groups import SPREADS, OtherGroups, may_spread, spreads
from orch.components.cloud.plan import Bastion, Node
from orch.components.cloud.quotas import unread_findings
from orch.components.cloud.sizing import (
    blocks,
    budget_findings,
    disk_findings,
    disk_gb,
    fingerprint,
    gpus,
    key_findings,
    nvidia,
    user_data_findings,
)
from orch.components.idleness import SCRIPT as IDLE_SCRIPT
from orch.components.idleness import IdleRule, idle_rule
from orch.components.lifetime import Lifetime, lifetime
from orch.components.node_count import count_words, folded, live_indices, node_indices
from orch.components.request import PriorState
from orch.components.scratch import disk_scratch
from orch.runner.preparation.init_steps import steps
from orch.runner.preparation.mounts import fleet_mounts
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, settle
from orch.spec.models import Fleet
from orch.spec.models.backends.aws import AwsSettings
from orch.templates import ShellText, render

# Source: EC2 user guide, "Run commands when you launch an EC2 instance with user data input".
MOST_BYTES = 16_384
EFA_INSTALLER = "1.43.2"
# Linux gives EFA's libfabric huge pages of 2 MiB; the EFA installer reserves as many.
HUGE_PAGES = 5128
# The launch template makes an instance that is shut down from within a terminated one.
OFF = ShellText("systemctl poweroff")


@dataclass(frozen=True)
class Context:
    """What a plan is made of besides the fleet.

    `tags` are the project's; `scripts` the text of `init[].file`, by path; `scope` six hex digits that tell
    one project's names from another's, used for a new stack only.
    `indices`: the nodes to plan, None: as many as the file asks for; `other_groups`: the fleet's other nodes;
    `created`: when the fleet was, in seconds since the epoch.
    """

    settings: AwsSettings
    catalog: Catalog
    scope: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    scripts: Mapping[str, str] = field(default_factory=dict[str, str])
    indices: tuple[int, ...] | None = None
    other_groups: OtherGroups[AwsPlan, AwsFacts] = field(default_factory=OtherGroups["AwsPlan", AwsFacts])
    created: int = 0


def plan(
    fleet: Fleet, candidate: CloudCandidate, facts: AwsFacts, previous: PriorState, context: Context
) -> AwsPlan:
    """The whole fleet at one candidate.

    Raises PlanErrors with all that is wrong: ORCH200-231, 281, 310-323.
    """
    each, indices = nics()[candidate.type.name], context.indices
    if indices is None:
        indices = node_indices(fleet, previous)
    live = live_indices(previous) if candidate.kept else frozenset[int]()
    interfaces = layout(fleet, candidate)
    demand = Demand(len(indices), len(set(indices) - live), len(interfaces))
    stays = candidate.kept or candidate.additional
    spread = spreads(fleet, previous) if stays else may_spread(fleet)
    scope = previous.pins.get("scope", context.scope)
    base = f"orch-{fleet.name}-{scope}"
    efa = sum(interface.kind != "interface" for interface in interfaces)
    lookup = network_lookup(fleet, context.settings, candidate.region)
    zone = facts.zone(candidate.zone)
    findings = list(_card_findings(fleet, candidate, facts, each))
    decision = networks.decide_network(lookup, candidate, facts, demand, base)
    if not isinstance(decision, networks.NetworkDecision):
        findings += [*decision, *_place_findings(fleet, candidate, facts, previous, bastion=False)]
        settle([*findings, *capacities.reservation_findings(fleet, facts, demand)])
        raise AssertionError("a network without a decision has an error")
    block = facts.reservation is not None and facts.reservation.kind == "block"
    nat_ips = 0 if stays else networks.elastic_ips(decision, demand)[1]
    findings += _place_findings(fleet, candidate, facts, previous, bastion=decision.bastion is not None)
    findings += decision.findings
    findings += capacities.reservation_findings(fleet, facts, demand)
    findings += capacities.quota_findings(candidate, facts, demand, context.other_groups, nat_ips)
    findings += unread_findings(facts.unread)
    idle, ending = idle_rule(fleet), lifetime(fleet, context.created)
    cloud_init = node_init(
        fleet,
        each,
        gpus=nvidia(candidate.type),
        efa=efa,
        scripts=context.scripts,
        ssm=decision.access.way == "ssm",
        idle=idle,
        ending=ending,
    )
    if demand.new:
        findings += _size_findings(cloud_init)
    findings += key_findings(facts.console_refusal, demand.new, "ec2:GetConsoleOutput", Severity.WARNING)
    # The one key of ours that EC2 does not let an instance read: such a launch fails.
    tags_readable = "_index" not in _tags(fleet, context)
    moment = "" if ending is None else "on" if tags_readable else ending.stamp
    boot = first_boot_pins(fleet, context.scripts, idle, moment)
    findings += first_boot_findings(previous, boot, len(live))
    findings += disk_findings(fleet, facts.image.size_gb if facts.image else None)
    group = capacities.placement_group(fleet, facts, each, base)
    capacity = capacities.capacity(fleet, candidate, facts, demand)
    bastion = _bastion(lookup.ssh_cidrs, decision, candidate, facts, context)
    price = None if block else candidate.price
    fixed = (bastion.price or 0.0) if bastion else 0.0
    if not block:
        findings += budget_findings(
            fleet,
            price,
            fixed,
            candidate.price_of,
            backend="aws",
            nodes=demand.nodes,
            other_nodes=context.other_groups.prices,
            later=context.other_groups.later,
        )
    new_file_systems = file_systems.created(fleet)
    servers = (decision.groups, decision.network, facts.subnets, new_file_systems)
    findings += server_findings(*servers)
    warnings = settle(findings)
    image = facts.image
    if zone is None or image is None:
        raise AssertionError("a place or an image that is missing is an error")
    disk = _disk(fleet, image, context.settings)
    layout_fingerprint = fingerprint(
        candidate.type.name,
        candidate.zone,
        image.id,
        capacity.market,
        interfaces,
        decision.addresses.kind,
        scratch(fleet, each.disks),
        disk,
    )
    fast = fabric("efa" if efa else "ethernet", candidate.type.name)
    return AwsPlan(
        fleet=fleet.name,
        scope=scope,
        region=candidate.region,
        zone=candidate.zone,
        zone_name=zone.name,
        instance_type=candidate.type.name,
        spot=candidate.spot,
        network=decision.network,
        groups=open_to_servers(*servers),
        bastion=bastion,
        access=decision.access,
        addresses=decision.addresses,
        group=group,
        capacity=capacity,
        interfaces=interfaces,
        image=image.id,
        disk=disk,
        profile=context.settings.iam_instance_profile,
        ssm=decision.profile_for,
        nodes=tuple(Node(index, f"{fleet.name}-{index}") for index in indices),
        cloud_init=cloud_init,
        confidential=bool(fleet.init or any(mount.options for mount in fleet.mounts)),
        host_keys={
            node.name: (node.machine, node.ssh.host_key)
            for node in previous.nodes
            if candidate.kept and node.machine is not None
        },
        tags_readable=tags_readable,
        bastion_init=bastion_config(
            fleet.name,
            _bastion_leads(decision.network, spread=spread),
            ttl=ending.script(OFF) if ending else None,
        )
        if bastion
        else "",
        tags=_tags(fleet, context),
        layout=layout_fingerprint,
        layout_unchanged=previous.pins.get("layout") == layout_fingerprint,
        placement=fleet.placement,
        rank_by_topology=fleet.topology == "rank-ordered" and each.levels > 0,
        interconnect="efa" if efa else "ethernet",
        fabric=fast,
        gpus=gpus(candidate.type),
        cpus=candidate.type.vcpus,
        memory_mib=candidate.type.memory_mib,
        arch=candidate.type.arch,
        blocks=blocks(fleet, candidate.type),
        job_image=fleet.image,
        env={key: value for key, value in fleet.env.items() if value is not None},
        mounts=fleet_mounts(fleet.mounts),
        file_systems=new_file_systems,
        protect=fleet.protect,
        idle=idle,
        lifetime=ending,
        scratch=disk_scratch(fleet, scratch(fleet, each.disks)),
        price=price,
        hourly=round((price or 0.0) * demand.nodes + fixed, 6),
        unpriced=(
            *told.unpriced(decision, price, bastion, block=block),
            *file_systems.unpriced(new_file_systems),
        ),
        starts=facts.reservation.start if facts.reservation else None,
        ends=facts.reservation.end if facts.reservation else None,
        pins=_pins(fleet, candidate, facts, context)
        | boot
        | file_systems.mounted(fleet.mounts)
        | file_systems.pins(
            new_file_systems,
            decision.network.vpc if isinstance(decision.network, ExistingNetwork) else "the fleet's own",
        )
        | {"scope": scope, "indices": folded(indices), "layout": layout_fingerprint}
        | ({SPREADS: "true"} if spread else {}),
        reasons=(
            count_words(fleet, demand.nodes, told.words(candidate, block=block)),
            *place_reason(candidate, previous),
            *cards.words(each, interfaces),
            *filter(None, [capacities.group_reason(fleet, facts, each, group)]),
            *told.capacity_reasons(capacity.reserved_nodes, facts, candidate),
            *([ending.reason] if ending else []),
            *networks.reasons(lookup, decision, demand),
            *told.image_reasons(facts, previous),
            *told.scratch_reasons(fleet, each),
            *told.rank_reasons(fleet, each),
            *file_systems.reasons(new_file_systems),
            *(fast.words() if fast else ()),
        ),
        warnings=warnings,
    )


# What is found out


def _place_findings(
    fleet: Fleet, candidate: CloudCandidate, facts: AwsFacts, previous: PriorState, *, bastion: bool
) -> Iterator[Finding]:
    if facts.zone(candidate.zone) is None:
        path = "availability_zones" if fleet.availability_zones else "regions"
        summary = f"this account has no zone {candidate.zone} in {candidate.region}"
        yield Finding("ORCH205", path, summary, hint=f"it has {', '.join(zone.id for zone in facts.zones)}")
    if bastion and facts.bastion_image is None:
        yield Finding(
            "ORCH213",
            "network.bastion",
            f"no machine image was found for a bastion in {candidate.region}",
            hint="write `bastion: false` to reach the nodes through SSM, or give `proxy_jump`",
        )
    if facts.image is None:
        written = fleet.os_image is not None
        pinned = previous.pins.get("image")
        yield Finding(
            "ORCH213",
            "os_image" if written else "resources",
            f"no machine image was found for {candidate.type.name} in {candidate.region}",
            detail=f"{pinned} is pinned, and gone" if pinned else None,
            hint="`orch up --upgrade` takes the newest"
            if pinned and not written
            else "name one in `os_image`: an id (`ami-…`) or a name",
        )


def _card_findings(fleet: Fleet, candidate: CloudCandidate, facts: AwsFacts, each: Nics) -> Iterator[Finding]:
    if facts.cards is not None and each.cards and facts.cards != (each.cards, each.efa):
        reported = "{} network cards and {} EFA interfaces".format(*facts.cards)
        yield Finding(
            "ORCH209",
            "instance_types" if fleet.instance_types else "resources",
            f"AWS tells of {reported} on {each.type}, the catalogue of {each.cards} and {each.efa}",
            detail="the plan goes by the catalogue",
            severity=Severity.WARNING,
        )
    plain = fleet.network is not None and fleet.network.interconnect == "ethernet"
    if fleet.placement == "cluster" and not each.fast and not plain:
        name = candidate.type.name
        yield Finding(
            "ORCH223",
            "instance_types" if fleet.instance_types else "placement",
            f"the catalogue does not know the network cards of {name}: Ethernet only between the nodes"
            if each.efa
            else f"{name} has no fast interconnect: Ethernet only between the nodes",
            hint=f"types with EFA: {with_efa()}; or write `network: {{interconnect: ethernet}}`",
            severity=Severity.WARNING,
        )


def node_init(
    fleet: Fleet,
    each: Nics,
    *,
    gpus: int,
    efa: int,
    scripts: Mapping[str, str],
    idle: IdleRule | None = None,
    ending: Lifetime | None = None,
    ssm: bool = False,
) -> str:
    """The cloud-config of all nodes, with a mark for the client's key.

    `gpus`: NVIDIA GPUs that must be there; `efa`: EFA devices. `scripts`: the text of `init[].file` by path.
    `idle` and `ending`: when they end themselves; `ssm`: SSM leads in.
    """
    init = steps(fleet, scripts)
    prepare = render(
        "cloud-init-prepare.sh.j2",
        gpus=gpus,
        efa=efa,
        efa_installer=EFA_INSTALLER,
        scratch=scratch(fleet, each.disks),
        idle=IDLE_SCRIPT if idle else None,
        steps=init,
        **RUNS_INIT,
    )
    files = [
        *node_files("/usr/local/sbin/orch-prepare"),
        *prepared(
            "/usr/local/sbin/orch-prepare",
            prepare,
            init,
            cloud="aws",
            ssm=ssm,
            idle=idle.script(OFF) if idle else None,
        ),
        *ended_by_time(ending.script(OFF) if ending else None),
    ]
    if efa:
        files.append(File("/etc/sysctl.d/90-orch.conf", f"vm.nr_hugepages = {HUGE_PAGES}\n"))
    return node_config(fleet, files)


def _size_findings(cloud_init: str) -> Iterator[Finding]:
    key = "k" * 160  # about what the client's key takes, which does not compress
    size = len(wrapped(cloud_init)) + len(key)
    yield from user_data_findings("AWS", size, MOST_BYTES)


# Pieces


def _disk(fleet: Fleet, image: Image, settings: AwsSettings) -> Disk:
    return Disk(image.root_device, disk_gb(fleet), settings.kms_key)


def _bastion(
    cidrs: tuple[str, ...],
    decision: networks.NetworkDecision,
    candidate: CloudCandidate,
    facts: AwsFacts,
    context: Context,
) -> Bastion | None:
    if decision.bastion is None or facts.bastion_image is None:
        return None
    public = decision.bastion == "public"
    prices = [
        offer.price
        for offer in context.catalog.lists["aws"].offers
        if (offer.type.name, offer.region) == (BASTION_TYPE, candidate.region) and offer.price is not None
    ]
    image = facts.bastion_image.id
    return Bastion(BASTION_TYPE, image, public, cidrs if public else (), min(prices, default=None))


def _bastion_leads(network: NewNetwork | ExistingNetwork, *, spread: bool) -> list[str]:
    """The networks of nodes, also of those that other node groups may get."""
    if isinstance(network, ExistingNetwork):
        return [network.cidr]
    return [network.nodes_cidr, *(networks.MORE if spread else ())]


def _tags(fleet: Fleet, context: Context) -> dict[str, str]:
    return {**fleet.tags, **context.tags, **context.settings.tags, "orch:fleet": fleet.name}


def _pins(
    fleet: Fleet,
    candidate: CloudCandidate,
    facts: AwsFacts,
    context: Context,
) -> dict[str, str]:
    pins = {
        "backend": "aws",
        "region": candidate.region,
        "zone": candidate.zone,
        "instance_type": candidate.type.name,
        "spot": "true" if candidate.spot else "false",
    }
    lookup = image_lookup(fleet, context.settings, candidate)
    for pin, image, of in (
        ("image", facts.image, lookup.of if lookup else None),
        ("bastion_image", facts.bastion_image, bastion_image(candidate).of),
    ):
        if image is not None and of is not None:
            pins |= {pin: image.id, f"{pin}_name": image.name, f"{pin}_of": of}
            pins[f"{pin}_region"] = candidate.region
    return pins
