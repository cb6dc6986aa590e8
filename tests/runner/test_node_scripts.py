"""The scripts of a job on its node, run by a real shell beside a Docker that says what it is told to."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orch.runner import job
from orch.runner.commands import NODE_HOME, Command
from orch.runner.plan import RankPlan, RunPlan
from orch.runner.stage import stage
from orch.spec.state import NodeState

NO_SUCH = "echo 'Error: No such container: x' >&2; exit 1"
BUSY = "echo 'Cannot connect to the Docker daemon. Is the docker daemon running?' >&2; exit 1"


def plan(run: str = "job", **more: Any) -> RunPlan:
    node = NodeState(index=0, name="n0", address="127.0.0.1", user="root", host_key="k", cpus=2)
    given: dict[str, Any] = {
        "run": run,
        "number": 1,
        "run_id": "0123456789ab",
        "fleet": "f",
        "backend": "local",
        "image": "image",
        "ranks": (RankPlan(rank=0, node=node, blocks=1, script="true\n"),),
        "launcher": "commands",
        "stop_duration_s": 5,
        "hostfile": "",
    }
    return RunPlan.model_validate({**given, **more})


@dataclass
class Node:
    """A folder that stands for a node's own; `docker` is a script."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def docker(self, script: str) -> None:
        path = self.folder / "bin" / "docker"
        path.write_text(f'#!/bin/sh\necho "$*" >> {self.folder}/calls\n{script}\n')
        path.chmod(0o755)

    def calls(self) -> str:
        path = self.folder / "calls"
        return path.read_text() if path.exists() else ""

    def run(self, command: Command) -> subprocess.CompletedProcess[str]:
        data = b"".join(command.stdin) if command.stdin is not None else b""
        # As root's shell gets it, without the way to root.
        text = command.text.replace(NODE_HOME, str(self.home)).replace("exec sudo -n sh -c", "exec sh -c")
        done = subprocess.run(
            ["sh", "-c", text],
            input=data,
            env={"PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
            capture_output=True,
            timeout=60,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def start(self, of: RunPlan) -> subprocess.CompletedProcess[str]:
        return self.run(job.start_command(of, 0, stage(of, 0, {}, None, None)))

    def claim(self, holder: str, age_s: int) -> Path:
        path = self.home / "claims" / "0"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(f"{holder}|other|eve@away|then|1")
        then = time.time() - age_s
        os.utime(path, (then, then), follow_symlinks=False)
        return path


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "bin").mkdir()
    made = Node(tmp_path)
    made.docker("case $1 in inspect) " + NO_SUCH + ";; esac")
    yield made
    for clock in made.home.glob("control/*/clock"):
        subprocess.run(["kill", "--", f"-{clock.read_text().strip()}"], check=False, capture_output=True)


def test_a_claim_is_left_alone_while_docker_does_not_answer(node: Node) -> None:
    claim = node.claim("orch-other-0-0-x", 7200)
    node.docker("case $1 in inspect) " + BUSY + ";; esac")
    assert node.start(plan()).returncode == job.BUSY
    assert os.readlink(claim).startswith("orch-other-0-0-x|")
    node.docker("case $1 in inspect) " + NO_SUCH + ";; esac")
    assert node.start(plan()).returncode == 0
    assert os.readlink(claim).startswith("orch-job-0-0-")


def test_a_run_that_waits_for_its_image_keeps_its_claim(node: Node) -> None:
    waiting = plan("waiting")
    claim = node.claim(waiting.container(0), 7200)
    assert node.run(job.hold_command(waiting, 0)).returncode == 0
    assert node.start(plan()).returncode == job.BUSY
    assert os.readlink(claim).startswith("orch-waiting-")


def test_a_job_is_not_made_anew_while_docker_does_not_answer(node: Node) -> None:
    assert node.start(plan()).returncode == 0
    (kept,) = node.home.glob("runs/orch-job-*/staged")
    node.docker("case $1 in inspect) " + BUSY + ";; esac")
    assert node.start(plan()).returncode == job.FAILED
    assert kept.exists()


def test_a_log_is_not_at_its_end_because_docker_does_not_answer(node: Node) -> None:
    node.docker(BUSY)
    assert node.run(job.log_command(plan(), 0)).returncode == job.NO_DOCKER
    node.docker(NO_SUCH)
    assert node.run(job.log_command(plan(), 0)).returncode == job.NO_STAGE


def test_the_clock_asks_again_when_docker_does_not_answer(node: Node, tmp_path: Path) -> None:
    of = plan(max_duration_s=1)
    assert node.start(of).returncode == 0
    sleep = tmp_path / "bin" / "sleep"
    sleep.write_text("#!/bin/sh\nexec /bin/sleep 0.1\n")
    sleep.chmod(0o755)
    node.docker(f"[ $(grep -c ^stop {tmp_path}/calls) -ge 3 ] || {{ {BUSY}; }}")
    assert node.run(job.go_command(of, 0, None)).returncode == 0
    end = time.monotonic() + 60
    while node.calls().count("stop -t 5") < 3:
        assert time.monotonic() < end, node.calls()
        time.sleep(0.1)
    assert [path.name for path in node.home.glob("control/*/expired")] == ["expired"]


def test_releasing_a_job_ends_its_own_clock_and_nobody_elses(node: Node) -> None:
    of = plan(max_duration_s=600)
    for own in (True, False):
        assert node.start(of).returncode == 0
        assert node.run(job.go_command(of, 0, None)).returncode == 0
        (clock,) = node.home.glob("control/*/clock")
        number = int(clock.read_text())
        # The clock's number is another process's by now, as after a reboot.
        foreign = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if not own:
            clock.write_text(f"{foreign.pid}\n")
        assert node.run(job.release_command(of, 0)).returncode == 0
        assert foreign.poll() is None
        foreign.kill()
        foreign.wait()
        if own:
            assert not _alive(number)
        else:
            os.killpg(number, 9)
    assert list(node.home.glob("control/*")) == list(node.home.glob("runs/*")) == []


def test_a_container_that_should_be_gone_is_overdue(node: Node) -> None:
    of = plan()
    assert node.start(of).returncode == 0
    node.docker("case $1 in inspect) echo 'running|0|false|then|';; esac")
    assert node.run(job.stop_command(of, 0)).returncode == 0
    seen = node.run(job.observe_command(of, 0)).stdout
    assert re.search(r"\|stopping$", seen.strip())
    (deadline,) = node.home.glob("control/*/deadline")
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 < int(deadline.read_text()) - uptime <= 5 + job.SLACK_S
    deadline.write_text("1\n")
    assert node.run(job.observe_command(of, 0)).stdout.strip().endswith("|stopping overdue")
    assert node.run(job.stop_command(of, 0, kill=True)).returncode == 0
    assert "kill -- orch-job-0-0-" in node.calls()
    assert node.run(job.observe_command(of, 0)).stdout.strip().endswith("|stopping")


def test_marks_that_an_older_version_left_in_the_stage_count_and_a_job_s_own_do_not(node: Node) -> None:
    old = node.home / "runs" / plan().container(0)
    (old / "state").mkdir(parents=True)
    for name in ("go", "expired", "stopping", "state/started"):
        (old / name).touch()
    node.docker("echo 'running|0|false|then|'")
    # A job of the old layout may make `stopping` itself: it is stopped all the same.
    assert node.run(job.observe_command(plan(), 0)).stdout.strip().endswith("|go started expired")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False
