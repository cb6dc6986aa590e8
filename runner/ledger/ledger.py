"""The ledger of runs: their state, and who may act on them. SQLite, or PostgreSQL by URL.

A process that acts on a run takes a lease. Each lease increments the run's fence, and every later write names
owner and fence: a write that matches no row means that the lease is lost, and its holder stops. No
transaction stays open during SSH commands or while files are packed.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, delete, exists, func, insert, literal, or_, select, update
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError

from orch.runner.errors import LedgerUnusable, NameTaken, UnknownRun
from orch.runner.ledger import controllers, metric_samples, schema
from orch.runner.ledger.controllers import Controller
from orch.runner.ledger.database import only_reading, open_engine, unusable
from orch.runner.ledger.lease import LEASE_S, LeaseLost, Renewal
from orch.runner.ledger.metric_samples import Sample
from orch.runner.ledger.records import (
    ACTIVE,
    RESERVED,
    AttemptRow,
    Desired,
    Lease,
    RankRow,
    RunRow,
    Waiting,
    lease_holds,
)
from orch.runner.ledger.schema import clock
from orch.runner.ledger.waiting_line import Line, read_line
from orch.runner.processes import describe_owner, here, is_dead_owner, process_owner
from orch.spec.grammar.values import encodable, shown
from orch.spec.suggest import hint_for

_ID = re.compile(r"[0-9]{1,9}")

# A node that was lost, or could run nothing, weighs as much as this many attempts that failed on it.
LOST_WEIGHT = 10
# SQLite took 999 values in one statement before version 3.32.
READ_AT_ONCE = 500


def open_ledger(url: str) -> Ledger:
    """The ledger at a SQLAlchemy URL, created if missing. Raises LedgerUnusable or NewerLedger."""
    return Ledger(*open_engine(url))


class Ledger:
    """One database of runs. Thread-safe."""

    def __init__(self, engine: Engine, url: str) -> None:
        self._engine = engine
        self._reader = only_reading(engine)
        self._url = url

    def close(self) -> None:
        """Close all connections; needed before a fork."""
        self._engine.dispose()

    def create(
        self,
        name: str,
        fleet: str,
        nodes: Sequence[str],
        build: Callable[[int], str],
        waiting: Waiting | None = None,
        *,
        priority: int = 0,
    ) -> RunRow:
        """Write a new run. `build` gets its number and returns its plan as JSON.

        `build` may take long: only the name and the number are reserved meanwhile, without a transaction.
        `waiting`: it is not started now, and `nodes` are only those that it might get.

        Raises NameTaken when a run of that name is active, or being submitted.
        """
        lease = self._reserve(name, fleet)
        try:
            with Renewal(self, lease):
                plan = build(lease.run_id)
            return self._submit(lease, plan, nodes, waiting, priority)
        except BaseException:
            with suppress(LedgerUnusable), self._begin() as db:
                db.execute(delete(schema.run).where(*_holds(lease), schema.run.c.status == RESERVED))
            raise

    def check_name(self, name: str) -> None:
        """Raises NameTaken when a run of that name is active: said before anything is made for another one.

        `create` looks again.
        """
        table = schema.run
        with self._reading() as db:
            active = select(table.c.id).where(table.c.name == name, table.c.status.in_(ACTIVE)).limit(1)
            if db.execute(active).scalar() is not None:
                raise _taken(name)

    def _reserve(self, name: str, fleet: str) -> Lease:
        """Reserve the name and a number for a run that is about to be written."""
        table, owner = schema.run, process_owner()
        with self._begin() as db:
            # Those who reserve come one after the other.
            db.execute(select(schema.meta.c.value).where(schema.meta.c.key == "schema").with_for_update())
            rows = db.execute(
                select(
                    table.c.id, table.c.status, table.c.owner, table.c.lease_until, clock().label("now")
                ).where(table.c.name == name, table.c.status.in_((*ACTIVE, RESERVED)))
            ).all()
            abandoned = [
                row
                for row in rows
                if row.status == RESERVED and not lease_holds(row.owner, row.lease_until, row.now)
            ]
            for row in rows:
                if row.status != RESERVED:
                    raise _taken(name)
                if row not in abandoned:
                    raise NameTaken(
                        f"a run named {name} is being submitted",
                        detail=f"by {describe_owner(row.owner)}",
                        hint="wait for it, or use `--name`",
                        name=name,
                    )
            number = db.execute(
                insert(table)
                .values(
                    name=name,
                    fleet=fleet,
                    plan="",
                    status=RESERVED,
                    desired="run",
                    phase="submitted",
                    attempt=0,
                    submitted_by=here(),
                    owner=owner,
                    lease_until=clock() + LEASE_S,
                    fence=1,
                    created_at=clock(),
                )
                .returning(table.c.id)
            ).scalar_one()
            # After the new one is there, so that a number is never given twice.
            for row in abandoned:
                db.execute(delete(table).where(table.c.id == row.id))
        return Lease(number, owner, 1)

    def _submit(
        self, lease: Lease, plan: str, nodes: Sequence[str], waiting: Waiting | None, priority: int
    ) -> RunRow:
        table = schema.run
        values: dict[str, Any] = {"status": "submitted"} if waiting is None else _waiting_values(waiting)
        with self._begin() as db:
            changed = db.execute(
                update(table)
                .where(*_holds(lease), table.c.status == RESERVED)
                .values(
                    **values,
                    plan=plan,
                    priority=priority,
                    owner=None,
                    lease_until=None,
                    created_at=clock(),
                )
            )
            if changed.rowcount == 0:
                raise _lease_lost()
            _add_ranks(db, lease.run_id, 0, nodes, collected=waiting is not None)
            _add_event(db, lease.run_id, "submitted", f"by {here()}")
            if waiting is not None:
                _add_event(db, lease.run_id, "pending", waiting.message)
            return _read(db, lease.run_id)

    def get(self, name: str) -> RunRow:
        """The newest run of that name, or the run of that id. Raises UnknownRun."""
        newest = select(schema.run.c.id).where(schema.run.c.status != RESERVED)
        newest = newest.order_by(schema.run.c.id.desc()).limit(1)
        with self._reading() as db:
            number = db.scalar(newest.where(schema.run.c.name == encodable(name)))
            if number is None and _ID.fullmatch(name):  # no name of a run begins with a digit now
                number = db.scalar(newest.where(schema.run.c.id == int(name)))
            if number is None:
                names = db.scalars(
                    select(schema.run.c.name)
                    .where(schema.run.c.status != RESERVED)
                    .order_by(schema.run.c.id.desc())
                    .limit(5)
                ).all()
                raise UnknownRun(
                    f"no run named {shown(name)}",
                    detail=f"latest runs: {', '.join(dict.fromkeys(names))}"
                    if names
                    else "nothing was run here yet",
                    hint=hint_for(name, names) or "`orch ps -a` lists all runs",
                )
            return _read(db, number)

    def by_id(self, number: int) -> RunRow:
        with self._reading() as db:
            return _read(db, number)

    def runs(self, *, active_only: bool = False, limit: int = 1000) -> tuple[RunRow, ...]:
        """Runs, newest first: at most `limit` of all, or all that are active."""
        status = schema.run.c.status
        query = select(schema.run.c.id).order_by(schema.run.c.id.desc())
        query = (
            query.where(status.in_(ACTIVE)) if active_only else query.where(status != RESERVED).limit(limit)
        )
        with self._reading() as db:
            return _read_all(db, db.scalars(query).all())

    def placed_on(self, fleet: str) -> tuple[RunRow, ...]:
        """The active runs that have nodes of a fleet, newest first: all but those that wait."""
        run = schema.run
        query = select(run.c.id).where(
            run.c.fleet == fleet, run.c.status.in_(ACTIVE), run.c.status != "pending"
        )
        with self._reading() as db:
            return _read_all(db, db.scalars(query.order_by(run.c.id.desc())).all())

    def ended_of(self, numbers: Collection[int]) -> frozenset[tuple[str, int]]:
        """Name and number of those of these runs that have ended."""
        table, found = schema.run, set[tuple[str, int]]()
        with self._reading() as db:
            for part in _parts(sorted(numbers)):
                ended = (table.c.id.in_(part), table.c.status.not_in((*ACTIVE, RESERVED)))
                found.update(
                    (row.name, row.id) for row in db.execute(select(table.c.name, table.c.id).where(*ended))
                )
        return frozenset(found)

    def uncollected(self) -> tuple[RunRow, ...]:
        """Ended runs whose container is still on a node that did not answer, newest first, at most 20."""
        query = (
            select(schema.run.c.id)
            .where(
                schema.run.c.status.not_in((*ACTIVE, RESERVED)),
                exists().where(schema.rank.c.run_id == schema.run.c.id, schema.rank.c.collected == 0),
            )
            .order_by(schema.run.c.id.desc())
            .limit(20)
        )
        with self._reading() as db:
            return _read_all(db, db.scalars(query).all())

    def take(self, number: int, owner: str) -> Lease | None:
        """The lease of a run, or None while a living process holds it."""
        table = schema.run
        with self._begin() as db:
            row = db.execute(select(table.c.owner).where(table.c.id == number).with_for_update()).one()
            free = or_(table.c.owner.is_(None), table.c.lease_until < clock(), table.c.owner == owner)
            if row.owner is not None and is_dead_owner(row.owner):
                free = or_(free, table.c.owner == row.owner)
            fence = db.execute(
                update(table)
                .where(table.c.id == number, free)
                .values(owner=owner, lease_until=clock() + LEASE_S, fence=table.c.fence + 1)
                .returning(table.c.fence)
            ).scalar()
        return None if fence is None else Lease(number, owner, fence)

    def renew(self, lease: Lease) -> None:
        """Raises LeaseLost."""
        self._fenced(lease, {"lease_until": clock() + LEASE_S})

    def release(self, lease: Lease) -> None:
        """Give the lease back. Does nothing when it was lost; if the ledger is unavailable, it expires."""
        table = schema.run
        with suppress(LedgerUnusable), self._begin() as db:
            db.execute(update(table).where(*_holds(lease)).values(owner=None, lease_until=None))

    def change(self, lease: Lease, kind: str | None = None, text: str = "", **values: object) -> None:
        """Change a run; `kind` and `text` also go to its list of events. Raises LeaseLost."""
        self._fenced(lease, values, kind, text)

    def finish(self, lease: Lease, status: str, reason: str, message: str | None) -> None:
        """The run's end. Raises LeaseLost."""
        values = {
            "status": status,
            "reason": reason,
            "message": message,
            "finished_at": clock(),
            "phase": "finished",
            "next_at": None,
        }
        self._fenced(lease, values, status, reason)

    def mark_started(self, lease: Lease, text: str) -> None:
        """Record that commands are about to run; the first call sets the start time. Raises LeaseLost."""
        started = func.coalesce(schema.run.c.started_at, clock())
        values = {"phase": "going", "started_at": started, "queued_at": None}
        self._fenced(lease, values, "go", text)

    def wait(self, lease: Lease, waiting: Waiting, events: Sequence[str] | None = None) -> None:
        """Let the run wait for its next attempt. Raises LeaseLost.

        `events`: its attempt is over, and ended by these. None: there were no nodes to begin it on, and it
        keeps its number.
        """
        run, table = schema.run, schema.attempt
        with self._begin() as db:
            if events is not None:
                ended = select(
                    run.c.id,
                    run.c.attempt,
                    run.c.plan,
                    literal(" ".join(events)),
                    literal(waiting.message, schema.Plain),
                    run.c.started_at,
                    clock(),
                ).where(*_holds(lease))
                columns = ["run_id", "attempt", "plan", "events", "message", "started_at", "finished_at"]
                db.execute(insert(table).from_select(columns, ended))
            changed = db.execute(update(run).where(*_holds(lease)).values(**_waiting_values(waiting)))
            if changed.rowcount == 0:
                raise _lease_lost()
            _add_event(db, lease.run_id, "pending", waiting.message)

    def begin_attempt(self, lease: Lease, attempt: int, plan: str, nodes: Sequence[str]) -> None:
        """Write the plan of a waiting run's next attempt, which may then be started. Raises LeaseLost."""
        table = schema.rank
        with self._begin() as db:
            changed = db.execute(
                update(schema.run)
                .where(*_holds(lease))
                .values(
                    plan=plan,
                    attempt=attempt,
                    status="submitted",
                    phase="submitted",
                    reason=None,
                    message=None,
                    master_port=None,
                    started_at=None,
                    next_at=None,
                )
            )
            if changed.rowcount == 0:
                raise _lease_lost()
            db.execute(delete(table).where(table.c.run_id == lease.run_id, table.c.attempt == attempt))
            _add_ranks(db, lease.run_id, attempt, nodes)
            _add_event(db, lease.run_id, "attempt", str(attempt))

    def line(self, fleet: str) -> Line:
        """The runs that wait for nodes of a fleet."""
        with self._reading() as db:
            return read_line(db, fleet, controlled=bool(controllers.living(db)))

    def beat(self, owner: str) -> None:
        """Write the heartbeat of a controller."""
        with self._begin() as db:
            controllers.beat(db, owner)

    def retire(self, owner: str) -> None:
        """A controller has ended. Does nothing if the ledger is unavailable."""
        with suppress(LedgerUnusable), self._begin() as db:
            controllers.retire(db, owner)

    def controllers(self) -> tuple[Controller, ...]:
        """The controllers that live."""
        with self._reading() as db:
            return controllers.living(db)

    def sample_is_due(self, number: int) -> bool:
        """Whether nobody has just kept a sample of what a run uses."""
        with self._reading() as db:
            return metric_samples.due(db, number)

    def add_sample(self, number: int, attempt: int, ranks: int, readings: str) -> None:
        """Keep a sample of what a run uses, unless somebody has just done so."""
        with self._begin() as db:
            metric_samples.add(db, number, attempt, ranks, readings)

    def samples(self, number: int, attempt: int, *, since: float = 0.0) -> tuple[Sample, ...]:
        """What was kept of an attempt since a moment, the oldest first."""
        with self._reading() as db:
            return metric_samples.read(db, number, attempt, since)

    def failed_nodes(self, number: int, *, lost_only: bool = False) -> dict[str, int]:
        """Node name -> how much speaks against it: 1 for every attempt of a run in which its rank failed by
        itself, LOST_WEIGHT where it did not answer, is taken back, or could run nothing. `lost_only`: the
        latter alone."""
        table = schema.rank
        lost = table.c.reason.in_(("instance_unreachable", "interrupted_by_no_capacity", "health_failure"))
        query = select(table.c.node, lost.label("lost")).where(
            table.c.run_id == number,
            table.c.status == "failed",
            lost if lost_only else table.c.reason != "failed_to_start_due_to_no_capacity",
        )
        weights: dict[str, int] = {}
        with self._reading() as db:
            for row in db.execute(query):
                weights[row.node] = weights.get(row.node, 0) + (LOST_WEIGHT if row.lost else 1)
        return weights

    def change_rank(self, lease: Lease, attempt: int, rank: int, **values: object) -> None:
        """Change one rank. Raises LeaseLost."""
        table = schema.rank
        with self._begin() as db:
            # The run's row is locked until the rank is written: who takes the lease meanwhile waits for that.
            held = db.execute(select(schema.run.c.id).where(*_holds(lease)).with_for_update(read=True))
            if held.first() is None:
                raise _lease_lost()
            db.execute(
                update(table)
                .where(table.c.run_id == lease.run_id, table.c.attempt == attempt, table.c.rank == rank)
                .values(**values)
            )

    def set_desired(self, number: int, desired: Desired) -> None:
        """Set what a run should do; its driver reads it at its next step. `abort` is final."""
        table = schema.run
        with self._begin() as db:
            db.execute(
                update(table)
                .where(table.c.id == number, table.c.status.in_(ACTIVE), table.c.desired != "abort")
                .values(desired=desired)
            )
            _add_event(db, number, "desired", f"{desired} by {here()}")

    def tell(self, number: int, kind: str, text: str) -> None:
        """Add to what is known about a run, unless that was the last of its kind that was told."""
        table = schema.event
        last = (
            select(table.c.text)
            .where(table.c.run_id == number, table.c.kind == kind)
            .order_by(table.c.id.desc())
            .limit(1)
        )
        with self._begin() as db:
            if db.scalar(last) != text:
                _add_event(db, number, kind, text)

    def events(self, number: int) -> tuple[tuple[float, str, str], ...]:
        """Time, kind and text of everything that was written about a run."""
        table = schema.event
        with self._reading() as db:
            rows = db.execute(
                select(table.c.at, table.c.kind, table.c.text)
                .where(table.c.run_id == number)
                .order_by(table.c.id)
            ).all()
        return tuple((row.at, row.kind, row.text) for row in rows)

    def _fenced(
        self, lease: Lease, values: Mapping[str, object], kind: str | None = None, text: str = ""
    ) -> None:
        with self._begin() as db:
            changed = db.execute(update(schema.run).where(*_holds(lease)).values(**values))
            if changed.rowcount == 0:
                raise _lease_lost()
            if kind is not None:
                _add_event(db, lease.run_id, kind, text)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A read-only transaction, which never waits for a lock."""
        with self._begin(self._reader) as db:
            yield db

    @contextmanager
    def _begin(self, engine: Engine | None = None) -> Iterator[Connection]:
        try:
            with (engine or self._engine).begin() as db:
                yield db
        except (OperationalError, InterfaceError, InternalError, sqlite3.OperationalError) as error:
            raise unusable(self._url, error) from error


def _taken(name: str) -> NameTaken:
    return NameTaken(
        f"a run named {name} is active",
        hint=f"`orch attach {name}` follows it, `orch stop {name}` ends it; or use `--name`",
        name=name,
    )


def _read(db: Connection, number: int) -> RunRow:
    return _read_all(db, [number])[0]


def _read_all(db: Connection, numbers: Sequence[int]) -> tuple[RunRow, ...]:
    return tuple(row for part in _parts(numbers) for row in _read_part(db, part))


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """As many at a time as one statement takes."""
    for start in range(0, len(numbers), READ_AT_ONCE):
        yield numbers[start : start + READ_AT_ONCE]


def _read_part(db: Connection, numbers: Sequence[int]) -> Iterator[RunRow]:
    run, rank, attempt = schema.run, schema.rank, schema.attempt
    rows = {row.id: row for row in db.execute(select(run, clock().label("now")).where(run.c.id.in_(numbers)))}
    ranks: dict[tuple[int, int], list[RankRow]] = {}
    for each in db.execute(
        select(rank).where(rank.c.run_id.in_(numbers)).order_by(rank.c.run_id, rank.c.attempt, rank.c.rank)
    ):
        ranks.setdefault((each.run_id, each.attempt), []).append(
            RankRow(
                each.rank,
                each.node,
                each.status,
                each.exit_code,
                each.reason,
                each.message,
                each.silent_since,
                bool(each.collected),
                each.notice,
            )
        )
    ended: dict[int, list[AttemptRow]] = {}
    repeated = [row.id for row in rows.values() if row.attempt or row.retry_tries]
    if repeated:
        for each in db.execute(
            select(attempt)
            .where(attempt.c.run_id.in_(repeated))
            .order_by(attempt.c.run_id, attempt.c.attempt)
        ):
            ended.setdefault(each.run_id, []).append(
                AttemptRow(
                    each.attempt,
                    each.plan,
                    tuple(each.events.split()),
                    each.message,
                    each.started_at,
                    each.finished_at,
                    tuple(ranks.get((each.run_id, each.attempt), ())),
                )
            )
    for row in (rows[number] for number in numbers if number in rows):
        yield RunRow(
            **row._mapping,
            ranks=tuple(ranks.get((row.id, row.attempt), ())),
            attempts=tuple(ended.get(row.id, ())),
        )


def _waiting_values(waiting: Waiting) -> dict[str, Any]:
    return {
        "status": "pending",
        "phase": "waiting",
        "reason": None,
        "message": waiting.message,
        "next_at": clock() + waiting.delay_s,
        "retry_since": waiting.since,
        "retry_tries": waiting.tries,
        **({"queued_at": func.coalesce(schema.run.c.queued_at, clock())} if waiting.for_nodes else {}),
        **({} if waiting.in_use is None else {"looked_at": clock(), "in_use": int(waiting.in_use)}),
    }


def _add_ranks(
    db: Connection, number: int, attempt: int, nodes: Sequence[str], *, collected: bool = False
) -> None:
    db.execute(
        insert(schema.rank),
        [
            {
                "run_id": number,
                "attempt": attempt,
                "rank": rank,
                "node": node,
                "status": "submitted",
                "collected": int(collected),
            }
            for rank, node in enumerate(nodes)
        ],
    )


def _holds(lease: Lease) -> tuple[Any, ...]:
    table = schema.run
    return table.c.id == lease.run_id, table.c.owner == lease.owner, table.c.fence == lease.fence


def _add_event(db: Connection, number: int, kind: str, text: str) -> None:
    db.execute(insert(schema.event).values(run_id=number, at=clock(), kind=kind, text=text))


def _lease_lost() -> LeaseLost:
    return LeaseLost("another process took this run over", hint="`orch attach RUN` follows it")
