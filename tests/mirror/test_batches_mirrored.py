"""Publishes that come together to a mirrored queue: one batch, and one order for all mirrors."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import Cluster
from mirrored import mirrored
from pamqp import commands
from pipe import publish_frames

from warren.mirror.replication.levels.mirror_level import MirrorLevel

BODIES = [b"%d" % number for number in range(60)]


@pytest.fixture(params=["gm", "log"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    cluster = Cluster("a", "b", "c")
    policy = {"ha-mode": "all", "ha-replication": request.param}
    cluster["a"].node.policies.set("/", "ha", "^ha", policy, 0, "queues")
    cluster.settle()
    return cluster


def together(modes: tuple[int, int], **more: str) -> bytes:
    """All of them in one read; their delivery modes alternate."""
    return b"".join(
        publish_frames(
            1, "", "ha", body, message_id=f"id-{number}-", delivery_mode=modes[number % 2], **more
        )
        for number, body in enumerate(BODIES)
    )


@pytest.mark.parametrize("modes", [(2, 2), (1, 1), (1, 2)])
def test_all_are_confirmed_and_the_next_leader_has_them_in_order(
    cluster: Cluster, modes: tuple[int, int]
) -> None:
    mirrored(cluster, "ha")
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.selects_confirms()
    client.sends_octets(together(modes))
    cluster.clock.advance(1)
    assert client.receives(commands.Basic.Ack).delivery_tag == len(BODIES)
    cluster.kill("a")
    cluster.clock.advance(10)
    reader = cluster["b"].connects()
    reader.opens_channel(1)
    reader.consumes("ha")
    cluster.clock.advance(1)
    contents = reader.receives_deliveries()
    assert [content.body for content in contents] == BODIES
    assert all(b"id-%b-" % content.body in content.header for content in contents)


@pytest.mark.parametrize("node", ["a", "b"])
def test_messages_that_expire_together_are_mirrored_together(
    cluster: Cluster, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that a client of another node than the leader publishes."""
    mirrored(cluster, "ha")
    counts: list[int] = []
    publish_many = MirrorLevel.publish_many

    def noted(level: MirrorLevel, first: int, envelopes: Any, *more: Any) -> None:
        counts.append(len(envelopes))
        publish_many(level, first, envelopes, *more)

    monkeypatch.setattr(MirrorLevel, "publish_many", noted)
    client = cluster[node].connects()
    client.opens_channel(1)
    client.selects_confirms()
    client.sends_octets(together((2, 2), expiration="20000"))
    cluster.clock.advance(1)
    assert client.receives(commands.Basic.Ack).delivery_tag == len(BODIES)
    assert counts == [len(BODIES)] * 2
    cluster.kill("a")
    cluster.clock.advance(10)
    reader = cluster["c"].connects()
    reader.opens_channel(1)
    got = reader.gets("ha", no_ack=True)
    assert got is not None and got.body == BODIES[0]
    cluster.clock.advance(10)
    assert reader.gets("ha", no_ack=True) is None


def test_what_a_consumer_takes_at_once_is_taken_at_the_mirrors(cluster: Cluster) -> None:
    mirrored(cluster, "ha")
    client, reader = cluster["a"].connects(), cluster["a"].connects()
    for one in (client, reader):
        one.opens_channel(1)
    reader.sets_prefetch(20)
    reader.consumes("ha")
    client.sends_octets(together((2, 2)))
    cluster.clock.advance(1)
    first = reader.receives_deliveries()
    assert [content.body for content in first] == BODIES[:20]
    reader.acks(first[9].method.delivery_tag, multiple=True)
    cluster.clock.advance(1)
    assert [content.body for content in reader.receives_deliveries()] == BODIES[20:30]
    cluster.kill("a")
    cluster.clock.advance(10)
    heir = cluster["b"].connects()
    heir.opens_channel(1)
    heir.consumes("ha")
    cluster.clock.advance(1)
    contents = heir.receives_deliveries()
    assert [content.body for content in contents] == BODIES[10:]
    assert all(content.method.redelivered for content in contents[:20])
