"""`orch show NAME`: everything about a fleet or a run, on one screen."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli import completion
from orch.cli.driver.opening import open_runner
from orch.cli.errors import coloured, print_json, say
from orch.cli.options import Json, Rehearse
from orch.cli.targets.names import kind_of, no_such_name
from orch.spec.errors import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orch.cli.output.fleet import FleetRow
    from orch.runner.ledger.records import RunRow
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.spec.state import FleetState
    from orch.stacks.project.project import Project

Pairs = list[tuple[str, str]]

TAIL = 5
"""Lines of a log that are shown: of the first rank that failed, else of rank 0."""


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Of a fleet or a run; run:NAME or fleet:NAME for one of them.",
            autocompletion=completion.fleets_and_runs,
        ),
    ],
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """All there is to know of a fleet or a run, on one screen."""
    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        from orch.cli.output.fleet import fleet_json
        from orch.cli.output.run import SCHEMA, run_json
        from orch.cli.runs.arrays.verbs import show as array_text
        from orch.cli.runs.arrays.words import array_json
        from orch.runner.runs.arrays.choose import choose
        from orch.runner.runs.lifecycle import reconcile_once
        from orch.runner.runs.outputs import outputs_left

        reconcile_once(runner)
        kind, name = kind_of(name)
        fleet = _fleet(project, runner, name) if kind != "run" else None
        array = choose(runner.ledger, name) if kind != "fleet" else None
        row = _run(runner, name) if kind != "fleet" and array is None else None
        if fleet is None and row is None and array is None:
            raise no_such_name(project, runner, name)
        on_fleet = [each for each in runner.ledger.runs(active_only=True) if fleet and each.fleet == name]
        if as_json:
            data: dict[str, Any] = {"schema": SCHEMA, "fleet": None, "run": None}
            if array is not None:
                data["array"] = array_json(runner, array.array, array.members)
            if fleet is not None:
                data["fleet"] = {**fleet_json(fleet), "runs": [each.name for each in on_fleet]}
            if row is not None:
                line = runner.ledger.line(row.fleet)
                data["run"] = {
                    **run_json(row, line=line, left=outputs_left(runner.ledger, row)),
                    **_plan_facts(row),
                }
                data["run"]["entry"] = _entry_json(runner, row)
            print_json(data)
            return
        if fleet is not None:
            say(_fleet_text(project, fleet, on_fleet))
        if fleet is not None and (row is not None or array is not None):
            say("")
        if array is not None:
            say(array_text(runner, array))
        if row is not None:
            say(_run_text(runner, row))


def _fleet(project: Project, runner: RunnerContext, name: str) -> FleetRow | None:
    from orch.cli.maintenance.checks import protected_words
    from orch.cli.output.fleet import FleetRow
    from orch.runner.node.status import node_statuses
    from orch.stacks.errors import NoSuchFleet
    from orch.stacks.record.fleets import fleet_of
    from orch.stacks.record.node_records import node_records
    from orch.stacks.stack.state import StackState

    stack = StackState(project, name)
    try:
        state = fleet_of(stack)
    except NoSuchFleet:
        return None
    statuses = node_statuses(state, runner.connector)
    protected = protected_words(project, runner, state)
    return FleetRow(state, statuses, node_records(stack.recorded), protected)


def _run(runner: RunnerContext, name: str) -> RunRow | None:
    from orch.runner.errors import UnknownRun

    try:
        return runner.ledger.get(name)
    except UnknownRun:
        return None


def _fleet_text(project: Project, fleet: FleetRow, runs: Sequence[RunRow]) -> str:
    from orch.cli.output.fleet import fleet_status, fleet_table
    from orch.runner.runs.arrays.choose import fold_waiting
    from orch.spec.state import hourly_price
    from orch.spec.suggest import counted

    state = fleet.state
    locations = dict.fromkeys(node.zone or node.region for node in state.nodes if node.zone or node.region)
    types = dict.fromkeys(node.instance_type for node in state.nodes if node.instance_type)
    prices = [hourly_price(state.backend, node.price_hourly) for node in state.nodes]
    hourly = sum(price or 0 for price in prices) + (state.beside_hourly or 0)
    unknown = f"; the price of {counted(prices.count(None), 'node')} is unknown" if None in prices else ""
    spares = f", {counted(state.spares.count, 'spare')}" if state.spares is not None else ""
    pairs: Pairs = [
        ("fleet", f"{state.name} ({fleet_status(fleet.statuses)})"),
        ("backend", state.backend + _simulated(state)),
        ("where", ", ".join(map(str, locations))),
        ("type", ", ".join(map(str, types))),
        ("nodes", f"{len(state.nodes)}{spares}"),
        ("placement", state.placement),
        ("interconnect", state.interconnect),
        ("image", state.image or ""),
        ("variables", ", ".join(state.env)),
        ("costs", f"${hourly:.2f} an hour{unknown}" if hourly or unknown else ""),
        ("runs", ", ".join(f"{row.name} ({row.status})" for row in fold_waiting(runs)) or "none"),
        ("state", project.state_url),
        ("protected", fleet.protected or ""),
    ]
    return "\n".join([*_lines(pairs), "", fleet_table([fleet], verbose=True, colour=coloured(sys.stdout))])


def _simulated(state: FleetState) -> str:
    """Return the simulated parts of a fleet: the cloud of a rehearsal; of local nodes their accelerators."""
    if not state.simulated:
        return ""
    return " (accelerators simulated)" if state.backend == "local" else " (simulated)"


def _run_text(runner: RunnerContext, row: RunRow) -> str:
    from orch.cli.output.run import (
        attempt_lines,
        dollars,
        duration,
        moment,
        outputs_lines,
        place_text,
        rank_lines,
        status_text,
    )
    from orch.runner.ledger.plans import cost_of, groups_and_tags, hourly_of
    from orch.runner.processes import describe_owner
    from orch.runner.runs.outputs import outputs_left

    left = outputs_left(runner.ledger, row)
    plan, (_, tags) = _plan_facts(row), groups_and_tags(row)
    waits = row.waits_for_array  # its status says so
    reason = None if waits else row.message or row.reason
    hourly, cost, when = hourly_of(row.plan), cost_of(row), "so far" if row.active else "while it ran"
    told = f"{dollars(hourly)} an hour, {dollars(cost)} {when}"
    pairs: Pairs = [
        ("run", f"{row.name} ({status_text(row)}{f': {reason}' if reason else ''})"),
        ("id", str(row.id)),
        ("fleet", row.fleet),
        ("submitted", f"{moment(row.created_at)} by {describe_owner(row.submitted_by)}"),
        ("attempt", str(row.attempt) if row.attempt else ""),
        ("priority", str(row.priority) if row.priority else ""),
        ("in line", place_text(row, runner.ledger.line(row.fleet)).strip(" ()") if row.in_line else ""),
        ("next attempt", "" if row.in_line or waits else moment(row.next_at) or ""),
        ("started", moment(row.started_at) or "not yet"),
        ("took", duration(row.took_s) if row.took_s is not None else ""),
        ("costs", "no price is known" if hourly is None and cost is None else told),
        (
            "driven by",
            describe_owner(row.owner) if row.held and row.owner else "nobody" if row.active else "",
        ),
        ("launcher", str(plan["launcher"])),
        ("image", str(plan["image"])),
        ("files", ", ".join(plan["files"])),
        ("tags", ", ".join(f"{key}={value}" for key, value in tags.items())),
        *_entry_pairs(runner, row),
        ("folder", str(runner.context(row).folder.path)),
    ]
    rank = row.first_failed.rank if row.first_failed else 0
    tail = [f"  | {visible(line)}" for line in _last_lines(runner, row, rank)]
    return "\n".join(
        [
            *_lines(pairs),
            *attempt_lines(row),
            *([] if row.status == "pending" else rank_lines(row)),
            *(f"  {text}" for text in (*outputs_lines(left), *left.left_out)),
            *([f"  the last lines of rank {rank}:"] if tail else []),
            *tail,
            f"  its log: orch logs {runner.ledger.argument(row.id)}"
            + (f" --rank {rank}" if row.first_failed else ""),
        ]
    )


def _last_lines(runner: RunnerContext, row: RunRow, rank: int) -> list[str]:
    """The last lines of a rank's log; none when its node does not answer and the log was not copied."""
    from orch.runner.errors import RunnerError
    from orch.runner.events import LogLine, Recorder
    from orch.runner.runs.read_logs import Selection, read_logs

    recorder = Recorder()
    with suppress(RunnerError):  # the plan of another version cannot be read
        read_logs(replace(runner, processor=recorder), row, Selection((rank,), tail=TAIL))
    return [event.text for event in recorder.events if isinstance(event, LogLine)]


def _entry_json(runner: RunnerContext, row: RunRow) -> dict[str, str | None] | None:
    """Return how a dev environment is entered from here."""
    from orch.runner.access.entry import opened_entry

    entry = opened_entry(runner.context(row).folder)
    return {"command": entry.command, "link": entry.link} if entry is not None else None


def _entry_pairs(runner: RunnerContext, row: RunRow) -> Pairs:
    entry = _entry_json(runner, row)
    return [("enter with", entry["command"] or ""), ("open", entry["link"] or "")] if entry else []


def _plan_facts(row: RunRow) -> dict[str, Any]:
    """Launcher, image and files of a run's plan; empty values for a plan of another version."""
    from orch.runner.errors import RunnerError
    from orch.runner.ledger.plans import plan_of

    try:
        plan = plan_of(row)
    except RunnerError:
        return {"launcher": None, "image": None, "files": []}
    return {
        "launcher": plan.launcher,
        "image": plan.image,
        "files": [f"{file.source} -> {file.target}" for file in plan.files],
    }


def _lines(pairs: Pairs) -> list[str]:
    width = max(len(key) for key, _ in pairs)
    return [f"{key:<{width}}  {value}" for key, value in pairs if value]
