"""What a fleet becomes on Lambda: instances, an SSH key and firewall rules, with the reasons. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from orch.components import file_systems
from orch.components.cloud.findings import ethernet_only, missing_image, written_image
from orch.components.cloud.machines.ssh_access import WORLD, AccessMethod, source_findings
from orch.components.cloud.neocloud import NeocloudPlanner
from orch.components.cloud.reasons import image_reason
from orch.components.cloud.sizing import fingerprint
from orch.components.lambda_ import explain as told
from orch.components.lambda_.account.facts import LambdaFacts, Lookups
from orch.components.lambda_.candidates import LambdaCandidate, mounted, tag_findings
from orch.components.lambda_.plan import IMAGE_FAMILY, NO_FIREWALL, LambdaPlan
from orch.components.request import PriorState
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.models import Fleet
from orch.spec.models.backends.lambda_ import LambdaSettings
from orch.spec.models.blocks import Network as NetworkBlock

MOST_USER_DATA = 1_000_000
"""Bytes. Source: Lambda Cloud API 1.10, InstanceLaunchRequest."""

TAGS = "tags"
"""The pin of what instances are tagged with, when they are launched."""

_KEYS_SIZE = 2_000
"""What a host key and the client's take, when a script is planned."""


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
    return written_image(fleet, "lambda") or IMAGE_FAMILY


class LambdaPlanner(NeocloudPlanner[LambdaCandidate, LambdaFacts, LambdaPlan, LambdaSettings]):
    """Plan a fleet on Lambda. Errors: ORCH213, 223-235, 281."""

    backend = "lambda"
    title = "Lambda"
    most_user_data = MOST_USER_DATA
    toolkit = "nvidia-container-toolkit"

    @cached_property
    def access(self) -> AccessMethod:
        """Over given hops, else straight: each instance has a public address."""
        cidrs = self.settings.ssh_cidrs if self.block.ssh_cidrs is None else self.block.ssh_cidrs
        return AccessMethod("given" if self.block.proxy_jump else "direct", True, cidrs)

    @cached_property
    def ssh_from(self) -> tuple[str, ...]:
        return () if self.candidate.region in NO_FIREWALL else self.access.sources

    @cached_property
    def inherited_tags(self) -> dict[str, str]:
        return {**self.context.tags, **self.settings.tags}

    @cached_property
    def tags(self) -> dict[str, str]:
        return {**self.fleet.tags, **self.inherited_tags}

    @cached_property
    def idle(self) -> None:
        """None: instances do not end themselves."""

    @cached_property
    def ending(self) -> None:
        """None: instances do not end themselves."""

    @cached_property
    def attached(self) -> dict[str, str]:
        """The path -> the id of each file system that is there already."""
        fleet = self.fleet
        return {
            fleet.mounts[index].path: self.facts.file_systems[name].id
            for name, index in mounted(fleet).items()
        }

    @cached_property
    def created_file_systems(self) -> tuple[file_systems.FileSystem, ...]:
        return file_systems.created(self.fleet)

    @cached_property
    def file_system_place(self) -> str:
        return f"the region {self.candidate.region}"

    @cached_property
    def user_data_size(self) -> int:
        return len(self.cloud_init.encode()) + _KEYS_SIZE

    @cached_property
    def layout_parts(self) -> tuple[object, ...]:
        made = sorted(each.path for each in self.created_file_systems)
        machine, region = self.candidate.type.name, self.candidate.region
        return machine, region, self.image.id, self.attached, made

    def findings(self) -> Iterator[Finding]:
        fleet, candidate, facts = self.fleet, self.candidate, self.facts
        yield from _access_findings(self.block, self.access, facts, candidate.region)
        if facts.image is None:
            place = f"{candidate.type.name} in {candidate.region}"
            yield missing_image(
                f"Lambda has no machine image {_image_of(fleet)} for {place}",
                "name a family or an id in `os_image`, as Lambda's console lists them",
                written=fleet.os_image is not None,
                pinned=_pinned_image(fleet, candidate, self.previous),
            )
        yield from ethernet_only(
            fleet,
            f"{candidate.type.name} has no InfiniBand as a single instance: Ethernet only between the nodes",
            "`backend_options: [{type: lambda, cluster: NAME}]` takes in a 1-Click Cluster that you have",
            path="placement",
        )
        yield from _disk_findings(fleet, candidate, facts)

    def size_findings(self) -> Iterator[Finding]:
        yield from _tag_findings(self.previous, self.tags, len(self.live))
        yield from tag_findings({key: (value, "backends") for key, value in self.inherited_tags.items()})

    def own_pins(self) -> dict[str, str]:
        return {
            "zone": self.candidate.region,
            "spot": "false",
            "image": self.image.id,
            "image_of": _image_of(self.fleet),
            "image_region": self.candidate.region,
            TAGS: fingerprint(self.tags),
        }

    def own_reasons(self) -> Iterator[str]:
        yield from told.capacity_reasons(self.candidate, self.facts, self.new, whole=self.whole)
        jumps = len(self.jumps)
        yield from told.network_reasons(
            self.candidate.region, self.access, self.ssh_from, self.facts, jumps=jumps
        )
        yield image_reason(self.image.id, f"{self.image.words} ({self.image.id})", self.previous)
        for path, each in self.attached.items():
            yield f"file system: {path} is {each}, in this region"

    def fabric_reasons(self) -> tuple[str, ...]:
        """Nothing: instances have Ethernet alone, which `network_reasons` describes."""
        return ()

    def record(self, fields: dict[str, Any]) -> LambdaPlan:
        return LambdaPlan(
            **fields,
            ssh_from=self.ssh_from,
            image_words=self.image.words,
            attached=self.attached,
            disk_gib=self.facts.storage_gib or 0,
            tags=self.tags,
        )


# What is found out


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
    if size.max is not None and (facts.storage_gib or 0) > size.max // 1024:
        yield Finding(
            "ORCH237",
            "resources.disk",
            f"{candidate.type.name} has a disk of {facts.storage_gib} GiB, more than {size.max // 1024}",
            hint="the disk comes with the type: remove the upper bound",
            severity=Severity.WARNING,
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
