"""`orch cost`: what the nodes of a project cost, and for whom; and what the month comes to."""

from __future__ import annotations

import io
import sys
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from orch.cli import completion
from orch.cli.context import project_at
from orch.cli.errors import coloured, print_json, say, tell
from orch.cli.options import Json, Rehearse
from orch.cli.targets.moments import moment_in_words
from orch.spec.errors import visible

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from orch.runner.costs import Amounts, Forecast, Grouping, Report
    from orch.runner.ledger.history.node_lives import NodeLife
    from orch.stacks.project.project import Project

SCHEMA = 1
NOT_COUNTED = (
    "disks",
    "file systems",
    "addresses",
    "NAT gateways",
    "traffic",
    "reservations while no node is in them",
)


def cost(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FLEET|FILE]",
            help="One fleet, or those of a file; all of this project if not given. Also as `-f FILE`.",
            autocompletion=completion.files_or_fleets,
        ),
    ] = None,
    *,
    by: Annotated[
        str, typer.Option("--by", metavar="WHAT", help="fleet, tag, tag=KEY, user, week or run.")
    ] = "fleet",
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="T", help="A day, a time (RFC 3339) or an age: 30d; else this month. In UTC."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="T", help="The same; now if not given.")
    ] = None,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """What nodes cost and for whom, what of it was idle, and what the month comes to.

    From the prices that were recorded when the nodes were made, and the ledger's record of when they were
    there and which runs were on them. Idle is what nodes cost while no run had them, or had not all of their
    blocks. Clouds' bills have more in them, and discounts.
    """
    grouping, tag = _grouping(by)
    from orch.runner import costs
    from orch.runner.ledger.ledger import open_ledger
    from orch.stacks.plans.request import ended_nodes_if_told
    from orch.stacks.record.node_accounts import record_all

    project, fleets = _fleets(target, rehearse=rehearse)
    project.prepare()
    with closing(open_ledger(project.ledger_url)) as ledger:
        recorded = record_all(project, ledger, ended_nodes_if_told)
        for each in recorded.problems:
            tell(f"warning: {each}")
        now = ledger.now()
        month, _ = costs.month_of(now)
        first = month if since is None else moment_in_words(since, now, "--since")
        last = now if until is None else min(now, moment_in_words(until, now, "--until"))
        if first >= last:
            raise typer.BadParameter("it is not before the end of that time", param_hint="--since")
        lives = ledger.node_lives(project.name, since=min(first, month), fleets=fleets)
        if target is not None and not lives:
            _require_known(fleets or (), ledger.node_lives(project.name))
        attempts = ledger.timed_plans(first, last, fleets)
        uses = (use for attempt in attempts for use in costs.uses_of(attempt))
        report = costs.report(lives, uses, grouping, first, last, tag=tag)
        forecast = costs.forecast(lives, now, recorded.ends)
    if as_json:
        print_json(cost_json(report, forecast, by))
        return
    if not report.groups:
        tell(f"no node was there from {_day(first)} to {_day(last)}, as far as this project's ledger knows")
    else:
        say(cost_table(report, grouping, colour=coloured(sys.stdout)))
    for line in (*notes(report, by), *forecast_lines(forecast)):
        say(line)


def _grouping(by: str) -> tuple[Grouping, str | None]:
    from orch.runner.costs import Grouping

    word, given, key = by.partition("=")
    if word not in get_args(Grouping) or (given and (word != "tag" or not key)):
        raise typer.BadParameter(f"{by!r} is none of fleet, tag, tag=KEY, user, week, run", param_hint="--by")
    return word, key or None  # pyright: ignore[reportReturnType]


def _fleets(target: str | None, *, rehearse: bool) -> tuple[Project, Collection[str] | None]:
    """The project, and which fleets of it; None for all."""
    from orch.cli.targets.fleet_files import FleetFile, is_file
    from orch.spec.grammar.values import encodable

    if target is None or not is_file(target):
        return project_at(rehearse=rehearse), None if target is None else (encodable(target),)
    source = FleetFile(target, rehearse=rehearse)
    project, _ = source.read()
    return project, tuple(fleet.name for _, _, fleet in source.fleets())


def _require_known(fleets: Collection[str], lives: Sequence[NodeLife]) -> None:
    """Raises NoSuchFleet where the ledger knows none of the fleets."""
    from orch.spec.grammar.values import shown
    from orch.spec.suggest import few, hint_for
    from orch.stacks.errors import NoSuchFleet

    known = sorted({life.fleet for life in lives})
    if not set(fleets) & set(known):
        named = ", ".join(shown(name) for name in fleets) or "of the file"
        raise NoSuchFleet(
            f"no node of the fleet {named} is recorded in this project's ledger",
            detail=f"it knows {few(known)}" if known else "it knows of no node yet",
            hint=next((hint for name in fleets if (hint := hint_for(name, known))), None)
            or "`orch cost` alone shows all fleets",
            code="ORCH353",
        )


def cost_table(report: Report, by: Grouping, *, colour: bool) -> str:
    """A line per group, and the total. Columns that would be empty are left out."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    total = report.total
    columns = ["NODE-HOURS", "GPU-HOURS", "COST"]
    columns += ["BUSY", "IDLE"] if by in ("fleet", "tag", "week") else []
    columns += ["SPOT"] if total.spot else []
    columns += ["RESERVED"] if total.reserved else []
    columns += ["HOURS WITHOUT PRICE"] if total.unpriced_node_s else []
    table = Table(box=None, pad_edge=False, header_style="bold" if colour else "")
    table.add_column(by.upper(), no_wrap=True)
    for heading in columns:
        table.add_column(heading, justify="right")
    for name, amounts in (*report.groups.items(), ("total", total)):
        cells = _cells(amounts)
        # Names of people, tags and runs are in a ledger that others write to: no markup, one line each.
        table.add_row(Text(visible(name)), *(Text(cells[each]) for each in columns))
    text = io.StringIO()
    Console(file=text, force_terminal=colour, width=None if colour else 200).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _cells(amounts: Amounts) -> dict[str, str]:
    return {
        "NODE-HOURS": _hours(amounts.node_s),
        "GPU-HOURS": _hours(amounts.gpu_s),
        "COST": _money(amounts.dollars),
        "BUSY": _money(amounts.busy),
        "IDLE": _money(amounts.idle),
        "SPOT": _money(amounts.spot),
        "RESERVED": _money(amounts.reserved),
        "HOURS WITHOUT PRICE": _hours(amounts.unpriced_node_s),
    }


def notes(report: Report, by: str) -> list[str]:
    """Return notes that explain the figures."""
    total = report.total
    lines = [f"from {_day(report.since)} to {_day(report.until)}, in US dollars"]
    if report.overlap and report.groups:
        lines.append("a node with several tags is in several lines, and once in the total: `--by tag=KEY`")
    if total.unpriced_node_s:
        lines.append(f"{_hours(total.unpriced_node_s)} node-hours have no known price and are not in COST")
    if total.reserved:
        lines.append(
            "RESERVED is in COST at the on-demand price; whoever holds a reservation pays for it anyway"
        )
    if round(total.uncertain, 2):
        lines.append(
            f"up to {_money(total.uncertain)} less: nodes were found gone some time after they were last seen"
        )
    lines.append(f"not counted: {', '.join(NOT_COUNTED[:-1])}, and {NOT_COUNTED[-1]}")
    return lines


def forecast_lines(forecast: Forecast) -> list[str]:
    """Return the forecast of the month."""
    month = datetime.strptime(forecast.month, "%Y-%m").strftime("%B %Y")
    lines = [f"{month}: {_money(forecast.spent)} so far"]
    if forecast.hourly:
        lines[0] += (
            f"; what is there now costs {_money(forecast.hourly)} an hour: {_money(forecast.more)} more by "
            f"the end of the month, {_money(forecast.total)} in all"
        )
    if forecast.unpriced:
        nodes = "1 node that is there has" if forecast.unpriced == 1 else f"{forecast.unpriced} nodes have"
        lines.append(f"{nodes} no known price: it is not in the forecast")
    return lines


def cost_json(report: Report, forecast: Forecast, by: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "since": _stamp(report.since),
        "until": _stamp(report.until),
        "by": by,
        "currency": "USD",
        "groups": [{"name": name, **_amounts_json(each)} for name, each in report.groups.items()],
        "overlap": report.overlap,
        "total": _amounts_json(report.total),
        "forecast": {
            "month": forecast.month,
            "until": _stamp(forecast.ends),
            "spent": _cents(forecast.spent),
            "hourly": _cents(forecast.hourly),
            "more": _cents(forecast.more),
            "total": _cents(forecast.total),
            "unpriced_nodes": forecast.unpriced,
        },
        "not_counted": list(NOT_COUNTED),
    }


def _amounts_json(amounts: Amounts) -> dict[str, float]:
    return {
        "node_hours": _in_hours(amounts.node_s),
        "gpu_hours": _in_hours(amounts.gpu_s),
        "busy_node_hours": _in_hours(amounts.busy_node_s),
        "unpriced_node_hours": _in_hours(amounts.unpriced_node_s),
        "cost": _cents(amounts.dollars),
        "busy": _cents(amounts.busy),
        "idle": _cents(amounts.idle),
        "spot": _cents(amounts.spot),
        "reserved": _cents(amounts.reserved),
        "uncertain": _cents(amounts.uncertain),
    }


def _in_hours(seconds: float) -> float:
    return round(seconds / 3600, 4)


def _cents(dollars: float) -> float:
    return round(dollars, 4) + 0.0


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f}"


def _money(dollars: float) -> str:
    return f"${dollars:,.2f}"


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _stamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
