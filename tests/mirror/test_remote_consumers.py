"""Very many consumers of a queue of another node, which leave it together."""

from __future__ import annotations

import pytest
from cluster import Cluster
from pamqp import commands
from pipe import Client

from warren.amqp.leaving import LEFT_AT_ONCE

MANY = 3 * LEFT_AT_ONCE


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b", "c")


def consuming(cluster: Cluster, *, auto_delete: bool) -> Client:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q", auto_delete=auto_delete)
    for number in range(MANY):
        b.sends(commands.Basic.Consume, queue="q", consumer_tag=f"c{number}", nowait=True)
    cluster.clock.advance(1)
    assert len(cluster["a"].queue("q").consumers) == MANY
    return b


def close(client: Client) -> None:
    ids = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}
    client.sends(commands.Channel.Close, **ids)


@pytest.mark.parametrize("how", ["closed", "lost"])
def test_all_of_them_leave(cluster: Cluster, how: str) -> None:
    client = consuming(cluster, auto_delete=False)
    if how == "closed":
        close(client)
        client.receives(commands.Channel.CloseOk)
    else:
        client.vanishes()
    cluster.clock.advance(1)
    assert not cluster["a"].queue("q").consumers
    assert not cluster["b"].queue("q").consumers


def test_an_auto_delete_queue_is_gone_when_the_channel_is_closed(cluster: Cluster) -> None:
    client = consuming(cluster, auto_delete=True)
    close(client)
    client.receives(commands.Channel.CloseOk)
    assert "q" not in cluster["b"].node.vhosts["/"].queues


def test_an_auto_delete_queue_stays_when_a_node_goes_that_had_no_consumer(
    cluster: Cluster,
) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("q", auto_delete=True)
    b.publishes("q", b"message")
    cluster.settle()
    cluster.kill("b")
    cluster.clock.advance(5)
    assert a.counts("q") == (1, 0)


def test_messages_that_only_those_had_come_back(cluster: Cluster) -> None:
    client = consuming(cluster, auto_delete=False)
    other = cluster["c"].connects()
    other.opens_channel(1)
    for number in range(2 * MANY):
        other.publishes("q", b"%d" % number)
    cluster.clock.advance(1)
    close(client)
    cluster.clock.advance(1)
    queue = cluster["a"].queue("q")
    assert (len(queue), queue.unacked) == (2 * MANY, 0)
    other.consumes("q", no_ack=True)
    assert other.receives_bodies() == [b"%d" % number for number in range(2 * MANY)]


def test_all_are_told_that_their_queue_is_gone(cluster: Cluster) -> None:
    client = consuming(cluster, auto_delete=False)
    admin = cluster["a"].connects()
    admin.opens_channel(1)
    client.frames()
    admin.sends(commands.Queue.Delete, queue="q")
    cluster.clock.advance(1)
    tags = [frame.method.consumer_tag for frame in client.frames()]
    assert tags == [f"c{number}" for number in range(MANY)]
