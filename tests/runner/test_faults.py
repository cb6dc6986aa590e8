"""What runs survive, and how they tell what they do not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
from kit.nodes.containershell import inside
from kit.nodes.labmachine import freeze
from kit.nodes.nodelab import Lab, docker, wait_until
from kit.nodes.stocked import stocked

from orch import images
from orch.runner.connect import open_connector
from orch.runner.events import LogLine, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.records import RunRow
from orch.runner.node.status import node_statuses
from orch.runner.node_api.status import NodeStatus
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.ssh.pool import SshConnector
from orch.spec.errors import ExitCode
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState

LOG = "docker logs $(docker ps -q) 2>&1"
DRIVER = Path(__file__).with_name("drive_run.py")


def statuses(fleet: FleetState) -> tuple[NodeStatus, ...]:
    """By connections of their own: those of the test lead to nodes that were killed."""
    with closing(open_connector()) as connector:
        return node_statuses(fleet, connector)


def submit(place: RunnerContext, fleet: FleetState, image: str | None = None, **task: object) -> RunRow:
    given = {"name": "job", "nodes": len(fleet.nodes), "stop_duration": 3, **task}
    return lifecycle.submit(
        place,
        Submission(
            Task.model_validate(given), fleet, image=images.resolve(image or "orch/mpi"), base=place.dot
        ),
    )


def behind(place: RunnerContext, run: str) -> subprocess.Popen[str]:
    """A process that drives `run`."""
    return subprocess.Popen([sys.executable, DRIVER, place.dot, run], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def harmed(pair: tuple[NodeState, NodeState]) -> Iterator[tuple[NodeState, NodeState]]:
    """The two nodes, of which a test may kill or pause the second: it runs again afterwards."""
    yield pair
    docker("unpause", pair[1].name, check=False)
    docker("start", pair[1].name)
    for node in pair:
        inside(node.name, "rm -rf /srv/gate")
    wait_until(lambda: bool(inside(pair[1].name, "docker version", check=False)))


def test_a_node_killed_in_mid_run_fails_the_run_and_stops_the_other(
    place: RunnerContext, lab: Lab, harmed: tuple[NodeState, NodeState], left_on
):
    fleet = lab.fleet(*harmed, grace_s=6.0)
    row = submit(place, fleet, commands=["sleep 300"])
    driver = behind(place, "job")
    try:
        wait_until(lambda: place.ledger.get("job").status == "running")
        docker("kill", harmed[1].name)
        began = time.monotonic()
        driver.wait(120)
        took = time.monotonic() - began
    finally:
        driver.kill()
    row = place.ledger.get("job")
    assert row.status == "failed"
    assert took < 60
    assert harmed[1].name in (row.message or "")
    assert [rank.reason for rank in row.ranks] == ["sibling_failed", "instance_unreachable"]
    assert lifecycle.exit_code(row) == ExitCode.RUN_FAILED
    assert left_on(harmed[0]) == ""
    assert statuses(fleet)[1].status == "unreachable"
    assert [rank.collected for rank in row.ranks] == [True, False]

    # When the node comes back, the next look at runs cleans it up.
    docker("start", harmed[1].name)
    # By the connection that the next look uses: that takes no time for making one.
    wait_until(lambda: node_statuses(fleet, place.connector)[1].status == "busy")
    lifecycle.reconcile_once(place)
    assert place.ledger.get("job").ranks[1].collected
    assert statuses(fleet)[1].status == "idle"
    assert left_on(harmed[1]) == ""


def test_a_killed_driver_loses_nothing_and_the_log_goes_on_where_it_stopped(
    place: RunnerContext, lab: Lab, pair: tuple[NodeState, NodeState]
):
    count = 100
    row = submit(
        place,
        lab.fleet(*pair),
        commands=[f"for i in $(seq {count}); do echo line $i; echo error $i >&2; sleep 0.1; done"],
    )
    first = behind(place, "job")
    assert first.stdout is not None
    shown = [first.stdout.readline().rstrip("\n") for _ in range(10)]
    first.send_signal(signal.SIGKILL)
    shown += (first.communicate()[0] or "").splitlines()
    assert all(shown)
    assert place.ledger.get("job").active

    def texts(rank: int) -> list[str]:
        log = place.context(row).folder.log(rank).read_text()
        return [line.split(" ", 1)[1] for line in log.splitlines(keepends=True) if line.endswith("\n")]

    kept_at_kill = [[text.rstrip("\n") for text in texts(rank)] for rank in range(2)]

    second = lifecycle.drive(place, place.ledger.get("job"))
    assert second.status == "done"
    assert isinstance(place.processor, Recorder)
    for rank in range(2):
        wanted = sorted(
            [f"line {i}" for i in range(1, count + 1)] + [f"error {i}" for i in range(1, count + 1)]
        )
        assert sorted(text.rstrip("\n") for text in texts(rank)) == wanted, "each line is kept once"
        before = [line.split(" ", 1)[1] for line in shown if line.startswith(f"{rank} ")]
        after = [e.text for e in place.processor.events if isinstance(e, LogLine) and e.rank == rank]
        # What was kept and not yet shown at the moment of the kill is not shown; nothing is shown twice.
        assert set(before) <= set(kept_at_kill[rank])
        assert sorted(after + kept_at_kill[rank]) == wanted


def test_a_driver_killed_at_any_moment_of_the_start_leaves_a_run_that_another_finishes(
    place: RunnerContext, lab: Lab, pair: tuple[NodeState, NodeState], left_on
):
    fleet = lab.fleet(*pair)
    for index, pause in enumerate((0.5, 0.7, 0.8, 0.9, 1.0, 1.1)):
        name = f"job{index}"
        submit(place, fleet, name=name, commands=["echo once"])
        first = behind(place, name)
        time.sleep(pause)
        first.kill()
        first.communicate()
        row = lifecycle.drive(place, place.ledger.get(name))
        assert row.status == "done", row.message
        for rank in range(2):
            kept = place.context(row).folder.log(rank).read_text().splitlines()
            assert [line.split(" ", 1)[1] for line in kept] == ["once"]
    assert [left_on(node) for node in pair] == ["", ""]


def test_two_processes_on_one_run_do_not_both_drive_it(
    place: RunnerContext, lab: Lab, pair: tuple[NodeState, NodeState]
):
    submit(place, lab.fleet(*pair), commands=["for i in 1 2 3 4; do echo $i; sleep 0.5; done"])
    first = behind(place, "job")
    wait_until(lambda: place.ledger.get("job").owner is not None)
    fence = place.ledger.get("job").fence
    row = lifecycle.drive(place, place.ledger.get("job"))
    assert row.status == "done"
    assert row.fence == fence, "the second process never took the lease"
    assert first.wait(60) == 0
    kept = place.context(row).folder.log(0).read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in kept] == ["1", "2", "3", "4"]


def test_an_image_that_does_not_exist_is_told_with_its_name_and_node(
    place: RunnerContext, lab: Lab, pair: tuple[NodeState, NodeState], left_on
):
    row = lifecycle.drive(place, submit(place, lab.fleet(*pair), "127.0.0.1:9/no/such:1", commands=["true"]))
    assert row.status == "failed"
    assert "127.0.0.1:9/no/such:1" in (row.message or "")
    assert pair[0].name in (row.message or "")
    assert {rank.reason for rank in row.ranks} == {"creating_container_error"}
    assert lifecycle.exit_code(row) == ExitCode.RUN_FAILED
    assert [left_on(node) for node in pair] == ["", ""]


def test_an_image_of_ours_is_read_out_once_for_all_nodes_that_lack_it(
    place: RunnerContext, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls = tmp_path / "calls"
    (tmp_path / "bin").mkdir()
    counts = tmp_path / "bin/docker"
    counts.write_text(f'#!/bin/sh\necho "$1" >> {calls}\nexec {shutil.which("docker")} "$@"\n')
    counts.chmod(0o755)
    monkeypatch.setenv("PATH", f"{counts.parent}:{os.environ['PATH']}")
    nodes = lab.node(), lab.node()
    row = lifecycle.drive(place, submit(place, lab.fleet(*nodes), commands=["echo arrived"]))
    assert row.status == "done", row.message
    assert calls.read_text().split().count("save") == 1
    for node in nodes:
        docker("rm", "-f", "-v", node.name)


def test_a_full_disk_is_told_with_the_nodes_name(place: RunnerContext, lab: Lab, left_on):
    node = lab.node("--tmpfs", "/var/lib/docker:size=100m")
    row = lifecycle.drive(place, submit(place, lab.fleet(node), commands=["true"]))
    assert row.status == "failed"
    assert f"the disk of node {node.name} is full" in (row.message or "")
    assert lifecycle.exit_code(row) == ExitCode.RUN_FAILED
    assert left_on(node) == ""
    docker("rm", "-f", "-v", node.name)


def test_a_full_disk_under_the_stage_is_told_too(place: RunnerContext, lab: Lab, tmp_path: Path):
    node = lab.node("--tmpfs", "/var/lib/orch:size=64k", image=stocked("mpi"))
    (tmp_path / "big.bin").write_bytes(b"x" * (1 << 20))
    big = {"files": [str(tmp_path / "big.bin")]}
    row = lifecycle.drive(place, submit(place, lab.fleet(node), commands=["true"], **big))
    assert row.status == "failed"
    assert f"the disk of node {node.name} is full" in (row.message or "")
    docker("rm", "-f", "-v", node.name)


def test_a_run_whose_node_never_answers_fails_within_the_deadline(
    place: RunnerContext, lab: Lab, pair: tuple[NodeState, NodeState], left_on
):
    away = pair[1].reached(port=9).model_copy(update={"name": "away"})
    transport = SshConnector(connect_timeout_s=5.0, deadline_s=8.0)
    there = RunnerContext(place.dot, place.ledger, transport, Recorder())
    began = time.monotonic()
    row = lifecycle.drive(there, submit(there, lab.fleet(pair[0], away), commands=["true"]))
    assert time.monotonic() - began < 60
    assert row.status == "failed"
    assert "node away cannot be reached" in (row.message or "")
    assert lifecycle.exit_code(row) == ExitCode.HOSTS
    assert left_on(pair[0]) == ""
    transport.close()


def test_a_container_removed_behind_our_back_fails_the_run(
    place: RunnerContext, lab: Lab, pair: tuple[NodeState, NodeState]
):
    submit(place, lab.fleet(*pair), commands=["sleep 300"])
    driver = behind(place, "job")
    wait_until(lambda: place.ledger.get("job").status == "running")
    # Docker kills a container before it removes it: who looks between the two sees that it has exited.
    driver.send_signal(signal.SIGSTOP)
    time.sleep(1)  # the answer to what it asked last
    inside(pair[1].name, "docker rm -f $(docker ps -q --filter label=orch.rank=1)")
    driver.send_signal(signal.SIGCONT)
    driver.wait(60)
    row = place.ledger.get("job")
    assert row.status == "failed"
    assert "disappeared" in (row.message or "")


@contextmanager
def paused(node: NodeState) -> Iterator[None]:
    """The node hangs."""
    freeze(node.name)
    yield
    docker("unpause", node.name)


@contextmanager
def dropped(node: NodeState) -> Iterator[None]:
    """What is sent to the node's sshd does not arrive."""
    rule = "INPUT -p tcp --dport 22 -j DROP"
    inside(node.name, f"iptables -I {rule}")
    try:
        yield
    finally:
        inside(node.name, f"iptables -D {rule}")


@pytest.mark.parametrize("silent", [paused, pytest.param(dropped, marks=pytest.mark.soak)])
def test_a_silent_node_that_comes_back_in_time_does_not_fail_the_run(
    place: RunnerContext,
    lab: Lab,
    harmed: tuple[NodeState, NodeState],
    silent: Callable[[NodeState], AbstractContextManager[object]],
):
    commands = ["until [ -e /gate/open ]; do sleep 0.1; done; echo woke"]
    submit(place, lab.fleet(*harmed, grace_s=90.0), commands=commands, volumes=["/srv/gate:/gate"])
    driver = behind(place, "job")
    wait_until(lambda: place.ledger.get("job").status == "running")
    with silent(harmed[1]):
        wait_until(lambda: place.ledger.get("job").ranks[1].silent_since is not None, 60)
    for node in harmed:
        inside(node.name, "touch /srv/gate/open")
    assert driver.wait(90) == 0
    assert place.ledger.get("job").status == "done"


def test_max_duration_holds_without_any_controller(
    place: RunnerContext, lab: Lab, pair: tuple[NodeState, NodeState]
):
    submit(place, lab.fleet(*pair), commands=["sleep 300"], max_duration=15)
    driver = behind(place, "job")
    wait_until(lambda: place.ledger.get("job").status == "running")
    driver.kill()
    driver.communicate()
    wait_until(lambda: not any(inside(node.name, "docker ps -q") for node in pair), 60)
    lifecycle.reconcile_once(place)
    row = place.ledger.get("job")
    assert row.status == "failed"
    assert "max_duration_exceeded" in {rank.reason for rank in row.ranks}
    assert [status.status for status in statuses(lab.fleet(*pair))] == ["idle", "idle"]


# Neither the shell nor `cat` nor `sleep` handles it; on the second node nobody does.
PROGRAM = """
if [ $NODE_RANK = 0 ]; then
  setsid sh -c 'trap "echo told; exit" USR1; echo ready; while :; do sleep 0.1; done' | cat
else
  sh -c 'echo ready; sleep 600' || echo ended by it
fi
echo on"""
SHELL = "trap 'echo told' USR1; echo ready; sleep 600 & wait; echo on; exit"


@pytest.mark.parametrize(
    ("given", "commands"), [("USR1@1m", PROGRAM), ("B:USR1@1m", SHELL)], ids=["programs", "the-shell"]
)
def test_a_signal_reaches(
    place: RunnerContext, lab: Lab, pair: tuple[NodeState, NodeState], given: str, commands: str
):
    row = submit(place, lab.fleet(*pair), commands=[commands], max_duration="1h", signal=given)
    driver = behind(place, "job")
    wait_until(lambda: all("ready" in inside(node.name, LOG, check=False) for node in pair))
    driver.kill()
    driver.communicate()
    for node in pair:
        inside(node.name, "sh /var/lib/orch/control/*/signal.sh")
    wait_until(lambda: not any(inside(node.name, "docker ps -q") for node in pair), 60)
    lifecycle.reconcile_once(place)
    assert place.ledger.get("job").status == "done"
    logs = [place.context(row).folder.log(rank).read_text().splitlines() for rank in (0, 1)]
    told = [[line.partition(" ")[2] for line in log if "User defined signal" not in line] for log in logs]
    second = ["ready", "ended by it", "on"] if commands is PROGRAM else ["ready", "told", "on"]
    assert told == [["ready", "told", "on"], second]
