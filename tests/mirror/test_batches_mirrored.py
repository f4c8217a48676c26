"""Publishes that come together to a mirrored queue: one batch, and one order for all mirrors."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import Cluster
from mirrored import declare_mirrored, mirrored
from pamqp import commands
from pipe import publish_frames

from warren.core.field import Table, long, longstr
from warren.mirror.replication.levels.leader_level import LeaderLevel
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


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[type, list[int]]:
    """How many messages the leader takes together, each time, and mirrors."""
    counts: dict[type, list[int]] = {}

    def count_in(level: type[LeaderLevel] | type[MirrorLevel], place: int) -> None:
        publish_many: Any = level.publish_many
        seen = counts[level] = []

        def noted(*arguments: Any) -> None:
            seen.append(len(arguments[place]))
            publish_many(*arguments)

        monkeypatch.setattr(level, "publish_many", noted)

    count_in(LeaderLevel, 1)
    count_in(MirrorLevel, 2)
    return counts


@pytest.mark.parametrize("node", ["a", "b"])
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"x-queue-type": longstr("quorum")}, id="quorum"),
        pytest.param(
            {"x-max-length": long(1000), "x-overflow": longstr("reject-publish")}, id="limited"
        ),
    ],
)
def test_what_comes_together_is_mirrored_together(
    cluster: Cluster, node: str, arguments: Table, counts: dict[type, list[int]]
) -> None:
    owner, client = cluster["a"].connects(), cluster[node].connects()
    for one in (owner, client):
        one.opens_channel(1)
    declare_mirrored(cluster, owner, "ha", arguments)
    client.selects_confirms()
    client.sends_octets(together((2, 2)))
    cluster.clock.advance(1)
    assert client.receives(commands.Basic.Ack).delivery_tag == len(BODIES)
    assert counts == {LeaderLevel: [len(BODIES)], MirrorLevel: [len(BODIES)] * 2}


@pytest.mark.parametrize("node", ["a", "b"])
def test_messages_that_expire_together_are_mirrored_together(
    cluster: Cluster, node: str, counts: dict[type, list[int]]
) -> None:
    """Also those that a client of another node than the leader publishes."""
    mirrored(cluster, "ha")
    client = cluster[node].connects()
    client.opens_channel(1)
    client.selects_confirms()
    client.sends_octets(together((2, 2), expiration="20000"))
    cluster.clock.advance(1)
    assert client.receives(commands.Basic.Ack).delivery_tag == len(BODIES)
    assert counts == {LeaderLevel: [len(BODIES)], MirrorLevel: [len(BODIES)] * 2}
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
