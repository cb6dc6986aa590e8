"""Disks, volumes and file systems that local nodes show: folders and Docker volumes of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from orch.rehearsal.account import SimulatedAccount, SimulatedMachine, SimulationError
from orch.rehearsal.nodes import pods
from orch.rehearsal.nodes.names import network_of
from orch.rehearsal.nodes.user_data import file_of
from orch.rehearsal.scenario import NodeScenario

DISKS = "disks"
"""Folders that stand for disks of the account."""

VOLUMES = "volumes of pods"
"""Volumes of Docker that stand for volumes of the account, which pods have mounted."""

FILE_SYSTEMS = "/var/lib/orch/file-systems"
"""A file in user data with a line `NAME SOURCE PATH` for each file system that the machine mounts."""


@dataclass(frozen=True)
class Disk:
    """A disk of the account, and the path under which an instance has it."""

    name: str
    path: str


def show_disk(
    cloud: SimulatedAccount, scenario: NodeScenario, instance: str, disk: Disk, *, there: bool
) -> None:
    """Show a disk to the node of an instance, or take it away: a folder of this machine stands for it."""
    from orch.images.build import resolve

    endpoint = cloud.endpoints().get(instance)
    if endpoint is None:
        return
    if there:
        folder = _folder(cloud, disk.name, scenario.image or resolve("orch/node"))
        script = f"mkdir -p {disk.path.rpartition('/')[0]}; ln -sfn {folder} {disk.path}"
    else:
        script = f"rm -f {disk.path}"
    _run(endpoint.container, ["sh", "-ec", script], "its disk")


def mount_file_systems(
    cloud: SimulatedAccount, container: str, machine: SimulatedMachine, image: str
) -> None:
    """Show a node the file systems that its user data names, or its cloud mounts: a folder of this machine
    stands for each, by the address that it is mounted from, so that all nodes have the same."""
    lines = (file_of(machine.user_data, FILE_SYSTEMS) or b"").decode().splitlines()
    named = [(source, path) for _, source, path in (line.split(" ", 2) for line in lines)]
    for source, path in (*named, *machine.file_systems):
        folder = _folder(cloud, re.split("[:@]", source)[0], image)
        words = ["sh", "-ec", 'mkdir -p "${2%/*}/"; ln -sfnT "$1" "$2"', "sh"]
        _run(container, [*words, folder, path], f"the file system at {path}")


def _folder(cloud: SimulatedAccount, name: str, image: str) -> str:
    """Create the folder that stands for a disk or a file system. Return its path inside nodes."""
    from orch.images import volume_folders
    from orch.images.client import connect

    folder = f"{network_of(cloud)}-{name}"
    volume_folders.make(connect(), image, folder)
    with cloud.store.transaction():
        cloud.store.put_meta(DISKS, sorted({*(cloud.store.meta(DISKS) or ()), folder}))
    return f"{volume_folders.MOUNT}/{folder}"


def _run(container: str, command: list[str], shown: str) -> None:
    from orch.images.client import connect

    result: Any = connect().containers.get(container).exec_run(command)
    if result.exit_code:
        raise SimulationError(
            f"the node {container} does not show {shown}",
            detail=result.output.decode(errors="replace").strip(),
        )


def remove_disks(cloud: SimulatedAccount, *names: str) -> None:
    """Remove the folders that stand for these disks, all of the account without any."""
    from orch.images import volume_folders
    from orch.images.build import resolve
    from orch.images.client import connect

    with cloud.store.transaction():
        folders: set[str] = set(cloud.store.meta(DISKS) or ())
    gone = {f"{network_of(cloud)}-{name}" for name in names} & folders if names else folders
    for folder in sorted(gone):
        volume_folders.remove(connect(), resolve("orch/node"), folder)
    with cloud.store.transaction():
        cloud.store.put_meta(DISKS, sorted(folders - gone))


def remove_volumes(cloud: SimulatedAccount, *, but: Iterable[str] = ()) -> None:
    """Remove what stands for volumes of the account, `but` for these."""
    kept = {f"{network_of(cloud)}-{name}" for name in but}
    with cloud.store.transaction():
        known: set[str] = set(cloud.store.meta(VOLUMES) or ())
    pods.remove_volumes(sorted(known - kept))
    with cloud.store.transaction():
        cloud.store.put_meta(VOLUMES, sorted(known & kept))
