"""Messages that are taken from the middle of a mirrored queue: what mirrors have of them."""

from __future__ import annotations

import pytest
from cluster import Cluster
from cluster_disk import Disk, backings_on
from pamqp import commands
from pipe import Client

from warren.core.definitions.records import QueueRecord
from warren.core.field import Field, longstr
from warren.core.messages.message import Message
from warren.core.queues.local_queue import LocalQueue

POLICY = {"ha-mode": "all", "ha-sync-mode": "automatic"}
KINDS: list[dict[str, Field]] = [{}, {"x-queue-type": longstr("quorum")}]


@pytest.fixture(params=KINDS, ids=["mirrored", "quorum"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    disks: dict[str, Disk] = {}
    cluster = Cluster("a", "b", "c", new_backing=backings_on(disks))
    cluster["a"].node.policies.set("/", "ha", "^ha", POLICY, 0, "queues")
    client = opened(cluster, "a")
    client.sends(commands.Queue.Declare, queue="ha", durable=True, arguments=request.param)
    cluster.clock.advance(5)
    client.receives(commands.Queue.DeclareOk)
    client.selects_confirms()
    for number in range(20):
        client.publishes("ha", b"%d" % number, delivery_mode=2)
    cluster.clock.advance(1)
    return cluster


def opened(cluster: Cluster, node: str) -> Client:
    client = cluster[node].connects()
    client.opens_channel(1)
    return client


def record(cluster: Cluster) -> QueueRecord:
    stored = cluster[cluster.alive[0]].metadata.get(("queue", "/", "ha"))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    return stored.record


def leading(cluster: Cluster) -> LocalQueue:
    queue = cluster[record(cluster).leader].node.vhosts["/"].queues["ha"]
    assert queue.is_here
    return queue


def take(cluster: Cluster, *bodies: bytes) -> list[Message]:
    queue = leading(cluster)
    ready = queue.levels[0].peek(0, 1000, 1 << 20).messages
    taken = queue.in_hand.take(0, [message.position for message in ready if message.body in bodies])
    assert [message.body for message in taken] == list(bodies)
    cluster.clock.advance(1)
    return taken


def die(cluster: Cluster) -> None:
    """The leader dies, and another node leads."""
    before = record(cluster).leader
    cluster.kill(before)
    cluster.clock.advance(15)
    assert record(cluster).leader != before


def contents(cluster: Cluster) -> list[tuple[int, bool]]:
    client = opened(cluster, record(cluster).leader)
    client.consumes("ha")
    found: list[tuple[int, bool]] = []
    while True:
        cluster.clock.advance(1)
        deliveries = client.receives_deliveries()
        if not deliveries:
            return found
        found += [(int(one.body), one.method.redelivered) for one in deliveries]


def test_what_has_left_is_gone_at_the_next_leader_and_the_rest_is_in_order(
    cluster: Cluster,
) -> None:
    taken = take(cluster, b"3", b"4", b"9", b"19")
    leading(cluster).in_hand.settle(taken)
    cluster.clock.advance(1)
    die(cluster)
    expected = [number for number in range(20) if number not in (3, 4, 9, 19)]
    assert contents(cluster) == [(number, False) for number in expected]


def test_what_was_under_way_is_back_in_its_place_and_redelivered(cluster: Cluster) -> None:
    taken = take(cluster, b"3", b"9", b"10")
    leading(cluster).in_hand.put_back(taken[2:])
    cluster.clock.advance(1)
    die(cluster)
    assert contents(cluster) == [(number, number in (3, 9)) for number in range(20)]


def test_a_mirror_that_is_synchronised_meanwhile_knows_what_is_out(cluster: Cluster) -> None:
    taken = take(cluster, b"0", b"9")
    leader = record(cluster).leader
    mirrors = [name for name in "abc" if name != leader]
    for mirror in mirrors:
        cluster.kill(mirror)
        cluster.clock.advance(15)
        cluster.comes_back(mirror)
        cluster.clock.advance(30)
        assert record(cluster).leader == leader and mirror in record(cluster).in_sync
    client = opened(cluster, leader)
    client.sets_prefetch(2)
    client.consumes("ha")
    cluster.clock.advance(1)
    assert [one.body for one in client.receives_deliveries()] == [b"1", b"2"]
    leading(cluster).in_hand.settle(taken[1:])
    cluster.clock.advance(1)
    cluster.kill(leader)
    client.vanishes()
    cluster.clock.advance(15)
    assert record(cluster).leader in mirrors
    found = contents(cluster)
    assert sorted([number for number, _ in found]) == [n for n in range(20) if n != 9]
    assert {0, 1, 2} <= {number for number, redelivered in found if redelivered}


def test_a_handover_waits_for_what_is_under_way(cluster: Cluster) -> None:
    queue = leading(cluster)
    taken = take(cluster, b"5")
    queue.hold()
    buried = queue.all_buried()
    assert not buried.happened and queue.in_hand.take(0, [taken[0].position + 1]) == []
    queue.in_hand.settle(taken)
    assert buried.happened and queue.all_buried().happened
