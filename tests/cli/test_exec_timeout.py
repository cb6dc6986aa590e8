"""What becomes of a command of `orch exec --timeout` when its time is over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.nodes.foldernodes import FolderLab
from kit.support import until

from orch.cli.runs import exec as module
from orch.cli.runs.exec import ask, exit_code, folded, limited


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[FolderLab]:
    (tmp_path / "boxes").mkdir()
    lab = FolderLab(tmp_path / "boxes")
    yield lab
    lab.end()


def lives(file: Path) -> bool:
    try:
        os.kill(int(file.read_text()), 0)
    except ProcessLookupError:
        return False
    # One that has ended may wait for its parent.
    return Path(f"/proc/{int(file.read_text())}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_it_is_ended_where_it_runs_with_all_it_began(boxes: FolderLab, tmp_path: Path) -> None:
    text = f"sleep 600 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/shell; wait"
    (node,) = boxes.fleet().nodes[:1]
    answers = ask([node], boxes.connector, lambda _: limited(text, 1), text, timeout_s=1)
    (error,) = [each.error for each in answers]
    assert error is not None
    assert error.summary == f"the command on node {node.name} took longer than 1 s, and was ended there"
    assert error.detail == text
    assert exit_code(answers) == 7
    for name in ("child", "shell"):
        until(lambda name=name: not lives(tmp_path / name), 60, f"{name} has ended")


def test_where_nothing_can_end_it_that_is_said(boxes: FolderLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small image may have no `timeout`."""
    monkeypatch.setattr(module, "KILL_S", 0)
    monkeypatch.setattr(module, "ANSWER_S", 0)
    text = "exec /bin/sleep 600"
    (node,) = boxes.fleet().nodes[:1]
    there = f"PATH=/nowhere\n{limited(text, 1, '/bin/sh')}"
    (answer,) = ask([node], boxes.connector, lambda _: there, text, timeout_s=1)
    assert answer.error is not None
    assert "took longer than 1 s, and may go on there" in answer.error.summary
    assert answer.error.detail == text


def test_one_that_ends_in_time_keeps_its_output_and_its_code(boxes: FolderLab) -> None:
    text = "echo it\\'s fine; exit 124"
    (node,) = boxes.fleet().nodes[:1]
    answers = ask([node], boxes.connector, lambda _: limited(text, 600), text, timeout_s=600)
    (group,) = folded(answers)
    assert (group.exit_code, group.stdout) == (124, "it's fine\n")
