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


def ensure_base(log: Path, progress: Progress) -> str:
    """Name of a base image that the daemon has, pulled or built if necessary. Raises BaseUnavailable."""
    for image in (HUB_IMAGE, LOCAL_IMAGE):
        if docker.has_image(image):
            return image
    progress(f"pulling {HUB_IMAGE}")
    result = docker.run_logged(
        ["docker", "pull", HUB_IMAGE], log=log, progress=progress, timeout_s=PULL_TIMEOUT_S
    )
    if result.code == 0:
        return HUB_IMAGE
    reason = result.tail[-1] if result.tail else "no answer"
    progress(
        f"Docker Hub cannot be reached ({reason[:100]}); making a Debian {RELEASE} base with debootstrap "
        "(about 30 s)"
    )
    _debootstrap(log, progress, pull_error=reason)
    return LOCAL_IMAGE


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


def apt_sources() -> tuple[str, ...]:
    """This machine's Debian mirrors as "URI POCKET" for RELEASE, main archive first; empty on other systems.

    A mirror carries every supported release, so a machine with another Debian release can name RELEASE's
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
    return parse_targets(listing)


def parse_targets(listing: str) -> tuple[str, ...]:
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
    return tuple(f"{by_pocket[p]} {RELEASE}{p}" for p in ("", "-updates", "-security") if p in by_pocket)


def _debootstrap(log: Path, progress: Progress, *, pull_error: str) -> None:
    prefix = root_prefix()
    if debootstrap_path() is None or prefix is None:
        reason = (
            "debootstrap is not installed" if prefix is not None else "it needs root, and there is no sudo"
        )
        raise BaseUnavailable(
            f"no base image: {HUB_IMAGE} cannot be pulled and none can be made here",
            detail=f"pull: {pull_error}; debootstrap: {reason}",
            hint="let Docker reach Docker Hub, or load the image (docker load), or on Debian and Ubuntu: "
            "apt-get install debootstrap, and run this as root or with sudo",
        )
    script = Path(str(files("orch.images"))) / "base" / "debootstrap.sh"
    command = shlex.join([*prefix, "sh", str(script), RELEASE, *apt_sources()])
    # Piped, so that no copy of the root file system lies on disk or in memory.
    pipeline = f"{command} | docker import --change 'CMD [\"bash\"]' - {LOCAL_IMAGE}"
    result = docker.run_logged(["bash", "-o", "pipefail", "-c", pipeline], log=log, progress=progress)
    if result.code != 0:
        docker.ask("image", "rm", LOCAL_IMAGE)
        raise BaseUnavailable(
            f"debootstrap could not make a Debian {RELEASE} base",
            detail="\n".join(result.tail[-8:]),
            hint=f"the whole output is in {log}",
        )
    progress(f"  base image {LOCAL_IMAGE} made in {result.seconds:.0f} s")
