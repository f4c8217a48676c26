"""Holes of leaders that are damaged more than once, or of which several copies tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_disk import other_queues_on_disk
from stopped_cluster import StoppedCluster

from warren.core.scheduling.waiting import run
from warren.mirror.replication.copies.copy_here import LEADER_MAY_COME_S
from warren.mirror.replication.copies.copy_questions import WRITE_CARD_OF_DAMAGED
from warren.mirror.replication.copies.lost_and_found import LATE_S, LOST_AND_FOUND
from warren.mirror.replication.elections.returned_leader import MIRROR_MAY_COME_S
from warren.mirror.replication.leading.led_queue import LedQueue

CARRIERS = ("gm", "log")
BODIES = [b"%d" % number for number in range(6)]
LONG_S = LEADER_MAY_COME_S + MIRROR_MAY_COME_S + 10


def bodies(cluster: StoppedCluster, queue: str = "q") -> list[bytes]:
    if queue not in cluster[cluster.record().leader].node.vhosts["/"].queues:
        return []
    return [body for body, _ in cluster.bodies(queue)]


def led(cluster: StoppedCluster) -> LedQueue:
    return next(led for led in cluster["a"].mirroring._led.values() if led.key[2] == "q")


def damage(cluster: StoppedCluster, *lost: int, node: str = "a") -> None:
    cluster.damaged.add(node)
    kept = max(cluster.disks[node].queues.values(), key=len)
    for position in [sorted(kept)[number] for number in lost]:
        del kept[position]


def lose_disk(cluster: StoppedCluster, node: str) -> None:
    cluster.disks.pop(node)
    cluster.cards.pop(node)


def damaged(carrier: str, *lost: int, **policy: int) -> StoppedCluster:
    """The disk of the leader has lost these of six messages, and it has led on alone."""
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic", **policy)
    cluster.publish(*BODIES)
    cluster.kill_all()
    damage(cluster, *lost)
    cluster.start_again("a")
    cluster.clock.advance(MIRROR_MAY_COME_S + 5)
    assert not cluster["a"].node.vhosts["/"].queues["q"].is_held
    return cluster


def everything(cluster: StoppedCluster) -> list[bytes]:
    return sorted([*bodies(cluster), *bodies(cluster, LOST_AND_FOUND)])


@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_is_lost_by_damage_at_the_next_start_is_there_too(carrier: str) -> None:
    """No mirror has come in between."""
    cluster = damaged(carrier, 1)
    cluster.kill_all()
    damage(cluster, 2)
    cluster.start_again("a")
    cluster.clock.advance(MIRROR_MAY_COME_S + 5)
    cluster.start_again("b", "c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert bodies(cluster) == [BODIES[0], BODIES[2], *BODIES[4:]]
    assert bodies(cluster, LOST_AND_FOUND) == [BODIES[1], BODIES[3]]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_a_second_damage_has_lost_is_there_if_the_copy_is_older(carrier: str) -> None:
    """A mirror has come in between, and is gone for good."""
    cluster = damaged(carrier, 1)
    cluster.start_again("b")
    cluster.clock.advance(LONG_S)
    assert cluster.record().in_sync == ["b"]
    cluster.kill_all()
    damage(cluster, 2)
    cluster.start_again("a")
    cluster.clock.advance(MIRROR_MAY_COME_S + 5)
    assert not cluster["a"].node.vhosts["/"].queues["q"].is_held
    lose_disk(cluster, "b")
    cluster.damaged.clear()
    cluster.start_again("c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert everything(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_damaged_mirror_does_not_keep_a_whole_one_from_being_searched(carrier: str) -> None:
    cluster = damaged(carrier, 1, 4)
    cluster.damaged.add("b")
    (kept,) = [queue for queue in cluster.disks["b"].queues.values() if queue]
    del kept[sorted(kept)[1]]
    cluster.start_again("b")
    cluster.clock.advance(LATE_S + LONG_S)
    cluster.damaged.clear()
    cluster.start_again("c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert set(everything(cluster)) == set(BODIES)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_holes_found_after_a_search_are_searched_too(carrier: str) -> None:
    cluster = damaged(carrier, 1)
    declare_lost_and_found(cluster)
    cluster.start_again("b")
    cluster.clock.advance(LATE_S + LONG_S)
    assert bodies(cluster, LOST_AND_FOUND) == [BODIES[1]]
    cluster.kill("b")
    cluster.tidy_after("b")
    cluster.clock.advance(20)
    read_damaged(cluster, 3)
    cluster.clock.advance(2)
    cluster.start_again("c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert set(everything(cluster)) == set(BODIES)


@pytest.mark.parametrize("lost", [(5,), (4, 5), tuple(range(6))])
@pytest.mark.parametrize("end_is_known", [True, False])
def test_a_member_that_is_up_keeps_the_last_messages_too(
    lost: tuple[int, ...], end_is_known: bool
) -> None:
    cluster = StoppedCluster("log")
    cluster.make_quorum_queue()
    cluster.publish(*BODIES)
    cluster.kill_all()
    damage(cluster, *lost)
    if not end_is_known:
        disk = cluster.disks["a"]
        for queue_id, kept in disk.queues.items():
            disk.ends[queue_id] = max(kept, default=-1) + 1
    cluster.start_again("a", "b")
    cluster.clock.advance(60)
    del cluster.nodes["c"]
    run(cluster["a"].mirroring.queue_members.forget("c", cluster.nodes), lambda result: result())
    cluster.clock.advance(LATE_S + LONG_S)
    assert cluster.record().leader == "a" and cluster.record().in_sync == ["b"]
    assert everything(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_hole_that_a_synchronisation_finds_is_known_to_the_mirror(carrier: str) -> None:
    """It leads when the other one comes."""
    cluster = damaged(carrier, 1)
    lose_disk(cluster, "b")
    cluster.start_again("b")
    until(cluster, lambda: "b" in cluster.record().mirrors)
    read_damaged(cluster, 3)
    cluster.clock.advance(LONG_S)
    cluster.kill("a")
    cluster.tidy_after("a")
    lose_disk(cluster, "a")
    cluster.damaged.clear()
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "b"
    cluster.start_again("c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert set(everything(cluster)) == set(BODIES)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_leader_that_is_killed_before_its_card_says_how_it_goes_on_knows_it(carrier: str) -> None:
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic")
    cluster.publish(*BODIES)
    cluster.kill_all()
    damage(cluster, 1, 4)
    cluster.card_sync_s = 2.0
    cluster.start_again("a")
    until(cluster, lambda: cluster.record().epoch > 0)
    cluster.clock.advance(1)
    cluster.kill_all()
    cluster.damaged.clear()
    cluster.card_sync_s = 0.0
    cluster.start_again("a")
    cluster.clock.advance(MIRROR_MAY_COME_S + 5)
    cluster.start_again("b", "c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert everything(cluster) == BODIES


def until(cluster: StoppedCluster, happened: Callable[[], bool]) -> None:
    for _ in range(10000):
        if happened():
            return
        cluster.clock.advance(0.002)
    raise AssertionError("it has not happened")


def read_damaged(cluster: StoppedCluster, number: int) -> None:
    """Have the leader find that this message is damaged, counted from the oldest."""
    level = led(cluster).leader.levels[0]
    (message,) = level.inner.take([level.oldest() + number])
    level.inner.ack([message])
    cluster["a"].mirroring.has_lost(led(cluster).storage_id, level.oldest() + number)


@pytest.mark.parametrize("order", ["bc", "cb"])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_an_empty_copy_does_not_keep_a_fuller_one_from_being_searched(
    carrier: str, order: str
) -> None:
    """It is of a mirror that went before the messages were published."""
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic")
    cluster.publish(b"before")
    assert bodies(cluster) == [b"before"]
    cluster.clock.advance(1)
    cluster.kill("b")
    cluster.tidy_after("b")
    cluster.clock.advance(20)
    cluster.publish(*BODIES)
    cluster.kill_all()
    damage(cluster, 1, 4)
    cluster.start_again("a")
    cluster.clock.advance(MIRROR_MAY_COME_S + 5)
    cluster.start_again(*order)
    cluster.clock.advance(LATE_S + LONG_S)
    assert set(everything(cluster)) == set(BODIES)


def test_a_copy_that_was_searched_is_searched_again_after_a_second_damage() -> None:
    """The mirror has not been whole in between."""
    cluster = damaged("log", 1, log_catchup_rate=1)
    declare_lost_and_found(cluster)
    cluster.start_again("b", "c")
    found = cluster["a"].node.vhosts["/"].queues[LOST_AND_FOUND]
    until(cluster, lambda: len(found) > 0)
    cluster.clock.advance(3)
    assert not cluster.record().in_sync
    cluster.kill_all()
    damage(cluster, 2)
    cluster.start_again("a")
    cluster.clock.advance(MIRROR_MAY_COME_S + 5)
    cluster.damaged.clear()
    cluster.start_again("b", "c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert set(everything(cluster)) == set(BODIES)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("alone", [False, True])
def test_nodes_that_die_before_a_mirror_leads_keep_what_the_leader_has_lost(
    carrier: str, alone: bool
) -> None:
    """The leader has found a damaged message, and all nodes die before another one leads."""
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic")
    cluster.publish(*BODIES)
    read_damaged(cluster, 3)
    cluster.clock.advance(0.01)
    assert cluster.record().leader == "a"
    cluster.kill_all()
    cluster.start_again("a")
    cluster.clock.advance(MIRROR_MAY_COME_S + 5 if alone else 0)
    cluster.start_again("b", "c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert (cluster.record().leader == "a") is alone
    assert everything(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_mirrors_that_die_before_they_lead_keep_what_the_leader_has_lost(carrier: str) -> None:
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic")
    cluster.publish(*BODIES)
    read_damaged(cluster, 3)
    cluster.clock.advance(0.01)
    for node in ("b", "c"):
        cluster.kill(node)
        cluster.tidy_after(node)
    cluster.clock.advance(20)
    assert cluster.record().leader == "a"
    cluster.start_again("b", "c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert everything(cluster) == BODIES


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_leader_that_is_left_alone_knows_what_it_has_lost(carrier: str) -> None:
    """It goes on before a mirror can lead."""
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic")
    cluster.publish(*BODIES)
    read_damaged(cluster, 3)
    cluster["a"].mirroring.membership_lost(led(cluster), "a test")
    cluster.clock.advance(LATE_S + LONG_S)
    assert everything(cluster) == BODIES


@pytest.mark.parametrize("lost", [(0,), (2, 3), (5,)])
def test_what_the_leader_of_a_stream_has_lost_is_there_too(lost: tuple[int, ...]) -> None:
    """Also its oldest messages, if these do not go by themselves."""
    with other_queues_on_disk():
        cluster = StoppedCluster("log")
        cluster.make_queue("stream")
        cluster.publish(*BODIES)
        cluster.kill_all()
        cluster.damaged.add("a")
        (kept,) = [stream for stream in cluster.disks["a"].streams.values() if stream]
        for position in [sorted(kept)[number] for number in lost]:
            del kept[position]
        cluster.start_again("a", "b")
        cluster.clock.advance(60)
        del cluster.nodes["c"]
        members = cluster["a"].mirroring.queue_members
        run(members.forget("c", cluster.nodes), lambda result: result())
        cluster.clock.advance(LATE_S + LONG_S)
        assert cluster.record().leader == "a"
        assert bodies(cluster, LOST_AND_FOUND) == [BODIES[number] for number in lost]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_mirror_of_an_earlier_version_is_not_told_of_holes(carrier: str) -> None:
    cluster = damaged(carrier, 1)
    cluster.start_again("b")
    methods = cluster["b"].mirroring._calls._methods  # type: ignore[attr-defined]
    del methods[WRITE_CARD_OF_DAMAGED]
    cluster.clock.advance(LONG_S)
    assert cluster.record().in_sync == ["b"]


def declare_lost_and_found(cluster: StoppedCluster) -> None:
    """Have it at the leader, which stays up."""
    client = cluster["a"].connects()
    client.opens_channel(1)
    client.declares(LOST_AND_FOUND, durable=True)
    cluster.clock.advance(1)
