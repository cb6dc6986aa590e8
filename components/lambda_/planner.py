"""What a fleet becomes on Lambda: instances, an SSH key and firewall rules, with the reasons. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orch.components import file_systems
from orch.components.cloud.backend import place_reason
from orch.components.cloud.cloudinit import (
    RUNS_INIT,
    first_boot_findings,
    first_boot_pins,
    node_config,
    node_files,
    prepared,
)
from orch.components.cloud.node_groups import OtherGroups
from orch.components.cloud.plan import plan_fields
from orch.components.cloud.sizing import budget_findings, fingerprint, nvidia, user_data_findings
from orch.components.cloud.ssh_access import WORLD, AccessMethod, network_of, source_findings
from orch.components.lambda_ import explain as told
from orch.components.lambda_.account.facts import LambdaFacts, Lookups
from orch.components.lambda_.candidates import LambdaCandidate, mounted, tag_findings
from orch.components.lambda_.plan import IMAGE_FAMILY, NO_FIREWALL, LambdaPlan
from orch.components.node_count import count_words, folded, live_indices, node_indices
from orch.components.request import PriorState
from orch.runner.preparation.init_steps import steps
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, settle
from orch.spec.models import Fleet
from orch.spec.models.backends.lambda_ import LambdaSettings
from orch.spec.models.blocks import Network as NetworkBlock
from orch.templates import render

PREPARE = "/usr/local/sbin/orch-prepare"
MOST_USER_DATA = 1_000_000
"""Bytes. Source: Lambda Cloud API 1.10, InstanceLaunchRequest."""

TAGS = "tags"
"""The pin of what instances are tagged with, when they are launched."""

_KEYS_SIZE = 2_000
"""What a host key and the client's take, when a script is planned."""


@dataclass(frozen=True)
class Context:
    """What a plan is made of besides the fleet.

    `scripts`: the text of `init[].file`, by path; `scope`: six hex digits that tell one project's names from
    another's, used for a new stack only. `indices`: the nodes to plan, None: as many as the file asks for;
    `tags` are the project's; `other_groups`: the fleet's other nodes.
    """

    settings: LambdaSettings
    scope: str
    scripts: Mapping[str, str] = field(default_factory=dict[str, str])
    indices: tuple[int, ...] | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    other_groups: OtherGroups[LambdaPlan, LambdaFacts] = field(
        default_factory=OtherGroups["LambdaPlan", LambdaFacts]
    )


def needed_lookups(fleet: Fleet, candidate: LambdaCandidate, previous: PriorState) -> Lookups:
    """What has to be asked for a plan: an image that the stack has pinned by its id."""
    pinned = _pinned_image(fleet, candidate, previous)
    return Lookups(
        instance_type=candidate.type.name,
        region=candidate.region,
        image=pinned or _image_of(fleet),
        arch=candidate.type.arch,
        file_systems=tuple(mounted(fleet)),
    )


def _pinned_image(fleet: Fleet, candidate: LambdaCandidate, previous: PriorState) -> str | None:
    """An id is of one region; orch.lock keeps which, for a stack that is in none yet."""
    pins = previous.pins
    here = pins.get("image_region", pins.get("region")) == candidate.region
    return pins.get("image") if here and pins.get("image_of") == _image_of(fleet) else None


def _image_of(fleet: Fleet) -> str:
    """The image of the nodes as it is looked up: what the file writes, else the family that orch takes."""
    written = fleet.os_image.get("lambda") if isinstance(fleet.os_image, dict) else fleet.os_image
    return written or IMAGE_FAMILY


def plan(
    fleet: Fleet, candidate: LambdaCandidate, facts: LambdaFacts, previous: PriorState, context: Context
) -> LambdaPlan:
    """The whole fleet at one candidate.

    Raises PlanErrors with all that is wrong: ORCH213, 223-235, 281.
    """
    indices = node_indices(fleet, previous) if context.indices is None else context.indices
    live = live_indices(previous) if candidate.kept else frozenset[int]()
    new = len(set(indices) - live)
    scope = previous.pins.get("scope", context.scope)
    settings, block = context.settings, network_of(fleet)
    access = _way_in(block, settings)
    ssh_from = () if candidate.region in NO_FIREWALL else access.sources
    whole = fleet.gang == "all-or-nothing"
    made = file_systems.created(fleet)
    inherited = {**context.tags, **settings.tags}
    tags = {**fleet.tags, **inherited}
    cloud_init = node_init(fleet, candidate, context.scripts)
    boot = first_boot_pins(fleet, context.scripts)
    warnings = settle(
        [
            *_access_findings(block, access, facts, candidate.region),
            *_image_findings(fleet, candidate, facts, previous),
            *_fabric_findings(fleet, candidate),
            *_disk_findings(fleet, candidate, facts),
            *user_data_findings("Lambda", len(cloud_init.encode()) + _KEYS_SIZE, MOST_USER_DATA),
            *first_boot_findings(previous, boot, len(live)),
            *_tag_findings(previous, tags, len(live)),
            *tag_findings({key: (value, "backends") for key, value in inherited.items()}),
            *budget_findings(
                fleet,
                candidate.price,
                0.0,
                candidate.price_of,
                backend="lambda",
                nodes=len(indices),
                other_nodes=context.other_groups.prices,
                later=context.other_groups.later,
            ),
        ]
    )
    if facts.image is None:
        raise AssertionError("an image that is missing is an error")
    attached = {
        fleet.mounts[index].path: facts.file_systems[name].id for name, index in mounted(fleet).items()
    }
    layout = fingerprint(
        candidate.type.name, candidate.region, facts.image.id, attached, sorted(each.path for each in made)
    )
    fields = plan_fields(
        fleet,
        candidate,
        scope=scope,
        indices=indices,
        interconnect="ethernet",
        bastion=None,
        bastion_init="",
        cloud_init=cloud_init,
        layout=layout,
        layout_unchanged=previous.pins.get("layout") == layout,
        idle=None,
        lifetime=None,
        fixed=0.0,
    )
    return LambdaPlan(
        **{**fields, "file_systems": made},
        access="given" if access.kind == "given" else "direct",
        ssh_from=ssh_from,
        jumps=(block.proxy_jump or ()) if access.kind == "given" else (),
        image=facts.image.id,
        image_words=facts.image.words,
        attached=attached,
        disk_gib=facts.storage_gib or 0,
        tags=tags,
        whole=whole,
        unpriced=(*(("nodes",) if candidate.price is None else ()), *file_systems.unpriced(made)),
        pins=_pins(fleet, candidate, facts)
        | boot
        | file_systems.mounted(fleet.mounts)
        | file_systems.pins(made, f"the region {candidate.region}")
        | {"scope": scope, "indices": folded(indices), "layout": layout, TAGS: fingerprint(tags)},
        reasons=(
            count_words(fleet, len(indices), candidate.words),
            *place_reason(candidate, previous),
            *told.capacity_reasons(candidate, facts, new, whole=whole),
            *told.network_reasons(
                candidate.region, access, ssh_from, facts, jumps=len(block.proxy_jump or ())
            ),
            *told.image_reasons(facts, previous),
            *(f"file system: {path} is {each}, in this region" for path, each in attached.items()),
            *file_systems.reasons(made),
        ),
        warnings=warnings,
    )


def node_init(fleet: Fleet, candidate: LambdaCandidate, scripts: Mapping[str, str]) -> str:
    """The cloud-config of a node, with marks for its name and its keys. `scripts`: the text of `init[].file`
    by path."""
    init = steps(fleet, scripts)
    prepare = render(
        "image-prepare.sh.j2",
        gpus=nvidia(candidate.type),
        toolkit="nvidia-container-toolkit",
        cards=0,
        data=None,
        idle=None,
        steps=init,
        **RUNS_INIT,
    )
    files = [
        *node_files(PREPARE, sshd="AllowTcpForwarding yes\n"),
        *prepared(PREPARE, prepare, init, cloud=None),
    ]
    return node_config(fleet, files, host_key="given")


# What is found out


def _way_in(block: NetworkBlock, settings: LambdaSettings) -> AccessMethod:
    """Straight, for each instance has a public address; over given hops, where no network is named."""
    cidrs = settings.ssh_cidrs if block.ssh_cidrs is None else block.ssh_cidrs
    return AccessMethod("given" if block.proxy_jump and not cidrs else "direct", True, cidrs)


def _access_findings(
    block: NetworkBlock, access: AccessMethod, facts: LambdaFacts, region: str
) -> Iterator[Finding]:
    yield from source_findings(access.cidrs, written=bool(block.ssh_cidrs), alone="what the account lets in")
    if region in NO_FIREWALL:
        yield Finding(
            "ORCH224",
            "network",
            f"no firewall rules hold in {region}: the whole world may knock at each port of the nodes",
            detail="Lambda applies the rules of an account everywhere but there",
            hint="write another region in `regions`",
            severity=Severity.WARNING,
        )
    elif access.kind == "direct" and not access.cidrs and not facts.ssh_from:
        yield Finding(
            "ORCH235",
            "network",
            "nobody could log in to the nodes: the account's firewall rules let nobody in to SSH",
            hint="write `ssh_cidrs`, here or at the backend in orch.yml: the networks that you come from",
        )
    elif WORLD in facts.ssh_from and WORLD not in access.cidrs:
        yield Finding(
            "ORCH224",
            "network",
            f"{WORLD} lets the whole world knock at SSH",
            detail="a firewall rule of the account says so, which holds for all of its instances; orch "
            "changes no rule that it has not made",
            hint="remove that rule in Lambda's console"
            + ("" if access.cidrs else ", and write `ssh_cidrs`: the networks that you come from"),
            severity=Severity.WARNING,
        )


def _image_findings(
    fleet: Fleet, candidate: LambdaCandidate, facts: LambdaFacts, previous: PriorState
) -> Iterator[Finding]:
    if facts.image is None:
        written, pinned = fleet.os_image is not None, _pinned_image(fleet, candidate, previous)
        yield Finding(
            "ORCH213",
            "os_image" if written else "resources",
            f"Lambda has no machine image {_image_of(fleet)} for {candidate.type.name} in {candidate.region}",
            detail=f"{pinned} is pinned, and gone" if pinned else None,
            hint="`orch up --upgrade` takes the newest"
            if pinned and not written
            else "name a family or an id in `os_image`, as Lambda's console lists them",
        )


def _fabric_findings(fleet: Fleet, candidate: LambdaCandidate) -> Iterator[Finding]:
    plain = fleet.network is not None and fleet.network.interconnect == "ethernet"
    if fleet.placement == "cluster" and not plain:
        yield Finding(
            "ORCH223",
            "placement",
            f"{candidate.type.name} has no InfiniBand as a single instance: Ethernet only between the nodes",
            hint="`backend_options: [{type: lambda, cluster: NAME}]` takes in a 1-Click Cluster that you "
            "have; or write `network: {interconnect: ethernet}`",
            severity=Severity.WARNING,
        )


def _disk_findings(fleet: Fleet, candidate: LambdaCandidate, facts: LambdaFacts) -> Iterator[Finding]:
    size = fleet.resources.disk_mib
    asked = (size.min or 0) // 1024
    if "disk_mib" in fleet.resources.model_fields_set and facts.storage_gib and asked > facts.storage_gib:
        yield Finding(
            "ORCH229",
            "resources.disk",
            f"{candidate.type.name} has a disk of {facts.storage_gib} GiB, this asks for {asked}",
            hint="write less, or keep data on a file system: `mounts`",
        )


def _tag_findings(previous: PriorState, tags: Mapping[str, str], live: int) -> Iterator[Finding]:
    if live and previous.pins.get(TAGS, fingerprint(tags)) != fingerprint(tags):
        yield Finding(
            "ORCH232",
            "tags",
            f"Lambda tags an instance when it is launched: the {live} that run keep theirs",
            hint="`orch fleet delete NAME -i N` and `orch up` make a node anew",
            severity=Severity.WARNING,
        )


def _pins(fleet: Fleet, candidate: LambdaCandidate, facts: LambdaFacts) -> dict[str, str]:
    assert facts.image is not None
    return {
        "backend": "lambda",
        "region": candidate.region,
        "zone": candidate.region,
        "instance_type": candidate.type.name,
        "spot": "false",
        "image": facts.image.id,
        "image_of": _image_of(fleet),
        "image_region": candidate.region,
    }
