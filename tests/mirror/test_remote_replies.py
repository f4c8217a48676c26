"""Direct replies between clients of different nodes."""

from __future__ import annotations

import pytest
from cluster import Cluster
from pamqp import commands

from warren.amqp.properties import scan
from warren.mirror.remote.remote_replies import RemoteReplies

PSEUDO_QUEUE = "amq.rabbitmq.reply-to"


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b")
    for name in ("a", "b"):
        node = cluster[name]
        RemoteReplies(node.node.replies, name, node.calls)
    return cluster


def test_a_server_at_another_node_answers_in_order(cluster: Cluster) -> None:
    asking, answering = cluster["a"].connects(), cluster["b"].connects()
    for client in (asking, answering):
        client.opens_channel(1)
    answering.declares("calls")
    asking.consumes(PSEUDO_QUEUE, no_ack=True)
    asking.publishes("calls", reply_to=PSEUDO_QUEUE)
    cluster.settle()
    asked = answering.gets("calls", no_ack=True)
    assert asked is not None
    octets = scan(asked.header).reply_to
    assert octets is not None
    address = octets.decode()
    assert address.endswith(".a")
    # To declare the address asks whether somebody waits there.
    answering.sends(commands.Queue.Declare, queue=address, passive=True)
    cluster.settle()
    answering.receives(commands.Queue.DeclareOk)
    for body in (b"1", b"2" * 2_000_000, b"3"):
        answering.publishes(address, body)
    cluster.settle()
    for body in (b"1", b"2" * 2_000_000, b"3"):
        reply = asking.receives_content(commands.Basic.Deliver)
        assert (reply.method.routing_key, reply.body) == (address, body)


def test_nobody_waits_at_a_node_that_is_down_or_a_channel_that_is_gone(cluster: Cluster) -> None:
    client = cluster["b"].connects()
    for number, address in enumerate((f"{PSEUDO_QUEUE}.token.a", f"{PSEUDO_QUEUE}.token.zz"), 1):
        client.opens_channel(number)
        client.publishes(address, channel=number)
        client.sends(commands.Queue.Declare, queue=address, passive=True, channel=number)
        cluster.settle()
        assert client.receives(commands.Channel.Close).reply_code == 404
