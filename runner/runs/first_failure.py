"""Which rank of a failed run failed first, and what it said: read from the ends of ranks and from their logs.

Ranks of one job fail after each other: one raises, the others lose their connection to it. The order in which
containers end is not the order of failures, for a launcher first ends the other processes of its node. So a
rank is placed by when it printed what it failed of, and those who complain of a peer come last. All times are
on the clock of the machine that looks, for the clocks of nodes differ (`ObservedRank.ahead_s`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orch.runner.node.clock import seconds_of
from orch.runner.node.logs import split_line
from orch.runner.node.runtime import ObservedRank
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs.decide import describe, rank_reason
from orch.spec.confidential import hidden
from orch.spec.errors import visible
from orch.spec.grammar.hosts import fold

# How much of the end of a log is read, and how long before the end of its rank a failure may have been told:
# what was told earlier, the job has survived.
TAIL_BYTES = 256 << 10
WINDOW_S = 120.0
LONGEST = 300

# How launchers mark lines of their processes: `[rank0]: `, `[default0]:`, `[1,0]<stderr>: `.
_PREFIX = re.compile(r"(\[(?:rank|default)?\d+\]:|\[\d+,\d+\]<std\w+>:) ?")
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*(?:[A-Z_]\w*|\w+error|timeout)(?::(?:\s.*)?)?")
# What other programs than Python say when they fail.
_FAILURE = re.compile(
    r"CUDA out of memory|CUDA error|HIP error|\bNCCL error|\bnccl[A-Z]\w*Error|what\(\): |Segmentation fault"
    r"|Bus error|Illegal instruction|Fatal Python error|^panic: |MPI_ABORT"
)
# What a shell or a small program says last.
_LAST_WORDS = re.compile(
    r"not found|no such file|permission denied|cannot|could not|unable|invalid|error|fatal|failed|killed",
    re.IGNORECASE,
)
# What a rank says whose peer is gone, or who is told to end.
_OF_OTHERS = re.compile(
    r"connection (?:reset|closed|aborted|refused)|broken pipe|remote process exited"
    r"|nccl(?:Remote|System)Error|collective operation timeout|communicator was aborted"
    r"|timed out|socket timeout|Dist(?:Network|Backend|Store)Error|recvValue failed"
    r"|ChildFailedError|SignalException|got signal|SIGTERM|KeyboardInterrupt|\bTerminated\b"
    r"|lost connection|lost communication|noticed that process rank|returned a non-zero exit code",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Line:
    """A line of a log. `at`: when it was written, seconds since the epoch on this machine's clock."""

    at: float
    text: str


@dataclass(frozen=True)
class Failure:
    """A rank's failure. `line`: what it said of it, None for nothing.

    `of_others`: it is what a rank says when another one has failed.
    """

    rank: int
    at: float
    line: str | None = None
    of_others: bool = False


def first_failure(ranks: Sequence[ObservedRank], logs: Mapping[int, Path]) -> Failure | None:
    """The first failure among the ranks, None where none has ended badly by itself, or one at a limit of its
    time or use. `logs`: by rank.

    A rank that was stopped because of another's failure counts where it had said before what it failed of.
    """
    limited = any(rank_reason(rank) not in (None, "done", "container_exited_with_error") for rank in ranks)
    if limited or not any(_failed(rank) for rank in ranks):
        return None
    found = [failure for rank in ranks if (failure := _failure(rank, logs.get(rank.rank))) is not None]
    return min(found, key=lambda each: (each.of_others, each.at, each.rank))


def first_failure_text(plan: RunPlan, ranks: Sequence[ObservedRank], failure: Failure) -> str:
    """What a run says of it."""
    rank = ranks[failure.rank]
    text = describe(plan, rank)
    if not _failed(rank):
        text = f"rank {rank.rank} on node {plan.ranks[rank.rank].node.name} failed"
    if failure.line is not None:
        text += f": {failure.line}"
    silent = [plan.ranks[each.rank].node.name for each in ranks if each.state == "silent"]
    return text + (f"; node {fold(silent)} does not answer" if silent and failure.of_others else "")


def _failed(rank: ObservedRank) -> bool:
    """Whether a rank ended badly by itself."""
    return rank_reason(rank) == "container_exited_with_error" and "stopping" not in rank.marks


def _failure(rank: ObservedRank, log: Path | None) -> Failure | None:
    if rank_reason(rank) != "container_exited_with_error":
        return None
    ended_at = rank.ended_at
    lines = [line for line in _last_lines(log, rank.ahead_s) if line.at >= (ended_at or 0.0) - WINDOW_S]
    told = [_of_rank(rank.rank, line, of_others=of_others) for line, of_others in telling(lines)]
    own = [each for each in told if not each.of_others]
    if own:
        return min(own, key=lambda each: each.at)
    if not _failed(rank):
        return None
    if told and not rank.out_of_memory:
        return min(told, key=lambda each: each.at)
    last = next((line for line in reversed(lines) if line.text.strip()), None)
    at = ended_at if ended_at is not None else last.at if last else 0.0
    if last is None or rank.out_of_memory or not _LAST_WORDS.search(last.text):
        return Failure(rank.rank, at)
    return _of_rank(rank.rank, Line(at, last.text), of_others=False)


def _of_rank(rank: int, line: Line, *, of_others: bool) -> Failure:
    return Failure(rank, line.at, hidden(visible(line.text.strip()[:LONGEST])), of_others)


@dataclass
class _Traceback:
    """One that is read. `of_others`: of the first exception of its chain, once that was read."""

    at: float
    state: Literal["reading", "read", "chained"] = "reading"
    of_others: bool | None = None


def telling(lines: Iterable[Line]) -> Iterator[tuple[Line, bool]]:
    """What a log says of failures, each with whether it is of another rank's.

    Of each process of the rank, as far as launchers mark their lines, the last failure of its own, or the
    first of others'. A traceback has the time of its first line and the text of its last one; of exceptions
    that followed on each other the first says whose failure it is.
    """
    kept: dict[str, tuple[Line, bool]] = {}
    tracebacks: dict[str, _Traceback] = {}
    for line in lines:
        marked = _PREFIX.match(line.text)
        process, text = (marked[1], line.text[marked.end() :]) if marked else ("", line.text)
        of_others = _OF_OTHERS.search(text) is not None
        traceback = tracebacks.get(process)
        if text.startswith(_TRACEBACK):
            if traceback is None or traceback.state != "chained":
                traceback = tracebacks[process] = _Traceback(line.at)
            traceback.state = "reading"
            continue
        if traceback is not None and traceback.state == "read" and text.strip():
            if _CHAINED.match(text):
                traceback.state = "chained"
                continue
            del tracebacks[process]
            traceback = None
        if traceback is None:
            if of_others or _FAILURE.search(text):
                _keep(kept, process, Line(line.at, text), of_others=of_others)
        elif traceback.state == "reading" and _EXCEPTION.fullmatch(text):
            traceback.state = "read"
            if traceback.of_others is None:
                traceback.of_others = of_others
            _keep(kept, process, Line(traceback.at, text), of_others=traceback.of_others)
    yield from kept.values()


def _keep(kept: dict[str, tuple[Line, bool]], process: str, line: Line, *, of_others: bool) -> None:
    before = kept.get(process)
    # Of one traceback the later line is the last of its chain.
    if before is None or not of_others or (before[1] and before[0].at == line.at):
        kept[process] = line, of_others


def _last_lines(log: Path | None, ahead_s: float) -> Iterator[Line]:
    """The lines at the end of a log that have a time. `ahead_s`: of the clock that wrote them."""
    if log is None or not log.exists():
        return
    with log.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - TAIL_BYTES))
        for line in stream.read().decode(errors="replace").split("\n"):
            stamp, text = split_line(line)
            at = seconds_of(stamp)
            if at is not None:
                yield Line(at - ahead_s, text)
