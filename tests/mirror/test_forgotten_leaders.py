"""Quorum queues whose leader is lost for good before another member was in sync again."""

from __future__ import annotations

import pytest
from cluster_disk import other_queues_on_disk
from quorum_cluster import QuorumCluster, bodies, cluster_of, confirmed, declared, got

from warren.core.backing.stream_log import StreamLog
from warren.core.field import longstr
from warren.core.queues.local_queue import LocalQueue
from warren.mirror.replication.copies.lost_and_found import LATE_S, LOST_AND_FOUND

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


@pytest.fixture(params=["gm", "log"])
def mirrored(request: pytest.FixtureRequest) -> QuorumCluster:
    """Node a leads queue `q`, a classic one with mirrors, in which are two confirmed messages."""
    cluster = cluster_of("a", "b", "c")
    set_policy(cluster, {"ha-mode": "all", "ha-sync-mode": "automatic"}, request.param)
    cluster.client().declares("q", durable=True)
    cluster.clock.advance(5)
    published(cluster, b"one", b"two")
    return cluster


def set_policy(cluster: QuorumCluster, definition: dict[str, str], carrier: str) -> None:
    definition = {**definition, "ha-replication": carrier}
    cluster[next(iter(cluster.alive))].node.policies.set("/", "ha", "^q$", definition, 0, "queues")
    cluster.clock.advance(2)


def test_mirrors_have_what_was_confirmed_before_the_start(mirrored: QuorumCluster) -> None:
    restarted(mirrored, *"abc")
    assert mirrored.record().mirrors == []
    mirrored.loses("a")
    mirrored.forgets("a")
    mirrored.clock.advance(5)
    assert mirrored.record().leader in ("b", "c")
    assert len(mirrored.record().in_sync) == 1
    assert bodies(mirrored.client("b")) == [b"one", b"two"]
    assert not is_anything_lost(mirrored)


def test_a_mirror_that_was_stopped_leads_when_the_leader_is_forgotten(
    mirrored: QuorumCluster,
) -> None:
    mirrored.loses("b")
    published(mirrored, b"three")
    mirrored.loses("c")
    published(mirrored, b"only a has it")
    mirrored.loses("a")
    mirrored.comes_back("b")
    mirrored.forgets("a")
    mirrored.clock.advance(30)
    assert mirrored.record().leader == "a (forgotten)"
    mirrored.comes_back("c")
    mirrored.clock.advance(5)
    assert mirrored.record().leader == "c"
    assert bodies(mirrored.client("c")) == [b"one", b"two", b"three"]


def test_the_mirror_that_has_most_leads(mirrored: QuorumCluster) -> None:
    mirrored.loses("b")
    published(mirrored, b"three")
    mirrored.loses("a", "c")
    for node in "abc":
        mirrored.comes_back(node)
    leads_on(mirrored)
    mirrored.loses("a")
    mirrored.forgets("a")
    mirrored.clock.advance(5)
    assert mirrored.record().leader == "c"
    assert bodies(mirrored.client("c")) == [b"one", b"two", b"three"]


def test_a_former_leader_counts_as_well(mirrored: QuorumCluster) -> None:
    mirrored.loses("b")
    mirrored.loses("a")
    assert (mirrored.record("q").leader, mirrored.record().former) == ("c", ["b", "a"])
    mirrored.loses("c")
    mirrored.comes_back("a")
    mirrored.forgets("c")
    mirrored.forgets("b")
    mirrored.clock.advance(5)
    assert mirrored.record().leader == "a"
    assert bodies(mirrored.client("a")) == [b"one", b"two"]


def test_no_copy_is_named_where_a_policy_wants_none(mirrored: QuorumCluster) -> None:
    mirrored.loses("c")
    assert mirrored.record().former == ["c"]
    set_policy(mirrored, {"ha-mode": "exactly", "ha-params": 1}, "gm")
    mirrored.comes_back("c")
    mirrored.clock.advance(90)
    assert (mirrored.record().mirrors, mirrored.record().former) == ([], [])
    for node in "bc":
        assert not mirrored.disks[node].queues and not mirrored.cards[node]


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_what_a_mirror_lacks_that_leads_before_it_is_whole_is_found_in_its_former_copy(
    mirrored: QuorumCluster, is_forgotten: bool
) -> None:
    restarted(mirrored, *"abc")
    begins_without_slices(mirrored)
    mirrored.loses("a")
    mirrored.clock.advance(15)
    assert mirrored.record().leader in ("b", "c")
    assert mirrored.record().promoted == "a is down; copy was not in sync"
    if is_forgotten:
        mirrored.forgets("a")
    mirrored.clock.advance(15 if is_forgotten else LATE_S + 60)
    assert len(mirrored.record().in_sync) == 1
    client = mirrored.client("b")
    assert sorted(bodies(client) + bodies(client, LOST_AND_FOUND)) == [b"one", b"two"]


def begins_without_slices(cluster: QuorumCluster) -> None:
    """Mirrors are told to begin, and have not got anything of what the leader has."""
    for _ in range(30_000):
        cluster.clock.advance(0.0005)
        copies = [cluster[node].mirroring.figures.copies_here() for node in "bc"]
        if all(len(there) == 1 and there[0].mirror.started for there in copies):
            break
    lengths = [level.backing.length for (copy,) in copies for level in copy.mirror.levels]
    assert lengths == [0, 0]
