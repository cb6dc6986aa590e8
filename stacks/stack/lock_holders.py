"""Marks beside the engine's locks: which process holds a lock, to tell a dead holder from a live one.

The engine's lock names a host and a process number. Containers may share both: a process that is dead in one
may be alive in the other. So orch writes a file of the lock's name, in a folder beside the locks, that says
which process its engine is (see `runner/processes.py`). Before each command that takes a lock it writes a
note of the start, first with its own process, then with the engine's. The note stands for the mark of the one
lock that the engine can have taken soon after, until the mark is there or the engine has ended. A lock is
broken without asking only when its mark, or each note that may be of it, says that this process is dead. A
lock without a mark (of a `pulumi` by hand) needs `orch unlock`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orch.runner.private import private_folder, stage_file
from orch.runner.processes import Process, is_dead, process, this_process
from orch.stacks.engine.process import CALLERS, PRIVATE, Event
from orch.stacks.project.project import Project, is_stack_name, this_host

WITHOUT_LOCK = (
    ("preview",),
    ("cancel",),
    ("stack", "export"),
    ("stack", "history"),
    ("stack", "output"),
    ("stack", "tag"),
)
"""Commands of the engine, of those that orch calls, that take no lock. All others do: also `stack init`,
`stack rm`, `stack import` and `state ...`. Source: pulumi/pkg/backend/diy/backend.go, callers of `Lock`.
"""
STARTED = "started-"
"""How the name of a note of a start begins."""
SOON_S = 120.0
"""An engine takes its lock so soon after its start."""
TRIES = 5


def locks_folder(project: Project, stack: str) -> Path | None:
    """Return the folder in which the engine keeps the locks of a stack; None for a state elsewhere."""
    state = project.local_state if is_stack_name(stack) else None
    return state / ".pulumi" / "locks" / "organization" / project.name / stack if state else None


def takes_lock(words: Sequence[str]) -> bool:
    """Return True if a command of the engine takes the lock of its stack."""
    return "--preview-only" not in words and not any(
        tuple(words[: len(each)]) == each for each in WITHOUT_LOCK
    )


def changes_stack(words: Sequence[str]) -> bool:
    """Return True if a command of the engine changes a stack: its record, under the lock, or its tags."""
    return takes_lock(words) or tuple(words[:3]) in (("stack", "tag", "set"), ("stack", "tag", "rm"))


def holders_of(project: Project, stack: str, lock: str) -> tuple[Process, ...]:
    """The process that holds a lock, by the mark of that name. Without a mark: each process that may have
    taken it, by the note of its start. () when neither can be read."""
    folder, locks = _folder(project, stack), locks_folder(project, stack)
    if folder is None or locks is None:
        return ()
    if (marked := _read(folder / lock)) is not None:
        return (marked[0],)
    starts = _starts(folder)
    return tuple(each for each, began in starts if _taken_by(each, began, began + SOON_S, locks) == [lock])


def starting(project: Project) -> tuple[tuple[str, Process], ...]:
    """The living processes whose engine has begun and may not yet hold its lock, each with its stack.

    () for a state elsewhere. An engine that has marked its lock is not among them.
    """
    state = project.local_state
    folder = _holders(state, project) if state is not None else None
    if folder is None or not folder.is_dir():
        return ()
    since = time.time() - SOON_S
    return tuple(
        (each.name, holder)
        for each in sorted(folder.iterdir())
        for holder, began in _starts(each)
        if began >= since and not is_dead(holder)
    )


def _starts(folder: Path) -> Iterator[tuple[Process, float]]:
    """The notes of starts in the folder of a stack: the process of each, and when it was written."""
    for note in folder.glob(f"{STARTED}*.json"):
        if (found := _read(note)) is not None:
            yield found


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
    """Remove the marks of dead processes whose lock is gone, and their notes of starts that fit no lock."""
    folder, locks = _folder(project, stack), locks_folder(project, stack)
    if folder is None or locks is None:
        return
    for mark in folder.glob("*.json") if folder.is_dir() else ():
        found = _read(mark)
        # In this order: a process that is dead takes no lock any more.
        if found is not None and not is_dead(found[0]):
            continue
        is_note = found is not None and mark.name.startswith(STARTED)
        held = _taken_by(*found, found[1] + SOON_S, locks) if found is not None and is_note else []
        if not held and not (locks / mark.name).exists():
            mark.unlink(missing_ok=True)
    with suppress(OSError):  # other marks are in it, or it never existed
        folder.rmdir()


class LockMark:
    """The mark of one engine call, for as long as the call lasts."""

    def __init__(self, project: Project, stack: str, words: Sequence[str]) -> None:
        self._folder = _folder(project, stack) if takes_lock(words) else None
        self._locks = locks_folder(project, stack)
        self._shared = project.shares_files
        self._note = f"{STARTED}{secrets.token_hex(8)}.json"
        self._engine: Process | None = None
        self._began = 0.0
        self._mark: Path | None = None

    def __enter__(self) -> LockMark:
        """Note that an engine is about to be started: whoever takes the state from then on waits for it."""
        if self._folder is not None and (own := this_process()) is not None:
            self._put(self._note, own, began=time.time())
        return self

    def __exit__(self, *error: object) -> None:
        if self._folder is None or self._locks is None:
            return
        # An engine that was killed leaves its lock, and the mark that tells whose it is.
        self._write()
        if self._mark is not None and not (self._locks / self._mark.name).exists():
            self._mark.unlink(missing_ok=True)
        if self._engine is None or (is_dead(self._engine) and not self._taken()):
            (self._folder / self._note).unlink(missing_ok=True)
        with suppress(OSError):  # other marks are in it, or it never existed
            self._folder.rmdir()

    @property
    def umask(self) -> int:
        """The umask for the files that the engine writes: the caller's for those that several users share."""
        return CALLERS if self._shared else PRIVATE

    def engine_started(self, pid: int) -> None:
        """Note the engine's process, as soon as it is started."""
        if self._folder is None:
            return
        self._began = time.time()
        self._engine = process(pid)
        if self._engine is not None:
            self._put(self._note, self._engine, began=self._began)

    def marking(self, on_event: Callable[[Event], None]) -> Callable[[Event], None]:
        """`on_event`, which writes the mark at the first event after the engine took its lock."""

        def handle(event: Event) -> None:
            self._write()
            on_event(event)

        return handle

    def _taken(self) -> list[str]:
        if self._engine is None or self._locks is None:
            return []
        return _taken_by(self._engine, self._began, time.time() + 1.0, self._locks)

    def _write(self) -> None:
        """Mark the one lock that this engine holds, in place of the note of its start."""
        if self._mark is not None or self._engine is None or self._folder is None:
            return
        own = self._taken()
        if len(own) == 1:
            self._mark = self._put(own[0], self._engine)
            if self._mark is not None:
                (self._folder / self._note).unlink(missing_ok=True)

    def _put(self, name: str, holder: Process, **more: float) -> Path | None:
        folder = self._folder
        assert folder is not None
        mark, mode = folder / name, 0o666 if self._shared else 0o600
        for _ in range(TRIES):
            try:
                # All who share the state read the mark too; in `.orch` it is private to its owner.
                if self._shared:
                    folder.mkdir(parents=True, exist_ok=True)
                else:
                    private_folder(folder)
                return stage_file(mark, json.dumps(asdict(holder) | more), mode).rename(mark)
            except FileNotFoundError:
                continue  # another call has removed the folder, which was empty
            except OSError:
                return None  # a full disk: the engine reports it; the lock has no mark then
        return None


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
    return _holders(state, project) / stack if state else None


def _holders(state: Path, project: Project) -> Path:
    return state / ".orch" / "holders" / project.name
