"""Logs that Docker breaks off: each line is kept once, and what Docker says is none of them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from foldernodes import FolderConnector

from orch.runner.errors import RunFailed
from orch.runner.events import LogLine, Recorder
from orch.runner.launch.run_plan import RankPlan, RunPlan
from orch.runner.ledger.run_folder import RunFolder
from orch.runner.node.docker import DockerRuntime
from orch.runner.node.logs import Follower, fetch_rest
from orch.spec.state import NodeState, OtherAccess

LINES = [f"2026-01-02T03:04:05.{each:09}Z line {each}" for each in range(1, 8)]
# Each time it is asked it tells two lines more of the log and fails, until it has told all.
DOCKER = """\
#!/bin/sh
[ "$1" = logs ] || exit 0
n=$(($(cat {folder}/asked) + 1))
echo $n >{folder}/asked
head -n $((2 * n)) {folder}/log
[ $((2 * n)) -ge 7 ] && exit 0
echo 'error from daemon in stream: Error grabbing logs: unexpected EOF' >&2
exit 1
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPlan:
    """A run on a node whose Docker is a script."""
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin/docker"
    docker.write_text(DOCKER.format(folder=tmp_path))
    docker.chmod(0o755)
    (tmp_path / "asked").write_text("0\n")
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in LINES))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    access = OtherAccess.model_validate({"kind": "folder", "folder": str(tmp_path)})
    node = NodeState(index=0, name="n0", access=access)
    return RunPlan(
        run="job",
        number=1,
        run_id="0123456789ab",
        fleet="f",
        backend="local",
        image="image",
        ranks=(RankPlan(rank=0, node=node, blocks=1, script="true\n"),),
        launcher="commands",
        hostfile="",
    )


def test_a_log_that_breaks_off_is_followed_on_from_its_last_line(plan: RunPlan, tmp_path: Path) -> None:
    told, ended, kept = Recorder(), threading.Event(), RunFolder(tmp_path / "run", 1)
    follower = Follower(
        FolderConnector(), DockerRuntime(), plan, 0, folder=kept, processor=told, on_end=ended.set
    )
    follower.start()
    assert ended.wait(120)
    follower.finish(60)
    assert kept.log(0).read_text().splitlines() == LINES
    said = [each.text for each in told.events if isinstance(each, LogLine)]
    assert said == [line.partition(" ")[2] for line in LINES]


def test_the_rest_of_a_log_that_breaks_off_is_an_error_and_is_not_taken_for_all(
    plan: RunPlan, tmp_path: Path
) -> None:
    kept = RunFolder(tmp_path / "run", 1)
    for count in (2, 4, 6):
        with pytest.raises(RunFailed) as caught:
            fetch_rest(FolderConnector(), DockerRuntime(), plan, 0, kept, processor=None)
        assert "unexpected EOF" in (caught.value.detail or "")
        assert kept.log(0).read_text().splitlines() == LINES[:count]
    fetch_rest(FolderConnector(), DockerRuntime(), plan, 0, kept, processor=None)
    assert kept.log(0).read_text().splitlines() == LINES
