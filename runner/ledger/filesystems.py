"""File systems that other machines see too: what lies there is shared, and its server has a clock."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

# As the kernel calls them. FUSE stands for sshfs, gluster, s3fs and whatever else is not known to be local.
SHARED = {
    *(
        "nfs",
        "nfs4",
        "cifs",
        "smb",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "afpfs",
        "webdav",
        "ceph",
        "lustre",
        "gpfs",
    ),
    *("beegfs", "glusterfs", "gfs2", "ocfs2", "orangefs", "panfs", "pvfs2", "virtiofs", "vboxsf", "vmhgfs"),
}


def is_shared(folder: Path) -> bool:
    """Whether other machines may write to a folder too."""
    kind = kind_of(folder.resolve(), _mounts())
    return kind in SHARED or kind.startswith("fuse")


def kind_of(path: Path, mounts: Iterable[tuple[str, str]]) -> str:
    """The file system a path lies on, of (mount point, kind) as they were mounted; "" if on none of them."""
    found, depth = "", -1
    for point, kind in mounts:
        if path.is_relative_to(point) and len(Path(point).parts) >= depth:
            found, depth = kind, len(Path(point).parts)
    return found


def read_mountinfo(text: str) -> tuple[tuple[str, str], ...]:
    """Linux's /proc/self/mountinfo: mount points, with what is escaped in them, and kinds."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if len(fields) > 4 and tail:
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
            found.append((point, tail.split(" ")[0]))
    return tuple(found)


def read_mount(text: str) -> tuple[tuple[str, str], ...]:
    """What `mount` of macOS and BSD says: `SOURCE on POINT (KIND, …)`."""
    found = (re.fullmatch(r".*? on (.*) \(([^,)]+).*\)", line) for line in text.splitlines())
    return tuple((each[1], each[2]) for each in found if each)


def server_time(folder: Path) -> float:
    """Now, by the clock of whoever keeps the files of a folder: seconds since the epoch.

    Machines that share a folder may disagree on the time; the time it gives to a file is one for all."""
    handle, name = tempfile.mkstemp(prefix=".clock-", dir=folder)
    try:
        os.close(handle)
        os.utime(name)  # without a time: the server's now
        return os.stat(name).st_mtime
    finally:
        os.unlink(name)


def _mounts() -> tuple[tuple[str, str], ...]:
    try:
        return read_mountinfo(Path("/proc/self/mountinfo").read_text(errors="replace"))
    except OSError:
        pass
    try:
        said = subprocess.run(["mount"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return read_mount(said)
