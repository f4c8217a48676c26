"""Quorum queues of other nodes, as clients of a cluster meet them."""

from __future__ import annotations

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker
from running_cluster import RunningCluster, publish, take, wait_until

from warren.mgmt.ctl.errors import Refused

QUORUM = {"x-queue-type": "quorum"}
COUNT = "x-delivery-count"


def declare(connection: pika.BlockingConnection, name: str, **arguments: object) -> None:
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    connection.channel().queue_declare(name, durable=True, arguments={**QUORUM, **table})


def got(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str) -> tuple:
    """Delivery tag, body, count and whether it is redelivered, of the next message."""
    found: list[tuple] = []

    def is_there() -> bool:
        method, properties, body = channel.basic_get(queue)
        if method is not None:
            count = (properties.headers or {}).get(COUNT)
            found.append((method.delivery_tag, body, count, method.redelivered))
        return method is not None

    wait_until(is_there)
    return found[0]


def test_a_quorum_queue_is_used_from_any_node(running_cluster: RunningCluster) -> None:
    a, b, c = (running_cluster[name].connect() for name in "abc")
    declare(a, "q", x_delivery_limit=1, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    declare(b, "dead")
    publisher = b.channel()
    publisher.confirm_delivery()
    publish(publisher, "q", [b"0", b"1"])
    consumer = c.channel()
    tag, body, count, redelivered = got(consumer, "q")
    assert (body, count, redelivered) == (b"0", 0, False)
    consumer.basic_nack(tag)
    # With a delivery limit what came back is the first.
    tag, body, count, redelivered = got(consumer, "q")
    assert (body, count, redelivered) == (b"0", 1, True)
    consumer.basic_nack(tag)
    assert take(a.channel(), "dead", 1) == [b"0"]
    method, properties, body = next(consumer.consume("q", inactivity_timeout=20))
    assert (body, properties.headers) == (b"1", None)
    consumer.basic_nack(method.delivery_tag)
    method, properties, body = next(consumer.consume("q", inactivity_timeout=20))
    assert (body, properties.headers) == (b"1", {COUNT: 1})
    consumer.basic_ack(method.delivery_tag)


def test_refusals_are_the_same_at_every_node(running_cluster: RunningCluster) -> None:
    a = running_cluster["a"].connect()
    declare(a, "single", x_single_active_consumer=True)
    b = running_cluster["b"].connect()
    with pytest.raises(ChannelClosedByBroker, match="operations are not supported"):
        b.channel().basic_get("single")
    with pytest.raises(ChannelClosedByBroker, match="of queue type rabbit_quorum_queue"):
        b.channel().basic_consume("single", print, arguments={"x-stream-offset": 1})
    declare(a, "double")
    with pytest.raises(ChannelClosedByBroker, match="current is the value 'quorum'"):
        b.channel().queue_declare("double", durable=True)
    with pytest.raises(ConnectionClosedByBroker, match="with if-unused flag set"):
        b.channel().queue_delete("single", if_unused=True)
    b = running_cluster["b"].connect()
    channel = b.channel()
    channel.basic_qos(prefetch_count=5, global_qos=True)
    with pytest.raises(ConnectionClosedByBroker, match="does not support global qos"):
        channel.basic_consume("single", print)


def test_every_node_shows_its_member(running_cluster: RunningCluster) -> None:
    a, b = running_cluster["a"], running_cluster["b"]
    declare(a.connect(), "shown")
    wait_until(lambda: b.queue("shown"))
    for node in (a, b):
        row = node.queue("shown")
        assert (row["type"], row["leader"]) == ("quorum", a.queue("shown")["node"])
        assert row["members"] == row["online"] == [row["leader"]]
        assert "slave_nodes" not in row
    with pytest.raises(Refused) as refused:
        a.asks("health", "checks", "node-is-quorum-critical")
    assert refused.value.status == 503
    assert "shown" in [one["name"] for one in refused.value.answer["queues"]]
    a.kill()
    wait_until(lambda: b.queue("shown")["online"] == [])


def test_mirrors_are_for_classic_queues(running_cluster: RunningCluster) -> None:
    a = running_cluster["a"]
    policy = {"pattern": ".*", "definition": {"ha-mode": "all"}, "apply-to": "queues"}
    a.changes("policies", "/", "all", body=policy)
    connection = a.connect()
    declare(connection, "quorum")
    connection.channel().queue_declare("classic", durable=True)
    a.until_queue("classic", lambda row: row.get("synchronised_slave_nodes"))
    assert "slave_nodes" not in a.queue("quorum")
    assert a.queue("quorum")["policy"] is None
