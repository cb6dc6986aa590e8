"""Controllers that live: each writes a heartbeat into the ledger, by the database's clock."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from orch.runner.ledger import schema
from orch.runner.ledger.schema import clock
from orch.runner.processes import here, is_dead_owner

BEAT_S = 10.0
# Without a heartbeat for this long, a controller counts as dead; one of this machine at once.
SILENT_S = 60.0


@dataclass(frozen=True)
class Controller:
    """A living controller: its process, whose it is (`ada@laptop`), and when its last heartbeat was."""

    owner: str
    by: str
    since: float
    seen_s: float


def beat(db: Connection, owner: str) -> None:
    """Write a heartbeat, and remove controllers that have been silent for a day."""
    table = schema.controller
    if db.execute(update(table).where(table.c.owner == owner).values(seen_at=clock())).rowcount == 0:
        values = {"owner": owner, "started_by": here(), "started_at": clock(), "seen_at": clock()}
        db.execute(insert(table).values(values))
        db.execute(delete(table).where(table.c.seen_at < clock() - 86_400))


def retire(db: Connection, owner: str) -> None:
    db.execute(delete(schema.controller).where(schema.controller.c.owner == owner))


def living(db: Connection) -> tuple[Controller, ...]:
    """Those that live, the oldest first."""
    table = schema.controller
    seen_s = clock() - table.c.seen_at
    rows = db.execute(select(table, seen_s.label("seen_s")).where(seen_s < SILENT_S)).all()
    found = [Controller(row.owner, row.started_by, row.started_at, max(0.0, row.seen_s)) for row in rows]
    return tuple(
        sorted((each for each in found if not is_dead_owner(each.owner)), key=lambda each: each.since)
    )
