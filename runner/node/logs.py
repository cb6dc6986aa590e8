"""Logs of ranks: followed while they are written, kept under `.orch/runs/RUN/logs`, each line exactly once.

The file is its own cursor: it holds the first K lines of the rank's log, so following goes on at line K + 1,
whoever follows and however the last follower died. A lock on the file makes one process its writer; others
only show.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from orch.runner.errors import CommandTimeout, HostUnreachable, RunFailed, RunnerError
from orch.runner.events import LogLine, LogLines, Notice, Processor
from orch.runner.launch.run_plan import RunPlan
from orch.runner.ledger.run_folder import RunFolder
from orch.runner.node.connector import Connector
from orch.runner.node.runtime import JobRuntime
from orch.runner.private import private_file, private_folder

# Of a kept log as long as this, the end is compared before all of it is read again.
LONG_BYTES = 1 << 20


class LogFile:
    """One rank's kept log, open for writing by one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: BinaryIO | None = None
        self.lines = 0

    def open(self, wait_s: float = 0.0) -> bool:
        """Become the writer of the file. False when another process is, and writes nothing for `wait_s`."""
        private_folder(self._path.parent)
        private_file(self._path)  # never "w": another process may write its first lines at this moment
        stream = self._path.open("r+b")
        end, size = time.monotonic() + wait_s, 0
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                before, size = size, self._path.stat().st_size
                if size != before and wait_s:
                    end = time.monotonic() + wait_s
                elif time.monotonic() >= end:
                    stream.close()
                    self.lines = count_lines(self._path)
                    return False
                time.sleep(0.1)
        self.lines = _cut_partial(stream)
        self._stream = stream
        return True

    def append(self, lines: bytes) -> None:
        """Keep some more lines, each with its end."""
        if self._stream is not None:
            self._stream.write(lines)
            self._stream.flush()
        self.lines += lines.count(b"\n")

    @property
    def size(self) -> int:
        return self._path.stat().st_size

    def ends_with(self, data: bytes) -> bool:
        with self._path.open("rb") as stream:
            stream.seek(max(0, self.size - len(data)))
            return stream.read() == data

    def close(self) -> None:
        if self._stream is not None:
            with suppress(OSError):  # what could not be written was told when it was tried
                self._stream.close()
            self._stream = None


def count_lines(path: Path) -> int:
    """Complete lines of a file; 0 when there is none."""
    if not path.exists():
        return 0
    with path.open("rb") as stream:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))


def _cut_partial(stream: BinaryIO) -> int:
    """Remove the incomplete last line of a killed writer. Returns the number of lines that remain."""
    lines = end = size = 0
    for line in stream:
        size += len(line)
        if line.endswith(b"\n"):
            lines += 1
            end = size
    stream.truncate(end)
    stream.seek(0, os.SEEK_END)
    return lines


def split_line(line: str) -> tuple[str, str]:
    """Time and text of a stored line."""
    stamp, _, text = line.partition(" ")
    return stamp, text.rstrip("\r")


def told(plan: RunPlan, rank: int, lines: bytes) -> LogLines:
    """Lines of a rank's log, as they came, for who shows them."""
    of = plan.ranks[rank]
    return LogLines(rank, of.node.name, lines.decode(errors="replace"), of.group)


class Follower:
    """Follows one rank's log from a thread until the job ends: keeps it, and tells each line.

    `on_end` is called once when the log's end was seen, which is the quickest sign that the job is over.
    `whole`: lines that another process has kept already are told too.
    """

    def __init__(
        self,
        connector: Connector,
        runtime: JobRuntime,
        plan: RunPlan,
        rank: int,
        *,
        folder: RunFolder,
        processor: Processor,
        on_end: Callable[[], None],
        whole: bool = False,
    ) -> None:
        self._connector = connector
        self._runtime = runtime
        self._plan = plan
        self._rank = rank
        self._file = LogFile(folder.log(rank))
        self._processor = processor
        self._on_end = on_end
        self._whole = whole
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"orch-log-{rank}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, patience_s: float) -> None:
        """Wait for the log's end, as long as lines come within `patience_s`, then stop following."""
        lines = -1
        while patience_s and self._thread.is_alive() and lines != self._file.lines:
            lines = self._file.lines
            self._thread.join(patience_s)
        self._stop.set()
        self._thread.join(5.0)

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        try:
            if not self._file.open() and self._whole:
                self._file.lines = 0
            self._follow()
        except OSError as error:
            text = f"the log of rank {self._rank} cannot be kept here: {error.strerror or error}"
            self._processor.handle(Notice(text, "warning"))
        finally:
            self._file.close()
            if not self._stop.is_set():
                self._on_end()

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self._runtime.read_log(
                    self._connector,
                    self._plan,
                    self._rank,
                    self._keep,
                    skip=self._file.lines,
                    follow=True,
                    deadline_s=10.0,
                    until=self._stop,
                )
            except (HostUnreachable, CommandTimeout, RunFailed):
                self._stop.wait(1.0)
                continue
            except RunnerError as error:  # this machine cannot ask: once more would be the same
                text = f"the log of rank {self._rank} cannot be followed: {error.summary}"
                self._processor.handle(Notice(text, "warning"))
            return

    def _keep(self, lines: bytes) -> None:
        self._file.append(lines)
        self._processor.handle(told(self._plan, self._rank, lines))


def fetch_rest(
    connector: Connector,
    runtime: JobRuntime,
    plan: RunPlan,
    rank: int,
    folder: RunFolder,
    *,
    processor: Processor | None,
    deadline_s: float = 10.0,
) -> None:
    """Complete the kept log of a rank that ended. Raises HostUnreachable, CommandTimeout or RunFailed.

    A follower in another process may hold the file; it sees the log's end too, so it is waited for.
    """
    file = LogFile(folder.log(rank))
    try:
        is_writer = file.open(wait_s=10.0)
    except OSError as error:
        raise RunFailed(
            "a log cannot be written", where=str(folder.log(rank)), detail=error.strerror or str(error)
        ) from error
    if not is_writer:
        # Its writer lives but does not come to an end; what is missing is fetched beside it, never lost.
        file = LogFile(folder.log(rank).with_suffix(f".{os.getpid()}.log"))
        file.open()

    def keep(lines: bytes) -> None:
        file.append(lines)
        if processor is not None:
            processor.handle(told(plan, rank, lines))

    try:
        if file.size >= LONG_BYTES:
            # To skip what is kept a node reads the log from its beginning; its last line it finds at once. No
            # other has the same time, which is of the nanosecond.
            last: list[bytes] = []
            runtime.read_log(connector, plan, rank, last.append, tail=1, deadline_s=deadline_s)
            if last and file.ends_with(b"\n" + b"".join(last)):
                return
        runtime.read_log(connector, plan, rank, keep, skip=file.lines, deadline_s=deadline_s)
    except OSError as error:
        raise RunFailed(
            "a log cannot be written", where=str(folder.log(rank)), detail=error.strerror or str(error)
        ) from error
    finally:
        file.close()


def read_stored(
    folder: RunFolder, rank: int, node: str, *, tail: int | None, since: str | None, group: str | None = None
) -> Iterator[LogLine]:
    """Lines of a stored log: the last `tail`, from `since` on (RFC 3339, compared as text in UTC)."""
    path = folder.log(rank)
    if not path.exists():
        return
    with path.open(errors="replace", newline="\n") as stream:
        lines: Iterator[str] = iter(stream)
        if since is not None:
            lines = (line for line in lines if line.partition(" ")[0] >= since)
        for line in lines if tail is None else deque(lines, maxlen=tail):
            stamp, text = split_line(line.rstrip("\n"))
            yield LogLine(rank, node, stamp, text, group)
