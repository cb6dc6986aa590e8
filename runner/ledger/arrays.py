"""Arrays: runs of one task, one for each index, that are recorded together. A member is a run like any other.

Which members may begin is decided where their attempts are written (`Leases.begin_attempt`), for everybody
who drives some of them. Who drives a whole array holds the leases of all its members that nobody else has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, func, insert, or_, select, update

from orch.runner.errors import LedgerUnusable
from orch.runner.ledger import schema
from orch.runner.ledger.lease import LEASE_S, Renewal, is_full, lease_lost, waiting_values
from orch.runner.ledger.records import (
    ACTIVE,
    ARRAY_LIMIT,
    ARRAY_TURN,
    RESERVED,
    ArrayKey,
    Desired,
    Lease,
    RunRow,
    Waiting,
    lease_holds,
)
from orch.runner.ledger.reserving import reserve
from orch.runner.ledger.schema import clock
from orch.runner.processes import here, is_dead_owner, process_owner
from orch.spec.grammar.values import encodable

# As many values as one statement takes, of SQLite before version 3.32.
_AT_ONCE = 500

Transaction = Callable[[], AbstractContextManager[Connection]]
Plans = Callable[[Mapping[int, int]], tuple[Mapping[int, str], Sequence[str]]]
"""Gets the numbers of members by index; returns their plans by index, and the nodes that each might get."""


@dataclass(frozen=True)
class Member:
    """A member of an array, without its plan. The columns are those of a run's row."""

    id: int
    name: str
    index: int
    limit: int | None
    status: str
    desired: str
    phase: str
    attempt: int
    message: str | None
    owner: str | None
    lease_until: float | None
    next_at: float | None
    queued_at: float | None
    looked_at: float | None
    in_use: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    now: float

    @property
    def active(self) -> bool:
        return self.status in ACTIVE

    @property
    def has_nodes(self) -> bool:
        """Whether it counts for the array's limit."""
        return self.active and self.status != "pending"

    @property
    def held(self) -> bool:
        """Whether a living process acts on it."""
        return lease_holds(self.owner, self.lease_until, self.now)


class Arrays:
    """The arrays of a ledger."""

    def __init__(self, begin: Transaction, reading: Transaction) -> None:
        self._begin, self._reading = begin, reading

    def create(
        self,
        name: str,
        fleet: str,
        indexes: Sequence[int],
        build: Plans,
        waiting: Callable[[int], Waiting],
        *,
        limit: int | None,
        priority: int,
    ) -> ArrayKey:
        """Write the members of a new array, all or none. They wait; `waiting` says why, by place from 0.

        `build` may take long: only the names and numbers are reserved meanwhile, without a transaction.
        Raises NameTaken as for a run.
        """
        owner = process_owner()
        with self._begin() as db:
            own = [
                {
                    "name": f"{name}_{index}",
                    "array_name": name,
                    "array_index": index,
                    "array_limit": limit,
                }
                for index in indexes
            ]
            numbers = reserve(db, name, owner, fleet, own)
            array = ArrayKey(name, numbers[0])
            for part in _parts(numbers):
                db.execute(update(schema.run).where(schema.run.c.id.in_(part)).values(array_id=array.id))
        reserved = (*_of(array), schema.run.c.status == RESERVED, schema.run.c.owner == owner)
        try:
            with Renewal(_Reserved(self._begin, reserved), Lease(array.id, owner, 1)):
                plans, nodes = build(dict(zip(indexes, numbers, strict=True)))
            with self._begin() as db:
                _check(db, reserved, len(numbers))
                _write_plans(
                    db, {number: plans[index] for index, number in zip(indexes, numbers, strict=True)}
                )
                _write_waiting(db, numbers, waiting, priority)
                _write_ranks(db, numbers, nodes)
        except BaseException:
            with suppress(LedgerUnusable), self._begin() as db:
                db.execute(delete(schema.run).where(*reserved))
            raise
        return array

    def find(self, name: str) -> ArrayKey | None:
        """The newest array of that name."""
        run = schema.run.c
        query = select(run.array_id).where(run.array_name == encodable(name), run.status != RESERVED)
        with self._reading() as db:
            number = db.scalar(query.order_by(run.array_id.desc()).limit(1))
        return None if number is None else ArrayKey(name, number)

    def by_id(self, number: int) -> ArrayKey | None:
        """The array of that number."""
        run = schema.run.c
        query = select(run.array_name).where(run.id == number, run.array_id == number, run.status != RESERVED)
        with self._reading() as db:
            name = db.scalar(query)
        return None if name is None else ArrayKey(name, number)

    def members(self, array: ArrayKey) -> tuple[Member, ...]:
        """All members, by index."""
        run = schema.run.c
        columns = (
            run.id,
            run.name,
            run.array_index.label("index"),
            run.array_limit.label("limit"),
            *(run[name] for name in ("status", "desired", "phase", "attempt", "message", "owner")),
            *(run[name] for name in ("lease_until", "next_at", "queued_at", "looked_at", "in_use")),
            *(run[name] for name in ("created_at", "started_at", "finished_at")),
            clock().label("now"),
        )
        query = select(*columns).where(*_of(array), run.status != RESERVED).order_by(run.array_index)
        with self._reading() as db:
            return tuple(Member(**row._mapping) for row in db.execute(query))

    def is_full(self, row: RunRow) -> bool:
        """Whether as many other members of a run's array have nodes as may have at once."""
        with self._reading() as db:
            return is_full(db, row.id)

    def take(self, array: ArrayKey, owner: str, only: Collection[int] | None = None) -> dict[int, Lease]:
        """The leases of all active members that no living process holds, by their numbers. `only`: of these
        alone."""
        run = schema.run
        active = (*_of(array), run.c.status.in_(ACTIVE))
        parts = [()] if only is None else [(run.c.id.in_(part),) for part in _parts(sorted(only))]
        leases: dict[int, Lease] = {}
        with self._begin() as db:
            owners = db.scalars(select(run.c.owner).where(*active, run.c.owner.is_not(None)).distinct())
            dead = [each for each in owners if is_dead_owner(each)]
            free = or_(run.c.owner.is_(None), run.c.lease_until < clock(), run.c.owner.in_(dead))
            for chosen in parts:
                _lock(db, (*active, *chosen))
                taken = db.execute(
                    update(run)
                    .where(*active, *chosen, free)
                    .values(owner=owner, lease_until=clock() + LEASE_S, fence=run.c.fence + 1)
                    .returning(run.c.id, run.c.fence)
                )
                leases |= {row.id: Lease(row.id, owner, row.fence) for row in taken}
        return leases

    def renew(self, array: ArrayKey, owner: str) -> None:
        """Renew the leases that an owner has of members."""
        self._set(array, owner, {"lease_until": clock() + LEASE_S})

    def release(self, array: ArrayKey, owner: str) -> None:
        """Give the leases of members back; if the ledger is unavailable, they expire."""
        with suppress(LedgerUnusable):
            self._set(array, owner, {"owner": None, "lease_until": None})

    def stop(self, array: ArrayKey, numbers: Collection[int], desired: Desired) -> None:
        """Set that these members are to end, and end those of them that nobody has begun.

        Of the latter nothing is on any node: who is about to begin one loses its lease.
        """
        run, rank, event = schema.run, schema.rank, schema.event
        reason = "aborted_by_user" if desired == "abort" else "stopped_by_user"
        over = "aborted_by_user" if desired == "abort" else "terminated_by_user"
        for part in _parts(sorted(numbers)):
            chosen = (*_of(array), run.c.id.in_(part), run.c.status.in_(ACTIVE))
            with self._begin() as db:
                _lock(db, chosen)
                asked = db.scalars(
                    update(run)
                    .where(*chosen, run.c.desired != "abort")
                    .values(desired=desired)
                    .returning(run.c.id)
                ).all()
                begun = select(schema.attempt.c.run_id).where(schema.attempt.c.run_id == run.c.id).exists()
                # One that has asked for nodes says what it waits for.
                fresh = run.c.message.in_([ARRAY_LIMIT, ARRAY_TURN])
                unbegun = and_(run.c.phase == "waiting", fresh, ~begun)
                ended = db.scalars(
                    update(run)
                    .where(*chosen, unbegun)
                    .values(
                        status="terminated",
                        phase="finished",
                        reason=reason,
                        message=None,
                        finished_at=clock(),
                        next_at=None,
                        owner=None,
                        lease_until=None,
                        fence=run.c.fence + 1,
                    )
                    .returning(run.c.id)
                ).all()
                if ended:
                    db.execute(
                        update(rank).where(rank.c.run_id.in_(ended)).values(status="terminated", reason=over)
                    )
                told = [(number, "desired", f"{desired} by {here()}") for number in asked]
                told += [(number, "terminated", reason) for number in ended]
                if told:
                    db.execute(
                        insert(event).values(at=clock()),
                        [{"run_id": number, "kind": kind, "text": text} for number, kind, text in told],
                    )

    def _set(self, array: ArrayKey, owner: str, values: Mapping[str, Any]) -> None:
        mine = (*_of(array), schema.run.c.owner == owner, schema.run.c.status != RESERVED)
        with self._begin() as db:
            _lock(db, mine)
            db.execute(update(schema.run).where(*mine).values(**values))


@dataclass(frozen=True)
class _Reserved:
    """Renews the reservation of all members of an array that is being submitted."""

    begin: Transaction
    conditions: tuple[ColumnElement[bool], ...]

    def renew(self, lease: Lease) -> None:
        """Raises LeaseLost."""
        del lease
        with self.begin() as db:
            changed = db.execute(
                update(schema.run).where(*self.conditions).values(lease_until=clock() + LEASE_S)
            )
            if changed.rowcount == 0:
                raise lease_lost()


def _check(db: Connection, reserved: tuple[ColumnElement[bool], ...], count: int) -> None:
    """Raises LeaseLost where others have taken what was reserved."""
    _lock(db, reserved)
    if db.scalar(select(func.count()).select_from(schema.run).where(*reserved)) != count:
        raise lease_lost()


def _write_plans(db: Connection, plans: Mapping[int, str]) -> None:
    run = schema.run
    db.execute(
        update(run).where(run.c.id == bindparam("number")).values(plan=bindparam("text")),
        [{"number": number, "text": text} for number, text in plans.items()],
    )


def _write_waiting(
    db: Connection, numbers: Sequence[int], waiting: Callable[[int], Waiting], priority: int
) -> None:
    run = schema.run
    reasons = {number: waiting(place) for place, number in enumerate(numbers)}
    for reason in dict.fromkeys(reasons.values()):
        values = {**waiting_values(reason), "priority": priority, "owner": None, "lease_until": None}
        for part in _parts([number for number, each in reasons.items() if each == reason]):
            db.execute(update(run).where(run.c.id.in_(part)).values(**values, created_at=clock()))
    db.execute(
        insert(schema.event).values(at=clock()),
        [
            {"run_id": number, "kind": kind, "text": text}
            for number, reason in reasons.items()
            for kind, text in (("submitted", f"by {here()}"), ("pending", reason.message))
        ],
    )


def _write_ranks(db: Connection, numbers: Sequence[int], nodes: Sequence[str]) -> None:
    db.execute(
        insert(schema.rank).values(attempt=0, status="submitted", collected=1),
        [
            {"run_id": number, "rank": rank, "node": node}
            for number in numbers
            for rank, node in enumerate(nodes)
        ],
    )


def _of(array: ArrayKey) -> tuple[ColumnElement[bool], ...]:
    return schema.run.c.array_name == array.name, schema.run.c.array_id == array.id


def _lock(db: Connection, conditions: Iterable[ColumnElement[bool]]) -> None:
    """Lock rows in the order of their numbers: two that change many would else wait for each other."""
    run = schema.run
    db.execute(select(run.c.id).where(*conditions).order_by(run.c.id).with_for_update()).all()


def _parts(values: Sequence[int]) -> Iterable[Sequence[int]]:
    return (values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE))
