"""The HTTP API and `warren ctl` in a cluster: every node answers for all of them."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError
from running_cluster import ClusterProcess, RunningCluster, publish, wait_until
from warren_command import run_warren

from warren.mgmt.ctl.control_client import ControlClient, RemoteTarget
from warren.mgmt.peers import ASK_S


@pytest.fixture
def cluster(running_cluster: RunningCluster) -> RunningCluster:
    return running_cluster


@pytest.fixture
def connections(cluster: RunningCluster) -> dict[str, pika.BlockingConnection]:
    """A client of each node."""
    return {name: node.connect() for name, node in cluster.nodes.items()}


def over_http(node: ClusterProcess, method: str, *path: str, body: Any = None) -> Any:
    url = f"http://127.0.0.1:{node.http_port}"
    client = ControlClient(RemoteTarget(url, "guest", "guest"), 30)
    try:
        return client.request(method, *path, body=body)
    finally:
        client.close()


def ctl(node: ClusterProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_warren("ctl", "--data-dir", node.data_directory, *arguments)


Connections = dict[str, pika.BlockingConnection]


def test_all_nodes_are_listed_by_each(cluster: RunningCluster) -> None:
    names = [node.name for node in cluster.nodes.values()]
    for node in cluster.nodes.values():
        rows = node.asks("nodes")
        assert [row["name"] for row in rows] == names
        assert all(row["running"] and row["mem_used"] > 0 for row in rows)
        others = [link["name"] for row in rows for link in row["cluster_links"]]
        assert sorted(others) == sorted(names * 2)
    row = cluster["a"].asks("nodes", names[2], memory="true")
    assert row["name"] == names[2] and row["memory"]["total"]["rss"] > 0
    assert len({row["os_pid"] for row in cluster["a"].asks("nodes")}) == 3
    assert cluster["a"].asks("nodes", names[1], "memory")["memory"]["code"]


def test_queues_of_all_nodes_are_shown_with_their_figures(
    cluster: RunningCluster, connections: Connections
) -> None:
    for number, (name, connection) in enumerate(connections.items(), 1):
        channel = connection.channel()
        channel.queue_declare(f"q-{name}", durable=True)
        channel.confirm_delivery()
        publish(channel, f"q-{name}", [b"x"] * number)
    for node in cluster.nodes.values():
        wait_until(lambda: len(node.asks("queues")) == 3)  # noqa: B023
        rows = node.asks("queues")
        assert [(row["name"], row["node"], row["messages"]) for row in rows] == [
            ("q-a", "a@127.0.0.1", 1),
            ("q-b", "b@127.0.0.1", 2),
            ("q-c", "c@127.0.0.1", 3),
        ]
        assert all(row["state"] == "running" and row["message_bytes"] for row in rows)
    page = cluster["b"].asks(
        "queues", page="1", page_size="2", sort="messages_ready", sort_reverse="true"
    )
    assert [row["name"] for row in page["items"]] == ["q-c", "q-b"]
    assert (page["total_count"], page["page_count"]) == (3, 2)
    by_node = cluster["b"].asks("queues", sort="node", sort_reverse="true", columns="node")
    assert [row["node"][0] for row in by_node] == ["c", "b", "a"]
    one = cluster["a"].until_queue("q-c", bool)
    assert (one["messages_ready"], one["node"], one["consumer_details"]) == (3, "c@127.0.0.1", [])
    printed = ctl(cluster["c"], "-q", "list_queues", "name", "messages", "state", "pid")
    lines = printed.stdout.splitlines()[1:]
    assert [line.split("\t")[:3] for line in lines] == [
        ["q-a", "1", "running"],
        ["q-b", "2", "running"],
        ["q-c", "3", "running"],
    ]
    assert [line.split("\t")[3][1] for line in lines] == ["a", "b", "c"]
    assert cluster["a"].asks("overview")["queue_totals"]["messages"] == 6


def test_connections_channels_and_consumers_of_all_nodes_are_shown(
    cluster: RunningCluster, connections: Connections
) -> None:
    connections["a"].channel().queue_declare("work")
    consumer = connections["b"].channel()
    consumer.basic_consume("work", lambda *_: None, consumer_tag="theirs")
    a = cluster["a"]
    rows = a.asks("connections")
    assert sorted(row["node"][0] for row in rows) == ["a", "b", "c"]
    page = a.asks("connections", page="2", page_size="2")
    assert (page["total_count"], len(page["items"])) == (3, 1)
    channels = cluster["c"].asks("channels")
    assert sorted(row["node"][0] for row in channels) == ["a", "b"]
    (shown,) = cluster["c"].asks("consumers")
    assert (shown["consumer_tag"], shown["queue"]["name"]) == ("theirs", "work")
    assert shown["channel_details"]["node"] == "b@127.0.0.1"
    details = cluster["c"].asks("queues", "/", "work")["consumer_details"]
    assert [one["channel_details"] for one in details] == [shown["channel_details"]]
    address = (shown["channel_details"]["peer_host"], shown["channel_details"]["peer_port"])
    assert address in [(row["peer_host"], row["peer_port"]) for row in rows]
    totals = a.asks("overview")["object_totals"]
    assert (totals["connections"], totals["channels"], totals["consumers"]) == (3, 2, 1)
    (theirs,) = (row for row in rows if row["node"] == "b@127.0.0.1")
    assert a.asks("connections", theirs["name"])["pid"] == theirs["pid"]
    assert len(a.asks("connections", theirs["name"], "channels")) == 1
    assert a.asks("channels", channels[-1]["name"])["consumer_details"] is not None
    a.does("DELETE", "connections", theirs["name"])
    with pytest.raises(AMQPError):
        connections["b"].process_data_events(time_limit=10)
    wait_until(lambda: len(a.asks("connections")) == 2)


def test_every_node_shows_which_consumer_is_active(
    cluster: RunningCluster, connections: Connections
) -> None:
    arguments = {"x-single-active-consumer": True}
    connections["a"].channel().queue_declare("single", arguments=arguments)
    channels = {}
    for node in "bca":
        channels[node] = connections[node].channel()
        channels[node].basic_consume("single", lambda *_: None, consumer_tag=f"at {node}")

    def shown(rows: list[dict[str, Any]]) -> dict[str, tuple[bool, str]]:
        return {row["consumer_tag"]: (row["active"], row["activity_status"]) for row in rows}

    for active in "bc":
        wanted = {f"at {node}": (False, "waiting") for node in channels}
        wanted[f"at {active}"] = (True, "single_active")
        for node in cluster.nodes.values():
            assert shown(node.asks("consumers")) == wanted
            queue = node.queue("single")
            assert shown(queue["consumer_details"]) == wanted
            assert queue["single_active_consumer_tag"] == f"at {active}"
            of_channels = [
                one
                for row in node.asks("channels")
                for one in node.asks("channels", row["name"])["consumer_details"]
            ]
            assert shown(of_channels) == wanted
            details = of_channels[0]["channel_details"]
            chosen = node.asks("channels", details["name"], columns="number")
            assert chosen == {"number": details["number"]}
        channels.pop(active).close()


def test_what_is_published_at_all_nodes_is_added_up(
    cluster: RunningCluster, connections: Connections
) -> None:
    channels = {name: connection.channel() for name, connection in connections.items()}
    channels["a"].queue_declare("q", durable=True)
    channels["a"].exchange_declare("x", "fanout", durable=True)
    channels["a"].queue_bind("q", "x")
    for channel in channels.values():
        channel.confirm_delivery()
        wait_until(lambda: cluster["c"].asks("exchanges", "/", "x", "bindings", "source"))
        channel.basic_publish("x", "", b"one")
    for node in cluster.nodes.values():
        node.until_queue("q", lambda row: row.get("messages") == 3)
        stats = node.asks("exchanges", "/", "x")["message_stats"]
        assert (stats["publish_in"], stats["publish_out"]) == (3, 3)
        listed = {row["name"]: row for row in node.asks("exchanges", "/")}
        assert listed["x"]["message_stats"]["publish_in"] == 3
        vhost = node.asks("vhosts", "/")
        assert (vhost["messages"], set(vhost["cluster_state"])) == (
            3,
            {node.name for node in cluster.nodes.values()},
        )
        assert node.asks("vhosts")[0]["messages_ready"] == 3
    printed = ctl(cluster["b"], "-s", "list_queues", "--local", "name").stdout
    assert printed == ""
    printed = ctl(cluster["a"], "-s", "list_queues", "--local", "--online", "name").stdout
    assert printed == "q\n"
    cluster["a"].does("DELETE", "exchanges", "/", "x")


def test_listeners_of_all_nodes_are_in_the_overview(cluster: RunningCluster) -> None:
    overview = cluster["b"].asks("overview")
    amqp = {row["node"]: row["port"] for row in overview["listeners"] if row["protocol"] == "amqp"}
    assert amqp == {node.name: node.amqp_port for node in cluster.nodes.values()}
    cluster["a"].does("PUT", "cluster-name", body={"name": "burrow"})
    wait_until(lambda: cluster["c"].asks("cluster-name") == {"name": "burrow"})


def test_a_node_that_says_nothing_delays_nobody_for_long(
    cluster: RunningCluster, connections: Connections
) -> None:
    connections["b"].channel().queue_declare("silent", durable=True)
    a = cluster["a"]
    wait_until(lambda: a.asks("queues"))
    cluster["b"].stand_still()
    began = time.monotonic()
    (row,) = a.asks("queues")
    listed = a.asks("connections", columns="node")
    took_s = time.monotonic() - began
    cluster["b"].go_on()
    assert (row["node"], row["state"]) == ("b@127.0.0.1", "down")
    assert sorted(one["node"][0] for one in listed) == ["a", "c"]
    assert took_s < 2 * ASK_S
    cluster.wait_until_linked("a", "b", "c")


def test_messages_are_put_and_fetched_at_any_node(
    cluster: RunningCluster, connections: Connections
) -> None:
    connections["a"].channel().queue_declare("q", durable=True)
    c = cluster["c"]
    wait_until(lambda: c.asks("queues"))
    message = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
    path = ("exchanges", "/", "amq.default", "publish")
    assert over_http(c, "POST", *path, body=message) == {"routed": True}
    wanted = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    (got,) = over_http(c, "POST", "queues", "/", "q", "get", body=wanted)
    assert got["payload"] == "x"
    c.does("DELETE", "queues", "/", "q", "contents")
    assert c.asks("queues", "/", "q")["messages"] == 0


def test_definitions_are_imported_in_a_cluster(cluster: RunningCluster) -> None:
    count = 300
    names = [f"imported-{number}" for number in range(count)]
    queue = {"durable": True, "auto_delete": False, "arguments": {}}
    binding = {"destination_type": "queue", "routing_key": "", "arguments": {}}
    definitions = {
        "users": [{"name": "ann", "password": "secret", "tags": "monitoring", "limits": {}}],
        "vhosts": [{"name": "burrow"}],
        "permissions": [
            {"user": "ann", "vhost": "burrow", "configure": "", "write": "", "read": ".*"}
        ],
        "exchanges": [
            {"name": "x", "vhost": "burrow", "type": "fanout", "internal": False, **queue}
        ],
        "policies": [
            {"vhost": "burrow", "name": "p", "pattern": ".*", "definition": {"max-length": 5}}
        ],
        "queues": [{"name": name, "vhost": "burrow", **queue} for name in names],
        "bindings": [
            {"source": "x", "vhost": "burrow", "destination": name, **binding} for name in names
        ],
    }
    cluster["b"].does("POST", "definitions", body=definitions)
    # Whoever is told that it is done sees it at this node, and soon at the others.
    assert len(cluster["b"].asks("queues", "burrow", disable_stats="true")) == count
    assert len(cluster["b"].asks("bindings", "burrow")) == 2 * count
    assert cluster["b"].asks("permissions", "burrow", "ann")["read"] == ".*"
    wait_until(lambda: len(cluster["c"].asks("bindings", "burrow")) == 2 * count)
    cluster["c"].does("DELETE", "vhosts", "burrow")
    cluster["c"].does("DELETE", "users", "ann")
    wait_until(lambda: len(cluster["a"].asks("vhosts")) == 1)


def test_what_is_made_can_be_used_in_the_next_request(cluster: RunningCluster) -> None:
    for number, node in enumerate(cluster.nodes.values()):
        name = f"vhost-{number}"
        node.does("PUT", "vhosts", name, body={})
        node.does("PUT", "users", "ann", body={"password": "x", "tags": ""})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        node.does("PUT", "permissions", name, "ann", body=everything)
        node.does("PUT", "exchanges", name, "x", body={"type": "fanout"})
        node.does("PUT", "queues", name, "q", body={"durable": True})
        node.does("POST", "bindings", name, "e", "x", "q", "q", body={"routing_key": "k"})
        assert len(node.asks("bindings", name, "e", "x", "q", "q")) == 1
        node.does("DELETE", "vhosts", name)
    cluster["a"].does("DELETE", "users", "ann")
