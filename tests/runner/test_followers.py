"""Who follows a run asks its ledger seldom: a shared one has many followers, and logs tell of an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from foldernodes import FolderLab, ProcessRuntime
from sqlalchemy import event

from orch.runner.events import LogLine, Recorder
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import Lease, RunRow
from orch.runner.node.docker import RUNTIMES
from orch.runner.runs import lifecycle
from orch.runner.runs.driver import Driver
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.runs.read_logs import Selection, read_logs
from orch.spec.models import Task

QUIET_S = 5.0
# A pause that doubles, or grows by half, comes to fewer; twice a second would be 10, five times 25.
MOST = 8


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[FolderLab]:
    (tmp_path / "boxes").mkdir()
    lab = FolderLab(tmp_path / "boxes")
    yield lab
    lab.end()


@pytest.fixture
def place(tmp_path: Path, boxes: FolderLab) -> Iterator[RunnerContext]:
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    runtimes = {**RUNTIMES, "process": ProcessRuntime()}
    yield RunnerContext(tmp_path / ".orch", ledger, boxes.connector, Recorder(), runtimes)
    ledger.close()


@pytest.fixture
def elsewhere(place: RunnerContext, tmp_path: Path) -> Iterator[tuple[RunnerContext, list[str]]]:
    """The same project as another process has it, and what that asks the ledger."""
    ledger, asked = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}"), list[str]()

    def heard(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("SELECT") and "FROM run" in statement:
            asked.append(statement)

    event.listen(ledger._engine, "before_cursor_execute", heard)
    yield replace(place, ledger=ledger, processor=Recorder()), asked
    ledger.close()


@pytest.fixture
def running(place: RunnerContext, boxes: FolderLab, tmp_path: Path) -> Iterator[tuple[RunRow, Driver]]:
    """A run whose ranks wait for a file, and who drives it: nobody looks until that does."""
    wait = f"while [ ! -e {tmp_path}/enough ]; do sleep 0.2; done; echo enough"
    given = {"name": "job", "nodes": 2, "commands": ["echo begun", wait], "shell": "sh"}
    row = lifecycle.submit(place, Task.model_validate(given), boxes.fleet(), image="none", base=tmp_path)
    lease = place.ledger.take(row.id, "somebody")
    assert isinstance(lease, Lease)
    driver = Driver(place.context(row), row, lease, follow_logs=False)
    while place.ledger.by_id(row.id).status != "running":
        driver.step()
        driver._reload()
    yield place.ledger.by_id(row.id), driver
    place.ledger.release(lease)


def lines(place: RunnerContext) -> list[str]:
    assert isinstance(place.processor, Recorder)
    return sorted(event.text for event in place.processor.events if isinstance(event, LogLine))


def attach(place: RunnerContext, row: RunRow) -> None:
    assert lifecycle.drive(place, row).status == "done"


def follow_logs(place: RunnerContext, row: RunRow) -> None:
    read_logs(place, row, Selection((0, 1)), follow=True)


@pytest.mark.parametrize("follow", [attach, follow_logs])
def test_a_follower_asks_the_ledger_seldom_and_sees_the_end(
    follow: Callable[[RunnerContext, RunRow], None],
    elsewhere: tuple[RunnerContext, list[str]],
    running: tuple[RunRow, Driver],
    tmp_path: Path,
) -> None:
    (place, asked), (row, driver) = elsewhere, running
    failures: list[BaseException] = []

    def work() -> None:
        try:
            follow(place, row)
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    follower = threading.Thread(target=work, daemon=True)
    follower.start()
    end = time.monotonic() + 60
    while len(lines(place)) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    assert lines(place) == ["begun", "begun"]
    before = len(asked)
    time.sleep(QUIET_S)
    assert len(asked) - before <= MOST
    (tmp_path / "enough").touch()
    driver.run()
    follower.join(60)
    assert not follower.is_alive()
    assert failures == []
    assert lines(place) == ["begun", "begun", "enough", "enough"]
