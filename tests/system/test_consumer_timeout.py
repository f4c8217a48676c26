"""Who holds a message too long without acknowledging it loses the channel.

The broker looks once a minute; the embedded one of these tests is told to look more often.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator

import pytest

import warren.amqp.delivery_timeout
from warren import Broker
from warren.compat_tests.raw_client import RawClient

TIMEOUT_MS = 500
TICK_S = 0.05


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(warren.amqp.delivery_timeout, "TICK_S", TICK_S)
    with Broker(consumer_timeout_ms=TIMEOUT_MS) as broker:
        yield broker


def timed_out(number: int) -> str:
    return (
        f"delivery acknowledgement on channel {number} timed out. Timeout value used: "
        f"{TIMEOUT_MS} ms. This timeout value can be configured, see consumers doc guide to learn "
        "more"
    )


@pytest.mark.parametrize("by", ["consume", "get"])
def test_a_message_held_too_long_closes_the_channel_and_goes_back(
    broker: Broker, connect: Callable[..., RawClient], by: str
) -> None:
    client = connect(broker)
    holder, other = client.channel(), client.channel()
    queue = holder.own_queue()
    holder.publish(b"held", queue)
    if by == "consume":
        holder.consume(queue)
        holder.delivery(b"held")
    else:
        holder.got(queue, b"held", no_ack=False)
    holder.expect_close(406, timed_out(holder.number), (0, 0))
    # The connection and its other channels go on, and the message is there for them.
    message = other.got(queue, b"held")
    assert message["redelivered"]
    client.close()


def test_who_acknowledges_in_time_keeps_the_channel(
    broker: Broker, connect: Callable[..., RawClient]
) -> None:
    """It always holds some message, but none for long, while another client is timed out."""
    busy, idle = connect(broker).channel(), connect(broker).channel()
    queue, idle_queue = busy.own_queue(), idle.own_queue()
    idle.publish(b"held", idle_queue)
    idle.got(idle_queue, b"held", no_ack=False)
    busy.publish(b"first", queue)
    busy.consume(queue)
    held = busy.delivery()
    while idle.client.socket not in select.select([idle.client.socket], [], [], 0.01)[0]:
        busy.publish(b"next", queue)
        following = busy.delivery()
        busy.ack(held["delivery_tag"])
        held = following
    idle.expect_close(406, timed_out(idle.number))
    busy.ping()
    for channel in (busy, idle):
        channel.client.close()


def test_messages_that_need_no_acknowledgement_are_never_held(
    broker: Broker, connect: Callable[..., RawClient]
) -> None:
    client = connect(broker)
    automatic, holder = client.channel(), client.channel()
    queue = automatic.own_queue()
    automatic.consume(queue, no_ack=True)
    automatic.publish(b"x", queue)
    automatic.delivery(b"x")
    held = holder.own_queue()
    holder.publish(b"held", held)
    holder.got(held, no_ack=False)
    holder.expect_close(406, timed_out(holder.number))
    automatic.ping()
    client.close()


def test_without_a_timeout_messages_may_be_held(
    connect: Callable[..., RawClient], broker: Broker
) -> None:
    with Broker(consumer_timeout_ms=None) as patient:
        clients = connect(patient), connect(broker)
        channels = []
        for client in clients:
            channel = client.channel()
            queue = channel.own_queue()
            channel.publish(b"held", queue)
            held = channel.got(queue, b"held", no_ack=False)
            channels.append(channel)
        # The other broker's client held its message for as long.
        channels[1].expect_close(406, timed_out(1))
        channels[0].ack(held["delivery_tag"])
        channels[0].ping()
        for client in clients:
            client.close()
