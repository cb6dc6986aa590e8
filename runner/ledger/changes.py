"""Changes of a project: who changed what, from where, by which plan, with which result. The audit log.

A change with steps keeps a journal of them, by host, so that one that was killed is gone on with and does
nothing twice. What it holds, such as nodes, no other change takes while it is not ended. It has a lease, as
runs have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, insert, select, update

from orch.runner.errors import RunConflict
from orch.runner.ledger import schema
from orch.runner.ledger.lease import LEASE_S, LeaseLost
from orch.runner.ledger.records import Lease, lease_holds
from orch.runner.ledger.schema import clock
from orch.runner.processes import describe_owner, here, process_owner

Ended = Literal["done", "failed", "interrupted", "abandoned"]
StepStatus = Literal["running", "done", "failed", "undone", "skipped"]


@dataclass(frozen=True)
class Undertaking:
    """A change that is about to begin.

    `verb`: the words of the command without its options. `subject`: what it changes, in words that the same
    command has each time (`fleet lab`, `nodes lab-0, lab-1`). `command`: the whole command, as it may be
    shown. `origin`: where it came from, such as a folder and a commit. `plan`: JSON. `holds`: names that no
    other change may hold at once, such as `lab/lab-0`.
    """

    project: str
    scope: str
    verb: str
    subject: str
    command: str = ""
    origin: str = ""
    plan: str = "{}"
    holds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """A step of a change, on a host or on none (""). Times are seconds since the epoch."""

    host: str
    name: str
    status: StepStatus
    message: str | None
    began_at: float
    ended_at: float | None


@dataclass(frozen=True)
class Change:
    """A change as the ledger has it. `status`: running, or how it ended; `by`: `ada@laptop`.

    Times are seconds since the epoch. `calls`: how often it was begun or gone on with.
    """

    id: int
    project: str
    scope: str
    verb: str
    subject: str
    command: str
    origin: str
    plan: str
    holds: tuple[str, ...]
    by: str
    status: Literal["running", "done", "failed", "interrupted", "abandoned"]
    result: str | None
    exit_code: int | None
    owner: str | None
    lease_until: float | None
    fence: int
    calls: int
    began_at: float
    ended_at: float | None
    now: float

    @property
    def held(self) -> bool:
        """Whether a living process is at work on it."""
        return self.status == "running" and lease_holds(self.owner, self.lease_until, self.now)

    @property
    def shown_status(self) -> str:
        """Its status, where one that says `running` is `interrupted` when nobody is at work on it."""
        return "interrupted" if self.status == "running" and not self.held else self.status

    def same_as(self, new: Undertaking) -> bool:
        return (self.scope, self.verb, self.subject) == (new.scope, new.verb, new.subject)


@dataclass(frozen=True)
class Begun:
    """A change that this process is at work on. `resumed`: it was begun before, and interrupted."""

    change: Change
    lease: Lease
    resumed: bool


class Changes:
    """The changes of a ledger. Thread-safe."""

    def __init__(
        self,
        begin: Callable[[], AbstractContextManager[Connection]],
        reading: Callable[[], AbstractContextManager[Connection]],
    ) -> None:
        self._begin = begin
        self._reading = reading

    def begin(self, new: Undertaking, *, resume: bool = True) -> Begun:
        """Write a change that begins now. Where it holds something, and the same change was interrupted, that
        one is gone on with, by its own plan.

        `resume`: False gives up an interrupted one of the same verb and subject and begins anew. Raises
        ChangeUnderWay when another one holds what it holds.
        """
        owner = process_owner()
        with self._begin() as db:
            db.execute(select(schema.meta.c.value).where(schema.meta.c.key == "schema").with_for_update())
            for other in self._unfinished(db, new.project, new.scope) if new.holds else ():
                if not set(other.holds) & set(new.holds):
                    continue
                if other.held:
                    raise under_way(other)
                if not other.same_as(new):
                    raise interrupted(other)
                if resume:
                    return self._resumed(db, other, owner)
                values = {"status": "abandoned", "ended_at": clock(), "owner": None, "lease_until": None}
                db.execute(update(_table).where(_table.c.id == other.id).values(**values))
            values = {
                **{name: getattr(new, name) for name in ("project", "scope", "verb", "subject")},
                **{"command": new.command, "origin": new.origin, "plan": new.plan},
                "holds": json.dumps(list(new.holds)),
                "started_by": here(),
                "status": "running",
                "owner": owner,
                "lease_until": clock() + LEASE_S,
                "fence": 1,
                "calls": 1,
                "began_at": clock(),
            }
            number = db.execute(insert(_table).values(**values).returning(_table.c.id)).scalar_one()
            change = self._one(db, number)
        return Begun(change, Lease(number, owner, change.fence), resumed=False)

    def resume(self, number: int) -> Begun:
        """Go on with a change that was interrupted or failed. Raises ChangeUnderWay."""
        with self._begin() as db:
            change = self._one(db, number, lock=True)
            if change.held:
                raise under_way(change)
            for other in self._unfinished(db, change.project, change.scope):
                if other.id != number and set(other.holds) & set(change.holds):
                    raise under_way(other) if other.held else interrupted(other)
            return self._resumed(db, change, process_owner())

    def _resumed(self, db: Connection, change: Change, owner: str) -> Begun:
        values: dict[str, Any] = {
            "status": "running",
            "owner": owner,
            "lease_until": clock() + LEASE_S,
            "fence": change.fence + 1,
            "calls": change.calls + 1,
            "ended_at": None,
            "result": None,
            "exit_code": None,
        }
        if change.by != here():
            values["started_by"] = f"{change.by.partition(',')[0]}, then {here()}"
        db.execute(update(_table).where(_table.c.id == change.id).values(**values))
        return Begun(self._one(db, change.id), Lease(change.id, owner, change.fence + 1), resumed=True)

    def set_plan(self, lease: Lease, plan: str) -> None:
        """Raises LeaseLost."""
        self._fenced(lease, plan=plan)

    def end(self, lease: Lease, status: Ended, result: str, exit_code: int | None = None) -> None:
        """`interrupted`: it can be gone on with. Raises LeaseLost."""
        running = status == "interrupted"
        self._fenced(
            lease,
            status="running" if running else status,
            result=result,
            exit_code=exit_code,
            ended_at=None if running else clock(),
            owner=None,
            lease_until=None,
        )

    def renew(self, lease: Lease) -> None:
        """Raises LeaseLost."""
        self._fenced(lease, lease_until=clock() + LEASE_S)

    def abandon(self, number: int) -> Change:
        """Give up a change that was interrupted; what it held is free. Raises ChangeUnderWay while somebody
        is at work on it."""
        with self._begin() as db:
            change = self._one(db, number, lock=True)
            if change.held:
                raise under_way(change)
            if change.status == "running":
                values = {"status": "abandoned", "result": f"given up by {here()}", "ended_at": clock()}
                db.execute(
                    update(_table)
                    .where(_table.c.id == number)
                    .values(**values, owner=None, lease_until=None, fence=change.fence + 1)
                )
            return self._one(db, number)

    # Steps

    def begin_step(self, lease: Lease, host: str, name: str) -> bool:
        """Write that a step begins, before it is done; False where it is done already. Raises LeaseLost."""
        with self._begin() as db:
            self._holds(db, lease)
            at = _of_step(lease.run_id, host, name)
            row = db.execute(select(_steps.c.status).where(*at).with_for_update()).one_or_none()
            if row is not None and row.status == "done":
                return False
            values = {"status": "running", "message": None, "began_at": clock(), "ended_at": None}
            if row is not None:
                db.execute(update(_steps).where(*at).values(**values))
            else:
                db.execute(insert(_steps).values(change_id=lease.run_id, host=host, name=name, **values))
        return True

    def end_step(
        self, lease: Lease, host: str, name: str, status: StepStatus, message: str | None = None
    ) -> None:
        """Raises LeaseLost."""
        with self._begin() as db:
            self._holds(db, lease)
            values = {"status": status, "message": message, "ended_at": clock()}
            db.execute(update(_steps).where(*_of_step(lease.run_id, host, name)).values(**values))

    def note_step(self, lease: Lease, host: str, name: str, message: str) -> None:
        """Write what is known of a step that runs, such as its process. Raises LeaseLost."""
        with self._begin() as db:
            self._holds(db, lease)
            db.execute(update(_steps).where(*_of_step(lease.run_id, host, name)).values(message=message))

    def steps(self, number: int) -> tuple[Step, ...]:
        """The journal of a change, in the order in which its steps first began."""
        with self._reading() as db:
            rows = db.execute(select(_steps).where(_steps.c.change_id == number).order_by(_steps.c.id))
            return tuple(
                Step(row.host, row.name, row.status, row.message, row.began_at, row.ended_at) for row in rows
            )

    # Reading

    def get(self, number: int) -> Change | None:
        with self._reading() as db:
            row = db.execute(_selected().where(_table.c.id == number)).one_or_none()
            return None if row is None else _change(row)

    def listed(
        self,
        project: str,
        *,
        verbs: Collection[str] = (),
        since: float | None = None,
        unfinished: bool = False,
        limit: int | None = None,
    ) -> tuple[Change, ...]:
        """The changes of a project, the newest first. `verbs`: of these, or of their groups."""
        query = _selected().where(_table.c.project == project)
        if since is not None:
            query = query.where(_table.c.began_at >= since)
        if unfinished:
            query = query.where(_table.c.status == "running")
        if limit is not None and not verbs:
            query = query.limit(limit)
        with self._reading() as db:
            found = [_change(row) for row in db.execute(query.order_by(_table.c.id.desc()))]
        if verbs:
            found = [each for each in found if any(f"{each.verb} ".startswith(f"{word} ") for word in verbs)]
        return tuple(found[:limit])

    def _unfinished(self, db: Connection, project: str, scope: str) -> Sequence[Change]:
        query = _selected().where(
            _table.c.project == project, _table.c.scope == scope, _table.c.status == "running"
        )
        return [_change(row) for row in db.execute(query.order_by(_table.c.id))]

    def _one(self, db: Connection, number: int, *, lock: bool = False) -> Change:
        query = _selected().where(_table.c.id == number)
        return _change(db.execute(query.with_for_update() if lock else query).one())

    def _fenced(self, lease: Lease, **values: object) -> None:
        with self._begin() as db:
            if db.execute(update(_table).where(*_held_by(lease)).values(**values)).rowcount == 0:
                raise _lost(lease)

    def _holds(self, db: Connection, lease: Lease) -> None:
        """Raises LeaseLost; until the transaction ends nobody else takes the change."""
        if db.execute(select(_table.c.id).where(*_held_by(lease)).with_for_update()).one_or_none() is None:
            raise _lost(lease)


class ChangeUnderWay(RunConflict):
    """Another change holds what this one needs (ORCH389)."""


def under_way(other: Change) -> ChangeUnderWay:
    """The error for what a living process is at work on."""
    return ChangeUnderWay(
        f"`orch {other.verb}` of {other.subject} is under way",
        detail=f"change {other.id}, begun by {other.by} ({describe_owner(other.owner or '')})",
        hint=f"wait until it ends; `orch log {other.id}` shows how far it is",
        code="ORCH389",
    )


def interrupted(other: Change) -> ChangeUnderWay:
    """The error for what an interrupted change of another kind holds."""
    return ChangeUnderWay(
        f"`orch {other.verb}` of {other.subject} was interrupted and is not ended",
        detail=f"change {other.id}, begun by {other.by}",
        hint=f"`{other.command or f'orch {other.verb}'}` goes on with it, `orch log {other.id} --abandon` "
        "gives it up",
        code="ORCH389",
    )


_table = schema.change
_steps = schema.change_step


def _selected() -> Any:
    return select(_table, clock().label("now"))


def _change(row: Any) -> Change:
    values = dict(row._mapping)
    values["by"] = values.pop("started_by")
    return Change(**{**values, "holds": tuple(json.loads(row.holds))})


def _held_by(lease: Lease) -> tuple[Any, ...]:
    return (
        _table.c.id == lease.run_id,
        _table.c.owner == lease.owner,
        _table.c.fence == lease.fence,
        _table.c.status == "running",
    )


def _of_step(number: int, host: str, name: str) -> tuple[Any, ...]:
    return (_steps.c.change_id == number, _steps.c.host == host, _steps.c.name == name)


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(
        f"another process goes on with change {lease.run_id}",
        hint=f"`orch log {lease.run_id}` shows how far it is",
        code="ORCH389",
    )
