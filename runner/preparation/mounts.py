"""Shared file systems of a fleet on its nodes: the step that mounts them, what containers get of them. Pure.

Each has a line in /etc/fstab, with the option `x-orch=OWNER` that mount(8) keeps to itself: so it is there
again after a reboot, and who leaves a host finds its own lines.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orch.spec.state import FleetMount
from orch.templates import ShellText, render

if TYPE_CHECKING:
    from orch.spec.models.blocks import Mount

# Type and options of mount(8) by kind, as the clouds' guides give them: EFS "Mounting with the NFS client",
# Filestore "Mounting file shares on Compute Engine clients", FSx "Mounting from an Amazon EC2 instance". The
# options of the file come after them and win.
_KINDS = {
    "nfs": ("nfs", ("hard",)),
    "efs": ("nfs4", ("nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport",)),
    "filestore": ("nfs", ("hard,timeo=600,retrans=3,resvport",)),
    "lustre": ("lustre", ("relatime,flock",)),
    "fsx-lustre": ("lustre", ("relatime,flock",)),
    "host": ("none", ("bind",)),
    "lambda-filesystem": ("", ()),  # machines come with it
}
_HELPERS = {
    "nfs": ("mount.nfs", "nfs-common", "nfs-utils"),
    "nfs4": ("mount.nfs4", "nfs-common", "nfs-utils"),
    "lustre": ("mount.lustre", "lustre-client-utils", "lustre-client"),
    "none": ("mount", "mount", "util-linux"),
}
# Its address holds the region, which the machine knows.
_EFS = "{}.efs.REGION.amazonaws.com:/"

CREATED = "/var/lib/orch/file-systems"
"""A file of a node with a line `NAME SOURCE PATH` for each file system that was created with its fleet."""

LATE_S = 300
"""How long a node tries to mount a file system that was created with its fleet: EFS asks to wait 90 s after a
mount target was made. Source: EFS user guide, "Mounting EFS file systems", considerations."""


def created_name(path: str) -> str:
    """What a file system that is created for this path goes by: its path in letters that every name may have,
    and a digest of it."""
    words = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")[:12].strip("-")
    return f"fs-{words}-{hashlib.sha256(path.encode()).hexdigest()[:4]}".replace("--", "-")


@dataclass(frozen=True)
class _Line:
    """A line of fstab(5). A folder of the node that is mounted by its owner has none: `kind` is empty.

    The source of a file system that is created with the fleet lies on the node, by its name in `created`.
    """

    source: str
    path: str
    kind: str
    options: str
    optional: bool
    created: str | None = None
    lustre_packages: bool = False

    @property
    def helper(self) -> tuple[str, str, str]:
        """What mounts it, and the packages that have it for apt and for yum."""
        return _HELPERS[self.kind]

    @property
    def text(self) -> str:
        """The line, without what tells its owner, and without a source that lies on the node."""
        source = "" if self.created else _field(self.source)
        return " ".join((source, *map(_field, (self.path, self.kind, self.options))))

    @property
    def origin(self) -> str:
        """What it is mounted from, in words."""
        return "the file system that was created for it" if self.created else self.source


def mount_script(mounts: Sequence[Mount]) -> str:
    """The step that mounts them on a node, and unmounts what its owner had there before.

    The owner of a line is the folder that the step lies in.
    """
    lines = [_line(mount) for mount in mounts]
    return render("init-mounts.sh.j2", lines=lines, owner=None, created=CREATED, late_s=LATE_S)


def unmount(registration: str) -> ShellText:
    """Shell text that unmounts what a stack's steps have mounted on a node, by the id of the stack there."""
    owner = f"orch-init-{registration}"
    script = render("init-mounts.sh.j2", lines=[], owner=owner, created=CREATED, late_s=LATE_S)
    return ShellText(f"! grep -qs x-orch={owner} /etc/fstab || (\n{script})")


def fleet_mounts(mounts: Sequence[Mount]) -> tuple[FleetMount, ...]:
    """What every container gets of them."""
    return tuple(
        FleetMount(
            path=mount.path,
            check="folder" if _line(mount).kind == "" else "mount",
            read_only=mount.read_only,
            optional=mount.optional,
        )
        for mount in mounts
        if mount.in_jobs
    )


def _line(mount: Mount) -> _Line:
    kind, options = _KINDS[mount.type]
    if not kind:
        return _Line(mount.path, mount.path, kind, "", mount.optional)
    source = mount.source or (_EFS.format(mount.id) if mount.id else "")
    if mount.type == "host" and source == mount.path:
        return _Line(source, mount.path, "", "", mount.optional)
    written = (*options, mount.options, "ro" if mount.read_only else None, "_netdev", "nofail")
    created = created_name(mount.path) if mount.create else None
    amazons = mount.type == "fsx-lustre"
    return _Line(source, mount.path, kind, ",".join(filter(None, written)), mount.optional, created, amazons)


def _field(text: str) -> str:
    """A field of fstab(5), which ends at a blank."""
    return text.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("#", "\\043")
