"""Private images: pulled on the node with the log-in of the task, which nobody sees and nothing keeps."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kit.canaries import Nest, Watch
from kit.nodes.nodelab import Lab, docker
from kit.nodes.registrylab import ADDRESS, APP, Registry, registry

from orch.runner.events import LogLine, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.records import RunRow
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState


@pytest.fixture(scope="module")
def nest() -> Nest:
    return Nest("password", "wrong")


@pytest.fixture(scope="module")
def private(pair: tuple[NodeState, NodeState], nest: Nest) -> Iterator[Registry]:
    with registry(pair[0].name, "team", nest["password"].value) as found:
        yield found


@dataclass(frozen=True)
class Trial:
    """A project, and a fleet of one node that does not have the image yet."""

    place: RunnerContext
    fleet: FleetState
    base: Path

    @property
    def node(self) -> str:
        return self.fleet.nodes[0].name

    def run(self, name: str, password: str | None) -> RunRow:
        """A run of the private image, by a password in the store; None: without a log-in."""
        auth = {"registry_auth": {"username": "team", "password": "${{ secrets.registry }}"}}
        task = Task.model_validate(
            {"name": name, "image": APP, "commands": ["echo pulled"], **(auth if password else {})}
        )
        place = replace(self.place, secrets=lambda names: dict.fromkeys(names, password or ""))
        row = lifecycle.submit(place, Submission(task, self.fleet, image=APP, base=self.base))
        return lifecycle.drive(place, row)

    def lines(self) -> list[str]:
        assert isinstance(self.place.processor, Recorder)
        return [event.text for event in self.place.processor.events if isinstance(event, LogLine)]


@pytest.fixture
def trial(
    place: RunnerContext, lab: Lab, pair: tuple[NodeState, NodeState], private: Registry, tmp_path: Path
) -> Trial:
    private.forget()
    return Trial(place, lab.fleet(pair[0]), tmp_path)


def left_on(node: str, nest: Nest) -> set[str]:
    """Canaries in files of a node, those in memory too."""
    folders = ("dev/shm", "etc", "root", "run", "tmp", "var/lib/orch")
    packed = subprocess.run(
        ["docker", "exec", node, "tar", "-C", "/", "-cf", "-", *folders], capture_output=True, check=False
    ).stdout
    assert len(packed) > 100_000
    return nest.in_bytes(packed)


def test_an_image_is_pulled_with_the_log_in_and_nothing_of_it_stays(trial: Trial, nest: Nest) -> None:
    with Watch(nest) as watch:
        row = trial.run("private", nest["password"].value)
    assert row.status == "done", row.message
    assert trial.lines() == ["pulled"]
    assert docker("exec", trial.node, "docker", "images", "-q", APP)
    assert (watch.found, watch.looks > 2) == (set(), True)
    assert left_on(trial.node, nest) == set()
    assert docker("exec", trial.node, "sh", "-c", "ls -d /dev/shm/orch-login.* 2>/dev/null || :") == ""
    assert dict(nest.in_files(trial.base)) == {}


def test_a_wrong_password_is_told_with_registry_and_user_and_leaves_nothing(trial: Trial, nest: Nest) -> None:
    row = trial.run("wrong", nest["wrong"].value)
    assert (row.status, row.ranks[0].reason) == ("failed", "creating_container_error")
    assert (row.message or "").startswith(f"the registry {ADDRESS} refuses the log-in of team: ")
    assert nest.in_bytes(repr(row).encode()) == set()
    assert left_on(trial.node, nest) == set()
    assert docker("exec", trial.node, "docker", "ps", "-aq", "--filter", "label=orch.run=wrong") == ""


def test_a_registry_that_lets_nobody_in_is_told_where_there_is_no_log_in(trial: Trial) -> None:
    row = trial.run("nobody", None)
    assert (row.message or "").startswith(f"the registry {ADDRESS} lets nobody in: ")
