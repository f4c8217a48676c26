"""Charts of a cluster: every node answers with the samples of all, and a restart keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from running_cluster import ClusterProcess, RunningCluster, publish, wait_until

B = "b@127.0.0.1"
KINDS = ("lengths", "msg_rates", "data_rates", "node_stats")
RANGES = {f"{kind}_age": "600" for kind in KINDS} | {f"{kind}_incr": "5" for kind in KINDS}


@pytest.fixture
def cluster(running_cluster: RunningCluster) -> RunningCluster:
    return running_cluster


def samples(row: dict[str, Any], *places: str) -> list[dict[str, Any]]:
    """What the row says at these places; nothing where it has no samples."""
    for place in places:
        row = row.get(place, {})
    found: list[dict[str, Any]] = row.get("samples", [])
    return found


def of_queue(node: ClusterProcess) -> Iterable[list[dict[str, Any]]]:
    row = node.asks("queues", "/", "q", **RANGES)
    yield samples(row, "messages_details")
    yield samples(row, "message_stats", "publish_details")
    (listed,) = node.asks("queues", "/", **RANGES)
    yield samples(listed, "messages_details")


def of_clients(node: ClusterProcess, connection: str) -> Iterable[list[dict[str, Any]]]:
    row = node.asks("connections", connection, **RANGES)
    assert row["node"] == B
    yield samples(row, "recv_oct_details")
    row = node.asks("channels", f"{connection} (1)", **RANGES)
    yield samples(row, "message_stats", "publish_details")
    (listed,) = node.asks("channels", **RANGES)
    yield samples(listed, "message_stats", "publish_details")


def of_nodes(node: ClusterProcess) -> Iterable[list[dict[str, Any]]]:
    yield samples(node.asks("nodes", B, **RANGES), "mem_used_details")
    row = node.asks("overview", **RANGES)
    yield samples(row, "queue_totals", "messages_details")
    yield samples(row, "message_stats", "publish_details")


def test_each_node_answers_with_samples_of_what_another_one_has(cluster: RunningCluster) -> None:
    channel = cluster["b"].connect().channel()
    channel.queue_declare("q", durable=True)
    publish(channel, "q", [b"x"] * 7)
    assert cluster["b"].queue("q")["node"] == B
    (connection,) = [row["name"] for row in cluster["b"].asks("connections")]

    def newest(node: ClusterProcess) -> list[float]:
        every = [*of_queue(node), *of_clients(node, connection), *of_nodes(node)]
        return [found[0]["sample"] if found else 0 for found in every]

    for node in cluster.nodes.values():
        wait_until(lambda: all(newest(node)))  # noqa: B023
        octets, published, listed, memory, *overview = newest(node)[3:]
        assert newest(node)[:3] == [7, 7, 7] and (published, listed) == (7, 7)
        assert octets > 0 and memory > 0 and overview == [7, 7]


def test_samples_of_queues_nodes_and_the_overview_outlive_a_restart(
    cluster: RunningCluster,
) -> None:
    channel = cluster["b"].connect().channel()
    channel.queue_declare("q", durable=True)
    publish(channel, "q", [b"x"] * 7)
    a, b = cluster["a"], cluster["b"]
    wait_until(lambda: all([found and found[0]["sample"] for found in of_queue(b)]))
    before = [found[0]["timestamp"] for found in (*of_queue(b), *of_nodes(b))]
    for node in cluster.nodes.values():
        node.close_connections()
        node.stop()
    for node in cluster.nodes.values():
        node.launch()
    for node in cluster.nodes.values():
        node.wait_until_ready()
    wait_until(lambda: a.queue("q").get("messages") == 7)
    wait_until(lambda: a.asks("nodes", B)["running"])
    for node in (a, b):
        kept = [found[-1]["timestamp"] for found in (*of_queue(node), *of_nodes(node))]
        assert all(oldest <= newest for oldest, newest in zip(kept, before, strict=True)), node.name
