"""What a fleet becomes on Crusoe: network, InfiniBand partition and VMs, with the reasons. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orch.catalog.fabrics import Fabric
from orch.catalog.records import Catalog
from orch.components import file_systems
from orch.components.cloud.backend import place_reason, price_in
from orch.components.cloud.cloudinit import (
    RUNS_INIT,
    bastion_config,
    ended_by_time,
    filled,
    first_boot_findings,
    first_boot_pins,
    node_config,
    node_files,
    prepared,
)
from orch.components.cloud.node_groups import OtherGroups
from orch.components.cloud.plan import Bastion, plan_fields
from orch.components.cloud.quotas import unread_findings
from orch.components.cloud.sizing import budget_findings, disk_gb, fingerprint, nvidia, user_data_findings
from orch.components.cloud.ssh_access import (
    PRIVATE,
    WORLD,
    AccessMethod,
    access_findings,
    network_of,
    way_in,
)
from orch.components.crusoe import explain as told
from orch.components.crusoe.account.facts import CrusoeFacts, Lookups
from orch.components.crusoe.candidates import CrusoeCandidate, machines
from orch.components.crusoe.plan import BASTION_IMAGE, BASTION_TYPE, CrusoePlan, Network
from orch.components.crusoe.startup import MOST, startup_script
from orch.components.idleness import SCRIPT as IDLE_SCRIPT
from orch.components.idleness import IdleRule, idle_rule
from orch.components.lifetime import Lifetime, lifetime
from orch.components.node_count import all_there, count_words, folded, live_indices, node_indices
from orch.components.request import PriorState
from orch.runner.preparation.init_steps import steps
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, settle
from orch.spec.models import Fleet
from orch.spec.models.backends.crusoe import CrusoeSettings
from orch.spec.models.blocks import Network as NetworkBlock
from orch.spec.suggest import few
from orch.templates import ShellText, render

PREPARE = "/usr/local/sbin/orch-prepare"
OFF = ShellText("systemctl poweroff")
# What a host key and the client's take in a script, when it is planned.
_KEY = "x" * 400


@dataclass(frozen=True)
class Context:
    """What a plan is made of besides the fleet.

    `scripts`: the text of `init[].file`, by path; `scope`: six hex digits that tell one project's names from
    another's, used for a new stack only. `indices`: the nodes to plan, None: as many as the file asks for;
    `other_groups`: the fleet's other nodes; `created`: when the fleet was, in seconds since the epoch.
    """

    settings: CrusoeSettings
    catalog: Catalog
    scope: str
    scripts: Mapping[str, str] = field(default_factory=dict[str, str])
    indices: tuple[int, ...] | None = None
    other_groups: OtherGroups[CrusoePlan, CrusoeFacts] = field(
        default_factory=OtherGroups["CrusoePlan", CrusoeFacts]
    )
    created: int = 0


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
    by_region = block.subnets.get(candidate.region, ()) if isinstance(block.subnets, dict) else block.subnets
    behind = way_in(block, settings).kind == "bastion"
    return Lookups(
        instance_type=candidate.type.name,
        location=candidate.region,
        image=pinned or _image_of(fleet, candidate),
        network=block.vpc,
        subnets=by_region,
        quota=not (candidate.kept and all_there(fleet, previous, indices)),
        bastion_image=(pins.get("bastion_image") or BASTION_IMAGE) if behind else None,
    )


def _image_of(fleet: Fleet, candidate: CrusoeCandidate) -> str:
    """The image of the nodes as it is looked up: what the file writes, else the one of the type."""
    written = fleet.os_image.get("crusoe") if isinstance(fleet.os_image, dict) else fleet.os_image
    return written or f"{machines()[candidate.type.name].image}:latest"


def plan(
    fleet: Fleet, candidate: CrusoeCandidate, facts: CrusoeFacts, previous: PriorState, context: Context
) -> CrusoePlan:
    """The whole fleet at one candidate.

    Raises PlanErrors with all that is wrong: ORCH213, 223-238, 281, 313, 321-323.
    """
    indices = node_indices(fleet, previous) if context.indices is None else context.indices
    live = live_indices(previous) if candidate.kept else frozenset[int]()
    new = len(set(indices) - live)
    scope = previous.pins.get("scope", context.scope)
    settings, block = context.settings, network_of(fleet)
    access = way_in(block, settings)
    whole = fleet.gang == "all-or-nothing"
    machine = machines()[candidate.type.name]
    bastion = _bastion(access, facts, candidate.region)
    fixed = (bastion.price or 0.0) if bastion else 0.0
    data = None if machine.nvme else disk_gb(fleet)
    idle, ending = idle_rule(fleet), lifetime(fleet, context.created)
    cloud_init = node_init(fleet, candidate, context.scripts, idle, ending)
    boot = first_boot_pins(fleet, context.scripts, idle, ending.stamp if ending else "")
    warnings = settle(
        [
            *access_findings("Crusoe", block, access, all_public=True),
            *_given_findings(block, facts, candidate.region),
            *_image_findings(fleet, candidate, facts, previous),
            *_fabric_findings(fleet, candidate),
            *_reservation_findings(fleet, candidate, facts, new),
            *_quota_findings(candidate, facts, new, context.other_groups),
            *unread_findings(facts.unread),
            *user_data_findings("Crusoe", _script_size(cloud_init), MOST),
            *first_boot_findings(previous, boot, len(live)),
            *budget_findings(
                fleet,
                candidate.price,
                fixed,
                candidate.price_of,
                backend="crusoe",
                nodes=len(indices),
                other_nodes=context.other_groups.prices,
                later=context.other_groups.later,
            ),
        ]
    )
    if facts.image is None:
        raise AssertionError("an image that is missing is an error")
    given = next((each for each in facts.subnets if each.location == candidate.region), None)
    network = Network(given.id if given else None, given.network if given else None, access.sources)
    layout = fingerprint(
        candidate.type.name, candidate.region, candidate.network_id, facts.image, data, fleet.reservation
    )
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
    by_topology = fleet.topology == "rank-ordered" and candidate.infiniband is not None
    jumps = (block.proxy_jump or ()) if access.kind == "given" else ()
    return CrusoePlan(
        **fields,
        project=facts.project,
        ib_network=candidate.network_id or None,
        network=network,
        access=access.kind,
        public=True,
        jumps=jumps,
        image=facts.image.name,
        bastion_image=facts.bastion_image.name if bastion and facts.bastion_image else None,
        disk_gib=data,
        reservation=fleet.reservation,
        rank_by_topology=by_topology,
        whole=whole,
        unpriced=tuple(told.unpriced(candidate.price, bastion, data)),
        pins=_pins(fleet, candidate, facts)
        | boot
        | file_systems.mounted(fleet.mounts)
        | {"scope": scope, "indices": folded(indices), "layout": layout},
        reasons=(
            count_words(fleet, len(indices), candidate.words),
            *place_reason(candidate, previous),
            *told.ending_reasons(fleet, idle, ending),
            *told.fabric_reasons(candidate, facts, new),
            *told.network_reasons(network, access, bastion, jumps=len(jumps)),
            *told.capacity_reasons(fleet, candidate, facts, new, whole=whole),
            *told.image_reasons(facts, previous),
            *told.disk_reasons(data),
            *told.rank_reasons(fleet, by_topology=by_topology),
            *(fast.words() if fast else ()),
        ),
        warnings=warnings,
    )


def node_init(
    fleet: Fleet,
    candidate: CrusoeCandidate,
    scripts: Mapping[str, str],
    idle: IdleRule | None = None,
    ending: Lifetime | None = None,
) -> str:
    """The cloud-config of a node, with marks for its name and its keys: what `startup_script` makes of it is
    what Crusoe runs. `scripts`: the text of `init[].file` by path; `idle` and `ending`: when it ends itself.
    """
    init = steps(fleet, scripts)
    machine = machines()[candidate.type.name]
    prepare = render(
        "image-prepare.sh.j2",
        gpus=nvidia(candidate.type),
        toolkit=None,
        cards=machine.hcas if candidate.infiniband else 0,
        data="local" if machine.nvme else "disk",
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


def _script_size(config: str) -> int:
    text = filled(config, name="node", host_key=_KEY, host_key_public=_KEY, authorized_key=_KEY)
    return len(startup_script(text))


# What is found out


def _bastion(access: AccessMethod, facts: CrusoeFacts, region: str) -> Bastion | None:
    """A small machine without GPUs."""
    if access.kind != "bastion" or facts.bastion_image is None:
        return None
    price = price_in("crusoe", BASTION_TYPE, region, False)
    return Bastion(BASTION_TYPE, facts.bastion_image.name, True, access.cidrs or (WORLD,), price)


def _given_findings(block: NetworkBlock, facts: CrusoeFacts, region: str) -> Iterator[Finding]:
    """Given pieces that are not there, or not where the fleet goes."""

    def path_of(name: str) -> str:
        if not isinstance(block.subnets, dict) and name in block.subnets:
            return f"network.subnets[{block.subnets.index(name)}]"
        return "network.vpc" if name == block.vpc else "network"

    for name in facts.missing:
        yield Finding(
            "ORCH226",
            path_of(name),
            f"the project {facts.project} has no {name}",
            hint="name it by its id or its name",
        )
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


def _image_findings(
    fleet: Fleet, candidate: CrusoeCandidate, facts: CrusoeFacts, previous: PriorState
) -> Iterator[Finding]:
    if facts.image is None:
        written, pinned = fleet.os_image is not None, previous.pins.get("image")
        yield Finding(
            "ORCH213",
            "os_image" if written else "resources",
            f"Crusoe has no machine image {_image_of(fleet, candidate)} in {candidate.region}",
            detail=f"{pinned} is pinned, and gone" if pinned else None,
            hint="`orch up --upgrade` takes the newest"
            if pinned and not written
            else "name one in `os_image`, as `name:tag`: `crusoe compute images list` shows them",
        )


def _fabric_findings(fleet: Fleet, candidate: CrusoeCandidate) -> Iterator[Finding]:
    plain = fleet.network is not None and fleet.network.interconnect == "ethernet"
    if fleet.placement == "cluster" and candidate.infiniband is None and not plain:
        name = candidate.type.name
        fast = sorted(kind for kind, each in machines().items() if each.hcas)
        yield Finding(
            "ORCH223",
            "instance_types" if fleet.instance_types else "placement",
            f"the project has no InfiniBand network for {name} in {candidate.region}: Ethernet only"
            if name in fast
            else f"{name} has no InfiniBand: Ethernet only between the nodes",
            hint=f"with InfiniBand: {', '.join(fast)}; or write `network: {{interconnect: ethernet}}`",
            severity=Severity.WARNING,
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


def _pins(fleet: Fleet, candidate: CrusoeCandidate, facts: CrusoeFacts) -> dict[str, str]:
    assert facts.image is not None
    return {
        "backend": "crusoe",
        "project": facts.project,
        "region": candidate.region,
        "zone": candidate.zone,
        "instance_type": candidate.type.name,
        "spot": "false",
        "image": facts.image.name,
        "image_of": _image_of(fleet, candidate),
        **({"ib_network": candidate.network_id} if candidate.network_id else {}),
        **({"bastion_image": facts.bastion_image.name} if facts.bastion_image else {}),
    }
