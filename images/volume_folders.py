"""Folders of one Docker volume, which every local node has mounted: what local volumes are.

A volume of Docker's own for each would be seen by no node that runs already: containers get their mounts when
they are created. Containers that need not run look into it, for files can be copied in and out of them.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from docker.errors import APIError, NotFound

from orch.images.errors import FolderStays

DOCKER_VOLUME = "orch-volumes"
MOUNT = "/var/lib/orch-volumes"
"""Where local nodes have it."""

LABEL = "orch.helper"
MOUNTED = {DOCKER_VOLUME: {"bind": MOUNT, "mode": "rw"}}


def exists(client: Any, image: str, name: str) -> bool:
    """Return True if there is a folder of this name. `image`: of the container that looks, present here.

    Raises docker's APIError.
    """
    try:
        client.volumes.get(DOCKER_VOLUME)
    except NotFound:
        return False
    with _helper(client, image) as helper:
        try:
            stream, _ = helper.get_archive(f"{MOUNT}/{name}")
        except NotFound:
            return False
        stream.close()
        return True


def make(client: Any, image: str, name: str) -> None:
    """Make a folder that jobs of any user may write to; one that is there stays. Raises docker's APIError."""
    if exists(client, image, name):
        return
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o777
        tar.addfile(entry)
    with _helper(client, image) as helper:
        helper.put_archive(MOUNT, buffer.getvalue())


def remove(client: Any, image: str, name: str) -> None:
    """Remove a folder with all that is in it. Raises docker's APIError, FolderStays when files stay."""
    with _helper(client, image, ["rm", "-rf", "--", f"{MOUNT}/{name}"]) as helper:
        helper.start()
        if helper.wait()["StatusCode"]:
            raise FolderStays(
                f"the folder of the volume {name} was not removed",
                detail=helper.logs(tail=5).decode(errors="replace").strip(),
                code="ORCH340",
            )
    remove_when_empty(client, image)


def remove_when_empty(client: Any, image: str) -> None:
    """Remove the Docker volume when it has no folder, and no node is there that uses it."""
    with suppress(APIError, OSError):
        if client.containers.list(all=True, filters={"volume": DOCKER_VOLUME}):
            return
        client.volumes.get(DOCKER_VOLUME)
        with _helper(client, image) as helper:
            stream, _ = helper.get_archive(MOUNT)
            # The first header is the folder's own. What follows it in an empty one is the archive's end.
            head = b""
            for chunk in stream:
                head += chunk
                if len(head) >= 1024:
                    break
            if head[512:1024].strip(b"\0"):
                return
        client.volumes.get(DOCKER_VOLUME).remove()


@contextmanager
def _helper(client: Any, image: str, command: list[str] | None = None) -> Iterator[Any]:
    container = client.containers.create(
        image,
        entrypoint=command or ["true"],
        labels={LABEL: "volumes"},
        volumes=MOUNTED,
        network_mode="none",
    )
    try:
        yield container
    finally:
        with suppress(NotFound):
            # v: the image's own volume, an anonymous one
            container.remove(force=True, v=True)
