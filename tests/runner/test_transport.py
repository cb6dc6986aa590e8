"""SSH as the runner uses it, against real servers and against one that says nothing."""

from __future__ import annotations

import hashlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kit.nodes.containershell import inside
from kit.nodes.hostlab import Room
from kit.nodes.labmachine import freeze
from kit.nodes.nodelab import Lab, docker

from orch.runner.errors import CommandTimeout, HostKeyRefused, HostUnreachable, LoginRefused
from orch.runner.ledger.run_folder import new_key_pair
from orch.runner.node.status import node_statuses
from orch.runner.node_api.commands import Command, StdinSource, argv, as_root
from orch.runner.node_api.connector import fan_out
from orch.runner.ssh.pool import Patience, SshConnector
from orch.runner.ssh.protocol import CommandChannel
from orch.spec.access import Jump
from orch.spec.errors import ExitCode
from orch.spec.state import FleetState, NodeState

Pair = tuple[NodeState, NodeState]


@pytest.fixture
def mute() -> Iterator[int]:
    """The port of a server that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield server.getsockname()[1]


def test_output_input_and_exit_code_come_back(transport: SshConnector, pair: Pair):
    done = transport.run(pair[0], Command("cat; echo oops >&2; exit 3", stdin=b"given"))
    assert (done.stdout, done.stderr, done.exit_code, done.ok) == ("given", "oops\n", 3, False)


def test_large_input_and_output_flow_at_once(transport: SshConnector, pair: Pair):
    blocks = [bytes([i]) * (1 << 18) for i in range(64)]
    done = transport.run(pair[0], Command("tee /dev/stderr | sha256sum", stdin=StdinSource(blocks)))
    assert done.stdout.split()[0] == hashlib.sha256(b"".join(blocks)).hexdigest()


def test_a_command_that_reads_none_of_its_input_still_ends(transport: SshConnector, pair: Pair):
    endless = StdinSource([b"x" * (1 << 20)] * 64)
    assert transport.run(pair[0], Command("exit 5", stdin=endless)).exit_code == 5


def test_a_command_that_a_signal_ends_is_told_as_that(transport: SshConnector, pair: Pair):
    done = transport.run(pair[0], Command("echo before; kill -KILL $$"))
    assert (done.stdout, done.exit_code, done.ending) == ("before\n", 137, "exit code 137 (SIGKILL)")


def test_more_commands_at_once_than_a_server_allows_take_turns(transport: SshConnector, room: Room):
    node = room.servers[0].state(0)
    with ThreadPoolExecutor(30) as pool:
        said = list(
            pool.map(
                lambda i: transport.run(node, Command(f"sleep 0.5; echo {i}"), deadline_s=90.0).stdout,
                range(30),
            )
        )
    assert said == [f"{i}\n" for i in range(30)]


def test_an_error_while_making_input_is_raised_here(transport: SshConnector, pair: Pair):
    def broken() -> Iterator[bytes]:
        yield b"some"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        transport.run(pair[0], Command("cat", stdin=StdinSource(broken())))


def test_lines_arrive_while_the_command_runs_and_it_can_be_left(transport: SshConnector, pair: Pair):
    lines: list[tuple[float, str]] = []
    stop = threading.Event()

    def take(text: bytes) -> None:
        lines.append((time.monotonic(), text.decode().rstrip()))
        if text == b"2\n":
            stop.set()

    command = Command("for i in 0 1 2; do echo $i; sleep 1; done; sleep 30; echo 3", timeout_s=None)
    done = transport.run(pair[0], command, on_lines=take, until=stop)
    assert [text for _, text in lines] == ["0", "1", "2"]
    assert lines[2][0] - lines[0][0] > 0.5
    assert done.exit_code == -1


def test_a_slow_command_is_given_up_after_its_time(transport: SshConnector, pair: Pair):
    began = time.monotonic()
    with pytest.raises(CommandTimeout) as caught:
        transport.run(pair[0], Command("sleep 30", "wait a while", timeout_s=1.0))
    assert time.monotonic() - began < 20
    assert caught.value.exit_code == ExitCode.HOSTS
    assert "wait a while" in (caught.value.detail or "")


def test_a_server_that_accepts_and_says_nothing_is_given_up_within_the_deadline(pair: Pair, mute: int):
    transport = SshConnector(connect_timeout_s=1.5, deadline_s=4.0)
    began = time.monotonic()
    with pytest.raises(HostUnreachable) as caught:
        transport.run(pair[0].reached(port=mute), Command("true"))
    assert time.monotonic() - began < 20
    assert caught.value.exit_code == ExitCode.HOSTS
    assert pair[0].name in caught.value.summary


def test_a_node_that_freezes_between_two_commands_is_given_up(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    node, transport = lab.node(), SshConnector(connect_timeout_s=4.0, deadline_s=6.0)
    assert transport.run(node, Command("true")).ok
    channel = transport._session(node, Patience(4.0, 6.0))
    freeze(node.name)
    began = time.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr("orch.runner.ssh.protocol.ACCEPT_S", 1.0)
        with pytest.raises(HostUnreachable):
            CommandChannel(node, Command("true"), channel, on_lines=None, until=None, started=began).run()
    with pytest.raises(HostUnreachable):
        transport.run(node, Command("true"))
    assert time.monotonic() - began < 25
    docker("unpause", node.name)
    assert transport.run(node, Command("true"), deadline_s=60.0).ok
    transport.close()
    docker("rm", "-f", "-v", node.name)


def test_a_closed_port_is_told_within_the_deadline(pair: Pair):
    transport = SshConnector(connect_timeout_s=1.0, deadline_s=2.0)
    with pytest.raises(HostUnreachable, match="cannot be reached") as caught:
        transport.run(pair[0].reached(port=9), Command("true"))
    assert ":9" in (caught.value.where or "")


def test_a_changed_host_key_is_refused_and_both_fingerprints_are_told(pair: Pair):
    transport = SshConnector(deadline_s=60.0)
    other = pair[0].reached(host_key=new_key_pair().public)
    began = time.monotonic()
    with pytest.raises(HostKeyRefused) as caught:
        transport.run(other, Command("touch /tmp/must-not-exist"))
    assert time.monotonic() - began < 20, "waiting would not help, so it is not tried again"
    assert caught.value.exit_code == ExitCode.HOSTS
    assert (caught.value.detail or "").count("SHA256:") == 2
    assert inside(pair[0].name, "ls /tmp/must-not-exist", check=False) == ""


def test_a_key_of_another_type_is_refused_too(pair: Pair):
    ecdsa = (
        "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9"
        "nkt5YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg="
    )
    with pytest.raises(HostKeyRefused):
        SshConnector(deadline_s=60.0).run(pair[0].reached(host_key=ecdsa), Command("true"))


def test_a_refused_login_is_told_at_once(pair: Pair, tmp_path: Path):
    key = tmp_path / "key"
    key.write_text(new_key_pair().private)
    key.chmod(0o600)
    began = time.monotonic()
    with pytest.raises(LoginRefused, match="refuses the login of root"):
        SshConnector(deadline_s=60.0).run(pair[0].reached(identity=str(key)), Command("true"))
    assert time.monotonic() - began < 20


def test_a_missing_private_key_is_told(pair: Pair):
    with pytest.raises(LoginRefused, match="private key"):
        SshConnector().run(pair[0].reached(identity="/not/there"), Command("true"))


def test_a_node_behind_a_jump_host_is_reached_with_both_keys_pinned(pair: Pair):
    first, second = pair
    jump = Jump(
        address=first.ssh.address,
        port=first.ssh.port,
        user="root",
        identity=first.ssh.identity,
        host_key=first.ssh.host_key,
    )
    hidden = second.reached(address=second.internal_ip, port=22, jump=(jump,))
    transport = SshConnector()
    assert transport.run(hidden, Command("hostname")).stdout.strip() == second.name
    # Two hops: through the first to the second, and from there to the first again.
    inner = Jump(
        address=str(second.internal_ip),
        port=22,
        user="root",
        identity=second.ssh.identity,
        host_key=second.ssh.host_key,
    )
    back = first.reached(address=first.internal_ip, port=22, jump=(jump, inner))
    assert transport.run(back, Command("hostname")).stdout.strip() == first.name
    transport.close()

    forged = jump.model_copy(update={"host_key": new_key_pair().public})
    with pytest.raises(HostKeyRefused, match="jump host"):
        SshConnector(deadline_s=60.0).run(hidden.reached(jump=(forged,)), Command("hostname"))


RELAY = """
import os, socket, sys, threading
server = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        server.sendall(data)
threading.Thread(target=up, daemon=True).start()
while data := server.recv(65536):
    os.write(1, data)
"""


def test_a_proxy_command_is_used(pair: Pair, tmp_path: Path):
    relay = tmp_path / "relay.py"
    relay.write_text(RELAY)
    command = argv(sys.executable, str(relay), "127.0.0.1", pair[0].ssh.port)
    node = pair[0].reached(address="nowhere.invalid", proxy_command=command)
    transport = SshConnector(deadline_s=30.0)
    assert transport.run(node, Command("hostname")).stdout.strip() == pair[0].name
    transport.close()


def test_a_connection_that_was_cut_is_made_again(transport: SshConnector, pair: Pair):
    assert transport.run(pair[1], Command("true")).ok
    inside(pair[1].name, "pkill -f '[s]shd: root'", check=False)
    assert transport.run(pair[1], Command("echo back")).stdout == "back\n"


def test_a_fan_out_gives_one_result_per_node_in_order(pair: Pair):
    transport = SshConnector(connect_timeout_s=5.0, deadline_s=6.0)
    away = pair[0].reached(port=9).model_copy(update={"name": "away"})
    results = fan_out(
        [pair[0], away, pair[1]], lambda node: transport.run(node, Command("hostname")).stdout.strip()
    )
    assert [result.value for result in results] == [pair[0].name, None, pair[1].name]
    assert isinstance(results[1].error, HostUnreachable)
    transport.close()


def test_statuses_name_why_a_node_cannot_be_used(pair: Pair, mute: int, monkeypatch: pytest.MonkeyPatch):
    nodes = (
        pair[0],
        pair[1].reached(host_key=new_key_pair().public),
        pair[1].reached(port=mute).model_copy(update={"name": "mute"}),
    )
    fleet = FleetState(name="f", stack="f", backend="local", nodes=nodes)
    transport = SshConnector(connect_timeout_s=4.0)
    statuses = node_statuses(fleet, transport)
    assert [status.status for status in statuses] == ["idle", "unreachable", "unreachable"]
    assert "SHA256" in (statuses[1].reason or "")


def test_shown_commands_hide_their_input():
    command = Command("cat", "store the token", stdin=b"secret")
    assert "secret" not in str(command)
    assert "secret" not in repr(command)


def test_scripts_run_as_root_whatever_they_hold(transport: SshConnector, pair: Pair):
    script = "printf '%s' \"it's\" '$HOME'; id -u"
    assert transport.run(pair[0], Command(as_root(script))).stdout == "it's$HOME0\n"
    assert argv("a b", 1, "c'd") == "'a b' 1 'c'\"'\"'d'"
