"""Quorum queues of other nodes, as clients of a cluster meet them."""

from __future__ import annotations

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker
from running_cluster import ClusterProcess, RunningCluster, publish, take, wait_until

from warren.mgmt.ctl.errors import RequestRefused

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


def test_every_node_shows_the_members(running_cluster: RunningCluster) -> None:
    a, b = running_cluster["a"], running_cluster["b"]
    nodes = sorted(running_cluster[name].name for name in "abc")
    declare(a.connect(), "shown")
    wait_until(lambda: b.queue("shown"))
    for node in (a, b):
        row = node.queue("shown")
        assert (row["type"], row["leader"]) == ("quorum", a.name)
        assert sorted(row["members"]) == sorted(row["online"]) == nodes
        assert "slave_nodes" not in row
    declare(a.connect(), "alone", x_quorum_initial_group_size=1)
    with pytest.raises(RequestRefused) as refused:
        a.asks("health", "checks", "node-is-quorum-critical")
    assert refused.value.status == 503
    assert [one["name"] for one in refused.value.answer["queues"]] == ["alone"]


def states(node: ClusterProcess, queue: str) -> dict[str, str]:
    rows = node.asks("control", "quorum-queues", "/", queue, "status")
    return {row["Node Name"]: row["Raft State"] for row in rows}


def test_members_are_taken_away_and_added(running_cluster: RunningCluster) -> None:
    a, b, c = (running_cluster[name] for name in "abc")
    declare(a.connect(), "q")
    everybody = {a.name: "leader", b.name: "follower", c.name: "follower"}
    wait_until(lambda: states(b, "q") == everybody)
    b.ctl("delete_member", "q", a.name)
    wait_until(lambda: sorted(states(b, "q").values()) == ["follower", "leader"])
    assert a.name not in states(b, "q")
    b.ctl("grow", a.name, "all")
    wait_until(lambda: sorted(states(b, "q").values()) == ["follower", "follower", "leader"])
    b.ctl("shrink", c.name)
    wait_until(lambda: c.name not in states(b, "q"))


def test_the_leader_is_killed_under_load(running_cluster: RunningCluster) -> None:
    a, b, c = (running_cluster[name] for name in "abc")
    declare(a.connect(), "q")
    publisher, consumer = b.connect().channel(), c.connect().channel()
    publisher.confirm_delivery()
    publish(publisher, "q", [b"%d" % number for number in range(100)])
    tag, body, count, _ = got(consumer, "q")
    assert (body, count) == (b"0", 0)
    consumer.basic_nack(tag)
    wait_until(lambda: c.queue("q")["messages_ready"] == 100)
    a.kill()
    publish(publisher, "q", [b"%d" % number for number in range(100, 200)])
    tag, body, count, redelivered = got(consumer, "q")
    assert (body, count, redelivered) == (b"0", 1, True)
    consumer.basic_ack(tag)
    assert take(consumer, "q", 199) == [b"%d" % number for number in range(1, 200)]
    wait_until(lambda: a.name not in c.queue("q")["online"])
    assert c.queue("q")["leader"] in (b.name, c.name)


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
