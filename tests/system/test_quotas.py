"""What virtual hosts, users and queues may hold: refused to real clients with the limit's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_clients import publish_bytes

from warren import Broker
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.core.messages.stock import Stock

Connect = Callable[..., RawClient]


@pytest.fixture
def set_limits(warren_broker: Broker) -> Iterator[Callable[[dict[str, int]], None]]:
    """Sets the limits of the virtual host `/`; none are left afterwards."""

    def set_limits(limits: dict[str, int]) -> None:
        warren_broker.call(lambda node: node.vhost_limits.replace("/", limits))

    yield set_limits
    set_limits({})


def refused(channel: RawChannel, queue: str, limit: str) -> None:
    channel.expect_close(406, f"cannot publish to queue '{queue}' in vhost '/': {limit}")


def test_no_message_more_than_the_limit_is_taken_however_fast_they_come(
    warren_broker: Broker, connect: Connect, set_limits: Callable[[dict[str, int]], None]
) -> None:
    """All in one write: the batches of the fast path must stop at the same message."""
    set_limits({"max-messages": 1500})
    other = connect(warren_broker).channel()
    queue, second = other.own_queue(), other.own_queue()
    for _ in range(500):
        other.publish(b"there already", second)
    other.ping()
    publisher = connect(warren_broker).channel()
    publishes = [publish_bytes(1, queue, b"%d" % number) for number in range(2000)]
    publisher.client.send_bytes(b"".join(publishes))
    refused(publisher, queue, "message limit (1500) of vhost '/' is reached")
    assert other.bodies(queue) == [b"%d" % number for number in range(1000)]
    # There is room again.
    other.publish(b"more", queue)
    other.got(queue, b"more")


def test_octets_are_limited(
    warren_broker: Broker, connect: Connect, set_limits: Callable[[dict[str, int]], None]
) -> None:
    set_limits({"max-bytes": 10_000})
    channel = connect(warren_broker).channel()
    queue = channel.own_queue()
    for _ in range(10):
        channel.publish(bytes(1000), queue)
    channel.ping()
    channel.publish(b"x", queue)
    refused(channel, queue, "byte limit (10000) of vhost '/' is reached")


def test_each_queue_is_limited_and_the_others_go_on(
    warren_broker: Broker, connect: Connect, set_limits: Callable[[dict[str, int]], None]
) -> None:
    set_limits({"max-queue-messages": 10})
    other = connect(warren_broker).channel()
    full, empty = other.own_queue(), other.own_queue()
    other.declare_exchange("both-of-them", "fanout", auto_delete=True)
    for queue in (full, empty):
        other.bind(queue, "both-of-them", "")
    for _ in range(10):
        other.publish(b"x", full)
    to_both = connect(warren_broker).channel()
    to_both.publish(b"y", "", exchange="both-of-them")
    refused(to_both, full, "message limit (10) of queues in vhost '/' is reached")
    assert other.ready(empty) == 0
    other.publish(b"z", empty)
    other.got(empty, b"z")


def test_what_a_user_has_declared_is_limited_whoever_publishes(
    warren_broker: Broker, connect: Connect
) -> None:
    def add_user(node: Any) -> None:
        node.access.add_user("tenant", "tenant")
        node.access.set_permissions("tenant", "/", ".*", ".*", ".*")
        node.access.set_user_limits("tenant", {"max-messages": 5})

    warren_broker.call(add_user)
    try:
        tenant = connect(warren_broker, user="tenant", password="tenant").channel()
        theirs = tenant.own_queue()
        other = connect(warren_broker).channel()
        ours = other.own_queue()
        for _ in range(5):
            other.publish(b"x", theirs)
        for _ in range(20):
            other.publish(b"x", ours)
        other.ping()
        other.publish(b"x", theirs)
        refused(other, theirs, "message limit (5) of user 'tenant' is reached")
    finally:
        warren_broker.call(lambda node: node.access.delete_user("tenant"))


def test_a_transaction_that_would_exceed_a_limit_is_refused_as_a_whole(
    warren_broker: Broker, connect: Connect, set_limits: Callable[[dict[str, int]], None]
) -> None:
    set_limits({"max-messages": 10})
    other = connect(warren_broker).channel()
    queue = other.own_queue()
    for fits, count in ((True, 10), (False, 11)):
        channel = connect(warren_broker).channel()
        channel.call("tx.select")
        for _ in range(count):
            channel.publish(b"x", queue)
        if fits:
            channel.call("tx.commit")
            assert len(other.bodies(queue)) == 10
        else:
            channel.send("tx.commit")
            refused(channel, queue, "message limit (10) of vhost '/' is reached")
            assert other.ready(queue) == 0


def test_a_dead_letter_is_never_refused(
    warren_broker: Broker, connect: Connect, set_limits: Callable[[dict[str, int]], None]
) -> None:
    channel = connect(warren_broker).channel()
    dead = channel.own_queue()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = channel.own_queue(**arguments)
    for _ in range(3):
        channel.publish(b"x", queue)
    channel.ping()
    set_limits({"max-queue-messages": 0})
    channel.consume(queue)
    for _ in range(3):
        channel.reject(channel.delivery(b"x")["delivery_tag"], requeue=False)
    channel.becomes_ready(dead, 3)
    assert warren_broker.call(lambda node: node.vhosts["/"].queues[dead].stock()) == Stock(3, 3)
