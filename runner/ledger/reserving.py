"""Names and numbers of runs that are about to be written: a run's, or those of all members of an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, or_, select

from orch.runner.errors import NameTaken
from orch.runner.ledger import schema
from orch.runner.ledger.database import one_at_a_time
from orch.runner.ledger.lease import LEASE_S
from orch.runner.ledger.records import ACTIVE, RESERVED, lease_holds
from orch.runner.ledger.schema import clock
from orch.runner.processes import describe_owner, here


def check_name(db: Connection, name: str) -> None:
    """Raises NameTaken when a run or an array of that name is active."""
    table = schema.run
    active = select(table.c.array_name).where(_called(name), table.c.status.in_(ACTIVE)).limit(1)
    found = db.execute(active).first()
    if found is not None:
        raise _taken(name, found.array_name)


def reserve(
    db: Connection, name: str, owner: str, fleet: str, members: Sequence[Mapping[str, Any]]
) -> tuple[int, ...]:
    """Reserve a name, and a number for each row that is to be written: of `members` their own columns.

    Raises NameTaken where a run or an array of that name is active, or is being submitted by a living
    process. What a dead one has reserved goes.
    """
    table = schema.run
    one_at_a_time(db)
    rows = db.execute(
        select(
            table.c.id,
            table.c.status,
            table.c.owner,
            table.c.lease_until,
            table.c.array_name,
            clock().label("now"),
        ).where(_called(name), table.c.status.in_((*ACTIVE, RESERVED)))
    ).all()
    abandoned = {
        row.id
        for row in rows
        if row.status == RESERVED and not lease_holds(row.owner, row.lease_until, row.now)
    }
    for row in rows:
        if row.status != RESERVED:
            raise _taken(name, row.array_name)
        if row.id not in abandoned:
            raise NameTaken(
                f"{_kind(row.array_name)} named {name} is being submitted",
                detail=f"by {describe_owner(row.owner)}",
                hint="wait for it, or use `--name`",
                name=name,
            )
    values = {
        "name": name,
        "fleet": fleet,
        "plan": "",
        "status": RESERVED,
        "desired": "run",
        "phase": "submitted",
        "attempt": 0,
        "submitted_by": here(),
        "owner": owner,
        "fence": 1,
    }
    times = {"lease_until": clock() + LEASE_S, "created_at": clock()}
    numbers = db.scalars(
        insert(table).values(times).returning(table.c.id, sort_by_parameter_order=True),
        [{**values, **each} for each in members],
    ).all()
    # After the new ones are there, so that a number is never given twice.
    for number in abandoned:
        db.execute(delete(table).where(table.c.id == number))
    return tuple(numbers)


def _called(name: str) -> Any:
    return or_(schema.run.c.name == name, schema.run.c.array_name == name)


def _kind(array_name: str | None) -> str:
    return "a run" if array_name is None else "an array"


def _taken(name: str, array_name: str | None) -> NameTaken:
    return NameTaken(
        f"{_kind(array_name)} named {name} is active",
        hint=f"`orch attach {name}` follows it, `orch stop {name}` ends it; or use `--name`",
        name=name,
    )
