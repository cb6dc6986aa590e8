"""The connector to nodes that are pods: commands by exec, ports by port-forward, all through the API server.

Each command has a WebSocket of its own; certificate and credentials are shared by all commands of a cluster.
A pod that has ended, or that is another one of the same name (`pod_state.py`), is told from a cluster or a
kubelet that does not answer now.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch.runner.errors import HostUnreachable, LoginRefused, PodGone, RunnerError
from orch.runner.kubernetes.client import KubernetesClient
from orch.runner.kubernetes.errors import (
    BadKubeconfig,
    CertificateRefused,
    ClusterUnreachable,
    Forbidden,
    Invalid,
    KubernetesError,
    NotFound,
    ServerError,
    Unauthorized,
    shortened,
)
from orch.runner.kubernetes.pod_state import NotYet, Pod, refuse_gone, with_silence
from orch.runner.kubernetes.streams.channel import V4, V5, Channel, ProtocolRefused, open_channel
from orch.runner.kubernetes.streams.execution import ExecRequest, Execution, NotStarted, exec_request
from orch.runner.kubernetes.streams.forwarding import forwarded
from orch.runner.kubernetes.transport import Doc
from orch.runner.node_api.commands import Command, StdinSource
from orch.runner.node_api.connector import Address, Completed
from orch.runner.private import private_folder, write_private
from orch.spec.state import NodeState

# A pod that was the right one so long ago still is: names of pods of a job are not given again.
KNOWN_S = 10.0
COPY_S = 3600.0
_KILLED = 128 + signal.SIGKILL

Ask = Callable[[bool], ExecRequest]
"""How a command is asked for, given whether the protocol can tell the end of its input."""

_SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) else ()


class KubernetesConnector:
    """Reaches pods. Thread-safe."""

    def __init__(self, *, connect_timeout_s: float = 10.0, deadline_s: float = 30.0) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._deadline_s = deadline_s
        self._guard = threading.Lock()
        self._clients: dict[tuple[str | None, str | None], KubernetesClient] = {}
        self._opening: dict[tuple[str | None, str | None], threading.Lock] = {}
        self._protocols: dict[tuple[str | None, str | None], str] = {}
        self._known: dict[Pod, float] = {}
        self._open: dict[Channel, Pod] = {}
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

    def drop(self, node: NodeState) -> None:
        """End the streams of a pod that stopped answering, or will not be needed again."""
        pod = Pod.of(node)
        with self._guard:
            self._known.pop(pod, None)
            channels = [channel for channel, of in self._open.items() if of == pod]
        for channel in channels:
            channel.hang_up()

    def close(self) -> None:
        self._closed = True
        self.hang_up()

    def hang_up(self) -> None:
        """End every stream; the next command opens a new one."""
        with self._guard:
            channels = list(self._open)
            clients = list(self._clients.values())
            self._clients.clear()
            self._known.clear()
        for channel in channels:
            channel.hang_up()
        for client in clients:
            client.close()

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

    def _patience(self, connect_s: float | None = None, total_s: float | None = None) -> _Patience:
        return _Patience(
            self._connect_timeout_s if connect_s is None else connect_s,
            self._deadline_s if total_s is None else total_s,
        )

    def _retried(self, node: NodeState, pod: Pod, patience: _Patience, once: Callable[[], Any]) -> Any:
        """`once` until its stream is open, as long as `patience` lasts.

        What raises a HostUnreachable itself is not tried again: its command may have begun.
        """
        pause = 0.2
        while True:
            try:
                return once()
            except PodGone:
                raise
            except HostUnreachable as error:
                if not isinstance(error, NotYet):
                    self._forget(pod)
                    self._look_after_loss(pod, patience, error)
                    raise
                failure: HostUnreachable = HostUnreachable(
                    error.summary, where=error.where, detail=error.detail, hint=error.hint
                )
            except NotStarted as error:
                self._forget(pod)
                failure = _unreachable(node, pod, "its container is not reached", str(error))
                self._look_after_loss(pod, patience, failure)
            except KubernetesError as error:
                self._forget(pod)
                failure = _of_cluster(node, pod, error)
                if isinstance(error, _FINAL):
                    raise failure from error
            pause = min(pause * 2, 5.0)
            wait = pause * random.uniform(0.5, 1.0)
            if self._closed or patience.once or wait >= patience.left:
                raise failure
            time.sleep(wait)

    def _look_after_loss(self, pod: Pod, patience: _Patience, error: HostUnreachable) -> None:
        """Raise PodGone where a lost connection is that of a pod that is no more; say so where the cluster
        hears nothing of its node either."""
        if self._closed:
            return
        try:
            document = self._look(pod, patience)
        except PodGone as gone:
            gone.detail = "; ".join(filter(None, (gone.detail, error.detail)))
            raise gone from error
        except (HostUnreachable, KubernetesError):
            return
        error.detail = with_silence(document, error.detail)

    def _refuse_killed(self, pod: Pod, patience: _Patience) -> None:
        """Raise PodGone where a command was killed with its pod, as deleting one does."""
        try:
            document = self._look(pod, patience)
        except (NotYet, KubernetesError):
            return
        if (document.get("metadata") or {}).get("deletionTimestamp"):
            self._forget(pod)
            raise PodGone(
                f"{pod.where} is being deleted, and killed a command",
                where=pod.where,
                reason="Deleted",
                taken=True,
            )

    def _forget(self, pod: Pod) -> None:
        with self._guard:
            self._known.pop(pod, None)

    @contextmanager
    def _exec(
        self, pod: Pod, ask: Ask, patience: _Patience, *, terminal: bool = False
    ) -> Iterator[tuple[Channel, ExecRequest]]:
        def query(protocol: str) -> list[tuple[str, str]]:
            return ask(protocol == V5).query(pod.container, terminal=terminal)

        channel, protocol = self._dial(pod, "exec", query, patience, (V5, V4))
        with self._guard:
            self._open[channel] = pod
        try:
            yield channel, ask(protocol == V5)
        finally:
            with self._guard:
                self._open.pop(channel, None)
            channel.close()

    def _dial(
        self,
        pod: Pod,
        verb: str,
        query: Callable[[str], list[tuple[str, str]]],
        patience: _Patience,
        protocols: tuple[str, ...],
    ) -> tuple[Channel, str]:
        """A stream of the first of these protocols that the cluster has. Raises PodGone, KubernetesError."""
        client = self._client(pod)
        key = (pod.kubeconfig, pod.context)
        if time.monotonic() - self._known.get(pod, -KNOWN_S) >= KNOWN_S:
            self._look(pod, patience)
        known = self._protocols.get(key)
        chosen = (known,) if known in protocols else protocols
        for protocol in chosen:
            try:
                channel = open_channel(
                    client.login, pod.path(verb), query(protocol), protocol, patience.for_connect
                )
            except (NotFound, Invalid):
                self._look(pod, patience)
                raise
            except ProtocolRefused:
                if protocol == chosen[-1]:
                    raise
                continue
            except (ClusterUnreachable, ServerError) as error:
                with suppress(KubernetesError):
                    error.detail = with_silence(self._look(pod, patience), error.detail)
                raise
            if len(protocols) > 1:
                self._protocols[key] = protocol
            return channel, protocol
        raise AssertionError("there is a protocol")

    def _client(self, pod: Pod) -> KubernetesClient:
        """The client of a pod's cluster. Raises BadKubeconfig."""
        key = (pod.kubeconfig, pod.context)
        with self._guard:
            if key in self._clients:
                return self._clients[key]
            turn = self._opening.setdefault(key, threading.Lock())
        with turn:
            with self._guard:
                if key in self._clients:
                    return self._clients[key]
            made = KubernetesClient.open(pod.kubeconfig, pod.context)
            with self._guard:
                self._clients[key] = made
            return made

    def _look(self, pod: Pod, patience: _Patience) -> Doc:
        """Ask whether it is this pod, and its container runs. Raises PodGone, NotYet, KubernetesError."""
        try:
            document = self._client(pod).look(pod.path(), patience.for_connect)
        except NotFound as error:
            raise PodGone(
                f"{pod.where} is gone",
                where=pod.where,
                detail="its cluster has no such pod any more",
                reason="Deleted",
                taken=True,
            ) from error
        refuse_gone(pod, document)
        with self._guard:
            self._known[pod] = time.monotonic()
        return document


# Errors that another try would only repeat.
_FINAL = (BadKubeconfig, CertificateRefused, Unauthorized, Forbidden, ProtocolRefused)


class _Patience:
    """How long one call may try: as often as fits into `total_s`, or once where that is 0."""

    def __init__(self, connect_s: float, total_s: float) -> None:
        self._connect_s = connect_s
        self._ends = time.monotonic() + (total_s or connect_s)
        self.once = not total_s

    @property
    def left(self) -> float:
        return self._ends - time.monotonic()

    @property
    def for_connect(self) -> float:
        """Seconds that the next attempt may take."""
        return min(self._connect_s, max(0.5, self.left))


def _of_cluster(node: NodeState, pod: Pod, error: KubernetesError) -> HostUnreachable:
    """The error of a node for what its cluster refuses; a login that is refused is told from silence."""
    kind = LoginRefused if isinstance(error, (BadKubeconfig, Unauthorized, Forbidden)) else HostUnreachable
    detail = f"{error.summary}: {error.detail}" if error.detail else error.summary
    return kind(
        f"node {node.name} cannot be reached", where=error.where or pod.where, detail=detail, hint=error.hint
    )


def _unreachable(node: NodeState, pod: Pod, what: str, why: str) -> HostUnreachable:
    return HostUnreachable(
        f"node {node.name} cannot be reached",
        where=pod.where,
        detail=f"{what}: {why}" if why else what,
        hint="is the kubelet of its node up? `kubectl describe pod` tells",
    )


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
