"""Who holds a stack, and breaking what a dead process left.

With a file state the engine's lock is one JSON file per holder. A lock whose holder is a dead process of this
host is broken without asking (and told); any other needs `orch unlock`.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from orch.stacks.errors import Held
from orch.stacks.project import Project, this_host


@dataclass(frozen=True)
class Lock:
    """One holder. `age_s`: seconds since it was taken."""

    file: Path
    pid: int
    user: str
    host: str
    age_s: float

    @property
    def dead(self) -> bool:
        """Held by a process of this host that is no more."""
        if self.host != this_host():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return _is_zombie(self.pid)

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user}@{self.host}, for {_age(self.age_s)}"


def locks(project: Project, stack: str) -> tuple[Lock, ...]:
    """The locks on a stack of a file state, oldest first; () for a state elsewhere, whose backend answers for
    itself."""
    state = project.local_state
    if state is None:
        return ()
    folder = state / ".pulumi" / "locks" / "organization" / project.name / stack
    found: list[Lock] = []
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            data = json.loads(file.read_text())
            taken = datetime.fromisoformat(_python_time(data["timestamp"])).timestamp()
            found.append(
                Lock(file, int(data["pid"]), data["username"], data["hostname"], time.time() - taken)
            )
        except FileNotFoundError:
            continue  # released just now
        except (ValueError, KeyError):
            with suppress(FileNotFoundError):  # as above
                age_s = time.time() - file.stat().st_mtime
                found.append(Lock(file, 0, "unknown", "unknown", age_s))
    return tuple(sorted(found, key=lambda lock: -lock.age_s))


def claim(project: Project, stack: str) -> tuple[Lock, ...]:
    """Break the locks of dead processes and return them.

    Raises Held when a live one or another host holds it.
    """
    held = locks(project, stack)
    alive = [lock for lock in held if not lock.dead]
    if alive:
        raise held_by(stack, str(alive[0]))
    for lock in held:
        lock.file.unlink(missing_ok=True)
    return held


def held_by(stack: str, who: str) -> Held:
    return Held(
        f"the fleet {stack} is being changed by somebody else",
        where=who,
        hint=f"wait for it to end; if you are sure that it is gone: `orch unlock {stack}`",
        code="ORCH350",
    )


def _python_time(text: str) -> str:
    """Go writes nanoseconds, Python 3.10 reads microseconds."""
    text = text.replace("Z", "+00:00")
    head, dot, tail = text.partition(".")
    if not dot:
        return text
    digits = len(tail) - len(tail.lstrip("0123456789"))
    return f"{head}.{tail[:digits][:6].ljust(6, '0')}{tail[digits:]}"


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _is_zombie(pid: int) -> bool:
    """A killed child that its parent has not yet collected still has a number, but holds nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False
