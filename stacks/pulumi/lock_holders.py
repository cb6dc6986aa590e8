"""Marks beside the engine's locks: which process holds a lock, to tell a dead holder from a live one.

The engine's lock names a host and a process number. Containers may share both: a process that is dead in one
may be alive in the other. So orch writes a file of the lock's name, in a folder beside the locks, that says
which process its engine is (see `runner/processes.py`). It does so at the engine's first event, which comes
after the engine took the lock. A lock is broken without asking only when its mark says that this process is
dead. A lock without a mark (of a `pulumi` by hand, or of a call that was killed between lock and first event)
needs `orch unlock`.
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
    """The process that holds a lock, by the mark of that name; None when no mark can be read."""
    folder = _folder(project, stack)
    if folder is None:
        return None
    try:
        mark: dict[str, Any] = json.loads((folder / lock).read_text())
        return Process(str(mark["boot"]), str(mark["namespace"]), int(mark["pid"]), str(mark["born"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def delete_stale_marks(project: Project, stack: str) -> None:
    """Remove marks whose lock is gone and whose holder is dead."""
    folder, locks = _folder(project, stack), locks_folder(project, stack)
    if folder is None or locks is None:
        return
    for mark in folder.glob("*.json") if folder.is_dir() else ():
        holder = holder_of(project, stack, mark.name)
        if not (locks / mark.name).exists() and (holder is None or is_dead(holder)):
            mark.unlink(missing_ok=True)
    with suppress(OSError):  # other marks are in it, or it never existed
        folder.rmdir()


class LockMark:
    """The mark of one engine call, for as long as the call lasts."""

    def __init__(self, project: Project, stack: str, words: list[str]) -> None:
        locking = words[0] in OPERATIONS and "--preview-only" not in words
        self._folder = _folder(project, stack) if locking else None
        self._locks = locks_folder(project, stack)
        self._shared = project.shares_files
        self._engine: Process | None = None
        self._began = 0.0
        self._mark: Path | None = None

    def __enter__(self) -> LockMark:
        return self

    def __exit__(self, *error: object) -> None:
        # An engine that was killed leaves its lock, and the mark that tells whose it is.
        if (
            self._mark is not None
            and self._locks is not None
            and not (self._locks / self._mark.name).exists()
        ):
            self._mark.unlink(missing_ok=True)
            with suppress(OSError):
                self._mark.parent.rmdir()

    def engine_started(self, pid: int) -> None:
        """Remember the engine's process, as soon as it is started."""
        if self._folder is not None:
            self._began = time.time()
            self._engine = process(pid)

    def writing_at_first(self, on_event: Callable[[Event], None]) -> Callable[[Event], None]:
        """`on_event`, which writes the mark at the first event."""

        def handle(event: Event) -> None:
            engine, self._engine = self._engine, None
            if engine is not None:
                self._write(engine)
            on_event(event)

        return handle

    def _write(self, engine: Process) -> None:
        """Mark the one lock that this engine holds. A lock of another container may name the same host and
        process number, but not at the same time: an engine that finds a lock takes none."""
        if self._folder is None or self._locks is None:
            return
        own_locks = [
            file
            for file in self._locks.glob("*.json")
            if (lock := read_lock(file))
            and lock[:2] == (engine.pid, this_host())
            # The same clock wrote both, in coarser units.
            and lock[2] >= self._began - 1.0
        ]
        if len(own_locks) != 1:
            return
        try:
            # All who share the state read the mark too; in `.orch` it is private to its owner.
            if self._shared:
                self._folder.mkdir(parents=True, exist_ok=True)
            else:
                private_folder(self._folder)
            mark = self._folder / own_locks[0].name
            mode = 0o666 if self._shared else 0o600
            self._mark = stage_file(mark, json.dumps(asdict(engine)), mode).rename(mark)
        except OSError:
            return  # a full disk: the engine reports it; the lock has no mark then


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
