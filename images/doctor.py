"""Checks of this machine for building images, for `orch doctor`. Read only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orch.images import docker
from orch.images.base import HUB_IMAGE, LOCAL_IMAGE, debootstrap_path, root_prefix
from orch.images.build import names, tag


@dataclass(frozen=True)
class ImageCheck:
    """The result of one check. `fail`: orch cannot build images; `info`: worth knowing."""

    id: str
    result: Literal["ok", "fail", "info"]
    detail: str
    hint: str | None = None


def checks() -> tuple[ImageCheck, ...]:
    """The results, in the order in which to repair failures. Changes nothing, pulls nothing."""
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
    result: list[ImageCheck] = [
        cli,
        ImageCheck("docker-daemon", "ok", f"answers, version {version}"),
        _base(),
    ]
    for name in names():
        reference = tag(name)
        is_present = docker.has_image(reference)
        detail = reference if is_present else f"{reference} is not built yet"
        result.append(
            ImageCheck(
                f"image-{name}",
                "ok" if is_present else "info",
                detail,
                None if is_present else f"python -m orch.images {name}",
            )
        )
    return tuple(result)


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
