"""While a node recovers its messages, clients are told so; then the ports are free for it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import kombu
import pika
import pytest
import uvloop

from warren.amqp.starting import StartingListener
from warren.compat_tests.methods import encode_method
from warren.compat_tests.raw_client import RawClient
from warren.compat_tests.raw_connection import (
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    frame_bytes,
)
from warren.core.node import default_server_properties

TEXT = "node is starting, 42 % of its messages are recovered"
PATIENCE_S = 30


class StartingNode:
    """A `StartingListener` in a loop and thread of its own."""

    def __init__(self, patience_s: float) -> None:
        self.text = TEXT
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._listener = StartingListener(
            default_server_properties("1.2.3", "Python"), lambda: self.text, patience_s=patience_s
        )
        self.port: int = self.run(self._listener.listen("127.0.0.1", 0))

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def give_up_the_port(self) -> None:
        self.run(self._listener.close())

    def end(self) -> None:
        self.give_up_the_port()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def starting_node() -> Iterator[Callable[..., StartingNode]]:
    made: list[StartingNode] = []

    def make(patience_s: float = PATIENCE_S) -> StartingNode:
        made.append(StartingNode(patience_s))
        return made[-1]

    yield make
    for node in made:
        node.end()


@pytest.fixture
def node(starting_node: Callable[..., StartingNode]) -> StartingNode:
    return starting_node()


@pytest.fixture
def say(node: StartingNode) -> Iterator[Callable[..., socket.socket]]:
    """Opens a socket and says these octets, one piece after the other."""
    opened: list[socket.socket] = []

    def connect_and_say(*pieces: bytes) -> socket.socket:
        one = socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.append(one)
        for piece in pieces:
            one.sendall(piece)
        return one

    yield connect_and_say
    for one in opened:
        one.close()


def everything(one: socket.socket) -> bytes:
    """What comes until the other side ends it, in whatever way."""
    octets = b""
    try:
        while data := one.recv(65536):
            octets += data
    except ConnectionResetError:
        pass
    return octets


def test_pika_is_told_why_it_cannot_come_in(node: StartingNode) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as raised:
        pika.BlockingConnection(pika.URLParameters(node.url))
    assert f"ConnectionClosedByBroker: (320) 'CONNECTION_FORCED - {TEXT}'" in str(raised.value)


def test_py_amqp_is_told_why_it_cannot_come_in(node: StartingNode) -> None:
    connection = kombu.Connection(node.url, heartbeat=0)
    with pytest.raises(amqp.exceptions.ConnectionForced, match=TEXT) as raised:
        connection.connect()
    assert raised.value.reply_code == 320


def test_every_client_hears_how_far_the_node_is_by_then(
    node: StartingNode, connect: Callable[..., RawClient]
) -> None:
    for text in ("node is starting", TEXT):
        node.text = text
        client = connect(node, handshake=False)
        start = client.start()
        assert start["server_properties"]["product"] == "RabbitMQ"
        assert b"PLAIN" in start["mechanisms"]
        client.send_start_ok()
        client.tune()
        client.send_method(0, "connection.open", virtual_host="/")
        client.expect_close(320, text, (0, 0))
        client.expect_socket_closed()


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
def test_what_a_client_says_may_come_in_pieces_or_at_once(
    say: Callable[..., socket.socket], piece_bytes: int
) -> None:
    heartbeat = frame_bytes(HEARTBEAT, 0, b"")
    start_ok = {"mechanism": "PLAIN", "response": b"\0guest\0\xce", "locale": "en_US"}
    tune_ok = {"channel_max": 2047, "frame_max": 131072, "heartbeat": 0}
    said = PROTOCOL_HEADER + b"".join(
        [
            frame_bytes(METHOD, 0, encode_method("connection.start-ok", start_ok)),
            frame_bytes(METHOD, 0, encode_method("connection.tune-ok", tune_ok)),
            heartbeat,
            frame_bytes(METHOD, 0, encode_method("connection.open", {"virtual_host": "/"})),
        ]
    )
    one = say(*(said[at : at + piece_bytes] for at in range(0, len(said), piece_bytes)))
    assert TEXT.encode() in everything(one)


def test_half_a_header_waits_for_the_other_half(
    say: Callable[..., socket.socket], connect: Callable[..., RawClient], node: StartingNode
) -> None:
    one = say(b"AMQ", b"P\0\0")
    connect(node, handshake=False).start()
    one.sendall(b"\x09\x01")
    assert one.recv(1) == b"\x01", "a method frame"


@pytest.mark.parametrize(
    "header", [b"AMQP\0\1\0\0", b"AMQP\1\1\0\x0a", b"GET / HTTP/1.1\r\n", b"x"]
)
def test_another_protocol_is_answered_with_ours(
    say: Callable[..., socket.socket], header: bytes
) -> None:
    assert everything(say(header)) == PROTOCOL_HEADER


def test_garbage_without_end_is_cut_off(
    say: Callable[..., socket.socket], connect: Callable[..., RawClient], node: StartingNode
) -> None:
    one = say(PROTOCOL_HEADER)
    assert one.recv(1)
    try:
        one.sendall(b"\0" * (1 << 20))
    except ConnectionError:
        pass
    everything(one)
    connect(node, handshake=False).start()


def test_the_silent_are_cut_off(starting_node: Callable[..., StartingNode]) -> None:
    node = starting_node(patience_s=0.05)
    for said in (b"", b"AMQP", PROTOCOL_HEADER):
        with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S) as one:
            one.sendall(said)
            everything(one)


def test_clients_that_vanish_do_no_harm(
    say: Callable[..., socket.socket], connect: Callable[..., RawClient], node: StartingNode
) -> None:
    for _ in range(20):
        say(PROTOCOL_HEADER).close()
        say().close()
    connect(node, handshake=False).start()


def test_the_port_is_free_afterwards_while_clients_still_talk(
    node: StartingNode, connect: Callable[..., RawClient]
) -> None:
    client = connect(node, handshake=False)
    client.start()
    node.give_up_the_port()

    async def listen() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", node.port)
        server.close()
        await server.wait_closed()

    node.run(listen())
    client.send_start_ok()
    client.tune()
    client.send_method(0, "connection.open", virtual_host="/")
    client.expect_close(320, TEXT)
