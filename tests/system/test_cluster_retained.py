"""Retained messages in a cluster of real nodes: after failovers and restarts, from any node."""

from __future__ import annotations

import pika
import pytest
from running_cluster import RunningCluster, take, wait_until


def retained(cluster: RunningCluster, node: str) -> int | None:
    row = cluster[node].asks("queues", "/", "q")
    return row["retained"]["messages"] if "retained" in row else None


def acknowledge(cluster: RunningCluster, node: str, count: int) -> None:
    channel = cluster[node].connect().channel()
    for _ in range(count):
        method, _, _ = channel.basic_get("q")
        channel.basic_ack(method.delivery_tag)


def replayed(cluster: RunningCluster, node: str) -> list[bytes]:
    """What a replay asked for at this node brings."""
    # While a queue has no leader, its row has no figures.
    wait_until(lambda: "messages" in cluster[node].asks("queues", "/", "to"))
    before = cluster[node].asks("queues", "/", "to")["messages"]
    plan = {"to_queue": "to"}
    cluster[node].does("POST", "queues", "/", "q", "replay", body=plan)
    count = retained(cluster, node)
    assert count is not None and not before
    wait_until(lambda: cluster[node].asks("queues", "/", "to")["messages"] == count)
    return take(cluster[node].connect().channel(), "to", count)


def has_copies(cluster: RunningCluster, node: str, count: int) -> bool:
    """Whether the queue has so many copies that are whole, with that of its leader."""
    if cluster[node].queue("q").get("type") == "quorum":
        return len(cluster[node].queue("q").get("online", ())) == count
    return len(cluster[node].in_sync("q")) == count - 1


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_is_retained_stays_through_failovers_and_restarts(
    running_cluster: RunningCluster, kind: str
) -> None:
    cluster = running_cluster
    definition: dict[str, object] = {"retention": {"max-age": "1h"}}
    if kind == "classic":
        definition |= {"ha-mode": "all", "ha-sync-mode": "automatic"}
    policy = {"pattern": "^q$", "definition": definition, "apply-to": "queues"}
    cluster["a"].changes("policies", "/", "keep", body=policy)
    policy = {"pattern": "^to$", "definition": {"ha-mode": "all"}, "apply-to": "queues"}
    cluster["a"].changes("policies", "/", "to", body=policy)
    channel = cluster["a"].connect().channel()
    channel.queue_declare("to", durable=True)
    wait_until(lambda: len(cluster["a"].in_sync("to")) == 2)
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": kind})
    wait_until(lambda: has_copies(cluster, "a", 3))
    channel.confirm_delivery()
    for number in range(10):
        properties = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", "q", b"%d" % number * 5000, properties)
    acknowledge(cluster, "b", 4)
    wait_until(lambda: retained(cluster, "c") == 4)
    everything = [b"%d" % number * 5000 for number in range(10)]
    assert replayed(cluster, "c") == everything[:4]

    # A mirror that was away is sent what was acknowledged without it: in the end it leads.
    cluster["c"].stop()
    wait_until(lambda: has_copies(cluster, "a", 2))
    acknowledge(cluster, "a", 2)
    wait_until(lambda: retained(cluster, "a") == 6)
    cluster["c"].start()
    wait_until(lambda: has_copies(cluster, "a", 3))

    # So has a leader that was killed: what it had retained is on its disk with what it confirmed.
    channel.queue_declare("confirmed", durable=True)
    channel.basic_publish("", "confirmed", b"", pika.BasicProperties(delivery_mode=2))
    cluster["a"].kill()
    wait_until(lambda: retained(cluster, "b") == 6)
    assert replayed(cluster, "b") == everything[:6]
    cluster["a"].start()
    wait_until(lambda: has_copies(cluster, "b", 3))
    acknowledge(cluster, "a", 1)
    wait_until(lambda: retained(cluster, "b") == 7)
    leader = cluster["b"].asks("queues", "/", "q")["node"].partition("@")[0]
    cluster[leader].stop()
    (one, other) = sorted({"a", "b", "c"} - {leader})
    wait_until(lambda: retained(cluster, one) == 7)
    assert replayed(cluster, other) == everything[:7]
