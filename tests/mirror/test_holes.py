"""Holes: what a leader has lost by damage, and mirrors have that come when it leads on."""

from __future__ import annotations

import msgspec
import pytest
from damaged_cluster import BODIES, CARRIERS, LONG_S, bodies, damage, damaged, led, left_alone, lose
from manual_clock import ManualClock
from pamqp import commands
from stopped_cluster import StoppedCluster

from warren.core.backing.backing_queue import Listed, MirroredLevel
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.backing.stream_limits import KEEP_ALL, StreamLimits
from warren.core.backing.stream_log import StreamLog
from warren.core.scheduling.waiting import run
from warren.mirror.replication.copies.copy_cards import Card
from warren.mirror.replication.copies.lost_and_found import LATE_S, LOST_AND_FOUND
from warren.mirror.replication.levels.holes import (
    COUNT_MAX,
    HOLES_MAX,
    Hole,
    holes_in,
    not_too_many,
)
from warren.mirror.replication.levels.renumbering import LeaderChange, Renumbering


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("lost", [(0,), (2, 3), (1, 4), (5,), tuple(range(6))])
def test_what_the_disk_has_lost_is_in_lost_and_found_when_mirrors_come(
    carrier: str, lost: tuple[int, ...]
) -> None:
    cluster = damaged(carrier, *lost)
    cluster.publish(b"new")
    cluster.start_again("b", "c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().leader == "a" and sorted(cluster.record().in_sync) == ["b", "c"]
    left = [body for number, body in enumerate(BODIES) if number not in lost]
    assert bodies(cluster) == [*left, b"new"]
    assert bodies(cluster, LOST_AND_FOUND) == [BODIES[number] for number in lost]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_was_consumed_since_is_not_there(carrier: str) -> None:
    cluster = damaged(carrier, 1, 4)
    assert bodies(cluster) == [BODIES[0], *BODIES[2:4], BODIES[5]]
    cluster.start_again("b", "c")
    cluster.clock.advance(LONG_S)
    assert bodies(cluster) == []
    assert bodies(cluster, LOST_AND_FOUND) == [BODIES[1], BODIES[4]]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_leader_knows_it_after_another_start_too(carrier: str) -> None:
    cluster = damaged(carrier, 1, 4)
    cluster.damaged.clear()
    cluster.kill_all()
    cluster.start_again("a")
    cluster.clock.advance(5)
    cluster.start_again("b", "c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert bodies(cluster) == [BODIES[0], *BODIES[2:4], BODIES[5]]
    assert bodies(cluster, LOST_AND_FOUND) == [BODIES[1], BODIES[4]]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_next_leader_knows_it_too(carrier: str) -> None:
    """Only one mirror comes at first, and leads when the other one comes."""
    cluster = damaged(carrier, 1, 4)
    cluster.start_again("b")
    cluster.clock.advance(LONG_S)
    assert cluster.record().in_sync == ["b"]
    cluster.kill_and_tidy("a")
    cluster.kill_and_tidy("b")
    cluster.disks.pop("b")
    cluster.damaged.clear()
    cluster.start_again("a")
    cluster.clock.advance(LONG_S)
    cluster.start_again("c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert bodies(cluster, LOST_AND_FOUND) == [BODIES[1], BODIES[4]]


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_message_that_turns_out_to_be_damaged_later_is_there(
    carrier: str, restarted: bool
) -> None:
    cluster = damaged(carrier, 1)
    level = led(cluster).leader.levels[0]
    first = level.oldest()
    (message,) = level.inner.take([first + 3])
    level.inner.ack([message])
    cluster["a"].mirroring.has_lost(led(cluster).storage_id, first + 3)
    cluster.clock.advance(2)
    if restarted:
        cluster.damaged.clear()
        cluster.kill_all()
        cluster.start_again("a")
        cluster.clock.advance(5)
    cluster.start_again("b", "c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert bodies(cluster) == [BODIES[0], BODIES[2], *BODIES[4:]]
    assert bodies(cluster, LOST_AND_FOUND) == [BODIES[1], BODIES[3]]


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("lost", [(3,), (0, 5), tuple(range(6))])
def test_what_is_damaged_while_the_mirrors_are_away_is_there_when_they_come(
    carrier: str, restarted: bool, lost: tuple[int, ...]
) -> None:
    cluster = left_alone(carrier)
    lose(cluster, *lost)
    cluster.clock.advance(2)
    cluster.publish(b"new")
    if restarted:
        cluster.kill_all()
        cluster.start_again("a")
        cluster.clock.advance(5)
    cluster.start_again("b", "c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert sorted(cluster.record().in_sync) == ["b", "c"]
    left = [body for number, body in enumerate(BODIES) if number not in lost]
    assert bodies(cluster) == [*left, b"new"]
    assert bodies(cluster, LOST_AND_FOUND) == [BODIES[number] for number in lost]


def test_what_a_quorum_queue_loses_without_a_majority_is_there_when_the_members_come() -> None:
    cluster = StoppedCluster("log")
    cluster.make_quorum_queue()
    cluster.publish(*BODIES)
    cluster.kill_and_tidy("b", "c")
    cluster.clock.advance(LONG_S)
    lose(cluster, 3)
    cluster.clock.advance(2)
    cluster.start_again("b", "c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert len(cluster.record().in_sync) == 2
    left = [body for number, body in enumerate(BODIES) if number != 3]
    assert bodies(cluster) == left
    assert bodies(cluster, LOST_AND_FOUND) == [BODIES[3]]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_is_damaged_while_a_mirror_catches_up_is_not_dropped_by_it(carrier: str) -> None:
    cluster = left_alone(carrier)
    cluster.start_again("b")
    while "b" not in cluster.record().mirrors:
        cluster.clock.advance(0.001)
    assert not cluster.record().in_sync
    lose(cluster, 5)
    cluster.clock.advance(LATE_S + LONG_S)
    assert cluster.record().in_sync == ["b"]
    assert bodies(cluster) == BODIES[:5]
    assert bodies(cluster, LOST_AND_FOUND) == BODIES[5:]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_mirror_in_sync_that_has_it_leads(carrier: str) -> None:
    """The other one was away, and has come back."""
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic")
    cluster.publish(*BODIES)
    cluster.kill_and_tidy("c")
    cluster.clock.advance(LONG_S)
    assert cluster.record().in_sync == ["b"]
    lose(cluster, 2)
    cluster.start_again("c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert cluster.record().leader == "b"
    assert bodies(cluster) == BODIES
    assert bodies(cluster, LOST_AND_FOUND) == []


@pytest.mark.parametrize("carrier", CARRIERS)
def test_damage_that_is_found_bit_by_bit_is_one_step_while_no_mirror_comes(carrier: str) -> None:
    cluster = left_alone(carrier)
    for _ in range(4):
        lose(cluster, 1)
        cluster.clock.advance(2)
    assert len(led(cluster).leader.renumbering.steps) == 1
    cluster.start_again("b", "c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert bodies(cluster) == [BODIES[0], BODIES[5]]
    assert bodies(cluster, LOST_AND_FOUND) == BODIES[1:5]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_clients_keep_what_they_have_when_damage_is_found(carrier: str) -> None:
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic")
    cluster.publish(*BODIES)
    client = cluster["a"].connects()
    client.opens_channel(1)
    got = client.gets("q")
    assert got is not None and got.body == BODIES[0]
    cluster.kill_and_tidy("b", "c")
    cluster.clock.advance(LONG_S)
    lose(cluster, 2)
    cluster.clock.advance(2)
    client.sends(commands.Basic.Ack, delivery_tag=got.method.delivery_tag)
    cluster.clock.advance(1)
    cluster.start_again("b", "c")
    cluster.clock.advance(LATE_S + LONG_S)
    assert bodies(cluster) == [*BODIES[1:3], *BODIES[4:]]
    assert bodies(cluster, LOST_AND_FOUND) == [BODIES[3]]


def test_what_a_member_has_is_there_when_the_third_one_is_forgotten() -> None:
    """Without that one there are not enough votes for the member, and the leader goes on."""
    cluster = StoppedCluster("log")
    cluster.make_quorum_queue()
    cluster.publish(*BODIES)
    cluster.kill_all()
    damage(cluster, 0, 3)
    cluster.start_again("a", "b")
    cluster.clock.advance(60)
    assert cluster["a"].node.vhosts["/"].queues["q"].is_held
    del cluster.nodes["c"]
    run(cluster["a"].mirroring.queue_members.forget("c", cluster.nodes), lambda result: result())
    cluster.clock.advance(LATE_S + LONG_S)
    assert cluster.record().leader == "a" and cluster.record().in_sync == ["b"]
    assert cluster.record().promoted == "its leader is back, with a damaged disk"
    assert bodies(cluster) == [*BODIES[1:3], *BODIES[4:]]
    assert bodies(cluster, LOST_AND_FOUND) == [BODIES[0], BODIES[3]]


def test_holes_that_touch_are_one_and_too_many_are_joined() -> None:
    assert not_too_many([Hole(0, 1, 2), Hole(0, 2, 4), Hole(0, 3, 5), Hole(0, 7, 8)]) == [
        Hole(0, 1, 5),
        Hole(0, 7, 8),
    ]
    many = [Hole(2, 10 * number, 10 * number + 1) for number in range(HOLES_MAX + 1)]
    fewer = not_too_many(many)
    assert len(fewer) == HOLES_MAX // 2 + 1
    assert fewer[0] == Hole(2, 0, 11) and fewer[-1] == many[-1]


def test_a_step_keeps_its_holes() -> None:
    known = Renumbering(0)
    assert not known.note_holes(1, [Hole(0, 1, 2)])
    known.step(LeaderChange(1, [0, 0], [9, 9], [0, 0], holes=[Hole(0, 2, 4)]))
    assert known.note_holes(1, [Hole(0, 4, 5), Hole(1, 0, 1), Hole(0, 7, 8)])
    assert not known.note_holes(2, [Hole(0, 1, 2)])
    card = Card(1, 1, [0, 0], *known.plain())
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(card), type=Card)
    told = Renumbering.told(read.first_epoch, read.steps)
    assert told.steps[0].holes == [[0, 2, 5], [0, 7, 8], [1, 0, 1]]
    gap = told.up_to_gap(0)
    assert gap is not None and gap.step == told.steps[0]


def test_what_later_leaders_lack_of_an_earlier_copy_counts_as_holes() -> None:
    """They are in the positions of the first leader that lacked messages, and end where it did."""
    known = Renumbering(0)
    known.step(LeaderChange(1, [0], [20], [0], holes=[Hole(0, 3, 5)]))
    known.step(LeaderChange(2, [10], [28]))
    known.step(LeaderChange(3, [-1], [40], [0], holes=[Hole(0, 11, 12), Hole(0, 26, 30)]))
    gap = known.up_to_gap(0)
    assert gap is not None and gap.step.epoch == 1
    assert gap.step.holes == [Hole(0, 2, 5), Hole(0, 17, 18)]
    known.step(LeaderChange(4, [0], [40], [16]))
    gap = known.up_to_gap(0)
    assert gap is not None and gap.step.holes == [Hole(0, -9, 7), Hole(0, 17, 18)]


KNOWN = [*range(10, 2 * COUNT_MAX), *range(2 * COUNT_MAX + 5, 3 * COUNT_MAX)]
END = 3 * COUNT_MAX + 9


def listed(_level: object, start: int, end: int, count_max: int) -> Listed:
    """What the disk has; there were more messages than are listed at a time."""
    known = [position for position in KNOWN if start <= position < end]
    beyond = known[count_max] if len(known) > count_max else end
    return Listed(known[:count_max], beyond, True)


@pytest.mark.parametrize("kind", [MemoryQueue, StreamLog])
@pytest.mark.parametrize("keeps", [KEEP_ALL, StreamLimits(age_max_s=60)])
def test_the_holes_of_a_level(
    kind: type[MirroredLevel], keeps: StreamLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the oldest messages go by themselves, nothing is a hole before them."""
    monkeypatch.setattr(kind, "end_at_start", END)
    monkeypatch.setattr(kind, "list_positions", listed)
    monkeypatch.setattr(kind, "next_position", END)
    clock, found = ManualClock(), list[Hole]()
    level: MirroredLevel = kind.__new__(kind)
    run(holes_in(7, level, keeps, clock), lambda result: found.extend(result()))
    clock.advance(1)
    in_both = [Hole(7, 2 * COUNT_MAX, 2 * COUNT_MAX + 5), Hole(7, 3 * COUNT_MAX, END)]
    assert found == ([Hole(7, 0, 10), *in_both] if keeps.keeps_all else in_both)
