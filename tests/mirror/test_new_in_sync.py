"""A mirror that is about to be in sync: it may lead as soon as the definition says so, and has to
have heard by then what the leader did while it alone decided what is confirmed, and handed out.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import Cluster
from cluster_disk import backings_on
from mirrored import record
from pamqp import commands
from pipe import Client

BY_HAND = {"ha-mode": "all", "ha-replication": "log", "ha-sync-mode": "manual"}


@pytest.fixture
def cluster() -> Cluster:
    """The queue has one mirror, which is being sent three messages."""
    cluster = Cluster("a", "b", new_backing=backings_on({}))
    client = publisher(cluster)
    client.declares("ha", durable=True)
    for number in range(3):
        client.publishes("ha", b"old %d" % number, delivery_mode=2)
    cluster.clock.advance(1)
    cluster["a"].node.policies.set("/", "ha", "^ha$", BY_HAND, 0, "queues")
    cluster.clock.advance(5)
    assert record(cluster, "ha").mirrors == ["b"] and not record(cluster, "ha").in_sync
    cluster["a"].mirroring.synchronise(cluster["a"].queue("ha"))
    (led,) = cluster["a"].mirroring._led.values()
    copy = led.leader.copies["b"]
    while copy.sync is None or copy.sent < 3 or copy.slice:
        cluster.clock.advance(0.001)
    assert not copy.in_sync
    return cluster


def publisher(cluster: Cluster) -> Client:
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.selects_confirms()
    return client


def becomes_in_sync(cluster: Cluster, meanwhile: Callable[[], object]) -> Client:
    """The mirror reports a message, and is in sync, before it hears of what is done meanwhile."""
    client = publisher(cluster)
    cluster.stall("b", "a")
    client.publishes("ha", b"first", delivery_mode=2)
    cluster.clock.advance(0.0005)
    cluster.stall("a", "b")
    meanwhile()
    cluster.clock.advance(0.001)
    cluster.unstall("b", "a")
    cluster.clock.advance(0.05)
    return client


def tags_confirmed(client: Client) -> int:
    acks = [one.method for one in client.frames() if isinstance(one.method, commands.Basic.Ack)]
    return max([ack.delivery_tag for ack in acks], default=0)


def dies(cluster: Cluster) -> bool:
    """Whether the mirror leads when the leader has died."""
    cluster.kill("a")
    cluster.clock.advance(15)
    return record(cluster, "ha", "b").leader == "b"


def test_what_was_confirmed_before_is_not_lost(cluster: Cluster) -> None:
    client = publisher(cluster)
    becomes_in_sync(cluster, lambda: client.publishes("ha", b"second", delivery_mode=2))
    confirmed = tags_confirmed(client)
    if dies(cluster):
        assert len(cluster["b"].queue("ha")) == 4 + confirmed


def test_what_was_handed_out_before_is_redelivered(cluster: Cluster) -> None:
    client = cluster["a"].connects()
    client.opens_channel(1)
    becomes_in_sync(cluster, lambda: client.consumes("ha", "c"))
    handed_out = {one.body for one in client.receives_deliveries()}
    if dies(cluster):
        other = cluster["b"].connects()
        other.opens_channel(1)
        other.consumes("ha", "c")
        for one in other.receives_deliveries():
            assert one.method.redelivered or one.body not in handed_out


def test_it_is_in_sync_once_it_has_heard(cluster: Cluster) -> None:
    client = publisher(cluster)
    becomes_in_sync(cluster, lambda: client.publishes("ha", b"second", delivery_mode=2))
    cluster.unstall("a", "b")
    cluster.clock.advance(1)
    assert record(cluster, "ha").in_sync == ["b"]
    assert dies(cluster)
    assert len(cluster["b"].queue("ha")) == 5
