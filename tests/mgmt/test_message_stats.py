"""Message counts agree with those that random sessions keep of themselves."""

from __future__ import annotations

import time
from collections import Counter
from random import Random
from typing import Any

import pika
import pytest
from api_client import ApiClient

from warren import Broker
from warren.core.messages.message_stats import MessageStats

QUEUES = ("one", "two")


class Session:
    """A channel that does things at random and counts them."""

    def __init__(self, broker: Broker, seed: int) -> None:
        self.random = Random(seed)
        self.broker = broker
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.basic_qos(prefetch_count=7)
        for queue in QUEUES:
            self.channel.queue_declare(queue, durable=True)
        self.counted: Counter[str] = Counter()
        self.held: list[int] = []

    def step(self) -> None:
        self.random.choice(
            [self.publish, self.publish, self.publish_nowhere, self.get, self.consume, self.settle]
        )()

    def publish(self) -> None:
        mode = self.random.choice((1, 2))
        for _ in range(self.random.choice((1, 3, 40))):
            self.channel.basic_publish(
                "",
                self.random.choice(QUEUES) if self.random.random() < 0.3 else QUEUES[0],
                b"x" * 20,
                pika.BasicProperties(delivery_mode=mode),
            )
            self.counted["publish"] += 1
            self.counted["confirm"] += 1

    def publish_nowhere(self) -> None:
        self.channel.basic_publish("", "nowhere", b"x")
        self.counted.update(["publish", "confirm", "drop_unroutable"])

    def get(self) -> None:
        no_ack = self.random.random() < 0.5
        method, _, _ = self.channel.basic_get(self.random.choice(QUEUES), auto_ack=no_ack)
        if method is None:
            self.counted["get_empty"] += 1
            return
        self.counted["get_no_ack" if no_ack else "get"] += 1
        self.counted["redeliver"] += method.redelivered
        if not no_ack:
            self.held.append(method.delivery_tag)

    def consume(self) -> None:
        no_ack = self.random.random() < 0.5
        for method, _, _ in self.channel.consume(
            self.random.choice(QUEUES), auto_ack=no_ack, inactivity_timeout=0.01
        ):
            if method is None:
                break
            self.counted["deliver_no_ack" if no_ack else "deliver"] += 1
            self.counted["redeliver"] += method.redelivered
            if not no_ack:
                self.held.append(method.delivery_tag)
            if self.random.random() < 0.2:
                break
        # What the client had got beyond that it gives back; it counts as delivered.
        self.counted["deliver_no_ack" if no_ack else "deliver"] += self.channel.cancel()

    def settle(self) -> None:
        if not self.held:
            return
        kind = self.random.choice(("ack", "multiple", "nack", "reject"))
        tag = self.held[-1] if kind == "multiple" else self.random.choice(self.held)
        if kind == "multiple":
            self.channel.basic_ack(tag, multiple=True)
            self.counted["ack"] += len(self.held)
            self.held.clear()
            return
        self.held.remove(tag)
        if kind == "ack":
            self.channel.basic_ack(tag)
            self.counted["ack"] += 1
        elif kind == "nack":
            self.channel.basic_nack(tag, requeue=True)
        else:
            self.channel.basic_reject(tag, requeue=False)


def channel_stats(broker: Broker) -> MessageStats:
    def look(node: Any) -> MessageStats:
        (client,) = node.clients
        (channel,) = client.channels.values()
        stats: MessageStats = channel.stats()
        return stats

    return broker.call(look)


def queue_stats(broker: Broker) -> MessageStats:
    def look(node: Any) -> MessageStats:
        total = MessageStats()
        for queue in node.vhosts["/"].queues.values():
            total = total.plus(queue.stats())
        return total

    return broker.call(look)


@pytest.mark.parametrize("seed", range(12))
def test_channels_and_queues_count_what_happened(warren_broker: Broker, seed: int) -> None:
    session = Session(warren_broker, seed)
    for _ in range(60):
        session.step()
        session.connection.process_data_events(0)
    session.channel.queue_declare("one", passive=True)
    counted = session.counted
    of_channel, of_queues = channel_stats(warren_broker), queue_stats(warren_broker)
    for name in ("publish", "confirm", "drop_unroutable", "get", "get_no_ack", "get_empty", "ack"):
        assert getattr(of_channel, name) == counted[name], name
    delivered = counted["deliver"] + counted["deliver_no_ack"]
    assert of_channel.deliver + of_channel.deliver_no_ack >= delivered
    # The same messages, seen from the other end.
    for name in ("get", "get_no_ack", "get_empty", "ack", "deliver", "deliver_no_ack"):
        assert getattr(of_queues, name) == getattr(of_channel, name), name
    assert of_queues.redeliver == of_channel.redeliver
    assert of_queues.publish == counted["publish"] - counted["drop_unroutable"]
    session.connection.close()


def test_a_channel_that_is_gone_still_counts(warren_broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(warren_broker.url))
    channel = connection.channel()
    channel.queue_declare("q")
    for _ in range(5):
        channel.basic_publish("", "q", b"x")
    channel.basic_get("q", auto_ack=True)
    connection.close()

    def look(node: Any) -> MessageStats:
        stats: MessageStats = node.vhosts["/"].past_channels
        return stats

    past = warren_broker.call(look)
    assert (past.publish, past.get_no_ack) == (5, 1)


def test_totals_do_not_fall_when_a_virtual_host_goes() -> None:
    with Broker(http_port=0) as broker:
        broker.add_vhost("going")
        connection = pika.BlockingConnection(pika.URLParameters(broker.url_for("going")))
        channel = connection.channel()
        channel.queue_declare("q")
        for _ in range(7):
            channel.basic_publish("", "q", b"x")
        channel.queue_declare("q", passive=True)
        client = ApiClient(broker)

        def published() -> int:
            _, overview = client.get("/overview")
            count: int = overview["message_stats"]["publish"]
            return count

        assert published() == 7
        broker.delete_vhost("going")
        assert published() == 7
        with pytest.raises(pika.exceptions.AMQPError):
            connection.process_data_events(5)
        assert published() == 7


def test_exchanges_count_what_goes_in_and_out() -> None:
    with Broker(http_port=0) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.exchange_declare("x", "fanout")
        for queue in QUEUES:
            channel.queue_declare(queue)
            channel.queue_bind(queue, "x")
        for _ in range(10):
            channel.basic_publish("x", "key", b"body")
        channel.queue_declare("one", passive=True)
        _, exchange = ApiClient(broker).get("/exchanges/%2F/x")
        stats = exchange["message_stats"]
        assert (stats["publish_in"], stats["publish_out"]) == (10, 20)
        _, overview = ApiClient(broker).get("/overview")
        assert overview["message_stats"]["publish"] == 10
        assert overview["queue_totals"]["messages_ready"] == 20
        connection.close()


def test_totals_do_not_fall_when_there_are_many_queues() -> None:
    """Beyond some number of queues totals are those of the last sample."""
    with Broker(http_port=0, stats_interval_ms=200) as broker:
        client = ApiClient(broker)
        declare(broker, 1990, "few")
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        time.sleep(0.5)
        for _ in range(100):
            channel.basic_publish("", "few0", b"x")
        channel.queue_declare("few0", passive=True)
        assert client.get("/overview")[1]["message_stats"]["publish"] == 100
        declare(broker, 30, "more")
        stats = client.get("/overview")[1]["message_stats"]
        assert stats["publish"] == 100
        assert stats["publish_details"]["rate"] >= 0
        connection.close()


def test_a_virtual_host_made_anew_begins_anew() -> None:
    with Broker(http_port=0, stats_interval_ms=100) as broker:
        client = ApiClient(broker)
        broker.add_vhost("again")
        connection = pika.BlockingConnection(pika.URLParameters(broker.url_for("again")))
        channel = connection.channel()
        channel.queue_declare("q")
        for _ in range(500):
            channel.basic_publish("", "q", b"x")
        channel.queue_declare("q", passive=True)
        time.sleep(0.4)
        connection.close()
        broker.delete_vhost("again")
        broker.add_vhost("again")
        _, vhost = client.get("/vhosts/again?lengths_age=5&lengths_incr=1")
        assert vhost["messages"] == 0
        assert vhost["messages_details"]["rate"] == 0
        assert all(not sample["sample"] for sample in vhost["messages_details"].get("samples", ()))


def declare(broker: Broker, count: int, prefix: str) -> None:
    def make(node: Any) -> None:
        for number in range(count):
            node.vhosts["/"].declare_queue(
                f"{prefix}{number}",
                durable=False,
                exclusive_owner=None,
                auto_delete=False,
                arguments={},
            )

    broker.call(make)
