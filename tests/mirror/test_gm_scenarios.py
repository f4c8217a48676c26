"""GS1 to GS27 of invariants_and_test_ideas.md, each with several orders of events.

What always holds is checked by the processes of the simulation as it happens, and by `finish`.
"""

from __future__ import annotations

from random import Random

import pytest
from gm_group import Group
from gm_process import GROUP, Process

from warren.core.definitions.records import GroupMemberRecord, GroupRecord
from warren.mirror.carriers.ports import MemberId, Members, StopReason
from warren.mirror.gm.base import JOINED, JOINING, GmLimits
from warren.mirror.gm.effects import (
    Confirmed,
    Deliver,
    Effect,
    Joined,
    MembersChanged,
    ReadRecord,
    Send,
    SetTimer,
    ShellEffect,
    Stopped,
    Transact,
)
from warren.mirror.gm.errors import Congested, Inconsistent, NotJoined, Stopping
from warren.mirror.gm.handout import Handout
from warren.mirror.gm.member import Member
from warren.mirror.gm.messages import (
    ANY,
    NONE,
    Activity,
    Catchup,
    CheckNeighbours,
    Known,
    MemberNews,
    NotReady,
)

SEEDS = range(8)
A, B, C, D = (MemberId(node, 1) for node in "abcd")


def broadcast(process: Process, count: int = 1, *, confirm: bool = False) -> None:
    for _ in range(count):
        assert process.broadcast(confirm)
    process.event(process.member.flush)


def effects_of(effects: list[Effect], kind: type) -> list[Effect]:
    return [effect for effect in effects if type(effect) is kind]


def record(version: int, *members: MemberId, dead: Members = ()) -> GroupRecord:
    return GroupRecord(
        version,
        tuple(GroupMemberRecord(m.node, m.incarnation, m not in dead) for m in members),
    )


def alone(me: MemberId = A, limits: GmLimits | None = None) -> Member:
    """A member that made its group, in version 1."""
    member = Member(me, 1, Random(1), limits or GmLimits(), strict=True)
    member.start()
    member.record_read(1, None)
    member.transaction_committed(2)
    assert member.phase is JOINED
    return member


def between(left: MemberId, me: MemberId, right: MemberId) -> Member:
    """A member that joined at its left neighbour, in version 3, and knows of no message."""
    member = Member(me, 1, Random(1), strict=True)
    member.start()
    (ask,) = effects_of(member.record_read(1, record(2, left)), Send)
    assert isinstance(ask, Send) and ask.to == left
    known = tuple(Known(other, NONE, ()) for other in (left, me, right))
    member.receive(left, Catchup(1, 3, 0, known))
    member.record_read(2, record(3, left, me, right))
    assert member.phase is JOINED and member.view.left == left and member.view.right == right
    return member


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


def test_gs17_what_comes_from_others_than_the_left_neighbour_is_ignored() -> None:
    member = between(A, B, C)
    activity = Activity(1, 3, 1, (MemberNews(C, 0, (b"0",), NONE),))
    assert member.receive(C, activity) == []
    assert member.receive(C, Catchup(1, 3, 7, ())) == []
    assert member.ignored.not_left == 2
    assert effects_of(member.receive(A, activity), Deliver) == [Deliver(C, b"0")]


def test_gs17_what_is_left_of_an_earlier_link_is_ignored() -> None:
    member = between(A, B, C)
    # D comes between A and B, and dies: A is the left neighbour again.
    member.receive(D, CheckNeighbours(1, 4))
    member.record_read(3, record(4, A, D, B, C))
    member.receive(C, CheckNeighbours(1, 5))
    member.record_read(4, record(5, A, D, B, C, dead=(D,)))
    member.transaction_committed(5)
    assert member.view.left == A and not member.view.aliases and not member.is_pending
    old = Activity(1, 3, 1, (MemberNews(A, 0, (b"0",), NONE),))
    assert member.receive(A, old) == []
    assert member.receive(A, Catchup(1, 4, 2, (Known(A, 0, (b"0",)),))) == []
    assert member.ignored.earlier_link == 2


def test_gs17_a_neighbour_that_waits_gets_another_catchup() -> None:
    member = between(A, B, C)
    assert member.receive(C, CheckNeighbours(1, 3, NONE)) == []
    assert member.receive(C, CheckNeighbours(1, 3, 2)) == []
    for above in (3, ANY):
        (sent,) = member.receive(C, CheckNeighbours(1, 3, above))
        assert isinstance(sent, Send) and isinstance(sent.message, Catchup) and sent.to == C


def test_gs17_after_a_gap_nothing_is_accepted_before_a_catchup() -> None:
    member = between(A, B, C)
    (ask,) = member.receive(A, Activity(1, 3, 2, (MemberNews(A, 1, (b"1",), NONE),)))
    assert ask == Send(A, CheckNeighbours(1, 3, 3))
    assert member.receive(A, Activity(1, 3, 3, (MemberNews(A, 2, (b"2",), NONE),))) == []
    catchup = Catchup(1, 3, 4, (Known(A, 2, (b"0", b"1", b"2")),))
    delivered = effects_of(member.receive(A, catchup), Deliver)
    assert delivered == [Deliver(A, b"0"), Deliver(A, b"1"), Deliver(A, b"2")]


@pytest.mark.parametrize("seed", SEEDS)
def test_gs18_the_last_activity_of_the_left_neighbour_comes_before_its_death(seed: int) -> None:
    group = Group(3, seed)
    first, second, third = group.ring
    broadcast(first, 2)
    first.end(None, politely=True)
    group.settle()
    assert second.end_of(first.address) == third.end_of(first.address) == 1
    group.finish()


def test_gs18_activity_that_comes_during_suspicion_is_processed() -> None:
    member = between(A, B, C)
    member.peer_down(A)
    effects = member.receive(A, Activity(1, 3, 1, (MemberNews(A, 0, (b"0",), NONE),)))
    assert effects_of(effects, Deliver) == [Deliver(A, b"0")]
    (transact,) = member.timer_fired(1)
    assert transact == Transact(3, 3, record(4, A, B, C, dead=(A,)))


def test_both_neighbours_that_die_at_once_are_declared_dead_soon() -> None:
    member = between(A, B, C)
    (left,) = effects_of(member.peer_down(A), SetTimer)
    (right,) = effects_of(member.peer_down(C), SetTimer)
    assert isinstance(left, SetTimer) and isinstance(right, SetTimer)
    assert right.delay_s < 1 < left.delay_s
    assert member.timer_fired(right.timer) == [Transact(3, 3, record(4, A, B, C, dead=(C,)))]
    effects = member.transaction_committed(3)
    (soon,) = effects_of(effects, SetTimer)
    assert isinstance(soon, SetTimer) and soon.delay_s == right.delay_s
    (transact,) = effects_of(member.timer_fired(soon.timer), Transact)
    assert transact == Transact(4, 4, record(5, A, B, C, dead=(A, C)))
    assert not effects_of(member.timer_fired(left.timer), Transact)


def test_gs19_a_message_of_a_later_version_waits_for_the_record() -> None:
    member = between(A, B, C)
    activity = Activity(1, 4, 1, (MemberNews(D, 0, (b"0",), NONE),))
    assert member.receive(A, activity) == [ReadRecord(3, 4)]
    assert member.receive(A, Activity(1, 4, 2, (MemberNews(D, 1, (b"1",), NONE),))) == []
    effects = member.record_read(3, record(4, D, A, B, C))
    told = [effect for effect in effects if type(effect) in (MembersChanged, Deliver)]
    assert told == [MembersChanged((D,), ()), Deliver(D, b"0"), Deliver(D, b"1")]


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


def test_gs22_beyond_its_limit_a_member_refuses() -> None:
    member = between(A, B, C)
    member._limits = GmLimits(held_bytes_max=1000)
    member.broadcast(bytes(600))
    with pytest.raises(Congested):
        member.broadcast(bytes(600))
    assert member.circulation.last_broadcast == 0


def test_gs23_a_burst_is_sent_in_pieces() -> None:
    member = between(A, B, C)
    payload = bytes(10_000)
    sizes = []
    for _ in range(1000):
        for effect in effects_of(member.broadcast(payload), Send):
            assert isinstance(effect, Send) and isinstance(effect.message, Activity)
            sizes.append(sum(len(p) for entry in effect.message.entries for p in entry.pubs))
    assert len(sizes) > 70
    assert max(sizes) <= (128 << 10) + len(payload)


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


def test_gs24_while_the_store_is_asked_nothing_is_processed() -> None:
    member = between(A, B, C)
    member.peer_down(C)
    (transact,) = member.timer_fired(1)
    assert isinstance(transact, Transact) and member.is_pending
    activity = Activity(1, 3, 1, (MemberNews(A, 0, (b"0",), NONE),))
    assert member.receive(A, activity) == []
    assert member.broadcast(b"mine") == [Deliver(B, b"mine")]
    assert member.flush() == []
    effects = member.transaction_committed(transact.request)
    assert effects_of(effects, Deliver) == [Deliver(A, b"0")]
    versions = {e.message.version for e in effects_of(effects, Send) if isinstance(e, Send)}
    assert versions == {4}


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


class Layer:
    """Notes what it is told, and can make way for another one."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.sent: list[ShellEffect] = []
        self.handout: Handout | None = None
        self.successor: Layer | None = None
        self.member: Member | None = None

    def joined(self, members: Members) -> None:
        self.told.append(members)

    def members_changed(self, births: Members, deaths: Members) -> None:
        self.told.append((births, deaths))

    def deliver(self, sender: MemberId, payload: bytes) -> None:
        self.told.append(payload)
        if payload == b"become" and self.handout and self.successor:
            self.handout.become(self.successor)
        if payload == b"answer" and self.handout and self.member:
            self.handout.run(self.member.broadcast(b"mine"), self.sent.append)
            self.handout.run(self.member.flush(), self.sent.append)

    def confirmed(self, tokens: tuple[object, ...]) -> None:
        self.told.append(tokens)

    def congestion(self, congested: bool) -> None:
        self.told.append(congested)

    def stopped(self, reason: StopReason) -> None:
        self.told.append(reason)


def test_gs27_the_rest_of_a_batch_goes_to_the_new_layer() -> None:
    member = between(A, B, C)
    old, new = Layer(), Layer()
    handout = Handout(old)
    old.handout, old.successor = handout, new
    entry = MemberNews(A, 0, (b"0", b"become", b"2", b"3"), NONE)
    handout.run(member.receive(A, Activity(1, 3, 1, (entry,))), old.sent.append)
    assert old.told == [b"0", b"become"]
    assert new.told == [b"2", b"3"]


def test_what_a_layer_broadcasts_within_a_batch_leaves_behind_it() -> None:
    member = between(A, B, C)
    layer = Layer()
    handout = Handout(layer)
    layer.handout, layer.member = handout, member
    first = Activity(1, 4, 1, (MemberNews(A, 0, (b"answer",), NONE),))
    second = Activity(1, 4, 2, (MemberNews(A, 1, (b"1",), NONE),))
    member.receive(A, first)
    member.receive(A, second)
    handout.run(member.record_read(3, record(4, D, A, B, C)), layer.sent.append)
    assert layer.told == [((D,), ()), b"answer", b"1", b"mine"]
    positions = [
        effect.message.position
        for effect in layer.sent
        if isinstance(effect, Send) and isinstance(effect.message, Activity)
    ]
    assert positions == [1, 2, 3]


# Nothing is silent


def test_who_has_not_joined_or_is_stopping_cannot_broadcast() -> None:
    member = Member(A, 1, Random(1))
    with pytest.raises(NotJoined):
        member.broadcast(b"0")
    member.start()
    assert member.phase is JOINING
    with pytest.raises(NotJoined):
        member.confirmed_broadcast(b"0", 1)
    with pytest.raises(NotJoined):
        member.validate_members(())
    joined = between(A, B, C)
    joined.broadcast(b"0")
    joined.stop_when_drained()
    with pytest.raises(Stopping):
        joined.broadcast(b"1")
    joined.leave()
    with pytest.raises(NotJoined):
        joined.broadcast(b"1")


def test_who_is_alone_is_confirmed_at_once_and_uses_no_number() -> None:
    member = alone()
    assert member.confirmed_broadcast(b"0", "token") == [Deliver(A, b"0"), Confirmed(("token",))]
    assert member.circulation.last_broadcast == NONE
    assert member.held_bytes == 0


def test_a_confirm_waits_until_the_message_has_come_round() -> None:
    member = between(A, B, C)
    assert member.confirmed_broadcast(b"0", "token") == [Deliver(B, b"0")]
    (sent,) = member.flush()
    assert isinstance(sent, Send) and sent.to == C
    effects = member.receive(A, Activity(1, 3, 1, (MemberNews(B, 0, (b"0",), NONE),)))
    assert effects_of(effects, Confirmed) == [Confirmed(("token",))]
    assert effects_of(effects, Deliver) == []


def test_members_are_compared_with_those_the_layer_above_expects() -> None:
    member = between(A, B, C)
    assert member.validate_members((A, B, C)) == []
    assert member.validate_members((B, C, D)) == [MembersChanged((A,), (D,))]


def test_frames_of_an_earlier_epoch_are_ignored_and_counted() -> None:
    member = between(A, B, C)
    member.set_epoch(5)
    assert member.receive(A, Activity(4, 3, 1, (MemberNews(A, 0, (b"0",), NONE),))) == []
    assert member.ignored.earlier_epoch == 1


def test_what_cannot_be_stops_a_member_and_is_an_error_in_tests() -> None:
    impossible = Activity(1, 3, 1, (MemberNews(A, 5, (b"5",), NONE),))
    with pytest.raises(Inconsistent):
        between(A, B, C).receive(A, impossible)
    member = between(A, B, C)
    member._strict = False
    effects = member.receive(A, impossible)
    assert effects[-1] == Stopped(StopReason.INCONSISTENT)
    assert effects_of(effects, Deliver) == []


def test_the_first_member_makes_the_group() -> None:
    member = Member(A, 1, Random(1))
    assert member.start() == [ReadRecord(1, 0)]
    assert member.record_read(1, None) == [Transact(2, 0, record(1, A))]
    assert member.transaction_committed(2) == [Joined((A,))]


def asks(effects: list[Effect]) -> MemberId:
    """Whom a joiner asks."""
    (ask,) = effects_of(effects, Send)
    assert isinstance(ask, Send)
    return ask.to


def test_a_joiner_asks_another_one_before_it_evicts_anybody() -> None:
    member = Member(C, 1, Random(1))
    member.start()
    first = asks(member.record_read(1, record(2, A, B)))
    assert member.peer_down(first) and member.timer_fired(1)[-1] == ReadRecord(2, None)
    second = asks(member.record_read(2, record(2, A, B)))
    assert {first, second} == {A, B}
    member.peer_down(second)
    member.timer_fired(2)
    assert member.record_read(3, record(2, A, B)) == [Transact(4, 2, record(3, C))]


def test_a_joiner_that_reaches_somebody_evicts_nobody() -> None:
    member = Member(C, 1, Random(1))
    member.start()
    first = asks(member.record_read(1, record(2, A, B)))
    member.peer_down(first)
    member.timer_fired(1)
    second = asks(member.record_read(2, record(2, A, B)))
    member.receive(second, NotReady(1, 2))
    assert member.timer_fired(2) == [ReadRecord(3, None)]
    third = asks(member.record_read(3, record(2, A, B)))
    member.peer_down(third)
    member.timer_fired(3)
    assert asks(member.record_read(4, record(2, A, B))) not in {third}


def test_a_joiner_let_in_by_one_that_died_joins_anew() -> None:
    member = Member(C, 1, Random(1))
    member.start()
    member.record_read(1, record(2, A))
    member.peer_down(A)
    member.timer_fired(1)
    effects = member.record_read(2, record(4, A, C, B, dead=(A,)))
    assert effects[-1] == Stopped(StopReason.JOIN_LOST)


def test_late_answers_and_timers_do_nothing() -> None:
    member = between(A, B, C)
    assert member.record_read(1, None) == []
    assert member.transaction_refused(2, None) == []
    assert member.store_unavailable(1) == []
    assert member.timer_fired(99) == []
    member.leave()
    assert member.receive(A, CheckNeighbours(1, 9)) == []
    assert member.leave() == []


def test_a_hint_of_a_later_version_makes_a_member_look() -> None:
    member = between(A, B, C)
    assert member.record_changed(3) == []
    assert member.record_changed(2) == []
    assert member.record_changed(4) == [ReadRecord(3, 4)]
    effects = member.record_read(3, record(4, A, B, C, dead=(B,)))
    assert effects[-1] == Stopped(StopReason.LOST_MEMBERSHIP)


def test_a_joiner_ignores_what_was_sent_before_it_asked() -> None:
    """It was let in before, declared dead and erased; a catchup of that time is on its way."""
    member = Member(C, 1, Random(1))
    member.start()
    member.record_read(1, record(7, A, B))
    asked = member._asked
    assert asked
    assert member.receive(asked, Catchup(1, 5, 0, ())) == []
    assert member.receive(asked, Catchup(1, 8, 5, ())) == [ReadRecord(2, 8)]


def test_a_joiner_does_not_begin_with_the_knowledge_of_who_did_not_let_it_in() -> None:
    """Its first question was answered late, by one that died then; this is its left neighbour."""
    member = Member(D, 1, Random(1))
    member.start()
    member.record_read(1, record(3, A, B))
    left = member._asked
    assert left
    first = B if left == A else A
    member.receive(left, Catchup(1, 5, 0, ()))
    effects = member.record_read(2, record(5, left, first, D, dead=(first,)))
    assert effects[-1] == Stopped(StopReason.JOIN_LOST)
