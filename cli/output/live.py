"""What happens to a run as it happens: its log lines, its events, and what it waits for."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import IO

from orch.cli.output.run import HOW_FAILED, duration, group_text
from orch.runner.events import (
    EntryOpened,
    Event,
    FilesProgress,
    ImageProgress,
    LogLine,
    LogLines,
    Notice,
    PortForwarded,
    Preparing,
    RankChanged,
    RunChanged,
)
from orch.runner.node.clock import seconds_of
from orch.spec.confidential import hidden
from orch.spec.errors import visible, visible_lines
from orch.spec.grammar.hosts import fold

# One colour per rank, in turn; chosen to be told apart on light and dark grounds.
_COLOURS = (36, 33, 35, 32, 34, 31)


class Live:
    """Prints what happens to a run as it happens. Log lines go to `out`, all else to stderr."""

    def __init__(self, out: IO[str], *, colour: bool, prefix: bool = True) -> None:
        self._out = out
        self._colour = colour
        self._prefix = prefix
        self._pending, self._pending_lock = Pending(), threading.Lock()
        lock = threading.Lock()
        # On a terminal both streams are one; a pager that takes no lines keeps no message waiting.
        self._out_lock = lock if out.isatty() else threading.Lock()
        self._messages = MessagePrinter(lock)

    def handle(self, event: Event, /) -> None:
        """Print an event. Only those who bring log lines wait for as long as nobody takes them."""
        if isinstance(event, LogLine | LogLines):
            self._write(self.lines(event))
            return
        with self._pending_lock:
            self._pending.hear(event)
        text = _event_text(event)
        if text is not None:
            self._messages.tell(text)

    def show(self, line: LogLine, ranks: Sequence[int]) -> None:
        """Print a line that several ranks wrote: their numbers stand before it, no node."""
        self._write(
            self.lines(line)
            if len(ranks) == 1
            else self._led(line, fold([str(rank) for rank in ranks]), ranks[0])
        )

    def _write(self, text: str) -> None:
        with self._out_lock:
            print(text, end="", file=self._out, flush=True)

    def status(self) -> str:
        """Return what a starting run waits for; "" if there is nothing to say."""
        with self._pending_lock:
            return self._pending.status()

    def lines(self, line: LogLine | LogLines) -> str:
        """Log lines, each led by its rank and node. What the job wrote stays as it is, colours and all, as
        `docker logs` has it."""
        return self._led(line, f"{line.rank}", line.rank, line.node)

    def _led(self, line: LogLine | LogLines, ranks: str, colour_of: int, node: str = "") -> str:
        texts = line.texts() if isinstance(line, LogLines) else [line.text]
        if not self._prefix:
            return "".join([f"{text}\n" for text in texts])
        group = "" if line.group is None else group_text(line.group)
        head = f"[{' '.join(filter(None, (ranks.strip('[]'), group, visible(node))))}]"
        if self._colour:
            head = f"\x1b[{_COLOURS[colour_of % len(_COLOURS)]}m{head}\x1b[0m"
        return "".join([f"{head} {text}\n" for text in texts])


class FoldedLogs:
    """Passes the lines of several ranks on, equal ones of different ranks as one: `[0-7] loading`.

    Lines come sorted by time. One waits for those of other ranks for `WINDOW_S` of the log, and while no more
    than `MOST` wait; it stands where the first of them was, and each rank's lines keep their order.
    """

    WINDOW_S = 2.0
    MOST = 2_000

    def __init__(self, shown: Live) -> None:
        self._shown = shown
        self._waiting: deque[_Folded] = deque()
        self._by_text: dict[tuple[str, str | None], list[_Folded]] = {}
        self._last: dict[int, int] = {}
        self._count = 0

    def handle(self, event: Event, /) -> None:
        if isinstance(event, LogLines):
            for line in event.each():
                self._hear(line)
        elif isinstance(event, LogLine):
            self._hear(event)
        else:
            self._shown.handle(event)

    def finish(self) -> None:
        """Pass on what still waits."""
        while self._waiting:
            self._pass_on()

    def _hear(self, line: LogLine) -> None:
        at = seconds_of(line.time)
        while self._waiting and at is not None and at - (self._waiting[0].at or at) > self.WINDOW_S:
            self._pass_on()
        last, key = self._last.get(line.rank, -1), (line.text, line.group)
        found = next((each for each in self._by_text.get(key, ()) if each.number > last), None)
        if found is None:
            if len(self._waiting) >= self.MOST:
                self._pass_on()
            found = _Folded(self._count, at, line, [])
            self._count += 1
            self._waiting.append(found)
            self._by_text.setdefault(key, []).append(found)
        found.ranks.append(line.rank)
        self._last[line.rank] = found.number

    def _pass_on(self) -> None:
        first = self._waiting.popleft()
        key = (first.line.text, first.line.group)
        self._by_text[key].remove(first)
        if not self._by_text[key]:
            del self._by_text[key]
        self._shown.show(first.line, sorted(first.ranks))


@dataclass
class _Folded:
    """A line that may be of more ranks yet."""

    number: int
    at: float | None
    line: LogLine
    ranks: list[int]


class MessagePrinter:
    """Prints messages to stderr from a thread of its own, so that a terminal that stands still (Ctrl-S) keeps
    nobody from driving a run. Who tells waits for the message to be printed, but not for long."""

    WAIT_S = 1.0

    def __init__(self, lock: threading.Lock) -> None:
        """`lock`: held while something is printed."""
        self._lock = lock
        self._messages: SimpleQueue[tuple[str, threading.Event]] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last = threading.Event()
        self._stands_still = False

    def tell(self, text: str) -> None:
        with self._starting:
            if self._thread is None or not self._thread.is_alive():  # none goes along into a fork
                self._thread = threading.Thread(target=self._print, daemon=True)
                self._thread.start()
        # Where it stands still, nobody waits again before it has moved.
        self._stands_still = self._stands_still and not self._last.is_set()
        self._last = threading.Event()
        self._messages.put((text, self._last))
        if not self._stands_still:
            self._stands_still = not self._last.wait(self.WAIT_S)

    def _print(self) -> None:
        while True:
            text, printed = self._messages.get()
            try:
                with self._lock:
                    print(visible_lines(hidden(text)), file=sys.stderr, flush=True)
            except (OSError, ValueError):
                pass  # the terminal is gone, or stderr is closed: the run is driven on
            printed.set()


def _event_text(event: Event) -> str | None:
    if isinstance(event, Notice):
        return f"{event.level}: {event.text}"
    if isinstance(event, ImageProgress):
        return _progress_text(event)
    if isinstance(event, PortForwarded):
        return f"{event.address} -> port {event.port} of rank {event.rank} on node {event.node}"
    if isinstance(event, EntryOpened):
        return entry_text(event)
    if isinstance(event, RunChanged):
        if event.status == "pending":
            return f"run {event.run}: {event.message}"
        status = {"provisioning": "starting", "running": "running"}.get(event.status)
        return f"run {event.run}: {status}" if status else None
    if isinstance(event, RankChanged) and event.status == "failed":
        cause = event.message or _ended(event.exit_code, event.reason)
        return f"rank {event.rank} on node {event.node}: {cause}"
    return None


def entry_text(entry: EntryOpened) -> str:
    """Return the lines that say how a dev environment is entered."""
    from orch.runner.launch.dev_environment import IDES

    lines = [f"to enter it: {entry.command}"]
    if entry.ide is not None and entry.link is not None:
        lines.append(f"to open it in {IDES[entry.ide]}, use this link:\n  {entry.link}")
    return "\n".join(lines)


def _progress_text(event: ImageProgress) -> str | None:
    """A line at the beginning and one at the end; `Pending.status` has what is between."""
    if event.finished:
        size = f"{event.total_bytes >> 20} MiB in " if event.total_bytes else "in "
        return f"node {event.node}: has the image {event.image} ({size}{duration(event.seconds)})"
    if event.total_bytes is None:
        return f"node {event.node}: pulling the image {event.image}"
    if event.done_bytes == 0:
        return f"node {event.node}: receiving the image {event.image} ({event.total_bytes >> 20} MiB)"
    return None


def _ended(code: int | None, reason: str | None) -> str:
    if reason == "container_exited_with_error" and code is not None:
        return f"exited with code {code}"
    return HOW_FAILED.get(reason or "") or (reason or "failed").replace("_", " ")


Share = tuple[int, int | None]
"""Bytes received, and the total."""


@dataclass
class Pending:
    """Events of one run before it runs: images, files and nodes that it waits for."""

    starting: str = ""
    images: dict[str, Share] = field(default_factory=dict[str, Share])
    files: dict[str, Share] = field(default_factory=dict[str, Share])
    preparing: tuple[str, ...] = ()

    def hear(self, event: Event) -> None:
        if isinstance(event, RunChanged):
            self.starting = event.run if event.status == "provisioning" else ""
        elif isinstance(event, Preparing):
            self.preparing = event.nodes
        elif isinstance(event, ImageProgress | FilesProgress):
            on_the_way = self.images if isinstance(event, ImageProgress) else self.files
            if event.finished:
                on_the_way.pop(event.node, None)
            else:
                on_the_way[event.node] = (event.done_bytes, event.total_bytes)

    def status(self) -> str:
        """One line; "" when the run waits for nothing."""
        unknown = [node for node, (_, total) in self.images.items() if not total]
        sized = {node: (done, total) for node, (done, total) in self.images.items() if total}
        receiving = {node: share for node, share in sized.items() if share[0] < share[1]}
        received = [node for node in sized if node not in receiving]
        # Without a file under way, what takes time is the start of the container.
        sending = {
            node: (done, total) for node, (done, total) in self.files.items() if total and done < total
        }
        parts = [
            *([f"first boot of {fold(self.preparing)}"] if self.preparing else []),
            *([f"{fold(unknown)} pulling the image"] if unknown else []),
            *([f"{fold(list(receiving))} receiving the image, {_percent(receiving)}"] if receiving else []),
            *([f"{fold(received)} unpacking the image"] if received else []),
            *([f"{fold(list(sending))} receiving files, {_percent(sending)}"] if sending else []),
        ]
        if self.starting and not parts:
            parts = [f"run {self.starting} is starting"]
        return "; ".join(parts)


def _percent(shares: Mapping[str, tuple[int, int]]) -> str:
    """`45 %`, or from the slowest to the quickest of several: `12 to 45 %`."""
    percents = sorted(done * 100 // total for done, total in shares.values())
    return f"{percents[0]} %" if percents[0] == percents[-1] else f"{percents[0]} to {percents[-1]} %"
