"""The ledger of runs: new ones, their state, their line and their events. SQLite, or PostgreSQL by URL.

Who may act on a run is `lease.py`. No transaction stays open during SSH commands or while files are packed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, delete, exists, func, or_, select, update

from orch.runner.errors import LedgerUnusable, SeatsTaken, UnknownRun
from orch.runner.ledger import controllers, schema
from orch.runner.ledger.arrays import Arrays
from orch.runner.ledger.changes import Changes
from orch.runner.ledger.controllers import Controller
from orch.runner.ledger.database import one_at_a_time, open_engine
from orch.runner.ledger.history import metric_samples, node_health, node_lives
from orch.runner.ledger.history.metric_samples import Sample
from orch.runner.ledger.history.node_health import Examination, HealthPeriod
from orch.runner.ledger.history.node_lives import Look, NodeLife
from orch.runner.ledger.history.verifications import Verifications
from orch.runner.ledger.lease import (
    Leases,
    Renewal,
    add_event,
    add_ranks,
    holds,
    lease_lost,
    tell_once,
    waiting_values,
)
from orch.runner.ledger.records import (
    ACTIVE,
    RESERVED,
    AttemptRow,
    Desired,
    Lease,
    RankRow,
    RunRow,
    TimedPlan,
    Waiting,
)
from orch.runner.ledger.reserving import check_name, reserve
from orch.runner.ledger.schema import clock
from orch.runner.ledger.waiting_line import Line, read_line, read_release
from orch.runner.plan.run_names import as_argument
from orch.runner.processes import here, process_owner
from orch.spec.grammar.values import encodable, shown
from orch.spec.suggest import hint_for

T = TypeVar("T")

_ID = re.compile(r"[0-9]{1,9}")
# A member of an array by its number: `1001_7`, and several members, which are no run.
_MEMBER = re.compile(r"([0-9]{1,9})_([0-9]{1,12})")
_MEMBERS = re.compile(r"(.+)_\[.*\]", re.DOTALL)

# A node that was lost, or could run nothing, weighs as much as this many attempts that failed on it.
LOST_WEIGHT = 10
# SQLite took 999 values in one statement before version 3.32.
READ_AT_ONCE = 500
# How many ended runs a list has.
SHOWN = 1000


Taken = Callable[[tuple[RunRow, ...]], bool]
"""Whether these runs leave too little of the nodes that a new one was to have."""


def open_ledger(url: str) -> Ledger:
    """The ledger at a SQLAlchemy URL, created if missing. Raises LedgerUnusable or NewerLedger."""
    return Ledger(*open_engine(url))


@dataclass(frozen=True)
class Listed:
    """Runs, newest first, and how many that ended earlier are left out."""

    rows: tuple[RunRow, ...]
    left_out: int


class Ledger(Leases):
    """One database of runs. Thread-safe."""

    def create(
        self,
        name: str,
        fleet: str,
        nodes: Sequence[str],
        build: Callable[[int], str],
        waiting: Waiting | None = None,
        *,
        priority: int = 0,
        taken: Taken | None = None,
    ) -> RunRow:
        """Write a new run. `build` gets its number and returns its plan as JSON.

        `build` may take long: only the name and the number are reserved meanwhile, without a transaction.
        `waiting`: it is not started now, and `nodes` are only those that it might get. `taken`: asked in the
        transaction that writes a run which is started now, with the active runs that have one of its nodes.

        Raises NameTaken when a run of that name is active, or being submitted; SeatsTaken where `taken` says
        so, and nothing is written then.
        """
        lease = self._reserve(name, fleet)
        try:
            with Renewal(self, lease):
                plan = build(lease.run_id)
            values: dict[str, Any] = {"plan": plan, "priority": priority}
            return self._submit(lease, fleet, nodes, values, waiting=waiting, taken=taken)
        except BaseException:
            with suppress(LedgerUnusable), self._begin() as db:
                db.execute(delete(schema.run).where(*holds(lease), schema.run.c.status == RESERVED))
            raise

    def check_name(self, name: str) -> None:
        """Raises NameTaken when a run of that name is active: said before anything is made for another one.

        `create` looks again.
        """
        with self._reading() as db:
            check_name(db, name)

    def _reserve(self, name: str, fleet: str) -> Lease:
        """Reserve the name and a number for a run that is about to be written."""
        owner = process_owner()
        with self._begin() as db:
            (number,) = reserve(db, name, owner, fleet, [{}])
        return Lease(number, owner, 1)

    def _submit(
        self,
        lease: Lease,
        fleet: str,
        nodes: Sequence[str],
        values: dict[str, Any],
        *,
        waiting: Waiting | None,
        taken: Taken | None,
    ) -> RunRow:
        table = schema.run
        values |= {"status": "submitted"} if waiting is None else waiting_values(waiting)
        with self._begin() as db:
            if waiting is None and taken is not None:
                one_at_a_time(db)
                rows = _placed_on_nodes(db, fleet, nodes)
                if rows and taken(rows):
                    raise SeatsTaken(
                        f"run {rows[0].name} was given nodes of this run as it was submitted",
                        hint="submit it again; `--wait` has it wait in line",
                    )
            changed = db.execute(
                update(table)
                .where(*holds(lease), table.c.status == RESERVED)
                .values(
                    **values,
                    owner=None,
                    lease_until=None,
                    created_at=clock(),
                )
            )
            if changed.rowcount == 0:
                raise lease_lost()
            add_ranks(db, lease.run_id, 0, nodes, collected=waiting is not None)
            add_event(db, lease.run_id, "submitted", f"by {here()}")
            if waiting is not None:
                add_event(db, lease.run_id, "pending", waiting.message)
            return _read(db, lease.run_id)

    def get(self, name: str) -> RunRow:
        """The newest run of that name, or the run of that id. Raises UnknownRun."""
        newest = select(schema.run.c.id).where(schema.run.c.status != RESERVED)
        newest = newest.order_by(schema.run.c.id.desc()).limit(1)
        with self._reading() as db:
            number = db.scalar(newest.where(schema.run.c.name == encodable(name)))
            if number is None and _ID.fullmatch(name):  # no name of a run begins with a digit now
                number = db.scalar(newest.where(schema.run.c.id == int(name)))
            if number is None and (member := _MEMBER.fullmatch(name)):
                array, index = int(member[1]), int(member[2])
                of_array = (schema.run.c.array_id == array, schema.run.c.array_index == index)
                number = db.scalar(newest.where(*of_array))
            if number is None and (array_name := _array_of(db, name)) is not None:
                raise UnknownRun(
                    f"{array_name} is an array of runs, and one run is needed here",
                    detail=f"its runs are called {array_name}_INDEX",
                    hint=f"`orch show {array_name}` tells of them",
                )
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

    def by_ids(self, numbers: Sequence[int]) -> tuple[RunRow, ...]:
        """Runs by their numbers, in this order."""
        with self._reading() as db:
            return _read_all(db, numbers)

    def argument(self, number: int) -> str:
        """What stands for a run on a command line: its name, or its id where a newer run has that name."""
        run, newer = schema.run.c, schema.run.alias()
        has_newer = exists().where(newer.c.name == run.name, newer.c.id > run.id, newer.c.status != RESERVED)
        with self._reading() as db:
            name = db.scalar(select(run.name).where(run.id == number, ~has_newer))
        return str(number) if name is None else as_argument(name)

    def submitted(self, number: int) -> RunRow | None:
        """The run of a number; None where there is none, or it is only reserved."""
        with self._reading() as db:
            row = next(iter(_read_all(db, [number])), None)
        return None if row is None or row.status == RESERVED else row

    def runs(self, *, active_only: bool = False, limit: int = 1000) -> tuple[RunRow, ...]:
        """Runs, newest first: at most `limit` of all, or all that are active."""
        status = schema.run.c.status
        query = select(schema.run.c.id).order_by(schema.run.c.id.desc())
        query = (
            query.where(status.in_(ACTIVE)) if active_only else query.where(status != RESERVED).limit(limit)
        )
        with self._reading() as db:
            return _read_all(db, db.scalars(query).all())

    def listed(
        self,
        *,
        ended: bool,
        statuses: Collection[str] = (),
        fleets: Collection[str] = (),
        owners: Collection[str] = (),
        limit: int = SHOWN,
    ) -> Listed:
        """The active runs of these statuses, fleets and owners (all where there are none), newest first; with
        `ended` the newest `limit` that ended, too. An owner is `ada` or `ada@box`."""
        run = schema.run
        asked: list[ColumnElement[bool]] = [
            column.in_([encodable(each) for each in words])
            for column, words in ((run.c.status, statuses), (run.c.fleet, fleets))
            if words
        ]
        if owners:
            names = [encodable(each) for each in owners]
            users = [f"{name}@" for name in names if "@" not in name]
            asked.append(
                or_(
                    run.c.submitted_by.in_(names),
                    *(func.substr(run.c.submitted_by, 1, len(user)) == user for user in users),
                )
            )
        newest = select(run.c.id).order_by(run.c.id.desc())
        over = run.c.status.not_in((*ACTIVE, RESERVED))
        with self._reading() as db:
            numbers = list(db.scalars(newest.where(run.c.status.in_(ACTIVE), *asked)))
            left_out = 0
            if ended:
                found = list(db.scalars(newest.where(over, *asked).limit(limit + 1)))
                numbers += found[:limit]
                if len(found) > limit:
                    every = select(func.count()).select_from(run).where(over, *asked)
                    left_out = db.execute(every).scalar_one() - limit
            return Listed(_read_all(db, sorted(numbers, reverse=True)), left_out)

    def ended_counts(self) -> dict[tuple[str, str], int]:
        """How many runs have ended, by fleet and status."""
        run = schema.run.c
        query = (
            select(run.fleet, run.status, func.count())
            .where(run.status.not_in((*ACTIVE, RESERVED)))
            .group_by(run.fleet, run.status)
            .order_by(run.fleet, run.status)
        )
        with self._reading() as db:
            return {(fleet, status): count for fleet, status, count in db.execute(query)}

    def placed_on(self, fleet: str) -> tuple[RunRow, ...]:
        """The active runs that have nodes of a fleet, newest first: all but those that wait."""
        run = schema.run
        query = select(run.c.id).where(*_placed(fleet))
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

    def uncollected(self, fleet: str | None = None) -> tuple[RunRow, ...]:
        """Ended runs whose container is still on a node that did not answer: all of a fleet, else the newest
        20, newest first, and any 10 of the others. Nodes that never come back keep nobody from the older ones
        for ever."""
        query = select(schema.run.c.id).where(
            schema.run.c.status.not_in((*ACTIVE, RESERVED)),
            exists().where(schema.rank.c.run_id == schema.run.c.id, schema.rank.c.collected == 0),
        )
        with self._reading() as db:
            if fleet is not None:
                return _read_all(db, db.scalars(query.where(schema.run.c.fleet == fleet)).all())
            numbers = list(db.scalars(query.order_by(schema.run.c.id.desc()).limit(20)))
            if len(numbers) == 20:
                older = query.where(schema.run.c.id < numbers[-1])
                numbers += db.scalars(older.order_by(func.random()).limit(10))
            return _read_all(db, numbers)

    def line(self, fleet: str) -> Line:
        """The runs that wait for nodes of a fleet."""
        with self._reading() as db:
            return read_line(db, fleet, controlled=bool(controllers.living(db)))

    def released_at(self, fleet: str) -> float:
        """When a run last left nodes of a fleet; 0 for never."""
        with self._reading() as db:
            return read_release(db, fleet) or 0.0

    @property
    def arrays(self) -> Arrays:
        """The arrays of this ledger."""
        return Arrays(self._begin, self._reading)

    @property
    def changes(self) -> Changes:
        """The audit log of this ledger."""
        return Changes(self._begin, self._reading)

    def verifications(self, project: str, scope: str) -> Verifications:
        """What verifications of a project's fleets found. `scope`: which state of a project of this name."""
        return Verifications(self._begin, self._reading, project, scope)

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

    def record_nodes(self, project: str, scope: str, look: Look) -> None:
        """Bring the lives of a fleet's nodes to what somebody saw of it. `scope`: which state of a project of
        this name."""
        with self._begin() as db:
            node_lives.record(db, project, scope, look)

    def node_lives(
        self, project: str, *, since: float = 0.0, fleets: Collection[str] | None = None
    ) -> tuple[NodeLife, ...]:
        """The lives of a project's nodes that had not ended at a moment, oldest first."""
        with self._reading() as db:
            return node_lives.read(db, project, since, fleets)

    def record_health(self, project: str, scope: str, fleet: str, found: Sequence[Examination]) -> None:
        """Keep what examinations of nodes of a fleet came to just now. `scope` as in `record_nodes`."""
        with self._begin() as db:
            node_health.record(db, project, scope, fleet, found)

    def health(
        self, project: str, scope: str, fleets: Collection[str] | None = None, *, history: bool = False
    ) -> tuple[HealthPeriod, ...]:
        """The health of a project's nodes as last seen, by fleet and node; with `history` all that is kept,
        the oldest first."""
        with self._reading() as db:
            read = node_health.history if history else node_health.latest
            return read(db, project, scope, fleets)

    def compared_nodes(self, project: str, scope: str, look: Look) -> tuple[NodeLife, ...]:
        """All lives of a fleet's nodes, as they would be with this look. Writes nothing."""
        with self._reading() as db:
            rows = node_lives.rows_of(
                db, project, look.fleet, scope, [each.identity for each in look.present]
            )
            lives = {row.id: row for row in node_lives.read(db, project, 0.0, [look.fleet])}
            compared = node_lives.compare(rows, look, float(db.scalar(select(clock())) or 0.0))
        lives |= {row.id: row for row in (*compared.ended, *compared.seen)}
        return (*lives.values(), *compared.begun)

    def fleets_with_nodes(self, project: str, scope: str) -> frozenset[str]:
        """The fleets of which a node was there when it was last looked at."""
        with self._reading() as db:
            return node_lives.open_fleets(db, project, scope)

    def now(self) -> float:
        """The present, by the database's clock."""
        with self._reading() as db:
            return float(db.scalar(select(clock())) or 0.0)

    def timed_plans(
        self, since: float, until: float, fleets: Collection[str] | None = None
    ) -> Iterator[TimedPlan]:
        """The attempts whose commands ran between two moments, one after the other: there may be many."""
        run, attempt = schema.run, schema.attempt
        columns = (run.c.id, run.c.name, run.c.fleet, run.c.submitted_by)
        earlier = select(*columns, attempt.c.plan, attempt.c.started_at, attempt.c.finished_at).where(
            attempt.c.run_id == run.c.id, attempt.c.started_at < until, attempt.c.finished_at > since
        )
        # A run that waits for its next attempt still has the times of the last one, which is among those.
        over = exists().where(attempt.c.run_id == run.c.id, attempt.c.attempt == run.c.attempt)
        latest = select(*columns, run.c.plan, run.c.started_at, run.c.finished_at).where(
            run.c.started_at < until, or_(run.c.finished_at.is_(None), run.c.finished_at > since), ~over
        )
        with self._reading() as db:
            for attempts in (earlier, latest):
                query = attempts
                if fleets is not None:
                    query = attempts.where(run.c.fleet.in_(sorted(fleets)))
                # Plans are large: they come a few at a time.
                options = {"stream_results": True, "max_row_buffer": 50}
                for row in db.execute(query, execution_options=options):
                    yield TimedPlan(*row)

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

    def set_desired(self, number: int, desired: Desired) -> None:
        """Set what a run should do; its driver reads it at its next step. `abort` is final."""
        table = schema.run
        with self._begin() as db:
            db.execute(
                update(table)
                .where(table.c.id == number, table.c.status.in_(ACTIVE), table.c.desired != "abort")
                .values(desired=desired)
            )
            add_event(db, number, "desired", f"{desired} by {here()}")

    def tell(self, number: int, kind: str, text: str) -> None:
        """Add to what is known about a run, unless that was the last of its kind that was told."""
        with self._begin() as db:
            tell_once(db, number, kind, text)

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


def _placed_on_nodes(db: Connection, fleet: str, nodes: Sequence[str]) -> tuple[RunRow, ...]:
    """The active runs of a fleet that have one of these nodes, newest first."""
    run, rank = schema.run, schema.rank
    its_rank = (rank.c.run_id == run.c.id, rank.c.attempt == run.c.attempt)
    numbers: set[int] = set()
    for part in _parts(nodes):
        on_nodes = exists().where(*its_rank, rank.c.node.in_(part))
        numbers.update(db.scalars(select(run.c.id).where(*_placed(fleet), on_nodes)))
    return _read_all(db, sorted(numbers, reverse=True))


def _placed(fleet: str) -> tuple[ColumnElement[bool], ...]:
    """What makes a run one that has nodes of a fleet: it is active, and does not wait for them."""
    run = schema.run
    return run.c.fleet == fleet, run.c.status.in_(ACTIVE), run.c.status != "pending"


def _array_of(db: Connection, name: str) -> str | None:
    """The array that a name is of, or members of it."""
    members = _MEMBERS.fullmatch(name)
    query = select(schema.run.c.array_name).where(schema.run.c.status != RESERVED)
    return db.scalar(
        query.where(schema.run.c.array_name == encodable(members[1] if members else name)).limit(1)
    )


def _read(db: Connection, number: int) -> RunRow:
    return _read_all(db, [number])[0]


def _read_all(db: Connection, numbers: Sequence[int]) -> tuple[RunRow, ...]:
    return tuple(row for part in _parts(numbers) for row in _read_part(db, part))


def _parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many at a time as one statement takes."""
    for start in range(0, len(values), READ_AT_ONCE):
        yield values[start : start + READ_AT_ONCE]


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
