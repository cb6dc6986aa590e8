"""Where a Lambda fleet may go, and what its file may not ask of Lambda. Pure.

Regions have no zones. Which types exist, and where there is capacity now, the account tells; it does not tell
how much.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orch.catalog.records import Catalog
from orch.components.cloud.candidates import (
    CloudCandidate,
    candidate_of,
    current_candidate,
    divisible,
    fits_of,
    query_on,
)
from orch.components.cloud.machines.ssh_access import private_by_settings
from orch.components.cloud.restrictions import NO, SPOT, YES, Restriction, rejected
from orch.components.lambda_.account.client import TAG
from orch.components.lambda_.account.facts import FoundFileSystem, Stock
from orch.components.request import PriorState
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.lambda_ import LambdaSettings
from orch.spec.suggest import few, hint_for

MOUNT = "lambda-filesystem"
"""The type of mounts that are Lambda's own."""

MOST_SHORT = 3
"""How many places without capacity are tried where no place has any: the account may not know yet."""

# Source: Lambda Cloud API 1.10, RequestedFilesystemMountEntry and RequestedTagEntry.
_MOUNT_POINT = re.compile(r"(/home|/lambda/nfs|/data)(/[a-zA-Z0-9-]+)*")
_HIDES_KEYS = ("/home", "/home/ubuntu")
"""Where a file system would lie over the keys of who logs in."""

_TAG_KEY = re.compile(r"[a-z][a-z0-9:-]+")
MOST_TAG_KEY, MOST_TAG, MOST_MOUNT = 55, 128, 256


_NO_NETWORKS = (
    "Lambda's API has no networks: instances of a region share one, and firewall rules are of "
    "the whole account"
)
_PUBLIC = "Lambda gives each instance a public address: a launch has no field against it"
RESTRICTIONS = (
    Restriction(
        "spot_policy",
        "Lambda's API makes no spot instances: a launch has no field for it",
        "write `spot_policy: on-demand`, or leave it out",
        SPOT,
    ),
    Restriction(
        "network.public_ips",
        _PUBLIC,
        "remove it: `ssh_cidrs` says who may reach SSH",
        NO,
    ),
    Restriction(
        "network.bastion",
        "Lambda has no small machines to jump over: each instance has GPUs, and a public address",
        "remove it: `ssh_cidrs` says who may reach SSH",
        YES,
    ),
    Restriction("network.vpc", _NO_NETWORKS),
    Restriction("network.subnets[0]", _NO_NETWORKS),
    Restriction("network.security_groups[0]", _NO_NETWORKS),
)


@dataclass(frozen=True)
class LambdaCandidate(CloudCandidate):
    """`zone`: the region. `room`: whether there is capacity now, None: nobody was asked. `storage_gib`: what
    an instance of the type has. `listed`: the account was asked about it."""

    room: bool | None = None
    storage_gib: int | None = None

    @property
    def place(self) -> str:
        return self.region


def candidates(
    fleet: Fleet,
    settings: LambdaSettings,
    catalog: Catalog,
    *,
    previous: PriorState = PriorState(),  # noqa: B008 - frozen
    other_backends: Collection[str] = (),
) -> tuple[LambdaCandidate, ...]:
    """Each type in each region that the catalogue knows, the cheapest first; the place that the stack is in
    alone, as long as the file allows it.

    `other_backends`: other backends where the fleet may go, whose types are no mistakes.

    Raises PlanErrors when there is none: ORCH200, 202, 223, 237.
    """
    if wrong := list(refusals(fleet, settings)):
        raise PlanErrors(wrong)
    query = query_on(settings, fleet, catalog, spot=False)
    kept = current_candidate(query, catalog, previous)
    if kept is not None:
        return tuple(map(LambdaCandidate.at, divisible(fleet, (kept,))))
    found = [candidate_of(fit) for fit in fits_of(fleet, query, catalog, other_backends)]
    return tuple(LambdaCandidate.at(each, zone=each.region, listed=False) for each in divisible(fleet, found))


def refusals(fleet: Fleet, settings: LambdaSettings) -> Iterator[Finding]:
    """What Lambda cannot do for any fleet, each where it is written."""
    for index, each in enumerate(fleet.backend_options):
        if each.get("type") == "lambda":  # the hosts of a named cluster are no candidates
            hint = "write `cluster: NAME`, the 1-Click Cluster to take in"
            path = f"backend_options[{index}]"
            yield Finding("ORCH230", path, "options of lambda name no `cluster`", hint=hint)
    yield from rejected(fleet, RESTRICTIONS)
    yield from private_by_settings(fleet.network, settings, _PUBLIC)
    if fleet.network is not None and fleet.network.interconnect == "required":
        yield Finding(
            "ORCH223",
            "network.interconnect",
            "a fast interconnect is required, and Lambda's single instances have Ethernet only",
            hint="InfiniBand is in its 1-Click Clusters: `backend_options: [{type: lambda, cluster: NAME}]` "
            "takes one in that you have",
        )
    named = mounted(fleet)
    for index, mount in enumerate(fleet.mounts):
        if mount.type == MOUNT:
            if mount.id is not None and named[str(mount.id)] != index:
                yield Finding(
                    "ORCH237",
                    f"mounts[{index}].id",
                    f"the file system {mount.id} is mounted twice",
                    hint="mount it once: jobs may mount folders of it where they need them",
                )
            if mount.path in _HIDES_KEYS:
                yield Finding(
                    "ORCH237",
                    f"mounts[{index}].path",
                    f"a file system at {mount.path} would hide the keys of who logs in",
                    hint="write a path below /data",
                )
            elif len(mount.path) > MOST_MOUNT or not _MOUNT_POINT.fullmatch(mount.path):
                yield Finding(
                    "ORCH237",
                    f"mounts[{index}].path",
                    f"Lambda mounts no file system at {mount.path}",
                    hint="write a path below /data, /home or /lambda/nfs, of letters, digits and `-`",
                )
            if mount.options is not None:
                yield Finding(
                    "ORCH237",
                    f"mounts[{index}].options",
                    "Lambda mounts its file systems itself, and takes no options",
                    hint="remove `options`; `read_only` holds for jobs",
                )
    yield from tag_findings({key: (value, f"tags.{key}") for key, value in fleet.tags.items()})


def tag_findings(tags: Mapping[str, tuple[str, str]]) -> Iterator[Finding]:
    """Tags that Lambda does not take. `tags`: key -> its value, and where that is written."""
    for key, (value, path) in tags.items():
        fits = len(key) <= MOST_TAG_KEY and _TAG_KEY.fullmatch(key) and len(value) <= MOST_TAG
        if not fits or key == TAG:
            yield Finding(
                "ORCH237",
                path,
                f"Lambda takes no tag '{key}' with this value" if not fits else f"the tag '{key}' is orch's",
                detail=f"its keys are small letters, digits, `-` and `:`, {MOST_TAG_KEY} at most; "
                f"its values have {MOST_TAG} letters at most",
                hint="rename it, or remove it",
            )


def mounted(fleet: Fleet) -> dict[str, int]:
    """The file systems that are there already and that the fleet mounts, with their place in `mounts`."""
    return {
        str(mount.id): index
        for index, mount in enumerate(fleet.mounts)
        if mount.type == MOUNT and mount.id is not None
    }


def placed(
    fleet: Fleet,
    settings: LambdaSettings,
    types: Sequence[LambdaCandidate],
    *,
    stock: Stock,
    file_systems: Sequence[FoundFileSystem] = (),
    regions: Collection[str] | None = None,
) -> tuple[LambdaCandidate, ...]:
    """The places where there is capacity now, in the order to try; where there is none, the first few.

    `file_systems`: those of the account; an instance is launched in the region of those that it mounts.
    `regions`: those of the account, where it was asked: the catalogue knows some that it has not.

    Raises PlanErrors (ORCH205, 239) where there is no place.
    """
    sold = [each for each in types if each.type.name in stock]
    if not sold:
        raise PlanErrors([_nowhere(fleet, types, stock)])
    places = [*sold, *_new_regions(fleet, settings, sold, stock)]
    places = _with_file_systems(fleet, places, file_systems)
    told = [
        replace(
            each,
            listed=True,
            room=each.region in stock[each.type.name].regions,
            storage_gib=stock[each.type.name].storage_gib,
        )
        for each in places
    ]
    there = [each for each in told if regions is None or each.region in regions] or told
    return tuple([each for each in told if each.room] or there[:MOST_SHORT])


def _new_regions(
    fleet: Fleet, settings: LambdaSettings, sold: Sequence[LambdaCandidate], stock: Stock
) -> Iterator[LambdaCandidate]:
    """Regions that the account tells of and the catalogue does not know: prices are the same everywhere."""
    if fleet.regions or settings.regions:
        return
    known = {(each.type.name, each.region) for each in sold}
    for each in {each.type.name: each for each in reversed(sold)}.values():
        for region in sorted(stock[each.type.name].regions):
            if (each.type.name, region) not in known:
                yield replace(each, region=region, zone=region)


def _with_file_systems(
    fleet: Fleet, places: Sequence[LambdaCandidate], there: Sequence[FoundFileSystem]
) -> list[LambdaCandidate]:
    """The places in the region of all file systems that the fleet mounts. Raises PlanErrors."""
    regions = {each.region for each in places}
    wrong: list[Finding] = []
    for name, index in mounted(fleet).items():
        own = {each.region for each in there if name in (each.id, each.name)}
        path = f"mounts[{index}].id"
        if not own:
            hint = hint_for(name, [each.name for each in there])
            known = few([each.name for each in there]) if there else "none"
            wrong.append(
                Finding(
                    "ORCH239",
                    path,
                    f"the account has no file system {name}",
                    hint=hint or f"it has {known}; `create: true` makes one with the fleet",
                )
            )
        elif not own & regions:
            wrong.append(
                Finding(
                    "ORCH239",
                    path,
                    f"the file system {name} is in {few(sorted(own))}, and the fleet goes to "
                    f"{few(sorted(regions))}",
                    hint="an instance mounts file systems of its own region: write that one in `regions`",
                )
            )
        regions &= own or regions
    if wrong:
        raise PlanErrors(wrong)
    return [each for each in places if each.region in regions]


def _nowhere(fleet: Fleet, types: Sequence[LambdaCandidate], stock: Mapping[str, object]) -> Finding:
    names = few(dict.fromkeys(each.type.name for each in types))
    path = "instance_types" if fleet.instance_types else "resources"
    return Finding(
        "ORCH205",
        path,
        f"Lambda sells no {names} to this account now",
        hint=f"it sells {few(sorted(stock))}",
    )
