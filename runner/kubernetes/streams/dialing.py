"""Streams to pods, opened as long as a call's patience lasts, and ended when their pod is dropped."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from orch.runner.errors import HostUnreachable, LoginRefused, PodGone
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
)
from orch.runner.kubernetes.pod_state import NotYet, Pod, refuse_gone, with_silence
from orch.runner.kubernetes.streams.channel import V4, V5, Channel, ProtocolRefused, open_channel
from orch.runner.kubernetes.streams.execution import ExecRequest, NotStarted
from orch.runner.kubernetes.transport import Doc
from orch.spec.state import NodeState

# A pod that was the right one so long ago still is: names of pods of a job are not given again.
KNOWN_S = 10.0

Ask = Callable[[bool], ExecRequest]
"""How a command is asked for, given whether the protocol can tell the end of its input."""

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


class PodStreams:
    """Opens and ends streams. Thread-safe; the clients of clusters and what is known of pods are kept."""

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
