"""Leases: who may act on a run, what its holder writes, and the renewal while the holder is busy.

A process that acts on a run takes a lease. Each lease increments the run's fence, and every later write names
owner and fence: a write that matches no row means that the lease is lost, and its holder stops.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, and_, delete, func, insert, literal, or_, select, update
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, ProgrammingError

from orch.runner.errors import ArrayFull, LedgerUnusable, RunConflict, RunnerError
from orch.runner.ledger import schema
from orch.runner.ledger.database import may_only_read, one_at_a_time, only_reading, unusable
from orch.runner.ledger.records import ACTIVE, ARRAY_LIMIT, Lease, Waiting
from orch.runner.ledger.schema import clock
from orch.runner.processes import is_dead_owner

LEASE_S = 60.0
RENEW_S = 15.0
MOST_RANKS = 500
"""Of one statement: SQLite bounds how many parameters it has."""


class LeaseLost(RunConflict):
    """Another process acts on this run now."""


class Renews(Protocol):
    """A ledger, as far as leases go."""

    def renew(self, lease: Lease) -> None: ...


class Renewal:
    """Renews a lease from a thread, while long acts block the driver."""

    def __init__(self, ledger: Renews, lease: Lease) -> None:
        self._ledger = ledger
        self._lease = lease
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orch-lease", daemon=True)
        self.lost = False

    def __enter__(self) -> Renewal:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stop.wait(RENEW_S):
            try:
                self._ledger.renew(self._lease)
            except LeaseLost:
                self.lost = True
                return
            except RunnerError:
                # A ledger that is busy or away for a moment; the next renewal, or the driver itself, will
                # tell.
                continue


class Leases:
    """The leases of a ledger's runs, and what their holders write. Thread-safe."""

    def __init__(self, engine: Engine, url: str) -> None:
        self._engine = engine
        self._reader = only_reading(engine)
        self._url = url

    def close(self) -> None:
        """Close all connections; needed before a fork."""
        self._engine.dispose()

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
            db.execute(update(table).where(*holds(lease)).values(owner=None, lease_until=None))

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
                ).where(*holds(lease))
                columns = ["run_id", "attempt", "plan", "events", "message", "started_at", "finished_at"]
                db.execute(insert(table).from_select(columns, ended))
            changed = db.execute(update(run).where(*holds(lease)).values(**waiting_values(waiting)))
            if changed.rowcount == 0:
                raise lease_lost()
            tell_once(db, lease.run_id, "pending", waiting.message)

    def begin_attempt(self, lease: Lease, attempt: int, plan: str, nodes: Sequence[str]) -> None:
        """Write the plan of a waiting run's next attempt, which may then be started. Raises LeaseLost, and
        ArrayFull where as many members of its array have nodes as may have at once: nothing is written then.
        """
        table = schema.rank
        with self._begin() as db:
            if db.scalar(select(schema.run.c.array_limit).where(schema.run.c.id == lease.run_id)) is not None:
                one_at_a_time(db)
                if is_full(db, lease.run_id):
                    raise ArrayFull(ARRAY_LIMIT)
            changed = db.execute(
                update(schema.run)
                .where(*holds(lease))
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
                raise lease_lost()
            db.execute(delete(table).where(table.c.run_id == lease.run_id, table.c.attempt == attempt))
            add_ranks(db, lease.run_id, attempt, nodes)
            add_event(db, lease.run_id, "attempt", str(attempt))

    def change_rank(self, lease: Lease, attempt: int, rank: int, **values: object) -> None:
        """Change one rank. Raises LeaseLost."""
        self.change_ranks(lease, attempt, {rank: values})

    def change_ranks(self, lease: Lease, attempt: int, changes: Mapping[int, Mapping[str, object]]) -> None:
        """Change ranks of an attempt in one transaction: a commit takes milliseconds, and a run may have
        thousands of ranks. `changes`: rank -> its new values. Raises LeaseLost."""
        table = schema.rank
        alike: dict[tuple[tuple[str, object], ...], list[int]] = {}
        for rank, values in changes.items():
            alike.setdefault(tuple(sorted(values.items())), []).append(rank)
        if not alike:
            return
        with self._begin() as db:
            # The run's row is locked until the ranks are written: who takes the lease meanwhile waits.
            held = db.execute(select(schema.run.c.id).where(*holds(lease)).with_for_update(read=True))
            if held.first() is None:
                raise lease_lost()
            of_attempt = (table.c.run_id == lease.run_id, table.c.attempt == attempt)
            for values, ranks in alike.items():
                for start in range(0, len(ranks), MOST_RANKS):
                    some = table.c.rank.in_(ranks[start : start + MOST_RANKS])
                    db.execute(update(table).where(*of_attempt, some).values(**dict(values)))

    def _fenced(
        self, lease: Lease, values: Mapping[str, object], kind: str | None = None, text: str = ""
    ) -> None:
        with self._begin() as db:
            # An event alone is written by who holds the lease, too.
            new = values or {"owner": schema.run.c.owner}
            changed = db.execute(update(schema.run).where(*holds(lease)).values(**new))
            if changed.rowcount == 0:
                raise lease_lost()
            if kind is not None:
                add_event(db, lease.run_id, kind, text)

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
        except ProgrammingError as error:
            if may_only_read(error):
                raise unusable(self._url, error) from error
            raise


def is_full(db: Connection, number: int) -> bool:
    """Whether as many other members of a run's array have nodes as may have at once."""
    run, other = schema.run, schema.run.alias()
    query = (
        select(run.c.array_limit, func.count(other.c.id))
        .join(
            other,
            and_(
                other.c.array_name == run.c.array_name,
                other.c.array_id == run.c.array_id,
                other.c.id != run.c.id,
                other.c.status.in_([each for each in ACTIVE if each != "pending"]),
            ),
            isouter=True,
        )
        .where(run.c.id == number, run.c.array_limit.is_not(None))
        .group_by(run.c.array_limit)
    )
    row = db.execute(query).first()
    return row is not None and row[1] >= row[0]


def waiting_values(waiting: Waiting) -> dict[str, Any]:
    """The columns of a run that waits."""
    looked_at = clock() if waiting.looked_at is None else waiting.looked_at
    return {
        "status": "pending",
        "phase": "waiting",
        "reason": None,
        "message": waiting.message,
        "next_at": clock() + waiting.delay_s,
        "retry_since": waiting.since,
        "retry_tries": waiting.tries,
        **({"queued_at": func.coalesce(schema.run.c.queued_at, clock())} if waiting.for_nodes else {}),
        **({"queued_at": None} if waiting.leaves_line else {}),
        **({} if waiting.in_use is None else {"looked_at": looked_at, "in_use": int(waiting.in_use)}),
    }


def add_ranks(
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


def holds(lease: Lease) -> tuple[Any, ...]:
    """The conditions under which a write of the lease's holder counts."""
    table = schema.run
    return table.c.id == lease.run_id, table.c.owner == lease.owner, table.c.fence == lease.fence


def add_event(db: Connection, number: int, kind: str, text: str) -> None:
    db.execute(insert(schema.event).values(run_id=number, at=clock(), kind=kind, text=text))


def tell_once(db: Connection, number: int, kind: str, text: str) -> None:
    """Add to what is known about a run, unless that was the last of its kind that was told."""
    table = schema.event
    last = (
        select(table.c.text)
        .where(table.c.run_id == number, table.c.kind == kind)
        .order_by(table.c.id.desc())
        .limit(1)
    )
    if db.scalar(last) != text:
        add_event(db, number, kind, text)


def lease_lost() -> LeaseLost:
    return LeaseLost("another process took this run over", hint="`orch attach RUN` follows it")
