"""Progress of a change to a fleet: one live view on a terminal, plain lines elsewhere.

Both print a line for finished resources, equal ones folded. The live view also shows the running ones and is
erased at the end; plain lines name them after ten seconds without output.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orch.cli.errors import tell, terminated_as_interrupted
from orch.cli.output import ticking
from orch.cli.output.ticking import clock
from orch.spec.errors import visible
from orch.stacks.events.kinds import kind_of, several
from orch.stacks.events.notation import fold
from orch.stacks.pulumi.progress import Activity, EngineStep, ExpectedNodes, Listener, Note, Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDEST = 60
"""Letters of folded names in the live view."""


def is_live(*, as_json: bool = False) -> bool:
    """Return True if stderr is a terminal."""
    dull = as_json or bool(os.environ.get("CI")) or os.environ.get("TERM") in ("dumb", "unknown")
    return sys.stderr.isatty() and not dull


@contextmanager
def watching(*, as_json: bool = False) -> Iterator[Listener]:
    """A listener for one operation on a fleet. On exit, also by an error, it prints what has finished."""
    from orch.cli.output.tracing import hearing

    printer = _Printer(Tally(time.monotonic()), heartbeat=not is_live(as_json=as_json))
    with terminated_as_interrupted(), ticking.ticking(printer.tick):
        try:
            if printer.heartbeat:
                yield hearing(printer.hear)
            else:
                with _live(printer):
                    yield hearing(printer.hear)
        finally:
            printer.end()


class _Printer:
    """Prints the lines of a tally; events, ticks and redraws come from several threads.

    rich draws the view under its own lock, and printing a line waits for that lock: so nothing is printed
    while `_lock` is held.
    """

    def __init__(self, tally: Tally, *, heartbeat: bool) -> None:
        self.tally = tally
        self.heartbeat = heartbeat
        self._latest = tally.started
        self._lock, self._printing = threading.Lock(), threading.Lock()

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
        with self._printing:
            for line in lines:
                tell(line)


@contextmanager
def _live(printer: _Printer) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    # Lines printed meanwhile go to stderr, and the view shows them above itself; stdout is data.
    with Live(
        get_renderable=printer.view,
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
    parts = ((clock(now - tally.started), "bold"), f"  {visible(tally.doing) or 'at work'}")
    head = Text.assemble(*parts, **shorten)
    if tally.doing and tally.doing_since - tally.started >= 1:
        head.append(f" (for {clock(now - tally.doing_since)})", "dim")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
    # Of a narrow terminal the kind and the names give way, never the numbers.
    numbers = max((len(f"{done}/{total}") for _, done, total in tally.counts()), default=0)
    for width in (None, numbers, None):
        table.add_column(**shorten, min_width=width)
    waited = {each.kind: each for each in tally.running(now)}
    for kind, done, total in tally.counts():
        cells: list[Any] = [Text(kind), Text(f"{done}/{total}", "green" if done >= total else "yellow")]
        if each := waited.get(kind):
            names = visible(fold(each.names))
            names = names if len(names) <= WIDEST else f"{names[: WIDEST - 1]}…"
            cells.append(Text(f"waiting for {names} for {clock(each.for_s)}"))
        table.add_row(*cells)
    return Group(head, table) if tally.counts() else head


PAST = {
    "create": "created",
    "update": "changed",
    "delete": "deleted",
    "create-replacement": "made anew",
    "delete-replaced": "old one deleted",
    "replace": "replaced",
    "read": "read",
}
FAILED = "FAILED"

HOLD_S = 0.5
"""Seconds that a line waits for more resources like it after the latest of them."""


@dataclass
class _Group:
    """Finished resources of one kind and outcome, printed as one line."""

    names: list[str] = field(default_factory=list[str])
    longest_s: float = 0.0
    latest: float = 0.0


@dataclass(frozen=True)
class Running:
    """Running resources of one kind; the oldest has run for `for_s` seconds."""

    kind: str
    names: tuple[str, ...]
    for_s: float


@dataclass
class Tally:
    """The events of one change, counted. Times are of the monotonic clock."""

    started: float
    doing: str = ""
    doing_since: float = 0.0
    expected: frozenset[str] = frozenset()
    _running: dict[tuple[str, str, str], float] = field(default_factory=dict[tuple[str, str, str], float])
    _steps: dict[str, set[tuple[str, str]]] = field(default_factory=dict[str, set[tuple[str, str]]])
    _done: Counter[str] = field(default_factory=Counter[str])
    _groups: dict[tuple[str, str], _Group] = field(default_factory=dict[tuple[str, str], _Group])

    def hear(self, event: Progress, now: float) -> None:
        if isinstance(event, Activity) or (isinstance(event, Note) and event.lasts):
            self.doing, self.doing_since = event.text, now
        elif isinstance(event, ExpectedNodes):
            self.expected = event.names
        elif isinstance(event, EngineStep):
            self._step(event, now)

    def _step(self, step: EngineStep, now: float) -> None:
        kind, key = kind_of(step.type), (kind_of(step.type), step.op, step.name)
        self._steps.setdefault(kind, set()).add((step.op, step.name))
        if step.phase == "start":
            self._running.setdefault(key, now)
            return
        self._running.pop(key, None)
        if step.phase == "done":
            self._done[kind] += 1
        word = FAILED if step.phase == "failed" else PAST.get(step.op, step.op)
        group = self._groups.setdefault((kind, word), _Group())
        group.names.append(step.name)
        group.longest_s, group.latest = max(group.longest_s, step.seconds), now

    def ready(self, now: float, *, all_of_them: bool = False) -> list[str]:
        """Lines of finished resources, each once: of kinds with no running resource, or of all kinds."""
        under_way = {kind for kind, _, _ in self._running}
        keys = [
            key
            for key, group in self._groups.items()
            if all_of_them or (key[0] not in under_way and now - group.latest >= HOLD_S)
        ]
        return [_line(*key, self._groups.pop(key)) for key in keys]

    def running(self, now: float) -> list[Running]:
        """Running resources by kind, the oldest first."""
        kinds: dict[str, list[tuple[str, float]]] = {}
        for (kind, _, name), since in self._running.items():
            kinds.setdefault(kind, []).append((name, since))
        groups = [
            Running(kind, tuple(dict.fromkeys(name for name, _ in each)), now - min(at for _, at in each))
            for kind, each in kinds.items()
        ]
        return sorted(groups, key=lambda each: -each.for_s)

    def counts(self) -> list[tuple[str, int, int]]:
        """For each kind: its name, the number of finished resources, and the total known so far."""
        return [(kind, self._done[kind], self._total(kind)) for kind in self._steps]

    def _total(self, kind: str) -> int:
        names = {name for _, name in self._steps[kind]}
        expected = len(self.expected) if names & self.expected else 0
        return max(len(self._steps[kind]), expected)

    def status(self, now: float) -> str:
        """One line: elapsed time, current step, counts, and the oldest running resources."""
        parts = [self.doing] if self.doing else []
        parts += [f"{done} of {several(kind, total)}" for kind, done, total in self.counts() if done < total]
        if waited := self.running(now):
            first = waited[0]
            parts.append(f"waiting for {fold(first.names)} ({first.kind}) for {clock(first.for_s)}")
        return f"  … {clock(now - self.started)}: {'; '.join(parts) or 'at work'}"


def _line(kind: str, word: str, group: _Group) -> str:
    names = list(dict.fromkeys(group.names))
    took = "" if word == FAILED else f"{group.longest_s:.1f} s"
    number = str(len(group.names)) if len(group.names) > 1 else ""
    notes = ", ".join(each for each in (number, took) if each)
    return f"  {fold(names)}  {kind}  {word}" + (f" ({notes})" if notes else "")
