"""A disk that one run gives back and the next one wants on the same node: who has it at any moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kit.nodes.foldernodes import FolderConnector, FolderRuntime, folder_of

from orch.runner.errors import DetachPending, RunFailed, VolumeDetaching
from orch.runner.events import Notice, Recorder
from orch.runner.launch.compile import compile_run
from orch.runner.launch.run_request import RunRequest
from orch.runner.launch.submission import Submission
from orch.runner.launch.volumes import KnownVolume, Volumes
from orch.runner.ledger.ledger import open_ledger
from orch.runner.node import volumes
from orch.runner.node.volumes import DETACHING_MIN, NO_VOLUMES, mount_volumes, release_volumes
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Completed
from orch.runner.placement.placement import place_task
from orch.runner.plan.run_plan import RunPlan
from orch.runner.runs import lifecycle, ranks
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState
from orch.spec.volume_state import VolumeState

GONE = "echo orch-other-0-0-x"
SILENT = "echo 'Cannot connect to the Docker daemon' >&2; exit 1"
STATE = VolumeState(name="data", backend="aws", volume_id="vol-1", region="r", zone="z")
TASK = Task.model_validate({"image": "x", "nodes": 1, "volumes": ["data:/data"], "commands": ["true"]})
KNOWN = Volumes({"data": KnownVolume(STATE)})


def nothing() -> None: ...


class Killed(BaseException):
    """The end of a process between two of its steps."""


class Line(FolderConnector):
    """What leads to the node; `before` and `after` a command, with its label, something else may happen."""

    def __init__(self) -> None:
        self.before: Callable[[str], None] = lambda label: None
        self.after: Callable[[str], None] = lambda label: None

    def run(self, node: NodeState, command: Command, **more: Any) -> Completed:
        self.before(command.label)
        done = super().run(node, command, **more)
        self.after(command.label)
        return done


@dataclass
class Node:
    """A node that is a folder, its disk, and the cloud that attaches it."""

    state: NodeState
    programs: Path
    attached: bool = False
    detached: int = 0
    during: Callable[[], None] = nothing
    line: Line = field(default_factory=Line)

    def attach(self, volume: VolumeState, node: NodeState, *, read_only: bool) -> tuple[str, ...]:
        self.attached = True
        return (str(self.programs),)

    def detach(self, volume: VolumeState, node: NodeState) -> None:
        self.during()
        self.attached = False
        self.detached += 1

    @property
    def fleet(self) -> FleetState:
        return FleetState(name="f", stack="f", backend="aws", nodes=(self.state,), simulated=True)

    def plan(self, run: str) -> RunPlan:
        seats = place_task(TASK, self.fleet)
        request = RunRequest(TASK, run, 1, self.fleet, seats, "x", Path("/"), volumes=KNOWN)
        return compile_run(request).plan

    def mount(self, run: str) -> None:
        mount_volumes(self.line, self, self.plan(run), 0)

    def release(self, run: str) -> None:
        release_volumes(self.line, self, self.plan(run), 0)

    def docker(self, script: str) -> None:
        """What `docker` does on the node."""
        self.program("docker", script)

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def users(self) -> list[str]:
        found = (folder_of(self.state) / "volume-users" / "vol-1").glob("*")
        return sorted(path.name.split("-")[1] for path in found)

    def age(self, name: str, minutes: int) -> None:
        """Make a file of `volume-users` older."""
        (path,) = (folder_of(self.state) / "volume-users").glob(name)
        then = path.stat().st_mtime - minutes * 60
        os.utime(path, (then, then))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    for name in ("node", "bin"):
        (tmp_path / name).mkdir()
    record = {"index": 0, "name": "n0", "runtime": "folder", "cpus": 2, "memory_mib": 2048}
    record |= {"region": "r", "zone": "z", "internal_ip": "10.0.0.1"}
    record |= {"access": {"kind": "folder", "folder": str(tmp_path / "node")}}
    node = Node(NodeState.model_validate(record), tmp_path / "bin")
    # Nobody mounts here: the scripts' own order is what counts.
    node.program("mount", "exit 0")
    node.docker(GONE)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return node


def test_a_run_waits_for_the_detaching_of_the_one_before(node: Node) -> None:
    def wanted() -> None:
        with pytest.raises(VolumeDetaching, match="volume data is being detached from node n0") as caught:
            node.mount("second")
        assert "job orch-first-" in (caught.value.detail or "")
        assert node.users() == []

    node.mount("first")
    node.during = wanted
    node.release("first")
    assert (node.attached, node.detached) == (False, 1)
    node.mount("second")
    assert (node.attached, node.users()) == (True, ["second"])


def test_a_disk_that_a_newer_run_has_asked_for_stays(node: Node) -> None:
    node.mount("first")
    node.mount("second")
    node.release("first")
    assert (node.attached, node.detached) == (True, 0)
    node.release("second")
    assert (node.attached, node.users()) == (False, [])


def test_a_run_is_noted_before_the_cloud_is_asked(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.mount("first")
    seen: list[list[str]] = []

    def attach(volume: VolumeState, at: NodeState, *, read_only: bool) -> tuple[str, ...]:
        seen.append(node.users())
        node.release("first")
        return (str(node.programs),)

    monkeypatch.setattr(node, "attach", attach)
    node.mount("second")
    assert (seen, node.detached) == ([["first", "second"]], 0)


def kill() -> None:
    raise Killed


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_a_killed_detaching_leaves_ends_with_the_next_try_or_with_time(node: Node, moment: str) -> None:
    node.mount("first")
    if moment == "before":
        node.during = kill
    else:
        node.line.before = lambda label: kill() if label.startswith("release volume") else None
    with pytest.raises(Killed):
        node.release("first")
    node.line.before = lambda label: None
    node.during = nothing
    with pytest.raises(VolumeDetaching):
        node.mount("second")
    node.age("vol-1.detaching", DETACHING_MIN + 1)
    node.mount("second")
    # Who comes to the first run's end now leaves the disk.
    before = node.detached
    node.release("first")
    assert (node.attached, node.detached - before) == (True, 0)
    node.release("second")
    node.mount("third")


def test_the_same_run_goes_on_where_it_was_killed(node: Node) -> None:
    node.mount("first")
    node.during = kill
    with pytest.raises(Killed):
        node.release("first")
    node.during = nothing
    node.release("first")
    assert node.detached == 1
    node.mount("second")


def test_a_refused_detaching_is_over_and_one_under_way_is_not(node: Node) -> None:
    def refuse(error: Exception) -> Callable[[], None]:
        def during() -> None:
            raise error

        return during

    node.mount("first")
    node.during = refuse(RunFailed("not allowed"))
    with pytest.raises(RunFailed, match="not allowed"):
        node.release("first")
    node.mount("second")
    node.during = refuse(DetachPending("it takes long"))
    with pytest.raises(DetachPending):
        node.release("second")
    with pytest.raises(VolumeDetaching):
        node.mount("third")


def test_who_cannot_detach_leaves_it_to_who_can(node: Node) -> None:
    node.mount("first")
    with pytest.raises(RunFailed, match="nobody here detaches the volume data"):
        release_volumes(node.line, NO_VOLUMES, node.plan("first"), 0)
    assert node.attached
    node.release("first")
    assert (node.attached, node.detached) == (False, 1)


def test_who_slept_before_detaching_asks_the_node_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def sleep(label: str) -> None:
        if label.startswith("unmount") and not clock[0]:
            clock[0] = 7200.0
            node.age("vol-1.detaching", 120)
            node.mount("second")

    node.mount("first")
    node.line.after = sleep
    monkeypatch.setattr(volumes.time, "time", lambda: clock[0])
    node.release("first")
    assert (node.attached, node.detached, node.users()) == (True, 0, ["second"])


@pytest.mark.parametrize(("says", "detached"), [(SILENT, 0), ("ls {users}", 0), (GONE, 1)])
def test_a_user_of_long_ago_is_gone_only_when_docker_says_so(node: Node, says: str, detached: int) -> None:
    node.mount("old")
    node.age("vol-1/orch-old-*", 90)
    node.mount("first")
    node.docker(says.format(users=folder_of(node.state) / "volume-users" / "vol-1"))
    node.release("first")
    assert (node.detached, node.users()) == (detached, [] if detached else ["old"])


def test_a_run_starts_once_the_disk_is_free(
    node: Node, tmp_path: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.mount("first")
    node.during = kill
    with pytest.raises(Killed):
        node.release("first")
    node.during = nothing
    asked: list[str] = []

    def free(label: str) -> None:
        asked.append(label)
        if asked.count("reserve volume data") == 2:
            node.age("vol-1.detaching", DETACHING_MIN + 1)

    node.line.after = free
    monkeypatch.setattr(ranks, "LOOK_AGAIN_S", 0.0)
    recorder, ledger = Recorder(), open_ledger(ledger_url)
    place = RunnerContext(
        tmp_path / ".orch", ledger, node.line, recorder, {"folder": FolderRuntime()}, volumes=node
    )
    row = lifecycle.submit(place, Submission(TASK, node.fleet, image="none", base=tmp_path, volumes=KNOWN))
    assert lifecycle.drive(place, row).status == "done"
    ledger.close()
    told = [event.text for event in recorder.events if isinstance(event, Notice)]
    assert told == ["volume data is being detached from node n0: waiting"]
    assert asked.count("reserve volume data") == 3
    assert (node.attached, node.users()) == (False, [])
