"""kombu, as its users use it, on top of PyPI's `amqp`, which is no part of Warren."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import kombu.transport.pyamqp
import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.pools import producers
from kombu.pools import reset as reset_pools

import warren.amqp
from warren import Broker


@pytest.fixture
def connection(warren_broker: Broker) -> Iterator[Connection]:
    with Connection(warren_broker.url) as connection:
        yield connection


def drain(connection: Connection, received: list[Any], count: int) -> None:
    while len(received) < count:
        connection.drain_events(timeout=30)


def test_kombu_uses_the_client_library_and_not_the_broker() -> None:
    assert kombu.transport.pyamqp.amqp is amqp
    assert Path(amqp.__file__).parent.parent.name == "site-packages"
    assert Path(amqp.__file__).resolve() != Path(warren.amqp.__file__).resolve()


def test_a_producer_and_a_consumer_exchange_json(connection: Connection) -> None:
    tasks = Queue("tasks", Exchange("media", "direct", durable=True), routing_key="video")
    received: list[Any] = []

    def on_message(body: Any, message: Any) -> None:
        received.append(body)
        message.ack()

    with connection.channel() as channel:
        producer = Producer(channel, serializer="json")
        for number in range(100):
            producer.publish(
                {"name": "a", "size": number},
                exchange=tasks.exchange,
                routing_key="video",
                declare=[tasks],
                compression="zlib" if number % 2 else None,
            )
        with Consumer(channel, [tasks], callbacks=[on_message], prefetch_count=10):
            drain(connection, received, 100)
        assert received == [{"name": "a", "size": number} for number in range(100)]
        assert tasks(channel).queue_declare(passive=True).message_count == 0


def test_a_fanout_exchange_reaches_every_queue(connection: Connection) -> None:
    fanout = Exchange("news", "fanout", durable=False)
    received: list[tuple[str, Any]] = []
    with connection.channel() as channel:
        for name in ("a", "b", "c"):
            queue = Queue(name, fanout, exclusive=True)
            Consumer(
                channel,
                [queue],
                callbacks=[lambda body, message, name=name: received.append((name, body))],
                no_ack=True,
            ).consume()
        Producer(channel, fanout).publish({"headline": 1})
        drain(connection, received, 3)
    assert sorted(received) == [(name, {"headline": 1}) for name in ("a", "b", "c")]


def test_a_simple_queue_puts_gets_and_empties(connection: Connection) -> None:
    with connection.SimpleQueue("simple") as queue:
        for number in range(10):
            queue.put({"number": number})
        assert queue.qsize() == 10
        for number in range(10):
            message = queue.get(timeout=30)
            assert message.payload == {"number": number}
            message.ack()
        with pytest.raises(queue.Empty):
            queue.get_nowait()


def test_a_pooled_producer_publishes_with_confirms(warren_broker: Broker) -> None:
    options = {"confirm_publish": True}
    with Connection(warren_broker.url, transport_options=options) as connection:
        pool = producers[connection]
        with pool.acquire(block=True) as producer:
            producer.publish({"a": 1}, routing_key="confirmed", declare=[Queue("confirmed")])
        with connection.channel() as channel:
            message = channel.basic_get("confirmed", no_ack=True)
            assert message is not None and message.body == '{"a": 1}'
        reset_pools()


def test_publishing_is_retried_after_the_connection_was_closed(
    warren_broker: Broker, connection: Connection
) -> None:
    queue = Queue("survivor", Exchange("survivors"), routing_key="s")
    failures: list[BaseException] = []
    with connection.Producer() as producer:

        def publish(number: int) -> None:
            producer.publish(
                {"number": number},
                exchange=queue.exchange,
                routing_key="s",
                declare=[queue],
                retry=True,
                retry_policy={
                    "max_retries": 20,
                    "interval_start": 0,
                    "errback": lambda error, interval: failures.append(error),
                },
            )

        publish(1)
        warren_broker.call(lambda node: node.close_all("for the test"))
        publish(2)
    assert len(failures) == 1, "one failure is what it takes to notice"
    with Connection(warren_broker.url) as other, other.channel() as channel:
        bodies = [channel.basic_get("survivor", no_ack=True).body for _ in range(2)]
    assert bodies == ['{"number": 1}', '{"number": 2}']


def test_a_connection_that_only_sends_heartbeats_stays_open(warren_broker: Broker) -> None:
    with Connection(warren_broker.url, heartbeat=1) as connection, connection.channel() as channel:
        deadline = time.monotonic() + 4
        # Without them the broker hangs up after three seconds at most.
        while time.monotonic() < deadline:
            connection.heartbeat_check(rate=2)
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.2)
        assert channel.queue_declare("alive").queue == "alive"
