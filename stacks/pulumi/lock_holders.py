"""Marks beside the engine's locks: which process holds a lock, to tell a dead holder from a live one.

The engine's lock names a host and a process number. Containers may share both: a process that is dead in one
may be alive in the other. So orch writes a file of the lock's name, in a folder beside the locks, that says
which process its engine is (see `runner/processes.py`). It does so at the engine's first event, which comes
after the engine took the lock; until then a note of the start tells the process and the time, and stands for
the mark of the one lock that this process can have taken soon after. A lock is broken without asking only
when its mark says that this process is dead. A lock without a mark (of a `pulumi` by hand) needs
`orch unlock`.
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
STARTED = "started-"
"""How the name of a note of a start begins."""
SOON_S = 120.0
"""An engine takes its lock so soon after its start."""


def locks_folder(project: Project, stack: str) -> Path | None:
    """Where the engine keeps the locks of a stack; None for a state elsewhere."""
    state = project.local_state if is_stack_name(stack) else None
    return state / ".pulumi" / "locks" / "organization" / project.name / stack if state else None


def holder_of(project: Project, stack: str, lock: str) -> Process | None:
    """The process that holds a lock, by the mark of that name; None when no mark can be read."""
    folder, locks = _folder(project, stack), locks_folder(project, stack)
    if folder is None or locks is None:
        return None
    if (marked := _read(folder / lock)) is not None:
        return marked[0]
    started = [each for each in map(_read, folder.glob(f"{STARTED}*.json")) if each is not None]
    own = [engine for engine, began in started if _taken_by(engine, began, began + SOON_S, locks) == [lock]]
    return own[0] if len(own) == 1 else None


def _read(mark: Path) -> tuple[Process, float] | None:
    """The process of a mark, or of a note of a start with its time."""
    try:
        data: dict[str, Any] = json.loads(mark.read_text())
        found = Process(str(data["boot"]), str(data["namespace"]), int(data["pid"]), str(data["born"]))
        return found, float(data.get("began", 0.0))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _taken_by(engine: Process, began: float, until: float, locks: Path) -> list[str]:
    """The locks that an engine may have taken in this time. A lock of another container may name the same
    host and process number, but not at the same time: an engine that finds a lock takes none."""
    return [
        file.name
        for file in locks.glob("*.json")
        if (lock := read_lock(file))
        and lock[:2] == (engine.pid, this_host())
        # The same clock wrote both, in coarser units.
        and began - 1.0 <= lock[2] <= until
    ]


def delete_stale_marks(project: Project, stack: str) -> None:
    """Remove marks whose lock is gone, and notes of starts, whose process is dead."""
    folder, locks = _folder(project, stack), locks_folder(project, stack)
    if folder is None or locks is None:
        return
    for mark in folder.glob("*.json") if folder.is_dir() else ():
        holder = _read(mark)
        if not (locks / mark.name).exists() and (holder is None or is_dead(holder[0])):
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
        self._start: Path | None = None
        self._mark: Path | None = None

    def __enter__(self) -> LockMark:
        return self

    def __exit__(self, *error: object) -> None:
        # An engine that was killed leaves its lock, and the mark that tells whose it is.
        self._write()
        if self._folder is None or self._locks is None:
            return
        if self._mark is not None and not (self._locks / self._mark.name).exists():
            self._mark.unlink(missing_ok=True)
        with suppress(OSError):  # other marks are in it, or it never existed
            self._folder.rmdir()

    def engine_started(self, pid: int) -> None:
        """Note the engine's process, as soon as it is started."""
        if self._folder is not None:
            self._began = time.time()
            self._engine = process(pid)
            if self._engine is not None:
                self._start = self._put(f"{STARTED}{pid}-{self._engine.born}.json", began=self._began)

    def writing_at_first(self, on_event: Callable[[Event], None]) -> Callable[[Event], None]:
        """`on_event`, which writes the mark at the first event."""

        def handle(event: Event) -> None:
            self._write()
            on_event(event)

        return handle

    def _write(self) -> None:
        """Mark the one lock that this engine holds, in place of the note of its start."""
        if self._engine is None or self._locks is None:
            return
        own = _taken_by(self._engine, self._began, time.time() + 1.0, self._locks)
        if len(own) == 1:
            self._mark = self._put(own[0])
        if self._start is not None:
            self._start.unlink(missing_ok=True)
        self._engine = None

    def _put(self, name: str, **more: float) -> Path | None:
        if self._folder is None or self._engine is None:
            return None
        try:
            # All who share the state read the mark too; in `.orch` it is private to its owner.
            if self._shared:
                self._folder.mkdir(parents=True, exist_ok=True)
            else:
                private_folder(self._folder)
            mark, mode = self._folder / name, 0o666 if self._shared else 0o600
            return stage_file(mark, json.dumps(asdict(self._engine) | more), mode).rename(mark)
        except OSError:
            return None  # a full disk: the engine reports it; the lock has no mark then


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
