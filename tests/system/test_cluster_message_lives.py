"""The life of a message whose publisher, queue, copy and consumer are at different nodes."""

from __future__ import annotations

from typing import Any

import pika
from running_cluster import RunningCluster, wait_until


def life(cluster: RunningCluster, node: str, name: str) -> dict[str, Any]:
    return dict(cluster[node].asks("trace", "/", name))


def told(cluster: RunningCluster, node: str, name: str) -> set[tuple[str, str, str]]:
    """Event, queue and node of each record."""
    records = life(cluster, node, name)["records"]
    return {(one["event"], one.get("queue", ""), one["node"].split("@")[0]) for one in records}


def publish(cluster: RunningCluster, node: str, queue: str, name: str) -> None:
    channel = cluster[node].connect().channel()
    channel.confirm_delivery()
    properties = pika.BasicProperties(message_id=name, delivery_mode=2)
    channel.basic_publish("", queue, b"body", properties)


def test_any_node_tells_the_whole_life_and_a_new_leader_goes_on(
    running_cluster: RunningCluster,
) -> None:
    cluster = running_cluster
    policy = {"pattern": "^lives$", "definition": {"ha-mode": "all"}, "apply-to": "queues"}
    cluster["a"].changes("policies", "/", "ha", body=policy)
    # Only the node of the publisher knows who that is.
    cluster["a"].changes("parameters", "trace", "/", "r", body={"value": {"user": "guest"}})
    channel = cluster["a"].connect().channel()
    channel.queue_declare("lives", durable=True)
    wait_until(lambda: len(cluster["a"].in_sync("lives")) == 2)
    for node in "bc":
        wait_until(lambda node=node: cluster[node].asks("trace", "/")["rules"] != [])

    publish(cluster, "b", "lives", "m1")
    expected = {
        ("published", "", "b"),
        ("arrived", "lives", "a"),
        ("mirrored", "lives", "b"),
        ("mirrored", "lives", "c"),
    }
    for node in "abc":
        wait_until(lambda node=node: told(cluster, node, "m1") == expected)
    consumer = cluster["c"].connect().channel()
    method, _, _ = consumer.basic_get("lives")
    assert method is not None
    consumer.basic_ack(method.delivery_tag)
    expected |= {("delivered", "lives", "a"), ("acknowledged", "lives", "a")}
    wait_until(lambda: told(cluster, "b", "m1") == expected)
    assert life(cluster, "b", "m1")["queues"] == {"lives": "acknowledged"}
    assert life(cluster, "b", "m1")["missing_nodes"] == []
    # Mirrors hear of an acknowledgement up to 20 ms later, or before the next publish is confirmed.
    publish(cluster, "b", "lives", "m2")

    cluster["a"].kill()
    wait_until(lambda: cluster["b"].asks("queues", "/", "lives").get("messages") == 1)
    got = consumer_of(cluster, "c")
    assert got == "m2"
    wait_until(
        lambda: {"delivered", "acknowledged"} <= {event for event, _, _ in told(cluster, "b", "m2")}
    )
    missing = life(cluster, "b", "m2")["missing_nodes"]
    assert [node.split("@")[0] for node in missing] == ["a"]


def consumer_of(cluster: RunningCluster, node: str) -> str:
    """Gets and acknowledges one message; returns its id."""
    channel = cluster[node].connect().channel()
    method, properties, _ = channel.basic_get("lives")
    assert method is not None and properties is not None
    channel.basic_ack(method.delivery_tag)
    channel.queue_declare("lives", durable=True, passive=True)
    return str(properties.message_id)
