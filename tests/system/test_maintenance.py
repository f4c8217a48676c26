"""`warren ctl drain` and `revive`: a node of a cluster that others take over from, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pika
import pytest
from failover import put_policy
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker
from running_cluster import ClusterProcess, RunningCluster, publish, take, wait_until
from warren_command import run_warren

EVERYWHERE = {"ha-mode": "all", "ha-sync-mode": "automatic"}


def ctl(node: ClusterProcess, *arguments: str) -> str:
    """What it prints; it has to succeed."""
    done = run_warren("ctl", "--data-dir", node.data_directory, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def maintained(node: ClusterProcess) -> dict[str, str]:
    """The maintenance status of all nodes, as this one says it."""
    said = json.loads(ctl(node, "cluster_status", "--formatter", "json"))
    return {name.partition("@")[0]: state for name, state in said["maintenance_status"].items()}


def queue(node: ClusterProcess, name: str) -> Any:
    return node.until_queue(name, bool)


def in_sync(node: ClusterProcess, name: str, count: int) -> Callable[[], bool]:
    return lambda: len(node.in_sync(name)) == count


def test_a_drained_node_has_no_clients_and_leads_nothing_that_another_can(
    running_cluster: RunningCluster,
) -> None:
    a, b, c = running_cluster["a"], running_cluster["b"], running_cluster["c"]
    put_policy(a, "ha", "^ha", EVERYWHERE)
    theirs, ours = b.connect(), a.connect()
    channel = ours.channel()
    for name in ("ha.1", "ha.2", "ha.3", "alone"):
        channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    for name in ("ha.1", "ha.2", "ha.3", "alone"):
        publish(channel, name, [b"%d" % number for number in range(50)])
    for name in ("ha.1", "ha.2", "ha.3"):
        wait_until(in_sync(a, name, 2))

    said = ctl(a, "drain")
    assert f"Will put node {a.name} into maintenance mode" in said
    assert "1 queues stay here: no other node can lead them" in said
    # Clients of this node are sent away, and only they.
    with pytest.raises(ConnectionClosedByBroker, match="maintenance mode"):
        ours.process_data_events(time_limit=10)
    with pytest.raises(AMQPConnectionError):
        a.connect()
    theirs.process_data_events()
    # Its queues have gone to both of the others.
    leaders = {queue(b, name)["node"] for name in ("ha.1", "ha.2", "ha.3")}
    assert leaders == {b.name, c.name}
    assert queue(b, "alone")["node"] == a.name
    # Whoever looks, sees it.
    under = {
        "a": "under maintenance",
        "b": "not under maintenance",
        "c": "not under maintenance",
    }
    assert maintained(a) == maintained(b) == under
    assert {row["name"][0]: row["being_drained"] for row in c.asks("nodes")} == {
        "a": True,
        "b": False,
        "c": False,
    }
    assert "Is under maintenance?: true" in ctl(a, "status")
    # Nothing is lost, and mirrors stay where they are.
    channel = theirs.channel()
    for name in ("ha.1", "alone"):
        assert take(channel, name, 50) == [b"%d" % number for number in range(50)]
    for name in ("ha.1", "ha.2", "ha.3"):
        wait_until(in_sync(b, name, 2))

    assert f"Will put node {a.name} back into regular operating mode" in ctl(a, "revive")
    assert set(maintained(b).values()) == {"not under maintenance"}
    a.connect().close()
    # It is given queues again, by whoever spreads them.
    channel.queue_delete("alone")
    ctl(b, "rebalance", "all")
    wait_until(lambda: a.name in {queue(b, f"ha.{number}")["node"] for number in (1, 2, 3)})


def test_nothing_is_placed_at_a_drained_node(running_cluster: RunningCluster) -> None:
    a, b, c = running_cluster["a"], running_cluster["b"], running_cluster["c"]
    put_policy(a, "ha", "^ha", EVERYWHERE)
    put_policy(a, "spread", "^spread", {"queue-master-locator": "min-masters"})
    put_policy(a, "here", "^here", {"ha-mode": "nodes", "ha-params": [a.name, c.name]})
    ctl(a, "drain")
    try:
        channel = b.connect().channel()
        for number in range(4):
            channel.queue_declare(f"spread.{number}", durable=True)
        assert {queue(b, f"spread.{number}")["node"] for number in range(4)} == {b.name, c.name}
        # What is declared over its own HTTP goes elsewhere too.
        a.changes("queues", "/", "over.http", body={"durable": True})
        assert queue(b, "over.http")["node"] != a.name
        # A policy that lists it gets the other one it lists, and a mirror here.
        channel.queue_declare("here", durable=True)
        wait_until(lambda: queue(b, "here")["node"] == c.name)
        wait_until(lambda: queue(b, "here").get("synchronised_slave_nodes") == [a.name])
        # Rebalancing gives it nothing.
        for number in range(3):
            channel.queue_declare(f"ha.{number}", durable=True)
            wait_until(in_sync(b, f"ha.{number}", 2))
        ctl(b, "rebalance", "all")
        wait_until(lambda: c.name in {queue(b, f"ha.{number}")["node"] for number in range(3)})
        assert a.name not in {queue(b, f"ha.{number}")["node"] for number in range(3)}
    finally:
        ctl(a, "revive")


def test_what_cannot_be_handed_over_yet_goes_when_a_mirror_is_in_sync(
    running_cluster: RunningCluster,
) -> None:
    a, b = running_cluster["a"], running_cluster["b"]
    channel = a.connect().channel()
    channel.queue_declare("late", durable=True)
    channel.confirm_delivery()
    publish(channel, "late", [b"kept"])
    put_policy(a, "late", "^late", {"ha-mode": "all"})
    wait_until(lambda: len(queue(a, "late").get("slave_nodes", ())) == 2)
    assert "1 queues stay here" in ctl(a, "drain")
    try:
        assert queue(b, "late")["node"] == a.name
        ctl(b, "sync_queue", "late")
        wait_until(lambda: queue(b, "late")["node"] != a.name)
        assert take(b.connect().channel(), "late", 1) == [b"kept"]
    finally:
        ctl(a, "revive")


def test_a_drained_node_that_starts_anew_is_in_service(running_cluster: RunningCluster) -> None:
    a, b = running_cluster["a"], running_cluster["b"]
    ctl(a, "drain")
    # Whoever links with it later is told, too.
    b.stop()
    b.start()
    running_cluster.wait_until_linked("a", "b", "c")
    put_policy(b, "spread", "^spread", {"queue-master-locator": "min-masters"})
    channel = b.connect().channel()
    for number in range(4):
        channel.queue_declare(f"spread.{number}", durable=True)
    assert a.name not in {queue(b, f"spread.{number}")["node"] for number in range(4)}
    a.stop()
    a.start()
    running_cluster.wait_until_linked("a", "b", "c")
    assert set(maintained(b).values()) == {"not under maintenance"}
    pika.BlockingConnection(pika.URLParameters(a.url)).close()
    channel.queue_declare("spread.last", durable=True)
    assert queue(b, "spread.last")["node"] == a.name
