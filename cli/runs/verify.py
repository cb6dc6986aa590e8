"""`orch verify`: what the nodes of a fleet and the network between them reach, against what they must."""

from __future__ import annotations

import io
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orch.cli import completion
from orch.cli.driver.opening import open_runner
from orch.cli.errors import coloured, end, print_json, say
from orch.cli.maintenance.verification import verified
from orch.cli.options import Json, OnNodes, Rehearse
from orch.cli.runs.submission import lasting
from orch.spec.errors import ExitCode

if TYPE_CHECKING:
    from orch.runner.ledger.records import RunRow
    from orch.runner.verify.report import Report
    from orch.spec.state import FleetState
    from orch.stacks.project.project import Project
    from orch.stacks.stack.state import StackState

SCHEMA = 1
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LEAST_SIZE, MOST_SIZE = 4 << 10, 64 << 30


def verify(  # noqa: PLR0913  # options of a verb
    fleet: Annotated[
        str, typer.Argument(metavar="FLEET", help="A fleet that is up.", autocompletion=completion.fleets)
    ],
    runs: Annotated[
        str | None,
        typer.Option(
            "--runs",
            metavar="NAME,...",
            help="Only these: all_reduce, all_gather, alltoall, sendrecv; gemm, memory, host_to_device, "
            "device_to_host; cpu, disk.",
        ),
    ] = None,
    *,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Each node with each other one: finds a slow node, a slow link.")
    ] = False,
    nodes: OnNodes = None,
    min_busbw: Annotated[
        float | None, typer.Option("--min-busbw", metavar="GB/s", help="What all_reduce must reach.")
    ] = None,
    size: Annotated[
        str | None, typer.Option("--size", metavar="BYTES", help="The largest message: 64M, 8G.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="With PyTorch and the fabric's plugin.")
    ] = None,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Measure the nodes of a fleet and the network between them, and say what falls short.

    It is a run on all nodes, so they must be idle. It asserts that the fleet's interconnect was really used,
    and compares figures with floors, with former results and among the nodes.
    """
    from orch.runner.verify.verification import RUNS, Request

    request = Request(
        _runs(runs, RUNS),
        pairs,
        None if size is None else _size(size),
        _positive(min_busbw),
        None if image is None else _image(image),
    )
    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        stack, chosen = _nodes_of(project, fleet, nodes or ())
        report, row = verified(project, runner, stack, chosen, request)
        _show(report, row, as_json)
        end(ExitCode.OK if report.fine else ExitCode.VERIFY)


def _runs(words: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if words is None:
        return known
    names = [word.strip() for word in words.split(",")]
    if unknown := [name for name in names if name not in known]:
        from orch.spec.grammar.values import shown

        raise typer.BadParameter(f"{shown(unknown[0])}: choose from {', '.join(known)}", param_hint="--runs")
    return tuple(name for name in known if name in names)


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    size = int(found[1]) * _UNITS[found[2].upper()] if found is not None else 0
    if not LEAST_SIZE <= size <= MOST_SIZE:
        from orch.spec.grammar.values import shown

        raise typer.BadParameter(f"{shown(text)}: write a size from 4K to 64G", param_hint="--size")
    return size


def _image(text: str) -> str:
    from orch.spec.grammar.characters import check_image
    from orch.spec.grammar.values import Problem

    try:
        return check_image(text)
    except Problem as problem:
        raise typer.BadParameter(problem.summary, param_hint="--image") from problem


def _positive(value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise typer.BadParameter("a bandwidth in GB/s is above 0", param_hint="--min-busbw")
    return value


def _nodes_of(project: Project, name: str, words: list[str] | tuple[()]) -> tuple[StackState, FleetState]:
    """The stack of a fleet that is up, and the fleet with only the nodes that were asked for."""
    from orch.cli.targets.nodes import selected
    from orch.spec.state import own_nodes
    from orch.stacks.record.fleets import fleet_of, known_fleets, not_up

    stacks = known_fleets(project)
    if name not in stacks:
        raise not_up(project, name)
    stack = lasting(stacks, name)[name]
    fleet = own_nodes(fleet_of(stack), None)
    return stack, fleet.model_copy(update={"nodes": selected(fleet, words)})


def _show(report: Report, row: RunRow | None, as_json: bool) -> None:
    if as_json:
        print_json(report_json(report, row))
        return
    if report.rows:
        _table(report)
    for note in report.notes:
        say(f"note: {note}")
    for each in report.shortfalls:
        say(f"{each.code}: {each.text}")
    say(report.sentence)


def report_json(report: Report, row: RunRow | None) -> dict[str, Any]:
    """A report for programs; `run` and `id` are null where nothing was run."""
    return {
        "schema": SCHEMA,
        "fleet": report.fleet,
        "run": row.name if row is not None else None,
        "id": row.id if row is not None else None,
        "fine": report.fine,
        "sentence": report.sentence,
        "transport": report.transport,
        "figures": [
            {
                "measure": each.measure,
                "of": each.subject or None,
                "bytes": each.size or None,
                "value": each.value,
                "unit": each.unit,
                "limit": each.limit,
                "basis": each.basis,
                "verdict": each.judgement,
            }
            for each in report.rows
        ],
        "shortfalls": [
            {"code": each.code, "kind": each.kind, "nodes": list(each.nodes), "text": each.text}
            for each in report.shortfalls
        ],
        "notes": list(report.notes),
    }


def _table(report: Report) -> None:
    """A row for each figure; of the sizes of a collective the largest, and those that are held against
    something."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from orch.runner.verify.report import shown_rows, size_text

    colour = coloured(sys.stdout)
    table = Table(box=None, pad_edge=False, header_style="bold" if colour else "")
    for name in ("MEASURE", "OF", "SIZE"):
        table.add_column(name, no_wrap=True)
    for name in ("REACHED", "AT LEAST"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("VERDICT", no_wrap=True)
    for row in shown_rows(report.rows):
        low = row.judgement in ("low", "wrong")
        table.add_row(
            row.measure,
            Text(row.subject or "all nodes"),
            size_text(row.size) if row.size else "",
            Text(f"{row.value:.4g} {row.unit}"),
            f"{row.limit:.4g}" if row.limit is not None else "-",
            Text(row.judgement, style="red" if low and colour else ""),
        )
    text = io.StringIO()
    Console(file=text, force_terminal=colour, width=1000).print(table)
    for line in text.getvalue().splitlines():
        say(line.rstrip())
