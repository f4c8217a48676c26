"""What nodes of a cluster say about deliveries to programs that read their storage."""

from __future__ import annotations

import asyncio

import pytest
from cluster import Cluster
from mirrored import declare_mirrored, ha_cluster, record

from warren.core.field import Field, longstr
from warren.mgmt.api.deliveries import DeliverySurvey
from warren.mirror.replication.levels.hand_outs import AHEAD_MIN

Found = dict[int, tuple[int, list[tuple[int, int]]]]

Known = tuple[int, tuple[tuple[int, int], ...]]

QUORUM = {"x-queue-type": longstr("quorum")}


def surveyed(cluster: Cluster, node: str, storage_id: int) -> tuple[set[int], Found]:
    """Whether the queue's deliveries are known there, and what is known of them."""

    async def survey() -> tuple[set[int], Found]:
        at = cluster[node]
        one = DeliverySurvey(at.node, at.mirroring.copies)
        await one.ask_for({storage_id})
        rows = await one.rows()
        return one.known, {
            int(row["queue_id"], 16): (row["redelivered_below"], row["unacked"]) for row in rows
        }

    return asyncio.run(survey())


def known_at(cluster: Cluster, node: str, queue: str) -> Known | None:
    """What is known there of the only level of a queue; None if its deliveries are unknown."""
    storage_id = record(cluster, queue).storage_id(node)
    known, found = surveyed(cluster, node, storage_id)
    assert known <= {storage_id} and found.keys() <= known
    if not known:
        return None
    below, unacked = found.get(storage_id, (0, []))
    return below, tuple(unacked)


@pytest.mark.parametrize("arguments", [{}, QUORUM])
def test_the_leader_knows_what_clients_of_all_nodes_have(arguments: dict[str, Field]) -> None:
    cluster = ha_cluster()
    here, afar = cluster["a"].connects(), cluster["b"].connects()
    for client in (here, afar):
        client.opens_channel(1)
    declare_mirrored(cluster, here, "ha", arguments)
    for number in range(6):
        here.publishes("ha", b"%d" % number, delivery_mode=2)
    cluster.clock.advance(1)
    for client in (here, afar, here, afar):
        assert client.gets("ha") is not None
    afar.acks(1)
    here.nacks(2)
    cluster.clock.advance(1)
    end = cluster["a"].queue("ha").backing.next_position
    unacked = ((end - 6, end - 5), (end - 3, end - 2))
    assert known_at(cluster, "a", "ha") == (end - 2, unacked)
    if arguments:
        # A mirror of a quorum queue does not hear which of the returned messages are out again.
        assert known_at(cluster, "b", "ha") is None
        return
    end = own_end(cluster, "b", "ha")
    # The leader has announced more than it has handed out.
    assert known_at(cluster, "b", "ha") == (end, ((end - 6, end - 5), (end - 3, end - 2)))


def own_end(cluster: Cluster, node: str, queue: str) -> int:
    """The position of the next message in the copy of a node."""
    (copy,) = [one for one in cluster[node].mirroring.copies if one.key[2] == queue]
    return copy.mirror.levels[0].backing.next_position


def test_a_mirror_says_which_messages_would_come_again_if_it_led() -> None:
    cluster = ha_cluster()
    client = cluster["a"].connects()
    client.opens_channel(1)
    declare_mirrored(cluster, client, "ha")
    for number in range(200):
        client.publishes("ha", b"%d" % number, delivery_mode=2)
    cluster.clock.advance(1)
    first = own_end(cluster, "b", "ha") - 200
    # Without consumers nothing is announced.
    assert known_at(cluster, "b", "ha") == (0, ())
    assert client.gets("ha") is not None
    cluster.clock.advance(1)
    assert known_at(cluster, "b", "ha") == (first + AHEAD_MIN, ((first, first + 1),))
    cluster.kill("a")
    cluster.clock.advance(30)
    leader = cluster[record(cluster, "ha", "c").leader]
    again = leader.connects()
    again.opens_channel(1)
    flags = []
    for _ in range(200):
        content = again.gets("ha")
        assert content is not None
        flags.append(content.method.redelivered)
    assert flags == [True] * AHEAD_MIN + [False] * (200 - AHEAD_MIN)


def test_messages_of_streams_are_ready_at_each_replica() -> None:
    cluster = ha_cluster()
    client = cluster["a"].connects()
    client.opens_channel(1)
    declare_mirrored(cluster, client, "s", {"x-queue-type": longstr("stream")})
    client.publishes("s", b"0", delivery_mode=2)
    cluster.clock.advance(1)
    assert {known_at(cluster, node, "s") for node in ("a", "b", "c")} == {(0, ())}


def test_a_mirror_whose_leader_is_gone_does_not_know() -> None:
    cluster = ha_cluster()
    client = cluster["a"].connects()
    client.opens_channel(1)
    declare_mirrored(cluster, client, "ha")
    client.publishes("ha", b"0", delivery_mode=2)
    cluster.clock.advance(1)
    assert known_at(cluster, "b", "ha") is not None
    for other in ("a", "c"):
        cluster.cut("b", other)
    cluster.clock.advance(5)
    assert known_at(cluster, "b", "ha") is None
