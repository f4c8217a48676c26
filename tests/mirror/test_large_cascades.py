"""A deletion in a cluster that takes more along than one transaction of etcd can check."""

from __future__ import annotations

import pytest
from cluster import Cluster
from pamqp import commands
from pipe import Client

from warren.mirror.definitions.shared_definitions import PRECONDITIONS_MAX

MANY = 2 * PRECONDITIONS_MAX


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b")


@pytest.fixture
def client(cluster: Cluster) -> Client:
    client = cluster["a"].connects()
    client.opens_channel(1)
    return client


def bind_many(cluster: Cluster, client: Client, queue: str) -> None:
    """Auto-delete exchanges that have no other binding than one to the queue."""
    for number in range(MANY):
        name = f"x{number}"
        client.sends(
            commands.Exchange.Declare,
            exchange=name,
            exchange_type="fanout",
            auto_delete=True,
            nowait=True,
        )
        client.sends(commands.Queue.Bind, queue=queue, exchange=name, nowait=True)
    cluster.clock.advance(5)
    assert len(left(cluster)) == MANY


def left(cluster: Cluster) -> list[str]:
    return [name for name in cluster["b"].node.vhosts["/"].exchanges if name.startswith("x")]


def test_very_many_exchanges_go_with_a_queue(cluster: Cluster, client: Client) -> None:
    client.declares("q")
    bind_many(cluster, client, "q")
    client.sends(commands.Queue.Delete, queue="q")
    cluster.clock.advance(5)
    client.receives(commands.Queue.DeleteOk)
    assert not left(cluster)


def test_very_many_exchanges_go_with_a_queue_that_nobody_uses(
    cluster: Cluster, client: Client
) -> None:
    client.declares("q", auto_delete=True)
    bind_many(cluster, client, "q")
    client.consumes("q")
    client.sends(commands.Basic.Cancel, consumer_tag="c")
    cluster.clock.advance(5)
    assert "q" not in cluster["b"].node.vhosts["/"].queues
    assert not left(cluster)
