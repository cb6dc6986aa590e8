"""`orch:local:Volume`: a folder of one Docker volume, which every local node has mounted.

Inputs: `name` (the folder), `image` (of the containers that look at it), `external` (it existed before, and
stays), `size_mib` (a record; nothing enforces it). Any image looks at the same folder: a later version's
is no change, and takes the place of a recorded one that is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from docker.errors import APIError, ImageNotFound

from orch.images import volume_folders
from orch.images.build import is_ours, resolve
from orch.images.client import connect
from orch.images.errors import DockerUnavailable
from orch.images.volume_folders import DOCKER_VOLUME
from orch.providers.orch.handler import OBSERVED, Inputs, ProviderError, State

REMOVE_S = 600.0
"""How long Docker may take to remove a folder of many files."""


class LocalVolumeHandler:
    computed: ClassVar[frozenset[str]] = frozenset()
    secrets: ClassVar[frozenset[str]] = frozenset()
    tools: ClassVar[frozenset[str]] = frozenset({"image"})

    def check(self, inputs: Inputs) -> list[tuple[str, str]]:
        failures = [(key, "must be set") for key in ("name", "image") if inputs.get(key) in (None, "")]
        name = inputs.get("name")
        if isinstance(name, str) and ("/" in name or name.startswith(".")):
            failures.append(("name", f"{name!r} is no name of a folder"))
        return failures

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        return key in ("name", "external")

    def create(self, inputs: Inputs) -> tuple[str, State]:
        name, image = inputs["name"], inputs["image"]
        with _told(image):
            if inputs.get("external") and not volume_folders.exists(connect(), image, name):
                raise ProviderError(
                    f"this machine has no local volume {name}",
                    hint=f"`docker run --rm -v {DOCKER_VOLUME}:/v {image} ls /v` lists them",
                    code="ORCH268",
                )
            volume_folders.make(connect(), image, name)
        return name, {OBSERVED: {}}

    def read(self, resource_id: str, state: State) -> State | None:
        try:
            with _told(state["image"]):
                client = connect()
                there = volume_folders.exists(client, _image(client, state), resource_id)
        except (DockerUnavailable, ProviderError) as error:
            return {OBSERVED: {"reachable": False, "reason": error.summary}}
        return {OBSERVED: {}} if there else None

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        return {OBSERVED: {}}

    def delete(self, resource_id: str, state: State) -> None:
        if not state.get("external"):
            with _told(state["image"]):
                client = connect(REMOVE_S)
                volume_folders.remove(client, _image(client, state), resource_id)


def _image(client: Any, state: State) -> str:
    """The image of containers that look at a volume: the recorded one, or this version's where it is gone.

    Raises docker's APIError.
    """
    recorded: str = state["image"]
    try:
        client.images.get(recorded)
    except ImageNotFound:
        return resolve("orch/node") if is_ours(recorded) else recorded
    return recorded


@contextmanager
def _told(image: str) -> Iterator[None]:
    """Docker's errors as ours."""
    try:
        yield
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
