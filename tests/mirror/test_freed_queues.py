"""A queue that comes and goes leaves nothing in memory, at any node.

The collector runs over young objects only while a node serves: a full run would hold up everybody.
So what is done with has to be free of circles, or it stays until the node is restarted.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from cluster import Cluster
from pamqp import commands
from pipe import Client

from warren.core.field import Field

GM = {"ha-mode": "all"}
LOG = {"ha-mode": "all", "ha-replication": "log"}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b", "c")


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def circles() -> list[str]:
    """What of queues and their copies only the collector could free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    return sorted(
        type(one).__qualname__
        for one in gc.garbage
        if type(one).__module__.startswith(("warren.core.", "warren.mirror."))
    )


def comes_and_goes(
    cluster: Cluster, here: Client, there: Client, arguments: dict[str, Field]
) -> None:
    """A queue is declared, used from its own node and from another, and deleted."""
    here.sends(commands.Queue.Declare, queue="q", durable=True, arguments=arguments)
    cluster.clock.advance(5)
    here.receives(commands.Queue.DeclareOk)
    there.sends(commands.Basic.Qos, prefetch_count=1)
    there.sends(commands.Basic.Consume, queue="q", consumer_tag="c")
    cluster.clock.advance(1)
    for client in (here, there):
        client.publishes("q")
    cluster.clock.advance(1)
    there.sends(commands.Basic.Cancel, consumer_tag="c")
    cluster.clock.advance(1)
    here.sends(commands.Queue.Delete, queue="q")
    cluster.clock.advance(60)
    for client in (here, there):
        client.frames()


@pytest.mark.parametrize(
    ("policy", "arguments"),
    [
        pytest.param({}, {}, id="plain"),
        pytest.param(GM, {}, id="gm"),
        pytest.param(LOG, {}, id="log"),
        pytest.param(GM, {"x-max-priority": Field("b", 2)}, id="priority"),
        pytest.param({}, {"x-queue-type": Field("S", b"quorum")}, id="quorum"),
        pytest.param({}, {"x-queue-type": Field("S", b"stream")}, id="stream"),
    ],
)
def test_a_queue_that_comes_and_goes_leaves_nothing(
    cluster: Cluster, no_collector: None, policy: dict[str, object], arguments: dict[str, Field]
) -> None:
    if policy:
        cluster["a"].node.policies.set("/", "ha", "^q", policy, 0, "queues")
    clients = cluster["a"].connects(), cluster["b"].connects()
    for client in clients:
        client.opens_channel(1)
    comes_and_goes(cluster, *clients, arguments)
    comes_and_goes(cluster, *clients, arguments)
    assert circles() == []
