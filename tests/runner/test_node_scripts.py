"""The scripts of a job on its node, run by a real shell beside a Docker that says what it is told to."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from kit.support import until

from orch.runner.errors import CommandTimeout, NodesBusy, NodeUnfit, RunFailed
from orch.runner.hosts.registration import BUSY as BUSY_HOST
from orch.runner.hosts.registration import leave
from orch.runner.node import container, container_start
from orch.runner.node.runtime import ObservedRank
from orch.runner.node.stage import stage, stage_files
from orch.runner.node.status import claims_command, read_claims, read_status, status_script
from orch.runner.node_api import cordon
from orch.runner.node_api.commands import NODE_HOME, Command
from orch.runner.node_api.connector import Completed
from orch.runner.node_api.cordon import Cordon
from orch.runner.plan.run_plan import RankPlan, RunPlan, SignalPlan, UtilizationPlan
from orch.runner.runs.decide import describe, rank_reason
from orch.spec.state import Gpus, NodeState

NO_SUCH = "echo 'Error: No such container: x' >&2; exit 1"
# Who asks with a limit has its end at once.
HANGS = '[ -z "${LIMITED:-}" ] || exit 124; sleep 60'
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

    def leave(self) -> int:
        """The exit code of a stack's leaving; nobody's real login is touched."""
        getent = self.folder / "bin" / "getent"
        getent.write_text(f"#!/bin/sh\necho x:x:0:0::{self.folder}/nobody:/bin/sh\n")
        getent.chmod(0o755)
        return self.run(leave("lab", "nobody")).returncode

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
        return self.run(container_start.start_command(of, 0, (stage(of, 0, {}, None),)))

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
    limit = tmp_path / "bin" / "timeout"
    limit.write_text('#!/bin/sh\nshift\nLIMITED=1 exec "$@"\n')
    limit.chmod(0o755)
    made.docker("case $1 in inspect) " + NO_SUCH + ";; esac")
    yield made
    for clock in made.home.glob("control/*/clock"):
        subprocess.run(["kill", "--", f"-{clock.read_text().strip()}"], check=False, capture_output=True)


def test_a_claim_is_left_alone_while_docker_does_not_answer(node: Node) -> None:
    claim = node.claim("orch-other-0-0-x", 7200)
    node.docker(BUSY)
    assert node.start(plan()).returncode == container.BUSY
    assert os.readlink(claim).startswith("orch-other-0-0-x|")
    node.docker("case $1 in inspect) " + NO_SUCH + ";; esac")
    assert node.start(plan()).returncode == 0
    assert os.readlink(claim).startswith("orch-job-0-0-")


def test_a_run_that_waits_for_its_image_keeps_its_claim(node: Node) -> None:
    waiting = plan("waiting")
    claim = node.claim(waiting.container(0), 7200)
    assert node.run(container.hold_command(waiting, 0)).returncode == 0
    assert node.start(plan()).returncode == container.BUSY
    assert os.readlink(claim).startswith("orch-waiting-")


HOLDER = "orch-other-0-0-x"
# As Docker is while somebody copies files out of the holder's container, which has ended.
LOCKED = f"case $1 in ps) echo '{HOLDER} Exited (0) 2 minutes ago';; run) ;; *) {HANGS};; esac"


def test_a_free_block_is_taken_while_the_files_of_another_job_are_collected(node: Node) -> None:
    claim = node.claim(HOLDER, 60)
    claim.unlink()
    claim.symlink_to(f"{HOLDER}|other|eve@away|then|2")
    node.docker(LOCKED)
    of = plan()
    (rank,) = of.ranks
    on = rank.node.model_copy(update={"blocks": 2})
    of = of.model_copy(update={"ranks": (rank.model_copy(update={"node": on}),)})
    said = node.start(of)
    assert "orch:blocks=1\n" in said.stdout, said.stderr
    assert [call.split()[0] for call in node.calls().splitlines()] == ["run"], "nobody is asked of others"


def test_who_finds_a_node_busy_is_told_that_a_job_has_ended_and_is_collected(
    node: Node, tmp_path: Path
) -> None:
    node.claim(HOLDER, 60)
    node.docker(LOCKED)

    def told() -> tuple[str, str | None]:
        said = node.start(plan())
        assert said.returncode == container.BUSY
        with pytest.raises(NodesBusy) as refused:
            container_start.read_start(plan(), 0, completed(said.stdout, said.stderr, said.returncode))
        for asked in (claims_command(), Command(status_script())):
            (claim,) = read_status(node.run(asked).stdout).claims
            assert str(claim) in refused.value.summary
        return refused.value.summary, refused.value.hint

    assert told() == (
        "node n0 is busy with run other of eve@away since then (it has ended and is not collected yet)",
        "wait for it, or `orch ps` where it was started",
    )
    # Its client reads now, until `go` is there.
    (node.home / "control" / HOLDER).mkdir(parents=True)
    node.docker(f"case $1 in cp) until [ -e {tmp_path}/go ]; do sleep 0.05; done;; *) {LOCKED};; esac")
    reads = container.read_path_command(plan(), 0, "/out").text.replace(plan().container(0), HOLDER)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(node.run, Command(reads))
        until(lambda: "cp -L" in node.calls(), 30, "the reading")
        assert told() == (
            "node n0 is busy with run other of eve@away since then"
            " (it has ended, its outputs are being collected)",
            "wait for it",
        )
        (tmp_path / "go").touch()
        assert reading.result(30).returncode == 0


def test_a_job_whose_files_are_copied_runs_on(node: Node) -> None:
    name = plan().container(0)
    node.docker(f"case $1 in ps) echo '{name} Up 3 hours';; *) {HANGS};; esac")
    assert (looked(node).state, looked(node).ended) == ("running", False)
    node.docker(f"case $1 in ps) echo '{name}2 Up 3 hours';; *) {HANGS};; esac")
    assert (looked(node).state, looked(node).detail) == (
        "silent",
        "Docker on the node: files are being copied out of the container",
    )


@pytest.mark.parametrize(
    ("docker", "age_s", "holds"),
    [
        (f"echo '{HOLDER} Up 3 hours'", 7200, True),
        (f"echo '{HOLDER} Created'", 7200, True),
        # Its client may be away, and its log is not collected yet.
        (f"echo '{HOLDER} Exited (0) 2 seconds ago'", 5, True),
        (f"echo '{HOLDER} Exited (0) 59 minutes ago'", 7200, True),
        (f"echo '{HOLDER} Exited (0) About an hour ago'", 7200, False),
        (f"printf '%s\\n' 'a Up 2 hours' '{HOLDER} Exited (1) 3 days ago' 'b Up 1 second'", 7200, False),
        (f"echo '{HOLDER} Dead'", 5, False),
        (f"echo '{HOLDER}2 Exited (0) 2 seconds ago'", 5, True),
        ("true", 5, True),  # its image is still on its way
        ("true", 7200, False),
        ("exit 1", 7200, True),
        (HANGS, 7200, True),
    ],
)
def test_a_claim_holds_its_node_only_as_long_as_its_job_is_not_over(
    node: Node, docker: str, age_s: int, holds: bool
) -> None:
    node.claim(HOLDER, age_s)
    node.docker(docker)
    said = node.run(claims_command())
    assert said.returncode == 0, said.stderr
    assert [claim.container for claim in read_claims(said.stdout)] == [HOLDER] * holds
    status = node.run(Command(status_script()))
    assert status.returncode == 0, status.stderr
    assert [claim.container for claim in read_status(status.stdout).claims] == [HOLDER] * holds
    assert node.leave() == (BUSY_HOST if holds else 0)
    assert node.home.exists() == holds


def test_a_host_that_is_left_keeps_no_container_of_a_job_that_was_over(node: Node) -> None:
    node.claim(HOLDER, 5)
    node.docker(f"[ $1 != ps ] || echo '{HOLDER} Exited (0) 2 hours ago'")
    assert node.leave() == 0
    assert f"rm --force --volumes -- {HOLDER}\n" in node.calls()


def test_a_job_is_not_made_anew_while_docker_does_not_answer(node: Node) -> None:
    assert node.start(plan()).returncode == 0
    (kept,) = node.home.glob("runs/orch-job-*/staged")
    node.docker("case $1 in inspect) " + BUSY + ";; esac")
    assert node.start(plan()).returncode == container.FAILED
    assert kept.exists()


def test_a_job_on_a_host_that_another_fleet_s_step_keeps_out_is_told_which_fleet_mends_it(node: Node) -> None:
    for name, label in (("0a1b", "lab/trainers/77"), ("2c3d", "lab/ours/88")):
        (node.home / "init" / name).mkdir(parents=True)
        (node.home / "registered").mkdir(exist_ok=True)
        (node.home / "registered" / name).write_text(f"{label}\n")
    (node.home / "init/0a1b/failed").write_text("init step drivers failed with 3: see its log\n")
    of, said = plan(), node.start(plan())
    assert said.returncode == container.UNFIT
    done = Completed("n0", Command("start"), said.returncode, said.stdout, said.stderr, 0.0)
    with pytest.raises(NodeUnfit) as refused:
        container_start.read_start(of, 0, done)
    assert refused.value.detail == (
        "init step drivers failed with 3: see its log (fleet trainers of project lab)"
    )
    assert "`orch up` of the fleet whose steps failed runs them again" in (refused.value.hint or "")


def test_a_log_is_not_at_its_end_because_docker_does_not_answer(node: Node) -> None:
    node.docker(BUSY)
    assert node.run(container.log_command(plan(), 0)).returncode == container.NO_DOCKER
    node.docker(NO_SUCH)
    assert node.run(container.log_command(plan(), 0)).returncode == container.NO_STAGE


def test_the_clock_asks_again_when_docker_does_not_answer(node: Node, tmp_path: Path) -> None:
    of = plan(max_duration_s=1)
    assert node.start(of).returncode == 0
    sleep = tmp_path / "bin" / "sleep"
    sleep.write_text("#!/bin/sh\nexec /bin/sleep 0.1\n")
    sleep.chmod(0o755)
    node.docker(f"[ $(grep -c ^stop {tmp_path}/calls) -ge 3 ] || {{ {BUSY}; }}")
    assert node.run(container.go_command(of, 0, None)).returncode == 0
    end = time.monotonic() + 60
    while node.calls().count("stop -t 5") < 3:
        assert time.monotonic() < end, node.calls()
        time.sleep(0.1)
    assert [path.name for path in node.home.glob("control/*/expired")] == ["expired"]


def test_releasing_a_job_ends_its_own_clock_and_nobody_elses(node: Node) -> None:
    of = plan(max_duration_s=600)
    for own in (True, False):
        assert node.start(of).returncode == 0
        assert node.run(container.go_command(of, 0, None)).returncode == 0
        (clock,) = node.home.glob("control/*/clock")
        number = int(clock.read_text())
        # The clock's number is another process's by now, as after a reboot.
        foreign = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if not own:
            clock.write_text(f"{foreign.pid}\n")
        assert node.run(container.release_command(of, 0)).returncode == 0
        assert foreign.poll() is None
        foreign.kill()
        foreign.wait()
        if own:
            _wait_for_end(number)
        else:
            os.killpg(number, 9)
    assert list(node.home.glob("control/*")) == list(node.home.glob("runs/*")) == []


def test_a_container_that_should_be_gone_is_overdue(node: Node) -> None:
    of = plan()
    assert node.start(of).returncode == 0
    node.docker("case $1 in inspect) echo 'running|0|false|then|';; esac")
    assert node.run(container.stop_command(of, 0)).returncode == 0
    seen = node.run(container.observe_command(of, 0)).stdout
    assert re.search(r"\|stopping$", seen.strip())
    (deadline,) = node.home.glob("control/*/deadline")
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 < int(deadline.read_text()) - uptime <= 5 + container.SLACK_S
    deadline.write_text("1\n")
    assert node.run(container.observe_command(of, 0)).stdout.strip().endswith("|stopping overdue")
    assert node.run(container.stop_command(of, 0, kill=True)).returncode == 0
    assert "kill -- orch-job-0-0-" in node.calls()
    assert node.run(container.observe_command(of, 0)).stdout.strip().endswith("|stopping")


def test_a_job_whose_stop_has_no_limit_is_asked_and_never_killed(node: Node) -> None:
    of = plan(stop_duration_s=None, max_duration_s=600)
    assert node.start(of).returncode == 0
    node.docker("case $1 in inspect) echo 'running|0|false|then|';; esac")
    assert node.run(container.go_command(of, 0, None)).returncode == 0
    assert node.run(container.stop_command(of, 0)).returncode == 0
    end = time.monotonic() + 60
    while f"stop -t -1 -- {of.container(0)}" not in node.calls():
        assert time.monotonic() < end, node.calls()
        time.sleep(0.05)
    assert list(node.home.glob("control/*/deadline")) == []
    assert node.run(container.observe_command(of, 0)).stdout.strip().endswith("|go stopping")
    assert node.run(container.stop_command(of, 0, kill=True)).returncode == 0
    assert f"kill -- {of.container(0)}" in node.calls()


def test_the_clock_of_a_job_whose_stop_has_no_limit_asks_it_to_end(node: Node, tmp_path: Path) -> None:
    of = plan(stop_duration_s=None, max_duration_s=1)
    assert node.start(of).returncode == 0
    sleep = tmp_path / "bin" / "sleep"
    sleep.write_text("#!/bin/sh\nexec /bin/sleep 0.1\n")
    sleep.chmod(0o755)
    assert node.run(container.go_command(of, 0, None)).returncode == 0
    end = time.monotonic() + 60
    while f"stop -t -1 -- {of.container(0)}" not in node.calls():
        assert time.monotonic() < end, node.calls()
        time.sleep(0.05)
    assert [path.name for path in node.home.glob("control/*/expired")] == ["expired"]


def test_marks_that_an_older_version_left_in_the_stage_count_and_a_job_s_own_do_not(node: Node) -> None:
    old = node.home / "runs" / plan().container(0)
    (old / "state").mkdir(parents=True)
    for name in ("go", "expired", "stopping", "state/started"):
        (old / name).touch()
    node.docker("echo 'running|0|false|then|'")
    # A job of the old layout may make `stopping` itself: it is stopped all the same.
    assert node.run(container.observe_command(plan(), 0)).stdout.strip().endswith("|go started expired")


WARNS = "echo 'WARNING: Error loading config file: no such file or directory' >&2; "
NO_SOCKET = "echo 'dial unix /var/run/docker.sock: connect: no such file or directory' >&2; exit 1"


def completed(out: str, err: str = "", code: int = 0) -> Completed:
    return Completed("n0", Command("look", "look"), code, out, err, 0.0)


def looked(node: Node) -> ObservedRank:
    done = node.run(container.observe_command(plan(), 0))
    return container.read_observation(0, completed(done.stdout, done.stderr, done.returncode), now=0.0)


def test_a_docker_that_warns_beside_its_answer_is_understood(node: Node) -> None:
    node.docker(WARNS + "echo 'exited|3|false|then|later'")
    assert (looked(node).state, looked(node).exit_code) == ("exited", 3)
    node.docker(WARNS + NO_SUCH)
    assert looked(node).state == "absent"


def test_a_docker_without_its_socket_does_not_say_that_the_job_is_gone(node: Node) -> None:
    node.docker(NO_SOCKET)
    assert (looked(node).state, looked(node).ended) == ("silent", False)
    assert "docker.sock" in (looked(node).detail or "")
    claim = node.claim("orch-other-0-0-x", 7200)
    assert node.start(plan()).returncode == container.BUSY
    assert os.readlink(claim).startswith("orch-other-0-0-x|")


def test_a_claim_of_a_job_that_ended_long_ago_is_taken_over_also_where_docker_warns(node: Node) -> None:
    claim = node.claim("orch-other-0-0-x", 7200)
    node.docker("case $1 in ps) " + WARNS + "echo 'orch-other-0-0-x Exited (0) 2 hours ago';; esac")
    assert node.start(plan()).returncode == 0
    assert os.readlink(claim).startswith("orch-job-0-0-")


@pytest.mark.parametrize(
    "said",
    [
        "exited|abc|false|a|b|c",
        "exited|" + "9" * 5000 + "|false|a|b|c",
        "exited|٣|false|a|b|c",
        "WARNING\nrunnin|0|false|a|b|c",
        "silent|0|false|a|b|",
        "|||||",
        "exited|0",
        "",
    ],
    ids=lambda said: ascii(said[:20]),
)
def test_a_node_that_says_what_docker_never_says_is_silent(said: str) -> None:
    seen = container.read_observation(0, completed(said), now=0.0)
    assert (seen.state, seen.exit_code, seen.marks) == ("silent", None, frozenset())
    assert seen.detail


def test_a_look_that_took_too_long_is_told_without_names_of_commands() -> None:
    late = CommandTimeout(
        "a command on node n0 took longer than 10 s", detail="look at orch-big-0-0-cbfc5ddb"
    )
    seen = container.read_observation(0, late, now=0.0)
    assert (seen.state, seen.detail) == ("silent", "it did not tell in time how the job is")


def test_what_a_login_shell_says_before_an_answer_is_none_of_it() -> None:
    seen = container.read_observation(
        0,
        completed("Welcome!\nexited|0|false|a|2026-01-01T00:00:10.5Z|2026-01-01T00:10:00.0Z|go\n"),
        now=60.0,
    )
    assert seen.exit_code == 0
    # The node's clock is wrong by decades: what counts is that it ended 589.5 s before it was looked at.
    assert seen.ended_at is not None
    assert abs(seen.ended_at - (60.0 - 589.5)) < 0.001


@pytest.mark.parametrize(
    "said", ["port=abc", "port=0", "port=65536", "port=" + "9" * 5000, "blocks=x y", "blocks=-1", "blocks=7"]
)
def test_a_node_whose_answer_to_a_start_makes_no_sense_fails_the_run_and_is_named(said: str) -> None:
    with pytest.raises(RunFailed, match="n0") as told:
        container_start.read_start(plan(), 0, completed(f"orch:{said}\n"))
    assert told.value.where == "n0"
    assert said.split(" ", maxsplit=1)[0][:20] in (told.value.detail or "")


@pytest.mark.parametrize("shell", [["sh"], ["bash", "--posix"]], ids=lambda shell: shell[0])
def test_variables_that_a_shell_keeps_for_itself_end_no_job(shell: list[str], tmp_path: Path) -> None:
    given = {"UID": "7", "PPID": "1", "SHELLOPTS": "x", "A": "b"}
    (tmp_path / "env").write_text(stage_files(plan(), 0, given, None)["env"])
    done = subprocess.run(
        [*shell, "-c", f'. {tmp_path}/env; echo "A=$A"'], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("A=b\n", "")


def _wait_for_end(pid: int) -> None:
    """A process that was sent a signal ends a little later."""
    end = time.monotonic() + 60
    while _alive(pid):
        assert time.monotonic() < end
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("complaint", "code"),
    [
        ("Error response from daemon: Could not find the file /out in container x", container.NO_PATH),
        ("Error: lstat /var/lib/docker/overlay2/a/merged/out: no such file or directory", container.NO_PATH),
        ("Cannot connect to the Docker daemon at unix:///run/docker.sock. Is the daemon running?", 42),
        ("error: dial unix /run/docker.sock: connect: no such file or directory", 42),
        ("Error response from daemon: something else", 42),
    ],
)
def test_an_output_is_missing_only_where_docker_looked_for_it(node: Node, complaint: str, code: int) -> None:
    node.docker(f"echo '{complaint}' >&2; exit 1")
    done = node.run(container.read_path_command(plan(), 0, "/out"))
    assert (done.returncode, complaint in done.stderr) == (code, code == 42)


def awake(node: Node) -> None:
    """`sleep` of the node's scripts takes no time, and is told as calls of Docker are."""
    path = node.folder / "bin" / "sleep"
    path.write_text(f'#!/bin/sh\necho "sleep $*" >> {node.folder}/calls\n')
    path.chmod(0o755)


def first_words(node: Node, count: int) -> list[str]:
    """The calls that what stays at work on the node has made, once there are so many."""
    until(lambda: len(node.calls().splitlines()) >= count, 30, "what the node's scripts do")
    return [" ".join(line.split()[:2]) for line in node.calls().splitlines()]


@pytest.mark.parametrize("before_s", [None, 20])
def test_a_signal_is_sent_that_long_before_the_limit(node: Node, before_s: int | None) -> None:
    awake(node)
    signal = SignalPlan(name="USR1", before_s=before_s) if before_s else None
    of = plan(max_duration_s=90, signal=signal)
    stage_of_job = node.home / "runs" / of.container(0)
    (stage_of_job / "state").mkdir(parents=True)
    (stage_of_job / "state" / "started").touch()
    assert node.run(container.go_command(of, 0, None)).returncode == 0
    calls = first_words(node, 4 if signal else 2)
    # It is sent beside the clock.
    assert [each for each in calls if each != "inspect --type"] == (
        ["sleep 70", "sleep 20", "stop -t"] if signal else ["sleep 90", "stop -t"]
    )
    assert ("inspect --type" in calls) == (signal is not None)


@pytest.mark.parametrize(
    ("before_s", "calls"),
    [(5, ["inspect --type", "stop -t"]), (3, ["inspect --type", "sleep 2", "stop -t"]), (6, ["stop -t"])],
)
def test_a_stop_sends_the_signal_that_long_before_it_kills_if_it_leaves_the_time(
    node: Node, before_s: int, calls: list[str]
) -> None:
    awake(node)
    waits = f"until grep -q ^inspect {node.folder}/calls; do :; done" if before_s == 3 else "exit 0"
    node.docker(f"case $1 in inspect) {NO_SUCH};; stop) {waits};; esac")
    of = plan(signal=SignalPlan(name="TERM", before_s=before_s))
    assert node.run(container.stop_command(of, 0)).returncode == 0
    found = first_words(node, len(calls))
    assert (found if before_s != 3 else sorted(found)) == calls


def gpu_plan(**more: Any) -> RunPlan:
    gpus = {"count": 8, "vendor": "nvidia", "name": "H100", "memory_mib": 81_559}
    of = plan(utilization=UtilizationPlan(min_gpu_utilization=10, window_s=300), **more)
    (rank,) = of.ranks
    on = rank.node.model_copy(update={"gpus": Gpus.model_validate(gpus), "blocks": 2})
    return of.model_copy(update={"ranks": (rank.model_copy(update={"node": on}),)})


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        ("echo 4, 90; echo 5, 100; echo 6, 12; echo 7, 3", True),
        ("echo 4, 90; echo 5, 100; echo 6, 12; echo 7, 10", False),
        ("echo 4, 90; echo 5, 100; echo 6, 12; echo 7, $((n % 9 == 5 ? 80 : 0))", False),
        ("echo 4, 90; echo 5, 100; echo 6, 12; [ $((n % 9)) = 5 ] || echo 7, 0", False),
        ("echo 4, 90; echo 5, 100; echo 6, 12; echo 7, [N/A]", False),
        ("echo 'NVIDIA-SMI has failed'; exit 9", False),
    ],
    ids=["idle", "used", "used-once-in-a-while", "silent-once-in-a-while", "says-nothing", "fails"],
)
def test_a_job_that_leaves_one_of_its_gpus_idle_is_ended_on_its_node(
    node: Node, said: str, ends: bool
) -> None:
    """Thirty seconds pass at each sleep; after forty of them the job ends by itself."""
    clock = node.folder / "uptime"
    clock.write_text("1000.00 1.0\n")
    scripts = {
        "sleep": f"read -r s _ < {clock}; echo $((${{s%%.*}} + 30)).00 1.0 > {clock}.new\n"
        f"mv {clock}.new {clock}",
        "nvidia-smi": f'echo "nvidia-smi $*" >> {node.folder}/calls\n'
        f"read -r s _ < {clock}; n=$((${{s%%.*}} / 30))\n{said}",
    }
    for name, script in scripts.items():
        (node.folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (node.folder / "bin" / name).chmod(0o755)
    node.docker(
        f"read -r s _ < {clock}\n"
        "case $1 in inspect) [ ${s%%.*} -lt 2200 ] && echo running || echo exited;; esac"
    )
    of = gpu_plan()
    (node.home / "runs" / of.container(0) / "state").mkdir(parents=True)
    (node.home / "runs" / of.container(0) / "state" / "started").touch()
    (node.home / "claims").mkdir()
    (node.home / "claims" / "1").symlink_to(f"{of.container(0)}|job|eve@away|then|2")
    (node.home / "claims" / "0").symlink_to("orch-other|other|eve@away|then|2")
    command = container.go_command(of, 0, None)
    assert node.run(replace(command, text=command.text.replace("/proc/uptime", str(clock)))).returncode == 0
    until(lambda: "stop" in node.calls() or clock.read_text() >= "2200", 60, "the end of the job")
    pid = int((node.home / "control" / of.container(0) / "watch").read_text())
    until(lambda: not Path(f"/proc/{pid}/cmdline").exists(), 60, "the end of what watches it")
    assert ("stop -t 5 -- " in node.calls()) == ends
    assert "--query-gpu=index,utilization.gpu,memory.used,memory.total " in node.calls()
    assert "--format=csv,noheader,nounits --id=4,5,6,7" in node.calls()
    assert clock.read_text() == ("1330.00 1.0\n" if ends else "2200.00 1.0\n")
    node.docker("echo 'exited|143|false|a|b'")
    seen = container.read_observation(
        0, completed(node.run(container.observe_command(of, 0)).stdout), now=0.0
    )
    reason = rank_reason(seen)
    assert reason == ("terminated_due_to_utilization_policy" if ends else "container_exited_with_error")
    if ends:
        assert describe(of, seen) == "rank 0 on node n0 used a GPU less than 10 % for 5m"


def test_commands_that_cannot_begin_are_told_with_why(node: Node) -> None:
    of = plan()
    assert node.start(of).returncode == 0
    (node.home / "runs" / of.container(0) / "go.new").mkdir()
    done = node.run(container.go_command(of, 0, None))
    assert done.returncode == 42
    assert "go.new: Is a directory" in done.stderr
    assert not (node.home / "runs" / of.container(0) / "go").exists()


# A run of one rank, whose commands begin with its container.


def begin(node: Node, of: RunPlan) -> subprocess.CompletedProcess[str]:
    return node.run(container_start.start_command(of, 0, (stage(of, 0, {}, None),), begin=True))


def stage_of(node: Node, of: RunPlan) -> Path:
    return node.home / "runs" / of.container(0)


def test_the_commands_of_a_run_on_one_node_begin_with_its_container(node: Node) -> None:
    of = plan()
    stage_folder = stage_of(node, of)
    # As a container does: its barrier is lifted when it looks for the first time.
    node.docker(f'case $1 in run) [ -e "{stage_folder}/go" ] && : > "{stage_folder}/state/started";; esac')
    said = begin(node, of)
    started = container_start.read_start(of, 0, completed(said.stdout, said.stderr, said.returncode))
    assert started.begun
    assert started.port is not None
    assert (stage_folder / "go").read_text() == f'export MASTER_PORT="${{MASTER_PORT:-{started.port}}}"\n'
    assert [call.split()[0] for call in node.calls().splitlines()] == ["run"]
    # Once more, as by a driver that took over: nothing is started, and it is told the same.
    node.docker("")
    again = begin(node, of)
    assert (
        container_start.read_start(of, 0, completed(again.stdout, again.stderr, again.returncode)) == started
    )
    assert [call.split()[0] for call in node.calls().splitlines()] == ["run", "inspect"]


def test_what_has_begun_is_not_begun_again_when_its_container_is_gone(node: Node) -> None:
    of = plan()
    node.docker(f'case $1 in run) : > "{stage_of(node, of)}/state/started";; inspect) {NO_SUCH};; esac')
    assert begin(node, of).returncode == 0
    for start in (begin, Node.start):
        said = start(node, of)
        assert said.returncode == container.FAILED
        assert "have begun here, and its container is gone" in said.stderr
    assert [call.split()[0] for call in node.calls().splitlines()] == ["run", "inspect", "inspect"]


def test_a_container_that_did_not_start_is_started_again(node: Node) -> None:
    of = plan()
    node.docker("case $1 in run) echo 'No such image: x' >&2; exit 125;; esac")
    assert begin(node, of).returncode == container.NO_IMAGE
    assert not (stage_of(node, of) / "go").exists()
    node.docker("case $1 in inspect) " + NO_SUCH + ";; esac")
    said = node.start(of)
    assert said.returncode == 0
    assert not (stage_of(node, of) / "go").exists(), "this one waits at its barrier"


def test_a_run_with_a_clock_waits_for_it_at_its_barrier(node: Node) -> None:
    of = plan().model_copy(update={"max_duration_s": 60})
    said = begin(node, of)
    started = container_start.read_start(of, 0, completed(said.stdout, said.stderr, said.returncode))
    assert not started.begun
    assert not (stage_of(node, of) / "go").exists()


class OfNode:
    """A connector to the folder that stands for a node."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def run(self, node: NodeState, command: Command, **_: object) -> Completed:
        done = self.node.run(command)
        return Completed(node.name, command, done.returncode, done.stdout, done.stderr, 0.0)


def test_a_change_knows_its_own_cordon_and_leaves_those_of_others(node: Node) -> None:
    nodes, connector = plan().nodes, cast(Any, OfNode(node))

    def mark(change: str, reason: str = "orch node reboot") -> Cordon:
        (result,) = cordon.mark_for(nodes, connector, reason, change, deadline_s=1)
        assert result.value is not None
        return result.value

    def unmark(change: str) -> Cordon | None:
        (result,) = cordon.unmark_of(nodes, connector, change, deadline_s=1)
        assert result.error is None
        return result.value

    file = node.home / "cordon"
    assert unmark("change 1 of tests") is None
    assert mark("change 1 of tests").reason == "orch node reboot (change 1 of tests)"
    assert mark("change 1 of tests", "not in order: it's | $(odd)").reason.startswith("not in order: it's")
    for other in ("change 11 of tests", "change 1 of test", "change 1 of tests2", ".*"):
        assert mark(other).reason.endswith("$(odd) (change 1 of tests)")
        assert unmark(other) == Cordon.parse(file.read_text().strip())
    assert unmark("change 1 of tests") is None
    assert not file.exists()
    file.write_text("eve@away|now|fan broken\n")
    assert mark("change 1 of tests") == Cordon("eve@away", "now", "fan broken")
    assert unmark("change 1 of tests") == Cordon("eve@away", "now", "fan broken")
    assert file.read_text() == "eve@away|now|fan broken\n"
