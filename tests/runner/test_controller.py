"""Passes over runs that nobody drives, on nodes that are folders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from foldernodes import FolderLab, ProcessRuntime
from support import until

from orch.runner.events import Recorder
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.records import RunRow
from orch.runner.node.docker import RUNTIMES
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[FolderLab]:
    (tmp_path / "boxes").mkdir()
    lab = FolderLab(tmp_path / "boxes")
    yield lab
    lab.end()


@pytest.fixture
def place(tmp_path: Path, boxes: FolderLab, ledger_url: str) -> Iterator[RunnerContext]:
    ledger = open_ledger(ledger_url)
    runtimes = {**RUNTIMES, "process": ProcessRuntime()}
    yield RunnerContext(tmp_path / ".orch", ledger, boxes.connector, Recorder(), runtimes)
    ledger.close()


def submit(place: RunnerContext, boxes: FolderLab, name: str, *, wait: bool = True, **task: object) -> RunRow:
    given = Task.model_validate({"name": name, "nodes": 2, "shell": "sh", "stop_duration": 5, **task})
    return lifecycle.submit(place, given, boxes.fleet(), image="none", base=place.dot.parent, wait=wait)


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
