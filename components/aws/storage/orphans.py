"""File systems and mount targets that a call that did not end was creating, and nobody recorded.

A file system holds data: it is removed only where its creation is not recorded to have ended, so that nothing
was ever written to it, or where the fleet that it was of has just been removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from orch.components.aws.account.client import RegionClient
from orch.components.aws.account.client_errors import client_error, pages, translate_errors
from orch.components.marks.orphans import StackSnapshot

EFS, TARGET = "aws:efs/fileSystem:FileSystem", "aws:efs/mountTarget:MountTarget"
LUSTRE = "aws:fsx/lustreFileSystem:LustreFileSystem"
# A file system of Lustre takes about ten minutes to be made, and some to be removed.
WAIT_S, PAUSE_S = 1800.0, 3.0


def delete_file_systems(
    region: RegionClient, snapshot: StackSnapshot, stack_tags: Collection[str]
) -> Iterator[str]:
    """Remove them; what was removed, each with its id. Raises CloudRefused."""
    unfinished = {each.type: True for each in snapshot.unfinished}
    urns = {f"{each.type}::{each.name}" for each in snapshot.unfinished}

    def is_orphan(identifier: str, tags: Mapping[str, str]) -> bool:
        ours = tags.get("orch:stack") in stack_tags and tags.get("orch:urn") in urns
        return ours and identifier not in snapshot.ids

    with translate_errors("remove file systems that a call that did not end had begun"):
        if TARGET in unfinished:
            yield from _mount_targets(region.client("efs"), snapshot)
        if EFS in unfinished:
            yield from _elastic(region.client("efs"), snapshot, is_orphan)
        if LUSTRE in unfinished:
            yield from _lustre(region.client("fsx"), snapshot, is_orphan)


def _mount_targets(efs: Any, snapshot: StackSnapshot) -> Iterator[str]:
    """Targets of a recorded file system, in the subnet that an unfinished one was asked for."""
    for each in snapshot.unfinished:
        if each.type != TARGET:
            continue
        with _unless_gone():
            rows = efs.describe_mount_targets(FileSystemId=each.inputs["fileSystemId"])["MountTargets"]
            for row in rows:
                identifier = row["MountTargetId"]
                if row["SubnetId"] == each.inputs["subnetId"] and identifier not in snapshot.ids:
                    _delete_target(efs, identifier, snapshot.still_held)
                    yield f"{each.name} ({identifier})"


def _elastic(
    efs: Any, snapshot: StackSnapshot, is_orphan: Callable[[str, Mapping[str, str]], bool]
) -> Iterator[str]:
    for row in list(pages(efs, "describe_file_systems", "FileSystems")):
        identifier, tags = row["FileSystemId"], _tags(row)
        if not is_orphan(identifier, tags) or row["LifeCycleState"] == "deleting":
            continue
        if delete_elastic(efs, identifier, snapshot.still_held):
            yield f"{tags['orch:urn'].rpartition('::')[2]} ({identifier})"


def delete_elastic(efs: Any, identifier: str, still_held: Callable[[], None] = lambda: None) -> bool:
    """Delete a file system of EFS with its mount targets; False where it is gone."""
    with _unless_gone():
        for target in efs.describe_mount_targets(FileSystemId=identifier)["MountTargets"]:
            _delete_target(efs, target["MountTargetId"], still_held)
        still_held()
        efs.delete_file_system(FileSystemId=identifier)
        return True
    return False


def _delete_target(efs: Any, identifier: str, still_held: Callable[[], None]) -> None:
    def gone() -> bool:
        with _unless_gone():
            efs.describe_mount_targets(MountTargetId=identifier)
            return False
        return True

    still_held()
    with _unless_gone():
        efs.delete_mount_target(MountTargetId=identifier)
    _wait(gone)


def _lustre(
    fsx: Any, snapshot: StackSnapshot, is_orphan: Callable[[str, Mapping[str, str]], bool]
) -> Iterator[str]:
    for row in list(pages(fsx, "describe_file_systems", "FileSystems")):
        identifier, tags = row["FileSystemId"], _tags(row)
        if not is_orphan(identifier, tags):
            continue
        delete_lustre(fsx, identifier, snapshot.still_held, snapshot.tell)
        yield f"{tags['orch:urn'].rpartition('::')[2]} ({identifier})"


def delete_lustre(
    fsx: Any,
    identifier: str,
    still_held: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda text: None,
) -> None:
    """Delete a file system of Lustre; one that is being created can be deleted when it is there."""

    def lifecycle() -> str | None:
        with _unless_gone():
            return str(fsx.describe_file_systems(FileSystemIds=[identifier])["FileSystems"][0]["Lifecycle"])
        return None

    if lifecycle() == "CREATING":
        tell(f"waiting until {identifier}, which was begun before, is there: then it is removed")
    _wait(lambda: lifecycle() != "CREATING")
    with _unless_gone():
        if lifecycle() != "DELETING":
            still_held()  # it was waited for many minutes
            fsx.delete_file_system(FileSystemId=identifier)
    _wait(lambda: lifecycle() is None)


def _tags(row: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in row.get("Tags", ())}


def _wait(until: Callable[[], bool]) -> None:
    """Until it is so, WAIT_S at most: what still stands in the way then is refused by the next call."""
    deadline = time.monotonic() + WAIT_S
    while not until() and time.monotonic() < deadline:
        time.sleep(PAUSE_S)


@contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except client_error() as error:
        if error.response["Error"]["Code"] not in ("FileSystemNotFound", "MountTargetNotFound"):
            raise
