"""A stream in a cluster of real nodes: used from any node, and nothing is lost with its node."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker
from running_cluster import PATIENCE_S, RunningCluster, publish, wait_until

COUNT = 30
STREAM = {"x-queue-type": "stream"}
NUMBERS = [b"%d" % number for number in range(COUNT)]


def read(channel: BlockingChannel, offset: Any, count: int) -> list[tuple[int, bytes]]:
    channel.basic_qos(prefetch_count=7)
    found: list[tuple[int, bytes]] = []
    arguments = {"x-stream-offset": offset}
    for method, properties, body in channel.consume(
        "s", arguments=arguments, inactivity_timeout=PATIENCE_S
    ):
        assert method is not None, f"{len(found)} of {count} came"
        channel.basic_ack(method.delivery_tag)
        found.append((properties.headers["x-stream-offset"], body))
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_any_node_uses_it_and_nothing_is_lost_with_its_node(
    running_cluster: RunningCluster,
) -> None:
    cluster = running_cluster
    everything = {"pattern": ".*", "definition": {"ha-mode": "all"}, "apply-to": "queues"}
    cluster["a"].changes("policies", "/", "ha", body=everything)
    cluster["a"].connect().channel().queue_declare("s", durable=True, arguments=STREAM)

    channel = cluster["b"].connect().channel()
    channel.confirm_delivery()
    publish(channel, "s", NUMBERS)
    whole = list(enumerate(NUMBERS))
    for node in "abc":
        row = cluster[node].queue("s")
        assert (row["members"], row["online"]) == ([cluster["a"].queue("s")["node"]],) * 2
        assert row["policy"] is None
        assert read(cluster[node].connect().channel(), "first", COUNT) == whole
        assert read(cluster[node].connect().channel(), 20, COUNT - 20) == whole[20:]

    for refused in ("get", "purge", "nack"):
        channel = cluster["c"].connect().channel()
        with pytest.raises(ConnectionClosedByBroker, match="not supported by stream queues"):
            if refused == "get":
                channel.basic_get("s")
            elif refused == "purge":
                channel.queue_purge("s")
            else:
                channel.basic_qos(prefetch_count=1)
                held: list[Any] = []
                channel.basic_consume(
                    "s",
                    lambda _c, method, _p, _b, held=held: held.append(method),
                    arguments={"x-stream-offset": "first"},
                )
                while not held:
                    channel.connection.process_data_events(PATIENCE_S)
                channel.basic_nack(held[0].delivery_tag)
                channel.connection.process_data_events(PATIENCE_S)

    cancelled: list[Any] = []
    waiting = cluster["b"].connect().channel()
    waiting.add_on_cancel_callback(cancelled.append)
    waiting.basic_qos(prefetch_count=1)
    waiting.basic_consume("s", lambda *_: None)
    cluster["a"].kill()

    def is_cancelled() -> bool:
        waiting.connection.process_data_events(0.1)
        return bool(cancelled)

    wait_until(is_cancelled)
    cluster["a"].start()
    cluster.wait_until_linked()

    def is_back() -> bool:
        try:
            channel = cluster["c"].connect().channel()
            channel.confirm_delivery()
            publish(channel, "s", [b"last"])
        except (AMQPError, ChannelClosedByBroker):
            return False
        return True

    wait_until(is_back)
    found = read(cluster["b"].connect().channel(), "first", COUNT + 1)
    assert found[:COUNT] == whole
    assert [offset for offset, _ in found] == list(range(COUNT + 1))
    assert found[COUNT][1] == b"last"


def test_leaders_are_spread_where_a_stream_says_so(running_cluster: RunningCluster) -> None:
    cluster = running_cluster
    channel: Any = cluster["a"].connect().channel()
    for number in range(6):
        arguments = {**STREAM, "x-queue-leader-locator": "balanced"}
        channel.queue_declare(f"s{number}", durable=True, arguments=arguments)
    nodes = {cluster["b"].queue(f"s{number}")["node"] for number in range(6)}
    assert len(nodes) == 3
    pika.BlockingConnection.close(channel.connection)
