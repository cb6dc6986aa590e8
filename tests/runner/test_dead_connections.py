"""A port that is asked for over a connection that has died: the connection is made anew, and the port is not
said to take no connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from paramiko import common

from orch.runner.ledger.run_folder import new_key_pair
from orch.runner.ssh.pool import SshConnector
from orch.spec.state import NodeState


class Server(paramiko.ServerInterface):
    """An SSH server that lets everybody in. Its first connection dies when a port is asked for: nothing comes
    back on it any more. On others each port says what number it is."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses, self.wires = refuses, list[paramiko.Transport]()
        self.over = threading.Event()
        self._key = paramiko.ECDSAKey.generate()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.public = f"{self._key.get_name()} {self._key.get_base64()}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self._socket.shutdown(socket.SHUT_RDWR)  # ends `accept`, which a close does not
        self._socket.close()
        for wire in self.wires:
            wire.close()

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return common.AUTH_SUCCESSFUL

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        if self.refuses:
            return common.OPEN_FAILED_CONNECT_FAILED
        if len(self.wires) == 1:
            self.over.wait(120)
        return common.OPEN_SUCCEEDED

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            wire = paramiko.Transport(link)
            wire.add_server_key(self._key)
            self.wires.append(wire)
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                wire.start_server(server=self)
            threading.Thread(target=self._answer, args=(wire,), daemon=True).start()

    def _answer(self, wire: paramiko.Transport) -> None:
        while wire.is_active():
            if (channel := wire.accept(1)) is not None:
                with contextlib.suppress(OSError):
                    channel.sendall(b"here")
                channel.close()


@pytest.fixture
def transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshConnector]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    transport = SshConnector(connect_timeout_s=5.0, deadline_s=100.0)
    yield transport
    transport.close()


def node(server: Server, folder: Path) -> NodeState:
    key = folder / "key"
    key.touch(0o600)
    key.write_text(new_key_pair().private)
    given = {"index": 0, "name": "n0", "address": "127.0.0.1", "port": server.port, "user": "ops"}
    return NodeState.model_validate({**given, "host_key": server.public, "identity": str(key)})


def said(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as link:
        link.settimeout(120)
        return link.recv(99)


def test_a_port_is_reached_though_the_connection_to_its_node_had_died(
    transport: SshConnector, tmp_path: Path
) -> None:
    server = Server()
    try:
        with transport.forward(node(server, tmp_path), 8731) as port:
            assert said(port) == b"here"
        assert len(server.wires) > 1
    finally:
        server.close()


def test_a_port_that_refuses_is_told_at_once_and_the_connection_stays(
    transport: SshConnector, tmp_path: Path
) -> None:
    server = Server(refuses=True)
    try:
        with transport.forward(node(server, tmp_path), 8731) as port:
            assert said(port) == b""
            had = len(server.wires)
            assert [said(port), said(port)] == [b"", b""]
        assert len(server.wires) == had
    finally:
        server.close()
