"""Which rank of a failed run is told to have failed first, and of what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import pytest
from kit.ledgers.pureruns import compiled, fleet, node

from orch.runner.node.runtime import ObservedRank
from orch.runner.runs.first_failure import Failure, first_failure, first_failure_text

# Nodes began at this second; their clocks differ by what `AHEAD` says.
EPOCH = 1_780_000_000.0
AHEAD = (0.0, 600.0, -30.0)

RAISED = """\
1 step 7
2 Traceback (most recent call last):
2   File "train.py", line 12, in <module>
2     loss = step(batch)
2 ValueError: bad batch: 'x'
"""
GONE = "torch.distributed.DistBackendError: NCCL error, remote process exited"
RESET = """\
1 step 7
3 [rank0]: Traceback (most recent call last):
3 [rank0]:   File "train.py", line 12, in <module>
3 [rank0]: torch.distributed.DistBackendError: NCCL error, remote process exited
3 torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
# What a launcher says that ends the other processes of its node before it ends itself.
AGENT = """\
30 Traceback (most recent call last):
30   File "/usr/bin/torchrun", line 8, in <module>
30 torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
30 train.py FAILED
"""
OUT_OF_MEMORY = """\
2 [rank5]: Traceback (most recent call last):
2 [rank5]:   File "train.py", line 12, in <module>
2 [rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB.
2 [rank4]: Traceback (most recent call last):
4 [rank4]: RuntimeError: [Gloo] Connection closed by peer [10.0.0.1]:29500
"""
CHAINED = """\
2 Traceback (most recent call last):
2   File "data.py", line 3, in read
2 KeyError: 'image'
2
2 During handling of the above exception, another exception occurred:
2
2 Traceback (most recent call last):
2   File "train.py", line 12, in <module>
2 BrokenPipeError: [Errno 32] Broken pipe
"""
SURVIVED = "".join(f"-900 {line[2:]}\n" for line in RAISED.splitlines())
MISSING = "1 starting\n2 /run/orch/job.sh: line 2: trian: command not found\n"


def stamp(seconds: float) -> str:
    return f"{datetime.fromtimestamp(EPOCH + seconds, timezone.utc):%Y-%m-%dT%H:%M:%S.%f}001Z"


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., str | None]:
    """What a run says of ranks, each a log, the second of its end, and its exit code; `None` runs on.

    A `+` behind the code: it was stopped when another one had failed.
    """

    def tell(*ranks: tuple[str, float, str | None]) -> str | None:
        seen: list[ObservedRank] = []
        logs: dict[int, Path] = {}
        for rank, (log, second, code) in enumerate(ranks):
            logs[rank] = tmp_path / f"{rank}.log"
            lines = [line.partition(" ") for line in log.splitlines()]
            logs[rank].write_text(
                "".join(f"{stamp(float(at) + AHEAD[rank])} {text}\n" for at, _, text in lines)
            )
            if code is None:
                seen.append(ObservedRank(rank, "silent"))
                continue
            marks = frozenset({"go", "started", *(["stopping"] if code.endswith("+") else [])})
            finished = stamp(second + AHEAD[rank])
            number = int(code.removesuffix("+"))
            seen.append(
                ObservedRank(rank, "exited", number, finished_at=finished, marks=marks, ahead_s=AHEAD[rank])
            )
        plan = compiled(
            fleet(*(node(index) for index in range(len(ranks)))), image="i", nodes=len(ranks)
        ).plan
        failure = first_failure(seen, logs)
        return None if failure is None else first_failure_text(plan, seen, failure)

    return tell


Ranks = Sequence[tuple[str, float, str | None]]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        # By the clocks of the nodes, rank 0 failed ten minutes earlier.
        (
            [("", 9, "1"), (RAISED, 8, "1")],
            "rank 1 on node n1 exited with code 1: ValueError: bad batch: 'x'",
        ),
        (
            [("", 7, "2"), (RAISED, 8, "1")],
            "rank 1 on node n1 exited with code 1: ValueError: bad batch: 'x'",
        ),
        ([("", 7, "2"), ("", 6, "3"), ("", 5, "4")], "rank 2 on node n2 exited with code 4"),
        # The peers of a rank that raises may end sooner, and it is stopped because of them.
        (
            [(RESET, 3, "1"), (RAISED + AGENT, 31, "1")],
            "rank 1 on node n1 exited with code 1: ValueError: bad batch: 'x'",
        ),
        ([(RESET, 3, "1"), (RAISED, 31, "143+")], "rank 1 on node n1 failed: ValueError: bad batch: 'x'"),
        ([(RESET, 3, "1"), ("4 step 8\n", 5, "143+")], f"rank 0 on node n0 exited with code 1: {GONE}"),
        # All complain of each other.
        (
            [(RESET, 3, "1"), (RESET.replace("3 ", "2.5 "), 4, "1")],
            f"rank 1 on node n1 exited with code 1: {GONE}",
        ),
        (
            [(RESET, 3, "1"), (OUT_OF_MEMORY + AGENT, 31, "1")],
            "rank 1 on node n1 exited with code 1: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB.",
        ),
        (
            [(CHAINED, 3, "1"), (RESET, 3, "1")],
            "rank 0 on node n0 exited with code 1: BrokenPipeError: [Errno 32] Broken pipe",
        ),
        # What was told long before its end, a rank has survived.
        (
            [(SURVIVED + RESET, 3, "1"), (RAISED, 5, "1")],
            "rank 1 on node n1 exited with code 1: ValueError: bad batch: 'x'",
        ),
        (
            [(MISSING, 3, "127")],
            "rank 0 on node n0 exited with code 127: /run/orch/job.sh: line 2: trian: command not found",
        ),
        ([("1 all is well\n", 3, "1")], "rank 0 on node n0 exited with code 1"),
        ([("1 all is well\n", 3, "0"), (RAISED, 4, "143+")], None),
    ],
)
def test_the_first_failure_is_told(told: Callable[..., str | None], ranks: Ranks, text: str | None) -> None:
    assert told(*ranks) == text


def test_a_node_that_is_gone_is_told_where_its_peers_only_complain_of_it(
    told: Callable[..., str | None],
) -> None:
    assert (told((RESET, 3, "1"), ("", 0, None)) or "").endswith("; node n1 does not answer")
    assert (
        told((RAISED, 3, "1"), ("", 0, None))
        == "rank 0 on node n0 exited with code 1: ValueError: bad batch: 'x'"
    )


def test_a_log_that_is_not_here_leaves_the_ends() -> None:
    ended = ObservedRank(0, "exited", 3, finished_at=stamp(5), marks=frozenset({"go", "started"}))
    assert first_failure([ended], {}) == Failure(0, pytest.approx(EPOCH + 5))
