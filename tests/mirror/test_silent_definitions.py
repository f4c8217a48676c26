"""A cluster whose definitions nobody answers for: what waits for them, and what does not."""

from __future__ import annotations

import pytest
from cluster import Cluster
from pamqp import commands

NODES = "abc"


@pytest.fixture
def cluster() -> Cluster:
    """With a queue `q`, bound to amq.topic by `key`; a client at `a` waits for its queue `new`."""
    cluster = Cluster(*NODES)
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.declares("q", durable=True)
    client.sends(commands.Queue.Bind, queue="q", exchange="amq.topic", routing_key="key")
    client.receives(commands.Queue.BindOk)
    for name in NODES:
        cluster.cut_store(name)
    client.sends(commands.Queue.Declare, queue="new", durable=True)
    client.receives_nothing()
    return cluster


def test_what_is_defined_already_is_answered(cluster: Cluster) -> None:
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.declares("q", durable=True)
    client.sends(commands.Queue.Bind, queue="q", exchange="amq.topic", routing_key="key")
    client.receives(commands.Queue.BindOk)
    client.sends(commands.Queue.Unbind, queue="q", exchange="amq.topic", routing_key="other")
    client.receives(commands.Queue.UnbindOk)
    client.sends(commands.Queue.Delete, queue="none")
    client.receives(commands.Queue.DeleteOk)


@pytest.mark.parametrize("name", NODES)
def test_publishes_are_confirmed_and_their_answers_held_behind_nothing(
    cluster: Cluster, name: str
) -> None:
    client = cluster[name].connects()
    client.opens_channel(1)
    client.selects_confirms()
    client.declares("q", durable=True)
    client.publishes("q", b"1", delivery_mode=2)
    assert client.receives(commands.Basic.Ack).delivery_tag == 1
    client.consumes("q")
    assert client.receives_bodies() == [b"1"]


def test_a_queue_that_waits_is_not_there_yet(cluster: Cluster) -> None:
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.selects_confirms()
    client.publishes("new", mandatory=True, delivery_mode=2)
    assert client.receives_content(commands.Basic.Return).method.reply_text == "NO_ROUTE"
    assert client.receives(commands.Basic.Ack).delivery_tag == 1
    for name in NODES:
        cluster.restore_store(name)
    cluster.settle()
    assert client.counts("new") == (0, 0)
