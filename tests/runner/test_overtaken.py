"""Runs that find no nodes when they are submitted: others take them meanwhile, or they do not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.nodes.foldernodes import FolderLab, FolderRuntime

from orch.runner.errors import HostUnreachable, NodesBusy
from orch.runner.events import Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.database import open_engine
from orch.runner.ledger.ledger import Ledger, open_ledger
from orch.runner.ledger.records import RunRow
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.errors import ExitCode
from orch.spec.models import Task


class Overtaken(Ledger):
    """A ledger into which somebody else writes a run when this process has chosen nodes for its own."""

    somebody: Callable[[], object] | None = None

    def create(self, *words: Any, **more: Any) -> RunRow:
        somebody, self.somebody = self.somebody, None
        if somebody is not None:
            somebody()
        return super().create(*words, **more)


@pytest.fixture
def place(tmp_path: Path, ledger_url: str) -> Iterator[RunnerContext]:
    (tmp_path / "boxes").mkdir()
    lab = FolderLab(tmp_path / "boxes")
    ledger = open_ledger(ledger_url)
    runtimes = {**RUNTIMES, "folder": FolderRuntime()}
    yield RunnerContext(tmp_path / ".orch", ledger, lab.connector, Recorder(), runtimes)
    ledger.close()
    lab.end()


@pytest.fixture
def submit_two(place: RunnerContext, ledger_url: str, tmp_path: Path) -> Iterator[Callable[..., RunRow]]:
    """Submits the run `late`, and the run `soon` while that has chosen its nodes and is not written yet."""
    ledger = Overtaken(*open_engine(ledger_url))

    def submit_two(nodes: int, *, wait: bool = False) -> RunRow:
        def submit(runner: RunnerContext, name: str, *, wait: bool = False) -> RunRow:
            task = Task.model_validate({"name": name, "nodes": nodes, "shell": "sh", "commands": ["true"]})
            fleet = FolderLab(tmp_path / "boxes").fleet()
            return lifecycle.submit(runner, Submission(task, fleet, image="none", base=tmp_path), wait=wait)

        ledger.somebody = lambda: submit(place, "soon")
        return submit(replace(place, ledger=ledger), "late", wait=wait)

    yield submit_two
    ledger.close()


def test_the_later_of_two_runs_that_chose_the_same_nodes_is_refused(
    place: RunnerContext, submit_two: Callable[..., RunRow]
) -> None:
    with pytest.raises(NodesBusy, match="the run needs 2 nodes, 0 are free") as caught:
        submit_two(nodes=2)
    assert caught.value.exit_code == ExitCode.CONFLICT == 9
    assert caught.value.detail == "in use: box-[0-1] by soon"
    assert [row.name for row in place.ledger.runs()] == ["soon"]
    assert list((place.dot / "runs/late").glob("*.json")) == []


def test_the_later_of_two_runs_that_chose_the_same_nodes_waits_in_line_where_it_may(
    place: RunnerContext, submit_two: Callable[..., RunRow]
) -> None:
    row = submit_two(nodes=2, wait=True)
    assert (row.name, row.status, row.in_line) == ("late", "pending", True)
    assert place.ledger.line("boxes").position(row.id) == 1
    assert "in use: box-[0-1] by soon" in (row.message or "")


def test_the_later_of_two_runs_that_chose_the_same_node_gets_another_one(
    place: RunnerContext, submit_two: Callable[..., RunRow]
) -> None:
    row = submit_two(nodes=1)
    (other,) = (each for each in place.ledger.runs() if each.name == "soon")
    assert [rank.node for each in (other, row) for rank in each.ranks] == ["box-0", "box-1"]


@pytest.mark.parametrize(
    ("known", "detail"),
    [
        ({}, "box-1: node box-1 cannot be reached"),
        ({"box-1": "its container is not running (exited)"}, "box-1: its container is not running (exited)"),
    ],
)
def test_a_run_that_needs_a_node_that_does_not_answer_is_refused(
    known: dict[str, str], detail: str, place: RunnerContext, tmp_path: Path
) -> None:
    fleet = FolderLab(tmp_path / "boxes").fleet()
    (tmp_path / "boxes/node-1").rmdir()

    def submit(nodes: int, *, wait: bool = False) -> RunRow:
        given = {"name": f"on-{nodes}", "nodes": nodes, "shell": "sh", "commands": ["true"]}
        task = Task.model_validate(given)
        submission = Submission(task, fleet, image="none", base=tmp_path)
        return lifecycle.submit(place, submission, wait=wait, why_silent=lambda *_: known)

    with pytest.raises(HostUnreachable) as caught:
        submit(2)
    error = caught.value
    assert error.exit_code == ExitCode.HOSTS == 7
    assert error.summary == "node box-1 of fleet boxes does not answer"
    assert error.detail == detail
    assert "orch up" in (error.hint or "")
    assert place.ledger.runs() == ()
    # Where another node will do, the silent one keeps nobody; and one that waits in line waits for it.
    assert [rank.node for rank in submit(1).ranks] == ["box-0"]
    assert submit(2, wait=True).status == "pending"
