"""Ports of this machine that lead to ports of pods: each connection is a stream of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from orch.runner.errors import RunnerError
from orch.runner.kubernetes.streams.channel import CHUNK, Channel, ChannelLost

DATA, ERRORS = 0, 1
"""Streams of the one port of a channel. The first two bytes of each are the port's number."""


# How long a client that sends no more, and may have gone, is kept where nothing comes for it.
LINGER_S = 30.0


@contextmanager
def forwarded(
    open_channel: Callable[[], Channel],
    port: int,
    done: Callable[[Channel], None],
    listener: socket.socket | None = None,
) -> Iterator[int]:
    """A port of this machine's loopback while the block lasts; each connection to it gets a channel.

    `listener`: the socket to take connections from, any free port if not given; closed with the block. One
    whose channel is refused is closed, and the next one gets another try. `done` is told of a channel's end.
    """
    with listener or socket.create_server(("127.0.0.1", 0)) as server:
        links: set[_Link] = set()
        guard = threading.Lock()

        def serve(client: socket.socket) -> None:
            try:
                channel = open_channel()
            except RunnerError:
                client.close()
                return
            link = _Link(client, channel)
            with guard:
                links.add(link)
                late = over.is_set()
            if late:
                link.end()
            try:
                link.carry()
            finally:
                with guard:
                    links.discard(link)
                done(channel)

        def accept() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(client,), name="orch-forward", daemon=True).start()

        over = threading.Event()
        thread = threading.Thread(target=accept, name="orch-forward", daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # wakes `accept`
            thread.join(5.0)
            with guard:
                over.set()
                left = list(links)
            for link in left:
                link.end()


class _Link:
    """A client and its channel: what comes from one goes to the other, each direction in a thread."""

    def __init__(self, client: socket.socket, channel: Channel) -> None:
        self._client, self._channel = client, channel
        self._sent_all = False
        channel.answers_pings = False

    def carry(self) -> None:
        """Until one side has closed, or the port takes no connection."""
        up = threading.Thread(target=self._up, name="orch-forward", daemon=True)
        up.start()
        try:
            self._down()
        finally:
            self.end()
            up.join(5.0)
            self._channel.close()
            self._client.close()

    def end(self) -> None:
        """Have both sides end, whoever waits for them."""
        self._channel.hang_up()
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def _up(self) -> None:
        try:
            while data := self._client.recv(CHUNK):
                self._channel.send(DATA, data)
            self._sent_all = True
        except (OSError, ChannelLost):
            self.end()

    def _down(self) -> None:
        head = {DATA: 2, ERRORS: 2}
        heard = time.monotonic()
        with suppress(OSError, ChannelLost):
            while not self._channel.closed:
                pieces = self._channel.receive(1.0)
                if pieces or not self._sent_all:
                    heard = time.monotonic()
                elif time.monotonic() - heard > LINGER_S:
                    return
                for stream, data in pieces:
                    skipped = min(head.get(stream, 0), len(data))
                    if skipped:
                        head[stream] -= skipped
                    content = data[skipped:]
                    if stream == ERRORS and content:
                        return
                    if stream == DATA and content:
                        self._client.sendall(content)
