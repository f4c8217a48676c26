"""Federation between nodes that are processes of their own, and within a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
from reserved_port import reserve_port
from running_cluster import ClusterProcess, RunningCluster, take, wait_until
from server_process import PATIENCE_S, ServerProcess

from warren.mgmt.ctl.control_client import ControlClient, LocalTarget

LEASES_END = True
"""Tests wait until the lease of a node ends."""

MESSAGES = 600
UPSTREAM = {"reconnect-delay": 0.05, "prefetch-count": 50}
ON_ITS_WAY = UPSTREAM["prefetch-count"]


class Node:
    """A node that is alone, and a cluster of its own; it keeps its data and its port."""

    def __init__(
        self, start_server: Callable[..., ServerProcess], directory: Path, name: str
    ) -> None:
        self._start_server = start_server
        self._directory = directory / name
        self._name = name
        self._address = f"127.0.0.1:{reserve_port(self)}"
        self.start()

    def start(self) -> None:
        self.process = self._start_server(
            "--node-name",
            f"{self._name}@localhost",
            data_dir=self._directory,
            amqp=self._address,
        )

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        assert self.process.terminate() == 0

    @property
    def url(self) -> str:
        return self.process.url

    def does(self, method: str, *path: str, body: Any = None) -> Any:
        client = ControlClient(LocalTarget(self._directory), 30)
        try:
            return client.request(method, *path, body=body)
        finally:
            client.close()

    def federate(self, pattern: str, uri: str) -> None:
        value = {**UPSTREAM, "uri": uri}
        self.does("PUT", "parameters", "federation-upstream", "/", "u", body={"value": value})
        body = {"pattern": pattern, "definition": {"federation-upstream-set": "all"}}
        self.does("PUT", "policies", "/", "fed", body=body)
        wait_until(self.federates)

    def federates(self) -> bool:
        return [row["status"] for row in self.does("GET", "federation-links")] == ["running"]


def declare(node: Node, queue: str, exchange: str = "") -> None:
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        if exchange:
            channel.exchange_declare(exchange, "direct", durable=True)
            channel.queue_bind(queue, exchange, "k")


def publish(node: Node, exchange: str, key: str, numbers: range) -> None:
    """They are safe at the node when this returns."""
    persistent = pika.BasicProperties(delivery_mode=2)
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in numbers:
            channel.basic_publish(exchange, key, b"%d" % number, persistent, mandatory=True)


def drain(node: Node, queue: str, found: Counter[int], count: int) -> None:
    """Take messages until so many different ones have come."""
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        for method, _, body in channel.consume(queue, inactivity_timeout=PATIENCE_S):
            assert body is not None, f"{count - len(found)} messages did not come"
            found[int(body)] += 1
            channel.basic_ack(method.delivery_tag)
            if len(found) >= count:
                break
        channel.cancel()


def count(node: Node, queue: str) -> int:
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        found = connection.channel().queue_declare(queue, passive=True)
        return int(found.method.message_count)


def test_exchange_loses_nothing_when_either_side_is_killed_or_stopped(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    up = Node(start_server, tmp_path, "up")
    down = Node(start_server, tmp_path, "down")
    declare(down, "q", "x")
    down.federate("^x$", up.url)
    helper = "federation: x -> down@localhost"
    publish(up, "x", "k", range(100))
    down.kill()
    publish(up, "x", "k", range(100, 200))
    up.kill()
    up.start()
    assert count(up, helper) >= 100
    down.start()
    wait_until(down.federates)
    publish(up, "x", "k", range(200, 300))
    # An orderly stop keeps what waits upstream, too.
    down.stop()
    publish(up, "x", "k", range(300, 400))
    up.stop()
    up.start()
    waiting = count(up, helper)
    assert waiting >= 100
    down.start()
    wait_until(down.federates)
    up.kill()
    wait_until(lambda: not down.federates())
    up.start()
    wait_until(down.federates)
    publish(up, "x", "k", range(400, MESSAGES))
    found: Counter[int] = Counter()
    drain(down, "q", found, MESSAGES)
    assert found.keys() == set(range(MESSAGES))
    # Messages that were on their way when `down` ended may have come twice. So may messages that it
    # had acknowledged when `up` was killed: acknowledgements reach the disk a little later.
    assert found.total() - MESSAGES <= 2 * ON_ITS_WAY + waiting
    assert all(found[number] == 1 for number in range(400, MESSAGES))
    wait_until(lambda: count(up, helper) == 0)


def test_queue_loses_nothing_when_either_side_is_killed(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    up = Node(start_server, tmp_path, "up")
    down = Node(start_server, tmp_path, "down")
    declare(up, "q")
    declare(down, "q")
    down.federate("^q$", up.url)
    publish(up, "", "q", range(MESSAGES))
    assert count(down, "q") == 0
    found: Counter[int] = Counter()
    drain(down, "q", found, 100)
    up.kill()
    wait_until(lambda: not down.federates())
    up.start()
    wait_until(down.federates)
    drain(down, "q", found, 200)
    down.kill()
    down.start()
    drain(down, "q", found, MESSAGES)
    assert found.keys() == set(range(MESSAGES))


# In a cluster


def shown(node: ClusterProcess, name: str) -> Any:
    """Node and state of the link of the exchange or queue of this name, as the node tells."""
    for row in node.asks("federation-links"):
        if row.get(row["type"]) == name:
            return row["node"], row["status"]
    return None


def make_vhost(node: ClusterProcess, name: str) -> None:
    node.changes("vhosts", name, body={})
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    node.changes("permissions", name, "guest", body=every)


def test_link_of_an_exchange_moves_when_its_node_dies(running_cluster: RunningCluster) -> None:
    cluster = running_cluster
    make_vhost(cluster["a"], "up")
    channel = cluster["b"].connect().channel()
    channel.exchange_declare("x", "direct", durable=True)
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "x", "k")
    value = {**UPSTREAM, "uri": "amqp:///up"}
    cluster["a"].changes("parameters", "federation-upstream", "/", "u", body={"value": value})
    policy = {"pattern": "^x$", "definition": {"federation-upstream": "u"}}
    cluster["b"].changes("policies", "/", "fed", body=policy)
    for node in cluster.nodes.values():
        wait_until(lambda: shown(node, "x") == ("a@127.0.0.1", "running"))  # noqa: B023
    (row,) = cluster["c"].asks("federation-links")
    restart = ("federation-links", "vhost", "/", row["id"], row["node"], "restart")
    cluster["c"].does("DELETE", *restart)
    wait_until(lambda: cluster["a"].log.count("federation_link_running") == 2)
    wait_until(lambda: shown(cluster["c"], "x") == ("a@127.0.0.1", "running"))
    # At a node that stays: the queue upstream was made at a.
    assert "restarted" not in cluster["c"].ctl("restart_federation_link", row["id"])
    wait_until(lambda: shown(cluster["c"], "x") == ("a@127.0.0.1", "running"))
    cluster["a"].kill()
    wait_until(lambda: (found := shown(cluster["b"], "x")) and found[0] != "a@127.0.0.1")
    # The other survivor may show it before the one that has claimed it has said so.
    wait_until(lambda: any("parameter_claimed" in cluster[name].log for name in "bc"))
    assert sum("parameter_claimed" in cluster[name].log for name in "bc") == 1
    cluster["a"].start()
    cluster.wait_until_linked(*cluster.nodes)
    wait_until(lambda: (found := shown(cluster["b"], "x")) and found[1] == "running")
    assert shown(cluster["a"], "x")[0] != "a@127.0.0.1"
    with pika.BlockingConnection(
        pika.URLParameters(cluster["c"].url.replace("%2F", "up"))
    ) as connection:
        connection.channel().basic_publish("x", "k", b"m")
        wait_until(lambda: cluster["b"].queue("q").get("messages") == 1)
    cluster["b"].does("DELETE", "policies", "/", "fed")
    cluster["b"].does("DELETE", "parameters", "federation-upstream", "/", "u")
    wait_until(lambda: shown(cluster["a"], "x") is None)
    cluster["b"].does("DELETE", "vhosts", "up")


def test_link_of_a_queue_runs_where_the_queue_is_led(running_cluster: RunningCluster) -> None:
    cluster = running_cluster
    make_vhost(cluster["c"], "up")
    channel = cluster["b"].connect().channel()
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    value = {**UPSTREAM, "uri": "amqp:///up"}
    cluster["a"].changes("parameters", "federation-upstream", "/", "u", body={"value": value})
    policy = {"pattern": "^q$", "definition": {"federation-upstream": "u"}}
    cluster["a"].changes("policies", "/", "fed", body=policy)
    leader = cluster["a"].queue("q")["node"]
    for node in cluster.nodes.values():
        wait_until(lambda: shown(node, "q") == (leader, "running"))  # noqa: B023
    up = f"{cluster['c'].url.replace('%2F', 'up')}"
    with pika.BlockingConnection(pika.URLParameters(up)) as connection:
        connection.channel().basic_publish("", "q", b"first")
    reader = cluster["c"].connect().channel()
    assert take(reader, "q", 1) == [b"first"]
    # The next leader is another node, and so is the place of the link.
    cluster.nodes[leader.partition("@")[0]].kill()
    stays = next(node for node in cluster.nodes.values() if node.is_up)

    def moved() -> Any:
        now = stays.queue("q").get("node")
        return now != leader and shown(stays, "q") and shown(stays, "q")[0] == now

    wait_until(moved)
    cluster.nodes[leader.partition("@")[0]].start()
    cluster.wait_until_linked(*cluster.nodes)
    stays.does("DELETE", "policies", "/", "fed")
    stays.does("DELETE", "parameters", "federation-upstream", "/", "u")
    wait_until(lambda: shown(stays, "q") is None)
    stays.does("DELETE", "vhosts", "up")
