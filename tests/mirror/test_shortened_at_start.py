"""All nodes are started again, and the disk of one has an older state than it had: the end of its
log was lost, or it was put back from a copy. Nothing on it is damaged."""

from __future__ import annotations

import pytest
from stopped_cluster import StoppedCluster

from warren.mirror.replication.copies import copy_questions
from warren.mirror.replication.copies.copy_here import LEADER_MAY_COME_S
from warren.mirror.replication.copies.lost_and_found import LOST_AND_FOUND
from warren.mirror.replication.elections.returned_leader import MIRROR_MAY_COME_S, RECLAIM_S

CARRIERS = ("gm", "log")
BODIES = [b"%d" % number for number in range(6)]
LONG_S = LEADER_MAY_COME_S + MIRROR_MAY_COME_S + 10


def shorten(cluster: StoppedCluster, node: str, count: int) -> None:
    """Put the disk of a node back to when it had only this many messages."""
    disk = cluster.disks[node]
    (storage_id,) = [storage_id for storage_id, queue in disk.queues.items() if queue]
    kept = disk.queues[storage_id]
    for position in sorted(kept)[count:]:
        del kept[position]
    disk.ends[storage_id] = max(kept, default=-1) + 1


def killed_with(carrier: str, *bodies: bytes) -> StoppedCluster:
    """All nodes are killed, and have all messages on disk."""
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic")
    cluster.publish(*bodies)
    cluster.kill_all()
    return cluster


def is_at_rest(cluster: StoppedCluster) -> bool:
    record = cluster.record()
    return sorted([record.leader, *record.in_sync]) == cluster.alive


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("order", ["abc", "cba", "bac"])
@pytest.mark.parametrize("kept", [0, 3, 5])
def test_a_mirror_leads_in_the_place_of_a_leader_that_lacks_its_last_messages(
    carrier: str, order: str, kept: int
) -> None:
    cluster = killed_with(carrier, *BODIES)
    shorten(cluster, "a", kept)
    cluster.start_again(*order)
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader != "a" and is_at_rest(cluster)
    assert [body for body, _ in cluster.bodies()] == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_leader_that_lacks_nothing_leads_on(carrier: str) -> None:
    cluster = killed_with(carrier, *BODIES)
    cluster.start_again("a", "b", "c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "a" and is_at_rest(cluster)
    assert [body for body, _ in cluster.bodies()] == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_messages_that_its_mirrors_still_have_are_not_missing_if_they_were_acknowledged(
    carrier: str,
) -> None:
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic")
    cluster.publish(*BODIES)
    on_disk = {node: dict(*cluster.disks[node].queues.values()) for node in "bc"}
    assert [body for body, _ in cluster.bodies()] == BODIES
    cluster.clock.advance(1)
    cluster.kill_all()
    # As if the mirrors had died before they heard of it.
    for node, kept in on_disk.items():
        (queue,) = cluster.disks[node].queues.values()
        queue.update(kept)
    cluster.start_again("a", "b", "c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "a" and is_at_rest(cluster)
    assert cluster.bodies() == []


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_leader_goes_on_if_the_mirror_that_has_more_goes_again(carrier: str) -> None:
    cluster = killed_with(carrier, *BODIES)
    for node in ("a", "b"):
        shorten(cluster, node, 3)
    cluster.start_again("a", "c")
    cluster.kill_and_tidy("c")
    cluster.start_again("b")
    cluster.clock.advance(LONG_S)
    assert is_at_rest(cluster)
    assert [body for body, _ in cluster.bodies()] == BODIES[:3]


@pytest.mark.parametrize("victim", ["a", "b", "c"])
@pytest.mark.parametrize("kept", [0, 3, 5])
def test_members_of_a_quorum_queue_elect_one_that_lacks_nothing(victim: str, kept: int) -> None:
    cluster = StoppedCluster("log")
    cluster.make_quorum_queue()
    cluster.publish(*BODIES)
    cluster.kill_all()
    shorten(cluster, victim, kept)
    cluster.start_again("a", "b", "c")
    cluster.clock.advance(LONG_S)
    record = cluster.record()
    assert sorted([record.leader, *record.in_sync]) == ["a", "b", "c"]
    assert [body for body, _ in cluster.bodies()] == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_messages_of_a_mirror_that_comes_too_late_are_in_lost_and_found(carrier: str) -> None:
    cluster = killed_with(carrier, *BODIES)
    shorten(cluster, "a", 4)
    cluster.start_again("a")
    cluster.clock.advance(RECLAIM_S + 2)
    cluster.publish(b"new")
    cluster.start_again("b", "c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "a" and is_at_rest(cluster)
    assert [body for body, _ in cluster.bodies()] == [*BODIES[:4], b"new"]
    assert [body for body, _ in cluster.bodies(LOST_AND_FOUND)] == BODIES[4:]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_mirror_that_comes_late_and_has_no_more_puts_nothing_there(carrier: str) -> None:
    cluster = killed_with(carrier, *BODIES)
    cluster.start_again("a")
    cluster.clock.advance(RECLAIM_S + 2)
    cluster.publish(b"new")
    cluster.start_again("b", "c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "a" and is_at_rest(cluster)
    assert [body for body, _ in cluster.bodies()] == [*BODIES, b"new"]
    assert LOST_AND_FOUND not in cluster["a"].node.vhosts["/"].queues


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_leader_goes_on_if_its_mirrors_are_of_an_earlier_version(
    carrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These do not know the question whether they have more."""
    monkeypatch.setattr(copy_questions, "HAS_MORE_ON_DISK", "not asked yet")
    cluster = killed_with(carrier, *BODIES)
    cluster.start_again("a", "b", "c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "a" and is_at_rest(cluster)
    assert [body for body, _ in cluster.bodies()] == BODIES
