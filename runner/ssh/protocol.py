"""Paramiko's protocol engine on a stream, tuned for many connections at once, and why a handshake failed."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_REQUEST

from orch.runner.errors import HostUnreachable
from orch.runner.ssh.connect import ProxySocket
from orch.runner.ssh.endpoint import SshEndpoint

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
