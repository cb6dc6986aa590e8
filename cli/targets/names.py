"""Resolves a name that is a fleet's or a run's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orch.cli.errors import UsageError

if TYPE_CHECKING:
    from orch.runner.ledger.records import RunRow
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.spec.state import FleetState
    from orch.stacks.errors import NoSuchFleet
    from orch.stacks.project.project import Project

_KINDS = ("run", "fleet")


def kind_of(name: str) -> tuple[str, str]:
    """`run` or `fleet` where a name says which it is of, else ""; and the name itself."""
    kind, colon, rest = name.partition(":")
    return (kind, rest) if colon and kind in _KINDS else ("", name)


def fleet_or_run(project: Project, runner: RunnerContext, name: str, *, verb: str) -> FleetState | RunRow:
    """Return the fleet or the run of a name; `run:NAME` and `fleet:NAME` say which.

    A fleet comes before a run that has ended. Raises UsageError if it is both, NoSuchFleet, UnknownRun.
    """
    from orch.runner.errors import UnknownRun
    from orch.stacks.errors import NoSuchFleet
    from orch.stacks.record.fleets import fleet_state

    kind, rest = kind_of(name)
    if kind:
        return fleet_state(project, rest) if kind == "fleet" else runner.ledger.get(rest)
    unknown: UnknownRun | None = None
    try:
        row = runner.ledger.get(name)
    except UnknownRun as error:
        row, unknown = None, error
    try:
        fleet = fleet_state(project, name)
    except NoSuchFleet as error:
        if unknown is not None and runner.ledger.arrays.find(name) is not None:
            raise unknown from error  # which says that it is an array
        if row is None:
            raise no_such_name(project, runner, name) from error
        return row
    if row is not None and row.active:
        raise UsageError(
            f"{name} is a fleet, and an active run",
            hint=f"`orch {verb} run:{name}` or `orch {verb} fleet:{name}`",
        )
    return fleet


def no_such_name(project: Project, runner: RunnerContext, name: str) -> NoSuchFleet:
    from orch.spec.grammar.values import shown
    from orch.stacks.errors import NoSuchFleet
    from orch.stacks.record.fleets import known_fleets

    runs = dict.fromkeys(row.name for row in runner.ledger.runs(limit=5))
    return NoSuchFleet(
        f"neither a fleet nor a run of this project is named {shown(name)}",
        where=str(project.root),
        detail=f"fleets: {', '.join(known_fleets(project)) or 'none is up'}; "
        f"latest runs: {', '.join(runs) or 'none'}",
        hint="`orch fleet` and `orch ps -a` list them",
        code="ORCH353",
    )
