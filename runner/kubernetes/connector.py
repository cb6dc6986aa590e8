"""The connector to nodes that are pods: commands by exec, ports by port-forward, all through the API server.

Each command has a WebSocket of its own; certificate and credentials are shared by all commands of a cluster.
A pod that has ended, or that is another one of the same name (`pod_state.py`), is told from a cluster or a
kubelet that does not answer now.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch.runner.errors import RunnerError
from orch.runner.kubernetes.errors import shortened
from orch.runner.kubernetes.pod_state import Pod
from orch.runner.kubernetes.streams.channel import V4, Channel
from orch.runner.kubernetes.streams.dialing import Ask, PodStreams
from orch.runner.kubernetes.streams.execution import ExecRequest, Execution, exec_request
from orch.runner.kubernetes.streams.forwarding import forwarded
from orch.runner.node_api.commands import Command, StdinSource
from orch.runner.node_api.connector import Address, Completed
from orch.runner.private import private_folder, write_private
from orch.spec.state import NodeState

COPY_S = 3600.0
_KILLED = 128 + signal.SIGKILL


_SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) else ()


class KubernetesConnector(PodStreams):
    """Reaches pods. Thread-safe."""

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
        """See `Connector.run`. Raises PodGone for a pod that will not come back."""
        started = time.monotonic()
        pod, patience = Pod.of(node), self._patience(connect_timeout_s, deadline_s)

        def ask(ends: bool) -> ExecRequest:
            given = command.stdin is not None
            return exec_request(command.text, stdin=given, leavable=command.timeout_s is None, ends=ends)

        def once() -> Completed:
            with self._exec(pod, ask, patience) as (channel, request):
                done = Execution(
                    node,
                    pod.where,
                    command,
                    request,
                    channel,
                    on_lines=on_lines,
                    on_data=on_data,
                    until=until,
                    started=started,
                ).run()
            if done.exit_code == _KILLED:
                self._refuse_killed(pod, patience)
            return done

        return self._retried(node, pod, patience, once)

    @contextmanager
    def attached(self, node: NodeState, ask: Ask, *, terminal: bool) -> Iterator[tuple[Channel, ExecRequest]]:
        """An open stream of a command and how it was asked for, for a program that passes on its own streams.

        `ask`: how, given whether the end of an input can be told. Raises HostUnreachable and its kinds.
        """
        pod, patience = Pod.of(node), self._patience()
        opened: list[Any] = []

        def once() -> tuple[Channel, ExecRequest]:
            opened.append(self._exec(pod, ask, patience, terminal=terminal))
            return opened[-1].__enter__()

        channel, request = self._retried(node, pod, patience, once)
        try:
            yield channel, request
        finally:
            opened[-1].__exit__(None, None, None)

    def send(self, node: NodeState, source: Path, target: str) -> None:
        """See `Connector.send`."""
        try:
            size = source.stat().st_size
        except OSError as error:
            raise RunnerError(
                f"{source} could not be copied", where=node.name, detail=error.strerror or str(error)
            ) from error

        text = f"cat > {shlex.quote(target)}"
        command = Command(text, f"copy {size} bytes", stdin=StdinSource(_Pieces(source)), timeout_s=COPY_S)
        _copied(target, node, self.run(node, command))

    def receive(self, node: NodeState, source: str, target: Path) -> None:
        """See `Connector.receive`. `target` is there when it is whole."""
        part = target.with_name(f".{target.name}.part")
        try:
            with part.open("wb") as file:
                command = Command(f"cat < {shlex.quote(source)}", f"copy {source}", timeout_s=COPY_S)
                done = self.run(node, command, on_data=file.write)  # pyright: ignore[reportArgumentType]
            _copied(source, node, done)
            part.replace(target)
        except OSError as error:
            raise RunnerError(
                f"{source} could not be copied", where=node.name, detail=error.strerror or str(error)
            ) from error
        finally:
            part.unlink(missing_ok=True)

    @contextmanager
    def forward(self, node: NodeState, port: int, *, listener: socket.socket | None = None) -> Iterator[int]:
        """See `Connector.forward`.

        The protocol cannot tell that a client has sent all: a server that waits for that waits on.
        """
        pod = Pod.of(node)

        def open_port() -> Channel:
            def once() -> Channel:
                patience = self._patience()
                channel, _ = self._dial(pod, "portforward", lambda _: [("ports", str(port))], patience, (V4,))
                with self._guard:
                    self._open[channel] = pod
                return channel

            return self._retried(node, pod, self._patience(), once)

        def done(channel: Channel) -> None:
            with self._guard:
                self._open.pop(channel, None)

        with forwarded(open_port, port, done, listener) as local:
            yield local

    def terminal(self, node: NodeState, folder: Path, more: Sequence[str]) -> list[str]:
        """See `Connector.terminal`: a program of orch, so that nobody needs `kubectl`.

        `more`: the words of a command, in place of a shell. Raises RunnerError for options of `ssh`.
        """
        words = list(more)
        if words[:1] == ["--"]:
            del words[0]
        if words and words[0].startswith("-"):
            raise RunnerError(
                f"a pod is not reached by ssh, which alone knows {words[0]}",
                where=node.name,
                hint="give the words of a command, or none for a shell",
            )
        return self._words(node, folder, "pod", " ".join(words), terminal=None if words else True)

    def command_line(self, node: NodeState, folder: Path, text: str, *, terminal: bool) -> list[str]:
        """See `Connector.command_line`."""
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._words(node, folder, f"command-{name}", text, terminal=terminal)

    def address(self, node: NodeState) -> Address:
        """See `Connector.address`: a pod is reached through its API server alone."""
        pod = Pod.of(node)
        return Address(
            place=pod.pod,
            hops=f"API server of {pod.context}" if pod.context else "API server",
            whole=pod.where,
        )

    def _words(
        self, node: NodeState, folder: Path, name: str, text: str, *, terminal: bool | None
    ) -> list[str]:
        pod = Pod.of(node)
        private_folder(folder)
        file = (folder / f"{name}.json").absolute()
        record: dict[str, Any] = {**vars(pod), "node": node.name, "text": text, "terminal": terminal}
        # Who runs it may be elsewhere, and know nothing of this environment.
        if pod.kubeconfig:
            record["kubeconfig"] = str(Path(pod.kubeconfig).expanduser().absolute())
        record["files"] = None if pod.kubeconfig else os.environ.get("KUBECONFIG")
        write_private(file, json.dumps(record))
        return [sys.executable, *_SAFE_PATH, "-m", "orch.runner.kubernetes.shell", str(file)]


@dataclass(frozen=True)
class _Pieces:
    """A file of this machine, piece by piece, and once more for whoever asks again."""

    path: Path

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while piece := file.read(1 << 18):
                yield piece


def _copied(path: str, node: NodeState, done: Completed) -> None:
    if not done.ok:
        said = done.stderr.strip().rpartition("\n")[2]
        raise RunnerError(
            f"{path} could not be copied", where=node.name, detail=shortened(said) or done.ending
        )
