"""The interface of a connector to nodes, and running work on many nodes at once.

`runner/ssh/pool.py` implements it for nodes over SSH; `runner/connect.py` gives each node the connector of
its kind (`NodeState.access`). A command that ran is a value whatever its exit code; a host that could not be
reached is an exception of one call, and a value again at the level of many nodes (`NodeResult`).
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from orch.runner.node_api.commands import Command
from orch.spec.errors import OrchError
from orch.spec.state import NodeState

# Connections opened and commands started at once; more gain nothing on one client machine and cost file
# descriptors.
FAN_OUT = 64

T = TypeVar("T")


@dataclass(frozen=True)
class Completed:
    """A command that ended. `stdout` is empty when lines were streamed to a callback."""

    node: str
    command: Command
    exit_code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def ending(self) -> str:
        """Its exit code in words, with the signal that it stands for."""
        with contextlib.suppress(ValueError):
            return f"exit code {self.exit_code} ({signal.Signals(self.exit_code - 128).name})"
        return f"exit code {self.exit_code}"


@dataclass(frozen=True)
class Address:
    """How a node is reached, for people; `-` for what its kind does not have.

    `place` is what is connected to, `user` who logs in, `hops` the way there, `key` the fingerprint that it
    is known by, `whole` all of it in one word. `host` is a name or address in an IP network and `port` one
    that answers there, where there is such a thing; `direct`: whether this machine connects to it itself.
    """

    place: str
    user: str = "-"
    hops: str = "-"
    key: str = "-"
    whole: str = ""
    host: str | None = None
    port: int | None = None
    direct: bool = False

    def __str__(self) -> str:
        return self.whole or self.place


class Connector(Protocol):
    """Reaches nodes of one kind. Thread-safe; connections are made when needed and kept."""

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
        """Run `command` on `node` and wait for its end.

        Connecting is retried, with jitter, for at most `deadline_s` (0: one attempt), each attempt taking at
        most `connect_timeout_s`; a command that has started is never repeated. `on_lines` receives
        stdout as it arrives, whole lines with their ends, several at once where they come quickly; `on_data`
        instead the bytes of stdout as they are; setting `until` ends the command early (exit code -1).
        Raises HostUnreachable and its kinds, or CommandTimeout.
        """
        ...

    def send(self, node: NodeState, source: Path, target: str) -> None:
        """Copy a file of this machine to `target` on a node. Raises HostUnreachable, RunnerError."""
        ...

    def receive(self, node: NodeState, source: str, target: Path) -> None:
        """Copy a file of a node to `target` on this machine. Raises HostUnreachable, RunnerError."""
        ...

    def forward(
        self, node: NodeState, port: int, *, listener: socket.socket | None = None
    ) -> AbstractContextManager[int]:
        """A port of this machine's loopback that leads to `port` of the node's, while the block lasts.

        `listener`: a listening socket of this machine to use, closed with the block. A connection that the
        node's port does not take is closed; the others go on.
        """
        ...

    def terminal(self, node: NodeState, folder: Path, more: Sequence[str]) -> list[str]:
        """The command line that gives a person a shell on a node; what it needs lies in `folder`.

        `more` are that command's own words. Raises RunnerError.
        """
        ...

    def command_line(self, node: NodeState, folder: Path, text: str, *, terminal: bool) -> list[str]:
        """The command line that runs shell text on a node, with its own stdin and stdout as the text's.

        `terminal`: those are a terminal. What it needs lies in `folder`. Raises RunnerError.
        """
        ...

    def address(self, node: NodeState) -> Address:
        """How a node is reached, for people."""
        ...

    def drop(self, node: NodeState) -> None:
        """Close the connection of a node that stopped answering, or will not be needed again."""
        ...

    def close(self) -> None:
        """Close every connection for good."""
        ...

    def hang_up(self) -> None:
        """Close every connection; the next command opens a new one."""
        ...


@dataclass(frozen=True)
class NodeResult(Generic[T]):
    """The result of a fan-out on one node: a value, or an error."""

    node: NodeState
    value: T | None = None
    error: OrchError | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


def fan_out(
    nodes: Sequence[NodeState], work: Callable[[NodeState], T], *, at_once: int = FAN_OUT
) -> tuple[NodeResult[T], ...]:
    """`work` for every node, at most `at_once` at a time; results in the order of `nodes`.

    An OrchError becomes that node's result, anything else is a bug and is raised. An interrupt passes at
    once; what is under way ends when its connector is closed.
    """

    def guarded(node: NodeState) -> NodeResult[T]:
        try:
            return NodeResult(node, value=work(node))
        except OrchError as error:
            return NodeResult(node, error=error)

    if not nodes:
        return ()
    pool = ThreadPoolExecutor(min(at_once, len(nodes)), thread_name_prefix="orch-node")
    try:
        results = tuple(pool.map(guarded, nodes))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return results
