"""Files of tests lie in memory where the machine has room for them.

A commit of SQLite on a disk takes six times the CPU of one in memory, a folder five times, and tests make
many thousands of both. Who sets TMPDIR has them there.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

FOLDER = Path("/dev/shm")
ROOM = 6 << 30
"""Bytes that must be free: a run of all tests keeps less than one gigabyte, pytest those of three."""


def use_memory() -> None:
    """Have this process and those that it starts make temporary files in memory."""
    if "TMPDIR" not in os.environ and _has_room(FOLDER):
        os.environ["TMPDIR"] = str(FOLDER)
        tempfile.tempdir = None  # read again from the environment


def _has_room(folder: Path) -> bool:
    """Whether there is such a folder in memory, large enough, where programs may be started."""
    try:
        found = os.statvfs(folder)
        available = next(
            int(line.split()[1]) << 10
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration):
        return False
    free = min(found.f_bavail * found.f_frsize, available)
    return free >= ROOM and not found.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK | os.X_OK)
