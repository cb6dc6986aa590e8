"""The health of nodes over time: one row for as long as a node's status and reason stay the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, select, update

from orch.runner.ledger import schema
from orch.runner.ledger.schema import clock

_NUMBER = re.compile(r"[0-9]+")

KEPT_S = 90 * 86_400.0
"""How long what was found is kept after it was seen last."""


@dataclass(frozen=True)
class Examination:
    """What an examination of a node came to. `status`: healthy, warning or failure; `report`: JSON, None
    where the one before it stands."""

    node: str
    status: str
    reason: str
    report: str | None


@dataclass(frozen=True)
class HealthPeriod:
    """A time in which a node's status and fault were the same: from `began_at` until it was seen last, at
    `seen_at`, both in seconds since the epoch. `report`: the last one, as JSON."""

    fleet: str
    node: str
    status: str
    reason: str
    report: str
    began_at: float
    seen_at: float


def record(db: Connection, project: str, scope: str, fleet: str, found: Sequence[Examination]) -> None:
    """Keep examinations of nodes of a fleet that were made just now."""
    table = schema.node_health
    # Those who record come one after the other; SQLite's transaction does that.
    db.execute(select(schema.meta.c.value).where(schema.meta.c.key == "schema").with_for_update())
    newest = db.execute(_newest(project, scope).where(table.c.fleet == fleet))
    present = {row.node: row for row in newest}
    for each in found:
        before, reason = present.get(each.node), schema.storable(each.reason)
        if before is not None and before.status == each.status and is_same(before.reason, reason):
            kept = each.report if each.report is not None else before.report
            now = {"reason": reason, "report": kept, "seen_at": clock()}
            db.execute(update(table).where(table.c.id == before.id).values(**now))
            continue
        values = {"project": project, "scope": scope, "fleet": fleet, "node": each.node}
        told = {"status": each.status, "reason": reason, "report": each.report or "{}"}
        db.execute(insert(table).values(**values, **told, began_at=clock(), seen_at=clock()))
    db.execute(delete(table).where(table.c.project == project, table.c.seen_at < clock() - KEPT_S))


def latest(
    db: Connection, project: str, scope: str, fleets: Collection[str] | None = None
) -> tuple[HealthPeriod, ...]:
    """The present period of each node that was examined, by fleet and node. `fleets`: of these alone."""
    return _read(db, _newest(project, scope), fleets)


def history(
    db: Connection, project: str, scope: str, fleets: Collection[str] | None = None
) -> tuple[HealthPeriod, ...]:
    """All periods that are kept, by fleet and node, the oldest first."""
    table = schema.node_health
    query = select(table).where(table.c.project == project, table.c.scope == scope)
    return _read(db, query, fleets)


def _read(db: Connection, query: Select[Any], fleets: Collection[str] | None) -> tuple[HealthPeriod, ...]:
    table = schema.node_health
    if fleets is not None:
        query = query.where(table.c.fleet.in_(sorted(fleets)))
    rows = db.execute(query.order_by(table.c.fleet, table.c.node, table.c.id))
    names = tuple(HealthPeriod.__dataclass_fields__)
    return tuple(HealthPeriod(*(row._mapping[name] for name in names)) for row in rows)


def _newest(project: str, scope: str) -> Select[Any]:
    table = schema.node_health
    ids = select(func.max(table.c.id)).where(table.c.project == project, table.c.scope == scope)
    return select(table).where(table.c.id.in_(ids.group_by(table.c.fleet, table.c.node)))


def is_same(former: str, reason: str) -> bool:
    """Whether two reasons are of one fault: of the same part, and alike but for what is counted."""
    part, _, told = former.partition(": ")
    now_part, _, now_told = reason.partition(": ")
    return part == now_part and _NUMBER.sub("", told) == _NUMBER.sub("", now_told)
