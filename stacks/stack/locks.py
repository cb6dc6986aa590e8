"""Who holds a stack, and breaking the locks that dead processes left.

With a file state the engine's lock is one JSON file per holder. A lock whose holder is certainly dead (see
lock_holders.py) is broken without asking, with a note; any other lock needs `orch unlock`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from orch.runner.processes import Process, is_dead
from orch.stacks.errors import StackLocked
from orch.stacks.project.project import Project
from orch.stacks.stack.lock_holders import delete_stale_marks, holders_of, locks_folder, read_lock


@dataclass(frozen=True)
class Lock:
    """One holder. `age_s`: seconds since it was taken; `holders`: the processes that may have taken it, by
    marks and notes of orch."""

    file: Path
    pid: int
    user: str
    host: str
    age_s: float
    holders: tuple[Process, ...] = ()

    @property
    def dead(self) -> bool:
        """Return True if its process is certainly gone. False for a lock without a mark, which cannot be
        judged."""
        return bool(self.holders) and all(each.pid == self.pid and is_dead(each) for each in self.holders)

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user}@{self.host}, for {_age(self.age_s)}"


def locks(project: Project, stack: str) -> tuple[Lock, ...]:
    """The locks on a stack of a file state, oldest first; () for a state elsewhere, whose backend has its own
    locks."""
    folder = locks_folder(project, stack)
    result: list[Lock] = []
    for file in sorted(folder.glob("*.json")) if folder is not None and folder.is_dir() else []:
        content = read_lock(file)
        try:
            age_s = time.time() - (content[2] if content else file.stat().st_mtime)
        except FileNotFoundError:
            continue  # released just now
        if content is None:
            result.append(Lock(file, 0, "unknown", "unknown", age_s))
            continue
        pid, host, _, user = content
        result.append(Lock(file, pid, user, host, age_s, holders_of(project, stack, file.name)))
    return tuple(sorted(result, key=lambda lock: -lock.age_s))


def break_dead_locks(project: Project, stack: str) -> tuple[Lock, ...]:
    """Break the locks of dead processes and return them.

    Raises StackLocked when another process holds it that is alive, or that cannot be judged.
    """
    present = locks(project, stack)
    alive = [lock for lock in present if not lock.dead]
    if alive:
        raise stack_locked(stack, str(alive[0]))
    for lock in present:
        lock.file.unlink(missing_ok=True)
    delete_stale_marks(project, stack)
    return present


def subject(stack: str) -> str:
    """Return the kind and name of a stack: `fleet x`, `volume y`."""
    kind, dot, name = stack.partition(".")
    return f"{kind} {name}" if dot else f"fleet {stack}"


def going_on(stack: str) -> str:
    """The hint after a call that was stopped while it changed a stack."""
    kind, dot, name = stack.partition(".")
    again = "run the same command again to continue"
    if kind == "volume" and dot:
        return f"{again}, or `orch volume delete {name}` to remove the volume"
    return again if dot else f"{again}, or `orch down` to remove the fleet"


def stack_locked(stack: str, who: str) -> StackLocked:
    return StackLocked(
        f"the {subject(stack)} is being changed by somebody else",
        where=who,
        hint=f"wait for it to end; if you are sure that it is gone: `orch unlock {stack}`",
        code="ORCH350",
    )


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
