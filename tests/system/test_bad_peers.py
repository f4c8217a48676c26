"""What peers do that no decent client would: the broker serves everybody else as before.

After each test the broker must have let go of every socket of the bad peers, serve a normal
client, and have logged no fault of its own.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from warren import Broker
from warren.compat_tests.field_table import Table
from warren.compat_tests.methods import encode_header, encode_method
from warren.compat_tests.raw_client import RawClient
from warren.compat_tests.raw_connection import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    SocketClosed,
    frame_bytes,
)

MB = 1 << 20
BODY_MAX = 131_072 - 8
CONFIG = "handshake_timeout = 1000\n"


@pytest.fixture
def server(
    start_server: Callable[..., Any], connect: Any, until: Callable[..., None]
) -> Iterator[Any]:
    """A server that must be as good as new after the test."""
    server = start_server(config=CONFIG)
    before = server.sockets
    yield server
    connect.abandon_all()
    assert server.process.poll() is None, (server.process.returncode, server.log)
    client = connect(server)
    channel = client.channel()
    queue = channel.own_queue()
    channel.publish(b"still here", queue)
    channel.got(queue, b"still here")
    client.close()
    until(lambda: server.sockets <= before)
    assert "Traceback" not in server.log and "internal_error" not in server.log
    assert server.terminate() == 0


def raw_socket(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def reset(peer: socket.socket) -> None:
    """End the connection with RST, as a crashed machine's kernel does."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def rest_of(peer: socket.socket) -> bytes:
    """All that comes until the broker ends the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := peer.recv(65536):
            received += data
    return received


def publish_head(channel: int, queue: str, body_size: int) -> bytes:
    """A publish up to its body."""
    method = encode_method("basic.publish", {"exchange": "", "routing_key": queue})
    header = encode_header({}, body_size)
    return frame_bytes(METHOD, channel, method) + frame_bytes(HEADER, channel, header)


def send_body(client: RawClient, channel: int, size: int) -> None:
    piece = frame_bytes(BODY, channel, bytes(BODY_MAX))
    for _ in range(size // BODY_MAX):
        client.send_bytes(piece)
    client.send_bytes(frame_bytes(BODY, channel, bytes(size % BODY_MAX)))


# Messages that are promised


@pytest.mark.parametrize("promised", [128 * MB, 10 * 1024 * MB])
def test_a_promised_message_takes_no_memory(
    server: Any, connect: Callable[..., RawClient], promised: int
) -> None:
    before = server.rss_bytes
    peers = [connect(server) for _ in range(20)]
    for peer in peers:
        channel = peer.channel()
        peer.send_bytes(publish_head(channel.number, "q", promised))
        # Another channel's round trip: all of it has been read.
        peer.channel().ping()
    assert server.rss_bytes - before < 32 * MB
    for peer in peers:
        peer.abandon()


def test_of_a_message_that_is_too_large_nothing_is_kept(
    server: Any, connect: Callable[..., RawClient]
) -> None:
    """The refusal comes when the message is complete, and the channel only is closed."""
    before = server.rss_bytes
    peer = connect(server)
    channel, other = peer.channel(), peer.channel()
    size = 200 * MB
    peer.send_bytes(publish_head(channel.number, "q", size))
    send_body(peer, channel.number, size - 1)
    other.ping()
    assert server.rss_bytes - before < 32 * MB
    peer.send_bytes(frame_bytes(BODY, channel.number, b"!"))
    channel.expect_close(
        406, f"message size {size} is larger than configured max size {128 * MB}", (60, 40)
    )
    other.ping()
    peer.close()


def test_messages_abandoned_half_way_are_forgotten(
    server: Any, connect: Callable[..., RawClient]
) -> None:
    before = server.rss_bytes
    for _ in range(6):
        peer = connect(server)
        channel = peer.channel()
        peer.send_bytes(publish_head(channel.number, "q", 128 * MB))
        send_body(peer, channel.number, 60 * MB)
        peer.channel().ping()
        peer.abandon()
    # One of them, and what the allocator keeps for the next.
    assert server.rss_bytes - before < 60 * MB + 100 * MB


def test_a_message_as_large_as_allowed_arrives(
    server: Any, connect: Callable[..., RawClient]
) -> None:
    peer = connect(server)
    channel = peer.channel()
    queue = channel.own_queue()
    channel.consume(queue, no_ack=True)
    peer.send_bytes(publish_head(channel.number, queue, 128 * MB))
    send_body(peer, channel.number, 128 * MB)
    left = 128 * MB
    peer.socket.settimeout(30)
    while left > 0:
        data = peer.socket.recv(MB)
        assert data, (server.process.poll(), server.log)
        left -= len(data)
    peer.abandon()


# Floods


def test_channels_beyond_the_limit_end_the_connection(
    server: Any, connect: Callable[..., RawClient]
) -> None:
    before = server.rss_bytes
    peer = connect(server)
    opens = [
        frame_bytes(METHOD, number, encode_method("channel.open", {}))
        for number in range(1, 65_536)
    ]
    peer.send_bytes(b"".join(opens))
    for number in range(1, 2048):
        peer.expect("channel.open-ok", number)
    peer.expect_close(
        530,
        "number of channels opened (2047) has reached the negotiated channel_max (2047)",
        (0, 0),
    )
    peer.expect_socket_closed()
    assert server.rss_bytes - before < 64 * MB


def test_a_flood_of_declares_leaves_others_their_turn(
    warren_broker: Broker, connect: Callable[..., RawClient]
) -> None:
    count = 20_000
    flooder, other = connect(warren_broker), connect(warren_broker).channel()
    channel = flooder.channel()
    declares = b"".join(
        frame_bytes(METHOD, channel.number, encode_method("queue.declare", {"queue": f"q{number}"}))
        for number in range(count)
    )

    def queues() -> int:
        return warren_broker.call(lambda node: len(node.vhosts["/"].queues))

    # In pieces, so that much of it is still to come while the other asks; that needs no clock.
    seen = []
    pieces = 20
    size = len(declares) // pieces + 1
    for start in range(0, len(declares), size):
        flooder.send_bytes(declares[start : start + size])
        other.ping()
        seen.append(queues())
    for number in range(count):
        assert channel.expect("queue.declare-ok", timeout_s=30)["queue"] == f"q{number}"
    assert queues() == count
    assert len([number for number in seen if number < count]) >= pieces // 2
    flooder.close()
    other.client.close()


def test_a_client_that_asks_for_much_at_once_leaves_others_their_turn(
    server: Any, connect: Callable[..., RawClient]
) -> None:
    """One asks for 100,000 round trips at once; another gets some of its own meanwhile.

    The broker is to work in slices of some milliseconds; this takes it a second in all.
    """
    greedy, other = connect(server).channel(), connect(server).channel()
    count = 100_000
    ping = frame_bytes(METHOD, greedy.number, encode_method("channel.flow", {"active": True}))
    pong = frame_bytes(METHOD, greedy.number, encode_method("channel.flow-ok", {"active": True}))
    greedy.client.socket.settimeout(60)
    # All of it fits into the buffers of the kernel.
    greedy.client.send_bytes(ping * count)
    left = count * len(pong)
    served = 0
    while left > 0:
        other.ping()
        served += 1
        with contextlib.suppress(BlockingIOError):
            left -= len(greedy.client.socket.recv(1 << 22, socket.MSG_DONTWAIT))
    assert served >= 25


def test_five_hundred_connections_that_die_in_the_middle_of_a_frame_leave_nothing(
    warren_broker: Broker,
    connect: Callable[..., RawClient],
    no_clients: Callable[[Broker], None],
) -> None:
    chance = random.Random(1)
    for number in range(500):
        peer = connect(warren_broker)
        channel = peer.channel()
        queue = channel.declare(f"own{number}", exclusive=True)["queue"]
        channel.consume(queue)
        whole = publish_head(1, queue, 1000) + frame_bytes(BODY, 1, bytes(1000))
        peer.send_bytes(whole[: chance.randrange(1, len(whole))])
        if chance.random() < 0.5:
            reset(peer.socket)
        else:
            peer.abandon()
    no_clients(warren_broker)
    assert warren_broker.call(lambda node: list(node.vhosts["/"].queues)) == []
    connect(warren_broker).close()


def test_connecting_and_hanging_up_costs_nothing(server: Any) -> None:
    for number in range(300):
        peer = raw_socket(server)
        if number % 3:
            peer.sendall(PROTOCOL_HEADER[: number % 9])
        reset(peer) if number % 2 else peer.close()


# Other languages


def test_a_browser_is_told_which_protocol_is_spoken(server: Any) -> None:
    with raw_socket(server) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert rest_of(peer) == PROTOCOL_HEADER


def test_a_tls_client_at_the_plain_port_is_hung_up_on(server: Any) -> None:
    with raw_socket(server) as peer:
        peer.sendall(bytes.fromhex("1603010200010001fc0303") + bytes(500))
        assert rest_of(peer) == PROTOCOL_HEADER


@pytest.mark.parametrize("seed", range(3))
def test_garbage_is_refused(server: Any, seed: int) -> None:
    """Random octets from the start, after the protocol header, and inside of frames."""
    chance = random.Random(seed)
    for number in range(60):
        with raw_socket(server) as peer:
            garbage = chance.randbytes(chance.randrange(8, 5000))
            if number % 3 == 1:
                garbage = PROTOCOL_HEADER + garbage
            elif number % 3 == 2:
                kind = chance.choice([METHOD, HEADER, BODY, HEARTBEAT])
                garbage = PROTOCOL_HEADER + frame_bytes(kind, chance.choice([0, 1]), garbage)
            # The broker may hang up before all is said.
            with contextlib.suppress(ConnectionError):
                peer.sendall(garbage)
                peer.shutdown(socket.SHUT_WR)
            rest_of(peer)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_frames_end_a_connection_in_order(
    server: Any, connect: Callable[..., RawClient], seed: int
) -> None:
    """A session recorded and sent with octets changed: closes, cuts, but no fault of ours."""
    chance = random.Random(seed)
    arguments: Table = {"x-max-length": 5, "x-table": {"list": [1, "two", {"three": 3}]}}
    session = b"".join(
        [
            frame_bytes(METHOD, 1, encode_method("channel.open", {})),
            frame_bytes(METHOD, 1, encode_method("confirm.select", {})),
            frame_bytes(
                METHOD,
                1,
                encode_method(
                    "queue.declare", {"queue": "q", "exclusive": True, "arguments": arguments}
                ),
            ),
            frame_bytes(
                METHOD,
                1,
                encode_method(
                    "queue.bind",
                    {"queue": "q", "exchange": "amq.headers", "arguments": {"a": 1}},
                ),
            ),
            frame_bytes(METHOD, 1, encode_method("basic.publish", {"exchange": "amq.headers"})),
            frame_bytes(
                HEADER,
                1,
                encode_header({"headers": {"a": 1}, "expiration": "60000", "priority": 1}, 4),
            ),
            frame_bytes(BODY, 1, b"body"),
            frame_bytes(METHOD, 1, encode_method("basic.consume", {"queue": "q"})),
            frame_bytes(METHOD, 1, encode_method("basic.ack", {"delivery_tag": 1})),
            frame_bytes(METHOD, 1, encode_method("channel.close", {"reply_code": 200})),
        ]
    )
    for _ in range(150):
        peer = connect(server)
        damaged = bytearray(session)
        for _ in range(chance.choice([1, 1, 1, 3])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        with contextlib.suppress(ConnectionError):
            peer.send_bytes(damaged)
            # Refused or not, the rest of what it has to say comes to an end.
            peer.socket.shutdown(socket.SHUT_WR)
        rest_of(peer.socket)
        peer.abandon()


# Depth


def nested(depth: int) -> Table:
    table: Table = {}
    for _ in range(depth):
        table = {"t": table}
    return table


def nested_octets(depth: int) -> bytes:
    """A table in a table in a table, as it stands on the wire."""
    octets = struct.pack(">I", 0)
    for _ in range(depth):
        inner = b"\x01tF" + octets
        octets = struct.pack(">I", len(inner)) + inner
    return octets


def test_deep_tables_in_arguments_are_refused_and_not_fallen_into(
    server: Any, connect: Callable[..., RawClient]
) -> None:
    for depth in (1000, 15_000):
        peer = connect(server)
        channel = peer.channel()
        declare = encode_method("queue.declare", {"queue": "q", "exclusive": True})
        assert declare.endswith(struct.pack(">I", 0))
        peer.send_bytes(frame_bytes(METHOD, channel.number, declare[:-4] + nested_octets(depth)))
        closed = peer.expect("connection.close")
        assert closed["reply_code"] == 501
        peer.abandon()


def test_deep_tables_in_headers_pass_through_untouched(
    server: Any, connect: Callable[..., RawClient]
) -> None:
    """Only where headers route must the broker look at them; these count as none."""
    peer = connect(server)
    channel = peer.channel()
    plain, by_headers = channel.own_queue(), channel.own_queue()
    channel.bind(by_headers, "amq.headers", "", {"t": 1, "x-match": "any"})
    channel.bind(by_headers, "amq.headers", "", {"x-match": "all", "u": 1})
    headers = nested_octets(1000)
    content = struct.pack(">HHQH", 60, 0, 0, 1 << 13) + headers
    channel.call("confirm.select")
    for exchange, key in (("amq.headers", ""), ("", plain)):
        publish = encode_method("basic.publish", {"exchange": exchange, "routing_key": key})
        peer.send_bytes(
            frame_bytes(METHOD, channel.number, publish)
            + frame_bytes(HEADER, channel.number, content)
        )
        assert channel.confirms(1)
    assert channel.ready(by_headers) == 0
    channel.send("basic.get", queue=plain, no_ack=True)
    peer.socket.settimeout(30)
    received = b""
    while content not in received:
        data = peer.socket.recv(65536)
        assert data
        received += data


def test_deep_client_properties_end_the_handshake(
    server: Any, connect: Callable[..., RawClient]
) -> None:
    peer = connect(server, handshake=False)
    peer.start()
    rest = b"\x05PLAIN" + struct.pack(">I", 12) + b"\0guest\0guest" + b"\x05en_US"
    peer.send_bytes(frame_bytes(METHOD, 0, struct.pack(">HH", 10, 11) + nested_octets(500) + rest))
    peer.expect_socket_closed()


# Idlers


@pytest.mark.parametrize("steps", range(5))
def test_who_dawdles_in_the_handshake_is_dropped(
    server: Any, connect: Callable[..., RawClient], steps: int
) -> None:
    """handshake_timeout is a second here; nothing is said, the socket just ends."""
    peer = connect(server, handshake=False)
    if steps == 1:
        peer.send_bytes(PROTOCOL_HEADER[:5])
    if steps >= 2:
        peer.start()
    if steps >= 3:
        peer.send_start_ok()
    if steps >= 4:
        peer.tune()
    if steps == 3:
        peer.expect("connection.tune")
    peer.expect_socket_closed()


def test_who_finished_the_handshake_is_not_dropped(
    server: Any, connect: Callable[..., RawClient]
) -> None:
    idle, waiting = connect(server), connect(server, handshake=False)
    channel = idle.channel()
    # A second passes, as another connection tells.
    waiting.expect_socket_closed()
    channel.ping()
    idle.close()


def test_a_client_that_speaks_one_octet_at_a_time_is_understood(
    server: Any, connect: Callable[..., RawClient]
) -> None:
    peer = connect(server)
    channel = peer.channel()
    queue = channel.own_queue()
    for octet in publish_head(channel.number, queue, 3) + frame_bytes(BODY, channel.number, b"abc"):
        peer.send_bytes(bytes([octet]))
    channel.got(queue, b"abc")
    peer.close()


def test_a_peer_that_answers_no_heartbeats_is_dropped(
    server: Any, connect: Callable[..., RawClient]
) -> None:
    peer = connect(server, heartbeat=1)
    with pytest.raises(SocketClosed):
        while True:
            peer.read_frame()
