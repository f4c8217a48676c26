"""Quorum queues whose leader is lost for good before another member was in sync again."""

from __future__ import annotations

import pytest
from cluster_disk import other_queues_on_disk
from quorum_cluster import QuorumCluster, bodies, cluster_of, confirmed, declared, got

from warren.core.backing.stream_log import StreamLog
from warren.core.field import longstr
from warren.core.queues.local_queue import LocalQueue
from warren.mirror.replication.lost_and_found import LOST_AND_FOUND

STREAM = {"x-queue-type": longstr("stream")}


@pytest.fixture
def cluster() -> QuorumCluster:
    """Node a leads queue `q`, in which there are two confirmed messages."""
    cluster = cluster_of("a", "b", "c")
    declared(cluster)
    published(cluster, b"one", b"two")
    return cluster


def published(cluster: QuorumCluster, *messages: bytes) -> None:
    publisher = cluster.publisher()
    for body in messages:
        publisher.publishes("q", body, delivery_mode=2)
    cluster.clock.advance(1)
    assert confirmed(publisher) == len(messages)


def restarted(cluster: QuorumCluster, *nodes: str) -> None:
    """All nodes are killed, and these come back."""
    cluster.loses(*"abc")
    for node in nodes:
        cluster.comes_back(node)
    leads_on(cluster)


def leads_on(cluster: QuorumCluster) -> None:
    """Node a has led before, and leads on. No other member is in sync yet, as cards take time."""
    cluster.card_sync_s = 0.1
    for _ in range(30_000):
        if cluster.record().epoch == 1:
            break
        cluster.clock.advance(0.001)
    assert (cluster.record().leader, cluster.record().in_sync) == ("a", [])


def is_anything_lost(cluster: QuorumCluster) -> bool:
    return cluster["b"].metadata.get(("queue", "/", LOST_AND_FOUND)) is not None


def test_the_others_have_what_was_confirmed_before_the_start(cluster: QuorumCluster) -> None:
    restarted(cluster, *"abc")
    cluster.loses("a")
    assert cluster.record().leader == "a"
    cluster.forgets("a")
    cluster.clock.advance(5)
    assert cluster.record().leader in ("b", "c")
    assert cluster.record().promoted == "a (forgotten) is down; copy was not in sync"
    assert len(cluster.record().in_sync) == 1
    client = cluster.client("b")
    message = got(client, no_ack=True)
    assert message is not None and message.method.redelivered
    assert [message.body, *bodies(client)] == [b"one", b"two"]
    assert not is_anything_lost(cluster)


def test_a_member_that_is_down_is_waited_for(cluster: QuorumCluster) -> None:
    restarted(cluster, *"ab")
    cluster.loses("a")
    cluster.forgets("a")
    cluster.clock.advance(30)
    assert cluster.record().epoch == 1
    cluster.comes_back("c")
    cluster.clock.advance(5)
    assert cluster.record().leader in ("b", "c")
    assert bodies(cluster.client("b")) == [b"one", b"two"]


def test_what_remains_leads_when_all_others_are_forgotten(cluster: QuorumCluster) -> None:
    restarted(cluster, *"abc")
    cluster.loses(*"ab")
    cluster.forgets("a")
    cluster.clock.advance(30)
    assert cluster.record().epoch == 1
    cluster.forgets("b")
    cluster.clock.advance(5)
    assert cluster.record().leader == "c"
    assert bodies(cluster.client("c")) == [b"one", b"two"]


@pytest.mark.parametrize("slow", ["b", "c"])
def test_the_member_that_has_most_leads(cluster: QuorumCluster, slow: str) -> None:
    cluster.stall("a", slow)
    published(cluster, b"three")
    restarted(cluster, *"abc")
    cluster.loses("a")
    cluster.forgets("a")
    cluster.clock.advance(5)
    assert {cluster.record().leader, slow} == {"b", "c"}
    assert bodies(cluster.client("b")) == [b"one", b"two", b"three"]


def test_a_member_that_lost_its_disk_does_not_lead(cluster: QuorumCluster) -> None:
    cluster.loses(*"abc")
    del cluster.disks["b"]
    cluster.cards.pop("b")
    for node in "abc":
        cluster.comes_back(node)
    leads_on(cluster)
    cluster.loses("a")
    cluster.forgets("a")
    cluster.clock.advance(5)
    assert cluster.record().leader == "c"
    assert bodies(cluster.client("c")) == [b"one", b"two"]


def test_a_queue_without_any_whole_copy_stays_as_it_is(cluster: QuorumCluster) -> None:
    """It can be deleted, and declared anew."""
    restarted(cluster, *"abc")
    cluster.loses(*"abc")
    for node in "bc":
        del cluster.disks[node]
        cluster.cards.pop(node)
        cluster.comes_back(node)
    cluster.forgets("a")
    cluster.clock.advance(30)
    assert cluster.record().epoch == 1
    assert cluster.record().leader == "a (forgotten)"


def test_the_others_are_brought_up_to_date_and_messages_go_on(cluster: QuorumCluster) -> None:
    restarted(cluster, *"abc")
    cluster.loses("a")
    cluster.forgets("a")
    cluster.begins_anew("a")
    cluster.clock.advance(10)
    publisher = cluster.publisher("c")
    publisher.publishes("q", b"three", delivery_mode=2)
    cluster.clock.advance(1)
    assert confirmed(publisher) == 1
    leader = cluster.record().leader
    (other,) = {"b", "c"} - {leader}
    cluster.loses(leader)
    cluster.forgets(leader)
    cluster.clock.advance(20)
    assert cluster.record().leader == other
    assert bodies(cluster.client(other)) == [b"one", b"two", b"three"]


def test_a_leader_that_comes_back_after_all_begins_anew(cluster: QuorumCluster) -> None:
    restarted(cluster, *"abc")
    cluster.loses("a")
    cluster.forgets("a")
    cluster.clock.advance(5)
    assert cluster.record().leader in ("b", "c")
    cluster.comes_back("a")
    cluster.clock.advance(30)
    assert bodies(cluster.client("b")) == [b"one", b"two"]
    assert not is_anything_lost(cluster)


def test_what_clients_still_have_from_before_is_in_the_queue_once(cluster: QuorumCluster) -> None:
    """The node that leads in the end led before, and was not restarted in between."""
    cluster.loses("c")
    client = cluster.client("a")
    first = got(client)
    assert first is not None and first.body == b"one"
    queue = cluster["a"].queue("q")
    assert isinstance(queue, LocalQueue)
    mirroring = cluster["a"].mirroring
    cluster.card_sync_s = 2.0
    mirroring.hand_overs.begin(mirroring._led[queue.queue_id], "b")
    cluster.clock.advance(1)
    assert (cluster.record().leader, cluster.record().in_sync) == ("b", [])
    cluster.kill("b")
    cluster.tidy_after("b")
    for node in "bc":
        cluster.forgets(node)
    cluster.clock.advance(5)
    assert cluster.record().leader == "a"
    again = got(client)
    assert again is not None and again.body == b"one"
    client.nacks(first.method.delivery_tag)
    client.nacks(again.method.delivery_tag)
    cluster.clock.advance(1)
    assert sorted(bodies(cluster.client("a"))) == [b"one", b"two"]


def test_streams_are_found_as_well() -> None:
    with other_queues_on_disk():
        cluster = cluster_of("a", "b", "c")
        cluster.client().declares("q", durable=True, arguments=STREAM)
        cluster.clock.advance(5)
        published(cluster, b"one", b"two")
        restarted(cluster, *"abc")
        cluster.loses("a")
        cluster.forgets("a")
        cluster.clock.advance(10)
        leader = cluster.record().leader
        assert {leader, *cluster.record().in_sync} == {"b", "c"}
        log: StreamLog = cluster[leader].queue("q").log  # type: ignore[attr-defined]
        assert [message.body for message in log.peek(0, 10, 1 << 20).messages] == [b"one", b"two"]
