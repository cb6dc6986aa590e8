"""A WebSocket with numbered streams: how an API server carries a command's input and output, and ports.

The first byte of each message is the number of its stream (`channel.k8s.io`). One thread may send while
another receives: the two share a socket that never blocks, and wait outside of the lock, for OpenSSL's
connections are not made for two threads at once. What the other side does not take holds up who sends, and no
message is kept whole: a sender's pace is its receiver's.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlencode

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from orch.runner.kubernetes.errors import ClusterUnreachable, KubernetesError, Unauthorized
from orch.runner.kubernetes.login import Login
from orch.runner.kubernetes.reach import dial, unreachable
from orch.runner.kubernetes.refusals import Asked, refusal, status_document

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
"""Streams of a command. `CLOSE` (v5 alone): its content is the number of a stream that has ended."""

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"

CHUNK = 1 << 15
PING_S = 10.0
# Who answers no ping for so long is gone. client-go waits as long.
SILENT_S = 60.0


class ChannelLost(Exception):
    """The connection ended in the middle, or nothing came over it for too long."""


class ProtocolRefused(KubernetesError):
    """The server opens a WebSocket, and not for this protocol."""


class Channel:
    """An open WebSocket. `closed`: the other side has said that this was all.

    `answers_pings`: who answers none is gone. Nobody knows that of one that was sent more than it may have
    read: the ping waits behind that.
    """

    def __init__(self, sock: socket.socket, connection: WSConnection, early: Sequence[Event] = ()) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._connection = connection
        self._lock = threading.Lock()
        self._out = bytearray()
        self._stream: int | None = None
        self._early = list(early)
        self._heard = self._pinged = time.monotonic()
        self._hung_up = self._unsendable = False
        self.closed = False
        self.answers_pings = True

    def send(self, stream: int, content: bytes | memoryview) -> None:
        """Send all of it, at the other side's pace. Raises ChannelLost."""
        content = memoryview(content)
        for start in range(0, len(content) or 1, CHUNK):
            self._write(BytesMessage(bytes([stream]) + content[start : start + CHUNK]))

    def receive(self, timeout_s: float) -> list[tuple[int, bytes]]:
        """What came, in pieces, after waiting for at most `timeout_s`; empty where nothing did.

        Raises ChannelLost. After the other side has closed, it is empty at once.
        """
        if self._early:
            events, self._early = self._early, []
            return self._taken(events)
        if self.closed:
            return []
        data = self._read(timeout_s)
        if data is None:
            self._keep_alive()
            return []
        with self._lock:
            try:
                self._connection.receive_data(data or None)
                events = list(self._connection.events())
                answers = [
                    self._connection.send(each.response()) for each in events if isinstance(each, Ping)
                ]
            except (RemoteProtocolError, LocalProtocolError) as error:
                raise ChannelLost(f"it sent what is no WebSocket: {error}") from error
            self._out += b"".join(answers)
        self._pump_for_reader()
        self._heard = time.monotonic()
        return self._taken(events)

    def hang_up(self) -> None:
        """End the connection, whoever waits for it. May be called from any thread, and again."""
        if not self._hung_up:
            # Told where it can be told at once: the other side ends its command's input.
            with suppress(ChannelLost, LocalProtocolError, OSError):
                with self._lock:
                    if not self._out:
                        self._out += self._connection.send(CloseConnection(code=1000))
                self._pump()
        self._hung_up = True
        with self._lock, suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up and give the socket back. Nobody may use it any more."""
        self.hang_up()
        with self._lock:
            self._sock.close()

    def _taken(self, events: Sequence[Event]) -> list[tuple[int, bytes]]:
        pieces: list[tuple[int, bytes]] = []
        for event in events:
            if isinstance(event, CloseConnection):
                self.closed = True
            elif isinstance(event, (BytesMessage, TextMessage)):
                data = event.data.encode() if isinstance(event.data, str) else bytes(event.data)
                if self._stream is None and data:
                    self._stream, data = data[0], data[1:]
                if self._stream is not None and (data or event.message_finished):
                    pieces.append((self._stream, data))
                if event.message_finished:
                    self._stream = None
        return pieces

    def _read(self, timeout_s: float) -> bytes | None:
        """Bytes of the connection; None where none came in time. Raises ChannelLost at its end."""
        ends = time.monotonic() + timeout_s
        while True:
            wait = select.POLLIN
            with self._lock:
                if self._hung_up:
                    raise ChannelLost("it was closed here")
                try:
                    data = self._sock.recv(1 << 16)
                except (ssl.SSLWantReadError, BlockingIOError, InterruptedError):
                    data = None
                except ssl.SSLWantWriteError:
                    data, wait = None, select.POLLOUT
                except OSError as error:
                    raise ChannelLost(error.strerror or str(error)) from error
                if self._out:
                    wait |= select.POLLOUT
            if data:
                return data
            if data is not None:
                raise ChannelLost("the other side ended the connection")
            left = ends - time.monotonic()
            if left <= 0:
                return None
            self._wait(wait, left)
            self._pump_for_reader()

    def _write(self, event: Event) -> None:
        with self._lock:
            if self._hung_up or self.closed or self._unsendable:
                raise ChannelLost("it is closed")
            try:
                self._out += self._connection.send(event)
            except LocalProtocolError as error:
                raise ChannelLost("the other side has closed it") from error
        while not self._pump():
            self._wait(select.POLLOUT, 1.0)

    def _pump_for_reader(self) -> None:
        """Who reads goes on where nothing can be sent any more: how the command ended may yet come."""
        try:
            if self._out:
                self._pump()
        except ChannelLost:
            with self._lock:
                self._unsendable = True
                self._out.clear()

    def _pump(self) -> bool:
        """Send what can be sent at once; whether that was all. Raises ChannelLost."""
        with self._lock:
            while self._out:
                try:
                    sent = self._sock.send(self._out)
                except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError, InterruptedError):
                    if self._hung_up:
                        raise ChannelLost("it was closed here") from None
                    return False
                except OSError as error:
                    raise ChannelLost(error.strerror or str(error)) from error
                del self._out[:sent]
            return True

    def _wait(self, what: int, timeout_s: float) -> None:
        poll = select.poll()
        with suppress(OSError, ValueError):
            poll.register(self._sock.fileno(), what)
            poll.poll(min(timeout_s, 1.0) * 1000)

    def _keep_alive(self) -> None:
        """Ask whether the other side is there. Time in which nobody read does not count."""
        now = time.monotonic()
        if now - self._pinged >= PING_S:
            if self.answers_pings and self._pinged > self._heard and now - self._heard > SILENT_S:
                raise ChannelLost(f"nothing came for {SILENT_S:.0f} s, and no ping was answered")
            self._pinged = now
            with self._lock, suppress(LocalProtocolError):
                self._out += self._connection.send(Ping())
            self._pump_for_reader()


def open_channel(
    login: Login, path: str, query: Sequence[tuple[str, str]], protocol: str, timeout_s: float
) -> Channel:
    """A WebSocket to a path of the API, for one protocol.

    Raises ClusterUnreachable, ApiRefusal by its cause, ProtocolRefused where the server does not know the
    protocol, and what logging in raises. Credentials that are no longer taken are fetched again once.
    """
    shown = login.credentials()
    try:
        return _open(login, path, query, protocol, timeout_s)
    except Unauthorized:
        if login.credentials(refused=shown) is shown:
            raise
        return _open(login, path, query, protocol, timeout_s)


def _open(
    login: Login, path: str, query: Sequence[tuple[str, str]], protocol: str, timeout_s: float
) -> Channel:
    ends = time.monotonic() + timeout_s
    sock = dial(login, timeout_s)
    try:
        connection = WSConnection(ConnectionType.CLIENT)
        headers = [(b"User-Agent", b"orch")]
        if (authorization := login.credentials().authorization) is not None:
            headers.append((b"Authorization", authorization.encode()))
        request = Request(
            host=login.cluster.url.netloc,
            target=f"{login.cluster.url.path}{path}?{urlencode(query)}",
            subprotocols=[protocol],
            extra_headers=headers,
        )
        sock.sendall(connection.send(request))
        events = _answer(sock, connection, ends)
    except TimeoutError as error:
        sock.close()
        raise ClusterUnreachable(
            f"the API server does not open a stream within {timeout_s:.3g} s",
            where=login.where,
            hint="is the kubelet of the pod's node up? The API server waits for it",
        ) from error
    except (OSError, RemoteProtocolError) as error:
        sock.close()
        raise unreachable(login, error) from error
    first, *rest = events
    if isinstance(first, AcceptConnection) and first.subprotocol == protocol:
        return Channel(sock, connection, rest)
    sock.close()
    if not isinstance(first, RejectConnection):
        raise ProtocolRefused(f"the API server opens no stream of {protocol}", where=login.where)
    body = b"".join(bytes(each.data) for each in rest if isinstance(each, RejectData))
    document = status_document(body)
    if first.status_code in (400, 403, 406, 426, 501) and not document.get("reason"):
        raise ProtocolRefused(
            f"the API server opens no stream of {protocol}",
            where=login.where,
            detail=f"{first.status_code}: {document.get('message')}",
            hint="is a proxy in between that passes no WebSocket on, or is the cluster older than 1.30?",
        )
    # A WebSocket takes `get` and, since Kubernetes 1.35, `create`: it says only of the first that it lacks.
    raise refusal(Asked("POST", path, login.where, login.user), first.status_code, document)


def _answer(sock: socket.socket, connection: WSConnection, ends: float) -> list[Event]:
    """The events of a handshake: accepted, with what came right behind; or refused, with the whole text."""
    events: list[Event] = []
    while True:
        left = ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        data = sock.recv(1 << 16)
        connection.receive_data(data or None)
        events += connection.events()
        if events and isinstance(events[0], AcceptConnection):
            return events
        refused = bool(events) and isinstance(events[0], RejectConnection)
        if refused and (_is_whole(events) or not data or len(events) > 100):
            return events
        if not data:
            raise ConnectionResetError("the connection ended before an answer")


def _is_whole(events: Sequence[Event]) -> bool:
    first, last = events[0], events[-1]
    assert isinstance(first, RejectConnection)
    return not first.has_body or (isinstance(last, RejectData) and last.body_finished)
