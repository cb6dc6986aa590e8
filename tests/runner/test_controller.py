"""`orch reconcile` and `orch controller`, and two people with one ledger: on nodes that are folders."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kit.ledgers import postgres as servers
from kit.ledgers.postgres import Postgres
from kit.nodes import foldernodes
from kit.nodes.foldernodes import FolderLab, FolderRuntime
from kit.support import Said, Started, code_of, fork_server, until

from orch.runner.errors import NodeDiskFull
from orch.runner.events import Notice, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger import controllers, patience
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import RunRow
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.node_api.connector import Connector
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs import controller, lifecycle
from orch.runner.runs.controller import Controller
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task

TESTS = Path(__file__).resolve().parents[1]
ORCH_FOLDERS = TESTS / "kit/nodes/orch_folders.py"


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


def submit(place: RunnerContext, boxes: FolderLab, name: str, *, wait: bool = True, **task: object) -> RunRow:
    given = Task.model_validate({"name": name, "nodes": 2, "shell": "sh", "stop_duration": 5, **task})
    return lifecycle.submit(
        place, Submission(given, boxes.fleet(), image="none", base=place.dot.parent), wait=wait
    )


def test_passes_begin_a_run_and_bring_it_to_its_end_but_only_where_it_was_submitted(
    place: RunnerContext, boxes: FolderLab, tmp_path: Path
) -> None:
    row = submit(place, boxes, "job", commands=[f"echo $NODE_RANK >> {tmp_path}/begun"])
    waiting = submit(place, boxes, "later", commands=[f"echo later >> {tmp_path}/begun"])
    assert waiting.status == "pending"
    elsewhere = replace(place, dot=tmp_path / "other/.orch")
    passes = lifecycle.reconcile_once(elsewhere, begin=True)
    assert [(each.after.status, each.error) for each in passes] == [("submitted", None), ("pending", None)]
    # A look at it, as `orch ps` has one, begins nothing either.
    assert [each.after.status for each in lifecycle.reconcile_once(place)] == ["submitted", "pending"]

    def ended() -> bool:
        lifecycle.reconcile_once(place, begin=True)
        return not place.ledger.runs(active_only=True)

    until(ended, 60, "passes end the runs")
    assert [row.status for row in place.ledger.runs()] == ["done", "done"]
    assert sorted((tmp_path / "begun").read_text().split()) == ["0", "1", "later", "later"]
    assert place.ledger.by_id(row.id).owner is None


def test_runs_that_wait_for_another_machine_do_not_keep_a_controller_from_its_own(
    place: RunnerContext, boxes: FolderLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "PAUSE_S", 0.05)
    monkeypatch.setattr(controller, "AT_ONCE", 2)
    elsewhere = replace(place, dot=tmp_path / "other/.orch")
    others = boxes.fleet().model_copy(update={"name": "others", "stack": "others"})
    for index in range(3):
        given = {"name": f"other-{index}", "nodes": 1, "shell": "sh", "commands": ["true"]}
        task = Task.model_validate(given)
        lifecycle.submit(
            elsewhere, Submission(task, others, image="none", base=elsewhere.dot.parent), wait=True
        )
    submit(place, boxes, "own", nodes=1, commands=["true"])
    loop = Controller(place)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        until(lambda: place.ledger.get("own").status == "done", 120, "its own run has ended")
    finally:
        loop.stop()
        thread.join(60)
    assert {place.ledger.get(f"other-{index}").status for index in range(3)} <= {"submitted", "pending"}


def test_a_controller_sees_to_fleets_again_and_again_and_tells_what_it_did(
    place: RunnerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "PAUSE_S", 0.05)
    monkeypatch.setattr(controller, "FLEETS_EVERY_S", 0.1)
    looks: list[int] = []

    def look() -> list[Notice]:
        looks.append(len(looks))
        if looks[-1] == 0:
            raise NodeDiskFull("no room")
        return [Notice("fleet old: its time is over: removed", "info")]

    loop = Controller(place, look)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        until(lambda: len(looks) > 2, 120, "it has looked again")
    finally:
        loop.stop()
        thread.join(60)
    assert isinstance(place.processor, Recorder)
    told = [event.text for event in place.processor.events if isinstance(event, Notice)]
    assert told == ["no room", "fleet old: its time is over: removed"]


def test_two_controllers_do_everything_and_nothing_twice(
    place: RunnerContext, boxes: FolderLab, tmp_path: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver is killed in the middle, too."""
    monkeypatch.setattr(controller, "PAUSE_S", 0.05)
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    commands = [f"echo $ORCH_RUN_NAME >> {begun}"]
    killed = submit(place, boxes, "killed", commands=[*commands, f"until [ -e {gate} ]; do sleep 0.1; done"])
    process = foldernodes.driver(place.dot, ledger_url, "killed", 600)
    try:
        until(lambda: place.ledger.get("killed").status == "running", 120, "it runs")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    for index in range(4):
        submit(place, boxes, f"run-{index}", nodes=1 + index % 2, commands=commands)
    (tmp_path / "orch.yml").write_text(f"project: team\nledger: {ledger_url}\n")
    loop = Controller(place)
    thread = threading.Thread(target=loop.run)
    other = Person(tmp_path).start("controller")
    thread.start()
    try:
        until(lambda: len(place.ledger.controllers()) == 2, 120, "both live")
        until(lambda: bool(place.ledger.samples(killed.id, 0)), 120, "what it uses is kept")
        gate.touch()
        until(lambda: not place.ledger.runs(active_only=True), 120, "all runs have ended")
        assert loop.well
    finally:
        loop.stop()
        other.terminate()
        thread.join(60)
        _, err = other.communicate(timeout=120)
    assert other.returncode == 0, err
    rows = place.ledger.runs()
    assert [row.status for row in rows] == ["done"] * 5, [row.message for row in rows]
    names = begun.read_text().split()
    assert sorted(names) == sorted(["killed"] * 2 + ["run-0", "run-2"] + ["run-1"] * 2 + ["run-3"] * 2)
    assert [str(path) for name in ("runs", "claims") for path in boxes.path.glob(f"*/{name}/*")] == []
    assert place.ledger.controllers() == ()


def test_a_stop_that_is_killed_is_gone_on_with_by_the_next_pass(tmp_path: Path, boxes: FolderLab) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    ada, ledger = person(tmp_path, "ada", url), open_ledger(url)
    runtimes = {**RUNTIMES, "folder": FolderRuntime()}
    place = RunnerContext(ada.path / ".orch", ledger, boxes.connector, Recorder(), runtimes)
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    ends = f"trap 'until [ -e {gate} ]; do sleep 0.1; done; exit' TERM"
    waits = f"echo $NODE_RANK >> {begun}; while :; do sleep 0.1; done"
    row = submit(place, boxes, "job", commands=[f"{ends}; {waits}"], stop_duration=600)

    def advanced(status: str) -> bool:
        lifecycle.reconcile_once(place, begin=True)
        return ledger.by_id(row.id).status == status

    until(lambda: advanced("running"), 120, "it runs")
    with ada.start("stop", "job") as stop:
        until(lambda: ledger.by_id(row.id).status == "terminating", 120, "it is being stopped")
        stop.kill()
    gate.touch()
    until(lambda: advanced("terminated"), 120, "it has ended")
    assert ledger.by_id(row.id).reason == "stopped_by_user"
    assert sorted(begun.read_text().split()) == ["0", "1"]
    assert [str(path) for name in ("runs", "claims") for path in boxes.path.glob(f"*/{name}/*")] == []
    ledger.close()


def test_a_disk_that_is_full_when_commands_are_to_begin_fails_the_run(
    tmp_path: Path, boxes: FolderLab
) -> None:
    class Full(FolderRuntime):
        def lift_barrier(self, connector: Connector, plan: RunPlan, rank: int, port: int | None) -> None:
            if rank == 1:
                raise NodeDiskFull("the disk of node box-1 is full", reason="creating_container_error")
            super().lift_barrier(connector, plan, rank, port)

    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    place = RunnerContext(
        tmp_path / ".orch", ledger, boxes.connector, Recorder(), {**RUNTIMES, "folder": Full()}
    )
    row = lifecycle.drive(place, submit(place, boxes, "job", commands=["sleep 600"]))
    assert (row.status, row.message) == ("failed", "the disk of node box-1 is full")
    assert [rank.reason for rank in row.ranks] == ["sibling_failed", "creating_container_error"]
    assert [kind for _, kind, _ in ledger.events(row.id)].count("go") == 1
    assert [str(path) for name in ("runs", "claims") for path in boxes.path.glob(f"*/{name}/*")] == []
    ledger.close()


def test_a_run_outlasts_a_crash_of_postgresql(
    tmp_path: Path, boxes: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    if servers.binaries() is None:
        pytest.skip("there is no PostgreSQL server here: `make set-up-test` installs one")
    monkeypatch.setattr(patience, "LEDGER_PAUSE_S", 0.1)
    begun, gate, told = tmp_path / "begun", tmp_path / "gate", Recorder()
    runtimes = {**RUNTIMES, "folder": FolderRuntime()}
    with servers.own_server() as own, ExitStack() as stack:
        with own.running(signal.SIGQUIT):
            ledger = open_ledger(own.url("postgres"))
            place = RunnerContext(tmp_path / ".orch", ledger, boxes.connector, told, runtimes)
            waits = f"until [ -e {gate} ]; do sleep 0.1; done"
            row = submit(place, boxes, "job", commands=[f"echo $NODE_RANK >> {begun}; {waits}"])
            thread = threading.Thread(target=lifecycle.drive, args=(place, row), daemon=True)
            thread.start()
            until(lambda: ledger.by_id(row.id).status == "running", 120, "it runs")
        until(lambda: any("trying again" in str(each) for each in told.events), 120, "it is told")
        stack.enter_context(own.running())
        gate.touch()
        thread.join(120)
        assert ledger.by_id(row.id).status == "done"
        assert sorted(begun.read_text().split()) == ["0", "1"]
        ledger.close()


def test_a_controller_that_is_silent_or_dead_does_not_live(
    place: RunnerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.ledger.beat("ada@far:v2:7:123:other-boot:4026531836")
    (found,) = place.ledger.controllers()
    assert found.seen_s < 60
    monkeypatch.setattr(controllers, "SILENT_S", -1.0)
    assert place.ledger.controllers() == ()
    monkeypatch.undo()
    dead = subprocess.run(
        [sys.executable, "-c", "from orch.runner.processes import process_owner; print(process_owner())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    place.ledger.beat(dead)
    assert [each.owner for each in place.ledger.controllers()] == [found.owner]


@dataclass(frozen=True)
class Person:
    """Somebody with a project and a home of their own, and with a clock that may be wrong."""

    path: Path
    words: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.path.parent), "USER": self.path.parent.name}

    def start(self, *words: str) -> Started:
        return Started(code_of(ORCH_FOLDERS), ["orch", *words], self.path, self.environment)

    def orch(self, *words: str) -> Said:
        if not self.words:
            code = code_of(ORCH_FOLDERS)
            return Said(*fork_server().call(["orch", *words], self.path, self.environment, code=code))
        done = subprocess.run(
            [*self.words, sys.executable, str(ORCH_FOLDERS), *words],
            cwd=self.path,
            env={**self.environment, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)


def person(folder: Path, name: str, url: str, words: tuple[str, ...] = ()) -> Person:
    path = folder / name / "project"
    path.mkdir(parents=True)
    (path / "orch.yml").write_text(f"project: team\nledger: {url}\n")
    return Person(path, words)


def test_a_controller_tells_that_it_lives_and_ends_on_sigterm(tmp_path: Path) -> None:
    ada = person(tmp_path, "ada", f"sqlite:///{tmp_path / 'shared.db'}")
    wrong = ada.orch("controller", "--listen", "here")
    assert (wrong.code, "is not [HOST:]PORT" in wrong.err) == (2, True)
    process = ada.start("controller", "--listen", "0")
    assert process.stderr is not None
    try:
        url = re.search(r"http://127\.0\.0\.1:\d+/healthz", process.stderr.readline())
        assert url is not None
        with urllib.request.urlopen(url[0], timeout=60) as answer:
            assert json.loads(answer.read())["well"] is True
        until(lambda: bool(ada.orch("ps", "--json").json["controllers"]), 120, "`ps` tells of it")
        assert "a controller lives: process " in ada.orch("ps").err
    finally:
        process.terminate()
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err.splitlines()[-1]) == (0, "controller: ended")
    assert ada.orch("ps", "--json").json["controllers"] == []
    said = ada.orch("reconcile", "--json")
    told = {key: value for key, value in said.json.items() if key != "project"}
    assert (said.code, told) == (0, {"schema": 1, "runs": [], "fleets": [], "health": []})


def test_two_people_with_one_ledger_see_and_stop_each_others_runs_whatever_their_clocks_say(
    tmp_path: Path, boxes: FolderLab, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("there is no `faketime` here: `make set-up-test` installs it")
    with postgres.database() as url:
        ada = person(tmp_path, "ada", url)
        bob = person(tmp_path, "bob", url, ("faketime", "--exclude-monotonic", "-f", "+10m"))
        ledger = open_ledger(url)
        monkeypatch.setenv("USER", "ada")
        monkeypatch.setenv("LOGNAME", "ada")
        runtimes = {**RUNTIMES, "folder": FolderRuntime()}
        place = RunnerContext(ada.path / ".orch", ledger, boxes.connector, Recorder(), runtimes)
        row = submit(place, boxes, "hers", commands=["echo line of $NODE_RANK", "sleep 600"])
        driver = ada.start("attach", "--supervise", "hers")
        try:
            until(lambda: ledger.by_id(row.id).status == "running", 120, "her run runs")
            # His clock, ten minutes ahead, takes no lease away and makes nothing old.
            (seen,) = bob.orch("ps", "--json").json["runs"]
            assert (seen["run"], seen["status"]) == ("hers", "running")
            assert seen["submitted_by"].startswith("ada@")
            listed = bob.orch("ps").out
            assert "ada@" in listed
            assert re.search(r"\b\d+s ago", listed), listed
            assert sorted(bob.orch("logs", "hers").out.splitlines()) == [
                *("[0 box-0] line of 0", "[1 box-1] line of 1")
            ]
            assert ledger.by_id(row.id).held
            stopped = bob.orch("stop", "hers", "--json")
            assert (stopped.code, stopped.json["status"]) == (0, "terminated"), stopped.err
            assert driver.wait(120) == 0
        finally:
            driver.kill()
            driver.communicate()
        assert ("desired", "stop by ") in [(kind, text[:8]) for _, kind, text in ledger.events(row.id)]
        (again,) = ada.orch("ps", "--json").json["runs"]
        assert (again["status"], again["reason"]) == ("terminated", "stopped_by_user")
        ledger.close()
