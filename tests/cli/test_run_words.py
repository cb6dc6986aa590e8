"""What a run says of the time before its commands and between its attempts."""

from __future__ import annotations

import io
import json
import sys
import threading
from dataclasses import fields, replace
from datetime import datetime, timezone
from typing import Any

import pytest
from kit.support import until

from orch.cli.output.live import FoldedLogs, Live, MessagePrinter
from orch.cli.output.run import (
    attempt_lines,
    dollars,
    rank_lines,
    rank_text,
    run_json,
    runs_table,
    summary,
)
from orch.runner.events import ImageProgress, LogLine, Notice, RunChanged
from orch.runner.ledger.records import AttemptRow, RankRow, RunRow
from orch.spec.state import NodeState


def row(status: str, created: float, started: float | None) -> RunRow:
    known: dict[str, Any] = {
        "name": "train",
        "status": status,
        "id": 7,
        "submitted_by": "ada@box",
        "created_at": created,
        "started_at": started,
        "finished_at": 200.0,
        "attempts": (),
        "ranks": (RankRow(0, "lab-0", status, None, None, None, None, True),),
    }
    return RunRow(**{each.name: known.get(each.name) for each in fields(RunRow)})


@pytest.mark.parametrize(
    ("status", "created", "said"),
    [
        ("done", 110.0, "run train: done in 20s on 1 node; it began after 1m 10s"),
        ("done", 179.0, "run train: done in 20s on 1 node"),
        ("terminated", 110.0, "run train: terminated in 20s; it began after 1m 10s"),
    ],
)
def test_a_run_that_waited_says_for_how_long(status: str, created: float, said: str) -> None:
    assert summary(row(status, created, 180.0)) == said


@pytest.mark.parametrize(
    ("total", "said"),
    [
        (713 << 20, "node lab-0: has the image orch/job (713 MiB in 1m 18s)\n"),
        (None, "node lab-0: has the image orch/job (in 1m 18s)\n"),
    ],
)
def test_an_image_that_came_says_its_size_and_its_time(
    total: int | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    event = ImageProgress("lab-0", "orch/job", total or 0, total, finished=True, seconds=78.4)
    Live(io.StringIO(), colour=False).handle(event)
    assert capsys.readouterr().err == said


def tried_again(**more: object) -> RunRow:
    """A run whose first attempt ran for 30 s and whose second found its node silent."""
    ranks = (RankRow(0, "lab-0", "failed", 3, "container_exited_with_error", None, None, True),)
    attempts = (
        AttemptRow(0, "", ("error",), "rank 0 on node lab-0 exited with code 3", 100.0, 130.0, ranks),
        AttemptRow(1, "", ("interruption", "no-capacity"), "node lab-0 is silent", None, 150.0, ranks),
    )
    base = row("running", 90.0, 180.0)
    given: dict[str, Any] = {"fleet": "lab", "plan": "", "now": 240.0, "attempt": 2, "attempts": attempts}
    return replace(base, **{**given, "finished_at": None, **more})


def nodes_of(*prices: float | None, backend: str = "aws", blocks: int = 8) -> str:
    """The plan of a run on nodes of eight blocks."""
    ranks = [{"node": {"price_hourly": price, "blocks": 8}, "blocks": blocks} for price in prices]
    return json.dumps({"backend": backend, "ranks": ranks})


@pytest.mark.parametrize(
    ("plan", "per_hour", "cost"),
    [
        (nodes_of(98.0, 98.0), "$196.00", "$3.27"),
        (nodes_of(98.0, blocks=1), "$12.25", "$0.20"),
        (nodes_of(0.01), "$0.01", "$0.00017"),
        (nodes_of(98.0, None), "unknown", "unknown"),
        (nodes_of(None, backend="ssh"), "$0.00", "$0.00"),
        (nodes_of(None, backend="local"), "$0.00", "$0.00"),
        ("of another version", "unknown", "unknown"),
    ],
)
def test_what_the_nodes_of_a_run_cost_is_told(plan: str, per_hour: str, cost: str) -> None:
    """They are paid for while commands run."""
    running = tried_again(plan=plan, attempt=0, attempts=())
    head, line = runs_table([running], colour=False, wide=True).splitlines()
    assert line[head.index("PER HOUR") : head.index("REASON")].split() == [per_hour, cost]
    told = run_json(running)
    assert [dollars(told["price_hourly"]), dollars(told["cost"])] == [per_hour, cost]


def test_a_run_costs_what_all_of_its_attempts_cost() -> None:
    plan = nodes_of(36.0)
    first = replace(tried_again().attempts[0], plan=plan)
    running = tried_again(plan=plan, attempts=(first,), attempt=1)
    assert run_json(running)["cost"] == pytest.approx(0.3 + 0.6)
    waiting = tried_again(plan=plan, attempts=(first,), attempt=0, status="pending", queued_at=None)
    assert run_json(waiting)["cost"] == pytest.approx(0.3)
    assert run_json(tried_again(plan=plan))["cost"] is None
    (_, line) = runs_table([waiting], colour=False, wide=True).splitlines()
    assert line.split()[-3:] == ["-", "$0.30", "-"]


def test_the_attempts_of_a_run_are_told_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    running = tried_again()
    assert attempt_lines(running) == [
        "  attempt 0  lab-0  failed (error) after 30s: rank 0 on node lab-0 exited with code 3",
        "  attempt 1  lab-0  could not start (interruption, no-capacity): node lab-0 is silent",
    ]
    assert "running, attempt 2" in runs_table([running], colour=False)
    data = run_json(running)
    assert (data["attempt"], data["next_attempt_at"]) == (2, None)
    assert [(each["attempt"], each["events"], each["nodes"]) for each in data["attempts"]] == [
        (0, ["error"], ["lab-0"]),
        (1, ["interruption", "no-capacity"], ["lab-0"]),
    ]
    waiting = tried_again(status="pending", next_at=270.0, started_at=None)
    (line,) = runs_table([waiting], colour=False).splitlines()[1:]
    assert line.split() == [
        "train",
        "7",
        "lab",
        "-",
        "pending",
        "(retry)",
        "ada@box",
        "2m",
        "30s",
        "ago",
        "-",
    ]
    assert run_json(waiting)["next_attempt_at"] == "1970-01-01T00:04:30.000Z"
    done = tried_again(status="done", finished_at=200.0)
    assert summary(done) == "run train: done in 20s on 1 node, the last of 3 attempts in 1m 50s"
    Live(io.StringIO(), colour=False).handle(RunChanged("train", "pending", "retry", "attempt 0 failed"))
    assert capsys.readouterr().err == "run train: attempt 0 failed\n"


@pytest.mark.parametrize(
    ("code", "reason", "message", "said"),
    [
        (3, "container_exited_with_error", "ValueError: bad batch", "exited (3)"),
        (143, "max_duration_exceeded", None, "failed"),
        (1, "terminated_due_to_utilization_policy", None, "failed"),
        (None, "failed_to_start_due_to_no_capacity", None, "no capacity"),
        (0, "interrupted_by_no_capacity", None, "interrupted"),
        (None, "preempted", None, "preempted"),
        (None, "instance_unreachable", None, "failed"),
    ],
)
def test_a_run_has_the_same_status_everywhere(
    code: int | None, reason: str, message: str | None, said: str
) -> None:
    """It is of the rank that failed first, whatever the others were stopped with."""
    first = RankRow(1, "lab-1", "failed", code, reason, message, None, True)
    other = RankRow(0, "lab-0", "terminated", 137, "sibling_failed", None, None, True)
    also = RankRow(2, "lab-2", "failed", 9, "container_exited_with_error", None, None, True)
    ranks = (other, first, also) if message else (other, first)
    run = tried_again(status="failed", ranks=ranks, finished_at=200.0, attempt=0, attempts=(), reason="why")
    head, line = runs_table([run], colour=False).splitlines()
    assert line[head.index("STATUS") :].startswith(f"{said}  ")
    assert summary(run).startswith(f"run train: {said} in 20s: why")
    assert (run_json(run)["status"], run_json(run)["status_text"]) == ("failed", said)


def test_a_run_that_was_stopped_is_terminated_everywhere() -> None:
    run = tried_again(status="terminated", finished_at=200.0, attempt=0, attempts=())
    head, line = runs_table([run], colour=False).splitlines()
    assert line[head.index("STATUS") :].startswith("terminated ")
    assert summary(run).startswith("run train: terminated in 20s")
    assert run_json(run)["status_text"] == "terminated"


@pytest.mark.parametrize("columns", [80, 120, 160])
def test_a_table_for_a_narrow_terminal_has_names_status_and_reason_whole(columns: int) -> None:
    why = "rank 12 on node pool-of-a100-12 exited with code 3: ValueError: bad batch of data"
    name = "a-run-with-a-rather-long-name"
    rank = RankRow(0, "lab-0", "failed", 3, "container_exited_with_error", "bad batch", None, True)
    run = tried_again(name=name, status="failed", message=why, finished_at=200.0, ranks=(rank,))
    table = runs_table([run], colour=False, wide=True, width=columns)
    head, first, *rest = table.splitlines()
    assert max(map(len, table.splitlines())) <= columns
    assert "\u2026" not in table
    assert {"RUN", "STATUS", "REASON"} <= set(head.split())
    assert first.startswith(f"{name} ")
    assert "exited (3), attempt 2 " in first
    place = head.index("REASON")
    assert " ".join(line[place:].strip() for line in (first, *rest)) == why


def test_a_table_that_is_piped_has_all_columns() -> None:
    run = tried_again(name="n" * 40, status="failed", message="why " * 60, finished_at=200.0)
    assert len(runs_table([run], colour=False, wide=True).splitlines()) == 2


class StandsStill(io.StringIO):
    """A terminal after Ctrl-S: it takes nothing before Ctrl-Q."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def write(self, text: str, /) -> int:
        self.asked.set()
        self.goes_on.wait()
        return super().write(text)


@pytest.mark.parametrize("a_log_line_waits_too", [False, True])
def test_a_terminal_that_stands_still_keeps_nobody_who_drives_a_run(
    monkeypatch: pytest.MonkeyPatch, a_log_line_waits_too: bool
) -> None:
    screen = StandsStill()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(MessagePrinter, "WAIT_S", 0.05)
    live = Live(screen, colour=False)
    teller = threading.Thread(target=live.handle, args=(LogLine(0, "p5-0", "", "epoch 1"),), daemon=True)
    if a_log_line_waits_too:
        teller.start()
        until(screen.asked.is_set, 10, "somebody prints")
    for text in ("one", "two", "three"):
        live.handle(Notice(text))
    assert (screen.getvalue(), live.status()) == ("", "")
    screen.goes_on.set()
    live.handle(Notice("four"))
    told = ["epoch 1"] if a_log_line_waits_too else []
    until(lambda: "four" in screen.getvalue(), 10, "all is printed")
    lines = screen.getvalue().splitlines()
    assert [line.split()[-1] for line in lines if "epoch" not in line] == ["one", "two", "three", "four"]
    assert [line for line in lines if "epoch" in line] == [f"[0 p5-0] {text}" for text in told]


def folded(*lines: tuple[float, int, str]) -> list[str]:
    out = io.StringIO()
    logs = FoldedLogs(Live(out, colour=False))
    for at, rank, text in lines:
        stamp = datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")
        logs.handle(LogLine(rank, f"lab-{rank}", stamp, text))
    logs.finish()
    return out.getvalue().splitlines()


def test_equal_lines_of_ranks_are_one() -> None:
    said = [
        (1.0, 0, "loading"),
        (1.1, 2, "loading"),
        (1.2, 0, "rank 0"),
        (1.3, 1, "loading"),
        (1.4, 2, "rank 2"),
    ]
    assert folded(*said) == ["[0-2] loading", "[0 lab-0] rank 0", "[2 lab-2] rank 2"]
    # The lines of a rank keep their order, and none is lost.
    assert folded((1.0, 0, "a"), (1.1, 0, "b"), (1.2, 1, "b"), (1.3, 1, "a")) == [
        "[0 lab-0] a",
        "[0-1] b",
        "[1 lab-1] a",
    ]
    assert folded((1.0, 0, "a"), (1.1, 0, "a"), (1.2, 1, "a"), (1.3, 1, "a")) == ["[0-1] a", "[0-1] a"]
    # Not those that were written at other times.
    assert folded((1.0, 0, "step"), (4.0, 1, "step")) == ["[0 lab-0] step", "[1 lab-1] step"]


def test_few_lines_wait_for_those_of_other_ranks() -> None:
    many = [(1.0, 0, f"line {number}") for number in range(FoldedLogs.MOST + 1)]
    assert folded(*many, (1.0, 1, "line 0"))[-1] == "[1 lab-1] line 0"
    assert folded(*many, (1.0, 1, "line 1"))[1] == "[0-1] line 1"


def plan_on(**more: Any) -> str:
    """The plan of a run on a pod, or on what stands for one."""
    access = {"kind": "kubernetes", "namespace": "space", "mark": "lab-abc123"}
    node = NodeState.model_validate(
        {"index": 0, "name": "lab-0", "access": access, "runtime": "process", "internal_ip": "lab-0", **more}
    )
    return f'{{"backend":"kubernetes","ranks":[{{"rank":0,"node":{node.model_dump_json()},"blocks":1}}]}}'


def test_a_run_that_never_had_its_pods_names_none() -> None:
    never, had = plan_on(), plan_on(made_for="lab-7-0")
    ended = {"status": "terminated", "attempt": 0, "attempts": ()}
    for plan, name in ((never, "-"), (had, "lab-0")):
        run = tried_again(plan=plan, **ended)
        head, line = runs_table([run], colour=False).splitlines()
        assert line[head.index("NODES") : head.index("STATUS")].strip() == name
        assert rank_lines(run) == [f"  rank 0  {name}  {rank_text(run.ranks[0])}"]
        first = replace(tried_again().attempts[1], plan=plan)
        assert attempt_lines(tried_again(attempts=(first,)))[0].startswith(f"  attempt 1  {name}  could not")
