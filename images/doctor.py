"""What this machine has and lacks for building images: read only, for `orch doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orch.images import docker
from orch.images.base import HUB_IMAGE, LOCAL_IMAGE, debootstrap_path, root_prefix
from orch.images.build import names, tag


@dataclass(frozen=True)
class ImageCheck:
    """One finding. `fail` means orch cannot go on without it; `info` is worth knowing."""

    id: str
    result: Literal["ok", "fail", "info"]
    detail: str
    hint: str | None = None


def checks() -> tuple[ImageCheck, ...]:
    """The findings in the order in which one would mend them. Changes nothing, pulls nothing."""
    if not docker.installed():
        return (
            ImageCheck(
                "docker-cli",
                "fail",
                "no `docker` command",
                "Debian or Ubuntu: apt-get install docker.io; macOS: Docker Desktop",
            ),
        )
    cli = ImageCheck("docker-cli", "ok", "found")
    version = docker.server_version()
    if version is None:
        hint = "start it (systemctl start docker, or Docker Desktop); your user must be in the group `docker`"
        return (cli, ImageCheck("docker-daemon", "fail", "does not answer", hint))
    found: list[ImageCheck] = [cli, ImageCheck("docker-daemon", "ok", f"answers, version {version}"), _base()]
    for name in names():
        reference = tag(name)
        there = docker.has_image(reference)
        detail = reference if there else f"{reference} is not built yet"
        found.append(
            ImageCheck(
                f"image-{name}",
                "ok" if there else "info",
                detail,
                None if there else f"python -m orch.images {name}",
            )
        )
    return tuple(found)


def _base() -> ImageCheck:
    for image in (HUB_IMAGE, LOCAL_IMAGE):
        if docker.has_image(image):
            return ImageCheck("image-base", "ok", image)
    if debootstrap_path() is not None and root_prefix() is not None:
        return ImageCheck(
            "image-base", "info", "none yet; will be pulled from Docker Hub, or made with debootstrap"
        )
    return ImageCheck(
        "image-base",
        "info",
        "none yet; will be pulled from Docker Hub",
        "where Docker Hub cannot be reached: apt-get install debootstrap (and root or sudo)",
    )
