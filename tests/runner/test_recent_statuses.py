"""What nodes said a moment ago, shared by runs of one controller that look for free nodes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from kit.nodes.foldernodes import FolderLab

from orch.runner.node_api.status import NodeStatus
from orch.runner.runs.seats import recent_statuses
from orch.runner.runs.seats.recent_statuses import RecentStatuses


class Nodes:
    """Counts how often they are asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = threading.Event()
        self.gate.set()

    def ask(self) -> tuple[NodeStatus, ...]:
        self.asked += 1
        assert self.gate.wait(60)
        return ()


def test_nodes_are_asked_again_when_a_run_has_left_them_or_time_has_passed(
    folder_lab: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, recent, nodes = folder_lab.fleet(), RecentStatuses(), Nodes()
    monkeypatch.setattr(recent_statuses, "KEPT_S", 600.0)
    for _ in range(3):
        recent.of(fleet, 1.0, nodes.ask)
    assert nodes.asked == 1
    recent.of(fleet, 2.0, nodes.ask)
    assert nodes.asked == 2
    recent.of(fleet.model_copy(update={"nodes": fleet.nodes[:1]}), 2.0, nodes.ask)
    assert nodes.asked == 3
    recent.of(fleet.model_copy(update={"name": "other"}), 2.0, nodes.ask)
    assert nodes.asked == 4
    monkeypatch.setattr(recent_statuses, "KEPT_S", -1.0)
    recent.of(fleet.model_copy(update={"name": "other"}), 2.0, nodes.ask)
    assert nodes.asked == 5


def test_who_comes_while_nodes_are_asked_waits_for_their_answer(
    folder_lab: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, recent, nodes = folder_lab.fleet(), RecentStatuses(), Nodes()
    monkeypatch.setattr(recent_statuses, "KEPT_S", 600.0)
    nodes.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(recent.of, fleet, 1.0, nodes.ask) for _ in range(8)]
        nodes.gate.set()
        assert [each.result() for each in answers] == [()] * 8
    assert nodes.asked == 1


def test_nodes_that_could_not_be_asked_are_asked_again(folder_lab: FolderLab) -> None:
    recent, nodes = RecentStatuses(), Nodes()

    def fails() -> tuple[NodeStatus, ...]:
        raise OSError("no answer")

    with pytest.raises(OSError, match="no answer"):
        recent.of(folder_lab.fleet(), 1.0, fails)
    assert recent.of(folder_lab.fleet(), 1.0, nodes.ask) == ()
    assert nodes.asked == 1


@pytest.fixture
def folder_lab(tmp_path_factory: pytest.TempPathFactory) -> FolderLab:
    return FolderLab(tmp_path_factory.mktemp("boxes"))
