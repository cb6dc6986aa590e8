"""One command on one open channel: its input, its output, its time limits."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable

import paramiko

from orch.runner.errors import CommandTimeout, HostUnreachable
from orch.runner.node.commands import Command
from orch.runner.node.connector import Completed
from orch.runner.ssh.endpoint import of_node
from orch.spec.state import NodeState

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
