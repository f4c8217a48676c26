"""What nodes of a cluster say about deliveries to programs that read their storage."""

from __future__ import annotations

import asyncio

import pytest
from cluster import Cluster
from mirrored import declare_mirrored, ha_cluster, record

from warren.core.field import Field, longstr
from warren.mgmt.api.deliveries import DeliverySurvey

Found = dict[int, tuple[int, list[tuple[int, int]]]]


def surveyed(cluster: Cluster, node: str, storage_id: int) -> tuple[set[int], Found]:
    """Whether the queue is led there, and what is known of it."""

    async def survey() -> tuple[set[int], Found]:
        one = DeliverySurvey(cluster[node].node)
        await one.ask_for({storage_id})
        rows = await one.rows()
        return one.led_here, {
            int(row["queue_id"], 16): (row["redelivered_below"], row["unacked"]) for row in rows
        }

    return asyncio.run(survey())


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": longstr("quorum")}])
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
    queue = cluster["a"].queue("ha")
    end = queue.backing.next_position
    storage_id = record(cluster, "ha").storage_id("a")
    unacked = [(end - 6, end - 5), (end - 3, end - 2)]
    known = {storage_id: (end - 2, unacked)}
    assert surveyed(cluster, "a", storage_id) == ({storage_id}, known)
    copy_id = record(cluster, "ha").storage_id("b")
    assert surveyed(cluster, "b", copy_id) == (set(), {})
