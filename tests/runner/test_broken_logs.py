"""Logs that Docker breaks off: each line is kept once, and what Docker says is none of them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from kit.nodes.foldernodes import FolderConnector

from orch.runner.errors import RunFailed
from orch.runner.events import Event, LogLine, LogLines, Recorder
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.run_folder import RunFolder
from orch.runner.node.logs import Follower, fetch_rest
from orch.runner.node.runtimes.docker import DockerRuntime
from orch.runner.plan.run_plan import RankPlan, RunPlan
from orch.runner.runs.context import RunnerContext
from orch.runner.runs.read_logs import Selection, _follow_rank
from orch.spec.access import OtherAccess
from orch.spec.state import NodeState

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


# It tells its log for longer than a follower's patience, a line at a time.
SLOW = """\
#!/bin/sh
[ "$1" = logs ] || exit 0
while read -r line; do echo "$line"; sleep 0.5; done <{folder}/log
"""
# Who follows a log gets two lines, and nothing more before the job ends.
FOLLOWED = """\
#!/bin/sh
[ "$1" = logs ] || exit 0
case "$*" in *--follow*) ;; *) exec cat {folder}/log;; esac
head -n 2 {folder}/log
until [ -e {folder}/ended ]; do sleep 0.05; done
"""
# It says how it was asked, and knows the end of a log.
ASKED = """\
#!/bin/sh
[ "$1" = logs ] || exit 0
echo "$@" >>{folder}/asked
case "$*" in *--tail=1*) tail -n 1 {folder}/log;; *) cat {folder}/log;; esac
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPlan:
    """A run on a node whose Docker is a script."""
    (tmp_path / "bin").mkdir()
    docker_is(tmp_path, DOCKER)
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


def docker_is(folder: Path, script: str) -> None:
    docker = folder / "bin/docker"
    docker.write_text(script.format(folder=folder))
    docker.chmod(0o755)


def test_a_log_that_breaks_off_is_followed_on_from_its_last_line(plan: RunPlan, tmp_path: Path) -> None:
    told, ended, kept = Recorder(), threading.Event(), RunFolder(tmp_path / "run", 1)
    follower = Follower(
        FolderConnector(), DockerRuntime(), plan, 0, folder=kept, processor=told, on_end=ended.set
    )
    follower.start()
    assert ended.wait(120)
    follower.finish(60)
    follower.tell_rest()
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


def test_a_follower_that_is_behind_at_the_job_s_end_is_waited_for_while_lines_come(
    plan: RunPlan, tmp_path: Path
) -> None:
    docker_is(tmp_path, SLOW)
    told, kept = Recorder(), RunFolder(tmp_path / "run", 1)
    follower = Follower(
        FolderConnector(), DockerRuntime(), plan, 0, folder=kept, processor=told, on_end=lambda: None
    )
    follower.start()
    follower.finish(2.0)
    follower.tell_rest()
    assert kept.log(0).read_text().splitlines() == LINES
    fetch_rest(FolderConnector(), DockerRuntime(), plan, 0, kept, processor=told)
    said = [each.text for each in told.events if isinstance(each, LogLine)]
    assert said == [line.partition(" ")[2] for line in LINES]
    assert sorted(path.name for path in kept.logs.iterdir()) == ["0.log"]


class Paused(Recorder):
    """A screen that takes no line before it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.shows, self.goes_on = threading.Event(), threading.Event()

    def handle(self, event: Event, /) -> None:
        if isinstance(event, LogLines):
            self.shows.set()
            assert self.goes_on.wait(60)
        super().handle(event)


def test_a_screen_that_stands_still_keeps_no_line_from_the_log_and_gets_each_once(
    plan: RunPlan, tmp_path: Path
) -> None:
    docker_is(tmp_path, FOLLOWED)
    screen, kept = Paused(), RunFolder(tmp_path / "run", 1)
    follower = Follower(
        FolderConnector(), DockerRuntime(), plan, 0, folder=kept, processor=screen, on_end=lambda: None
    )
    follower.start()
    assert screen.shows.wait(60)
    # Whoever drives the run completes the log, and removes the container.
    fetch_rest(FolderConnector(), DockerRuntime(), plan, 0, kept, processor=None)
    assert kept.log(0).read_text().splitlines() == LINES
    (tmp_path / "log").write_text("")
    (tmp_path / "ended").touch()
    follower.finish(60)
    assert not follower.tell_rest(0.1)
    screen.goes_on.set()
    assert follower.tell_rest()
    said = [each.text for each in screen.events if isinstance(each, LogLine)]
    assert said == [line.partition(" ")[2] for line in LINES]
    assert kept.log(0).read_text().splitlines() == LINES
    assert sorted(path.name for path in kept.logs.iterdir()) == ["0.log"]


@pytest.mark.parametrize("missing", [0, 3])
def test_a_long_log_is_read_again_only_where_its_end_is_not_here(
    plan: RunPlan, tmp_path: Path, missing: int
) -> None:
    docker_is(tmp_path, ASKED)
    kept = RunFolder(tmp_path / "run", 1)
    lines = [f"2026-01-02T03:04:05.{each:09}Z {'x' * 99}{each}" for each in range(10_000)]
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in lines))
    kept.logs.mkdir(parents=True)
    kept.log(0).write_text("".join(f"{line}\n" for line in lines[: len(lines) - missing]))
    fetch_rest(FolderConnector(), DockerRuntime(), plan, 0, kept, processor=None)
    assert kept.log(0).read_text().splitlines() == lines
    asked = (tmp_path / "asked").read_text().splitlines()[1:]
    assert ["--tail=1" in words for words in asked] == [True, False][: 1 + bool(missing)]


def test_who_reads_a_log_that_breaks_off_sees_each_line_once(
    plan: RunPlan, tmp_path: Path, ledger_url: str
) -> None:
    ledger = open_ledger(ledger_url)
    reader = RunnerContext(tmp_path / ".orch", ledger, FolderConnector(), Recorder())
    _follow_rank(reader, plan, 0, Selection((0,)), threading.Event())
    ledger.close()
    assert isinstance(reader.processor, Recorder)
    said = [each.text for each in reader.processor.events if isinstance(each, LogLine)]
    assert said == [line.partition(" ")[2] for line in LINES]
