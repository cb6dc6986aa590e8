"""Read logs without storing them: from the nodes while a run is active, then from `.orch`."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from tempfile import SpooledTemporaryFile
from typing import IO

from orch.runner.errors import CommandTimeout, HostUnreachable, RunFailed, RunnerError, UnknownRank
from orch.runner.events import LogLine, Notice
from orch.runner.ledger.plans import groups_and_tags, plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.metrics.sampling import keeping_samples
from orch.runner.node import logs
from orch.runner.node.runtime import LogPart
from orch.runner.node_api.connector import fan_out
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs.context import RunnerContext
from orch.runner.runs.follow import RunWatch
from orch.runner.runs.outputs import keeper
from orch.spec.errors import OrchError
from orch.spec.state import NodeState

_BEFORE_LOGS = ("waiting", "submitted", "starting")

SPOOLED_BYTES = 1 << 20
"""What is read of a node's log lies in memory up to this size, then in a temporary file."""

LAST_LINES_S = 2.0
"""How long to wait for the last lines of a run that has ended."""


@dataclass(frozen=True)
class Selection:
    """Which lines to read: of these ranks, the last `tail` of each, from the time `since` on."""

    ranks: tuple[int, ...]
    tail: int | None = None
    since: str | None = None


def read_logs(runner: RunnerContext, row: RunRow, selection: Selection, *, follow: bool = False) -> None:
    """Send the selected lines to the runner's processor, sorted by time; with `follow` until the run's end,
    those of later attempts too.

    They are of the run's latest attempt, or of the one that `of_attempt` made a row of. Followed lines come
    in the order of arrival. For a node that does not answer, a notice is sent and its stored lines are used;
    of a run whose commands have not begun, its state is.
    """
    if follow and row.active:
        if row.phase in _BEFORE_LOGS and row.started_at is None:
            _tell_no_log(runner, row)
        with keeping_samples(runner, row.id):
            row, followed = _follow_run(runner, row, selection)
        if followed:
            return
    live = [rank.rank for rank in row.ranks if not rank.collected and rank.rank in selection.ranks]
    began = row.phase not in _BEFORE_LOGS or row.phase == "waiting"
    fetched = _fetch(runner, row, selection, live if began else [])
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
        if rank not in fetched
    ]
    absent = [rank for rank in selection.ranks if rank not in fetched and not folder.log(rank).exists()]
    keeps = keeper(runner.ledger, row.id, row.attempt) if absent else None
    if keeps is not None:
        text = f"the log of run {row.name} is not on this machine: {keeps} drove it to its end and keeps it"
        runner.processor.handle(Notice(text, "warning"))
    elif row.started_at is None and len(absent) == len(selection.ranks):
        _tell_no_log(runner, row)
    plan = plan_of(row) if fetched else None
    lines = [_lines(plan, rank, file) for rank, file in fetched.items()] if plan else []
    for line in heapq.merge(*lines, *stored, key=lambda line: line.time):
        runner.processor.handle(line)


def _tell_no_log(runner: RunnerContext, row: RunRow) -> None:
    """Say why a run that has not begun has no log; or an attempt, which `of_attempt` made a row of."""
    if row.phase == "finished" and row.active:
        text = f"attempt {row.attempt} of run {row.name} never began"
    elif row.phase == "finished":
        text = f"run {row.name} never began: {row.status}"
    else:
        text = f"run {row.name} has not begun: {row.status}"
    why = row.message or row.reason
    runner.processor.handle(Notice(f"{text}{f': {why}' if why else ''}"))


def _follow_run(runner: RunnerContext, row: RunRow, selection: Selection) -> tuple[RunRow, bool]:
    """Follow a run until its logs, or it, have ended: its row, and whether there were logs to follow."""
    watch = RunWatch(runner, row)
    followed = False
    while row.active:
        if row.phase not in _BEFORE_LOGS:
            _follow(runner, watch, selection)
            if plan_of(row).retry is None:
                return row, True
            followed, attempt = True, row.attempt
            # After its logs have ended an attempt may take a while to be over.
            while row.active and (row.attempt, row.phase in _BEFORE_LOGS) == (attempt, False):
                watch.wait()
                row = watch.read()
        else:
            watch.wait()
            row = watch.read()
    return row, followed


def of_attempt(row: RunRow, attempt: int) -> RunRow:
    """A run as it was when an attempt of it had ended. Raises UnknownRank for one that it has not begun."""
    if attempt == row.attempt:
        return row
    for ended in row.attempts:
        if ended.attempt == attempt:
            of_it = replace(row, attempt=attempt, plan=ended.plan, ranks=ended.ranks, phase="finished")
            return replace(of_it, message=ended.message, started_at=ended.started_at)
    raise UnknownRank(f"run {row.name} has no attempt {attempt}", hint=f"its attempts are 0 to {row.attempt}")


def _fetch(
    runner: RunnerContext, row: RunRow, selection: Selection, ranks: Sequence[int]
) -> dict[int, IO[bytes]]:
    """Logs by rank, from the nodes that answer. One may be larger than this machine's memory."""
    if not ranks:
        return {}
    plan = plan_of(row)
    rank_of = {plan.ranks[rank].node.name: rank for rank in ranks}

    def fetch(node: NodeState) -> IO[bytes] | None:
        rank = rank_of[node.name]
        file = SpooledTemporaryFile[bytes](SPOOLED_BYTES)
        try:
            complete = runner.runtime(node).read_log(
                runner.connector,
                plan,
                rank,
                file.write,
                LogPart(tail=selection.tail, since=selection.since),
                deadline_s=5.0,
            )
        except RunFailed as failed:  # what came before it is as good as ever
            runner.processor.handle(Notice(_error_text(failed), "warning"))
            return file
        except OSError as error:
            raise RunnerError("a log cannot be kept here", detail=error.strerror or str(error)) from error
        return file if complete else None

    results = fan_out([plan.ranks[rank].node for rank in ranks], fetch)
    for result in results:
        if result.error is not None:
            silent = isinstance(result.error, HostUnreachable | CommandTimeout)
            text = f"node {result.node.name} does not answer" if silent else _error_text(result.error)
            runner.processor.handle(Notice(text, "warning"))
    return {rank_of[result.node.name]: result.value for result in results if result.value is not None}


def _lines(plan: RunPlan, rank: int, file: IO[bytes]) -> Iterator[LogLine]:
    file.seek(0)
    for line in file:
        yield from logs.told(plan, rank, line).each()


def _follow(runner: RunnerContext, watch: RunWatch, selection: Selection) -> None:
    """Follow until all logs, the attempt or the run have ended; lines of silent nodes are then left out."""
    plan, attempt = plan_of(watch.row), watch.row.attempt
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
            if not any(thread.is_alive() for thread in threads):
                break
            row = watch.read()
            if not row.active or row.attempt != attempt or row.phase == "waiting":
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

    def tell(text: bytes) -> None:
        nonlocal last
        lines = logs.told(plan, rank, text)
        if lines.stored.partition(" ")[0] <= last:  # after a reconnection the last lines come again
            stored = lines.stored.removesuffix("\n").split("\n")
            lines = replace(
                lines, stored="".join(f"{line}\n" for line in stored if line.partition(" ")[0] > last)
            )
        if lines.stored:
            last = lines.stored[lines.stored.rfind("\n", 0, -1) + 1 :].partition(" ")[0]
            runner.processor.handle(lines)

    while not stop.is_set():
        try:
            runner.runtime(node).read_log(
                runner.connector,
                plan,
                rank,
                tell,
                LogPart(tail=tail, since=since, follow=True),
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
