"""Who acts: processes that are told from any other, and whether one of them still lives.

A host name says little: containers share it, and each has process numbers of its own. A process is known by
its machine's boot, its pid namespace, its number there and its start. Only one of our own boot and namespace
can be judged; any other counts as alive.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Marks the owners of this form in a ledger. An orch of before takes what follows for no number, and so for
# a process of which nothing is known.
_FORM = "v2"

GONE = ""


@dataclass(frozen=True)
class Process:
    """One process among all machines. `born` is its start, in words of its own machine."""

    boot: str
    namespace: str
    pid: int
    born: str


def this_process() -> Process | None:
    """This one, or None where a process cannot be told from others."""
    return process(os.getpid())


def process(pid: int) -> Process | None:
    """A living process of our own namespace, or None when that cannot be told."""
    place = _place()
    found = born(pid)
    return Process(*place, pid, found) if place is not None and found else None


def is_dead(other: Process) -> bool:
    """Whether a process is certainly gone. What cannot be judged is alive."""
    place = _place()
    return place == (other.boot, other.namespace) and gone(other, born(other.pid))


def gone(other: Process, found: str | None) -> bool:
    """Whether what was `found` at a process's number says that it is no more: nothing (GONE), or another one.

    None says that nothing could be seen."""
    return found is not None and found != other.born


def user_name() -> str:
    """This process's user; its number where no name is known, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def here() -> str:
    """Who and where, for people: `ada@laptop`."""
    return f"{user_name()}@{socket.gethostname()}"


def process_owner() -> str:
    """A name for this process as the ledger keeps it; it tells whether the process still lives."""
    mine = this_process()
    if mine is None:
        return f"{here()[:100]}:{_FORM}:{os.getpid()}:::"
    return f"{here()[:100]}:{_FORM}:{mine.pid}:{mine.born}:{mine.boot}:{mine.namespace}"


def is_dead_owner(owner: str) -> bool:
    """Whether an owner in the ledger is a process that is certainly gone.

    Of other machines, of other namespaces and of owners that an earlier orch wrote nothing is known."""
    found = _read(owner)
    return found is not None and bool(found.born) and is_dead(found)


def owner_words(owner: str) -> str:
    """An owner for people."""
    found = _read(owner)
    return owner if found is None else f"process {found.pid} of {owner.rsplit(':', 5)[0]}"


def _read(owner: str) -> Process | None:
    parts = owner.rsplit(":", 5)
    if len(parts) != 6 or parts[1] != _FORM or not parts[2].isdigit():
        return None
    return Process(boot=parts[4], namespace=parts[5], pid=int(parts[2]), born=parts[3])


@cache
def _place() -> tuple[str, str] | None:
    """The boot and the pid namespace that our numbers are of, or None where that cannot be told."""
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):
            return None  # a /proc of another namespace: its numbers are not ours
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        if Path("/proc/self").exists():
            return None
    # macOS has no pid namespaces.
    boot = _said("sysctl", "-n", "kern.bootsessionuuid")
    return (boot, "0") if boot else None


def born(pid: int) -> str | None:
    """When a process of our namespace was started, GONE when there is none, None when that cannot be seen."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            # A killed child that its parent has not yet collected still has a number, but does nothing.
            return GONE if fields[0] in "ZX" else fields[19]
        except (OSError, IndexError):
            return None if _answers(pid) else GONE  # /proc may hide what is another user's
    if not _answers(pid):
        return GONE
    said = _said("ps", "-o", "stat=,lstart=", "-p", str(pid))
    state, _, start = (said or "").partition(" ")
    return GONE if state.startswith("Z") else re.sub(r"\W+", "-", start.strip()) or None


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _said(*words: str) -> str | None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
