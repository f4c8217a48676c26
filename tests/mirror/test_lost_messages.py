"""A leader whose disk has lost messages hands its queue to a mirror, which has them."""

from __future__ import annotations

import pytest
from cluster import Cluster
from mirrored import declare_mirrored, ha_cluster, record
from pipe import Client

from warren.core.backing.memory_queue import MemoryQueue
from warren.core.field import Field
from warren.core.messages.message import Envelope
from warren.mirror.replication.leading.led_queue import LedQueue
from warren.mirror.replication.levels.instructions import Op
from warren.mirror.replication.levels.mirror_level import NOWHERE, MirrorLevel

BODIES = [b"%d" % number for number in range(10)]


def led_by(cluster: Cluster, node: str = "a") -> LedQueue:
    (led,) = [led for led in cluster[node].mirroring._led.values() if led.queue.name == "ha"]
    return led


def leaves_unnoticed(cluster: Cluster, *positions: int, level: int = 0) -> None:
    """Have the storage of node a lose these messages, counted from the oldest."""
    at_leader = led_by(cluster).leader.levels[level]
    first = at_leader.oldest()
    taken = at_leader.inner.take([first + position for position in positions])
    assert len(taken) == len(positions)
    at_leader.inner.ack(taken)


def notices(cluster: Cluster, *, level: int = 0) -> None:
    cluster["a"].mirroring.has_lost(led_by(cluster).storage_id + level, None)


def lose(cluster: Cluster, *positions: int, level: int = 0) -> None:
    leaves_unnoticed(cluster, *positions, level=level)
    notices(cluster, level=level)


def filled(carrier: str, **arguments: Field) -> tuple[Cluster, Client]:
    """A queue at node a with ten messages, mirrored at b and c, and a client at a."""
    cluster = ha_cluster()
    definition = {"ha-mode": "all", "ha-sync-mode": "automatic", "ha-replication": carrier}
    cluster["a"].node.policies.set("/", "ha", "^ha", definition, 0, "queues")
    client = cluster["a"].connects()
    client.opens_channel(1)
    declare_mirrored(cluster, client, "ha", arguments)
    for body in BODIES:
        client.publishes("ha", body, delivery_mode=2, message_id=body.decode())
    cluster.clock.advance(1)
    return cluster, client


def everything(client: Client) -> list[bytes]:
    bodies = []
    while (got := client.gets("ha", no_ack=True)) is not None:
        bodies.append(got.body)
    return bodies


@pytest.mark.parametrize("carrier", ["gm", "log"])
@pytest.mark.parametrize("lost", [(0,), (3, 4), (9,), tuple(range(10))])
def test_what_the_leader_has_lost_comes_from_a_mirror_in_its_place(
    carrier: str, lost: tuple[int, ...]
) -> None:
    cluster, client = filled(carrier)
    lose(cluster, *lost)
    cluster.clock.advance(10)
    moved = record(cluster, "ha")
    assert moved.leader != "a" and "a" in moved.in_sync
    assert everything(client) == BODIES


@pytest.mark.parametrize("carrier", ["gm", "log"])
def test_messages_that_consumers_have_passed_come_back_as_well(carrier: str) -> None:
    """The loss is noticed when what stands behind is delivered."""
    cluster, client = filled(carrier)
    leaves_unnoticed(cluster, 2, 3)
    early = [client.gets("ha", no_ack=True).body for _ in range(5)]
    assert early == [b"0", b"1", b"4", b"5", b"6"]
    cluster.clock.advance(1)
    notices(cluster)
    cluster.clock.advance(10)
    assert record(cluster, "ha").leader != "a"
    assert everything(client) == [b"2", b"3", b"7", b"8", b"9"]


def test_a_level_of_a_queue_with_priorities_is_part_of_the_queue() -> None:
    cluster, client = filled("log", **{"x-max-priority": Field("I", 4)})
    client.publishes("ha", b"urgent", delivery_mode=2, priority=2)
    cluster.clock.advance(1)
    lose(cluster, 0, level=2)
    cluster.clock.advance(10)
    assert record(cluster, "ha").leader != "a"
    assert everything(client) == [b"urgent", *BODIES]


def test_a_deduplicating_queue_takes_nothing_for_a_duplicate() -> None:
    cluster, client = filled("log", **{"x-message-deduplication-window": Field("I", 100)})
    lose(cluster, 5)
    cluster.clock.advance(10)
    assert record(cluster, "ha").leader != "a"
    assert everything(client) == BODIES


def test_a_queue_stays_where_it_is_if_no_mirror_can_have_the_message() -> None:
    cluster, client = filled("gm")
    for node in ("b", "c"):
        cluster.kill(node)
    cluster.clock.advance(10)
    assert not record(cluster, "ha", "a").in_sync
    lose(cluster, 0)
    cluster.clock.advance(2)
    for node in ("b", "c"):
        cluster.comes_back(node)
    cluster.clock.advance(20)
    assert (record(cluster, "ha").leader, record(cluster, "ha").epoch) == ("a", 0)
    assert len(record(cluster, "ha").in_sync) == 2
    assert everything(client) == BODIES[1:]


def copy_of(count: int) -> MirrorLevel:
    """A whole copy of a queue with so many messages."""
    copy = MirrorLevel(MemoryQueue())
    copy.begin(0, NOWHERE)
    envelope = Envelope("", "ha", b"", False, 0, None)
    for position in range(count):
        copy.publish(position, envelope, b"%d" % position, None, False, None, 0)
    return copy


def test_a_copy_keeps_what_its_leader_has_passed_over_until_it_is_purged() -> None:
    copy = copy_of(5)
    copy.run(Op.FETCH, 3, 1)
    assert sorted(copy.pending) == [0, 1, 2, 3] and copy.backing.length == 1
    # No client has what the leader has lost.
    assert [message.body for message in copy.unacked() or ()] == [b"3"]
    copy.run(Op.ACK, 3, 1)
    copy.purge()
    assert not copy.pending and not copy.backing.length
    copy = copy_of(5)
    copy.run(Op.FETCH, 3, 1)
    copy.run(Op.ACK, 2, 2)
    copy.put_all_back()
    assert [message.body for message in copy.backing.fetch_many(9)] == [b"0", b"1", b"4"]
