"""Limits of users and virtual hosts hold for all nodes of a cluster together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pika
import pytest
from pika.exceptions import AMQPConnectionError, AMQPError, ConnectionClosedByBroker
from running_cluster import RunningCluster, wait_until

VHOST, USER = "limited", "tenant"


@pytest.fixture
def cluster(running_cluster: RunningCluster) -> Iterator[RunningCluster]:
    """With a virtual host and a user of their own."""
    node = running_cluster["a"]
    node.changes("vhosts", VHOST, body={})
    node.changes("users", USER, body={"password": "secret", "tags": ""})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    node.changes("permissions", VHOST, USER, body=everything)
    yield running_cluster
    node.does("DELETE", "users", USER)
    node.does("DELETE", "vhosts", VHOST)


def connect(cluster: RunningCluster, node: str) -> pika.BlockingConnection:
    port = pika.URLParameters(cluster[node].url).port
    login = pika.PlainCredentials(USER, "secret")
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, VHOST, login))


def may_connect(cluster: RunningCluster, node: str) -> bool:
    try:
        connect(cluster, node).close()
    except AMQPConnectionError:
        return False
    return True


@pytest.mark.parametrize(
    "limits", [("vhost-limits", VHOST), ("user-limits", USER)], ids=["of the vhost", "of the user"]
)
def test_connections_to_all_nodes_count(cluster: RunningCluster, limits: tuple[str, str]) -> None:
    cluster["a"].changes(*limits, "max-connections", body={"value": 2})
    with ExitStack() as stack:
        first = stack.enter_context(connect(cluster, "a"))
        stack.enter_context(connect(cluster, "b"))
        for node in "abc":
            wait_until(lambda: not may_connect(cluster, node))  # noqa: B023
        # One that goes makes room, at every node.
        first.close()
        for node in "abc":
            wait_until(lambda: may_connect(cluster, node))  # noqa: B023


def test_channels_at_all_nodes_count(cluster: RunningCluster) -> None:
    cluster["a"].changes("user-limits", USER, "max-channels", body={"value": 3})
    with connect(cluster, "a") as a, connect(cluster, "b") as b:
        channels = [a.channel(), a.channel(), b.channel()]

        def is_refused() -> bool:
            try:
                with connect(cluster, "c") as other:
                    other.channel()
            except ConnectionClosedByBroker as error:
                assert "user limit of (3)" in error.reply_text
                return True
            return False

        wait_until(is_refused)
        channels[0].close()
        wait_until(lambda: not is_refused())
        # Those of a connection that ends go with it.
        channels.append(b.channel())
        wait_until(is_refused)
        b.close()
        wait_until(lambda: not is_refused())


def test_what_was_open_at_a_node_that_dies_counts_no_more(cluster: RunningCluster) -> None:
    cluster["a"].changes("user-limits", USER, "max-connections", body={"value": 1})
    lost = connect(cluster, "b")
    wait_until(lambda: not may_connect(cluster, "a"))
    cluster["b"].kill()
    with suppress(AMQPError):
        lost.close()
    wait_until(lambda: may_connect(cluster, "a"))
    # A node that comes back hears what the others have.
    with connect(cluster, "a"):
        cluster["b"].start()
        cluster.wait_until_linked("a", "b", "c")
        wait_until(lambda: not may_connect(cluster, "b"))
