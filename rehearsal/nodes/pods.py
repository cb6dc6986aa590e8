"""Containers that stand for pods: each runs what its cloud was told to run first, and is reached over SSH
at a port of this machine's loopback."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orch.rehearsal.account import SimulationError
from orch.rehearsal.machines import PodContainer

LOOPBACK = "127.0.0.1"
READY_S = 300.0
"""An SSH server may have to be installed."""

SHM = "1g"
"""What /dev/shm of a pod has: Docker's own 64 MiB are less than the processes of one GPU share."""

_HOST_KEY = re.compile(r"^orch: host key (ssh-ed25519 [A-Za-z0-9+/=]+)", re.MULTILINE)


@dataclass(frozen=True)
class Reached:
    """How the container of a pod is reached from this machine."""

    address: str
    port: int
    host_key: str


def create(
    name: str,
    hostname: str,
    at: tuple[str, str],
    pod: PodContainer,
    *,
    image: str | None,
    volumes: Mapping[str, str],
) -> Reached:
    """Start a container for a pod, and wait until its SSH server greets. Raises SimulationError.

    `volumes`: volumes of Docker that it has, each with its path. `at`: its network, and its address in it.
    `image`: one to take in place of the pod's own. Without one, and where that is not on this machine,
    `orch/job` is taken.
    """
    from docker.errors import APIError, NotFound
    from docker.types import Mount

    from orch.images.client import connect
    from orch.providers.orch.local_network import STACK_LABEL

    client: Any = connect()
    network, address = at
    with suppress(NotFound):
        client.containers.get(name).remove(force=True, v=True)  # a killed call left it
    entrypoint, words = _command(pod.command)
    endpoint = client.api.create_endpoint_config(aliases=[hostname], ipv4_address=address)
    try:
        container = client.containers.create(
            _image(client, image or pod.image),
            words,
            name=name,
            hostname=hostname,
            entrypoint=entrypoint,
            environment=dict(pod.env),
            labels={STACK_LABEL: network},
            network=network,
            networking_config={network: endpoint},
            ports={"22/tcp": (LOOPBACK, None)},
            shm_size=SHM,
            mounts=[Mount(path, volume, type="volume", no_copy=True) for volume, path in volumes.items()],
        )
        container.start()
    except APIError as error:
        raise SimulationError(
            f"the pod {name} did not start", detail=error.explanation or str(error)
        ) from error
    return _wait_until_reached(container, name)


def remove_volumes(names: Iterable[str]) -> None:
    """Remove volumes of Docker that stand for volumes of an account; what is gone is gone."""
    from docker.errors import NotFound

    from orch.images.client import connect

    for name in names:
        with suppress(NotFound):
            connect().volumes.get(name).remove()


def _command(text: str) -> tuple[list[str] | None, list[str]]:
    """The entrypoint, None for the image's own, and its words: a string, or the JSON of GraphQL's
    `dockerArgs`."""
    if text.startswith("{"):
        given = json.loads(text)
        return given.get("entrypoint"), given.get("cmd", [])
    return None, shlex.split(text)


def _image(client: Any, name: str) -> str:
    from docker.errors import ImageNotFound

    from orch.images import ensure
    from orch.images.build import resolve

    known = resolve(name) if name.startswith("orch/") else name
    try:
        client.images.get(known)
    except ImageNotFound:
        return ensure("job", progress=lambda text: None)
    return known


def _wait_until_reached(container: Any, name: str) -> Reached:
    from socket import create_connection

    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        container.reload()
        if container.status in ("exited", "dead"):
            break
        log = container.logs().decode(errors="replace")
        bindings = container.attrs["NetworkSettings"]["Ports"].get("22/tcp") or []
        if bindings and (shown := _HOST_KEY.search(log)):
            port = int(bindings[0]["HostPort"])
            try:
                with create_connection((LOOPBACK, port), timeout=2) as connection:
                    connection.settimeout(2)
                    if connection.recv(4) == b"SSH-":
                        return Reached(LOOPBACK, port, shown[1])
            except OSError:
                pass
        time.sleep(0.1)
    said = container.logs(tail=5).decode(errors="replace").strip()
    container.remove(force=True, v=True)
    raise SimulationError(
        f"nobody can log in to the pod {name}",
        detail=said or "it says nothing",
        hint="its first process is to be orch's, and its image needs an SSH server or a package manager that "
        "installs one",
    )
