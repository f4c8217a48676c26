"""While a resource runs short publishers wait, and nobody else does.

The alarm is that of another node, which counts here too: our own monitors would clear ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from raw_clients import publish_bytes

from warren import Broker
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import (
    Silence,
    SocketClosed,
)
from warren.core.resources.alarms import Resource
from warren.core.resources.growth import ALWAYS
from warren.core.resources.memory_monitor import Absolute

ELSEWHERE = "warren@elsewhere"
MEMORY, DISK = Resource.MEMORY, Resource.DISK


def alarm(broker: Broker, resource: Resource, short: bool) -> None:
    broker.call(lambda node: node.alarms.report(resource, short, ELSEWHERE))


def blocked_publisher(broker: Broker, connect: Callable[..., RawClient], queue: str) -> RawChannel:
    """A publisher that has published during the memory alarm, and has been told."""
    channel = connect(broker).channel()
    channel.publish(b"0", queue)
    assert channel.client.expect("connection.blocked")["reason"] == "low on memory"
    return channel


def test_a_publisher_is_told_waits_and_goes_on_where_it_stopped(
    warren_broker: Broker, connect: Callable[..., RawClient]
) -> None:
    consumer = connect(warren_broker).channel()
    queue = consumer.own_queue()
    alarm(warren_broker, MEMORY, True)
    publisher = connect(warren_broker).channel()
    publisher.call("confirm.select")
    for number in range(500):
        publisher.publish(b"%d" % number, queue)
    assert publisher.client.expect("connection.blocked")["reason"] == "low on memory"

    # Blocking happens with the first content; what follows waits in the socket.
    assert consumer.ready(queue) <= 1
    for _ in range(100):
        consumer.ping()
    assert consumer.ready(queue) <= 1

    alarm(warren_broker, MEMORY, False)
    publisher.client.expect("connection.unblocked")
    consumer.becomes_ready(queue, 500)
    assert consumer.bodies(queue) == [b"%d" % number for number in range(500)]


def test_consumers_and_their_acknowledgements_go_on(
    warren_broker: Broker, connect: Callable[..., RawClient]
) -> None:
    channel = connect(warren_broker).channel()
    queue = channel.own_queue()
    for number in range(300):
        channel.publish(b"%d" % number, queue)
    alarm(warren_broker, MEMORY, True)
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue)
    for number in range(300):
        channel.ack(channel.delivery(b"%d" % number)["delivery_tag"])
    channel.ping()
    channel.close()
    # It has published before the alarm only: it was never blocked, nor told so.
    channel.client.close()


def test_declaring_and_other_work_without_content_goes_on(
    warren_broker: Broker, connect: Callable[..., RawClient]
) -> None:
    alarm(warren_broker, DISK, True)
    channel = connect(warren_broker).channel()
    queue = channel.own_queue()
    channel.declare_exchange("e")
    channel.bind(queue, "e", "k")
    channel.call("queue.purge", queue=queue)
    assert channel.get(queue) is None
    channel.client.close()


def test_a_connection_made_during_the_alarm_is_accepted_and_blocked_when_it_publishes(
    warren_broker: Broker, connect: Callable[..., RawClient]
) -> None:
    alarm(warren_broker, MEMORY, True)
    channel = connect(warren_broker).channel()
    queue = channel.own_queue()
    channel.ping()
    channel.publish(b"late", queue)
    channel.client.expect("connection.blocked")
    alarm(warren_broker, MEMORY, False)
    channel.client.expect("connection.unblocked")
    channel.got(queue, b"late")


def test_unblocked_comes_when_the_last_alarm_ends(
    warren_broker: Broker, connect: Callable[..., RawClient]
) -> None:
    alarm(warren_broker, MEMORY, True)
    alarm(warren_broker, DISK, True)
    watcher = connect(warren_broker).channel()
    watcher.declare("q")
    publisher = connect(warren_broker).channel()
    publisher.publish(b"x", "q")
    publisher.publish(b"y", "q")
    reason = publisher.client.expect("connection.blocked")["reason"]
    assert reason == "low on memory & low on disk"
    alarm(warren_broker, MEMORY, False)
    watcher.ping()
    assert watcher.ready("q") <= 1
    alarm(warren_broker, DISK, False)
    publisher.client.expect("connection.unblocked")
    watcher.becomes_ready("q", 2)


def test_every_alarm_blocks_anew(warren_broker: Broker, connect: Callable[..., RawClient]) -> None:
    channel = connect(warren_broker).channel()
    queue = channel.own_queue()
    for number in range(3):
        alarm(warren_broker, MEMORY, True)
        channel.publish(b"%d" % number, queue)
        channel.client.expect("connection.blocked")
        alarm(warren_broker, MEMORY, False)
        channel.client.expect("connection.unblocked")
    assert channel.bodies(queue) == [b"0", b"1", b"2"]


def test_a_client_that_cannot_be_told_is_blocked_all_the_same(
    warren_broker: Broker, connect: Callable[..., RawClient]
) -> None:
    watcher = connect(warren_broker).channel()
    watcher.declare("q")
    alarm(warren_broker, MEMORY, True)
    publisher = connect(warren_broker, capabilities={}).channel()
    for number in range(100):
        publisher.publish(b"%d" % number, "q")
    publisher.send("channel.flow", active=True)
    with pytest.raises(Silence):
        publisher.next_method(timeout_s=0.3)
    assert watcher.ready("q") <= 1
    alarm(warren_broker, MEMORY, False)
    publisher.expect("channel.flow-ok")
    assert watcher.ready("q") == 100


def test_a_blocked_client_is_not_cut_for_missing_heartbeats(connect: Callable[..., Any]) -> None:
    """Its heartbeats wait in the socket that nobody reads; the other one's silence is its own."""
    with Broker() as broker:
        watcher = connect(broker).channel()
        watcher.declare("q")
        alarm(broker, MEMORY, True)
        blocked = connect(broker, heartbeat=1).channel()
        blocked.publish(b"x", "q")
        blocked.client.expect("connection.blocked")
        silent = connect(broker, heartbeat=1)
        # Both say nothing; when the one is cut, the other had its time too.
        with pytest.raises(SocketClosed):
            while True:
                silent.read_frame()
        blocked.publish(b"y", "q")
        alarm(broker, MEMORY, False)
        blocked.client.expect("connection.unblocked")
        watcher.becomes_ready("q", 2)
        assert blocked.client.heartbeats_seen > 0, "the broker goes on sending its own"
        connect.abandon_all()


def test_a_blocked_client_is_told_of_the_end_of_the_broker(
    connect: Callable[..., RawClient],
) -> None:
    with Broker() as broker:
        alarm(broker, MEMORY, True)
        channel = blocked_publisher(broker, connect, "q")
        broker.call(lambda node: node.close_all("over"))
        channel.client.expect_close(320, "over")


def test_a_blocked_client_that_hangs_up_is_forgotten_when_the_alarm_ends(
    warren_broker: Broker,
    connect: Callable[..., RawClient],
    no_clients: Callable[[Broker], None],
) -> None:
    alarm(warren_broker, MEMORY, True)
    blocked_publisher(warren_broker, connect, "q").client.abandon()
    alarm(warren_broker, MEMORY, False)
    no_clients(warren_broker)


def test_pika_hears_of_it(warren_broker: Broker, until: Callable[..., None]) -> None:
    heard: list[str] = []
    with pika.BlockingConnection(pika.URLParameters(warren_broker.url)) as connection:
        connection.add_on_connection_blocked_callback(
            lambda _, frame: heard.append(frame.method.reason)
        )
        connection.add_on_connection_unblocked_callback(lambda *_: heard.append("unblocked"))
        channel = connection.channel()
        channel.queue_declare("q")
        alarm(warren_broker, MEMORY, True)
        channel.basic_publish("", "q", b"x")

        def hears(count: int) -> bool:
            connection.process_data_events(0.05)
            return len(heard) >= count

        until(lambda: hears(1))
        alarm(warren_broker, MEMORY, False)
        until(lambda: hears(2))
        assert heard == ["low on memory", "unblocked"]
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"


def slightly_short(broker: Broker, short: bool) -> None:
    broker.call(lambda node: node.alarms.report(MEMORY, short, ELSEWHERE, growing_only=True))


@pytest.fixture
def short_of_memory(warren_broker: Broker) -> Iterator[Broker]:
    slightly_short(warren_broker, True)
    yield warren_broker
    slightly_short(warren_broker, False)


def test_a_publisher_whose_queue_does_not_grow_goes_on_while_memory_is_a_little_short(
    short_of_memory: Broker, connect: Callable[..., RawClient]
) -> None:
    channel = connect(short_of_memory).channel()
    queue = channel.own_queue()
    channel.consume(queue)
    for number in range(3 * ALWAYS.messages):
        channel.publish(b"%d" % number, queue)
        channel.ack(channel.delivery(b"%d" % number)["delivery_tag"])
    nowhere = connect(short_of_memory).channel()
    for _ in range(3 * ALWAYS.messages):
        nowhere.publish(b"unroutable", "no such queue")
    # Neither was blocked, nor told so.
    for one in (channel, nowhere):
        one.ping()
        one.client.close()


def test_a_publisher_whose_queue_grows_is_told_of_it_and_goes_on_when_it_is_shorter(
    short_of_memory: Broker, connect: Callable[..., RawClient]
) -> None:
    other = connect(short_of_memory).channel()
    queue = other.own_queue()
    publisher = connect(short_of_memory).channel()
    count = ALWAYS.messages + 500
    for number in range(count):
        publisher.publish(b"%d" % number, queue)
    reason = publisher.client.expect("connection.blocked")["reason"]
    assert reason == f"low on memory: queue '{queue}' in vhost '/' grows"
    for _ in range(100):
        other.ping()
    assert other.ready(queue) == ALWAYS.messages + 1

    # A fanout is held back by any of its queues; others go on.
    other.declare_exchange("both", "fanout")
    second = other.own_queue()
    other.bind(queue, "both", "")
    other.bind(second, "both", "")
    to_both = connect(short_of_memory).channel()
    to_both.publish(b"waits", "", exchange="both")
    to_both.client.expect("connection.blocked")
    other.publish(b"passes", second)
    other.got(second, b"passes")

    got = [message.body for message in other.arriving(queue, count + 1)]
    got.remove(b"waits")
    assert got == [b"%d" % number for number in range(count)]
    publisher.client.expect("connection.unblocked")
    to_both.client.expect("connection.unblocked")


def test_a_publisher_whose_queue_is_deleted_goes_on(
    short_of_memory: Broker, connect: Callable[..., RawClient]
) -> None:
    other = connect(short_of_memory).channel()
    queue = other.own_queue()
    publisher = connect(short_of_memory).channel()
    for _ in range(ALWAYS.messages + 2):
        publisher.publish(b"x", queue)
    publisher.client.expect("connection.blocked")
    other.call("queue.delete", queue=queue)
    publisher.client.expect("connection.unblocked")
    publisher.ping()
    publisher.client.close()


def test_a_queue_that_was_long_before_may_stay_as_long(
    warren_broker: Broker, connect: Callable[..., RawClient]
) -> None:
    channel = connect(warren_broker).channel()
    queue = channel.own_queue()
    for _ in range(2 * ALWAYS.messages):
        channel.publish(b"x", queue)
    slightly_short(warren_broker, True)
    for _ in range(100):
        channel.publish(b"y", queue)
        channel.got(queue, b"x")
    slightly_short(warren_broker, False)
    channel.client.close()


def test_when_it_gets_worse_all_publishers_wait_and_when_better_the_others_go_on(
    short_of_memory: Broker, connect: Callable[..., RawClient]
) -> None:
    channel = connect(short_of_memory).channel()
    queue = channel.own_queue()
    alarm(short_of_memory, MEMORY, True)
    channel.publish(b"x", queue)
    assert channel.client.expect("connection.blocked")["reason"] == "low on memory"
    slightly_short(short_of_memory, True)
    channel.client.expect("connection.unblocked")
    channel.got(queue, b"x")


def test_the_memory_of_the_process_raises_the_alarm(connect: Callable[..., RawClient]) -> None:
    """The whole chain: a watermark below what any Python takes."""
    with Broker(memory_watermark=Absolute(1 << 20)) as broker:
        blocked_publisher(broker, connect, "q").client.abandon()


def test_the_disk_of_the_data_directory_raises_the_alarm(
    connect: Callable[..., RawClient], tmp_path: Any
) -> None:
    with Broker(data_dir=tmp_path / "data", disk_free_limit=Absolute(1 << 60)) as broker:
        client = connect(broker)
        client.channel().publish(b"x", "q")
        assert client.expect("connection.blocked")["reason"] == "low on disk"
        client.abandon()


def test_a_full_memory_blocks_until_memory_is_free_again(
    start_server: Callable[..., Any], connect: Callable[..., RawClient]
) -> None:
    """The real monitor on a real process: freed memory goes back before it is counted.

    What fills the memory is a transaction, the one thing that is not paged out. Nobody reads the
    socket of its client, whose death only the broker's own heartbeats find out about.
    """
    server = start_server(
        config="vm_memory_high_watermark.absolute = 150MB\nalarms.block_all_publishers = true"
    )
    other = connect(server).channel()
    queue = other.declare("q")["queue"]
    hog = connect(server, heartbeat=2).channel()
    hog.call("tx.select")
    thousand = publish_bytes(hog.number, queue, bytes(1000)) * 1000
    hog.client.socket.settimeout(5)
    with pytest.raises(TimeoutError):
        for _ in range(400):
            hog.client.send_bytes(thousand)
    assert hog.client.expect("connection.blocked")["reason"] == "low on memory"
    assert server.rss_bytes < 400 << 20
    publisher = connect(server).channel()
    publisher.publish(b"x", queue)
    assert publisher.client.expect("connection.blocked")["reason"] == "low on memory"
    hog.client.abandon()
    assert publisher.client.expect("connection.unblocked", timeout_s=60)
    deadline = time.monotonic() + 60
    while other.ready(queue) < 1:
        assert time.monotonic() < deadline, "what waited is never read"
        time.sleep(0.05)
