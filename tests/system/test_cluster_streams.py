"""A stream in a cluster of real nodes: each has a copy, and readers go on when one is lost."""

from __future__ import annotations

import json
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ConnectionClosedByBroker
from running_cluster import PATIENCE_S, ClusterProcess, RunningCluster, publish, wait_until

from warren.mgmt.ctl.errors import RequestRefused

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


class Reader:
    """Reads on from the first message, at whatever node leads the stream."""

    def __init__(self, node: ClusterProcess, **arguments: Any) -> None:
        channel = node.connect().channel()
        self._connection = channel.connection
        self.got: list[tuple[int, bytes]] = []
        self.cancelled: list[Any] = []
        channel.add_on_cancel_callback(self.cancelled.append)
        channel.basic_qos(prefetch_count=7)
        channel.basic_consume("s", self._on_message, arguments=arguments)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        assert not method.redelivered
        self.got.append((properties.headers["x-stream-offset"], body))
        channel.basic_ack(method.delivery_tag)

    def reads(self, count: int) -> list[tuple[int, bytes]]:
        """All it has got, when that are at least so many messages."""

        def has_them() -> bool:
            self._connection.process_data_events(0.1)
            return len(self.got) >= count

        wait_until(has_them)
        assert not self.cancelled
        return self.got


def numbered(numbers: range) -> list[tuple[int, bytes]]:
    """Offsets and bodies."""
    return [(number, b"%d" % number) for number in numbers]


def declare(node: ClusterProcess, name: str = "s", **arguments: Any) -> None:
    table = {**STREAM, **{key.replace("_", "-"): value for key, value in arguments.items()}}
    node.connect().channel().queue_declare(name, durable=True, arguments=table)


def publisher(node: ClusterProcess) -> BlockingChannel:
    channel = node.connect().channel()
    channel.confirm_delivery()
    return channel


def roles(node: ClusterProcess, stream: str = "s") -> dict[str, str]:
    rows = node.asks("control", "streams", "/", stream, "status")
    return {row["node"]: row["role"] for row in rows}


def test_every_node_uses_it_and_shows_its_members(running_cluster: RunningCluster) -> None:
    cluster = running_cluster
    everything = {"pattern": ".*", "definition": {"ha-mode": "all"}, "apply-to": "queues"}
    cluster["a"].changes("policies", "/", "ha", body=everything)
    declare(cluster["a"])
    publish(publisher(cluster["b"]), "s", NUMBERS)
    whole, nodes = numbered(range(COUNT)), sorted(node.name for node in cluster.all_nodes)
    for node in "abc":
        row = cluster[node].until_queue("s", bool)
        assert sorted(row["members"]) == sorted(row["online"]) == nodes
        assert (row["node"], row["policy"]) == (cluster["a"].name, None)
        assert "leader" not in row and "slave_nodes" not in row
        assert read(cluster[node].connect().channel(), "first", COUNT) == whole
        assert read(cluster[node].connect().channel(), 20, COUNT - 20) == whole[20:]
    shown = cluster["b"].queue("s")
    assert (shown["first_offset"], shown["next_offset"]) == (0, COUNT)
    assert list(shown["readers"]) == [cluster["a"].name]


@pytest.mark.parametrize("refused", ["get", "purge", "nack"])
def test_refusals_are_those_of_its_node(running_cluster: RunningCluster, refused: str) -> None:
    declare(running_cluster["a"])
    publish(publisher(running_cluster["b"]), "s", NUMBERS[:1])
    channel = running_cluster["c"].connect().channel()
    with pytest.raises(ConnectionClosedByBroker, match="not supported by stream queues"):
        if refused == "get":
            channel.basic_get("s")
        elif refused == "purge":
            channel.queue_purge("s")
        else:
            channel.basic_qos(prefetch_count=1)
            arguments = {"x-stream-offset": "first"}
            method, _, _ = next(channel.consume("s", arguments=arguments))
            channel.basic_nack(method.delivery_tag)
            wait_until(lambda: channel.connection.process_data_events(0.1))


def test_readers_and_publishers_go_on_when_the_leader_is_killed(
    running_cluster: RunningCluster,
) -> None:
    a, b, c = (running_cluster[name] for name in "abc")
    declare(a)
    wait_until(lambda: sorted(roles(b).values()) == ["replica", "replica", "writer"])
    publishing = publisher(b)
    publish(publishing, "s", [b"%d" % number for number in range(50)])
    readers = [Reader(node, **{"x-stream-offset": "first"}) for node in (b, c)]
    readers += [Reader(c, **{"x-stream-offset": 50})]
    for reader in readers[:2]:
        assert reader.reads(50) == numbered(range(50))
    a.kill()
    publish(publishing, "s", [b"%d" % number for number in range(50, 100)])
    for reader in readers:
        got = reader.reads(100 if reader is not readers[2] else 50)
        assert got == numbered(range(100))[-len(got) :]
    shown = c.until_queue("s", lambda row: a.name not in row["online"])
    assert shown["node"] in (b.name, c.name)
    assert sorted(shown["members"]) == sorted([a.name, b.name, c.name])
    assert roles(c)[a.name] == "nodedown"

    a.start()
    running_cluster.wait_until_linked("a", "b", "c")
    wait_until(lambda: roles(a)[a.name] == "replica")
    publish(publisher(a), "s", [b"%d" % number for number in range(100, 120)])
    for reader in readers[:2]:
        assert reader.reads(120) == numbered(range(120))
    assert read(a.connect().channel(), "first", 120) == numbered(range(120))


def test_replicas_are_taken_away_and_added(running_cluster: RunningCluster) -> None:
    a, b, c = (running_cluster[name] for name in "abc")
    declare(a)
    wait_until(lambda: sorted(roles(b).values()) == ["replica", "replica", "writer"])
    publish(publisher(b), "s", NUMBERS)
    reader = Reader(c, **{"x-stream-offset": "first"})
    assert reader.reads(COUNT) == numbered(range(COUNT))
    status = json.loads(a.ctl("stream_status", "s", "--formatter", "json"))
    (figures,) = [row for row in status if row["role"] == "writer"]
    assert (figures["node"], figures["readers"]) == (a.name, 1)
    assert (figures["committed_offset"], figures["first_offset"]) == (COUNT - 1, 0)

    b.ctl("delete_replica", "s", a.name)
    wait_until(lambda: sorted(roles(b).values()) == ["replica", "writer"])
    assert a.name not in roles(b)
    publish(publisher(a), "s", [b"%d" % COUNT])
    assert reader.reads(COUNT + 1) == numbered(range(COUNT + 1))
    b.ctl("add_replica", "s", a.name)
    wait_until(lambda: roles(b).get(a.name) == "replica")
    b.ctl("delete_replica", "s", c.name)
    wait_until(lambda: c.name not in roles(b))
    # The copy at a has all of it, and is needed for the majority.
    publish(publisher(c), "s", [b"%d" % (COUNT + 1)])
    assert reader.reads(COUNT + 2) == numbered(range(COUNT + 2))
    with pytest.raises(AssertionError, match="node_not_running"):
        b.ctl("delete_replica", "s", "nobody@127.0.0.1")


def test_a_stream_without_a_majority_but_for_this_node_makes_it_critical(
    running_cluster: RunningCluster,
) -> None:
    a = running_cluster["a"]
    declare(a)
    wait_until(lambda: sorted(roles(a).values()) == ["replica", "replica", "writer"])
    assert a.asks("health", "checks", "node-is-quorum-critical") == {"status": "ok"}
    declare(a, "alone", x_initial_cluster_size=1)
    with pytest.raises(RequestRefused) as refused:
        a.asks("health", "checks", "node-is-quorum-critical")
    assert refused.value.status == 503
    (found,) = refused.value.answer["queues"]
    assert (found["name"], found["type"]) == ("alone", "stream")
    with pytest.raises(AssertionError, match="queue 'alone' in vhost '/'"):
        a.ctl("check_if_node_is_quorum_critical")


def test_leaders_are_spread_where_a_stream_says_so(running_cluster: RunningCluster) -> None:
    cluster = running_cluster
    channel: Any = cluster["a"].connect().channel()
    for number in range(6):
        arguments = {**STREAM, "x-queue-leader-locator": "balanced"}
        channel.queue_declare(f"s{number}", durable=True, arguments=arguments)
    nodes = {cluster["b"].queue(f"s{number}")["node"] for number in range(6)}
    assert len(nodes) == 3
    pika.BlockingConnection.close(channel.connection)
