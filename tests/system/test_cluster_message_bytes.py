"""How many octets a queue has, wherever its consumers are and whichever node is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pika
import pytest
from running_cluster import RunningCluster, publish, wait_until

from warren.mgmt.ctl.control_client import ControlClient, LocalTarget

BODIES = [b"x" * size for size in (1, 10, 100, 1000, 10_000)]
TOTAL = sum(map(len, BODIES))


@pytest.fixture
def channels(running_cluster: RunningCluster) -> Iterator[dict[str, Any]]:
    """A channel at each node."""
    yield {name: node.connect().channel() for name, node in running_cluster.nodes.items()}


def set_mirrors(cluster: RunningCluster) -> None:
    """Every queue of such a name has mirrors at all nodes."""
    policy = {"pattern": "^bytes-mirrored", "definition": {"ha-mode": "all"}}
    client = ControlClient(LocalTarget(cluster["a"].data_directory), 30)
    client.request("PUT", "policies", "/", "bytes", body=policy)
    client.close()


def hold(channel: Any, queue: str, count: int) -> None:
    """Consume so many messages and acknowledge none."""
    held: list[bytes] = []
    channel.basic_qos(prefetch_count=count)
    channel.basic_consume(queue, lambda *message: held.append(message[3]))
    wait_until(lambda: channel.connection.process_data_events() or len(held) == count)


def check(cluster: RunningCluster, queue: str, ready: int, unacked: int) -> None:
    """Every node answers the same."""
    wanted = {
        "message_bytes": ready + unacked,
        "message_bytes_ready": ready,
        "message_bytes_unacknowledged": unacked,
        "message_bytes_persistent": ready + unacked,
    }
    for node in cluster.nodes.values():

        def shown(node: Any = node) -> list[dict[str, Any]]:
            row = node.asks("queues", "/", queue)
            rows = [one for one in node.asks("queues") if one["name"] == queue]
            return [{name: one.get(name) for name in wanted} for one in (row, *rows)]

        with suppress(AssertionError):
            wait_until(lambda: shown() == [wanted, wanted])
        assert shown() == [wanted, wanted], node.name


@pytest.mark.parametrize("kind", ["classic", "quorum", "mirrored"])
def test_octets_are_counted_wherever_consumers_are(
    running_cluster: RunningCluster, channels: dict[str, Any], kind: str
) -> None:
    cluster, queue = running_cluster, f"bytes-{kind}"
    if kind == "mirrored":
        set_mirrors(cluster)
    arguments = {"x-queue-type": "quorum"} if kind == "quorum" else {}
    channels["a"].queue_declare(queue, durable=True, arguments=arguments)
    channels["a"].confirm_delivery()
    publish(channels["a"], queue, BODIES)
    check(cluster, queue, TOTAL, 0)
    # A consumer at another node, then one that fetches at a third, then one at the leader.
    hold(channels["b"], queue, 2)
    check(cluster, queue, TOTAL - 11, 11)
    method, _, _ = channels["c"].basic_get(queue)
    assert method is not None
    check(cluster, queue, TOTAL - 111, 111)
    method, _, _ = channels["a"].basic_get(queue)
    assert method is not None
    check(cluster, queue, TOTAL - 1111, 1111)
    channels["a"].basic_ack(method.delivery_tag)
    check(cluster, queue, TOTAL - 1111, 111)
    # Whose client is gone gives its messages back.
    cluster["b"].close_connections()
    check(cluster, queue, TOTAL - 1100, 100)


def test_octets_of_very_many_messages_without_acknowledgement_are_counted(
    running_cluster: RunningCluster, channels: dict[str, Any]
) -> None:
    count = 25_000
    channels["a"].queue_declare("bytes-many", durable=True)
    for _ in range(count):
        channels["a"].basic_publish("", "bytes-many", b"xyz", pika.BasicProperties(delivery_mode=2))
    wait_until(lambda: running_cluster["a"].asks("queues", "/", "bytes-many")["messages"] == count)
    check(running_cluster, "bytes-many", 3 * count, 0)
    hold(channels["b"], "bytes-many", 21_000)
    check(running_cluster, "bytes-many", 3 * 4000, 3 * 21_000)
