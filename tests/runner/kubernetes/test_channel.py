"""A WebSocket with numbered streams, over a pair of sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Request

from orch.runner.kubernetes.streams.channel import STATUS, STDIN, STDOUT, V5, Channel, ChannelLost

WAIT_S = 30.0


class Peer:
    """The other side of a channel."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair()
        client, self.protocol = WSConnection(ConnectionType.CLIENT), WSConnection(ConnectionType.SERVER)
        self.protocol.receive_data(client.send(Request(host="h", target="/", subprotocols=[V5])))
        list(self.protocol.events())
        client.receive_data(self.protocol.send(AcceptConnection(subprotocol=V5)))
        list(client.events())
        self.channel = Channel(ours, client)

    def say(self, *events: BytesMessage | CloseConnection | Ping) -> None:
        self.socket.sendall(b"".join(self.protocol.send(event) for event in events))


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.channel.close()
    peer.socket.close()


def received(channel: Channel) -> list[tuple[int, bytes]]:
    pieces: list[tuple[int, bytes]] = []
    while not channel.closed:
        pieces += channel.receive(WAIT_S)
    return pieces


def test_messages_come_in_pieces_with_the_number_of_their_stream(peer: Peer) -> None:
    first = BytesMessage(data=b"\x01one", message_finished=False)
    peer.say(first, BytesMessage(data=b" more"), BytesMessage(data=b"\x02"), BytesMessage(data=b"\x03{}"))
    peer.say(CloseConnection(code=1000))
    assert received(peer.channel) == [(1, b"one"), (1, b" more"), (2, b""), (3, b"{}")]


def test_how_it_ended_is_read_also_where_nothing_can_be_sent_any_more(peer: Peer) -> None:
    def feed() -> None:
        with suppress(ChannelLost):
            while True:
                peer.channel.send(STDIN, b"x" * (1 << 20))

    feeder = threading.Thread(target=feed)
    feeder.start()
    got: list[tuple[int, bytes]] = []
    reader = threading.Thread(target=lambda: got.extend(received(peer.channel)))
    peer.say(BytesMessage(data=bytes([STDOUT]) + b"ready"))
    reader.start()
    reader.join(0.3)  # it waits by now, with the feeder
    # It reads nothing of the input, tells how it ended, and is gone.
    peer.say(BytesMessage(data=bytes([STATUS]) + b"ended"), CloseConnection(code=1000))
    peer.socket.close()
    reader.join(WAIT_S)
    peer.channel.hang_up()
    feeder.join(WAIT_S)
    assert got == [(STDOUT, b"ready"), (STATUS, b"ended")]


def test_a_ping_is_answered_while_an_input_waits(peer: Peer) -> None:
    sent = threading.Thread(target=lambda: peer.channel.send(STDIN, b"x" * (4 << 20)))
    sent.start()
    peer.say(Ping(payload=b"there?"))
    assert peer.channel.receive(WAIT_S) == []
    total, answers = 0, []
    while total < (4 << 20) or not answers:
        peer.protocol.receive_data(peer.socket.recv(1 << 16))
        for event in peer.protocol.events():
            if isinstance(event, BytesMessage):
                total += len(event.data) - (1 if event.message_finished else 0)
            else:
                answers.append(type(event).__name__)
    sent.join(WAIT_S)
    assert (total, answers) == (4 << 20, ["Pong"])


def test_an_end_without_a_word_is_a_loss(peer: Peer) -> None:
    peer.socket.close()
    with pytest.raises(ChannelLost, match="ended the connection"):
        peer.channel.receive(WAIT_S)
    with pytest.raises(ChannelLost):
        peer.channel.send(STDIN, b"x" * (1 << 16))


def test_what_is_no_websocket_is_an_end_without_a_word(peer: Peer) -> None:
    peer.socket.sendall(b"\xff" * 100)
    assert received(peer.channel) == []
    with pytest.raises(ChannelLost, match="is closed"):
        peer.channel.send(STDIN, b"x")


def test_hanging_up_wakes_who_waits(peer: Peer) -> None:
    lost: list[str] = []

    def wait() -> None:
        try:
            received(peer.channel)
        except ChannelLost as error:
            lost.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    peer.channel.hang_up()
    peer.channel.hang_up()
    thread.join(WAIT_S)
    assert len(lost) == 1
