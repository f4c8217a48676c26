"""Counts of returns on mirrored classic queues: mirrors know them, and new ones are told."""

from __future__ import annotations

import pytest
from cluster import Cluster
from pamqp import commands
from pipe import Client

from warren.core.definitions.records import QueueRecord
from warren.core.field import Field, Table, long

ARGUMENTS: Table = {
    "x-delivery-limit": long(3),
    "x-redelivery-delay": Field("A", [long(60_000)]),
}


@pytest.fixture(params=["gm", "log"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    cluster = Cluster("a", "b", "c")
    policy = {"ha-mode": "all", "ha-sync-mode": "automatic", "ha-replication": request.param}
    cluster["a"].node.policies.set("/", "ha", "^q$", policy, 0, "queues")
    cluster.settle()
    return cluster


def leader(cluster: Cluster) -> str:
    stored = cluster["b"].metadata.get(("queue", "/", "q"))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    return stored.record.leader


def client_of(cluster: Cluster, node: str) -> Client:
    client = cluster[node].connects()
    client.opens_channel(1)
    return client


def prepare(cluster: Cluster, arguments: Table) -> Client:
    client = client_of(cluster, "a")
    client.sends(commands.Queue.Declare, queue="q", durable=True, arguments=arguments)
    cluster.clock.advance(3)
    client.receives(commands.Queue.DeclareOk)
    client.publishes("q", b"m", delivery_mode=2)
    client.publishes("q", b"other", delivery_mode=2)
    cluster.clock.advance(1)
    return client


def returned(cluster: Cluster, client: Client) -> tuple[bytes, int]:
    """Get the first message and give it back; what it was, and its count as it was shown."""
    client.sends(commands.Basic.Get, queue="q")
    cluster.clock.advance(1)
    content = client.receives_content(commands.Basic.GetOk)
    client.nacks(content.method.delivery_tag)
    cluster.clock.advance(1)
    return content.body, content.headers["x-delivery-count"].value


def test_the_count_is_known_to_the_next_leader(cluster: Cluster) -> None:
    client = prepare(cluster, {"x-delivery-limit": long(3)})
    assert [returned(cluster, client) for _ in range(2)] == [(b"m", 0), (b"m", 1)]
    cluster.kill("a")
    cluster.clock.advance(10)
    other = client_of(cluster, leader(cluster))
    assert [returned(cluster, other) for _ in range(3)] == [(b"m", 2), (b"m", 3), (b"other", 0)]


def test_a_mirror_that_is_made_later_is_told_the_counts(cluster: Cluster) -> None:
    cluster["a"].node.policies.clear("/", "ha")
    cluster.settle()
    client = prepare(cluster, {"x-delivery-limit": long(3)})
    assert [returned(cluster, client) for _ in range(2)] == [(b"m", 0), (b"m", 1)]
    policy = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    cluster["a"].node.policies.set("/", "ha", "^q$", policy, 0, "queues")
    cluster.clock.advance(10)
    cluster.kill("a")
    cluster.clock.advance(10)
    assert returned(cluster, client_of(cluster, leader(cluster))) == (b"m", 2)


def test_what_waits_is_ready_at_the_next_leader_with_its_count(cluster: Cluster) -> None:
    client = prepare(cluster, ARGUMENTS)
    assert returned(cluster, client) == (b"m", 0)
    assert cluster["a"].queue("q").waiting == 1
    cluster.kill("a")
    cluster.clock.advance(10)
    node = leader(cluster)
    assert len(cluster[node].queue("q")) == 2
    assert returned(cluster, client_of(cluster, node)) == (b"m", 1)


def test_what_waits_goes_along_when_mirrors_come(cluster: Cluster) -> None:
    cluster["a"].node.policies.clear("/", "ha")
    cluster.settle()
    client = prepare(cluster, ARGUMENTS)
    assert returned(cluster, client) == (b"m", 0)
    policy = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    cluster["a"].node.policies.set("/", "ha", "^q$", policy, 0, "queues")
    cluster.clock.advance(10)
    assert cluster["a"].queue("q").waiting == 1
    cluster.clock.advance(60)
    assert len(cluster["a"].queue("q")) == 2
    cluster.kill("a")
    cluster.clock.advance(10)
    assert len(cluster[leader(cluster)].queue("q")) == 2


def test_an_acknowledged_message_has_no_count_anywhere(cluster: Cluster) -> None:
    client = prepare(cluster, {"x-delivery-limit": long(3)})
    returned(cluster, client)
    for _ in range(2):
        client.sends(commands.Basic.Get, queue="q", no_ack=True)
        cluster.clock.advance(1)
        client.receives_content(commands.Basic.GetOk)
    cluster.clock.advance(1)
    for name in "bc":
        (copy,) = cluster[name].mirroring.copies.by_queue.values()
        assert copy.mirror.levels[0].backing.length == 0
        assert not getattr(copy.mirror.levels[0].backing, "delivery_counts", None)


@pytest.mark.parametrize("settled", [True, False])
def test_what_an_operator_takes_out_while_it_waits_is_gone_when_it_is_settled(
    cluster: Cluster, settled: bool
) -> None:
    client = prepare(cluster, ARGUMENTS)
    assert returned(cluster, client) == (b"m", 0)
    queue = cluster["a"].queue("q")
    (waiting,) = queue.waiting_messages()
    assert queue.in_hand.take(0, [waiting.position]) == [waiting]
    assert queue.waiting == 0 and queue.stock().messages == 2
    if settled:
        queue.in_hand.settle([waiting])
    cluster.clock.advance(1)
    cluster.kill("a")
    cluster.clock.advance(10)
    expected = [b"other"] if settled else [b"m", b"other"]
    other = client_of(cluster, leader(cluster))
    assert len(cluster[leader(cluster)].queue("q")) == len(expected)
    assert returned(cluster, other)[0] == expected[0]
