"""Paramiko's protocol engine on a stream, tuned for many connections at once, why a handshake failed, and one
command on one open channel: its input, its output, its time limits.
"""

from __future__ import annotations

import contextlib
import logging
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_REQUEST

from orch.runner.errors import CommandTimeout, HostUnreachable
from orch.runner.node_api.commands import Command
from orch.runner.node_api.connector import Completed
from orch.runner.ssh.connect import ProxySocket
from orch.runner.ssh.endpoint import SshEndpoint, of_node
from orch.spec.state import NodeState

Stream = socket.socket | paramiko.Channel

# Without a handler of its own the library's log of failed handshakes goes to stderr, traceback included.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def _channel_request(channel: paramiko.Channel, message: paramiko.Message) -> None:
    """A server's word about a channel.

    The library passes over the news that a signal ended a command (RFC 4254, 6.10), which then looks like a
    lost connection; here it becomes the exit code that shells give it.
    """
    kind = message.get_text()
    if kind == "exit-signal":
        message.get_boolean()
        number = getattr(signal, f"SIG{message.get_text()}", None)
        channel.exit_status = 128 + number if isinstance(number, signal.Signals) else 255
        channel.status_event.set()
        return
    message.rewind()
    message.get_int()  # the channel, which the caller has read
    channel._handle_request(message)  # pyright: ignore[reportAttributeAccessIssue]


class Protocol(paramiko.Transport):
    """The library's protocol engine, tuned for many connections at once."""

    # AES-GCM first: one pass over the data, about twice as fast as CTR with a separate MAC.
    _preferred_ciphers = (
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    )
    _channel_handler_table = {  # noqa: RUF012 - as the library has it
        **paramiko.Transport._channel_handler_table,  # pyright: ignore[reportAttributeAccessIssue]
        MSG_CHANNEL_REQUEST: _channel_request,
    }
    # How often an idle connection looks up from its socket; the library does so ten times a second. `close`
    # wakes it.
    _active_check_timeout = 1.0

    def __init__(self, sock: Stream, **options: Any) -> None:
        self.greeting: list[str] = []
        super().__init__(sock, **options)

    def _log(self, level: int, msg: str | list[str], *args: object) -> None:
        # What a server says before its version, or instead of it, is only logged by the library.
        if isinstance(msg, str) and msg.startswith("Banner: "):
            self.greeting.append(msg[8:].strip())
        if self.logger.isEnabledFor(level):
            super()._log(level, msg, *args)  # pyright: ignore[reportAttributeAccessIssue]

    def close(self) -> None:
        """End the connection. Its thread wakes and closes the stream: nobody else may while it reads."""
        super().close()
        with contextlib.suppress(OSError, EOFError):
            if isinstance(self.sock, socket.socket):
                self.sock.shutdown(socket.SHUT_RDWR)
            else:
                self.sock.close()


def handshake_failed(
    peer: SshEndpoint,
    error: BaseException,
    *,
    transport: paramiko.Transport | None,
    stream: Stream,
    slow: bool,
) -> HostUnreachable:
    """Why no SSH connection came about on a stream that was open; `slow` when the time for it had passed."""
    text, greeting = str(error), transport.greeting if isinstance(transport, Protocol) else []
    server_text = "; ".join(greeting[:3]) or None
    port_and_host = f"port {peer.port} of {peer.address}"
    closed_early = "banner" in text or isinstance(error, (EOFError, ConnectionError))
    if isinstance(stream, ProxySocket) and closed_early:
        detail = stream.last_words() or "it ended without a word"
        return HostUnreachable(
            f"the proxy command of {peer.label} gives no connection",
            where=peer.where,
            detail=detail,
            hint="does it work by hand?",
        )
    if any(word in line for line in greeting for word in ("MaxStartups", "Not allowed at this time")):
        return HostUnreachable(
            f"{port_and_host} takes no more log-ins right now",
            where=peer.where,
            detail=server_text,
            hint="`MaxStartups` in its /etc/ssh/sshd_config, or wait",
        )
    if greeting or "protocol version" in text or "Invalid SSH banner" in text:
        return HostUnreachable(
            f"what answers at {port_and_host} is not an SSH server",
            where=peer.where,
            detail=server_text or text,
            hint="is `port` the one of its SSH server?",
        )
    if slow or "timeout" in text.lower() or "No existing session" in text:
        return HostUnreachable(
            f"{port_and_host} takes connections, but does not finish an SSH handshake in time",
            where=peer.where,
            hint="is the host overloaded or frozen, or is this not its SSH server?",
        )
    if closed_early:
        return HostUnreachable(
            f"{port_and_host} closes the connection before the SSH handshake is done",
            where=peer.where,
            hint="too many log-ins at once (`MaxStartups`), a ban of this address, or not an SSH server",
        )
    return HostUnreachable(text or type(error).__name__, where=peer.where)


# A server that has opened a session answers a request to run something at once, or is frozen.
ACCEPT_S = 10.0

# How long after a command's end its output is waited for, where the end of that does not come.
LINGER_S = 2.0


class CommandChannel:
    """One command on one channel: feeds stdin from a thread, reads both streams, keeps the deadline."""

    def __init__(
        self,
        node: NodeState,
        command: Command,
        channel: paramiko.Channel,
        *,
        on_lines: Callable[[bytes], None] | None,
        until: threading.Event | None,
        started: float,
        on_data: Callable[[bytes], None] | None = None,
    ) -> None:
        self._node = node
        self._command = command
        self._channel = channel
        self._on_lines = on_lines
        self._on_data = on_data
        self._until = until
        self._started = started
        self._out = bytearray()
        self._err = bytearray()
        self._feed_error: BaseException | None = None

    def run(self) -> Completed:
        command = self._command
        now = time.monotonic()
        deadline = now + command.timeout_s if command.timeout_s is not None else None
        self._request(min(command.timeout_s or ACCEPT_S, ACCEPT_S))
        feeder = None
        if command.stdin is None:
            self._channel.shutdown_write()
        else:
            feeder = threading.Thread(target=self._feed, name="orch-stdin", daemon=True)
            feeder.start()
        stopped = self._read(deadline)
        if stopped:
            exit_code = -1
        else:
            if not self._channel.closed:
                # Output may end a moment before the status comes; a closed channel has it or never will.
                self._channel.status_event.wait(5.0)
            exit_code = self._channel.exit_status
        if feeder is not None:
            feeder.join(5.0)
        if self._feed_error is not None:
            raise self._feed_error
        if exit_code == -1 and not stopped:
            raise HostUnreachable(
                f"the connection to node {self._node.name} was lost during a command",
                where=of_node(self._node).where,
                detail=str(command),
            )
        if self._on_lines is not None and self._out and not stopped:
            # The last line may lack its end; a lost connection never gets here with half a line.
            self._on_lines(bytes(self._out) + b"\n")
            self._out.clear()
        return Completed(
            self._node.name,
            command,
            exit_code,
            self._out.decode(errors="replace"),
            self._err.decode(errors="replace"),
            time.monotonic() - self._started,
        )

    def _request(self, timeout_s: float) -> None:
        """Ask for the command. The library waits without end for an answer, so a timer closes the channel."""
        timer = threading.Timer(timeout_s, self._channel.close)
        timer.daemon = True
        timer.start()
        try:
            self._channel.exec_command(self._command.text)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise unreachable(self._node, error) from error
        finally:
            timer.cancel()

    def _read(self, deadline: float | None) -> bool:
        """Read until the command ends (False) or `until` is set (True)."""
        channel = self._channel
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        exited_since: float | None = None
        while True:
            # Asked before the streams are read: what came before the end is in them by now.
            at_end = channel.eof_received or channel.closed
            no_output = True
            while channel.recv_ready() and not self._left():
                self._take(channel.recv(1 << 18))
                no_output = False
            while channel.recv_stderr_ready():
                self._err += channel.recv_stderr(1 << 16)
                no_output = False
            if at_end:
                return False
            if channel.exit_status_ready():
                # sshd tells the status at once and what is left in the pipes after it; and an end never comes
                # where the command left something running that holds its streams.
                exited_since = time.monotonic() if exited_since is None or not no_output else exited_since
                if time.monotonic() - exited_since >= LINGER_S:
                    return False
            if self._left():
                return True
            if deadline is not None and time.monotonic() >= deadline:
                raise CommandTimeout(
                    f"a command on node {self._node.name} took longer than {self._command.timeout_s:.0f} s",
                    where=of_node(self._node).where,
                    detail=str(self._command),
                )
            poll.poll(250)

    def _left(self) -> bool:
        """Whether nobody waits for the command any more."""
        return self._until is not None and self._until.is_set()

    def _take(self, data: bytes) -> None:
        if self._on_data is not None:
            self._on_data(data)
            return
        self._out += data
        if self._on_lines is None:
            return
        end = self._out.rfind(b"\n", len(self._out) - len(data)) + 1
        if end:
            lines = bytes(self._out[:end])
            del self._out[:end]
            self._on_lines(lines)

    def _feed(self) -> None:
        source = self._command.stdin
        chunks = (source,) if isinstance(source, bytes) else source
        try:
            for chunk in chunks or ():
                self._channel.sendall(chunk)
            self._channel.shutdown_write()
        except (OSError, EOFError):
            # The command ended without reading all of it; its exit code tells the story.
            return
        except BaseException as error:  # noqa: BLE001 - handed to the calling thread, which raises it
            self._feed_error = error
            self._channel.close()


def unreachable(node: NodeState, error: BaseException) -> HostUnreachable:
    """The error for a node that could not be talked to, with what was tried last."""
    cause = error if isinstance(error, HostUnreachable) else None
    detail = cause.summary if cause else str(error) or type(error).__name__
    return HostUnreachable(
        f"node {node.name} cannot be reached",
        where=of_node(node).where,
        detail=f"{detail}: {cause.detail}" if cause and cause.detail else detail,
        hint=(cause.hint if cause else None) or "is the node up, and does the network let SSH through?",
    )
