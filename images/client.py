"""The container engine of this machine through its API, found as the `docker` command finds it.

The SDK itself reads only DOCKER_HOST. Docker Desktop, Colima and rootless Docker name their socket in the
current context, so the context is read too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orch.images.errors import DockerUnavailable

if TYPE_CHECKING:
    import docker


def connect(timeout_s: float = 60.0) -> docker.DockerClient:
    """A connected client: the engine has answered once.

    Raises DockerUnavailable when none answers or this user may not use it.
    """
    import docker
    from docker.context import ContextAPI
    from docker.errors import DockerException

    host: str | None = os.environ.get("DOCKER_HOST")
    try:
        if host is None:
            context = ContextAPI.get_current_context()
            host = context.Host if context is not None else None
        client = docker.DockerClient(base_url=host, timeout=int(timeout_s), max_pool_size=32)
        client.ping()
    except DockerException as error:
        denied = "permission denied" in str(error).lower()
        raise DockerUnavailable(
            "Docker refuses this user" if denied else "no Docker answers on this machine",
            where=host or "the default Docker socket",
            detail=_first_line(error),
            hint=(
                "add the user to the group `docker` and log in again, or run as root"
                if denied
                else "start Docker (Docker Desktop, or `sudo dockerd`), or install the package docker.io; "
                "`orch doctor` shows what is found"
            ),
            code="ORCH340",
        ) from error
    return client


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
