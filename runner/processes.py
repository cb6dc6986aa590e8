"""Who acts: names of processes that tell, on their own machine, whether they still live."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path


def process_owner() -> str:
    """A name for this process that tells, on its own machine, whether it still lives."""
    return f"{here()}:{os.getpid()}:{_born(os.getpid())}"


def here() -> str:
    """Who and where, for people: `ada@laptop`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without an entry, as in many containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def is_dead_here(owner: str) -> bool:
    """Whether `owner` is a process of this machine that is gone. Of other machines nothing is known."""
    place, _, rest = owner.partition(":")
    pid, _, born = rest.partition(":")
    if place.partition("@")[2] != socket.gethostname() or not pid.isdigit():
        return False
    return _born(int(pid)) != born


def _born(pid: int) -> str:
    """A mark that differs between two processes that had the same number. Empty when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "alive"
    return "alive"
