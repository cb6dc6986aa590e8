"""Identity of processes across machines and containers, and whether a process is still alive.

A host name and a process number are not enough: containers share the host name, and each has numbers of its
own. A process is identified by its machine's boot, its pid namespace, its number there and its start time.
Only a process of our own boot and namespace can be checked; any other counts as alive.
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

# Marks owners of this form in a ledger. An older orch finds no process number in it, and takes the owner for
# a process of which nothing is known.
_FORM = "v2"

GONE = ""


@dataclass(frozen=True)
class Process:
    """One process among all machines. `born` is its start time, as its own machine writes it."""

    boot: str
    namespace: str
    pid: int
    born: str


def this_process() -> Process | None:
    """The running process, or None where processes cannot be identified."""
    return process(os.getpid())


def process(pid: int) -> Process | None:
    """A living process of our own namespace; None when it is gone or cannot be identified."""
    own = _boot_and_namespace()
    start_time = start_time_of(pid)
    return Process(*own, pid, start_time) if own is not None and start_time else None


def is_dead(other: Process) -> bool:
    """Whether a process is certainly gone. A process that cannot be checked counts as alive."""
    own = _boot_and_namespace()
    return own == (other.boot, other.namespace) and gone(other, start_time_of(other.pid))


def gone(other: Process, start_time: str | None) -> bool:
    """Whether a process has ended, given what was read at its number.

    `start_time` is GONE where no process has this number, the start of another process where the number was
    given away again, or None where it could not be read: then nothing is known, and the process is not gone.
    """
    return start_time is not None and start_time != other.born


def user_name() -> str:
    """The name of this process's user; its number where it has no name, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def here() -> str:
    """User and host name, for people: `ada@laptop`."""
    return f"{user_name()}@{socket.gethostname()}"


def process_owner() -> str:
    """This process as the ledger records it as an owner; `is_dead_owner` reads it."""
    return _owner(os.getpid(), this_process())


def owner_of(pid: int) -> str:
    """The same of another process of our namespace."""
    return _owner(pid, process(pid))


def _owner(pid: int, found: Process | None) -> str:
    if found is None:
        return f"{here()[:100]}:{_FORM}:{pid}:::"
    return f"{here()[:100]}:{_FORM}:{found.pid}:{found.born}:{found.boot}:{found.namespace}"


def is_dead_owner(owner: str) -> bool:
    """Whether an owner in the ledger is a process that is certainly gone.

    False for owners on other machines or in other namespaces, and for those that an older orch wrote.
    """
    process = _parse_owner(owner)
    return process is not None and bool(process.born) and is_dead(process)


def can_be_checked(owner: str) -> bool:
    """Whether an owner in the ledger is a process of our boot and namespace: those of others nobody sees."""
    process = _parse_owner(owner)
    return process is not None and _boot_and_namespace() == (process.boot, process.namespace)


def describe_owner(owner: str) -> str:
    """An owner of the ledger, for people: `process 4711 of ada@laptop`."""
    process = _parse_owner(owner)
    return owner if process is None else f"process {process.pid} of {owner.rsplit(':', 5)[0]}"


def _parse_owner(owner: str) -> Process | None:
    parts = owner.rsplit(":", 5)
    if len(parts) != 6 or parts[1] != _FORM or not parts[2].isdigit():
        return None
    return Process(boot=parts[4], namespace=parts[5], pid=int(parts[2]), born=parts[3])


@cache
def _boot_and_namespace() -> tuple[str, str] | None:
    """The boot id and the pid namespace of this process; None where they cannot be read."""
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):
            return None  # a /proc of another namespace: its numbers are not ours
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        if Path("/proc/self").exists():
            return None
    # macOS has no pid namespaces.
    boot = _command_output("sysctl", "-n", "kern.bootsessionuuid")
    return (boot, "0") if boot else None


def start_time_of(pid: int) -> str | None:
    """Start time of a process of our namespace; GONE when there is none, None when it cannot be read."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            # A killed child that its parent has not yet collected still has a number, but does nothing.
            return GONE if fields[0] in "ZX" else fields[19]
        except (OSError, IndexError):
            return None if _exists(pid) else GONE  # /proc may hide what is another user's
    if not _exists(pid):
        return GONE
    output = _command_output("ps", "-o", "stat=,lstart=", "-p", str(pid))
    state, _, start = (output or "").partition(" ")
    return GONE if state.startswith("Z") else re.sub(r"\W+", "-", start.strip()) or None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _command_output(*words: str) -> str | None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
