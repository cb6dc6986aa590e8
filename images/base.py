"""The base of every image: Debian's slim image, or a replacement built on this machine.

Where Docker Hub cannot be reached, debootstrap builds the same release from the mirror of this machine's apt.
An image's tag does not depend on which of the two was used: both are the same release, and a rebuild would
change nothing that a job can see.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from orch.images import docker
from orch.images.docker import Progress
from orch.images.errors import BaseUnavailable

RELEASE = "bookworm"
HUB_IMAGE = f"debian:{RELEASE}-slim"
LOCAL_IMAGE = f"orch/base:{RELEASE}"
PULL_TIMEOUT_S = 60.0
"""The image has 28 MB. A network that drops packets instead of refusing must not hold a build for minutes."""


def ensure_base(log: Path, progress: Progress, release: str = RELEASE) -> str:
    """Name of a base image that the daemon has, pulled or built if necessary. Raises BaseUnavailable."""
    hub_image, local_image = f"debian:{release}-slim", f"orch/base:{release}"
    for image in (hub_image, local_image):
        if docker.has_image(image):
            return image
    reason = _pull(hub_image, log, progress)
    if reason is None:
        return hub_image
    progress(
        f"Docker Hub cannot be reached ({reason[:100]}); making a Debian {release} base with debootstrap "
        "(about 30 s)"
    )
    _debootstrap(log, progress, release, pull_error=reason)
    return local_image


def ensure_official(image: str, log: Path, progress: Progress) -> str:
    """A base that comes from a registry alone, pulled if the daemon lacks it. Raises BaseUnavailable."""
    if docker.has_image(image):
        return image
    reason = _pull(image, log, progress)
    if reason is not None:
        raise BaseUnavailable(
            f"no base image: {image} cannot be pulled, and no release of Debian has this Python",
            detail=f"docker pull: {reason}",
            hint="let Docker reach a registry, or bring the image here (`docker load`), or write `3.9`, "
            "`3.11` or `3.13`, or name another image for it in `images` of `orch.yml`",
        )
    return image


def _pull(image: str, log: Path, progress: Progress) -> str | None:
    """Pull an image; why it could not be pulled."""
    progress(f"pulling {image}")
    result = docker.run_logged(
        ["docker", "pull", image], log=log, progress=progress, timeout_s=PULL_TIMEOUT_S
    )
    if result.code == 0:
        return None
    return result.tail[-1] if result.tail else "no answer"


def root_prefix() -> tuple[str, ...] | None:
    """The words before a command that needs root: none for root, else sudo; None without sudo."""
    if os.geteuid() == 0:
        return ()
    if shutil.which("sudo") is None:
        return None
    return ("sudo",) if sys.stdin.isatty() else ("sudo", "-n")


def debootstrap_path() -> str | None:
    """The path of debootstrap, also in /usr/sbin, which is often not on a user's PATH; None without it."""
    return shutil.which("debootstrap") or shutil.which("debootstrap", path="/usr/sbin:/sbin")


def apt_sources(release: str = RELEASE) -> tuple[str, ...]:
    """This machine's Debian mirrors as "URI POCKET" for a release, main archive first; empty elsewhere.

    A mirror carries every supported release, so a machine with another Debian release can name this one's
    pockets too.
    """
    try:
        listing = subprocess.run(
            [
                "apt-get",
                "indextargets",
                "--format",
                "$(ORIGIN)|$(REPO_URI)|$(CODENAME)|$(COMPONENT)",
                "Created-By: Packages",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ()
    return parse_targets(listing, release)


def parse_targets(listing: str, release: str = RELEASE) -> tuple[str, ...]:
    """apt_sources() from the text of `apt-get indextargets`."""
    by_pocket: dict[str, str] = {}
    for line in listing.splitlines():
        fields = line.split("|")
        if len(fields) != 4:
            continue
        origin, uri, codename, component = fields
        if origin != "Debian" or component != "main" or not uri.startswith(("http://", "https://")):
            continue
        _, dash, pocket = codename.partition("-")
        if pocket in ("", "updates", "security"):
            by_pocket.setdefault(dash + pocket, uri.rstrip("/"))
    if "" not in by_pocket:
        return ()
    return tuple(f"{by_pocket[p]} {release}{p}" for p in ("", "-updates", "-security") if p in by_pocket)


def _debootstrap(log: Path, progress: Progress, release: str, *, pull_error: str) -> None:
    prefix, hub_image, local_image = root_prefix(), f"debian:{release}-slim", f"orch/base:{release}"
    if debootstrap_path() is None or prefix is None:
        reason = (
            "debootstrap is not installed" if prefix is not None else "it needs root, and there is no sudo"
        )
        raise BaseUnavailable(
            f"no base image: {hub_image} cannot be pulled and none can be made here",
            detail=f"pull: {pull_error}; debootstrap: {reason}",
            hint="let Docker reach Docker Hub, or load the image (docker load), or on Debian and Ubuntu: "
            "apt-get install debootstrap, and run this as root or with sudo",
        )
    script = Path(str(files("orch.images"))) / "base" / "debootstrap.sh"
    command = shlex.join([*prefix, "sh", str(script), release, *apt_sources(release)])
    # Piped, so that no copy of the root file system lies on disk or in memory.
    pipeline = f"{command} | docker import --change 'CMD [\"bash\"]' - {local_image}"
    result = docker.run_logged(["bash", "-o", "pipefail", "-c", pipeline], log=log, progress=progress)
    if result.code != 0:
        docker.ask("image", "rm", local_image)
        raise BaseUnavailable(
            f"debootstrap could not make a Debian {release} base",
            detail="\n".join(result.tail[-8:]),
            hint=f"the whole output is in {log}",
        )
    progress(f"  base image {local_image} made in {result.seconds:.0f} s")
