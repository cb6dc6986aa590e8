"""Files copied to and from a node, and ports of a node that are reached from here, over a real SSH server."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orch.runner.errors import RunnerError
from orch.runner.node_api.commands import Command, StdinSource
from orch.runner.node_api.connector import Completed
from orch.runner.ssh.pool import SshConnector
from orch.spec.state import NodeState

Pair = tuple[NodeState, NodeState]


def test_files_go_to_a_node_and_come_back(pair: Pair, transport: SshConnector, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    (tmp_path / "here").write_bytes(data)
    transport.send(pair[0], tmp_path / "here", "/tmp/there")
    said = transport.run(pair[0], Command("sha256sum < /tmp/there; chmod 600 /tmp/there")).stdout
    assert said.split()[0] == hashlib.sha256(data).hexdigest()
    transport.receive(pair[0], "/tmp/there", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    with pytest.raises(RunnerError) as caught:
        transport.receive(pair[0], "/not/there", tmp_path / "none")
    assert caught.value.summary == "/not/there could not be copied"
    assert caught.value.where == pair[0].name


def test_a_port_of_a_node_is_reached_before_and_after_something_listens_there(
    pair: Pair, transport: SshConnector
) -> None:
    with transport.forward(pair[0], 8731) as port:
        with socket.create_connection(("127.0.0.1", port), 10) as link:
            link.settimeout(20)
            assert link.recv(1) == b"", "nothing listens yet: closed, and the port stays"
        listen = "perl -MSocket -e 'socket(S,PF_INET,SOCK_STREAM,0);setsockopt(S,SOL_SOCKET,SO_REUSEADDR,1);"
        listen += 'bind(S,sockaddr_in(8731,INADDR_LOOPBACK));listen(S,5);print"up\\n";$|=1;print"\\n";'
        listen += "while(accept(C,S)){sysread(C,$b,99);syswrite(C,uc $b);close C}'"
        ready, over = threading.Event(), threading.Event()
        server = threading.Thread(
            target=lambda: transport.run(
                pair[0], Command(listen, timeout_s=60), on_lines=lambda _: ready.set(), until=over
            )
        )
        server.start()
        try:
            assert ready.wait(30)
            for word in (b"one", b"two"):
                with socket.create_connection(("127.0.0.1", port), 10) as link:
                    link.settimeout(20)
                    link.sendall(word)
                    assert link.recv(99) == word.upper()
        finally:
            over.set()
            server.join(30)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_a_port_that_refuses_a_connection_leaves_all_else_of_the_node_alone(
    pair: Pair, transport: SshConnector
) -> None:
    began, refused = threading.Event(), threading.Event()
    ended: list[Completed | Exception] = []

    def later() -> Iterator[bytes]:
        refused.wait(120)
        yield b"on\n"

    def work() -> None:
        job = Command("echo begun; read word; echo goes $word", stdin=StdinSource(later()), timeout_s=180)
        try:
            ended.append(transport.run(pair[0], job, on_lines=lambda _: began.set()))
        except RunnerError as error:
            ended.append(error)

    running = threading.Thread(target=work)
    running.start()
    try:
        assert began.wait(60)
        with transport.forward(pair[0], 8732) as port:
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", port), 10) as link:
                    link.settimeout(60)
                    assert link.recv(1) == b""
    finally:
        refused.set()
        running.join(120)
    assert [type(each) for each in ended] == [Completed], ended
    assert isinstance(ended[0], Completed)
    assert ended[0].exit_code == 0


def test_a_port_whose_job_takes_no_more_clients_keeps_those_that_it_has(pair: Pair) -> None:
    connector = SshConnector(connect_timeout_s=3.0, deadline_s=60.0)
    listen = "perl -MSocket -e 'socket(S,PF_INET,SOCK_STREAM,0);setsockopt(S,SOL_SOCKET,SO_REUSEADDR,1);"
    listen += 'bind(S,sockaddr_in(8733,INADDR_LOOPBACK));listen(S,0);$|=1;print"up\\n";sleep 600\''
    ready, over = threading.Event(), threading.Event()
    server = threading.Thread(
        target=lambda: connector.run(
            pair[0], Command(listen, timeout_s=600), on_lines=lambda _: ready.set(), until=over
        )
    )
    server.start()
    try:
        assert ready.wait(60)
        with (
            connector.forward(pair[0], 8733) as port,
            socket.create_connection(("127.0.0.1", port), 10) as first,
        ):
            first.sendall(b"waits to be taken")
            closed = 0
            while closed < 2:  # whom the kernel still takes waits as the first does
                with socket.create_connection(("127.0.0.1", port), 10) as link:
                    link.settimeout(30)
                    try:
                        closed += link.recv(1) == b""
                    except TimeoutError:
                        continue
            first.settimeout(0.5)
            with pytest.raises(TimeoutError):
                first.recv(1)
    finally:
        over.set()
        server.join(60)
        connector.close()
