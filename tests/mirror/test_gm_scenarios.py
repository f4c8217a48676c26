"""GS1 to GS27 of invariants_and_test_ideas.md, each with several orders of events.

What always holds is checked by the processes of the simulation as it happens, and by `finish`.
"""

from __future__ import annotations

import pytest
from gm_group import Group
from gm_process import GROUP, Process
from ring_members import A, broadcast

from warren.mirror.carriers.ports import MemberId, StopReason
from warren.mirror.gm.base import GmLimits
from warren.mirror.gm.effects import (
    Effect,
)
from warren.mirror.gm.messages import (
    ANY,
    CheckNeighbours,
)

SEEDS = range(8)


@pytest.mark.parametrize("members", [2, 3, 4, 5])
def test_gs1_without_faults_everybody_gets_everything(members: int) -> None:
    group = Group(members)
    for _ in range(20):
        for process in group.ring:
            broadcast(process, 5, confirm=True)
        group._check_links()
    group.settle()
    assert [process.delivered for process in group.ring] == [members * 100] * members
    assert group.confirms == members * 100
    group.finish()


@pytest.mark.parametrize("steps", [1, 2], ids=["before passing on", "before delivering"])
@pytest.mark.parametrize("seed", SEEDS)
def test_gs2_gs3_a_member_dies_with_a_message_in_hand(seed: int, steps: int) -> None:
    group = Group(4, seed)
    first, second, third, fourth = group.ring
    second.steps_left = steps
    broadcast(first, confirm=True)
    group.settle()
    assert second.is_over
    assert third.delivered == fourth.delivered == 1
    assert not first.tokens
    group.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_gs4_what_was_only_in_the_buffer_of_the_dead_nobody_gets(seed: int) -> None:
    group = Group(3, seed)
    first, second, third = group.ring
    broadcast(first, 3)
    group.settle()
    first.broadcast(False)
    first.end(None)
    group.settle()
    assert second.end_of(first.address) == third.end_of(first.address) == 2
    assert first.address not in second.known | third.known
    group.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_gs5_a_message_survives_its_sender_once_one_has_it(seed: int) -> None:
    group = Group(4, seed)
    first, second, third, fourth = group.ring
    broadcast(first)
    group.run_until_delivered(second)
    first.end(None)
    group.settle()
    assert all(process.end_of(first.address) == 0 for process in (second, third, fourth))
    assert first.address not in second.known | third.known | fourth.known
    group.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_gs6_a_message_survives_its_sender_and_the_first_that_got_it(seed: int) -> None:
    group = Group(4, seed)
    first, second, third, fourth = group.ring
    broadcast(first)
    group.run_until_delivered(third)
    first.end(None)
    second.end(None)
    group.settle()
    assert third.end_of(first.address) == fourth.end_of(first.address) == 0
    group.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_gs7_an_heir_dies_and_the_next_inherits_all(seed: int) -> None:
    group = Group(5, seed)
    first, second, third, fourth, fifth = group.ring
    group.world.network.stall(fifth.address)
    broadcast(first)
    group.run_until_delivered(fourth)
    first.end(None)
    group.run_until(lambda: first.address in second.member.view.aliases)
    second.end(None)
    group.run_until(lambda: {first.address, second.address} <= third.member.view.aliases)
    group.world.network.resume(fifth.address)
    group.settle()
    assert fifth.end_of(first.address) == 0
    assert not third.member.view.aliases
    group.finish()


@pytest.mark.parametrize("events", range(0, 120, 3))
def test_gs8_a_member_joins_in_the_middle_of_a_storm(events: int) -> None:
    group = Group(3, events)
    for _ in range(4):
        for process in group.ring:
            broadcast(process, 2)
    group.add("d")
    for _ in range(events):
        group.scheduler.step()
    for process in group.joined:
        broadcast(process, 2)
    group.settle()
    assert len(group.members()) == 4
    group.finish()


def asked_by(group: Group, joiner: Process) -> Process:
    """Whom the joiner asks to be let in."""
    group.run_until(lambda: joiner.member._asked is not None)
    return next(p for p in group.live if p.address == joiner.member._asked)


@pytest.mark.parametrize("seed", SEEDS)
def test_gs9_whom_a_joiner_asks_dies_before_it_has_done_anything(seed: int) -> None:
    group = Group(3, seed)
    joiner = group.add("d")
    asked = asked_by(group, joiner)
    asked.steps_left = 1
    group.settle()
    assert asked.is_over
    assert joiner.is_joined
    assert asked.address not in joiner.known
    group.finish()


@pytest.mark.parametrize("steps", range(1, 9))
@pytest.mark.parametrize("seed", SEEDS)
def test_gs10_whom_a_joiner_asks_dies_after_it_let_it_in(seed: int, steps: int) -> None:
    """Its own last messages are on their way past the joiner, which knows nothing of them."""
    group = Group(4, seed)
    joiner = group.add("e")
    asked = asked_by(group, joiner)
    broadcast(asked, 3)
    asked.steps_left = steps
    group.settle()
    old = [process for process in group.ring if not process.is_over]
    assert len({process.end_of(asked.address) for process in old}) == 1
    assert any(process.site == "e" for process in group.members())
    group.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_gs11_two_join_at_the_same_neighbour(seed: int) -> None:
    group = Group(1, seed)
    group.add("b")
    group.add("c")
    group.settle()
    assert len(group.members()) == 3
    group.finish()


@pytest.mark.parametrize("steps", range(1, 9))
@pytest.mark.parametrize("seed", SEEDS)
def test_gs12_a_joiner_dies_at_any_step(seed: int, steps: int) -> None:
    group = Group(3, seed)
    joiner = group.add("d")
    joiner.steps_left = steps
    for process in group.ring:
        broadcast(process)
    group.settle()
    if joiner.is_over:
        assert all(joiner.address not in process.known for process in group.ring)
    group.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_gs13_the_last_one_left_gets_its_confirms_and_company(seed: int) -> None:
    group = Group(4, seed)
    first, *others = group.ring
    broadcast(first, 3, confirm=True)
    for process in others:
        process.end(None)
    group.settle()
    assert not first.tokens
    assert first.known == {first.address}
    group.add("e")
    group.settle()
    assert len(group.members()) == 2
    group.finish()


def test_gs14_when_all_are_dead_a_joiner_makes_the_group_anew() -> None:
    group = Group(3)
    for process in group.ring:
        process.end(None)
    joiner = group.add("d")
    group.settle()
    assert joiner.is_joined and joiner.known == {joiner.address}
    assert [member.node for member in group.world.store.values[GROUP].members] == ["d"]


def test_gs15_who_leaves_is_to_the_others_like_one_that_died() -> None:
    records = []
    for how in ("leave", "crash"):
        group = Group(3)
        first = group.ring[0]
        first.event(first.member.leave) if how == "leave" else first.end(None)
        group.settle()
        records.append(group.world.store.values[GROUP])
        assert first.reason is (StopReason.LEFT if how == "leave" else None)
    assert records[0] == records[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_gs16_a_group_that_stops_stops_when_all_have_all(seed: int) -> None:
    group = Group(4, seed)
    for process in group.ring:
        broadcast(process, 3)

        def stop(sender: MemberId, payload: bytes, process: Process = process) -> None:
            if sender == A and payload == b"3":
                process.world.scheduler.after(
                    0.0, lambda: process.event(process.member.stop_when_drained)
                )

        process.on_deliver = stop
    broadcast(next(process for process in group.ring if process.address == A))
    group.settle()
    assert [process.reason for process in group.ring] == [StopReason.DRAINED] * 4
    assert all(process.end_of(A) == 3 and process.delivered == 13 for process in group.ring)


@pytest.mark.parametrize("seed", SEEDS)
def test_gs18_the_last_activity_of_the_left_neighbour_comes_before_its_death(seed: int) -> None:
    group = Group(3, seed)
    first, second, third = group.ring
    broadcast(first, 2)
    first.end(None, politely=True)
    group.settle()
    assert second.end_of(first.address) == third.end_of(first.address) == 1
    group.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_gs20_who_was_declared_dead_stops_and_joins_again(seed: int) -> None:
    group = Group(3, seed)
    first, second, _ = group.ring
    group.world.network.break_connection(first.address, second.address)
    group.settle()
    ended = [process for process in group.ring if process.is_over]
    assert [process.reason for process in ended] == [StopReason.LOST_MEMBERSHIP]
    assert len(group.members()) == 3
    group.finish()


def test_gs21_members_of_a_deleted_group_stop() -> None:
    group = Group(3)
    group.world.store.watch_chance = 1.0
    for process in group.ring:
        broadcast(process)
    group.world.store.delete(GROUP)
    group.settle()
    assert [process.reason for process in group.ring] == [StopReason.GROUP_DELETED] * 3


def test_gs22_a_stalled_member_holds_back_who_feeds_the_group() -> None:
    group = Group(0)
    group.world.limits = GmLimits(held_bytes_max=4000)
    for node in "abc":
        group.add(node)
        group.settle()
    first, second, _ = group._ring()
    group.world.network.stall(second.address)
    while first.broadcast(True):
        first.event(first.member.flush)
    assert first.member.congested
    assert 2000 <= first.member.held_bytes <= 4000
    group.settle()
    assert first.tokens
    group.world.network.resume(second.address)
    group.settle()
    assert not first.tokens and not first.member.congested and not first.member.held_bytes
    group.finish()


@pytest.mark.parametrize("seed", range(30))
def test_gs24_a_store_that_fails_delays_and_breaks_nothing(seed: int) -> None:
    group = Group(3, seed)
    group.world.store.failure_chance = 0.7
    group.add("d")
    for process in group.ring:
        broadcast(process)
    group.ring[seed % 3].end(None)
    group.scheduler.run(group.scheduler.now + 1.0)
    group.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_gs25_catchups_and_questions_may_come_twice(seed: int) -> None:
    group = Group(3, seed)

    def again(process: Process) -> list[Effect]:
        process.member._send_catchup()
        process.member._check_neighbours({process.member.view.left, process.member.view.right})
        process.member._send(process.member.view.left, CheckNeighbours(1, 1, ANY))
        return process.member._turn()

    for _ in range(3):
        for process in group.ring:
            broadcast(process, 2)
            process.event(again, process)
            group.scheduler.step()
    group.settle()
    assert [process.delivered for process in group.ring] == [18, 18, 18]
    group.finish()


@pytest.mark.parametrize("second", [1, 2], ids=["side by side", "apart"])
@pytest.mark.parametrize("events", range(0, 40, 2))
def test_gs26_two_die_at_once(events: int, second: int) -> None:
    group = Group(5, events)
    for process in group.ring:
        broadcast(process, 2)
    for _ in range(events):
        group.scheduler.step()
    group.ring[0].end(None)
    group.ring[second].end(None)
    group.settle()
    assert len(group.members()) == 3
    group.finish()
