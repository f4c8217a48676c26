"""Delayed messages in a cluster of real nodes: at any node, and after a leader's death."""

from __future__ import annotations

import pika
import pytest
from running_cluster import RunningCluster, take, wait_until

from warren.mgmt.ctl.errors import RequestRefused

FAR_MS = 3_600_000
QUEUE = "amq.delayed.dx"
DELAYED = ("exchanges", "/", "dx", "delayed")


def delayed(cluster: RunningCluster, node: str) -> int | None:
    count: int | None = cluster[node].asks("exchanges", "/", "dx").get("messages_delayed")
    return count


def test_any_node_delays_lists_and_cancels_and_a_mirror_goes_on(
    running_cluster: RunningCluster,
) -> None:
    cluster = running_cluster
    policy = {"pattern": "^(dx|to)$", "definition": {"ha-mode": "all"}, "apply-to": "queues"}
    cluster["a"].changes("policies", "/", "ha", body=policy)
    channel = cluster["a"].connect().channel()
    arguments = {"x-delayed-type": "fanout"}
    channel.exchange_declare("dx", "x-delayed-message", durable=True, arguments=arguments)
    channel.queue_declare("to", durable=True)
    channel.queue_bind("to", "dx")
    wait_until(lambda: len(cluster["a"].in_sync(QUEUE)) == 2)
    wait_until(lambda: len(cluster["a"].in_sync("to")) == 2)

    publisher = cluster["b"].connect().channel()
    publisher.confirm_delivery()
    for number in range(3):
        headers = {"x-delay": FAR_MS - 1000 * number}
        properties = pika.BasicProperties(delivery_mode=2, headers=headers)
        publisher.basic_publish("dx", "k", b"x" * number, properties)
    assert [delayed(cluster, node) for node in "abc"] == [3, 3, 3]
    found = cluster["c"].asks(*DELAYED)
    assert [row["payload_bytes"] for row in found["items"]] == [2, 1, 0]
    published = cluster["c"].asks(*DELAYED, order="published", filter="size < 2")
    assert [row["payload_bytes"] for row in published["items"]] == [0, 1]
    assert published["items"][1]["id"] == found["items"][1]["id"]
    cluster["c"].does("DELETE", *DELAYED, found["items"][1]["id"])
    assert delayed(cluster, "b") == 2
    listed = {row["name"]: row for row in cluster["c"].asks("exchanges", "/")}
    assert listed["dx"]["messages_delayed"] == 2

    cluster["a"].kill()
    wait_until(lambda: delayed(cluster, "b") == 2)
    later = cluster["b"].asks(*DELAYED)["items"]
    assert [row["payload_bytes"] for row in later] == [2, 0]
    again = cluster["c"].asks(*DELAYED, order="published")["items"]
    assert [row["id"] for row in again] == [row["id"] for row in later[::-1]]
    # Positions may be others now, so what was listed before means nothing any more.
    with pytest.raises(RequestRefused, match="no such delayed message"):
        cluster["b"].does("DELETE", *DELAYED, found["items"][0]["id"])
    for row in later:
        cluster["c"].does("POST", *DELAYED, row["id"], "send")
    assert take(cluster["b"].connect().channel(), "to", 2) == [b"xx", b""]
    wait_until(lambda: delayed(cluster, "c") == 0)
    cluster["b"].does("DELETE", "exchanges", "/", "dx")
    wait_until(lambda: QUEUE not in [row["name"] for row in cluster["c"].asks("queues", "/")])
