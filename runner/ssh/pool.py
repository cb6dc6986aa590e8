"""The connector over SSH: a pool of connections, one per node, and one per jump host for all nodes behind it.

A host's key is known before the first connect; anything else is refused. docs/dependencies.md tells which
parts of Fabric are used, and why commands are not run by its own `run`.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import paramiko
from fabric import Connection

from orch.runner.errors import (
    ForwardingRefused,
    HostKeyRefused,
    HostUnreachable,
    JumpUnreachable,
    LoginRefused,
    PortRefused,
    RunnerError,
    UnsafeName,
)
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Address, Completed
from orch.runner.ssh.connect import Patience, dial_command, dial_tcp, dial_through, forwarded
from orch.runner.ssh.endpoint import SshEndpoint, describe_address, of_jump, of_node
from orch.runner.ssh.host_keys import RevokedKeys
from orch.runner.ssh.identities import Keyring
from orch.runner.ssh.login import log_in
from orch.runner.ssh.openssh import ssh_words
from orch.runner.ssh.protocol import CommandChannel, Stream, unreachable
from orch.runner.ssh.user_config import UserConfig
from orch.spec.access import Jump
from orch.spec.state import NodeState

T = TypeVar("T")

# A host behind a jump host is opened while at most this many others are: sshd drops random ones above
# MaxStartups (10).
HANDSHAKES_PER_JUMP = 8
# How long a server may take to open a session on a connection that may be dead.
ANSWER_S = 5.0
# Errors that another try would only repeat.
_FINAL = (HostKeyRefused, LoginRefused, ForwardingRefused, PortRefused, UnsafeName)


@dataclass
class _Slot:
    """The one connection of a node or jump host, made by whoever comes first.

    `failed` is when the last attempt ended, and how: those who waited for it do not try the same again.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: Connection | None = None
    failed: tuple[float, HostUnreachable] | None = None

    @property
    def open(self) -> Connection | None:
        connection = self.connection
        return connection if connection is not None and connection.is_connected else None


class SshConnector:
    """A pool of connections, one per node, shared by all that is done there."""

    def __init__(
        self,
        *,
        connect_timeout_s: float = 10.0,
        deadline_s: float = 30.0,
        tunnels: Mapping[str, str] | None = None,
    ) -> None:
        """`tunnels`: what proxy commands are given in their environment."""
        self._connect_timeout_s = connect_timeout_s
        self._deadline_s = deadline_s
        self._tunnels = dict(tunnels or {})
        self._guard = threading.Lock()
        self._slots: dict[tuple[str, ...], _Slot] = {}
        self._jumps: dict[tuple[Jump, ...], _Slot] = {}
        self._handshakes: dict[tuple[Jump, ...], threading.BoundedSemaphore] = {}
        self._keyring = Keyring()
        self._user_config = UserConfig()
        self._revoked = RevokedKeys(self._user_config)
        self._closed = False

    def run(
        self,
        node: NodeState,
        command: Command,
        *,
        deadline_s: float | None = None,
        connect_timeout_s: float | None = None,
        on_lines: Callable[[bytes], None] | None = None,
        on_data: Callable[[bytes], None] | None = None,
        until: threading.Event | None = None,
    ) -> Completed:
        """See `Connector.run`."""
        started = time.monotonic()
        channel = self._session(node, self._patience(connect_timeout_s, deadline_s))
        try:
            return CommandChannel(
                node, command, channel, on_lines=on_lines, on_data=on_data, until=until, started=started
            ).run()
        finally:
            channel.close()

    def log_in(self, node: NodeState) -> Connection:
        """Open a connection of the caller's own, which the pool does not keep.

        Raises HostUnreachable, JumpUnreachable, HostKeyRefused, LoginRefused.
        """
        try:
            return self._connect(of_node(node), self._patience())
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise unreachable(node, error) from error

    def close(self) -> None:
        self._closed = True
        self.hang_up()

    def hang_up(self) -> None:
        """Close every connection; the next command makes its own again."""
        with self._guard:
            slots = [*self._slots.values(), *self._jumps.values()]
            self._slots.clear()
            self._jumps.clear()
        for slot in slots:
            if slot.connection is not None:
                slot.connection.close()
        self._keyring.close()

    def drop(self, node: NodeState) -> None:
        """Close the connection of a node that stopped answering, or will not be needed again."""
        self._drop(node)

    def _drop(self, node: NodeState, purpose: str = "") -> None:
        with self._guard:
            slot = self._slots.get(_key(node, purpose))
        if slot is None:
            return
        connection, slot.connection = slot.connection, None
        if connection is not None:
            connection.close()

    def send(self, node: NodeState, source: Path, target: str) -> None:
        """See `Connector.send`."""
        self._copy(node, target, lambda sftp: sftp.put(str(source), target))

    def receive(self, node: NodeState, source: str, target: Path) -> None:
        """See `Connector.receive`."""
        self._copy(node, source, lambda sftp: sftp.get(source, str(target)))

    @contextmanager
    def forward(self, node: NodeState, port: int, *, listener: socket.socket | None = None) -> Iterator[int]:
        """See `Connector.forward`.

        A forwarded port has a connection of its own, made for the first client: whatever its clients do, the
        node's logs and commands go on.
        """
        purpose = f"port {port} {object()}"
        try:
            with forwarded(lambda: self._channel_to(node, port, purpose), listener) as local:
                yield local
        finally:
            self._drop(node, purpose)
            with self._guard:
                self._slots.pop(_key(node, purpose), None)

    def terminal(self, node: NodeState, folder: Path, more: Sequence[str]) -> list[str]:
        """See `Connector.terminal`: the `ssh` command, with a configuration of its own in `folder`."""
        return ssh_words(node, folder, self._user_config, more)

    def command_line(self, node: NodeState, folder: Path, text: str, *, terminal: bool) -> list[str]:
        """See `Connector.command_line`."""
        return ssh_words(node, folder, self._user_config, ("-t" if terminal else "-T", text))

    def address(self, node: NodeState) -> Address:
        """See `Connector.address`."""
        return describe_address(node)

    def _copy(self, node: NodeState, path: str, copy: Callable[[paramiko.SFTPClient], object]) -> None:
        sftp = self._with_connection(node, self._patience(), lambda connection: connection.sftp())
        try:
            copy(sftp)
        except (paramiko.SSHException, EOFError) as error:
            self.drop(node)
            raise unreachable(node, error) from error
        except OSError as error:
            raise RunnerError(
                f"{path} could not be copied", where=node.name, detail=error.strerror or str(error)
            ) from error

    def _channel_to(self, node: NodeState, port: int, purpose: str) -> paramiko.Channel:
        """A channel that ends at a port of the node's loopback.

        A port that refuses it, or does not answer, is of this channel alone: others over the same connection
        go on. A node that does not answer at all is another matter. Raises HostUnreachable.
        """
        patience = self._patience()

        def open_channel(connection: Connection) -> paramiko.Channel:
            wire, label = _wire(connection), f"node {node.name}"
            try:
                return dial_through(wire, label, "127.0.0.1", port, patience.for_connect)
            except ForwardingRefused:
                raise
            except HostUnreachable as error:
                # A listener whose queue is full keeps the node's sshd waiting, which answers all else.
                if not isinstance(error.__cause__, paramiko.ChannelException) and not _answers(wire):
                    raise
                raise PortRefused(
                    f"port {port} of {label} takes no connection", where=node.name, detail=error.detail
                ) from error

        return self._with_connection(node, patience, open_channel, purpose)

    @contextmanager
    def stream_to(self, peer: SshEndpoint, patience: Patience) -> Iterator[Stream]:
        """An open stream to a peer's SSH port, by its own way.

        Behind a jump host it is one of few at a time until the block is left. Raises HostUnreachable, and
        what logging in to a jump host raises.
        """
        command = self._user_config.proxy_command(peer)
        if command is not None:
            # A user's own command has that user's environment; those of a cloud's fleet need its credentials.
            tunnels = self._tunnels if peer.proxy_command is not None else None
            yield dial_command(command, peer.address, peer.port, peer.user, tunnels)
            return
        if not peer.jump:
            yield dial_tcp(peer.address, peer.port, patience.for_connect)
            return
        gateway = self._gateway(peer.jump, patience)
        with self._guard:
            turn = self._handshakes.setdefault(peer.jump, threading.BoundedSemaphore(HANDSHAKES_PER_JUMP))
        with patience.queueing():
            turn.acquire()
        try:
            if self._closed:
                raise EOFError("the connection to the jump host closed")
            jump = of_jump(peer.jump).label
            yield dial_through(_wire(gateway), jump, peer.address, peer.port, patience.for_connect)
        finally:
            turn.release()

    def _slot(self, node: NodeState, purpose: str) -> _Slot:
        with self._guard:
            return self._slots.setdefault(_key(node, purpose), _Slot())

    def _patience(self, connect_s: float | None = None, total_s: float | None = None) -> Patience:
        return Patience(
            self._connect_timeout_s if connect_s is None else connect_s,
            self._deadline_s if total_s is None else total_s,
        )

    def _session(self, node: NodeState, patience: Patience) -> paramiko.Channel:
        """An open channel for one command."""
        return self._with_connection(
            node, patience, lambda connection: _wire(connection).open_session(timeout=max(0.1, patience.left))
        )

    def _with_connection(
        self, node: NodeState, patience: Patience, use: Callable[[Connection], T], purpose: str = ""
    ) -> T:
        """`use` with the node's connection for `purpose`, which is made or remade as needed.

        One at a time: the library keeps the reason of a refusal per connection, not per try.
        """
        slot = self._slot(node, purpose)
        pause = 0.2
        while True:
            try:
                with slot.lock:
                    connection = slot.open
                    if connection is None:
                        connection = slot.connection = self._connect(of_node(node), patience)
                    return use(connection)
            except _FINAL:
                raise
            except (HostUnreachable, paramiko.SSHException, EOFError, OSError) as error:
                # A session too many (sshd's MaxSessions, 10) is refused while the others go on: left alone.
                full = isinstance(error, paramiko.ChannelException) and slot.open is not None
                if not full:
                    self._drop(node, purpose)
                pause = min(pause * 2, 5.0)
                wait = pause * random.uniform(0.5, 1.0)
                if self._closed or patience.once or wait >= patience.left:
                    if isinstance(error, JumpUnreachable):
                        raise
                    raise unreachable(node, error) from error
                time.sleep(wait)

    def _connect(self, peer: SshEndpoint, patience: Patience) -> Connection:
        """One attempt."""
        self._revoked.refuse(peer)
        identities = list(
            self._keyring.identities(peer.label, peer.identity, lambda: self._user_config.agent(peer))
        )
        with self.stream_to(peer, patience) as stream:
            connection = log_in(peer, stream, identities, patience.for_connect)
        if not peer.host_key and (wire := connection.transport) is not None:
            shown = wire.get_remote_server_key()
            try:
                self._revoked.refuse(peer, f"{shown.get_name()} {shown.get_base64()}")
            except HostKeyRefused:
                connection.close()
                raise
        return connection

    def _gateway(self, chain: tuple[Jump, ...], patience: Patience) -> Connection:
        """The shared connection to the last jump host of a chain, through those before it.

        Raises JumpUnreachable, or what refuses the log-in.
        """
        with self._guard:
            slot = self._jumps.setdefault(chain, _Slot())
        came = time.monotonic()
        with patience.queueing():
            slot.lock.acquire()
        try:
            connection = slot.open
            if connection is not None:
                return connection
            if slot.failed is not None and slot.failed[0] > came:
                raise slot.failed[1]
            peer = of_jump(chain)
            try:
                slot.connection = self._connect(peer, patience)
            except (*_FINAL, JumpUnreachable) as error:
                slot.failed = (time.monotonic(), error)
                raise
            except (HostUnreachable, paramiko.SSHException, EOFError, OSError) as error:
                failure = jump_failed(peer, error)
                slot.failed = (time.monotonic(), failure)
                raise failure from error
            return slot.connection
        finally:
            slot.lock.release()


def _wire(connection: Connection) -> paramiko.Transport:
    if connection.transport is None:
        raise EOFError("the connection closed")
    return connection.transport


def _answers(wire: paramiko.Transport) -> bool:
    """Whether the server at the other end opens a session, or says that it does not."""
    try:
        wire.open_session(timeout=ANSWER_S).close()
    except paramiko.ChannelException:
        return True
    except (paramiko.SSHException, EOFError, OSError):
        return False
    return True


def _key(node: NodeState, purpose: str) -> tuple[str, ...]:
    return (node.name, node.ssh.address, str(node.ssh.port), node.ssh.host_key, purpose)


def jump_failed(peer: SshEndpoint, error: BaseException) -> JumpUnreachable:
    """The error for all hosts behind a jump host that could not be talked to."""
    known = error if isinstance(error, HostUnreachable) else None
    detail = known.summary if known else str(error) or type(error).__name__
    if known and known.detail:
        detail = f"{detail}: {known.detail}"
    return JumpUnreachable(
        f"{peer.label} cannot be reached",
        where=peer.where,
        detail=detail,
        hint=known.hint if known else "is it up, and does the network let SSH through?",
    )
