"""Our marks beside the engine's locks: which process holds one, so that a dead holder is told from a live.

The engine's lock names a host and a process number. Containers may share both: what is dead in one is at work
in the other. So orch writes, beside the locks and under the lock's own name, which process its engine is (see
`runner/processes.py`), as soon as that has taken the lock: its first event comes after that. A lock is broken
without asking only when the mark of its name says that this process is dead. Without one, of a `pulumi` by
hand or of a call that was killed in the moment between the two, it takes `orch unlock`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orch.runner.private import private_folder, stage_file
from orch.runner.processes import Process, is_dead, process
from orch.stacks.project import Project, is_stack_name, this_host
from orch.stacks.pulumi.process import Event

OPERATIONS = ("up", "destroy", "refresh")


def locks_folder(project: Project, stack: str) -> Path | None:
    """Where the engine keeps the locks of a stack; None for a state elsewhere."""
    state = project.local_state if is_stack_name(stack) else None
    return state / ".pulumi" / "locks" / "organization" / project.name / stack if state else None


def holder_of(project: Project, stack: str, lock: str) -> Process | None:
    """The process that holds a lock, by the mark of that name; None when there is none that can be read."""
    folder = _folder(project, stack)
    if folder is None:
        return None
    try:
        found: dict[str, Any] = json.loads((folder / lock).read_text())
        return Process(str(found["boot"]), str(found["namespace"]), int(found["pid"]), str(found["born"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget(project: Project, stack: str) -> None:
    """Remove marks whose lock is no more, and whose holders are dead."""
    folder, locks = _folder(project, stack), locks_folder(project, stack)
    if folder is None or locks is None:
        return
    for mark in folder.glob("*.json") if folder.is_dir() else ():
        holder = holder_of(project, stack, mark.name)
        if not (locks / mark.name).exists() and (holder is None or is_dead(holder)):
            mark.unlink(missing_ok=True)
    with suppress(OSError):  # others' marks are there, or it never was
        folder.rmdir()


class Marking:
    """The mark of one call of the engine, while that lasts."""

    def __init__(self, project: Project, stack: str, words: list[str]) -> None:
        locking = words[0] in OPERATIONS and "--preview-only" not in words
        self._folder = _folder(project, stack) if locking else None
        self._locks = locks_folder(project, stack)
        self._shared = project.shares_files
        self._engine: Process | None = None
        self._began = 0.0
        self._mark: Path | None = None

    def __enter__(self) -> Marking:
        return self

    def __exit__(self, *told: object) -> None:
        # An engine that was killed leaves its lock: then the mark says so.
        if (
            self._mark is not None
            and self._locks is not None
            and not (self._locks / self._mark.name).exists()
        ):
            self._mark.unlink(missing_ok=True)
            with suppress(OSError):
                self._mark.parent.rmdir()

    def begin(self, pid: int) -> None:
        """The engine's process, as soon as it is started."""
        if self._folder is not None:
            self._began = time.time()
            self._engine = process(pid)

    def then(self, on_event: Callable[[Event], None]) -> Callable[[Event], None]:
        """The same, and the mark is written at the first event."""

        def hear(event: Event) -> None:
            engine, self._engine = self._engine, None
            if engine is not None:
                self._write(engine)
            on_event(event)

        return hear

    def _write(self, engine: Process) -> None:
        """Mark the one lock that this engine holds. Another container's may name the same host and number,
        but not at the same time: who finds a lock takes none."""
        if self._folder is None or self._locks is None:
            return
        mine = [
            file
            for file in self._locks.glob("*.json")
            if (found := read_lock(file))
            and found[:2] == (engine.pid, this_host())
            # The same clock wrote both, in coarser units.
            and found[2] >= self._began - 1.0
        ]
        if len(mine) != 1:
            return
        try:
            # Who shares the state reads it too; in `.orch` it is its owner's alone.
            if self._shared:
                self._folder.mkdir(parents=True, exist_ok=True)
            else:
                private_folder(self._folder)
            mark = self._folder / mine[0].name
            mode = 0o666 if self._shared else 0o600
            self._mark = stage_file(mark, json.dumps(asdict(engine)), mode).rename(mark)
        except OSError:
            return  # a full disk: the engine will tell; the lock has no mark then


def read_lock(file: Path) -> tuple[int, str, float, str] | None:
    """An engine's lock: process number, host, when it was taken, user. None when it cannot be read."""
    from datetime import datetime

    try:
        data = json.loads(file.read_text())
        taken = datetime.fromisoformat(_python_time(data["timestamp"])).timestamp()
        return int(data["pid"]), str(data["hostname"]), taken, str(data["username"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _python_time(text: str) -> str:
    """Go writes nanoseconds, Python 3.10 reads microseconds."""
    text = text.replace("Z", "+00:00")
    head, dot, tail = text.partition(".")
    if not dot:
        return text
    digits = len(tail) - len(tail.lstrip("0123456789"))
    return f"{head}.{tail[:digits][:6].ljust(6, '0')}{tail[digits:]}"


def _folder(project: Project, stack: str) -> Path | None:
    state = project.local_state if is_stack_name(stack) else None
    return state / ".orch" / "holders" / project.name / stack if state else None
