"""What a fleet becomes on GCP: every network, interface, policy and instance, with the reasons. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orch.catalog.fabrics import fabric
from orch.catalog.gcp.machines import Shape, gcp_image
from orch.catalog.records import Catalog
from orch.components import file_systems
from orch.components.cloud.backend import place_reason
from orch.components.cloud.cloudinit import (
    bastion_config,
    first_boot_findings,
    first_boot_pins,
    wrapped,
)
from orch.components.cloud.node_groups import OtherGroups
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
from orch.components.gcp import capacity as capacities
from orch.components.gcp import explain as told
from orch.components.gcp import network as networks
from orch.components.gcp import userdata
from orch.components.gcp.account.facts import GcpFacts
from orch.components.gcp.account.labels import label_findings, labels
from orch.components.gcp.account.lookups import (
    BASTION_TYPE,
    bastion_image,
    image_fabric,
    image_lookup,
    network_lookup,
    shape_of,
)
from orch.components.gcp.candidates import CloudCandidate, with_fabric
from orch.components.gcp.capacity import Demand
from orch.components.gcp.network_findings import address_findings, lock_findings, shared_findings
from orch.components.gcp.plan import Access, Disk, GcpPlan, Networks, base_name
from orch.components.gcp.ssh_access import cidr_findings, iap_key_findings
from orch.components.lifetime import lifetime
from orch.components.node_count import count_words, folded, live_indices, node_indices
from orch.components.request import PriorState
from orch.components.scratch import disk_scratch
from orch.runner.preparation.mounts import fleet_mounts
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, settle
from orch.spec.models import Fleet
from orch.spec.models.backends.gcp import GcpSettings


@dataclass(frozen=True)
class Context:
    """What a plan is made of besides the fleet.

    `tags` are the project's; `scripts` the text of `init[].file`, by path; `scope` six hex digits that tell
    one project's names from another's, used for a new stack only.
    `network`: what the stack of shared networks has decided. `indices`: the nodes to plan, None: as many as
    the file asks for; `other_groups`: the fleet's other nodes; `created`: when the
    fleet was, in seconds since the epoch.
    """

    settings: GcpSettings
    catalog: Catalog
    scope: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    scripts: Mapping[str, str] = field(default_factory=dict[str, str])
    network: PriorState = field(default_factory=PriorState)
    indices: tuple[int, ...] | None = None
    other_groups: OtherGroups[GcpPlan, GcpFacts] = field(default_factory=OtherGroups["GcpPlan", GcpFacts])
    created: int = 0


def plan(
    fleet: Fleet, candidate: CloudCandidate, facts: GcpFacts, previous: PriorState, context: Context
) -> GcpPlan:
    """The whole fleet at one candidate.

    Raises PlanErrors with all that is wrong: ORCH200-231, 281, 310-323.
    """
    shape, indices = shape_of(fleet, candidate), context.indices
    if indices is None:
        indices = node_indices(fleet, previous)
    live = live_indices(previous) if candidate.kept else frozenset[int]()
    scope = previous.pins.get("scope", context.scope)
    base = base_name(fleet.name, scope)
    lookup = network_lookup(fleet, context.settings, candidate.region)
    findings = [
        *_place_findings(fleet, candidate, facts, shape),
        *capacities.option_findings(fleet, candidate, shape),
        *capacities.reservation_findings(fleet, facts, Demand(len(indices), len(set(indices) - live), 0)),
        *cidr_findings(lookup),
        *label_findings(fleet.tags),
    ]
    net_base = context.network.pins.get("base", f"orch-net-{lookup.shared}-{context.scope}")
    decision = networks.decide_networks(lookup, candidate, shape, facts, base, net_base=net_base)
    if not isinstance(decision, networks.NetworkDecision):
        settle(
            [*findings, *decision, *capacities.placement_findings(fleet, shape, Demand(len(indices), 0, 0))]
        )
        raise AssertionError("networks without a decision have an error")
    new_networks = sum(each.origin == "made" for each in decision.networks.vpcs)
    demand = Demand(len(indices), len(set(indices) - live), 0 if live else new_networks)
    findings += decision.findings
    if "iap" in (decision.way.kind, decision.way.bastion):
        findings += iap_key_findings(context.settings)
    findings += shared_findings(decision.shared, context.network)
    findings += lock_findings(decision.networks, file_systems.created(fleet))
    findings += address_findings(lookup, decision.networks, demand.new)
    findings += capacities.placement_findings(fleet, shape, demand)
    findings += capacities.quota_findings(candidate, facts, demand, context.other_groups)
    findings += unread_findings(facts.unread)
    os = node_os(fleet, candidate)
    idle, ending = capacities.idleness(fleet), lifetime(fleet, context.created)
    findings += capacities.lifetime_findings(ending, facts)
    cloud_init = userdata.node_init(
        fleet,
        shape,
        gpus=nvidia(candidate.type),
        os=os,
        scripts=context.scripts,
        idle=idle,
        account=context.settings.vm_service_account is not None,
    )
    findings += _size_findings(cloud_init)
    findings += key_findings(facts.attribute_refusal, demand.new, "compute.instances.getGuestAttributes")
    boot = first_boot_pins(fleet, context.scripts, idle, ttl=ending.stamp if ending else "")
    findings += first_boot_findings(previous, boot, len(live))
    findings += disk_findings(fleet, facts.image.size_gb if facts.image else None)
    group = capacities.group(fleet, previous, base, live=len(live), nodes=demand.nodes)
    findings += capacities.group_findings(group, demand)
    scheduling = capacities.scheduling(fleet, candidate, facts)
    placement = capacities.placement(fleet, shape, facts, base, grouped=group is not None)
    bastion = _bastion(decision, lookup.ssh_cidrs, candidate, facts, context)
    findings += _bastion_findings(decision, facts, candidate)
    fixed = (bastion.price or 0.0) if bastion else 0.0
    findings += budget_findings(
        fleet,
        candidate.price,
        fixed,
        candidate.price_of,
        backend="gcp",
        nodes=demand.nodes,
        other_nodes=context.other_groups.prices,
        later=context.other_groups.later,
    )
    new_file_systems = file_systems.created(fleet)
    warnings = settle(findings)
    if facts.image is None:
        raise AssertionError("an image that is missing is an error")
    disk = Disk(disk_gb(fleet), shape.boot)
    layout = fingerprint(
        candidate.type.name, candidate.zone, facts.image.link, scheduling, decision.interfaces,
        decision.public, userdata.node_scratch(fleet, shape, os), disk, fleet.reservation, group is not None,
    )  # fmt: skip
    own_labels = labels(fleet.tags, context.tags, context.settings.tags, {"orch-fleet": fleet.name})
    given_policy = capacities.given_policy(facts)
    content = (layout, cloud_init, own_labels, placement, context.settings.vm_service_account)
    content += (given_policy,) if given_policy else ()
    content += (ending,) if ending else ()
    fast = fabric(shape.fabric, candidate.type.name)
    name, _, count = shape.accelerator.partition(":")
    close = placement or facts.reservation
    rank_by_host = fleet.topology == "rank-ordered" and shape.levels > 0 and close is not None
    return GcpPlan(
        fleet=fleet.name,
        scope=scope,
        project=facts.project,
        region=candidate.region,
        zone=candidate.zone,
        instance_type=candidate.type.name,
        spot=candidate.spot,
        networks=decision.networks,
        shared=decision.shared,
        interfaces=decision.interfaces,
        bastion=bastion,
        access=Access(decision.way.kind, lookup.block.proxy_jump or ()),
        public=decision.public,
        placement_policy=placement,
        given_policy=given_policy,
        group=group,
        reservation=_reservation(facts),
        scheduling=scheduling,
        template=f"{base}-{fingerprint(*content)[:8]}",
        image=facts.image.link,
        disk=disk,
        accelerator=(name, int(count)) if name else None,
        service_account=context.settings.vm_service_account,
        nodes=tuple(Node(index, f"{fleet.name}-{index}") for index in indices),
        cloud_init=cloud_init,
        confidential=bool(fleet.init or any(mount.options for mount in fleet.mounts)),
        host_keys={
            node.name: (node.machine, node.ssh.host_key)
            for node in previous.nodes
            if candidate.kept and node.machine is not None
        },
        bastion_init=bastion_config(fleet.name, _node_cidrs(decision)) if bastion else "",
        labels=own_labels,
        layout=layout,
        layout_unchanged=previous.pins.get("layout") == layout,
        placement=fleet.placement,
        rank_by_host=rank_by_host,
        interconnect=shape.fabric,
        fabric=fast,
        # Container-Optimized OS comes without NVIDIA's toolkit.
        gpus=gpus(candidate.type) | ({"toolkit": False} if os == "cos" and candidate.type.gpu else {}),
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
        scratch=disk_scratch(fleet, userdata.node_scratch(fleet, shape, os)),
        price=candidate.price,
        hourly=round((candidate.price or 0.0) * demand.nodes + fixed, 6),
        unpriced=(
            *told.unpriced(decision, candidate.price, bastion),
            *file_systems.unpriced(new_file_systems),
        ),
        pins=_pins(fleet, candidate, facts, context)
        | boot
        | file_systems.mounted(fleet.mounts)
        | file_systems.pins(new_file_systems, _network_words(decision.networks))
        | {"scope": scope, "indices": folded(indices), "layout": layout}
        | ({"batches": ",".join(str(each) for each in group.batches)} if group else {})
        | ({"network": decision.shared.name} if decision.shared else {}),
        reasons=(
            count_words(fleet, demand.nodes, told.words(candidate, scheduling)),
            *place_reason(candidate, previous),
            *([ending.reason] if ending else []),
            *networks.reasons(decision, shape, lookup),
            *filter(None, [capacities.placement_reason(fleet, shape, facts, placement)]),
            *told.capacity_reasons(fleet, group, scheduling, facts),
            *told.image_reasons(facts, previous),
            *told.account_reasons(context.settings.vm_service_account),
            *told.software_reasons(shape),
            *told.scratch_reasons(userdata.node_scratch(fleet, shape, os), shape),
            *told.rank_reasons(fleet, shape, by_host=rank_by_host),
            *file_systems.reasons(new_file_systems),
            *(fast.words() if fast else ()),
        ),
        warnings=warnings,
    )


# What is found out


def _place_findings(
    fleet: Fleet, candidate: CloudCandidate, facts: GcpFacts, shape: Shape
) -> Iterator[Finding]:
    path = "availability_zones" if fleet.availability_zones else "regions"
    name = candidate.type.name
    if candidate.zone not in facts.zones or facts.offered is False:
        what = f"the project sees no {name} in {candidate.zone}"
        yield Finding("ORCH205", path, what, detail="the catalogue lists it there", hint="name another zone")
    elif facts.profile is False:
        yield Finding(
            "ORCH205",
            path,
            f"{candidate.zone} has no network profile {candidate.zone}-{shape.profile}, which {name} needs",
            detail="`gcloud compute network-profiles list` lists them",
            hint="name another zone",
        )
    if facts.image is None:
        written = fleet.os_image is not None
        yield Finding(
            "ORCH213",
            "os_image" if written else "resources",
            f"no machine image was found for {name}",
            hint="name one in `os_image`: `projects/P/global/images/NAME`, or a name of the project's own",
        )
    plain = fleet.network is not None and fleet.network.interconnect == "ethernet"
    if fleet.placement == "cluster" and not shape.fast and not plain:
        yield Finding(
            "ORCH223",
            "instance_types" if fleet.instance_types else "placement",
            f"{name} has no fast interconnect: Ethernet only between the nodes",
            hint=f"with one: {', '.join(with_fabric())}; or write `network: {{interconnect: ethernet}}`",
            severity=Severity.WARNING,
        )


def _bastion_findings(
    decision: networks.NetworkDecision, facts: GcpFacts, candidate: CloudCandidate
) -> Iterator[Finding]:
    if decision.way.kind == "bastion" and facts.bastion_image is None:
        yield Finding(
            "ORCH213",
            "network.bastion",
            f"no machine image was found for a bastion in {candidate.region}",
            hint="write `bastion: false` to reach the nodes through IAP, or give `proxy_jump`",
        )


def _size_findings(cloud_init: str) -> Iterator[Finding]:
    size = len(wrapped(cloud_init)) + 160  # about what the client's key takes, which does not compress
    yield from user_data_findings("GCP", size, userdata.MOST_BYTES)


# Pieces


def node_os(fleet: Fleet, candidate: CloudCandidate) -> str:
    """The OS of the nodes: that of the catalogue's image, or by the name of a written one."""
    written = fleet.os_image.get("gcp") if isinstance(fleet.os_image, dict) else fleet.os_image
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


def _bastion(
    decision: networks.NetworkDecision,
    cidrs: tuple[str, ...],
    candidate: CloudCandidate,
    facts: GcpFacts,
    context: Context,
) -> Bastion | None:
    if decision.way.bastion is None or facts.bastion_image is None:
        return None
    public = decision.way.bastion == "public"
    prices = [
        offer.price
        for offer in context.catalog.lists["gcp"].offers
        if (offer.type.name, offer.region) == (BASTION_TYPE, candidate.region) and offer.price is not None
    ]
    image = facts.bastion_image.link
    return Bastion(BASTION_TYPE, image, public, cidrs if public else (), min(prices, default=None))


def _network_words(networks: Networks) -> str:
    """The network of the nodes' first interface, with its project where that is another's."""
    return f"{networks.project}/{networks.first.name}" if networks.project else networks.first.name


def _pins(fleet: Fleet, candidate: CloudCandidate, facts: GcpFacts, context: Context) -> dict[str, str]:
    pins = {
        "backend": "gcp",
        "project": facts.project,
        "region": candidate.region,
        "zone": candidate.zone,
        "instance_type": candidate.type.name,
        "spot": "true" if candidate.spot else "false",
    }
    lookup = image_lookup(fleet, context.settings, candidate)
    for pin, image, of in (
        ("image", facts.image, lookup.of if lookup else None),
        ("bastion_image", facts.bastion_image, bastion_image().of),
    ):
        if image is not None and of is not None:
            pins |= {pin: image.link, f"{pin}_of": of}
    return pins
