"""Who follows a run asks its ledger seldom: a shared one has many followers, and logs tell of an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.nodes.foldernodes import FolderLab, FolderRuntime
from kit.support import until
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from orch.cli.runs import ps
from orch.cli.runs.metrics import Watched
from orch.runner.errors import LedgerUnusable
from orch.runner.events import LogLine, Notice, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger import patience
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import Lease, RunRow
from orch.runner.node.runtimes import RUNTIMES
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
def place(tmp_path: Path, boxes: FolderLab, ledger_url: str) -> Iterator[RunnerContext]:
    ledger = open_ledger(ledger_url)
    runtimes = {**RUNTIMES, "folder": FolderRuntime()}
    yield RunnerContext(tmp_path / ".orch", ledger, boxes.connector, Recorder(), runtimes)
    ledger.close()


@pytest.fixture
def elsewhere(place: RunnerContext, ledger_url: str) -> Iterator[tuple[RunnerContext, list[str]]]:
    """The same project as another process has it, and what that asks the ledger."""
    ledger, asked = open_ledger(ledger_url), list[str]()

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
    row = lifecycle.submit(
        place, Submission(Task.model_validate(given), boxes.fleet(), image="none", base=tmp_path)
    )
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


class Away:
    """Keeps a ledger from being read for as long as `now` says; `met`: how often that was met."""

    def __init__(self, place: RunnerContext) -> None:
        self.now: BaseException | None = None
        self.met = self.asked = 0
        event.listen(place.ledger._engine, "before_cursor_execute", self._heard)

    def _heard(self, *_: object) -> None:
        self.asked += 1
        if self.now is not None:
            self.met += 1
            raise self.now

    def for_a_while(self, met: Callable[[], bool] | None = None, then: BaseException | None = None) -> None:
        """Be away until a reader has met it twice. `then`: what is raised to readers from then on."""
        self.met, self.now = 0, OperationalError("", {}, Exception("the server closed the connection"))
        until(lambda: self.met > 1 and (met is None or met()), 120, "a reader meets a ledger that is away")
        self.now = then


class Reader:
    """Something that reads in a thread of its own; `failed` is what ended it, if not its work."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.failed: BaseException | None = None
        self._work = work
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.failed = error


def warnings(place: RunnerContext) -> list[str]:
    assert isinstance(place.processor, Recorder)
    return [
        each.text for each in place.processor.events if isinstance(each, Notice) and each.level == "warning"
    ]


@pytest.mark.parametrize("follow", [attach, follow_logs])
def test_a_follower_waits_for_a_ledger_that_is_away_for_a_while(
    follow: Callable[[RunnerContext, RunRow], None],
    elsewhere: tuple[RunnerContext, list[str]],
    running: tuple[RunRow, Driver],
    tmp_path: Path,
) -> None:
    (place, _), (row, driver) = elsewhere, running
    away, reader = Away(place), Reader(lambda: follow(place, row))
    until(lambda: len(lines(place)) == 2, 120, "the run's first lines")
    away.for_a_while(lambda: bool(warnings(place)))
    (tmp_path / "enough").touch()
    driver.run()
    reader.thread.join(120)
    assert not reader.thread.is_alive()
    assert reader.failed is None
    assert lines(place) == ["begun", "begun", "enough", "enough"]
    assert warnings(place) == [
        "the run ledger cannot be used: the server closed the connection; trying again"
    ]


def test_metrics_go_on_while_the_ledger_is_away(
    elsewhere: tuple[RunnerContext, list[str]], running: tuple[RunRow, Driver], tmp_path: Path
) -> None:
    (place, _), (row, driver) = elsewhere, running
    watched, away = Watched(place, None, row), Away(place)
    away.now = OperationalError("", {}, Exception("the server closed the connection"))
    assert watched.goes_on()
    (tmp_path / "enough").touch()
    driver.run()
    assert watched.goes_on()
    assert away.met == 2
    away.now = None
    assert not watched.goes_on()


def test_what_shows_runs_goes_on_while_the_ledger_is_away(
    elsewhere: tuple[RunnerContext, list[str]],
    running: tuple[RunRow, Driver],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ps, "WATCH_S", 0.05)
    place, away = elsewhere[0], Away(elsewhere[0])
    every = ps.Wanted(everything=True, statuses=(), fleets=(), owners=())
    reader = Reader(lambda: ps._watch(place, every, wide=False))
    until(lambda: away.asked > 20, 120, "looks")
    away.for_a_while()
    before = away.asked
    until(lambda: away.asked > before + 20, 120, "looks that go on")
    assert reader.failed is None
    away.for_a_while(then=KeyboardInterrupt())
    reader.thread.join(120)
    assert isinstance(reader.failed, KeyboardInterrupt)
    assert "the server closed the connection; trying again" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "enough").touch()
    running[1].run()


def test_a_ledger_that_stays_away_ends_who_follows(
    elsewhere: tuple[RunnerContext, list[str]],
    running: tuple[RunRow, Driver],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (place, _), (row, driver) = elsewhere, running
    monkeypatch.setattr(patience, "LEDGER_PATIENCE_S", 0.0)
    away, reader = Away(place), Reader(lambda: follow_logs(place, row))
    until(lambda: len(lines(place)) == 2, 120, "the run's first lines")
    away.now = OperationalError("", {}, Exception("the server closed the connection"))
    reader.thread.join(120)
    assert isinstance(reader.failed, LedgerUnusable)
    away.now = None
    (tmp_path / "enough").touch()
    driver.run()
