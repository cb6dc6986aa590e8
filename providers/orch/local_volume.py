"""`orch:local:Volume`: a folder of one Docker volume, which every local node has mounted.

Inputs: `name` (the folder), `image` (of the containers that look at it), `external` (it existed before, and
stays), `size_mib` (a record; nothing enforces it). A volume of Docker's own for each would be seen by no node
that runs already: containers get their mounts when they are created.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from docker.errors import APIError, ImageNotFound, NotFound

from orch.images.client import connect
from orch.images.errors import DockerUnavailable
from orch.providers.orch.handler import OBSERVED, Inputs, ProviderError, State
from orch.runner.node.commands import LOCAL_VOLUMES

DOCKER_VOLUME = "orch-volumes"
LABEL = "orch.helper"
MOUNTED = {DOCKER_VOLUME: {"bind": LOCAL_VOLUMES, "mode": "rw"}}
REMOVE_S = 600.0
"""How long Docker may take to remove a folder of many files."""


class LocalVolumeHandler:
    computed: ClassVar[frozenset[str]] = frozenset()
    secrets: ClassVar[frozenset[str]] = frozenset()

    def check(self, inputs: Inputs) -> list[tuple[str, str]]:
        failures = [(key, "must be set") for key in ("name", "image") if inputs.get(key) in (None, "")]
        name = inputs.get("name")
        if isinstance(name, str) and ("/" in name or name.startswith(".")):
            failures.append(("name", f"{name!r} is no name of a folder"))
        return failures

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        return key in ("name", "external")

    def create(self, inputs: Inputs) -> tuple[str, State]:
        name = inputs["name"]
        with _helper(connect(), inputs["image"]) as helper:
            if not _exists(helper, name):
                if inputs.get("external"):
                    raise ProviderError(
                        f"this machine has no local volume {name}",
                        hint=f"`docker run --rm -v {DOCKER_VOLUME}:/v {inputs['image']} ls /v` lists them",
                        code="ORCH268",
                    )
                helper.put_archive(LOCAL_VOLUMES, _folder(name))
        return name, {OBSERVED: {}}

    def read(self, resource_id: str, state: State) -> State | None:
        try:
            client = connect()
            client.volumes.get(DOCKER_VOLUME)
            with _helper(client, state["image"]) as helper:
                return {OBSERVED: {}} if _exists(helper, resource_id) else None
        except NotFound:
            return None
        except (DockerUnavailable, ProviderError) as error:
            return {OBSERVED: {"reachable": False, "reason": error.summary}}

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        return {OBSERVED: {}}

    def delete(self, resource_id: str, state: State) -> None:
        if state.get("external"):
            return
        client = connect(REMOVE_S)
        command = ["rm", "-rf", "--", f"{LOCAL_VOLUMES}/{resource_id}"]
        with _helper(client, state["image"], command) as helper:
            helper.start()
            result = helper.wait()
            if result["StatusCode"]:
                raise ProviderError(
                    f"the folder of the volume {resource_id} was not removed",
                    detail=helper.logs(tail=5).decode(errors="replace").strip(),
                    code="ORCH340",
                )
        remove_when_empty(client, state["image"])


def remove_when_empty(client: Any, image: str) -> None:
    """Remove the Docker volume of all local volumes when it has none, and no node is there that uses it."""
    with suppress(APIError, ProviderError):
        if client.containers.list(all=True, filters={"volume": DOCKER_VOLUME}):
            return
        client.volumes.get(DOCKER_VOLUME)
        with _helper(client, image) as helper:
            stream, _ = helper.get_archive(LOCAL_VOLUMES)
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
    """A container that has the folders mounted. It need not run for files to be copied in and out."""
    try:
        container = client.containers.create(
            image,
            entrypoint=command or ["true"],
            labels={LABEL: "volumes"},
            volumes=MOUNTED,
            network_mode="none",
        )
    except ImageNotFound as error:
        raise ProviderError(
            f"the node image {image} is not on this machine",
            hint="`orch up` builds the one of this version",
            code="ORCH343",
        ) from error
    except APIError as error:
        raise ProviderError(
            "Docker did not mount the folders of local volumes", detail=error.explanation, code="ORCH340"
        ) from error
    try:
        yield container
    finally:
        with suppress(NotFound):
            container.remove(force=True, v=True)  # v: the image's own volume, an anonymous one


def _exists(helper: Any, name: str) -> bool:
    try:
        stream, _ = helper.get_archive(f"{LOCAL_VOLUMES}/{name}")
    except NotFound:
        return False
    stream.close()
    return True


def _folder(name: str) -> bytes:
    """An archive with one folder, which jobs of any user may write to."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o777
        tar.addfile(entry)
    return buffer.getvalue()
