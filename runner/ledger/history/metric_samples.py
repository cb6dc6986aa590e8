"""What the ranks of runs used, kept from time to time: all of the last hour, less of what was before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select

from orch.runner.ledger import schema
from orch.runner.ledger.schema import clock

EVERY_S = 10.0
# Several processes may see to a run: who finds a sample that is younger than this leaves it at that.
DUE_S = 7.5
# A run has no more than so many. The last hour keeps all of its own, what was before is thinned to as many.
MOST_OF_RUN, FINE_S, COARSE = 1080, 3600.0, 360
KEPT_S = 7 * 86_400.0
# Of all runs together, counted by ranks: what one rank with eight GPUs used once is about a kilobyte.
MOST_RANKS = 200_000
# At which samples it is looked whether there are too many of all.
LOOK_AT_EACH = 50


@dataclass(frozen=True)
class Sample:
    """What the ranks of an attempt had used at a moment; `readings` as `metrics/history.py` packs them."""

    at: float
    attempt: int
    readings: str


def due(db: Connection, number: int) -> bool:
    """Whether nobody has just kept a sample of a run."""
    table = schema.sample
    last = select(clock() - func.max(table.c.at)).where(table.c.run_id == number)
    age = db.scalar(last)
    return age is None or not 0 <= age < DUE_S


def add(db: Connection, number: int, attempt: int, ranks: int, readings: str) -> None:
    """Keep a sample of a run, unless somebody has just done so, and drop what is too many."""
    table, run = schema.sample, schema.run
    # Those who keep samples of one run come one after the other.
    db.execute(select(run.c.id).where(run.c.id == number).with_for_update())
    if not due(db, number):
        return
    values = {"run_id": number, "attempt": attempt, "at": clock(), "ranks": ranks, "readings": readings}
    new = db.execute(insert(table).values(values).returning(table.c.id, table.c.at)).one()
    rows = db.execute(select(table.c.id, table.c.at).where(table.c.run_id == number).order_by(table.c.at))
    kept = [(row.id, row.at) for row in rows]
    if len(kept) > MOST_OF_RUN:
        db.execute(delete(table).where(table.c.id.in_(thinned(kept, new.at - FINE_S))))
    if new.id % LOOK_AT_EACH == 0:
        _drop_oldest(db)


def thinned(kept: Sequence[tuple[int, float]], before: float) -> list[int]:
    """The ids of those that go, so that of what is older than `before` at most COARSE are left: the first of
    each part of that time. `kept`: id and time of each, by time. Pure."""
    older = [each for each in kept if each[1] < before]
    if len(older) <= COARSE:
        return []
    first, length = older[0][1], (before - older[0][1]) / COARSE
    parts = [int((at - first) / length) for _, at in older]
    return [older[at][0] for at in range(1, len(older)) if parts[at] == parts[at - 1]]


def _drop_oldest(db: Connection) -> None:
    table = schema.sample
    db.execute(delete(table).where(table.c.at < clock() - KEPT_S))
    excess = (db.scalar(select(func.sum(table.c.ranks))) or 0) - MOST_RANKS
    if excess <= 0:
        return
    oldest = 0
    for row in db.execute(select(table.c.id, table.c.ranks).order_by(table.c.id)):
        if excess <= 0:
            break
        oldest, excess = row.id, excess - row.ranks
    db.execute(delete(table).where(table.c.id <= oldest))


def read(db: Connection, number: int, attempt: int, since: float) -> tuple[Sample, ...]:
    """The samples of an attempt since a moment, the oldest first."""
    table = schema.sample
    rows = db.execute(
        select(table.c.at, table.c.attempt, table.c.readings)
        .where(table.c.run_id == number, table.c.attempt == attempt, table.c.at >= since)
        .order_by(table.c.at, table.c.id)
    )
    return tuple(Sample(row.at, row.attempt, row.readings) for row in rows)
