"""Read logs without storing them: from the nodes while a run is active, then from `.orch`."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orch.runner.errors import CommandTimeout, HostUnreachable, RunFailed, RunnerError
from orch.runner.events import LogLine, Notice
from orch.runner.launch.run_plan import RunPlan, groups_and_tags, plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.node import logs
from orch.runner.node.connector import fan_out
from orch.runner.runs.context import RunnerContext
from orch.runner.runs.follow import RunWatch
from orch.spec.errors import OrchError
from orch.spec.state import NodeState

_BEFORE_LOGS = ("submitted", "starting")

LAST_LINES_S = 2.0
"""How long to wait for the last lines of a run that has ended."""


@dataclass(frozen=True)
class Selection:
    """Which lines to read: of these ranks, the last `tail` of each, from the time `since` on."""

    ranks: tuple[int, ...]
    tail: int | None = None
    since: str | None = None


def read_logs(runner: RunnerContext, row: RunRow, selection: Selection, *, follow: bool = False) -> None:
    """Send the selected lines to the runner's processor, sorted by time; with `follow` until the run's end.

    Followed lines come in the order of arrival. For a node that does not answer, a notice is sent and its
    stored lines are used.
    """
    watch = RunWatch(runner.ledger, row)
    while follow and row.active and row.phase in _BEFORE_LOGS:
        watch.wait()
        row = watch.read()
    if follow and row.active:
        _follow(runner, watch, selection)
        return
    live = [rank.rank for rank in row.ranks if not rank.collected and rank.rank in selection.ranks]
    lines = _fetch(runner, row, selection, live if row.phase not in _BEFORE_LOGS else [])
    folder = runner.context(row).folder
    groups, _ = groups_and_tags(row)
    stored: list[Iterable[LogLine]] = [
        logs.read_stored(
            folder,
            rank,
            row.ranks[rank].node,
            tail=selection.tail,
            since=selection.since,
            group=groups.get(rank),
        )
        for rank in selection.ranks
        if rank not in lines
    ]
    for line in heapq.merge(*lines.values(), *stored, key=lambda line: line.time):
        runner.processor.handle(line)


def _fetch(
    runner: RunnerContext, row: RunRow, selection: Selection, ranks: Sequence[int]
) -> dict[int, list[LogLine]]:
    """Lines by rank, from the nodes that answer."""
    if not ranks:
        return {}
    plan = plan_of(row)
    rank_of = {plan.ranks[rank].node.name: rank for rank in ranks}

    def fetch(node: NodeState) -> list[LogLine] | None:
        rank = rank_of[node.name]
        lines: list[LogLine] = []
        try:
            complete = runner.runtime(node).read_log(
                runner.connector,
                plan,
                rank,
                lambda line: lines.append(_line(plan, rank, line)),
                tail=selection.tail,
                since=selection.since,
                deadline_s=5.0,
            )
        except RunFailed as failed:  # what came before it is as good as ever
            runner.processor.handle(Notice(_error_text(failed), "warning"))
            return lines
        return lines if complete else None

    results = fan_out([plan.ranks[rank].node for rank in ranks], fetch)
    for result in results:
        if result.error is not None:
            silent = isinstance(result.error, HostUnreachable | CommandTimeout)
            text = f"node {result.node.name} does not answer" if silent else _error_text(result.error)
            runner.processor.handle(Notice(text, "warning"))
    return {rank_of[result.node.name]: result.value for result in results if result.value is not None}


def _follow(runner: RunnerContext, watch: RunWatch, selection: Selection) -> None:
    """Follow until all logs or the run have ended; lines of silent nodes are then left out."""
    plan = plan_of(watch.row)
    stop = threading.Event()

    def follow_rank(rank: int) -> None:
        try:
            _follow_rank(runner, plan, rank, selection, stop)
        finally:
            watch.wake()

    threads = [threading.Thread(target=follow_rank, args=(rank,), daemon=True) for rank in selection.ranks]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            watch.wait()
            if any(thread.is_alive() for thread in threads) and not watch.read().active:
                break
        end = time.monotonic() + LAST_LINES_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
    finally:
        stop.set()


def _follow_rank(
    runner: RunnerContext, plan: RunPlan, rank: int, selection: Selection, stop: threading.Event
) -> None:
    last, tail, since = "", selection.tail, selection.since
    node = plan.ranks[rank].node

    def tell(text: str) -> None:
        nonlocal last
        line = _line(plan, rank, text)
        # After a reconnection the last lines come again.
        if line.time > last:
            last = line.time
            runner.processor.handle(line)

    while not stop.is_set():
        try:
            runner.runtime(node).read_log(
                runner.connector,
                plan,
                rank,
                tell,
                follow=True,
                tail=tail,
                since=since,
                deadline_s=10.0,
                until=stop,
            )
            return
        except (HostUnreachable, CommandTimeout, RunFailed):
            if last:
                tail, since = None, last
            stop.wait(1.0)
        except RunnerError as error:  # this machine cannot ask: once more would be the same
            runner.processor.handle(Notice(_error_text(error), "warning"))
            return


def _error_text(error: OrchError) -> str:
    return f"{error.summary}: {error.detail}" if error.detail else error.summary


def _line(plan: RunPlan, rank: int, text: str) -> LogLine:
    stamp, rest = logs.split_line(text)
    return LogLine(rank, plan.ranks[rank].node.name, stamp, rest, plan.ranks[rank].group)
