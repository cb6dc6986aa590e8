"""Runs for people and for pipelines: summaries, tables, words, JSON. `live.py` tells what happens to one."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from orch.runner.events import PortForwarded
from orch.runner.ledger.plans import cost_of, groups_and_tags, hourly_of, waits_for_pods
from orch.runner.ledger.records import ARRAY_LIMIT
from orch.runner.processes import describe_owner
from orch.spec.errors import visible
from orch.spec.grammar.hosts import fold

if TYPE_CHECKING:
    from orch.runner.ledger.controllers import Controller
    from orch.runner.ledger.records import RankRow, RunRow
    from orch.runner.ledger.waiting_line import Line
    from orch.runner.runs.outputs import OutputsLeft

SCHEMA = 1
WIDE = ("COUNT", "LIMIT", "PRIORITY", "PER HOUR", "COST", "REASON")
# Columns that are never cut nor wrapped; others go on in a second line, or are left out, in this order.
_WHOLE = ("RUN", "ID", "STATUS")
_MISSED_FIRST = (
    "COUNT",
    "PRIORITY",
    "LIMIT",
    "PER HOUR",
    "OWNER",
    "SUBMITTED",
    "FLEET",
    "COST",
    "TOOK",
    "ID",
    "NODES",
)
# How narrow a column may be that goes on in a second line.
_WRAPPED = 24
# What people are told of a rank that failed, and of a run whose first one that was, by its reason.
HOW_FAILED = {
    "failed_to_start_due_to_no_capacity": "no capacity",
    "interrupted_by_no_capacity": "interrupted",
    "preempted": "preempted",
}


def run_json(
    row: RunRow,
    forwards: Sequence[PortForwarded] = (),
    line: Line | None = None,
    left: OutputsLeft | None = None,
) -> dict[str, Any]:
    """One run as `run`, `attach`, `stop` and `ps` print it. A rank has `group` where the task has groups.

    `status` is what scripts go by, `status_text` what the tables show of it.
    `nodes` and `started_at` are of `attempt`, the latest one; `attempts` has those that ended before.
    `price_hourly`, `cost`: of its nodes by the hour, and so far, in US dollars; null where that is not known.
    `forwards`: the ports that led to its jobs while the command was attached. `line`: of those that wait for
    nodes of its fleet. `left`: what of its outputs is not here.
    """
    groups, tags = groups_and_tags(row)
    return {
        "run": row.name,
        "id": row.id,
        "status": row.status,
        "status_text": status_text(row),
        "reason": ARRAY_LIMIT if row.waits_for_array else row.reason,
        "message": row.message,
        "array": array_place(row),
        "fleet": row.fleet,
        "nodes": [
            {
                "rank": rank.rank,
                "node": rank.node,
                "exit_code": rank.exit_code,
                "status": rank.status,
                "reason": rank.reason,
                "message": rank.message,
                **({"group": groups[rank.rank]} if rank.rank in groups else {}),
            }
            for rank in row.ranks
        ],
        "forwards": [
            {"address": each.address, "rank": each.rank, "node": each.node, "port": each.port}
            for each in forwards
        ],
        "outputs_on_nodes": [
            {"rank": rank, "node": node, "why": why} for rank, node, why in (left.on_nodes if left else ())
        ],
        "outputs_left_out": list(left.left_out) if left else [],
        "tags": tags,
        "submitted_by": row.submitted_by,
        "priority": row.priority,
        "price_hourly": hourly_of(row.plan),
        "cost": cost_of(row),
        "place_in_line": line.position(row.id) if line is not None and row.in_line else None,
        "attempt": row.attempt,
        "attempts": [
            {
                "attempt": each.attempt,
                "events": list(each.events),
                "message": each.message,
                "nodes": [rank.node for rank in each.ranks],
                "started_at": moment(each.started_at),
                "finished_at": moment(each.finished_at),
            }
            for each in row.attempts
        ],
        "next_attempt_at": moment(row.next_at),
        "started_at": moment(row.started_at),
        "finished_at": moment(row.finished_at),
    }


def array_place(row: RunRow) -> dict[str, Any] | None:
    """The array of a member: its name and number, the member's index, and how many may run at once."""
    if row.array is None:
        return None
    return {
        "name": row.array.name,
        "id": row.array.id,
        "index": row.array_index,
        "limit": row.array_limit,
    }


# How long images, files and nodes are waited for before the end of a run tells it.
TOLD_WAIT_S = 10


def summary(row: RunRow, argument: str | None = None) -> str:
    """Return how a run ended, and where to look next; `argument` stands for it on a command line, by default
    its name."""
    took = f" in {duration(row.took_s)}" if row.finished_at and row.took_s is not None else ""
    waited = row.started_at - row.created_at if row.started_at else 0
    before = f"; it began after {duration(waited)}" if waited >= TOLD_WAIT_S and not row.attempt else ""
    if row.attempt:
        all_s = (row.finished_at or row.now) - row.created_at
        before = f", the last of {row.attempt + 1} attempts in {duration(all_s)}"
    if row.status == "done":
        return f"run {row.name}: done{took} on {_count(len(row.ranks), 'node')}{before}"
    if row.status == "terminated":
        return f"run {row.name}: terminated{took}{before}"
    lines = [
        f"run {row.name}: {status_text(row)}{took}{before if row.attempt else ''}: "
        f"{row.message or row.reason}"
    ]
    lines += rank_lines(row)
    if row.started_at is not None:
        lines.append(
            f"  its log: orch logs {argument or row.name} "
            f"--rank {row.first_failed.rank if row.first_failed else 0}"
        )
    return "\n".join(lines)


def rank_lines(row: RunRow) -> list[str]:
    """A line for each rank: its node, `-` for a pod that never was, its group where the task has groups, its
    status."""
    groups, _ = groups_and_tags(row)
    texts = {rank: group_text(group) for rank, group in groups.items()}
    waits = waits_for_pods(row.plan)
    nodes = ["-" if waits else rank.node for rank in row.ranks]
    width, group_width = max(map(len, nodes)), max(map(len, texts.values()), default=0)
    return [
        f"  rank {rank.rank}  {node:<{width}}  "
        + (f"{texts.get(rank.rank, ''):<{group_width}}  " if texts else "")
        + rank_text(rank)
        for rank, node in zip(row.ranks, nodes, strict=True)
    ]


def outputs_lines(left: OutputsLeft) -> list[str]:
    """A line for each rank whose outputs are still on its node, with what to do."""
    return [f"outputs of rank {rank} are still on node {node}: {why}" for rank, node, why in left.on_nodes]


def attempt_lines(row: RunRow) -> list[str]:
    """A line for each attempt that ended before the latest one."""
    return [
        f"  attempt {each.attempt}  "
        f"{'-' if waits_for_pods(each.plan) else fold([rank.node for rank in each.ranks])}  "
        f"{'failed' if each.started_at else 'could not start'} ({', '.join(each.events)})"
        + (f" after {duration(each.finished_at - each.started_at)}" if each.started_at else "")
        + (f": {each.message}" if each.message else "")
        for each in row.attempts
    ]


def nodes_text(row: RunRow) -> str:
    """The nodes of a run, folded: `gpu-[0-3]`, with groups `head: cpu-0; rest: gpu-[0-3]`; `-` where its pods
    were never there."""
    if waits_for_pods(row.plan):
        return "-"
    groups, _ = groups_and_tags(row)
    nodes: dict[str | None, list[str]] = {}
    for rank in row.ranks:
        nodes.setdefault(groups.get(rank.rank), []).append(rank.node)
    return "; ".join(
        fold(names) if group is None else f"{group_text(group)}: {fold(names)}"
        for group, names in nodes.items()
    )


def group_text(group: str) -> str:
    """A group in a line of text; the number of one without a name is led by the word."""
    return f"group {group}" if group.isdigit() else visible(group)


def rank_text(rank: RankRow) -> str:
    """The status of one rank: `exited (3)`, `terminated (sibling_failed)`, `running`."""
    if rank.reason == "container_exited_with_error" and rank.exit_code is not None:
        return f"exited ({rank.exit_code})"
    if rank.reason in (None, "done"):
        return rank.status
    return f"{rank.status} ({rank.reason})"


def place_text(row: RunRow, line: Line | None) -> str:
    """The place in line of a run that waits for nodes: ` (2nd of 5 in line)`; "" for any other."""
    place = line.position(row.id) if line is not None and row.in_line else None
    own = line.find(row.id) if line is not None else None
    if line is None or place is None or own is None or not own.driven:
        return ""  # nobody would begin it: no place is promised
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f" ({place}{ending} of {len(line.waiters)} in line)"


def time_limit_s(row: RunRow) -> int | None:
    """The `max_duration` of a run; None without one, and for a plan of another version."""
    found = re.search(r'"max_duration_s": ?([0-9]+)', row.plan)
    return int(found[1]) if found else None


def dollars(amount: float | None) -> str:
    """`$12.50`, or `unknown`: what is not known is not nothing. Less than a cent shows two digits of it."""
    if amount is None:
        return "unknown"
    return f"${amount:.2f}" if amount >= 0.01 or not amount else f"${amount:.2g}"


def _wide(row: RunRow) -> tuple[str, ...]:
    limit = time_limit_s(row)
    return (
        str(len(row.ranks)),
        "-" if limit is None else duration(limit),
        str(row.priority),
        "-" if row.status == "pending" else dollars(hourly_of(row.plan)),
        dollars(cost_of(row)),
        (row.message if row.status != "done" else None) or row.reason or "-",
    )


def _that_fit(columns: tuple[str, ...], rows: Sequence[Mapping[str, str]], width: int) -> tuple[str, ...]:
    """Return the columns that fit a table of this width: all, or without those that can be missed first."""
    needs = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
    for name in ("REASON", "NODES"):  # they may be on several lines
        needs[name] = min(needs.get(name, 0), _WRAPPED)
    for name in _MISSED_FIRST:
        if sum(needs[each] + 2 for each in columns) - 2 <= width:
            break
        columns = tuple(each for each in columns if each != name)
    return columns


def runs_table(
    rows: Sequence[RunRow],
    lines: Mapping[str, Line] | None = None,
    *,
    colour: bool,
    wide: bool = False,
    width: int | None = None,
) -> str:
    """`lines`: of the fleets that runs wait for nodes of, by name.

    `wide`: with the columns that `squeue -l` has besides: nodes wanted, time limit, priority, and why a run
    waits or how it ended; and with what its nodes cost by the hour, and what they cost so far. Where not all
    fit in `width`, by default the terminal's, some are left out; name, status and reason are always whole.
    """
    lines = lines or {}
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    all_cells = [
        (
            row.name,
            str(row.id),
            row.fleet,
            "-" if row.status == "pending" else nodes_text(row),
            status_text(row)
            + (f", attempt {row.attempt}" if row.attempt and row.status != "pending" else "")
            + place_text(row, lines.get(row.fleet)),
            row.submitted_by,
            f"{duration(row.now - row.created_at)} ago",
            "-" if row.took_s is None else duration(row.took_s),
            *(_wide(row) if wide else ()),
        )
        for row in rows
    ]
    text = io.StringIO()
    # The width of the terminal; what is piped is cut nowhere.
    console = Console(file=text, force_terminal=colour, width=width or (None if colour else 1000))
    table = Table(box=None, pad_edge=False, header_style="bold" if colour else "")
    columns: tuple[str, ...]
    columns = ("RUN", "ID", "FLEET", "NODES", "STATUS", "OWNER", "SUBMITTED", "TOOK", *(WIDE if wide else ()))
    # Others write to a ledger that is shared: no markup, and no line of their own.
    shown: list[dict[str, str]] = [
        dict(zip(columns, map(visible, cells), strict=True)) for cells in all_cells
    ]
    columns = _that_fit(columns, shown, console.width)
    for heading in columns:
        table.add_column(heading, no_wrap=heading in _WHOLE, overflow="fold")
    for cells in shown:
        table.add_row(*(Text(cells[heading]) for heading in columns))
    console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def controller_text(controller: Controller) -> str:
    """`a controller lives: process 4711 of ada@box, last seen 3s ago`."""
    who = visible(describe_owner(controller.owner))
    return f"a controller lives: {who}, last seen {duration(controller.seen_s)} ago"


def controllers_json(controllers: Sequence[Controller]) -> list[dict[str, Any]]:
    return [
        {
            "process": describe_owner(each.owner),
            "started_by": each.by,
            "started_at": moment(each.since),
            "seen_s": round(each.seen_s, 1),
        }
        for each in controllers
    ]


def status_text(row: RunRow) -> str:
    """The status of a run as people are told it everywhere: `running`, `pending (retry)`, `terminated`; what
    failed tells how in place of the word: `exited (3)`, `no capacity`, `interrupted`, `preempted`."""
    if row.waits_for_array:
        return "pending (array limit)"
    if row.status == "pending":
        return "pending" if row.in_line or not row.attempts else "pending (retry)"
    first = row.first_failed
    if row.status != "failed" or first is None:
        return row.status
    if first.reason == "container_exited_with_error" and first.exit_code is not None:
        return f"exited ({first.exit_code})"
    return HOW_FAILED.get(first.reason or "", row.status)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """`42s`, `3m 5s`, `2h 10m`, `3d 4h`."""
    whole = max(0, int(seconds))
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // small}{small_unit}"
    return f"{whole}s"


def moment(seconds: float | None) -> str | None:
    """RFC 3339, in UTC."""
    if seconds is None:
        return None
    return (
        datetime.fromtimestamp(seconds, timezone.utc)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
