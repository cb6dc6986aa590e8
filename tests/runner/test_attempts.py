"""Runs that are tried again, on nodes that are folders: nodes, wait, logs, outputs, and who drives them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kit.ledgers.postgres import Postgres
from kit.nodes import foldernodes
from kit.nodes.foldernodes import FolderLab, FolderRuntime, folder_of, targets
from kit.support import until as wait_until

from orch.runner.errors import NodesBusy, NoFit, RunFailed, RunnerError, UnknownRank
from orch.runner.events import Event, LogLine, Notice, Recorder, RunChanged
from orch.runner.launch.submission import Submission
from orch.runner.launch.volumes import NO_VOLUMES, Volumes
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.node.runtime import ObservedRank, StartedRank
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.node_api.connector import Connector
from orch.runner.node_api.cordon import mark
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs import attempts, driver, lifecycle, retry
from orch.runner.runs.context import RunContext
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.runs.read_logs import Selection, of_attempt, read_logs
from orch.spec.errors import ExitCode
from orch.spec.models import Task
from orch.spec.state import FleetState
from orch.stacks.secrets.values import NoSuchSecret


@dataclass
class Boxes(FolderLab):
    """As many such nodes as a test asks for."""

    count: int = 2

    def fleet(self) -> FleetState:
        nodes = tuple(self.node(index) for index in range(self.count))
        return super().fleet().model_copy(update={"nodes": nodes, "unreachable_grace_s": 0.2})


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    (tmp_path / "boxes").mkdir()
    lab = Boxes(tmp_path / "boxes")
    yield lab
    lab.end()


# Tests of who drives a run take this mark: the others are the same on both databases.
on_both = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The ledger's URL: SQLite unless a test asks for more."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url


@pytest.fixture
def place(tmp_path: Path, boxes: Boxes, url: str) -> Iterator[RunnerContext]:
    ledger = open_ledger(url)
    runtimes = {**RUNTIMES, "folder": FolderRuntime()}
    yield RunnerContext(tmp_path / ".orch", ledger, boxes.connector, Recorder(), runtimes)
    ledger.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow on each other without a delay."""
    monkeypatch.setattr(retry, "DELAYS_S", (0.0,))
    monkeypatch.setattr(driver, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(attempts, "REMOVE_EVERY_S", 0.0)


@pytest.fixture
def submit(place: RunnerContext, boxes: Boxes, tmp_path: Path) -> Callable[..., RunRow]:
    def submit(*, makes_nodes: bool = False, **written: object) -> RunRow:
        given = {"name": "job", "nodes": 2, "shell": "sh", "stop_duration": 5, "retry": True, **written}
        task, fleet = Task.model_validate(given), boxes.fleet()
        return lifecycle.submit(
            place, Submission(task, fleet, image="none", base=tmp_path, makes_nodes=makes_nodes)
        )

    return submit


def until(holds: Callable[[], bool]) -> None:
    wait_until(holds, 120, "what the test waits for")


def events_of(place: RunnerContext) -> list[Event]:
    assert isinstance(place.processor, Recorder)
    return place.processor.events


def lines(place: RunnerContext, rank: int = 0) -> list[str]:
    return [each.text for each in events_of(place) if isinstance(each, LogLine) and each.rank == rank]


def waits(place: RunnerContext) -> list[str | None]:
    told = [each for each in events_of(place) if isinstance(each, RunChanged)]
    return [each.message for each in told if each.status == "pending"]


def left(boxes: Boxes) -> list[str]:
    return [str(path) for name in ("runs", "claims") for path in boxes.path.glob(f"*/{name}/*")]


def nodes(row: RunRow) -> list[str]:
    return [rank.node for rank in row.ranks]


def test_the_log_of_a_run_that_has_not_begun_is_its_state(
    submit: Callable[..., RunRow], place: RunnerContext
) -> None:
    def heard(row: RunRow, *, follow: bool = False) -> list[Event]:
        recorder = Recorder()
        read_logs(replace(place, processor=recorder), row, Selection((0, 1)), follow=follow)
        return recorder.events

    row = submit(commands=["echo never"], retry=False)
    assert heard(row) == [Notice("run job has not begun: submitted")]
    lease = place.ledger.take(row.id, "me")
    assert lease is not None
    following = threading.Thread(target=lambda: told.extend(heard(row, follow=True)))
    told: list[Event] = []
    following.start()
    place.ledger.finish(lease, "failed", "executor_error", "node box-1 cannot be reached")
    following.join(60)
    assert told[0] == Notice("run job has not begun: submitted")
    never = Notice("run job never began: failed: node box-1 cannot be reached")
    assert [told[-1], *heard(place.ledger.by_id(row.id))] == [never, never]


@pytest.mark.usefixtures("soon")
def test_the_second_attempt_finds_what_the_first_one_had_and_what_it_left(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes, tmp_path: Path
) -> None:
    (tmp_path / "code.txt").write_text("the code\n")
    checkpoint = tmp_path / "checkpoint"
    out = tmp_path / "out"
    placed = tmp_path / "placed"
    row = submit(
        commands=[
            f"touch {placed}-$ORCH_ATTEMPT-$NODE_RANK",
            f"until [ -e {placed}-$ORCH_ATTEMPT-$((1 - NODE_RANK)) ]; do sleep 0.05; done",
            "echo rank $NODE_RANK of $NNODES attempt $ORCH_ATTEMPT $SLURM_RESTART_COUNT $WORD",
            "echo ${ORCH_RESUME-begin} in $ORCH_CHECKPOINT_DIR",
            f"cat {tmp_path}/target-$NODE_RANK/code.txt",
            f"mkdir -p {out}-$NODE_RANK && echo $ORCH_ATTEMPT > {out}-$NODE_RANK/result",
            f"echo changed > {tmp_path}/code.txt",
            f"[ $ORCH_ATTEMPT = 0 ] || {{ [ -e {checkpoint} ]; exit; }}",
            f"[ $NODE_RANK = 1 ] || {{ touch {checkpoint}; exit 3; }}",
            "sleep 600",
        ],
        files=[f"code.txt:{target}" for target in targets(tmp_path, "code.txt")],
        outputs=[f"{out}-0"],
        env={"WORD": "word"},
        checkpoint="/saved",
    )
    ended = lifecycle.drive(place, row)
    assert (ended.status, ended.reason, ended.attempt) == ("done", "all_jobs_done", 1), lines(place)
    assert lines(place) == [
        *("rank 0 of 2 attempt 0 0 word", "begin in /saved", "the code"),
        *("rank 0 of 2 attempt 1 1 word", "1 in /saved", "the code"),
    ]
    (first,) = ended.attempts
    assert (first.attempt, first.events, first.message) == (
        0,
        ("error",),
        "rank 0 on node box-0 exited with code 3",
    )
    assert first.started_at is not None
    assert [rank.reason for rank in first.ranks] == ["container_exited_with_error", "sibling_failed"]
    assert waits(place) == [
        "attempt 0 failed: rank 0 on node box-0 exited with code 3; attempt 1 begins in 0 s"
    ]
    assert Notice("run job: attempt 1 on box-[0-1]") in events_of(place)
    folder = place.dot / "runs/job"
    results = [
        (folder / part / "outputs/0" / f"{out}-0".lstrip("/") / "result").read_text().strip()
        for part in (".", "attempts/1")
    ]
    assert results == ["0", "1"]
    assert left(boxes) == []
    assert [path.name for path in folder.glob("*.json")] == []
    for attempt in (0, 1):
        heard = Recorder()
        read_logs(replace(place, processor=heard), of_attempt(ended, attempt), Selection((0,)))
        read = [each.text for each in heard.events if isinstance(each, LogLine)]
        assert read == [
            f"rank 0 of 2 attempt {attempt} {attempt} word",
            f"{('begin', '1')[attempt]} in /saved",
            "the code",
        ]
    with pytest.raises(UnknownRank, match="no attempt 2"):
        of_attempt(ended, 2)
    assert [kind for _, kind, _ in place.ledger.events(row.id)].count("pending") == 1


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("gone", ["a secret", "files"])
def test_what_no_attempt_brings_back_ends_a_run_at_once(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes, tmp_path: Path, gone: str
) -> None:
    def without(names: Collection[str]) -> dict[str, str]:
        if names and gone == "a secret":
            raise NoSuchSecret("secret 'token' is not set in this project", name="token", hint="set it")
        return dict.fromkeys(names, "x")

    place = replace(place, secrets=lambda names: dict.fromkeys(names, "x"))
    (tmp_path / "code.txt").write_text("the code\n")
    given = {"name": "job", "retry": True, "commands": ["true"], "files": [f"code.txt:{tmp_path}/code"]}
    task = Task.model_validate({**given, "env": {"TOKEN": "${{ secrets.token }}"}})
    row = lifecycle.submit(place, Submission(task, boxes.fleet(), image="none", base=tmp_path))
    if gone == "files":
        for pack in place.dot.glob("uploads/*.pack"):
            pack.unlink()
    ended = lifecycle.drive(replace(place, secrets=without), row)
    assert (ended.status, ended.reason, ended.attempts) == ("failed", "job_failed", ())
    told = "secret 'token' is not set" if gone == "a secret" else "the files of this run cannot be sent"
    assert told in (ended.message or "")
    assert waits(place) == left(boxes) == []


@pytest.mark.usefixtures("soon")
def test_another_node_takes_the_place_of_one_that_failed(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes
) -> None:
    boxes.count = 3
    row = lifecycle.drive(
        place, submit(commands=["[ $ORCH_INSTANCE != box-1 ] || exit 9", "echo on $ORCH_INSTANCE $NODES_IPS"])
    )
    assert (row.status, nodes(row)) == ("done", ["box-0", "box-2"])
    assert [rank.node for rank in row.attempts[0].ranks] == ["box-0", "box-1"]


@pytest.mark.usefixtures("soon")
def test_a_run_whose_volume_is_on_its_node_goes_back_to_it(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes, tmp_path: Path
) -> None:
    row = submit(nodes=1, commands=["[ $ORCH_ATTEMPT = 1 ]"], volumes=[f"{tmp_path}:/data"])
    ended = lifecycle.drive(place, row)
    assert (ended.status, nodes(ended), ended.attempt) == ("done", ["box-0"], 1)


@pytest.mark.usefixtures("soon")
def test_a_lost_node_is_replaced_and_what_runs_there_is_ended_when_it_comes_back(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes, tmp_path: Path
) -> None:
    boxes.count = 3
    lost, away = folder_of(boxes.node(1)), tmp_path / "away"
    gate = tmp_path / "gate"
    row = submit(
        commands=[
            "echo attempt $ORCH_ATTEMPT",
            "[ $ORCH_ATTEMPT = 1 ] || exec sleep 600",
            f"until [ -e {gate} ]; do sleep 0.1; done",
        ],
        retry={"on_events": ["interruption"], "duration": "1h"},
    )
    ended: list[RunRow] = []
    thread = threading.Thread(target=lambda: ended.append(lifecycle.drive(place, row)))
    thread.start()
    reader = replace(place, processor=Recorder())
    reading = threading.Thread(target=read_logs, args=(reader, row, Selection((1,))), kwargs={"follow": True})
    reading.start()
    try:
        until(lambda: place.ledger.by_id(row.id).status == "running")
        until(lambda: lines(reader, 1) == ["attempt 0"])
        (pid,) = [int(file.read_text()) for file in lost.glob("runs/*/pid")]
        lost.rename(away)
        until(lambda: place.ledger.by_id(row.id).attempt == 1)
        assert os.getpgid(pid) == pid
        away.rename(lost)
        until(lambda: not _runs(pid))
        until(lambda: all(rank.collected for rank in place.ledger.by_id(row.id).attempts[0].ranks))
        # Who follows the log of the lost node goes on with the next attempt.
        until(lambda: lines(reader, 1)[-1] == "attempt 1")
    finally:
        gate.touch()
        thread.join(60)
        reading.join(60)
    assert [(each.status, nodes(each)) for each in ended] == [("done", ["box-0", "box-2"])]
    assert ended[0].attempts[0].events == ("error", "interruption")
    assert left(boxes) == []


def _runs(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.usefixtures("soon")
def test_the_limit_of_attempts_ends_the_run(submit: Callable[..., RunRow], place: RunnerContext) -> None:
    row = submit(nodes=1, commands=["exit 4"], retry={"on_events": ["error"], "max_attempts": 2})
    ended = lifecycle.drive(place, row)
    assert (ended.status, ended.reason, ended.attempt) == ("failed", "retry_limit_exceeded", 1)
    assert ended.message == (
        "rank 0 on node box-0 exited with code 4; `max_attempts` (2) is reached"
        if nodes(ended) == ["box-0"]
        else "rank 0 on node box-1 exited with code 4; `max_attempts` (2) is reached"
    )
    assert lifecycle.exit_code(ended) is ExitCode.RUN_FAILED


@pytest.mark.usefixtures("soon")
def test_an_event_that_is_not_listed_ends_the_run(
    submit: Callable[..., RunRow], place: RunnerContext
) -> None:
    row = lifecycle.drive(place, submit(nodes=1, commands=["exit 4"], retry={"on_events": ["interruption"]}))
    assert (row.status, row.reason, row.attempt, row.attempts) == ("failed", "job_failed", 0, ())


@on_both
def test_a_run_waits_for_nodes_that_another_run_has(
    submit: Callable[..., RunRow],
    place: RunnerContext,
    boxes: Boxes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "DELAYS_S", (0.0,))
    monkeypatch.setattr(driver, "LOOK_EVERY_S", 0.05)
    gate = tmp_path / "gate"
    first = submit(name="first", commands=[f"until [ -e {gate} ]; do sleep 0.1; done"], retry=False)
    threads = [threading.Thread(target=lifecycle.drive, args=(replace(place, processor=Recorder()), first))]
    threads[0].start()
    ended: list[RunRow] = []
    try:
        until(lambda: place.ledger.by_id(first.id).status == "running")
        second = submit(commands=["echo attempt $ORCH_ATTEMPT"], retry={"on_events": ["no-capacity"]})
        assert (second.status, second.phase) == ("pending", "waiting")
        assert second.message == "the run needs 2 nodes, 0 are free: in use: box-[0-1] by first"
        threads.append(threading.Thread(target=lambda: ended.append(lifecycle.drive(place, second))))
        threads[1].start()
        until(lambda: len(waits(place)) >= 2)
        assert place.ledger.by_id(second.id).status == "pending"
    finally:
        gate.touch()
        for thread in threads:
            thread.join(60)
    # A try that finds no nodes is no attempt.
    assert [(each.status, each.attempt, each.attempts) for each in ended] == [("done", 0, ())]
    assert lines(place) == ["attempt 0"]
    assert left(boxes) == []


@pytest.mark.usefixtures("soon")
def test_nodes_that_never_come_end_the_run_when_its_time_is_over(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes
) -> None:
    mark(boxes.fleet().nodes[:1], boxes.connector, "fan", deadline_s=5.0)
    row = submit(commands=["true"], retry={"on_events": ["no-capacity"], "duration": 1})
    ended = lifecycle.drive(place, row)
    assert (ended.status, ended.reason, ended.attempt) == ("failed", "retry_limit_exceeded", 0)
    assert (ended.message or "").endswith("; the `duration` of its retry (1s) is over")
    assert "box-0 (fan" in (ended.message or "")
    assert {rank.reason for rank in ended.ranks} == {"failed_to_start_due_to_no_capacity"}
    assert lifecycle.exit_code(ended) is ExitCode.CONFLICT


@on_both
@pytest.mark.usefixtures("owner_per_thread")
def test_a_stop_ends_the_wait_at_once_whoever_drives(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes
) -> None:
    row = submit(nodes=1, commands=["exit 4"], retry={"on_events": ["error"], "duration": "1h"})
    ended: list[RunRow] = []
    thread = threading.Thread(target=lambda: ended.append(lifecycle.drive(place, row)))
    thread.start()
    until(lambda: place.ledger.by_id(row.id).status == "pending")
    waiting = place.ledger.by_id(row.id)
    assert (waiting.next_at or 0) > waiting.now
    stopped = lifecycle.stop(replace(place, processor=Recorder()), waiting)
    thread.join(60)
    assert (stopped.status, stopped.reason, stopped.attempt) == ("terminated", "stopped_by_user", 0)
    assert [(each.status, each.next_at) for each in ended] == [("terminated", None)]
    assert [path.name for path in (place.dot / "runs/job").glob("*.json")] == []
    assert left(boxes) == []
    # The same without a driver.
    row = submit(nodes=1, commands=["exit 4"], retry={"on_events": ["error"], "duration": "1h"})
    _drive_until_it_waits(place, row)
    assert lifecycle.stop(place, place.ledger.by_id(row.id), abort=True).reason == "aborted_by_user"


def _drive_until_it_waits(place: RunnerContext, row: RunRow) -> None:
    """As far as a driver comes before it dies."""
    lease = place.ledger.take(row.id, "somebody")
    assert lease is not None
    one = driver.Driver(place.context(row), row, lease, follow_logs=False)
    while place.ledger.by_id(row.id).status != "pending":
        one.step()
        one._reload()
    place.ledger.release(lease)


@on_both
def test_a_driver_that_is_killed_between_two_attempts_is_followed_by_another(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes, url: str, tmp_path: Path
) -> None:
    row = submit(nodes=1, commands=["echo attempt $ORCH_ATTEMPT", "[ $ORCH_ATTEMPT = 1 ]"])
    process = foldernodes.driver(place.dot, url, "job", 600)
    try:
        until(lambda: place.ledger.by_id(row.id).status == "pending" or process.ends(0))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    waiting = place.ledger.by_id(row.id)
    assert (waiting.status, waiting.attempt, waiting.next_attempt, waiting.held) == ("pending", 0, 1, False)
    lifecycle.reconcile_once(place)
    assert place.ledger.by_id(row.id).status == "pending"  # a look at it starts nothing
    lease = place.ledger.take(row.id, "nobody")
    assert lease is not None
    place.ledger.change(lease, next_at=waiting.now)
    place.ledger.release(lease)
    ended = lifecycle.drive(place, place.ledger.by_id(row.id))
    assert (ended.status, ended.attempt) == ("done", 1)
    assert lines(place) == ["attempt 1"]
    assert left(boxes) == []


class Fragile(FolderRuntime):
    """A runtime whose driver dies when it removes a rank for the first time."""

    died = False

    def remove(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> None:
        super().remove(connector, plan, rank, deadline_s=deadline_s)
        if not self.died:
            self.died = True
            raise KeyboardInterrupt


@on_both
@pytest.mark.usefixtures("soon")
def test_a_driver_that_dies_while_it_collects_an_attempt_loses_nothing(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes
) -> None:
    row = submit(nodes=1, commands=["[ $ORCH_ATTEMPT = 1 ] || exit 5"], retry={"on_events": ["error"]})
    fragile = replace(place, runtimes={**place.runtimes, "folder": Fragile()})
    with pytest.raises(KeyboardInterrupt):
        lifecycle.drive(fragile, row)
    assert place.ledger.by_id(row.id).phase == "collecting"
    ended = lifecycle.drive(place, place.ledger.by_id(row.id))
    assert (ended.status, ended.attempt) == ("done", 1)
    assert ended.attempts[0].events == ("error",)


def test_who_follows_a_run_sees_the_logs_of_every_attempt(
    submit: Callable[..., RunRow], place: RunnerContext, url: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    row = submit(
        nodes=1,
        commands=["echo attempt $ORCH_ATTEMPT", f"until [ -e {gate}-$ORCH_ATTEMPT ]; do sleep 0.1; done"],
    )
    ended: list[RunRow] = []
    followers = [replace(place, processor=Recorder()), replace(place, processor=Recorder())]
    process = foldernodes.driver(place.dot, url, "job", 0.1)
    until(lambda: place.ledger.by_id(row.id).status == "running" or process.ends(0))
    present = place.ledger.by_id(row.id)
    # One is attached, one reads the logs.
    threads = [
        threading.Thread(target=lambda: ended.append(lifecycle.drive(followers[0], present))),
        threading.Thread(
            target=read_logs, args=(followers[1], present, Selection((0,))), kwargs={"follow": True}
        ),
    ]
    for thread in threads:
        thread.start()
    try:
        until(lambda: lines(followers[1]) == ["attempt 0"])
        for file in place.dot.parent.glob("boxes/*/runs/*/pid"):
            os.killpg(int(file.read_text()), signal.SIGKILL)
        until(lambda: lines(followers[1])[-1] == "attempt 1")
        # What was kept before it attached is not shown again.
        until(lambda: lines(followers[0])[-1:] == ["attempt 1"])
    finally:
        (tmp_path / "gate-0").touch()
        (tmp_path / "gate-1").touch()
        for thread in threads:
            thread.join(60)
    assert process.wait(60) == 0
    assert [each.status for each in ended] == ["done"]
    told = [each.text for each in events_of(followers[0]) if isinstance(each, Notice)]
    assert any(each.startswith("run job: attempt 1 on box-") for each in told)


@pytest.mark.usefixtures("soon")
def test_another_machine_tells_that_it_cannot_begin_the_next_attempt_and_leaves_the_run(
    submit: Callable[..., RunRow], place: RunnerContext, tmp_path: Path
) -> None:
    row = submit(nodes=1, commands=["[ $ORCH_ATTEMPT = 1 ]"])
    _drive_until_it_waits(place, row)
    elsewhere = replace(place, dot=tmp_path / "other/.orch")
    lease = place.ledger.take(row.id, "nobody")
    assert lease is not None
    place.ledger.change(lease, next_at=row.now + 3600)
    place.ledger.release(lease)
    # At once, not when the attempt is due.
    with pytest.raises(RunFailed, match="cannot begin from here") as caught:
        lifecycle.drive(elsewhere, place.ledger.by_id(row.id))
    assert row.submitted_by in (caught.value.detail or "")
    assert "`orch stop job`" in (caught.value.hint or "")
    lease = place.ledger.take(row.id, "nobody")
    assert lease is not None
    place.ledger.change(lease, next_at=row.now)
    place.ledger.release(lease)
    assert place.ledger.by_id(row.id).status == "pending"
    assert lifecycle.drive(place, place.ledger.by_id(row.id)).status == "done"


@dataclass
class Now:
    """A project whose fleet is what a test says, and is `more` once nodes were made: at the second time."""

    present: FleetState | None
    more: FleetState | None = None
    asked: int = 0

    def fleet(self, stack: str, run: int) -> FleetState | None:
        assert stack == "boxes"
        return self.present

    def volumes(self) -> Volumes:
        return NO_VOLUMES

    def make_nodes(self, runner: RunContext, task: Task, fleet: FleetState, lost: Collection[str]) -> bool:
        self.asked += 1
        if self.asked == 1:
            raise NoFit("no place has room for 2 nodes")
        self.present = self.more
        return True

    def attempt_ended(self, row: RunRow) -> None:
        """None of its nodes is of one run alone."""


@pytest.mark.usefixtures("soon")
def test_the_next_attempt_is_placed_on_the_fleet_as_it_is_then(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes
) -> None:
    row = submit(commands=["echo $ORCH_NODES_IPS", "[ $ORCH_ATTEMPT = 1 ]"])
    _drive_until_it_waits(place, row)
    boxes.count = 4
    whole = boxes.fleet()
    project = Now(None)
    present = replace(place, provisioned=project)
    ended: list[RunRow] = []
    thread = threading.Thread(
        target=lambda: ended.append(lifecycle.drive(present, place.ledger.by_id(row.id)))
    )
    thread.start()
    until(lambda: any("fleet boxes is not up" in (text or "") for text in waits(place)))
    project.present = whole.model_copy(update={"nodes": whole.nodes[2:]})
    thread.join(60)
    assert [(each.status, nodes(each)) for each in ended] == [("done", ["box-2", "box-3"])]
    assert plan_of(ended[0]).attempt == 1
    assert project.asked == 0


@pytest.mark.usefixtures("soon")
def test_a_later_attempt_has_the_nodes_made_that_it_lacks_where_that_was_agreed_to(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes
) -> None:
    row = submit(makes_nodes=True, commands=["[ $ORCH_ATTEMPT = 1 ]"], idle_duration="90s")
    _drive_until_it_waits(place, row)
    whole = boxes.fleet()
    project = Now(whole.model_copy(update={"nodes": whole.nodes[:1]}), more=whole)
    ended = lifecycle.drive(replace(place, provisioned=project), place.ledger.by_id(row.id))
    assert (ended.status, ended.attempt, project.asked) == ("done", 1, 2)
    # How long it wants nodes to wait for another job is for those that were made for it.
    waits = {rank.node.name: rank.idle_after_s for rank in plan_of(ended).ranks}
    assert waits == {"box-0": None, "box-1": 90}
    told = [each.text for each in events_of(place) if isinstance(each, Notice)]
    assert "no nodes are made for run job: no place has room for 2 nodes" in told
    kept = [text for _, kind, text in place.ledger.events(row.id) if kind == "no nodes made"]
    assert kept == ["no nodes are made for run job: no place has room for 2 nodes"]


class Late(FolderRuntime):
    """A runtime that sees ranks only as silent once a file says so."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def observe(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> ObservedRank:
        if self.gate.exists() and plan.attempt == 0 and rank == 1:
            return ObservedRank(rank, "silent", detail="gone")
        return super().observe(connector, plan, rank, deadline_s=deadline_s)


@pytest.mark.usefixtures("soon")
def test_a_lost_node_that_makes_the_other_ranks_fail_is_an_interruption(
    submit: Callable[..., RunRow], place: RunnerContext, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    row = submit(
        commands=[
            "[ $ORCH_ATTEMPT = 0 ] || exit 0",
            "[ $NODE_RANK = 0 ] || exec sleep 600",
            f"touch {gate}; exit 1",
        ],
        retry={"on_events": ["interruption"]},
    )
    late = replace(place, runtimes={**place.runtimes, "folder": Late(gate)})
    ended = lifecycle.drive(late, row)
    assert (ended.status, ended.attempt) == ("done", 1)
    assert ended.attempts[0].events == ("error", "interruption")


class Raced(FolderRuntime):
    """A runtime whose second rank finds its node taken at the first try: another run was faster."""

    lost = False

    def start(
        self, connector: Connector, plan: RunPlan, rank: int, archive: Iterable[bytes], *, begin: bool
    ) -> StartedRank:
        if rank == 1 and not self.lost:
            self.lost = True
            raise NodesBusy("node box-1 is busy with another run")
        return super().start(connector, plan, rank, archive, begin=begin)


@pytest.mark.usefixtures("soon")
def test_a_run_that_loses_a_race_for_a_node_has_all_of_its_outputs_and_lines_afterwards(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    row = submit(
        commands=["echo begun", "sleep 1", f"mkdir -p {out} && echo done > {out}/$NODE_RANK"],
        outputs=[str(out)],
        retry={"on_events": ["no-capacity"], "max_attempts": 1},
    )
    ended = lifecycle.drive(replace(place, runtimes={**place.runtimes, "folder": Raced()}), row)
    assert (ended.status, ended.attempt) == ("done", 1), waits(place)
    assert [(each.events, each.started_at) for each in ended.attempts] == [(("no-capacity",), None)]
    assert lines(place)[-1:] == ["begun"]
    outputs = place.dot / "runs/job/attempts/1/outputs"
    assert [(outputs / str(rank) / str(out / str(rank)).lstrip("/")).is_file() for rank in (0, 1)] == [
        True
    ] * 2
    told = [each.text for each in events_of(place) if isinstance(each, Notice)]
    assert not [text for text in told if "nothing is collected" in text]
    assert left(boxes) == []


@pytest.mark.usefixtures("soon")
def test_the_outputs_of_a_node_that_comes_back_do_not_take_the_place_of_later_ones(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes, tmp_path: Path
) -> None:
    lost, away, out = folder_of(boxes.node(0)), tmp_path / "away", tmp_path / "out"
    row = submit(
        nodes=1,
        commands=[
            f"mkdir -p {out} && echo $ORCH_ATTEMPT > {out}/result",
            f"[ $ORCH_ATTEMPT = 1 ] || {{ mv {lost} {away}; exec sleep 600; }}",
        ],
        outputs=[{"path": str(out), "to": str(tmp_path / "results")}],
    )
    ended = lifecycle.drive(place, row)
    assert (ended.status, nodes(ended)) == ("done", ["box-1"])
    assert (tmp_path / "results/result").read_text() == "1\n"
    (out / "result").write_text("late\n")
    if lost.exists():
        lost.rename(tmp_path / "empty")
    away.rename(lost)
    lifecycle.reconcile_once(place)
    assert place.ledger.uncollected() == ()
    assert (tmp_path / "results/result").read_text() == "1\n"
    assert (place.dot / f"runs/job/outputs/0{out}/result").read_text() == "late\n"


class Stuck(FolderRuntime):
    """A runtime that cannot remove a run's first attempt until a file is there."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def remove(
        self, connector: Connector, plan: RunPlan, rank: int, *, deadline_s: float | None = None
    ) -> None:
        if plan.attempt == 0 and not self.gate.exists():
            raise RunnerError("the volume cannot be unmounted")
        super().remove(connector, plan, rank, deadline_s=deadline_s)


@pytest.mark.usefixtures("soon")
def test_a_run_that_has_its_own_node_says_why(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes, tmp_path: Path
) -> None:
    boxes.count = 1
    gate, ended = tmp_path / "gate", list[RunRow]()
    row = submit(nodes=1, commands=["[ $ORCH_ATTEMPT = 1 ]"], retry={"on_events": ["error"]})
    stuck = replace(place, runtimes={**place.runtimes, "folder": Stuck(gate)})
    thread = threading.Thread(target=lambda: ended.append(lifecycle.drive(stuck, row)))
    thread.start()
    try:
        why = "attempt 0 of this run is not cleaned up on box-0: the volume cannot be unmounted"
        until(lambda: any(f"in use: box-0 by job; {why}" in (text or "") for text in waits(place)))
        # What it is tried again on is still the failure, although that is not what keeps it waiting.
        assert "attempt 0 failed: rank 0 on node box-0 exited with code 1; " in (waits(place)[-1] or "")
    finally:
        gate.touch()
        thread.join(60)
    assert [(each.status, each.attempt) for each in ended] == [("done", 1)]
    told = [each.text for each in events_of(place) if isinstance(each, Notice)]
    assert told.count(why) == 1


class Begins(FolderRuntime):
    """A runtime whose jobs begin with what holds them."""

    def start(
        self, connector: Connector, plan: RunPlan, rank: int, archive: Iterable[bytes], *, begin: bool
    ) -> StartedRank:
        started = super().start(connector, plan, rank, archive, begin=begin)
        if begin:
            self.lift_barrier(connector, plan, rank, started.port)
        return replace(started, begun=begin)


class Killed(Begins):
    """The driver is killed when the job has begun, before it could write that down."""

    def start(
        self, connector: Connector, plan: RunPlan, rank: int, archive: Iterable[bytes], *, begin: bool
    ) -> StartedRank:
        super().start(connector, plan, rank, archive, begin=begin)
        raise KeyboardInterrupt


@pytest.mark.usefixtures("soon")
def test_a_driver_that_is_killed_as_its_only_rank_begins_is_followed_by_another(
    submit: Callable[..., RunRow], place: RunnerContext, boxes: Boxes, tmp_path: Path
) -> None:
    began, out = tmp_path / "began", tmp_path / "out"
    commands = [f"echo begun >> {began}", f"mkdir {out} && sleep 1 && echo saved > {out}/file"]
    row = submit(nodes=1, retry=None, commands=commands, outputs=[str(out)])
    with pytest.raises(KeyboardInterrupt):
        lifecycle.drive(replace(place, runtimes={**place.runtimes, "folder": Killed()}), row)
    now = place.ledger.by_id(row.id)
    assert (now.phase, now.started_at) == ("starting", None)
    ended = lifecycle.drive(replace(place, runtimes={**place.runtimes, "folder": Begins()}), now)
    assert (ended.status, ended.attempt) == ("done", 0)
    assert ended.started_at is not None
    assert began.read_text() == "begun\n"
    assert left(boxes) == []


@pytest.mark.usefixtures("soon")
def test_a_run_whose_only_rank_begins_with_its_container_is_recorded_as_begun(
    submit: Callable[..., RunRow], place: RunnerContext
) -> None:
    row = submit(nodes=1, retry=None, commands=["echo begun"])
    ended = lifecycle.drive(replace(place, runtimes={**place.runtimes, "folder": Begins()}), row)
    assert ended.status == "done"
    assert ended.started_at is not None
    assert lines(place) == ["begun"]
    # It may have ended before anybody saw it run.
    assert [kind for _, kind, _ in place.ledger.events(row.id)][:3] == ["submitted", "starting", "go"]
