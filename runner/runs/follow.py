"""Follow a run that this process does not drive: its logs as they arrive, its ledger row at intervals.

Many processes may share a ledger, so the interval grows while nothing changes. The end of a log, or the death
of a driver on this machine, ends the pause at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from orch.runner.errors import LedgerUnusable
from orch.runner.events import Notice, RunChanged
from orch.runner.ledger.patience import LedgerPatience
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.node import logs
from orch.runner.processes import describe_owner, is_dead_owner
from orch.runner.runs.context import RunnerContext
from orch.spec.grammar.hosts import fold

# How long a screen that takes no lines is waited for before the run is taken over.
TELL_S = 3.0
MIN_PAUSE_S, MAX_PAUSE_S, GROWTH = 0.2, 4.0, 1.5
# How often a driver of this machine is looked for while the ledger is not asked.
DRIVER_S = 1.0


class RunWatch:
    """A run's row in the ledger, read at intervals. `wake`, from any thread, ends the present pause."""

    def __init__(self, runner: RunnerContext, row: RunRow) -> None:
        self._ledger = runner.ledger
        self._patience = LedgerPatience(lambda text: runner.processor.handle(Notice(text, "warning")))
        self._wake = threading.Event()
        self._pause_s = MIN_PAUSE_S
        self.row = row

    def wake(self) -> None:
        self._wake.set()

    def wait(self) -> None:
        """Wait until it is time to read the ledger again."""
        deadline = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * GROWTH, MAX_PAUSE_S)
        while (remaining_s := deadline - time.monotonic()) > 0:
            if self._wake.wait(min(remaining_s, DRIVER_S)):
                self._wake.clear()
                self._pause_s = MIN_PAUSE_S
                return
            if self.row.owner is not None and is_dead_owner(self.row.owner):
                return

    def read(self) -> RunRow:
        """Read the run's row; as it was known before while the ledger is away. Raises LedgerUnusable when
        that stays so."""
        try:
            present = self._ledger.by_id(self.row.id)
        except LedgerUnusable as error:
            self._patience.bear(error)
            return self.row
        self._patience.found()
        previous, self.row = self.row, present
        if (previous.status, previous.phase, previous.owner) != (
            self.row.status,
            self.row.phase,
            self.row.owner,
        ):
            self._pause_s = MIN_PAUSE_S
        return self.row


def follow(runner: RunnerContext, row: RunRow, follow_logs: bool) -> RunRow:
    """Show a run that another process acts on, until it ends or that process is gone."""
    followers: list[logs.Follower] = []
    attached = row.attempt
    watch, last_status = RunWatch(runner, row), row.status
    runner.processor.handle(
        Notice(
            f"run {row.name} is driven by {describe_owner(row.owner) if row.owner else 'another process'}; "
            "following it"
        )
    )
    try:
        while row.active and row.held:
            if follow_logs and not followers and row.phase in ("going", "running", "stopping"):
                followers = _followers(runner, row, watch, whole=row.attempt != attached)
                for follower in followers:
                    follower.start()
            watch.wait()
            previous, row = row, watch.read()
            if row.plan != previous.plan or row.phase == "waiting":
                _finish(followers)
                followers = []
            if row.plan != previous.plan:
                runner.processor.handle(Notice(f"run {row.name}: attempt {row.attempt} on {_nodes(row)}"))
            if row.status != last_status:
                last_status = row.status
                runner.processor.handle(_changed(row))
        if row.active:  # nobody drives it now: a screen that stands still must not keep it so
            _finish(followers, patience_s=0.0, tell_s=TELL_S)
        else:
            _finish(followers)
    finally:
        for follower in followers:
            follower.stop()
    return row


def _followers(runner: RunnerContext, row: RunRow, watch: RunWatch, *, whole: bool) -> list[logs.Follower]:
    """What follows the logs of a run's latest attempt."""
    context, plan = runner.context(row), plan_of(row)
    return [
        logs.Follower(
            context.connector,
            context.runtime(rank.node),
            plan,
            rank.rank,
            folder=context.folder,
            processor=runner.processor,
            on_end=watch.wake,
            whole=whole,
        )
        for rank in plan.ranks
    ]


def _finish(followers: Iterable[logs.Follower], patience_s: float = 2.0, tell_s: float | None = None) -> None:
    for follower in followers:
        follower.finish(patience_s=patience_s)
    for follower in followers:
        follower.tell_rest(tell_s)


def _nodes(row: RunRow) -> str:
    return fold([rank.node for rank in row.ranks])


def _changed(row: RunRow) -> RunChanged:
    if row.status != "pending":
        return RunChanged(row.name, row.status, row.reason, row.message)
    delay_s = max(0.0, (row.next_at or row.now) - row.now)
    return RunChanged(row.name, row.status, "retry", f"{row.message}; tried again in {delay_s:.0f} s")
