"""A peer that does not read harms nobody but itself.

The bounds are counts: what the broker may have written ahead for the stalled peer (buffers of the
kernel on both sides and its own) is far below the flood, and the rest must still be in the queue.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from warren.compat_tests.methods import encode_method
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import METHOD, PATIENCE_S, frame_bytes

BODY_BYTES = 64 * 1024
FLOOD = 1000
"""64 MB in all."""

AHEAD_MAX = FLOOD // 4
"""Messages that may be on their way to the stalled peer: 16 MB."""

ROUND_TRIPS = 2000
MB = 1 << 20


def flood(channel: RawChannel, queue: str, count: int = FLOOD) -> None:
    """Publish with a confirm for each message, so that all of it has arrived on return."""
    channel.call("confirm.select")
    for start in range(0, count, 100):
        for number in range(start, start + 100):
            channel.publish(b"%06d" % number + bytes(BODY_BYTES - 6), queue)
        channel.confirms(100)


def number_of(body: bytes) -> int:
    return int(body[:6])


def stalled_consumer(
    connect: Callable[..., RawClient], server: Any, queue: str, no_ack: bool
) -> RawChannel:
    """A consumer whose socket nobody reads any more."""
    channel = connect(server).channel()
    channel.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    channel.consume(queue, no_ack=no_ack)
    return channel


@pytest.mark.parametrize("no_ack", [True, False])
def test_a_stalled_consumer_slows_nobody_and_its_messages_stay_in_the_queue(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], no_ack: bool
) -> None:
    server = start_server()
    publisher, other = connect(server).channel(), connect(server).channel()
    publisher.declare("flooded")
    stalled_consumer(connect, server, "flooded", no_ack)
    queue = other.own_queue()
    other.consume(queue, no_ack=True)
    before = server.rss_bytes

    flood(publisher, "flooded")
    for number in range(ROUND_TRIPS):
        # A round trip and a delivery from another queue, each within the usual patience.
        other.publish(b"%d" % number, queue)
        assert other.delivery().body == b"%d" % number

    assert publisher.ready("flooded") >= FLOOD - AHEAD_MAX
    # The messages themselves, once, and what the broker allocates around them.
    assert server.rss_bytes - before < FLOOD * BODY_BYTES + 48 * MB


def test_a_stalled_consumer_on_a_queue_full_already_is_not_handed_all_of_it(
    start_server: Callable[..., Any], connect: Callable[..., RawClient]
) -> None:
    server = start_server()
    channel = connect(server).channel()
    channel.declare("full")
    flood(channel, "full")
    stalled_consumer(connect, server, "full", no_ack=True)
    for _ in range(ROUND_TRIPS):
        channel.ping()
    assert channel.ready("full") >= FLOOD - AHEAD_MAX


def test_a_consumer_that_reads_again_gets_everything_in_order(
    start_server: Callable[..., Any], connect: Callable[..., RawClient]
) -> None:
    server = start_server()
    channel = connect(server).channel()
    channel.declare("flooded")
    consumer = stalled_consumer(connect, server, "flooded", no_ack=False)
    flood(channel, "flooded")
    received = []
    for _ in range(FLOOD):
        message = consumer.delivery()
        received.append(number_of(message.body))
        consumer.ack(message["delivery_tag"])
    assert received == list(range(FLOOD))
    consumer.ping()
    assert channel.ready("flooded") == 0


def test_a_healthy_consumer_of_the_same_queue_gets_what_the_stalled_one_does_not_take(
    start_server: Callable[..., Any], connect: Callable[..., RawClient]
) -> None:
    server = start_server()
    channel, healthy = connect(server).channel(), connect(server).channel()
    channel.declare("shared")
    stalled = stalled_consumer(connect, server, "shared", no_ack=False)
    flood(channel, "shared")
    left = channel.ready("shared")
    assert left >= FLOOD - AHEAD_MAX
    healthy.consume("shared", no_ack=True)
    received = {number_of(healthy.delivery().body) for _ in range(left)}
    assert len(received) == left

    # The stalled one dies, and what it held goes to the healthy one.
    stalled.client.abandon()
    received |= {number_of(healthy.delivery().body) for _ in range(FLOOD - left)}
    assert received == set(range(FLOOD))


def test_a_publisher_that_does_not_read_its_returns_is_read_no_further(
    start_server: Callable[..., Any], connect: Callable[..., RawClient]
) -> None:
    """Every unroutable message comes back: without a limit the broker would keep them all."""
    server = start_server()
    before = server.rss_bytes
    deaf = connect(server).channel()
    deaf.client.socket.settimeout(PATIENCE_S / 4)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 400:
            deaf.publish(bytes(MB), "nowhere", mandatory=True)
            sent += 1
    assert server.rss_bytes - before < 100 * MB
    # Nobody else notices.
    other = connect(server).channel()
    for _ in range(ROUND_TRIPS):
        other.ping()


def test_a_publisher_that_sends_all_before_it_reads_is_served(
    start_server: Callable[..., Any], connect: Callable[..., RawClient]
) -> None:
    """The limit is not so tight that a client of one thread locks itself out."""
    server = start_server()
    channel = connect(server).channel()
    for number in range(120):
        channel.publish(b"%06d" % number + bytes(BODY_BYTES - 6), "nowhere", mandatory=True)
    for number in range(120):
        assert number_of(channel.expect("basic.return").body) == number


def test_a_client_that_does_not_read_small_replies_is_read_no_further(
    start_server: Callable[..., Any], connect: Callable[..., RawClient]
) -> None:
    server = start_server()
    before = server.rss_bytes
    deaf = connect(server).channel()
    name = "q" * 250
    deaf.declare(name)
    request = frame_bytes(
        METHOD, deaf.number, encode_method("queue.declare", {"queue": name, "passive": True})
    )
    deaf.client.socket.settimeout(PATIENCE_S / 4)
    with pytest.raises(TimeoutError):
        for _ in range(80):
            deaf.client.send_bytes(request * (MB // len(request)))
    assert server.rss_bytes - before < 64 * MB
