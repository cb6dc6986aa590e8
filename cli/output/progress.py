"""What is told while a fleet changes: one live view on a terminal, plain lines anywhere else.

Both tell the same lines of what has ended, equal resources folded. The live view adds what is under way and
is gone in the end; plain lines tell it whenever nothing else was told for ten seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orch.cli.errors import tell
from orch.cli.output import ticking
from orch.cli.output.tally import Tally
from orch.cli.output.ticking import clock
from orch.spec.errors import visible
from orch.stacks.pulumi.operation import Listener, Note, Progress
from orch.stacks.summary import fold

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDEST = 60
"""Letters of folded names in the live view."""


def is_live(*, as_json: bool = False) -> bool:
    """Whether stderr is a terminal that a person looks at."""
    dull = as_json or bool(os.environ.get("CI")) or os.environ.get("TERM") in ("dumb", "unknown")
    return sys.stderr.isatty() and not dull


@contextmanager
def watching(*, as_json: bool = False) -> Iterator[Listener]:
    """A listener for one operation on a fleet. What has ended is told before this ends, however it does."""
    told = _Told(Tally(time.monotonic()), heartbeat=not is_live(as_json=as_json))
    with _terminated_as_interrupted(), ticking.ticking(told.tick):
        try:
            if told.heartbeat:
                yield told.hear
            else:
                with _live(told):
                    yield told.hear
        finally:
            told.end()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """A SIGTERM ends it as Ctrl-C does: the terminal is left as it was. While the engine runs it is the
    engine's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Told:
    """What was told of a change and when; heard and looked at by several threads.

    The view is drawn under a lock of its own, and a line told waits for that: so no line is told under ours.
    """

    def __init__(self, tally: Tally, *, heartbeat: bool) -> None:
        self.tally = tally
        self.heartbeat = heartbeat
        self._latest = tally.begun
        self._lock, self._telling = threading.Lock(), threading.Lock()

    def hear(self, event: Progress) -> None:
        lines: list[str] = []
        with self._lock:
            now = time.monotonic()
            self.tally.hear(event, now)
            if isinstance(event, Note):
                lines = [*self.tally.ready(now, all_of_them=True), event.text]
        self._tell(lines)

    def tick(self) -> None:
        with self._lock:
            now = time.monotonic()
            lines = self.tally.ready(now)
            if not lines and now - self._latest >= ticking.QUIET_S:
                lines = self.tally.ready(now, all_of_them=True)
                lines += [self.tally.status(now)] if self.heartbeat else []
        self._tell(lines)

    def end(self) -> None:
        with self._lock:
            lines = self.tally.ready(time.monotonic(), all_of_them=True)
        self._tell(lines)

    def view(self) -> RenderableType:
        with self._lock:
            return _view(self.tally, time.monotonic())

    def _tell(self, lines: list[str]) -> None:
        if not lines:
            return
        self._latest = time.monotonic()
        with self._telling:
            for line in lines:
                tell(line)


@contextmanager
def _live(told: _Told) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    # Lines that are told meanwhile go to stderr, which the view passes on above itself; stdout is data.
    with Live(
        get_renderable=told.view,
        console=Console(stderr=True, highlight=False, soft_wrap=True),
        refresh_per_second=4,
        transient=True,
        redirect_stdout=False,
    ):
        yield


def _view(tally: Tally, now: float) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    # Longer than the terminal they would be several lines, and the view would not know how many it has.
    shorten: dict[str, Any] = {"no_wrap": True, "overflow": "ellipsis"}
    parts = ((clock(now - tally.begun), "bold"), f"  {visible(tally.doing) or 'at work'}")
    head = Text.assemble(*parts, **shorten)
    if tally.doing and tally.doing_since - tally.begun >= 1:
        head.append(f" (for {clock(now - tally.doing_since)})", "dim")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
    for _ in range(3):
        table.add_column(**shorten)
    waited = {each.kind: each for each in tally.waited(now)}
    for kind, done, total in tally.counts():
        cells: list[Any] = [Text(kind), Text(f"{done}/{total}", "green" if done >= total else "yellow")]
        if each := waited.get(kind):
            names = visible(fold(each.names))
            names = names if len(names) <= WIDEST else f"{names[: WIDEST - 1]}…"
            cells.append(Text(f"waiting for {names} for {clock(each.for_s)}"))
        table.add_row(*cells)
    return Group(head, table) if tally.counts() else head
