"""How long the nodes of fleets were there and at which price: what costs are added up from (runner/costs.py).

A stack knows the nodes that are there, and forgets those that went. Whoever changes or reads a stack passes
its nodes to `record`, which begins and ends rows by comparing them with those that have not ended.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqlalchemy import Connection, insert, or_, select, update

from orch.runner.ledger import schema
from orch.runner.ledger.schema import clock

Market = Literal["own", "on-demand", "spot", "reserved"]
# SQLite took 999 values in one statement before version 3.32.
AT_ONCE = 500


@dataclass(frozen=True)
class PresentNode:
    """A node that is there, as its stack records it.

    `identity` tells it from an earlier one of its name. `kind`: `beside` for what a fleet has beside its
    nodes. `price_hourly`: US dollars, None where it is not known. `created`: seconds since the epoch.
    """

    node: str
    identity: str
    backend: str
    market: Market
    kind: Literal["node", "beside"] = "node"
    instance_type: str | None = None
    gpus: int = 0
    price_hourly: float | None = None
    created: float | None = None


@dataclass(frozen=True)
class NodeLife:
    """How long a node was there at one price. `ended_at` is None while it is there.

    `exact`: whether it ended at that moment; else it was found gone then, and was last seen at `seen_at`.
    `id` is the number of its row, None without one.
    """

    fleet: str
    node: str
    identity: str
    kind: str
    backend: str
    market: str
    instance_type: str | None
    gpus: int
    price_hourly: float | None
    tags: Mapping[str, str]
    began_at: float
    ended_at: float | None
    exact: bool
    seen_at: float
    id: int | None = None

    def of_now(self, present: PresentNode, tags: Mapping[str, str]) -> bool:
        """Whether it still is what it was begun as."""
        return (self.price_hourly, self.market, self.gpus, self.instance_type, dict(self.tags)) == (
            present.price_hourly,
            present.market,
            present.gpus,
            present.instance_type,
            dict(tags),
        )


@dataclass(frozen=True)
class Look:
    """What somebody saw of a fleet: the nodes that are there.

    `tags`: those of the fleet, None where they are not known now. `other_tags`: for a fleet of which no row
    tells any. `removed`: nodes that were just deleted; others that are no longer there were found gone, and
    those of `over` ended when the time of the fleet was over, at `ends`.
    """

    fleet: str
    present: Sequence[PresentNode]
    tags: Mapping[str, str] | None = None
    other_tags: Mapping[str, str] = field(default_factory=dict[str, str])
    removed: Collection[str] = ()
    ends: float | None = None


@dataclass(frozen=True)
class Comparison:
    """What a look changes: rows that end, as they are then, those that begin, and those that are there."""

    ended: tuple[NodeLife, ...]
    begun: tuple[NodeLife, ...]
    seen: tuple[NodeLife, ...]

    @property
    def lives(self) -> tuple[NodeLife, ...]:
        return (*self.ended, *self.seen, *self.begun)


def compare(rows: Sequence[NodeLife], look: Look, now: float) -> Comparison:
    """What a look at a fleet changes of its rows, of which there may be several of a node. Pure."""
    tags = look.tags
    if tags is None:
        tags = max(rows, key=lambda row: row.id or 0).tags if rows else look.other_tags
    open_rows = {(row.node, row.identity): row for row in rows if row.ended_at is None}
    last_ends: dict[tuple[str, str], float] = {}
    for row in rows:
        if row.ended_at is not None:
            key = (row.node, row.identity)
            last_ends[key] = max(row.ended_at, last_ends.get(key, 0.0))
    present = {(each.node, each.identity): each for each in look.present}
    successors = {
        node: each.created
        for (node, identity), each in present.items()
        if each.created is not None and (node, identity) not in open_rows
    }
    ended: list[NodeLife] = []
    begun: list[NodeLife] = []
    seen: list[NodeLife] = []
    for key, row in open_rows.items():
        each = present.get(key)
        if each is None:
            # It had gone when another one of its name was created.
            ended.append(_ended(row, look, min(now, max(row.began_at, successors.get(row.node, now)))))
        elif row.of_now(each, tags):
            seen.append(replace(row, seen_at=now))
        else:
            ended.append(replace(row, ended_at=now, exact=True, seen_at=now))
            begun.append(_begun(look.fleet, each, tags, now, now))
    for key, each in present.items():
        if key in open_rows:
            continue
        # One that was there before was away: it is there since now. A new one is since its creation.
        began = now if key in last_ends else min(now, each.created if each.created is not None else now)
        begun.append(_begun(look.fleet, each, tags, began, now))
    return Comparison(tuple(ended), tuple(begun), tuple(seen))


def _begun(fleet: str, each: PresentNode, tags: Mapping[str, str], began: float, now: float) -> NodeLife:
    return NodeLife(
        fleet,
        each.node,
        each.identity,
        each.kind,
        each.backend,
        each.market,
        each.instance_type,
        each.gpus,
        each.price_hourly,
        tags,
        began,
        None,
        exact=True,
        seen_at=now,
    )


def _ended(row: NodeLife, look: Look, now: float) -> NodeLife:
    """A row whose node is gone. A machine ends itself when the time of its fleet is over."""
    if row.node in look.removed:
        return replace(row, ended_at=now, exact=True)
    if look.ends is not None and look.ends <= now:
        return replace(row, ended_at=max(row.began_at, look.ends), exact=True)
    return replace(row, ended_at=now, exact=False)


def record(db: Connection, project: str, scope: str, look: Look) -> None:
    """Bring the rows of a fleet to what somebody saw of it. Nothing changes where it is there already."""
    table = schema.node_life
    # Those who record come one after the other; SQLite's transaction does that.
    db.execute(select(schema.meta.c.value).where(schema.meta.c.key == "schema").with_for_update())
    now = float(db.scalar(select(clock())) or 0.0)
    rows = rows_of(db, project, look.fleet, scope, [each.identity for each in look.present])
    compared = compare(rows, look, now)
    for row in compared.ended:
        values = {"ended_at": row.ended_at, "exact": int(row.exact), "seen_at": row.seen_at}
        db.execute(update(table).where(table.c.id == row.id).values(**values))
    numbers = [row.id for row in compared.seen if row.id is not None]
    for start in range(0, len(numbers), AT_ONCE):
        part = table.c.id.in_(numbers[start : start + AT_ONCE])
        # Who sees a node last has its state: a project's folder may have been moved, or its state.
        db.execute(update(table).where(part).values(seen_at=now, scope=scope))
    if compared.begun:
        db.execute(insert(table), [_values(row, project, scope) for row in compared.begun])


def rows_of(
    db: Connection, project: str, fleet: str, scope: str, identities: Iterable[str]
) -> tuple[NodeLife, ...]:
    """What a look at a fleet is compared with: its rows that have not ended, the latest one, and those of
    machines that are there, also from another state of the project."""
    table = schema.node_life
    own = select(table).where(table.c.project == project, table.c.fleet == fleet)
    is_open = table.c.ended_at.is_(None)
    found = {row.id: row for row in db.execute(own.where(is_open, table.c.scope == scope))}
    latest = own.where(table.c.scope == scope).order_by(table.c.id.desc()).limit(1)
    found |= {row.id: row for row in db.execute(latest)}
    known = sorted(set(identities))
    for start in range(0, len(known), AT_ONCE):
        part = own.where(table.c.identity.in_(known[start : start + AT_ONCE]))
        found |= {row.id: row for row in db.execute(part)}
    return tuple(_life(row) for row in found.values())


def read(db: Connection, project: str, since: float, fleets: Collection[str] | None) -> tuple[NodeLife, ...]:
    """The lives of a project's nodes that had not ended at a moment, oldest first. `fleets`: of these."""
    table = schema.node_life
    query = select(table).where(
        table.c.project == project, or_(table.c.ended_at.is_(None), table.c.ended_at > since)
    )
    if fleets is not None:
        query = query.where(table.c.fleet.in_(sorted(fleets)))
    return tuple(_life(row) for row in db.execute(query.order_by(table.c.began_at, table.c.id)))


def open_fleets(db: Connection, project: str, scope: str) -> frozenset[str]:
    """The fleets of which a node has not ended."""
    table = schema.node_life
    query = select(table.c.fleet).where(
        table.c.project == project, table.c.scope == scope, table.c.ended_at.is_(None)
    )
    return frozenset(db.scalars(query.distinct()))


def _life(row: Any) -> NodeLife:
    values = dict(row._mapping)
    for name in ("project", "scope"):
        del values[name]
    return NodeLife(**{**values, "tags": json.loads(row.tags), "exact": bool(row.exact)})


def _values(row: NodeLife, project: str, scope: str) -> dict[str, Any]:
    values = {each: getattr(row, each) for each in NodeLife.__dataclass_fields__ if each != "id"}
    tags = json.dumps(dict(row.tags), sort_keys=True)
    return {**values, "project": project, "scope": scope, "tags": tags, "exact": int(row.exact)}
