"""A controller: passes over the runs that nobody drives, again and again, and a heartbeat in the ledger.

Any number may be at work: who takes the lease of a run acts on it, the others leave it alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial

from orch.runner.errors import LedgerUnusable
from orch.runner.events import Event, Notice, Processor
from orch.runner.ledger.arrays import Member
from orch.runner.ledger.controllers import BEAT_S
from orch.runner.ledger.history.metric_samples import EVERY_S
from orch.runner.ledger.records import ArrayKey, RunRow
from orch.runner.metrics.sampling import keep_sample
from orch.runner.processes import process_owner
from orch.runner.runs.arrays.drive import ArrayDriver
from orch.runner.runs.attempts import begins_here, may_advance
from orch.runner.runs.context import RunnerContext
from orch.runner.runs.lifecycle import advance, collect_leftovers
from orch.runner.runs.seats.recent_statuses import RecentStatuses
from orch.spec.errors import OrchError

PAUSE_S = 2.0
COLLECT_EVERY_S = 60.0
# How often fleets are seen to.
FLEETS_EVERY_S = 300.0
# How often it looks whether nodes are to be examined; an `interval` is a minute, unless a fleet says so.
HEALTH_EVERY_S = 15.0
# A start may wait for an image for minutes: so many runs are advanced at once.
AT_ONCE = 16
# Of how many runs it keeps what they use at once: a node that is away takes its time.
SAMPLED_AT_ONCE = 8
# After how long without a pass the controller counts as unwell, and after how long a notice is told again.
SLOW_S, REPEAT_S = 60.0, 600.0


@dataclass
class _Chore:
    """What is done from time to time, and when it was begun last."""

    do: Callable[[], Iterable[Notice]]
    every_s: float
    began_at: float = float("-inf")
    under_way: Future[None] | None = None


class Controller:
    """Advances runs from `run` until `stop` is called, from any thread or a signal handler.

    `see_to_fleets` and `see_to_health` do what is about no run, and return what is to be told: a pass does it
    from time to time.
    """

    def __init__(
        self,
        runner: RunnerContext,
        see_to_fleets: Callable[[], Iterable[Notice]] | None = None,
        see_to_health: Callable[[], Iterable[Notice]] | None = None,
    ) -> None:
        chores = ((see_to_fleets, FLEETS_EVERY_S), (see_to_health, HEALTH_EVERY_S))
        self._chores = [_Chore(do, every_s) for do, every_s in chores if do is not None]
        self._runner = replace(runner, processor=_Sparing(runner.processor), recent_statuses=RecentStatuses())
        self._stop, self._look = threading.Event(), threading.Event()
        self._busy: dict[int, Future[None]] = {}
        self._collecting: Future[None] | None = None
        self._arrays: dict[ArrayKey, threading.Thread] = {}
        self._sampling: dict[int, Future[None]] = {}
        self._beaten_at = self._collected_at = self._sampled_at = float("-inf")
        self._passed_at = time.monotonic()

    def stop(self) -> None:
        """End after what is under way: no start is left half done."""
        self._stop.set()
        self._look.set()

    @property
    def passed_s(self) -> float:
        """How long ago the last pass over the ledger was."""
        return time.monotonic() - self._passed_at

    @property
    def well(self) -> bool:
        """Whether it gets along: with the ledger away, it does not."""
        return self.passed_s < SLOW_S

    @property
    def at_work(self) -> int:
        """How many runs and arrays are being advanced."""
        arrays = sum(thread.is_alive() for thread in list(self._arrays.values()))
        return arrays + sum(not future.done() for future in list(self._busy.values()))

    def run(self) -> None:
        """Advance runs until `stop`. A ledger that is away is waited for."""
        owner = process_owner()
        try:
            with (
                ThreadPoolExecutor(AT_ONCE + 3, "orch-control") as pool,
                ThreadPoolExecutor(SAMPLED_AT_ONCE, "orch-samples") as sampling,
            ):
                while not self._stop.is_set():
                    try:
                        rows = self._pass(pool, owner)
                        self._keep_samples(sampling, rows)
                        self._passed_at = time.monotonic()
                    except LedgerUnusable as error:
                        self._tell(f"{error.summary}: {error.detail}; trying again")
                    self._look.wait(PAUSE_S)
                    self._look.clear()
                for thread in self._arrays.values():
                    thread.join()
        finally:
            self._runner.ledger.retire(owner)

    def _pass(self, pool: ThreadPoolExecutor, owner: str) -> tuple[RunRow, ...]:
        now = time.monotonic()
        if now - self._beaten_at >= BEAT_S:
            self._runner.ledger.beat(owner)
            self._beaten_at = now
        self._busy = {number: future for number, future in self._busy.items() if not future.done()}
        rows = self._runner.ledger.runs(active_only=True)
        line = cache(self._runner.ledger.line)
        self._drive_arrays(rows)
        for row in reversed(rows):  # the oldest first
            if len(self._busy) >= AT_ONCE:
                break
            if row.held or row.id in self._busy or row.array is not None:
                continue
            if may_advance(row, line) and not self._waits_elsewhere(row):
                self._busy[row.id] = pool.submit(self._safely, lambda row=row: self._advance(row))
        if now - self._collected_at >= COLLECT_EVERY_S and (
            self._collecting is None or self._collecting.done()
        ):
            self._collected_at = now
            self._collecting = pool.submit(self._safely, lambda: collect_leftovers(self._runner))
        for chore in self._chores:
            if now - chore.began_at >= chore.every_s and (chore.under_way is None or chore.under_way.done()):
                chore.began_at = now
                chore.under_way = pool.submit(self._safely, lambda do=chore.do: self._tell_all(do))
        return rows

    def _drive_arrays(self, rows: Sequence[RunRow]) -> None:
        """Drive the arrays that nobody drives, each from a thread of its own, as long as this one lives."""
        self._arrays = {array: thread for array, thread in self._arrays.items() if thread.is_alive()}
        for row in reversed(rows):
            array = row.array
            if array is None or row.held or array in self._arrays or self._waits_elsewhere(row):
                continue
            driver = ArrayDriver(self._runner, array, on_look=self._told())
            act = partial(self._safely, partial(driver.run, self._stop))
            self._arrays[array] = threading.Thread(target=act, name="orch-array", daemon=True)
            self._arrays[array].start()

    def _told(self) -> Callable[[Sequence[Member]], None]:
        """What tells how the members of an array go."""
        known: dict[int, str] = {}

        def tell(members: Sequence[Member]) -> None:
            for each in members:
                before = known.setdefault(each.id, each.status)
                if before != each.status:
                    known[each.id] = each.status
                    self._tell(f"run {each.name}: {before} -> {each.status}", "info")

        return tell

    def _tell_all(self, do: Callable[[], Iterable[Notice]]) -> None:
        for each in do():
            self._runner.processor.handle(each)

    def _waits_elsewhere(self, row: RunRow) -> bool:
        """Whether a run is to be begun on another machine: many such runs must not take others' places."""
        if row.desired != "run" or row.status not in ("pending", "submitted"):
            return False
        with suppress(OrchError):  # told by who tries to advance it
            return not begins_here(self._runner.context(row), row)
        return False

    def _keep_samples(self, pool: ThreadPoolExecutor, rows: Sequence[RunRow]) -> None:
        """Keep what runs use, those with a driver too: that may be one of a version that keeps nothing."""
        now = time.monotonic()
        if now - self._sampled_at < EVERY_S:
            return
        self._sampled_at = now
        self._sampling = {number: each for number, each in self._sampling.items() if not each.done()}
        for row in rows:
            if row.status == "running" and row.id not in self._sampling:
                self._sampling[row.id] = pool.submit(self._sample, row)

    def _sample(self, row: RunRow) -> None:
        with suppress(OrchError):  # a node that is away, or another version's plan: told by who drives it
            keep_sample(self._runner, row, self._stop)

    def _advance(self, row: RunRow) -> None:
        done = advance(self._runner, row, begin=True)
        if done is not None and done.after.status != row.status:
            self._tell(f"run {row.name}: {row.status} -> {done.after.status}", "info")
        # Its nodes are free for the next one; or it has looked for some, and the next one in line may.
        if done is not None and (not done.after.active or (row.in_line and _has_looked(row, done.after))):
            self._look.set()

    def _safely(self, act: Callable[[], object]) -> None:
        """What fails is tried again at the next pass; the other runs go on."""
        try:
            act()
        except OrchError as error:
            self._tell(f"{error.summary}: {error.detail}" if error.detail else error.summary)
        except Exception as error:  # noqa: BLE001 - the border of this thread: nobody else tells of it
            self._tell(f"{type(error).__name__}: {error}")

    def _tell(self, text: str, level: str = "warning") -> None:
        self._runner.processor.handle(Notice(text, level))


def _has_looked(before: RunRow, after: RunRow) -> bool:
    return (before.status, before.looked_at) != (after.status, after.looked_at)


class _Sparing:
    """Passes notices on, each text at most every ten minutes: a node that is away is away at every pass."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._told: dict[str, float] = {}

    def handle(self, event: Event, /) -> None:
        if isinstance(event, Notice):
            now = time.monotonic()
            if now - self._told.get(event.text, float("-inf")) < REPEAT_S:
                return
            self._told = {text: at for text, at in self._told.items() if now - at < REPEAT_S}
            self._told[event.text] = now
        self._processor.handle(event)
