"""Arrays of runs: recorded all or none, begun one after the other within their limit, whoever drives them."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from kit.engine.forkserver import Forked
from kit.ledgers.pureruns import fleet, node
from kit.nodes.foldernodes import FolderLab, FolderRuntime
from kit.support import ROOT, code_of, fork_server, until

from orch.runner.errors import ArrayFull, BadRunName, BadTask, NameTaken, NotAdmitted, RunFailed, UnknownRun
from orch.runner.events import Notice, Recorder
from orch.runner.launch.compile import compile_run
from orch.runner.launch.launch_record import LaunchRecord
from orch.runner.launch.submission import Submission
from orch.runner.ledger.arrays import Member
from orch.runner.ledger.ledger import Ledger, open_ledger
from orch.runner.ledger.records import ARRAY_LIMIT, ArrayKey, RunRow
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.placement.placement import place_task
from orch.runner.runs import attempts, controller, lifecycle
from orch.runner.runs.arrays import drive
from orch.runner.runs.arrays.choose import choose
from orch.runner.runs.arrays.drive import ArrayDriver, turns
from orch.runner.runs.arrays.submit import submit_array
from orch.runner.runs.context import RunContext
from orch.runner.runs.controller import Controller
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.runs.run_secrets import runs_that_need
from orch.spec.models import Task
from orch.spec.state import FleetState, PodQueue


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
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "PAUSE_S", 0.05)
    monkeypatch.setattr(controller, "PAUSE_S", 0.05)


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that drive an array are different owners of its leases, as processes are."""
    monkeypatch.setattr(drive, "process_owner", lambda: f"thread {threading.get_ident()}")


def submit(
    place: RunnerContext, on: FleetState, array: str, commands: Sequence[str] = ("true",), **task: object
) -> ArrayKey:
    given = {"name": "sweep", "array": array, "shell": "sh", "commands": list(commands), "stop_duration": 5}
    read = Task.model_validate({**given, **task})
    row = submit_array(place, Submission(read, on, image="none", base=place.dot.parent))
    assert row.array is not None
    return row.array


def statuses(place: RunnerContext, array: ArrayKey) -> list[str]:
    return [each.status for each in place.ledger.arrays.members(array)]


def left(boxes: FolderLab) -> list[str]:
    return [str(path) for name in ("runs", "claims") for path in boxes.path.glob(f"*/{name}/*")]


def helper(*words: object) -> Forked:
    streams = (os.open(os.devnull, os.O_RDONLY), os.dup(1), os.dup(2))
    given = ["drive_array.py", *map(str, words)]
    return fork_server().start(code_of(ROOT / "tests/runner/drive_array.py"), given, os.environ, streams)


def test_members_are_runs_of_one_task_that_wait(place: RunnerContext) -> None:
    (place.dot.parent / "data").mkdir()
    (place.dot.parent / "data/x").write_text("x")
    array = submit(place, fleet(node(0), node(1)), "1,3,7-9%2", files=["data"], priority=3)
    rows = place.ledger.by_ids([each.id for each in place.ledger.arrays.members(array)])
    assert [row.name for row in rows] == [f"sweep_{index}" for index in (1, 3, 7, 8, 9)]
    assert {(row.array, row.array_limit, row.priority, row.status, row.owner) for row in rows} == {
        (array, 2, 3, "pending", None)
    }
    assert [row.array_index for row in rows] == [1, 3, 7, 8, 9]
    assert [row.waits_for_array for row in rows] == [False, False, True, True, True]
    assert len({row.plan.partition('"files"')[2] for row in rows}) == 1  # packed once
    assert [kind for _, kind, _ in place.ledger.events(rows[-1].id)] == ["submitted", "pending"]
    for text in ("sweep_7", f"{array.id}_7"):
        assert place.ledger.get(text).id == rows[2].id
    with pytest.raises(NameTaken, match="an array named sweep is active"):
        submit(place, fleet(node(0)), "1-2")
    with pytest.raises(NameTaken, match="an array named sweep is active"):
        place.ledger.check_name("sweep")
    with pytest.raises(UnknownRun, match="sweep is an array of runs, and one run is needed here"):
        place.ledger.get("sweep")
    one = submit(place, fleet(node(0)), "4", name="one")
    assert [each.name for each in place.ledger.arrays.members(one)] == ["one_4"]


def test_a_run_keeps_its_name_from_an_array(place: RunnerContext) -> None:
    place.ledger.create("sweep", "lab", ["n0"], lambda number: "{}")
    with pytest.raises(NameTaken, match="a run named sweep is active"):
        submit(place, fleet(node(0)), "1-2")


def test_each_member_is_told_its_place(place: RunnerContext) -> None:
    env = {"OWN": "${{ orch.array_task_id }}", "SLURM_ARRAY_TASK_ID": "mine"}
    on = fleet(node(0))
    more = {"env": env, "slurm_env": False, "outputs": [{"path": "/out", "to": "results"}]}
    array = submit(place, on, "0-6:3", ["echo ${{ orch.array_task_id }}"], **more)
    row = place.ledger.get("sweep_3")
    record = LaunchRecord.kept(place.context(row).folder)
    seats = place_task(record.task, on)
    compiled = compile_run(record.request(row, fleet=on, seats=seats, volumes=record.volumes))
    own = {key: value for key, value in compiled.environments[0].items() if "ARRAY" in key or key == "OWN"}
    facts = {"JOB_ID": array.id, "TASK_ID": 3, "TASK_COUNT": 3, "TASK_MIN": 0, "TASK_MAX": 6}
    assert own == {
        "OWN": "3",
        **{
            f"{prefix}_ARRAY_{key}": str(value)
            for key, value in facts.items()
            for prefix in ("ORCH", "SLURM")
        },
    }
    assert "echo 3" in compiled.plan.ranks[0].script
    assert [each.to for each in compiled.plan.outputs] == [str(place.dot.parent / "results/3")]
    assert any("SLURM_ARRAY_TASK_ID is set by orch itself" in text for text in compiled.warnings)


def test_an_array_that_cannot_be_compiled_leaves_nothing(place: RunnerContext) -> None:
    with pytest.raises(BadTask):
        submit(place, fleet(node(0)), "1-3", env=["NOWHERE_SET"])
    assert place.ledger.runs() == ()
    assert list(place.dot.glob("runs/*/array.json")) == []
    submit(place, fleet(node(0)), "1-3")


def test_a_limit_is_refused_where_a_cluster_begins_members(place: RunnerContext) -> None:
    queue = PodQueue(namespace="space", gang="job", pods=2, mark="m", cluster="c")
    with pytest.raises(BadTask, match="`%2` of an array on Kubernetes is not supported") as caught:
        submit(place, fleet(node(0)).model_copy(update={"queue": queue}), "1-3%2")
    assert (caught.value.code, caught.value.path) == ("ORCH118", "array")
    assert place.ledger.runs() == ()


@pytest.mark.usefixtures("quick")
def test_a_member_that_goes_on_keeps_no_other_from_being_seen_to(
    place: RunnerContext, boxes: FolderLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "AT_ONCE", 1)
    second = tmp_path / "second"
    waits = (
        f"if [ $ORCH_ARRAY_TASK_ID = 2 ]; then touch {second}; fi; until [ -e {second} ]; do sleep 0.05; done"
    )
    array = submit(place, boxes.fleet(), "1-2", [waits])
    ArrayDriver(place, array).run()
    assert statuses(place, array) == ["done", "done"]


@pytest.mark.usefixtures("quick")
def test_members_ask_a_cluster_each_for_itself(
    place: RunnerContext, boxes: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def admitted(context: RunContext, row: RunRow, *more: object, **named: object) -> FleetState:
        asked.append(row.name)
        if asked.count(row.name) < 2:
            raise NotAdmitted("its pods wait", delay_s=0.1)
        index = (row.array_index or 0) % 2
        return boxes.fleet().model_copy(update={"nodes": (boxes.node(index),)})

    monkeypatch.setattr(attempts, "brings_pods", lambda plan: True)
    monkeypatch.setattr(attempts, "admitted", admitted)
    monkeypatch.setattr("orch.runner.runs.pods.requests.check_request", lambda *more: None)
    queue = PodQueue(namespace="space", gang="job", pods=2, mark="m", cluster="c")
    array = submit(place, boxes.fleet().model_copy(update={"queue": queue}), "1-2")
    ArrayDriver(place, array).run()
    assert statuses(place, array) == ["done", "done"]
    assert Counter(asked) == {"sweep_1": 2, "sweep_2": 2}


def test_a_submission_that_is_killed_anywhere_leaves_all_or_none(
    place: RunnerContext, boxes: FolderLab, ledger_url: str
) -> None:
    seen = Counter[int]()
    statements = 0
    while True:
        process = helper("submit", place.dot, ledger_url, boxes.path, statements)
        code = process.wait(60)
        seen[len(place.ledger.runs())] += 1
        if code == 0 or place.ledger.runs():
            break
        statements += 4
    assert set(seen) == {0, 5}
    assert seen[0] > 2
    assert [row.status for row in place.ledger.runs()] == ["pending"] * 5


@pytest.mark.usefixtures("quick", "owners")
def test_two_drivers_begin_each_member_once_and_never_more_than_may_run(
    place: RunnerContext, boxes: FolderLab, tmp_path: Path
) -> None:
    on = boxes.fleet().model_copy(update={"nodes": tuple(boxes.node(index) for index in range(4))})
    begun = tmp_path / "begun"
    commands = [f"echo $ORCH_ARRAY_TASK_ID >> {begun}; sleep 0.2; [ $ORCH_ARRAY_TASK_ID != 3 ]"]
    array = submit(place, on, "1-8%2", commands)
    at_once: list[int] = []

    def look(members: Sequence[Member]) -> None:
        at_once.append(sum(each.has_nodes for each in members))

    def work() -> None:
        ArrayDriver(place, array, on_look=look).run()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert statuses(place, array) == ["done", "done", "failed", *["done"] * 5]
    assert sorted(map(int, begun.read_text().split())) == list(range(1, 9))
    assert max(at_once) == 2
    rows = place.ledger.runs()
    assert {row.owner for row in rows} == {None}
    assert {row.attempt for row in rows} == {0}
    assert left(boxes) == []
    assert list(place.dot.glob("runs/*/array.json")) == []


def test_who_would_begin_one_too_many_is_refused_in_the_transaction(place: RunnerContext) -> None:
    array = submit(place, fleet(node(0), node(1)), "1-6%2")
    leases = place.ledger.arrays.take(array, "me")
    gate, results = threading.Barrier(6), list[str]()

    def begin(number: int) -> None:
        gate.wait(60)
        try:
            place.ledger.begin_attempt(leases[number], 0, "{}", ["n0"])
            results.append("begun")
        except ArrayFull:
            results.append("full")

    threads = [threading.Thread(target=begin, args=(number,)) for number in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(results) == {"begun": 2, "full": 4}
    assert Counter(statuses(place, array)) == {"submitted": 2, "pending": 4}


@pytest.mark.usefixtures("quick")
def test_passes_go_on_after_the_driver_was_killed_and_begin_nothing_twice(
    place: RunnerContext, boxes: FolderLab, tmp_path: Path, ledger_url: str
) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    waits = f"until [ -e {gate} ]; do sleep 0.05; done"
    array = submit(place, boxes.fleet(), "1-6%2", [f"echo $ORCH_ARRAY_TASK_ID >> {begun}; {waits}"])
    process = helper("drive", place.dot, ledger_url, "sweep")
    try:
        until(lambda: statuses(place, array)[:2] == ["running"] * 2, 60, "two run")
        members = place.ledger.arrays.members(array)
        assert all(each.held for each in members)  # the line of the fleet, and who looks, know of it
        assert lifecycle.reconcile_once(place, begin=True) == ()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    passes = lifecycle.reconcile_once(place, begin=True)
    assert {(each.before.name, each.after.status) for each in passes} >= {("sweep_1", "running")}
    assert statuses(place, array) == ["running"] * 2 + ["pending"] * 4
    gate.touch()

    def ended() -> bool:
        lifecycle.reconcile_once(place, begin=True)
        return not place.ledger.runs(active_only=True)

    until(ended, 60, "passes end the array")
    assert statuses(place, array) == ["done"] * 6
    assert sorted(begun.read_text().split()) == list("123456")
    assert left(boxes) == []
    assert list(place.dot.glob("runs/*/array.json")) == []


@pytest.mark.usefixtures("quick", "owners")
def test_a_controller_drives_an_array_that_nobody_drives(
    place: RunnerContext, boxes: FolderLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "process_owner", lambda: f"thread {threading.get_ident()}")
    array = submit(place, boxes.fleet(), "1-4", ["[ $ORCH_ARRAY_TASK_ID != 2 ]"])
    elsewhere = Controller(replace(place, dot=tmp_path / "other/.orch"))
    loop = Controller(place)
    threads = [threading.Thread(target=each.run) for each in (elsewhere, loop)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: not place.ledger.runs(active_only=True), 60, "it has ended")
    finally:
        elsewhere.stop()
        loop.stop()
        for thread in threads:
            thread.join(60)
    assert statuses(place, array) == ["done", "failed", "done", "done"]
    assert isinstance(place.processor, Recorder)
    told = [event.text for event in place.processor.events if isinstance(event, Notice)]
    assert any(text.startswith("run sweep_2: ") and text.endswith("-> failed") for text in told)


@pytest.mark.usefixtures("quick", "owners")
def test_members_are_stopped_by_their_indexes(place: RunnerContext, boxes: FolderLab) -> None:
    array = submit(place, boxes.fleet(), "1-9", ["sleep 600"])
    driver = threading.Thread(target=lambda: ArrayDriver(place, array).run())
    driver.start()
    try:
        until(lambda: statuses(place, array)[:2] == ["running"] * 2, 60, "two run")
        until(lambda: place.ledger.get("sweep_3").in_line, 60, "the third waits for nodes")
        chosen = choose(place.ledger, "sweep_[4-6,2]")
        assert chosen is not None
        place.ledger.arrays.stop(array, chosen.numbers, "stop")
        # Those that nobody has begun have ended at once.
        assert statuses(place, array)[3:] == ["terminated"] * 3 + ["pending"] * 3
        assert place.ledger.get("sweep_5").ranks[0].reason == "terminated_by_user"
        until(lambda: place.ledger.get("sweep_3").status == "running", 60, "the next one has its node")
        ended = lifecycle.stop(place, place.ledger.get("sweep_9"))
        assert (ended.status, ended.reason) == ("terminated", "stopped_by_user")
    finally:
        everyone = [each.id for each in place.ledger.arrays.members(array)]
        place.ledger.arrays.stop(array, everyone, "abort")
        driver.join(60)
    assert statuses(place, array) == ["terminated"] * 9
    assert left(boxes) == []


@pytest.mark.usefixtures("quick")
def test_members_that_can_begin_elsewhere_alone_are_told(
    place: RunnerContext, boxes: FolderLab, tmp_path: Path
) -> None:
    array = submit(place, boxes.fleet(), "1-3")
    with pytest.raises(RunFailed, match="cannot begin from here"):
        ArrayDriver(replace(place, dot=tmp_path / "other/.orch"), array).run()
    assert {row.owner for row in place.ledger.runs()} == {None}
    ArrayDriver(place, array).run()
    assert statuses(place, array) == ["done"] * 3


@pytest.mark.usefixtures("quick")
def test_a_member_is_tried_again_as_any_run(place: RunnerContext, boxes: FolderLab, tmp_path: Path) -> None:
    retry = {"on_events": ["error"], "max_attempts": 2}
    command = f"echo $ORCH_ARRAY_TASK_ID$ORCH_ATTEMPT >> {tmp_path}/begun; [ $ORCH_ATTEMPT = 1 ]"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orch.runner.runs.retry.DELAYS_S", (0.1,))
        array = submit(place, boxes.fleet(), "1-2", [command], retry=retry)
        ArrayDriver(place, array).run()
    assert statuses(place, array) == ["done", "done"]
    assert sorted((tmp_path / "begun").read_text().split()) == ["10", "11", "20", "21"]


def test_a_look_costs_one_pass_over_the_members_that_have_begun(place: RunnerContext) -> None:
    submit(place, fleet(node(0)), "1-50")
    assert lifecycle.reconcile_once(place) == ()
    assert {row.fence for row in place.ledger.runs()} == {1}  # nobody has taken one


def test_secrets_of_members_that_wait_are_known(place: RunnerContext) -> None:
    keyed = replace(place, secrets=lambda names: dict.fromkeys(names, "x"))
    submit(keyed, fleet(node(0)), "1-2", env={"KEY": "${{ secrets.key }}"})
    assert {row.name for row in runs_that_need(place.dot, place.ledger, "key")} == {"sweep_1", "sweep_2"}
    assert runs_that_need(place.dot, place.ledger, "other") == ()


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("sweep_[x]", "ORCH125", "'x' is not a range of indexes"),
        ("sweep_[]", "ORCH125", "'' is not a range of indexes"),
        ("sweep_[1-2%3]", "ORCH125", "is not a choice of indexes"),
        ("sweep_[2-9]", "ORCH125", "the array sweep has no index 4-9"),
        ("sweep_[3-1]", "ORCH122", "the range runs backwards"),
        ("other_[1]", None, "no array named 'other'"),
    ],
)
def test_indexes_that_are_named_wrongly_are_told(ledger: Ledger, dot: Path, text: str, code: str, said: str):
    place = RunnerContext(dot, ledger, None)  # type: ignore[arg-type]
    submit(place, fleet(node(0)), "1-3")
    with pytest.raises((BadRunName, UnknownRun)) as caught:
        choose(ledger, text)
    assert said in str(caught.value.summary)
    assert caught.value.code == code


def test_what_a_name_is_of_arrays(ledger: Ledger, dot: Path):
    place = RunnerContext(dot, ledger, None)  # type: ignore[arg-type]
    array = submit(place, fleet(node(0)), "1-3")
    whole, some, one = (choose(ledger, text) for text in ("sweep", f"{array.id}_[2-3]", "sweep_2"))
    assert whole is not None
    assert some is not None
    assert one is None
    assert (whole.whole, [each.index for each in whole.members]) == (True, [1, 2, 3])
    assert (some.whole, some.array, [each.index for each in some.members]) == (False, array, [2, 3])
    ledger.arrays.stop(array, whole.numbers, "stop")
    ledger.create("sweep", "lab", ["n0"], lambda number: "{}")
    assert choose(ledger, "sweep") is None  # a run of that name is newer


def member(index: int, status: str = "pending", **more: object) -> Member:
    given: dict[str, object] = {
        **{"id": index, "name": f"sweep_{index}", "index": index, "limit": None, "status": status},
        **{"desired": "run", "phase": "waiting", "attempt": 0, "message": ARRAY_LIMIT, "owner": None},
        **{"lease_until": None, "next_at": 0.0, "queued_at": None, "looked_at": None, "in_use": 0},
        **{"created_at": 0.0, "started_at": None, "finished_at": None, "now": 100.0},
    }
    return Member(**{**given, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("members", "turn"),
    [
        ([member(1), member(2), member(3)], [1, 2, 3]),
        ([member(1, limit=2), member(2, limit=2), member(3, limit=2)], [1, 2]),
        ([member(1, "running", limit=2), member(2, "terminating", limit=2), member(3, limit=2)], []),
        ([member(1, "done", limit=1), member(2, limit=1), member(3, limit=1)], [2]),
        # One that stands in line for nodes that others have does so for all.
        ([member(1, "running"), member(2), member(3, queued_at=50.0, in_use=1)], [3]),
        # Nodes that do not answer may be others for the next one.
        ([member(1, queued_at=50.0), member(2)], [1, 2]),
        # Tried again later, to be stopped.
        ([member(1, next_at=200.0), member(2, desired="stop"), member(3)], [3]),
    ],
)
def test_whose_turn_it_is(members: list[Member], turn: list[int]):
    assert [each.index for each in turns(members).now] == turn
