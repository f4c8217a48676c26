"""Former copies of mirrored queues, when the leader is lost for good or stays away for long."""

from __future__ import annotations

import pytest
from quorum_cluster import QuorumCluster, bodies, cluster_of, confirmed, got

from warren.core.definitions.records import QueueRecord
from warren.core.field import Field
from warren.core.queues.local_queue import LocalQueue
from warren.mirror.replication.copies.lost_and_found import LATE_S, LOST_AND_FOUND
from warren.mirror.replication.leading.synchronisation import Synchronisation

ALL = {"ha-mode": "all", "ha-sync-mode": "automatic"}
WHEN_SYNCED = {"ha-promote-on-failure": "when-synced"}


@pytest.fixture(params=["gm", "log"])
def cluster(request: pytest.FixtureRequest) -> QuorumCluster:
    cluster = cluster_of("a", "b", "c")
    cluster.carrier = request.param  # type: ignore[attr-defined]
    return cluster


def set_policy(cluster: QuorumCluster, definition: dict[str, object]) -> None:
    carrier = cluster.carrier  # type: ignore[attr-defined]
    definition = {"ha-replication": carrier, **definition}
    policies = cluster[next(iter(cluster.alive))].node.policies
    policies.set("/", "ha", "^q$", definition, 0, "queues")
    cluster.clock.advance(10)


def declare(cluster: QuorumCluster, policy: dict[str, object], **arguments: Field) -> None:
    """Node a leads queue `q`."""
    set_policy(cluster, policy)
    arguments = {name.replace("_", "-"): value for name, value in arguments.items()}
    cluster.client().declares("q", durable=True, arguments=arguments)
    cluster.clock.advance(5)


def publish(cluster: QuorumCluster, *messages: bytes, **more: int) -> None:
    publisher = cluster.publisher()
    for body in messages:
        publisher.publishes("q", body, delivery_mode=2, **more)
    cluster.clock.advance(1)
    assert confirmed(publisher) == len(messages)


def led_in(cluster: QuorumCluster, epoch: int) -> QueueRecord:
    """The definition as soon as the queue is led in this epoch; it takes cards long to be on disk,
    and so mirrors to be in sync again."""
    cluster.card_sync_s = 0.1
    for _ in range(30_000):
        if cluster.record().epoch == epoch:
            break
        cluster.clock.advance(0.001)
    assert (cluster.record().epoch, cluster.record().in_sync) == (epoch, [])
    cluster.card_sync_s = 0.0
    return cluster.record()


def found(cluster: QuorumCluster) -> list[bytes]:
    node = next(iter(cluster.alive))
    is_there = cluster[node].metadata.get(("queue", "/", LOST_AND_FOUND)) is not None
    return sorted(bodies(cluster.client(node), LOST_AND_FOUND)) if is_there else []


def ready(cluster: QuorumCluster) -> list[bytes]:
    return bodies(cluster.client(next(iter(cluster.alive))))


def test_what_clients_still_have_from_before_is_in_the_queue_once(cluster: QuorumCluster) -> None:
    """The node that leads in the end led before, and was not restarted in between."""
    declare(cluster, ALL)
    publish(cluster, b"one", b"two")
    cluster.loses("c")
    client = cluster.client("a")
    first = got(client)
    queue = cluster["a"].queue("q")
    assert first is not None and isinstance(queue, LocalQueue)
    mirroring = cluster["a"].mirroring
    cluster.card_sync_s = 2.0
    mirroring.hand_overs.begin(mirroring._led[queue.queue_id], "b")
    cluster.clock.advance(1)
    assert (cluster.record().leader, cluster.record().in_sync) == ("b", [])
    cluster.kill("b")
    cluster.tidy_after("b")
    for node in "bc":
        cluster.forgets(node)
    assert cluster.record().leader == "a"
    again = got(client)
    assert again is not None and again.body == b"one"
    client.nacks(first.method.delivery_tag)
    client.nacks(again.method.delivery_tag)
    cluster.clock.advance(1)
    assert sorted(ready(cluster)) == [b"one", b"two"]


def test_copies_that_wait_to_be_searched_outlive_restarts(cluster: QuorumCluster) -> None:
    """A mirror leads without all, and each node is restarted before the ten minutes are over."""
    declare(cluster, ALL)
    publish(cluster, b"one", b"two")
    cluster.loses(*"abc")
    for node in "abc":
        cluster.comes_back(node)
    led_in(cluster, 1)
    begin_without_slices(cluster)
    cluster.loses("a")
    cluster.clock.advance(15)
    assert cluster.record().promoted == "a is down; copy was not in sync"
    for node in "bc":
        cluster.loses(node)
        cluster.comes_back(node)
        cluster.clock.advance(30)
    cluster.clock.advance(LATE_S + 60)
    assert (ready(cluster), found(cluster)) == ([], [b"one", b"two"])


def begin_without_slices(cluster: QuorumCluster) -> None:
    """Mirrors are told to begin, and have not got anything of what the leader has."""
    for _ in range(30_000):
        cluster.clock.advance(0.0005)
        copies = [cluster[node].mirroring.figures.copies_here() for node in "bc"]
        if all(len(there) == 1 and there[0].mirror.started for there in copies):
            break
    lengths = [level.backing.length for (copy,) in copies for level in copy.mirror.levels]
    assert lengths == [0, 0]


def test_a_copy_that_is_called_in_sync_and_has_an_earlier_card_is_a_former_copy(
    cluster: QuorumCluster,
) -> None:
    """All nodes die as soon as another one leads, before its mirror has written a card."""
    declare(cluster, ALL)
    publish(cluster, b"one", b"two")
    cluster.card_sync_s = 1000.0
    cluster.kill("a")
    cluster.tidy_after("a")
    while cluster.record().epoch == 0:
        cluster.clock.advance(0.001)
    lost = cluster.record().leader
    (mirror,) = cluster.record().in_sync
    cluster.loses("b", "c")
    cluster.card_sync_s = 0.0
    cluster.comes_back(mirror)
    cluster.forgets(lost)
    cluster.forgets("a")
    cluster.clock.advance(5)
    assert cluster.record().leader == mirror
    assert ready(cluster) == [b"one", b"two"]


def test_what_was_consumed_since_a_copy_was_whole_is_not_found(cluster: QuorumCluster) -> None:
    """Node c was away for long, and the leader was started more often than node b."""
    two = {"ha-mode": "nodes", "ha-params": ["a", "c"], "ha-sync-mode": "automatic"}
    declare(cluster, two)
    publish(cluster, *[b"%d" % number for number in range(30)])
    assert cluster.record().in_sync == ["c"]
    cluster.loses("c")
    for _ in range(5):
        cluster.loses("a")
        cluster.comes_back("a")
        cluster.clock.advance(20)
    assert len(ready(cluster)) == 30
    publish(cluster, b"one", b"two")
    set_policy(cluster, {**ALL, **WHEN_SYNCED})
    assert cluster.record().in_sync == ["b"]
    epoch = cluster.record().epoch
    cluster.loses("a", "b")
    for node in "cab":
        cluster.comes_back(node)
    assert led_in(cluster, epoch + 1).former == ["c", "b"]
    cluster.loses("a")
    cluster.forgets("a")
    cluster.clock.advance(LATE_S + 60)
    assert cluster.record().leader == "b"
    assert (ready(cluster), found(cluster)) == ([b"one", b"two"], [])


@pytest.mark.parametrize("was_whole", [False, True])
def test_what_only_a_mirror_has_that_was_not_whole_is_found(
    cluster: QuorumCluster, was_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted for confirms. `was_whole`: its node has a former copy as well."""
    manual = {"ha-sync-mode": "manual", **WHEN_SYNCED}
    nodes = {"ha-mode": "nodes", "ha-params": ["a", "b", "c"] if was_whole else ["a", "b"]}
    declare(cluster, {**nodes, **manual})
    publish(cluster, b"one")
    cluster.loses("c")
    publish(cluster, b"two")
    cluster.loses("b")
    monkeypatch.setattr(Synchronisation, "may_resume", lambda *_: False)
    cluster.comes_back("c")
    set_policy(cluster, {"ha-mode": "all", **manual})
    assert (cluster.record().mirrors, cluster.record().in_sync) == (["c"], [])
    publish(cluster, b"three")
    cluster.loses("a")
    cluster.forgets("a")
    cluster.comes_back("b")
    cluster.clock.advance(20)
    assert cluster.record().leader == "b"
    assert (ready(cluster), found(cluster)) == ([b"one", b"two"], [b"three"])


def test_what_came_after_the_former_copy_of_the_same_node_is_found(
    cluster: QuorumCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(cluster, {"ha-mode": "all", "ha-sync-mode": "manual", **WHEN_SYNCED})
    publish(cluster, b"one")
    cluster.loses("b", "c")
    monkeypatch.setattr(Synchronisation, "may_resume", lambda *_: False)
    cluster.comes_back("c")
    cluster.clock.advance(10)
    assert (cluster.record().mirrors, cluster.record().in_sync) == (["c"], [])
    publish(cluster, b"two")
    cluster.loses("a")
    for node in "ab":
        cluster.forgets(node)
    cluster.clock.advance(20)
    assert cluster.record().leader == "c"
    assert (ready(cluster), found(cluster)) == ([b"one"], [b"two"])


def test_a_level_without_messages_does_not_say_which_copy_has_most(cluster: QuorumCluster) -> None:
    """What was consumed since only node c has, which was away; the last messages only node b."""
    two = {"ha-mode": "nodes", "ha-params": ["a", "c"], "ha-sync-mode": "automatic"}
    declare(cluster, two, x_max_priority=Field("I", 1))
    publish(cluster, b"first", priority=1)
    publish(cluster, b"consumed", priority=0)
    cluster.loses("c")
    set_policy(cluster, {**ALL, **WHEN_SYNCED})
    assert cluster.record().in_sync == ["b"]
    publish(cluster, b"second", priority=1)
    client = cluster.client("a")
    tags = [message.method.delivery_tag for _ in range(3) if (message := got(client)) is not None]
    client.acks(tags.pop())
    client.nacks(tags.pop(), multiple=True)
    cluster.clock.advance(1)
    cluster.loses("a", "b")
    for node in "bc":
        cluster.comes_back(node)
    cluster.comes_back("a")
    led_in(cluster, 1)
    cluster.loses("a")
    cluster.forgets("a")
    cluster.clock.advance(5)
    assert cluster.record().leader == "b"
    assert ready(cluster) == [b"first", b"second"]


def test_a_mirror_in_sync_that_was_cut_off_is_searched_though_no_later_definition_comes(
    cluster: QuorumCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror that was not in sync leads. The other one hears of that at last, and of no more."""
    declare(cluster, {"ha-mode": "all", "ha-sync-mode": "manual"})
    publish(cluster, b"one")
    cluster.loses("b")
    monkeypatch.setattr(Synchronisation, "may_resume", lambda *_: False)
    cluster.comes_back("b")
    cluster.clock.advance(10)
    assert (cluster.record().mirrors, cluster.record().in_sync) == (["c", "b"], ["c"])
    for other in "ab":
        cluster.cut(other, "c")
    cluster.cut_store("c")
    cluster.lease_ends("c")
    cluster.loses("a")
    cluster.clock.advance(15)
    assert cluster["b"].metadata.get(("queue", "/", "q")).record.leader == "b"  # type: ignore[union-attr]
    cluster.restore_store("c")
    cluster.clock.advance(5)
    queue_id = cluster["b"].queue("q").queue_id
    former = cluster["c"].mirroring.copies.former_of(queue_id)
    assert former is not None and former.to_be_searched
