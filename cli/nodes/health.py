"""`orch health`: how the nodes of fleets are, what was found and what helps; and how they were."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli import completion
from orch.cli.errors import end, print_json, say, tell
from orch.cli.maintenance.checks import protected_words
from orch.cli.options import Json, Rehearse
from orch.spec.errors import ExitCode, OrchError, visible
from orch.spec.suggest import few

if TYPE_CHECKING:
    from orch.runner.health.findings import HealthReport
    from orch.runner.health.gate import Examined
    from orch.runner.ledger.history.node_health import HealthPeriod
    from orch.stacks.health.watch import Watched

SCHEMA = 1

HELPS = {
    "reset": "orch node reset-gpu {}",
    "reboot": "orch node reboot {}",
    "replace": "orch node replace {}",
}
"""The verb that an action stands for."""


def health(
    fleet: Annotated[
        str | None,
        typer.Argument(
            metavar="[FLEET]", help="A fleet; all of them without.", autocompletion=completion.fleets
        ),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NODE", help="This node alone, also folded: gpu[1-4,7]; repeatable."),
    ] = None,
    *,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also NVIDIA's diagnostics (`dcgmi diag -r 2`): minutes, on idle nodes."),
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="What was found until now, from the ledger; asks no node.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also the checks that passed or were skipped.")
    ] = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Examine nodes now: GPUs, links, memory, disks, the kernel's log. A failure keeps new jobs off.

    What is found is written to the node, so that everybody's runs keep off it, and kept in the ledger. Exits
    with 7 when any node is a failure or could not be examined.
    """
    from orch.cli.driver.opening import open_runner
    from orch.cli.targets.nodes import nodes_named
    from orch.stacks.health.watch import watch
    from orch.stacks.project.project import ledger_scope
    from orch.stacks.record.fleets import fleet_of, known_fleets
    from orch.stacks.stack.state import StackState

    if history and deep:
        raise typer.BadParameter("it tells what was, `--deep` looks now", param_hint="--history")
    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        up = {fleet: StackState(project, fleet)} if fleet is not None else known_fleets(project)
        states = {name: fleet_of(stack) for name, stack in up.items()}
        chosen = [node.name for node in nodes_named(nodes, states)] if nodes else None
        if history:
            periods = runner.ledger.health(project.name, ledger_scope(project), list(up), history=True)
            _show_history([each for each in periods if chosen is None or each.node in chosen], as_json)
            return
        protected = {name: protected_words(project, runner, state) for name, state in states.items()}
        watched: list[Watched] = []
        unkept: list[OrchError] = []
        for state in states.values():
            if chosen is None or any(node.name in chosen for node in state.nodes):
                depth = "dcgm" if deep else "light"
                with_ledger = (project, runner.ledger, runner.connector, state)
                watched.append(watch(*with_ledger, names=chosen, depth=depth, unkept=unkept.append))
    if as_json:
        fleets = [{**_fleet_json(each), "protected": protected.get(each.fleet.name)} for each in watched]
        print_json({"schema": SCHEMA, "fleets": fleets})
    elif not watched:
        tell("no fleet is up in this project; bring one up with `orch up fleet.yml`")
    elif not any(each.examined or each.left_out for each in watched):
        tell(f"no node to examine: {few([each.fleet.name for each in watched], 5)} has none")
    else:
        for line in _lines(watched, verbose=verbose):
            say(line)
        for each in watched:
            if (words := protected.get(each.fleet.name)) is not None:
                tell(f"warning: {words}")
    if unkept:
        tell(f"warning: this is not kept, and `--history` will not tell it: {unkept[0].summary}")
    bad = any(each.failed or each.left_out or any(one.error for one in each.examined) for each in watched)
    end(ExitCode.HOSTS if bad else ExitCode.OK)


def _fleet_json(watched: Watched) -> dict[str, Any]:
    left = [{"node": name, "status": "unknown", "reason": why} for name, why in watched.left_out]
    return {"name": watched.fleet.name, "nodes": [*map(_node_json, watched.examined), *left]}


def _node_json(each: Examined) -> dict[str, Any]:
    if each.report is None:
        reason = each.error.summary if each.error is not None else ""
        return {"node": each.node.name, "status": "unknown", "reason": reason}
    return {
        "node": each.node.name,
        "status": each.status,
        "reason": each.reason or None,
        "action": each.report.action,
        "since": each.verdict.since if each.verdict is not None else None,
        **_report_json(each.report),
    }


def _report_json(report: HealthReport) -> dict[str, Any]:
    return {
        "findings": [
            {
                "check": each.check,
                "severity": each.severity,
                "part": each.part,
                "reason": each.reason,
                "action": each.action,
            }
            for each in report.findings
        ],
        "skipped": [{"check": each.check, "why": each.why} for each in report.skipped],
        "passed": list(report.passed),
    }


def _lines(watched: Sequence[Watched], *, verbose: bool) -> list[str]:
    """The table of all nodes, and below it what was found on each, and what helps."""
    rows: list[Sequence[str]] = []
    below: list[str] = []
    for fleet in watched:
        for each in fleet.examined:
            name, report = each.node.name, each.report
            if report is None:
                error = each.error.summary if each.error is not None else ""
                rows.append((fleet.fleet.name, name, "unknown", "-", error))
                continue
            since = each.verdict.since if each.verdict is not None else "-"
            skipped = f"; {len(report.skipped)} skipped" if report.skipped else ""
            checks = f"{len(report.passed)} passed{skipped}"
            rows.append((fleet.fleet.name, name, each.status or "", since, checks))
            if each.status != report.status and each.verdict is not None:
                below.append(
                    f"{name}: {each.status}: {each.reason} (by `{each.verdict.found_by}`, which looks deeper)"
                )
            below += _found(name, report, verbose=verbose)
            if each.error is not None:
                below.append(f"{name}: {each.error.summary}: this counts for nobody's runs yet")
        rows += [(fleet.fleet.name, name, "unknown", "-", why) for name, why in fleet.left_out]
    return [*table(("FLEET", "NODE", "HEALTH", "SINCE", "CHECKS"), rows), *below]


def _found(name: str, report: HealthReport, *, verbose: bool) -> list[str]:
    lines = [f"{name}: {each.severity}: {each} ({each.check})" for each in report.findings]
    if report.action in HELPS:
        lines.append(f"{name}: what helps: `{HELPS[report.action].format(name)}`")
    if verbose:
        lines += [f"{name}: passed: {', '.join(report.passed)}"] if report.passed else []
        by_why: dict[str, list[str]] = {}
        for each in report.skipped:
            by_why.setdefault(each.why, []).append(each.check)
        lines += [f"{name}: skipped: {', '.join(checks)}: {why}" for why, checks in by_why.items()]
    return lines


def _show_history(periods: Sequence[HealthPeriod], as_json: bool) -> None:
    from orch.runner.health.findings import HealthReport

    if as_json:
        told = [
            {
                "fleet": each.fleet,
                "node": each.node,
                "status": each.status,
                "reason": each.reason or None,
                "began_at": _time(each.began_at),
                "seen_at": _time(each.seen_at),
                **_report_json(HealthReport.from_json(each.report)),
            }
            for each in periods
        ]
        print_json({"schema": SCHEMA, "periods": told})
        return
    if not periods:
        tell("nothing is kept: no node was examined yet")
        return
    rows = [
        (each.fleet, each.node, each.status, _time(each.began_at), _time(each.seen_at), each.reason or "-")
        for each in periods
    ]
    for line in table(("FLEET", "NODE", "HEALTH", "SINCE", "LAST SEEN", "REASON"), rows):
        say(line)


def table(headings: Sequence[str], rows: Collection[Sequence[str]]) -> list[str]:
    """Rows below their headings, as wide as they are."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False)
    for heading in headings:
        drawn.add_column(heading, no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(visible(cell)) for cell in row))
    text = io.StringIO()
    Console(file=text, width=1000).print(drawn)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
