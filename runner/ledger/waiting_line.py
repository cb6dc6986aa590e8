"""The line of runs that wait for nodes of a fleet, and whose turn it is. Pure but for `read_line`.

The rule: the oldest run of the highest priority that fits begins. Two things keep it fair. Every POINT_S of
waiting add a point to a run's priority, so that runs of a high one cannot keep others waiting for ever. And
a run that fits later than others, because it needs many nodes, is passed by them for HOLD_S only: from then
on what becomes free on the fleet is kept for it.

No server gives nodes away: who drives a waiting run looks at the nodes itself, when other runs have left
some. Those before it in line look first, for which they have TURN_S. A run without a driver cannot look, and
keeps nobody waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orch.runner.errors import InLine
from orch.runner.ledger.records import lease_holds

if TYPE_CHECKING:
    from sqlalchemy import Connection

POINT_S = 600.0
HOLD_S = 600.0
TURN_S = 10.0
# Runs look at least every ten minutes; one that did not has nobody who could begin it.
_FORGOTTEN_S = 900.0


@dataclass(frozen=True)
class Waiter:
    """A run that waits for nodes. Times are seconds since the epoch.

    `looked_at`: when it last looked for nodes, 0 if never; `in_use`: whether other runs had them then.
    `driven`: whether somebody can begin it.
    """

    id: int
    name: str
    priority: int
    queued_at: float
    looked_at: float
    in_use: bool
    driven: bool


@dataclass(frozen=True)
class Line:
    """Those who wait for nodes of a fleet, and when a run last left some; `now` is the database's."""

    waiters: tuple[Waiter, ...]
    released_at: float | None
    now: float

    @classmethod
    def of(cls, waiters: Iterable[Waiter], released_at: float | None, now: float) -> Line:
        """In their order."""
        ordered = sorted(waiters, key=lambda each: _rank(each.priority, each.queued_at, each.id, now))
        return cls(tuple(ordered), released_at, now)

    def find(self, run_id: int | None) -> Waiter | None:
        return next((each for each in self.waiters if each.id == run_id), None)

    def position(self, run_id: int) -> int | None:
        """The place of a run, from 1; None for one that is not in line."""
        return next((at for at, each in enumerate(self.waiters, 1) if each.id == run_id), None)

    def before(self, run_id: int | None, priority: int) -> Waiter | None:
        """Who keeps a run from taking nodes, in line or not; None when it may look for some."""
        own = self.find(run_id)
        return self._first_to_wait_for(
            _rank(priority, self.now, None, self.now)
            if own is None
            else _rank(own.priority, own.queued_at, own.id, self.now)
        )

    def nodes_came_free(self, run_id: int) -> bool:
        """Whether a run has left nodes since this one looked."""
        own = self.find(run_id)
        return own is not None and self.released_at is not None and own.looked_at <= self.released_at

    def _first_to_wait_for(self, rank: _Rank) -> Waiter | None:
        ahead = (
            each for each in self.waiters if _rank(each.priority, each.queued_at, each.id, self.now) < rank
        )
        return next((each for each in ahead if self._holds(each) or self._is_to_look(each)), None)

    def _holds(self, waiter: Waiter) -> bool:
        """Whether what becomes free is kept for it: nodes that nobody has will not become free."""
        able = waiter.driven and self.now - waiter.looked_at < _FORGOTTEN_S
        return able and waiter.in_use and self.now - waiter.queued_at >= HOLD_S

    def _is_to_look(self, waiter: Waiter) -> bool:
        released = self.released_at
        return (
            waiter.driven
            and released is not None
            and waiter.looked_at <= released
            and self.now < released + TURN_S
        )


_Rank = tuple[float, float, float]


def _rank(priority: int, queued_at: float, run_id: int | None, now: float) -> _Rank:
    points = priority + (now - queued_at) // POINT_S
    return -points, queued_at, float("inf") if run_id is None else float(run_id)


def read_line(db: Connection, fleet: str, *, controlled: bool) -> Line:
    """The line for a fleet. `controlled`: a controller lives, which begins runs that have no driver."""
    from sqlalchemy import select

    from orch.runner.ledger import schema
    from orch.runner.ledger.schema import clock

    run = schema.run
    waiting = (run.c.fleet == fleet, run.c.status == "pending", run.c.queued_at.is_not(None))
    columns = (run.c.id, run.c.name, run.c.priority, run.c.queued_at, run.c.looked_at, run.c.in_use)
    rows = db.execute(select(*columns, run.c.owner, run.c.lease_until, run.c.desired).where(*waiting)).all()
    if not rows:
        return Line((), None, 0.0)
    now = float(db.execute(select(clock())).scalar_one())
    return Line.of(
        (
            Waiter(
                row.id,
                row.name,
                row.priority,
                row.queued_at,
                row.looked_at or 0.0,
                bool(row.in_use),
                row.desired == "run" and (controlled or lease_holds(row.owner, row.lease_until, now)),
            )
            for row in rows
        ),
        read_release(db, fleet),
        now,
    )


def read_release(db: Connection, fleet: str) -> float | None:
    """When a run last left nodes of a fleet."""
    from sqlalchemy import func, select

    from orch.runner.ledger import schema

    run, attempt = schema.run, schema.attempt
    ended = select(func.max(run.c.finished_at)).where(run.c.fleet == fleet).scalar_subquery()
    failed = (
        select(func.max(attempt.c.finished_at))
        .join(run, run.c.id == attempt.c.run_id)
        .where(run.c.fleet == fleet)
        .scalar_subquery()
    )
    times = db.execute(select(ended.label("ended"), failed.label("failed"))).one()
    return max((each for each in times if each is not None), default=None)


def behind(first: Waiter, hint: str | None = None) -> InLine:
    """Why a run that might fit has to wait."""
    return InLine(f"run {first.name} is before it in the line for these nodes", hint=hint)
