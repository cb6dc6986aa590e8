"""`orch ps`: the runs of a project, as `squeue` shows jobs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli import completion
from orch.cli.driver.background import LOG, begins_elsewhere, why_undriven
from orch.cli.driver.opening import open_runner
from orch.cli.errors import UsageError, coloured, print_json, say, tell
from orch.cli.options import Json, Rehearse

if TYPE_CHECKING:
    from orch.runner.ledger.controllers import Controller
    from orch.runner.ledger.records import RunRow
    from orch.runner.ledger.waiting_line import Line
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.runner.runs.outputs import OutputsLeft
    from orch.stacks.project.project import Project

WATCH_S = 2.0
"""Seconds between two looks of `--watch`."""


class Output(str, Enum):
    """Form in which runs are shown."""

    WIDE = "wide"
    JSON = "json"


def ps(
    *,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Ended runs too.")] = False,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", "-t", metavar="STATUS", help="Only runs of this status; repeatable."),
    ] = None,
    fleet: Annotated[
        list[str] | None,
        typer.Option(
            "--fleet", help="Only runs on this fleet; repeatable.", autocompletion=completion.fleets
        ),
    ] = None,
    owner: Annotated[
        list[str] | None,
        typer.Option(
            "--owner", "-u", metavar="OWNER", help="Only what ada, or ada@box, submitted; repeatable."
        ),
    ] = None,
    output: Annotated[
        Output | None,
        typer.Option(
            "--output", "-o", help="wide: with limits, priority, costs and why a run waits; json: as --json."
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing them until Ctrl-C.")] = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Show the active runs of this project; the latest one when none is active."""
    as_json = as_json or output is Output.JSON
    if watch and (as_json or not sys.stdout.isatty()):
        raise UsageError(
            "`--watch` needs a terminal", hint="`orch ps --json` tells the runs as they are when it is called"
        )
    wanted = Wanted(everything, _statuses(status or ()), tuple(fleet or ()), tuple(owner or ()))
    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        if watch:
            _watch(runner, wanted, wide=output is Output.WIDE)
        shown = _look(runner, wanted)
        if not shown.rows:
            _check_fleets(project, runner, wanted.fleets)
        undriven = [
            (row, why_undriven(runner, row), begins_elsewhere(runner, row))
            for row in shown.rows
            if row.active and not row.held
        ]
    _tell_undriven(undriven, shown.controllers, " --rehearse" if project.rehearsal else "")
    if as_json:
        _print_json(shown)
        return
    if shown.rows:
        say(_table(shown, wide=output is Output.WIDE))
    elif wanted.narrowed:
        tell("no such run" + ("" if wanted.ended else " is active; `--all` shows those that ended too"))
    else:
        tell("nothing was run in this project yet" + _in_rehearsal(project))
    for each in _notes(shown):
        tell(each)


def _in_rehearsal(project: Project) -> str:
    """Return a hint at runs that were started with `--rehearse`, if there are any."""
    if project.rehearsal or not (project.rehearsal_folder / "ledger.db").is_file():
        return ""
    return "; `orch ps --rehearse` shows runs of the rehearsal"


@dataclass(frozen=True)
class Wanted:
    """Selection of the runs to show."""

    everything: bool
    statuses: tuple[str, ...]
    fleets: tuple[str, ...]
    owners: tuple[str, ...]

    @property
    def narrowed(self) -> bool:
        return bool(self.statuses or self.fleets or self.owners)

    @property
    def ended(self) -> bool:
        """Report whether the selection includes runs that have ended."""
        from orch.runner.ledger.records import ACTIVE

        return self.everything or any(each not in ACTIVE for each in self.statuses)


@dataclass(frozen=True)
class Shown:
    """Runs, the lines of the fleets that they wait for, and who goes on with them. `uncollected`: ended runs
    that have left something on nodes; `left_out`: how many earlier ones are not among the runs."""

    rows: tuple[RunRow, ...]
    lines: dict[str, Line]
    controllers: tuple[Controller, ...]
    uncollected: tuple[tuple[RunRow, OutputsLeft], ...]
    left_out: int


def _statuses(words: Sequence[str]) -> tuple[str, ...]:
    from orch.runner.ledger.records import ACTIVE

    known = (*ACTIVE, "done", "failed", "terminated")
    for word in words:
        if word not in known:
            raise typer.BadParameter(f"{word!r} is none of {', '.join(known)}", param_hint="--status")
    return tuple(words)


def _check_fleets(project: Project, runner: RunnerContext, names: Sequence[str]) -> None:
    """Raises NoSuchFleet for a name that is no fleet's: none that is up, and none that had a run."""
    from orch.stacks.record.fleets import fleet_state

    had_runs = {row.fleet for row in runner.ledger.runs()} if names else set[str]()
    for name in names:
        if name not in had_runs:
            fleet_state(project, name)


def _look(runner: RunnerContext, wanted: Wanted) -> Shown:
    from orch.runner.runs.lifecycle import reconcile_once
    from orch.runner.runs.outputs import outputs_left

    reconcile_once(runner)
    listed = runner.ledger.listed(
        ended=wanted.ended, statuses=wanted.statuses, fleets=wanted.fleets, owners=wanted.owners
    )
    rows = listed.rows
    if not wanted.narrowed:
        rows = rows or runner.ledger.runs(limit=1)
    lines = {fleet: runner.ledger.line(fleet) for fleet in {row.fleet for row in rows if row.in_line}}
    left = tuple((row, outputs_left(runner.ledger, row)) for row in runner.ledger.uncollected())
    return Shown(rows, lines, tuple(runner.ledger.controllers()), left, listed.left_out)


def _watch(runner: RunnerContext, wanted: Wanted, *, wide: bool) -> None:
    """Show them until an interrupt."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from orch.runner.errors import LedgerUnusable
    from orch.runner.ledger.patience import LedgerPatience
    from orch.spec.errors import visible

    trouble: list[str] = []
    patience = LedgerPatience(trouble.append)
    shown = _look(runner, wanted)
    with Live(console=Console(no_color=not coloured(sys.stdout)), auto_refresh=False) as live:
        while True:
            lines = [_table(shown, wide=wide)] if shown.rows else ["no run"]
            notes = (*_notes(shown), *(f"warning: {visible(text)}" for text in trouble))
            live.update(Text.from_ansi("\n".join((*lines, *notes))), refresh=True)
            time.sleep(WATCH_S)
            try:
                shown = _look(runner, wanted)
            except LedgerUnusable as error:
                patience.bear(error)
            else:
                patience.found()
                trouble.clear()


def _table(shown: Shown, *, wide: bool) -> str:
    from orch.cli.output.run import runs_table
    from orch.runner.runs.arrays.choose import fold_waiting

    return runs_table(fold_waiting(shown.rows), shown.lines, colour=coloured(sys.stdout), wide=wide)


def _notes(shown: Shown) -> list[str]:
    from orch.cli.output.run import controller_text, outputs_lines

    ended = sum(not row.active for row in shown.rows)
    cut = [f"the newest {ended:,} runs that ended are shown, {shown.left_out:,} earlier ones are left out"]
    outputs = [f"run {row.name}: {text}" for row, left in shown.uncollected for text in outputs_lines(left)]
    return [
        f"note: {text}"
        for text in (*cut[: shown.left_out], *outputs, *map(controller_text, shown.controllers))
    ]


def _print_json(shown: Shown) -> None:
    from orch.cli.output.run import SCHEMA, controllers_json, moment, run_json, time_limit_s

    left = {row.id: each for row, each in shown.uncollected}
    runs = [
        {
            **run_json(row, line=shown.lines.get(row.fleet), left=left.get(row.id)),
            "submitted_at": moment(row.created_at),
            "took_s": row.took_s,
            "time_limit_s": time_limit_s(row),
        }
        for row in shown.rows
    ]
    controllers = controllers_json(shown.controllers)
    print_json(
        {"schema": SCHEMA, "runs": runs, "left_out": shown.left_out, "controllers": controllers}, indent=None
    )


def _tell_undriven(
    undriven: Sequence[tuple[RunRow, str | None, bool]], controllers: Sequence[Controller], rehearse: str
) -> None:
    from orch.runner.plan.run_names import as_argument
    from orch.runner.processes import describe_owner

    told: set[str] = set()
    for row, reason, elsewhere in undriven:
        if controllers and not elsewhere:
            continue  # one of them goes on with it
        where = f", where {describe_owner(row.submitted_by)} submitted it" if elsewhere else ""
        name = row.name if row.array is None else row.array.name
        if name in told:
            continue
        told.add(name)
        attach = f"orch attach {as_argument(name)}{rehearse}"
        tell(f"note: nobody drives {'run' if row.array is None else 'array'} {name}; `{attach}` does{where}")
        if reason is not None:
            tell(f"  its driver ended: {reason} (more in {LOG} of its folder under .orch/runs)")
