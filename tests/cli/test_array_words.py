"""What is told of arrays: folded rows, counts, ends of members; and where an index may be referred to."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kit.ledgers.pureruns import fleet, node

from orch.cli.errors import UsageError
from orch.cli.output.run import run_json, runs_table, status_text
from orch.cli.runs.arrays.words import array_json, counts, ends, summary
from orch.cli.runs.run import RunOptions, start
from orch.cli.targets.names import fleet_or_run
from orch.runner.errors import UnknownRun
from orch.runner.launch.submission import Submission
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import ArrayKey, Waiting
from orch.runner.runs.arrays.choose import fold_waiting, folded
from orch.runner.runs.arrays.submit import submit_array
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.grammar.schedule import parse_array
from orch.spec.loader.load import load_paths
from orch.spec.models import Task
from orch.stacks.project.project import find


@pytest.fixture
def place(tmp_path: Path) -> RunnerContext:
    ledger = open_ledger(f"sqlite:///{tmp_path / '.orch/ledger.db'}")
    return RunnerContext(tmp_path / ".orch", ledger, None)  # type: ignore[arg-type]


@pytest.fixture
def array(place: RunnerContext) -> ArrayKey:
    """Of five members the first is done, the second failed, the third waits in line."""
    task = Task.model_validate({"name": "sweep", "array": "1-5%2", "commands": ["true"]})
    row = submit_array(place, Submission(task, fleet(node(0)), image="none", base=place.dot.parent))
    assert row.array is not None
    leases = list(place.ledger.arrays.take(row.array, "me").values())
    for lease, status in zip(leases, ("done", "failed"), strict=False):
        place.ledger.begin_attempt(lease, 0, place.ledger.by_id(lease.run_id).plan, ["n0"])
        place.ledger.mark_started(lease, "ranks 0")
        place.ledger.finish(lease, status, "why", "rank 0 on node n0 exited with code 1")
    place.ledger.wait(leases[2], Waiting("no node is free", 15.0, None, 1, for_nodes=True, in_use=True))
    return row.array


def test_members_that_wait_are_one_row(place: RunnerContext, array: ArrayKey) -> None:
    rows = place.ledger.runs()
    shown = fold_waiting(rows)
    assert [row.name for row in shown] == ["sweep_[3-5]", "sweep_2", "sweep_1"]
    table = runs_table(shown, {"lab": place.ledger.line("lab")}, colour=False)
    assert "sweep_[3-5]" in table
    assert "pending (1st of 1 in line)" in table
    (last,) = (row for row in rows if row.name == "sweep_5")
    assert status_text(last) == "pending (array limit)"
    told = run_json(last)
    assert (told["status"], told["reason"]) == ("pending", "array limit")
    assert told["array"] == {"name": "sweep", "id": array.id, "index": 5, "limit": 2}
    assert fold_waiting(rows[-2:]) == rows[-2:]


def test_an_array_is_told_in_counts_and_what_failed(place: RunnerContext, array: ArrayKey) -> None:
    members = place.ledger.arrays.members(array)
    assert counts(members) == {"pending": 3, "running": 0, "done": 1, "failed": 1, "terminated": 0}
    assert summary(array, members).splitlines() == [
        "array sweep: 5 runs: 3 pending, 1 done, 1 failed",
        "  sweep_2: failed: rank 0 on node n0 exited with code 1; its log: orch logs sweep_2",
    ]
    before = {each.id: "running" for each in members[:2]} | {each.id: "pending" for each in members[2:]}
    assert ends(before, members) == [
        "sweep_2: failed: rank 0 on node n0 exited with code 1; its log: orch logs sweep_2",
        "sweep_1: done (3 pending, 1 done, 1 failed)",
    ]
    assert ends(before, members) == []  # each end is told once
    place.ledger.arrays.stop(array, [each.id for each in members], "stop")
    members = place.ledger.arrays.members(array)
    assert ends(before, members) == ["sweep_[4-5]: terminated (1 pending, 1 done, 1 failed, 2 terminated)"]
    told = array_json(place, array, members)
    assert (told["array"], told["id"], told["limit"]) == ("sweep", array.id, 2)
    assert [run["run"] for run in told["runs"]] == [f"sweep_{index}" for index in range(1, 6)]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            "type: task\nname: tt\ncommands: ['echo ${{ orch.array_task_id }}']\n",
            "write `array: 1-10` beside it",
        ),
        (
            "type: fleet\nname: tt\nnodes: 1\nenv: ['I=${{ orch.array_task_id }}']\n",
            "write it in a task with `array`",
        ),
    ],
)
def test_an_index_is_known_in_an_array_alone(tmp_path: Path, text: str, hint: str) -> None:
    file = tmp_path / "file.yml"
    file.write_text(text)
    found = [each for each in load_paths([str(file)]).diagnostics if each.code == "ORCH133"]
    assert [each.hint for each in found] == [hint]
    file.write_text("type: task\nname: tt\narray: 1-2\ncommands: ['echo ${{ orch.array_task_id }}']\n")
    assert load_paths([str(file)]).diagnostics == ()


def test_ports_are_of_one_run(tmp_path: Path) -> None:
    file = tmp_path / "task.yml"
    file.write_text("type: task\nname: tt\narray: 1-2\ncommands: [date]\n")
    with pytest.raises(UsageError, match="ports lead to the jobs of one run, and this is an array"):
        start(RunOptions(str(file), port=["8080"]))


@pytest.mark.parametrize("text", ["5", "1-100", "0-30:2", "1,3", "1,3,7-9", "0-20:10,21-22", "2-3,8"])
def test_indexes_are_folded_as_a_task_has_them(text: str) -> None:
    assert folded(parse_array(text).indexes) == text


def test_folded_indexes_are_those_that_were_folded() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        indexes = sorted(chance.sample(range(60), chance.randint(1, 60)))
        assert parse_array(folded(indexes)).indexes == tuple(indexes)


def test_a_verb_for_one_run_says_that_a_name_is_of_an_array(place: RunnerContext, array: ArrayKey) -> None:
    project = find(place.dot.parent)
    with pytest.raises(UnknownRun, match=f"{array.name} is an array of runs"):
        fleet_or_run(project, place, array.name, verb="exec")
