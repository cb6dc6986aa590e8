"""Ports of a job that are reached from this machine while a command is attached to its run."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kit.nodes.foldernodes import FolderLab, FolderRuntime
from kit.nodes.nodelab import Lab, docker, wait_until
from kit.support import free_port

from orch import images
from orch.runner.access.forwards import LocalPorts, PortRequest, replaced, requested_ports
from orch.runner.errors import PortTaken
from orch.runner.events import LogLine, PortForwarded, Recorder, RunChanged
from orch.runner.launch.submission import Submission
from orch.runner.ledger.ledger import Ledger
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.plan.run_plan import RankPort, RunPlan
from orch.runner.runs import lifecycle, retry
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState

Pair = tuple[NodeState, NodeState]

# Says a hundred lines, waits to be let on, then answers whoever comes until one says `end`.
SERVER = """\
import os, socket, sys, time
for number in range(100):
    print('line', number, flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
word = b''
while word != b'end':
    client, _ = server.accept()
    word = b''
    while data := client.recv(1 << 16):
        word += data
    client.sendall(b'you said ' + word[-9:])
    client.close()
print('the last line', flush=True)
"""


def ask(address: str, word: bytes) -> bytes:
    """What a port answers; nothing when it takes no connection. Says all before it listens."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), 60) as link:
        link.settimeout(120)
        try:
            link.sendall(word)
            link.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: link.recv(1 << 16), b""))
        except (ConnectionResetError, BrokenPipeError, OSError):
            return b""


def of_kind(place: RunnerContext, kind: type) -> list:
    assert isinstance(place.processor, Recorder)
    return [event for event in place.processor.events if isinstance(event, kind)]


def submit(place: RunnerContext, fleet: FleetState, base: Path, **task: object) -> RunRow:
    given = Task.model_validate({"name": "job", **task})
    return lifecycle.submit(place, Submission(given, fleet, image=images.resolve("orch/mpi"), base=base))


def attached(place: RunnerContext, row: RunRow, ports: LocalPorts, ended: list[RunRow]) -> threading.Thread:
    def plan() -> RunPlan:
        return plan_of(place.ledger.by_id(row.id))

    def attend() -> None:
        with ports.forward(place.connector, plan, place.processor) as forwarding:
            forwarding.follow(row.status)
            ended.append(lifecycle.drive(replace(place, processor=forwarding), row))

    thread = threading.Thread(target=attend)
    thread.start()
    return thread


def test_a_port_of_the_job_is_reached_and_clients_that_come_again_and_again_leave_its_log_alone(
    place: RunnerContext, lab: Lab, pair: Pair, tmp_path: Path
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    row = submit(
        place,
        lab.fleet(*pair),
        tmp_path,
        nodes=2,
        files=["server.py"],
        volumes=["/srv/gate:/gate"],
        ports=["*:8741"],
        stop_criteria="master-done",
        stop_duration=1,
        commands=["if [ $ORCH_NODE_RANK = 0 ]; then python3 server.py 8741 /gate/open; else sleep 900; fi"],
    )
    ended: list[RunRow] = []
    with LocalPorts() as ports:
        for request in requested_ports(plan_of(row)):
            ports.hold(request)
        thread = attached(place, row, ports, ended)
        try:
            wait_until(lambda: bool(of_kind(place, PortForwarded)), 180)
            (forward,) = of_kind(place, PortForwarded)
            assert (forward.rank, forward.node, forward.port) == (0, pair[0].name, 8741)
            assert [ask(forward.address, b"too early") for _ in range(20)] == [b""] * 20
            docker("exec", pair[0].name, "touch", "/srv/gate/open")
            wait_until(lambda: ask(forward.address, b"hello") == b"you said hello", 120)
            assert ask(forward.address, b"x" * 3_000_000) == b"you said " + b"x" * 9
            assert ask(forward.address, b"end") == b"you said end"
        finally:
            docker("exec", pair[0].name, "sh", "-c", "touch /srv/gate/open")
            if not of_kind(place, PortForwarded):
                lifecycle.stop(place, row, abort=True)
            thread.join(120)
            docker("exec", pair[0].name, "rm", "-r", "/srv/gate")
    assert [each.status for each in ended] == ["done"]
    said = [line.text for line in of_kind(place, LogLine) if line.rank == 0]
    assert said == [*(f"line {number}" for number in range(100)), "the last line"]
    with pytest.raises(OSError, match="refused"):
        ask(forward.address, b"after the end")


def test_a_port_that_something_on_the_node_listens_on_fails_the_run_before_its_commands(
    place: RunnerContext, lab: Lab, pair: Pair, tmp_path: Path, left_on: Callable[[NodeState], str]
) -> None:
    row = submit(place, lab.fleet(*pair), tmp_path, commands=["echo never"], ports=["*:22"])
    row = lifecycle.drive(place, row)
    assert (row.status, row.ranks[0].reason) == ("failed", "ports_binding_failed")
    assert (row.message or "").startswith(f"port 22 of node {row.ranks[0].node} is taken")
    assert of_kind(place, LogLine) == []
    assert [left_on(node) for node in pair] == ["", ""]


@pytest.mark.usefixtures("owner_per_thread")
def test_who_attaches_to_a_run_that_another_process_drives_reaches_its_ports_too(
    dot: Path, ledger: Ledger, tmp_path: Path
) -> None:
    (tmp_path / "boxes").mkdir()
    (tmp_path / "server.py").write_text(SERVER)
    boxes = FolderLab(tmp_path / "boxes")
    runtimes = {**RUNTIMES, "folder": FolderRuntime()}
    driving = RunnerContext(dot, ledger, boxes.connector, Recorder(), runtimes)
    following = replace(driving, processor=Recorder())
    job = free_port()
    command = f"python3 {tmp_path}/server.py {job} {tmp_path}"
    row = submit(driving, boxes.fleet(), tmp_path, commands=[command], shell="sh", ports=[f"*:{job}"])
    ended: list[RunRow] = []
    driver = threading.Thread(target=lambda: ended.append(lifecycle.drive(driving, row)))
    driver.start()
    try:
        wait_until(lambda: any(event.status == "running" for event in of_kind(driving, RunChanged)), 120)
        with LocalPorts() as ports:
            ports.hold(PortRequest(job))
            thread = attached(following, ledger.by_id(row.id), ports, ended)
            wait_until(lambda: bool(of_kind(following, PortForwarded)), 60)
            (forward,) = of_kind(following, PortForwarded)
            wait_until(lambda: ask(forward.address, b"hello") == b"you said hello", 60)
            assert ask(forward.address, b"end") == b"you said end"
            thread.join(120)
    finally:
        boxes.end()
        driver.join(120)
    assert [each.status for each in ended] == ["done", "done"]
    assert of_kind(driving, PortForwarded) == []


def test_the_same_port_leads_to_the_next_attempt(
    dot: Path, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "DELAYS_S", (0.0,))
    (tmp_path / "boxes").mkdir()
    (tmp_path / "server.py").write_text(SERVER)
    boxes = FolderLab(tmp_path / "boxes")
    place = RunnerContext(dot, ledger, boxes.connector, Recorder(), {**RUNTIMES, "folder": FolderRuntime()})
    job = free_port()
    # The node on which it failed is not the one of the next attempt, and both are this machine.
    commands = [f"python3 {tmp_path}/server.py {job} {tmp_path}", "[ $ORCH_ATTEMPT = 1 ]"]
    row = submit(place, boxes.fleet(), tmp_path, commands=commands, shell="sh", retry=True)
    ended: list[RunRow] = []
    try:
        with LocalPorts() as ports:
            ports.hold(PortRequest(job))
            thread = attached(place, row, ports, ended)
            for attempt in range(2):
                wait_until(lambda count=attempt + 1: len(of_kind(place, PortForwarded)) == count, 120)
                forward = of_kind(place, PortForwarded)[attempt]
                wait_until(lambda at=forward.address: ask(at, b"hello") == b"you said hello", 60)
                assert ask(forward.address, b"end") == b"you said end"
            thread.join(120)
    finally:
        boxes.end()
    assert [(each.status, each.attempt) for each in ended] == [("done", 1)]
    first, second = of_kind(place, PortForwarded)
    assert first.address == second.address
    assert (first.node, second.node) == ("box-0", "box-1")


def test_a_port_here_that_another_program_has_is_told_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, LocalPorts() as ports:
        taken = other.getsockname()[1]
        with pytest.raises(PortTaken) as caught:
            ports.hold(PortRequest(80, taken))
        assert caught.value.summary == f"port {taken} of this machine is taken"
        assert '"*:80"' in (caught.value.hint or "")
        ports.hold(PortRequest(80))  # any other one


def test_a_port_is_held_from_the_start_and_free_again_after_the_end() -> None:
    port = free_port()
    with LocalPorts() as ports:
        ports.hold(PortRequest(80, port))
        with LocalPorts() as others, pytest.raises(PortTaken):
            others.hold(PortRequest(81, port))
    with LocalPorts() as again:
        again.hold(PortRequest(80, port))


def test_ports_of_a_command_line_stand_for_those_that_lead_to_the_same_port_of_the_job() -> None:
    written = (PortRequest(80, 8080), PortRequest(80, 8081), PortRequest(22), PortRequest(90, 90, rank=1))
    assert replaced(written, [RankPort(job=80, local=9000)]) == (
        PortRequest(22),
        PortRequest(90, 90, rank=1),
        PortRequest(80, 9000),
    )
    assert replaced(written, [RankPort(job=90)])[-1] == PortRequest(90, None, rank=1)
    assert replaced((), [RankPort(job=70)]) == (PortRequest(70),)
    both = (PortRequest(80, 1), PortRequest(80, 2, rank=3))
    assert replaced(both, [RankPort(job=80, local=9)]) == (PortRequest(80, 2, rank=3), PortRequest(80, 9))
