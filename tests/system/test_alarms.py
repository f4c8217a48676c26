"""While a resource runs short publishers wait, and nobody else does.

The alarm is that of another node, which counts here too: our own monitors would clear ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pika
import pytest

from warren import Broker
from warren.compat_tests.methods import encode_header, encode_method
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import (
    BODY,
    HEADER,
    METHOD,
    Silence,
    SocketClosed,
    frame_bytes,
)
from warren.core.alarms import Resource
from warren.core.memory_monitor import Absolute

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
    server = start_server(config="vm_memory_high_watermark.absolute = 150MB")
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


def publish_bytes(channel: int, queue: str, body: bytes) -> bytes:
    method = encode_method("basic.publish", {"exchange": "", "routing_key": queue})
    return (
        frame_bytes(METHOD, channel, method)
        + frame_bytes(HEADER, channel, encode_header({}, len(body)))
        + frame_bytes(BODY, channel, body)
    )
