"""Shared file systems that are created with a fleet: what they are, and what a change of the file does to
them.

Pure. What a cloud takes of sizes is in `spec/rules/file_systems.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orch.components.request import DATA_TYPES, FILE_SYSTEM_PIN, PriorState, RecordedFileSystem
from orch.runner.preparation.mounts import created_name
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, settle
from orch.spec.models import Fleet
from orch.spec.models.blocks import Mount
from orch.spec.rules.file_systems import created_size, created_throughput, filestore_range

if TYPE_CHECKING:
    from orch.components.deployment import Deployment

MOUNTED_PIN = "mounted"
"""The pin of what a fleet mounts that was not created with it, by id or address."""
NETWORK_PIN = "file_systems_in"
"""The pin of the network that created file systems are in."""
_SECOND = "leave {} as it is; or make a second fleet, copy the data, and `orch down` this one"
_UNITS = {"efs": "MiB/s", "fsx-lustre": "MB/s per TiB"}
ZONAL = frozenset({"fsx-lustre", "filestore"})
"""Those in one zone, which nodes of another one reach slowly or not at all."""
_TITLES = {
    "efs": "EFS",
    "fsx-lustre": "FSx for Lustre",
    "filestore": "Filestore",
    "lambda-filesystem": "file system of Lambda",
}


@dataclass(frozen=True)
class FileSystem:
    """A file system that is created. `name` is unique among the fleet's, and the same as long as its path is.

    `size`: GiB, None where it grows with what it holds. `throughput`: as the file has it, None where it
    follows from the load or the size.
    """

    name: str
    path: str
    type: str
    size: int | None
    throughput: int | None

    @property
    def words(self) -> str:
        """`FSx for Lustre of 1200 GiB, 125 MB/s per TiB`."""
        size = f" of {self.size} GiB" if self.size else ""
        throughput = f", {self.throughput} {_UNITS.get(self.type, 'MiB/s')}" if self.throughput else ""
        return f"{_TITLES.get(self.type, self.type)}{size}{throughput}"

    @property
    def pin(self) -> str:
        return f"{self.type} {self.size or 0} {self.throughput or 0}"


def created(fleet: Fleet) -> tuple[FileSystem, ...]:
    """The file systems that are created with a fleet, in the order of its file."""
    return tuple(
        FileSystem(
            created_name(mount.path), mount.path, mount.type, created_size(mount), created_throughput(mount)
        )
        for mount in fleet.mounts
        if mount.create is not None
    )


def pins(file_systems: Sequence[FileSystem], network: str) -> dict[str, str]:
    """What a later plan must know of them. `network`: the one that they are in, in words."""
    own = {f"{FILE_SYSTEM_PIN}{each.path}": each.pin for each in file_systems}
    return own | ({NETWORK_PIN: network} if own else {})


def mounted(mounts: Sequence[Mount]) -> dict[str, str]:
    """What else of their own a fleet's nodes mount, recorded for those who would delete it."""
    words = " ".join(sorted(filter(None, (each.id or each.source for each in mounts))))
    return {MOUNTED_PIN: words} if words else {}


def mounts_one_of(words: str, names: Collection[str]) -> bool:
    """Whether ids or addresses of mounts name a file system that has these `names`."""
    return any(re.search(rf"(?<![\w.-]){re.escape(each)}(?![\w-])", words) for each in names)


def of_pins(pins: Mapping[str, str]) -> tuple[FileSystem, ...]:
    """The file systems that a fleet was made with, by its pins."""
    rows = [
        (key.removeprefix(FILE_SYSTEM_PIN), value.split())
        for key, value in pins.items()
        if key.startswith(FILE_SYSTEM_PIN)
    ]
    return tuple(
        FileSystem(created_name(path), path, words[0], int(words[1]) or None, int(words[2]) or None)
        for path, words in sorted(rows)
        if len(words) == 3
    )


def check(
    fleet: Fleet, previous: PriorState, deployment: Deployment, lose_data: Collection[str]
) -> Deployment:
    """The deployment, with a warning for each file system that it deletes or makes anew as agreed.

    `lose_data`: the paths of those. Raises PlanErrors for any other that would lose its data or cannot
    become what the file has: one that is recorded goes by the user's word alone.
    """
    warnings = settle(list(_findings(fleet, previous, deployment, lose_data)))
    return replace(deployment, findings=(*deployment.findings, *warnings))


def _findings(
    fleet: Fleet, previous: PriorState, deployment: Deployment, lose_data: Collection[str]
) -> Iterator[Finding]:
    """What a plan does to the file systems that are recorded, and what is recorded of them no more.

    Sources: FSx for Lustre user guide, "Managing storage capacity" (it grows only); Filestore documentation,
    "Zonal service tier" (it stays in its range). A Filestore could shrink; orch does not let it.
    """
    now = {each.path: each for each in created(fleet)}
    index = {mount.path: position for position, mount in enumerate(fleet.mounts)}
    known = previous.file_systems
    if known is None:  # by hand: what the last `up` had; the engine keeps the rest
        known = tuple(
            RecordedFileSystem("", "", e.type, e.path, e.size, e.throughput) for e in of_pins(previous.pins)
        )
    for each in known:
        after = now.get(each.path)
        at = f"mounts[{index[each.path]}]" if each.path in index else "mounts"
        if after is None:
            hint = f"to keep it, leave `{{type: {each.type}, path: {each.path}, create: …}}` in `mounts`"
            yield _deleted(fleet, each, at, hint, lose_data)
        elif after.type != each.type:
            hint = f"to keep it, write `type: {each.type}`, and mount the other at a path of its own"
            yield _deleted(fleet, each, f"{at}.type", hint, lose_data)
        elif deployment.moves:
            yield Finding(
                "ORCH275",
                at,
                f"the fleet would move, and {words_of(each)} would be deleted, and all data on it",
                detail="another zone, instance type or market (`spot_policy`) is another place: the fleet is "
                "removed where it is, and made there",
                hint=_SECOND.format("the place"),
            )
        elif (before := _network(previous)) and deployment.pins.get(NETWORK_PIN, before) != before:
            yield Finding(
                "ORCH275",
                "network",
                f"the network would change, and {words_of(each)} cannot leave the one where it is",
                detail=f"it is in {before}",
                hint=_SECOND.format("`network`"),
            )
        else:
            yield from _size_findings(each, after, f"{at}.create")
    if previous.file_systems is None:
        return
    recorded = {each.path for each in previous.file_systems}
    for each in of_pins(previous.pins):
        if each.path not in recorded and each.path in now and now[each.path].type == each.type:
            at = f"mounts[{index[each.path]}]"
            if each.path in lose_data:
                yield Finding("ORCH275", at, gone_words(each.path), severity=Severity.WARNING)
            else:
                yield gone(each.path, at)


def _network(previous: PriorState) -> str | None:
    """The network where the file systems are, also of an `up` that did not end."""
    return {**previous.unfinished, **previous.pins}.get(NETWORK_PIN)


def words_of(each: RecordedFileSystem) -> str:
    """`the file system at /shared (EFS fs-0123)`."""
    size = f" of {each.size} GiB" if each.size else ""
    name = f" {each.id.rpartition('/')[2]}" if each.id else ""
    return f"the file system at {each.path} ({_TITLES.get(each.type, each.type)}{size}{name})"


def gone_words(path: str) -> str:
    return f"the file system at {path} is gone, and a new, empty one is made"


def gone(path: str, at: str) -> Finding:
    """The error for one that was created and is there no more."""
    return Finding(
        "ORCH275",
        at,
        f"the file system at {path} is gone: a new one would be empty",
        detail="it was created with the fleet, and has been deleted by something else",
        hint=f"`orch up FILE --lose-data {path}` makes an empty one; or mount a copy of it by its `source`",
    )


def _size_findings(before: RecordedFileSystem, after: FileSystem, at: str) -> Iterator[Finding]:
    old, new = before.size or 0, after.size or 0
    if new < old:
        yield Finding(
            "ORCH264",
            f"{at}.size",
            f"the file system at {before.path} has {old} GiB, and would shrink to {new} GiB",
            hint=f"write `size: {old}GB`, or create a second one at another path and copy the data",
        )
    elif after.type == "filestore" and filestore_range(old) != filestore_range(new):
        yield Finding(
            "ORCH274",
            f"{at}.size",
            f"the file system at {before.path} has {old} GiB, and cannot grow to {new} GiB",
            detail="a Filestore stays in the range it was created in: up to 9.75 TiB, or from 10 TiB on",
            hint="write `size: 9.75TB` or less, or create a second one at another path and copy the data",
        )


def _deleted(
    fleet: Fleet, before: RecordedFileSystem, at: str, hint: str, lose_data: Collection[str]
) -> Finding:
    if fleet.protect:
        return Finding(
            "ORCH348",
            at,
            f"the fleet is protected, and the file system at {before.path} would be deleted with its data",
            hint=f"{hint}; or first `orch up` the fleet with `protect: false`",
        )
    if before.path in lose_data:
        return Finding(
            "ORCH275", at, f"{words_of(before)} is deleted, and all data on it", severity=Severity.WARNING
        )
    return Finding(
        "ORCH275",
        at,
        f"{words_of(before)} would be deleted, and all data on it",
        hint=f"{hint}; `orch up FILE --lose-data {before.path}` deletes it",
    )


def recorded(
    resources: Sequence[Mapping[str, Any]], pins: Mapping[str, str]
) -> tuple[RecordedFileSystem, ...]:
    """The file systems among the resources of a fleet's stack. `pins` tell the paths: those of the last `up`,
    and of one that did not end."""
    paths = {created_name(path): path for path in (each.path for each in of_pins(pins))}
    return tuple(
        _recorded(each, paths) for each in resources if each["type"] in DATA_TYPES and each.get("id")
    )


def _recorded(resource: Mapping[str, Any], paths: Mapping[str, str]) -> RecordedFileSystem:
    urn, outputs = str(resource["urn"]), resource.get("outputs") or {}
    name = urn.rpartition("::")[2]
    path = next((path for each, path in paths.items() if name.endswith(f"-{each}")), name)
    shares = outputs.get("fileShares") or {}
    size = outputs.get("storageCapacity") or shares.get("capacityGb")
    throughput = outputs.get("perUnitStorageThroughput") or outputs.get("provisionedThroughputInMibps")
    return RecordedFileSystem(
        urn,
        str(resource["id"]),
        DATA_TYPES[resource["type"]],
        path,
        int(size) if size else None,
        int(throughput) if throughput else None,
    )


def reasons(file_systems: Sequence[FileSystem]) -> Iterator[str]:
    """What the plan says of them."""
    for each in file_systems:
        yield f"{each.path}: {each.words}, created with the fleet, and deleted with it"


def unpriced(file_systems: Sequence[FileSystem]) -> Iterator[str]:
    """What costs money and has no price in the catalogue."""
    for each in file_systems:
        yield f"file system at {each.path}"
