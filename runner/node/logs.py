"""Logs of ranks: followed while they are written, kept under `.orch/runs/RUN/logs`, each line exactly once.

The file is its own cursor: it holds the first K lines of the rank's log, so following goes on at line K + 1,
whoever follows and however the last follower died. Any number of processes may add to it: each adds, under a
lock, what the file has not got yet. Lines are shown from the file, so a screen that stands still keeps
nothing from being kept.
"""

from __future__ import annotations

import errno
import fcntl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from orch.runner.errors import CommandTimeout, HostUnreachable, RunFailed, RunnerError
from orch.runner.events import LogLine, LogLines, Notice, Processor
from orch.runner.ledger.run_folder import RunFolder
from orch.runner.node.runtime import JobRuntime, LogPart
from orch.runner.node_api.connector import Connector
from orch.runner.plan.run_plan import RunPlan
from orch.runner.private import private_file, private_folder

# Of a kept log as long as this, the end is compared before all of it is read again.
LONG_BYTES = 1 << 20
# A log is shown in blocks of at most this size.
SHOWN_BYTES = 1 << 18
# The lock is held while a block is written: nobody has it for longer but a process that was stopped.
LOCK_S = 10.0


class LogFile:
    """One rank's kept log. `lines`: up to which line of the rank's log this reader of it has come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: FileIO | None = None
        self._size = 0
        self._kept = 0
        self.lines = 0

    def open(self) -> None:
        """Go on where the file ends. Raises OSError."""
        private_folder(self.path.parent)
        private_file(self.path)  # never "w": another process may write its first lines at this moment
        self._stream = self.path.open("r+b", buffering=0)
        with self._locked(self._stream):
            self._take_in(self._stream)
        self.lines = self._kept

    def append(self, lines: bytes) -> None:
        """Keep the next lines of the log, each with its end, but those that another process has kept.

        Raises OSError."""
        if self._stream is None:
            raise ValueError("a log that is not open")
        with self._locked(self._stream):
            self._take_in(self._stream)
            count = lines.count(b"\n")
            rest = memoryview(_without_first(lines, self._kept - self.lines))
            while rest:
                written = self._stream.write(rest)
                self._size, rest = self._size + written, rest[written:]
            self._kept = max(self._kept, self.lines + count)
        self.lines += count

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def kept_bytes(self) -> int:
        """The size of the whole lines that were seen in it."""
        return self._size

    def ends_with(self, data: bytes) -> bool:
        with self.path.open("rb") as stream:
            stream.seek(max(0, self.size - len(data)))
            return stream.read() == data

    def close(self) -> None:
        if self._stream is not None:
            with suppress(OSError):  # what could not be written was told when it was tried
                self._stream.close()
            self._stream = None

    def _take_in(self, stream: FileIO) -> None:
        """Count the lines that others have added. Remove one without its end, of a writer that was killed."""
        at = stream.seek(self._size)
        while chunk := stream.read(1 << 20):
            if (end := chunk.rfind(b"\n") + 1) > 0:
                self._kept += chunk.count(b"\n")
                self._size = at + end
            at += len(chunk)
        if at > self._size:
            stream.truncate(self._size)
            stream.seek(self._size)

    @contextmanager
    def _locked(self, stream: FileIO) -> Iterator[None]:
        end = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise OSError(errno.EAGAIN, "a process that stands still has it open") from None
                time.sleep(0.02)
        try:
            yield
        finally:
            fcntl.flock(stream, fcntl.LOCK_UN)


def _without_first(lines: bytes, count: int) -> bytes:
    """Lines without the first `count`."""
    at = 0
    for _ in range(count):
        if (at := lines.find(b"\n", at) + 1) == 0:
            return b""
    return lines[at:]


def split_line(line: str) -> tuple[str, str]:
    """Time and text of a stored line."""
    stamp, _, text = line.partition(" ")
    return stamp, text.rstrip("\r")


def told(plan: RunPlan, rank: int, lines: bytes) -> LogLines:
    """Lines of a rank's log, as they came, for who shows them."""
    of = plan.ranks[rank]
    return LogLines(rank, of.node.name, lines.decode(errors="replace"), of.group)


class Follower:
    """Follows one rank's log until the job ends: one thread keeps it, another tells what is kept.

    `on_end` is called once when the log's end was seen, which is the quickest sign that the job is over.
    `whole`: lines that are kept already are told too.
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
        self._teller = threading.Thread(target=self._tell, name=f"orch-told-{rank}", daemon=True)
        self._changed = threading.Event()
        self._all_kept = self._quit = False
        self._told = 0

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

    def tell_rest(self, patience_s: float | None = None) -> bool:
        """Tell what is kept to its end, as long as somebody takes lines within `patience_s`; None: however
        long that takes. True: all is told."""
        self._all_kept = True
        self._changed.set()
        told = -1
        while self._teller.is_alive() and (patience_s is None or told != self._told):
            told = self._told
            self._teller.join(patience_s)
        return not self._teller.is_alive()

    def stop(self) -> None:
        """Follow and tell no more."""
        self._quit = True
        self._stop.set()
        self._changed.set()

    def _run(self) -> None:
        try:
            self._file.open()
            self._told = 0 if self._whole else self._file.kept_bytes
            self._teller.start()
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
                    LogPart(skip=self._file.lines, follow=True),
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
        self._changed.set()

    def _tell(self) -> None:
        begun = b""
        try:
            with self._file.path.open("rb") as stream:
                stream.seek(self._told)
                while not self._quit:
                    last = self._all_kept  # asked before the file is read
                    block = stream.read(SHOWN_BYTES)
                    lines, end, begun = (begun + block).rpartition(b"\n")
                    if end:
                        self._processor.handle(told(self._plan, self._rank, lines + end))
                    self._told += len(block)
                    if not block:
                        if last:
                            return
                        self._changed.wait()
                        self._changed.clear()
        except OSError as error:
            text = f"the log of rank {self._rank} cannot be shown: {error.strerror or error}"
            self._processor.handle(Notice(text, "warning"))


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

    `processor`: who is told the lines that were missing, where no follower tells what is kept.
    """
    file = LogFile(folder.log(rank))

    def keep(lines: bytes) -> None:
        file.append(lines)
        if processor is not None:
            processor.handle(told(plan, rank, lines))

    try:
        file.open()
        if file.size >= LONG_BYTES:
            # To skip what is kept a node reads the log from its beginning; its last line it finds at once. No
            # other has the same time, which is of the nanosecond.
            last: list[bytes] = []
            runtime.read_log(connector, plan, rank, last.append, LogPart(tail=1), deadline_s=deadline_s)
            if last and file.ends_with(b"\n" + b"".join(last)):
                return
        runtime.read_log(connector, plan, rank, keep, LogPart(skip=file.lines), deadline_s=deadline_s)
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
