"""Runs that wait for nodes: who is next, and that nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kit.nodes.foldernodes import FolderLab, FolderRuntime
from kit.support import until

from orch.cli.output.run import place_text, run_json, runs_table
from orch.runner.errors import InLine
from orch.runner.events import Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger import waiting_line
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import RunRow
from orch.runner.ledger.waiting_line import HOLD_S, POINT_S, TURN_S, Line, Waiter
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.runs import driver, lifecycle, retry
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.errors import ExitCode
from orch.spec.models import Task

NOW = 1_000_000.0


def waiter(number: int, waited_s: float, priority: int = 0, **more: object) -> Waiter:
    """One that looked a minute ago, and found the nodes in use."""
    given = {"looked_at": NOW - 60, "in_use": True, "driven": True, **more}
    return Waiter(number, f"r{number}", priority, NOW - waited_s, **given)  # type: ignore[arg-type]


def line(*waiters: Waiter, released_s: float | None = None) -> Line:
    return Line.of(waiters, None if released_s is None else NOW - released_s, NOW)


def names(found: Line) -> list[str]:
    return [each.name for each in found.waiters]


def test_the_highest_priority_is_first_and_then_who_came_first() -> None:
    found = line(waiter(3, 10), waiter(1, 30), waiter(2, 20, 5), waiter(4, 5, 5))
    assert names(found) == ["r2", "r4", "r1", "r3"]
    assert [found.position(number) for number in (1, 2, 9)] == [3, 1, None]


def test_who_waits_gains_points_so_that_a_priority_is_not_for_ever() -> None:
    assert names(line(waiter(1, 99 * POINT_S), waiter(2, 0, 100))) == ["r2", "r1"]
    assert names(line(waiter(1, 101 * POINT_S), waiter(2, 0, 100))) == ["r1", "r2"]


@pytest.mark.parametrize(
    ("first", "holds"),
    [
        (waiter(1, HOLD_S - 1), False),
        (waiter(1, HOLD_S), True),
        # Nobody could begin it, or other runs are not what it waits for.
        (waiter(1, HOLD_S, driven=False), False),
        (waiter(1, HOLD_S, in_use=False), False),
        (waiter(1, HOLD_S, looked_at=NOW - 1000), False),
    ],
)
def test_nodes_are_kept_for_a_run_that_was_passed_for_long(first: Waiter, holds: bool) -> None:
    found = line(first, waiter(2, 5))
    assert (found.before(2, 0) is not None) == holds
    assert (found.before(None, 0) is not None) == holds
    assert found.before(1, 0) is None
    # A run that is submitted with a higher priority is before both.
    assert found.before(None, 5) is None


def test_when_nodes_come_free_those_before_look_first() -> None:
    found = line(waiter(1, 50), waiter(2, 40), released_s=3)
    assert found.nodes_came_free(2)
    assert found.before(2, 0) == found.waiters[0]
    looked = line(waiter(1, 50, looked_at=NOW - 1), waiter(2, 40), released_s=3)
    assert looked.before(2, 0) is None
    assert not looked.nodes_came_free(1)
    # Not for ever: its driver may hang.
    assert line(waiter(1, 50), waiter(2, 40), released_s=TURN_S + 1).before(2, 0) is None


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[FolderLab]:
    (tmp_path / "boxes").mkdir()
    lab = FolderLab(tmp_path / "boxes")
    yield lab
    lab.end()


@pytest.fixture
def place(tmp_path: Path, boxes: FolderLab, ledger_url: str) -> Iterator[RunnerContext]:
    ledger = open_ledger(ledger_url)
    runtimes = {**RUNTIMES, "folder": FolderRuntime()}
    yield RunnerContext(tmp_path / ".orch", ledger, boxes.connector, Recorder(), runtimes)
    ledger.close()


@pytest.fixture
def submit(place: RunnerContext, boxes: FolderLab, tmp_path: Path) -> Callable[..., RunRow]:
    def submit(name: str, *, wait: bool = True, **task: object) -> RunRow:
        given = Task.model_validate({"name": name, "nodes": 2, "shell": "sh", "commands": ["true"], **task})
        return lifecycle.submit(
            place, Submission(given, boxes.fleet(), image="none", base=tmp_path), wait=wait
        )

    return submit


def test_runs_begin_by_priority_and_then_in_the_order_they_came(
    submit: Callable[..., RunRow], place: RunnerContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "DELAYS_S", (3600,))  # only that nodes come free makes them look again
    monkeypatch.setattr(driver, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(waiting_line, "HOLD_S", 0.0)
    threads: list[threading.Thread] = []
    gate, silent = tmp_path / "gate", replace(place, processor=Recorder())

    def drive(row: RunRow) -> RunRow:
        threads.append(threading.Thread(target=lifecycle.drive, args=(silent, row)))
        threads[-1].start()
        until(lambda: place.ledger.by_id(row.id).held, 60, f"{row.name} has a driver")
        return row

    try:
        busy = drive(submit("busy", commands=[f"until [ -e {gate} ]; do sleep 0.1; done"], wait=False))
        until(lambda: place.ledger.by_id(busy.id).status == "running", 60, "the first run runs")
        rows = [drive(submit("first")), drive(submit("second")), drive(submit("urgent", priority=5))]
        assert [row.status for row in rows] == ["pending"] * 3
        assert rows[0].message == "the run needs 2 nodes, 0 are free: in use: box-[0-1] by busy"
        assert rows[1].message == "run first is before it in the line for these nodes"
        found = place.ledger.line("boxes")
        assert names(found) == ["urgent", "first", "second"]
        present = [place.ledger.by_id(row.id) for row in rows]
        assert [place_text(row, found) for row in present] == [
            *(" (2nd of 3 in line)", " (3rd of 3 in line)", " (1st of 3 in line)")
        ]
        told = run_json(present[2], line=found)
        assert (told["priority"], told["place_in_line"]) == (5, 1)
        assert "pending (2nd of 3 in line)" in runs_table(present, {"boxes": found}, colour=False)
        with pytest.raises(InLine, match="run urgent is before it in the line") as caught:
            submit("pusher", wait=False, nodes=1)
        assert caught.value.exit_code is ExitCode.CONFLICT
        assert "`--wait`" in (caught.value.hint or "")
    finally:
        gate.touch()
        for thread in threads:
            thread.join(120)
    ended = [place.ledger.by_id(row.id) for row in rows]
    assert [row.status for row in ended] == ["done"] * 3
    begun = sorted(ended, key=lambda row: row.started_at or 0)
    assert [row.name for row in begun] == ["urgent", "first", "second"]
    assert [(row.queued_at, row.attempt) for row in ended] == [(None, 0)] * 3
