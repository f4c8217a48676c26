"""One member of a ring, fed by hand: links, the store, the layer above, and how it joins."""

from __future__ import annotations

from random import Random

import pytest
from ring_members import A, B, C, D, alone, between, effects_of, record

from warren.mirror.carriers.ports import MemberId, Members, StopReason
from warren.mirror.gm.base import JOINING, GmLimits
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


# Acks


def came_round(member: Member, *, position: int = 1, first: int = 0) -> list[Effect]:
    """A publish of B has gone round, and comes from A."""
    return member.receive(
        A, Activity(1, 3, position, (MemberNews(B, first, (b"%d" % first,), NONE),))
    )


def sent_by(effects: list[Effect]) -> list[tuple[MemberNews, ...]]:
    return [
        effect.message.entries
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Activity)
    ]


def test_an_ack_goes_with_the_next_publish() -> None:
    member = between(A, B, C)
    member.broadcast(b"0")
    member.flush()
    assert sent_by(came_round(member)) == []
    member.broadcast(b"1")
    (entries,) = sent_by(member.flush())
    assert entries == (MemberNews(B, 0, (), 0), MemberNews(B, 1, (b"1",), NONE))


def test_acks_of_others_wait_for_a_publish_to_pass_on() -> None:
    member = between(A, B, C)
    member.receive(A, Activity(1, 3, 1, (MemberNews(A, 0, (b"0", b"1"), NONE),)))
    for position, acked in ((2, 0), (3, 1)):
        ack = MemberNews(A, 0, (), acked)
        assert sent_by(member.receive(A, Activity(1, 3, position, (ack,)))) == []
    publish = MemberNews(A, 2, (b"2",), NONE)
    (entries,) = sent_by(member.receive(A, Activity(1, 3, 4, (publish,))))
    assert entries == (MemberNews(A, 0, (), 1), publish)


def test_who_published_hears_after_a_while_what_has_come_round() -> None:
    """Its own payloads are not sent back to it."""
    member = between(A, B, C)
    (timer,) = [
        effect
        for position, first in ((1, 0), (2, 1))
        for effect in member.receive(
            A, Activity(1, 3, position, (MemberNews(C, first, (b"payload",), NONE),))
        )
        if not isinstance(effect, Deliver)
    ]
    member.receive(A, Activity(1, 3, 3, (MemberNews(C, 0, (), 0),)))
    assert isinstance(timer, SetTimer)
    assert sent_by(member.timer_fired(timer.timer)) == [(MemberNews(C, 0, (b"", b""), 0),)]


def test_nothing_waits_while_much_is_held() -> None:
    member = between(A, B, C)
    much = bytes(GmLimits().news_wait_bytes)
    effects = member.receive(A, Activity(1, 3, 1, (MemberNews(C, 0, (much,), NONE),)))
    assert sent_by(effects) == [(MemberNews(C, 0, (b"",), NONE),)]


def test_an_ack_without_a_publish_goes_after_a_while() -> None:
    member = between(A, B, C)
    member.broadcast(b"0")
    member.flush()
    (timer,) = effects_of(came_round(member), SetTimer)
    assert isinstance(timer, SetTimer) and timer.delay_s == GmLimits().news_wait_s
    assert sent_by(member.timer_fired(timer.timer)) == [(MemberNews(B, 0, (), 0),)]


def test_nothing_is_sent_after_a_while_if_the_ack_went_with_a_publish() -> None:
    member = between(A, B, C)
    member.broadcast(b"0")
    member.flush()
    (timer,) = effects_of(came_round(member), SetTimer)
    member.broadcast(b"1")
    member.flush()
    assert isinstance(timer, SetTimer)
    assert member.timer_fired(timer.timer) == []


def test_a_catchup_tells_of_the_acks_that_wait() -> None:
    """The right neighbour would take an ack that it hears of twice for nonsense."""
    member = between(A, B, C)
    member.broadcast(b"0")
    member.flush()
    came_round(member)
    (sent,) = member.receive(C, CheckNeighbours(1, 3, ANY))
    assert isinstance(sent, Send) and isinstance(sent.message, Catchup)
    assert Known(B, 0, ()) in sent.message.known
    member.broadcast(b"1")
    assert sent_by(member.flush()) == [(MemberNews(B, 1, (b"1",), NONE),)]


def test_acks_do_not_wait_while_the_messages_of_a_dead_member_go_round() -> None:
    member = between(A, B, C)
    member.receive(C, CheckNeighbours(1, 4))
    member.record_read(3, record(4, A, B, C, D, dead=(D,)))
    member.broadcast(b"0")
    member.flush()
    assert sent_by(member.receive(A, Activity(1, 4, 1, (MemberNews(B, 0, (b"0",), NONE),)))) == [
        (MemberNews(B, 0, (), 0),)
    ]


def test_acks_do_not_wait_for_a_member_that_stops() -> None:
    member = between(A, B, C)
    member.broadcast(b"0")
    member.stop_when_drained()
    assert sent_by(came_round(member)) == [(MemberNews(B, 0, (), 0),)]
