"""A member that is told anything at all stops at worst."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from warren.core.definitions.records import GroupMemberRecord, GroupRecord
from warren.mirror.carriers.ports import MemberId, StopReason
from warren.mirror.gm.base import JOINED, STOPPED
from warren.mirror.gm.effects import Effect, ReadRecord, Stopped, Transact
from warren.mirror.gm.member import Member
from warren.mirror.gm.messages import (
    NONE,
    Activity,
    AddOnRight,
    Catchup,
    CheckNeighbours,
    Known,
    MemberNews,
    Message,
    NotReady,
)

A, B, C, D = (MemberId(node, 1) for node in "abcd")
RECORD = GroupRecord(3, tuple(GroupMemberRecord(m.node, m.incarnation) for m in (A, B, C)))

ids = st.sampled_from((A, B, C, D))
small = st.integers(0, 5)
payloads = st.lists(st.just(b""), max_size=3).map(tuple)
entries = st.builds(MemberNews, ids, small, payloads, st.integers(NONE, 5))
known = st.builds(lambda m, n, p: Known(m, n + len(p), p), ids, st.integers(-1, 5), payloads)
messages = st.one_of(
    st.builds(AddOnRight, small, small),
    st.builds(NotReady, small, small),
    st.builds(Catchup, small, small, small, st.lists(known, max_size=4).map(tuple)),
    st.builds(Activity, small, small, small, st.lists(entries, max_size=4).map(tuple)),
    st.builds(CheckNeighbours, small, small, st.integers(NONE, 5)),
)


def answer(member: Member, effects: list[Effect]) -> None:
    """As a store that never changes."""
    for effect in effects:
        if isinstance(effect, ReadRecord):
            answer(member, member.record_read(effect.request, RECORD))
        elif isinstance(effect, Transact):
            answer(member, member.store_unavailable(effect.request))
        elif isinstance(effect, Stopped):
            assert member.phase is STOPPED
            assert effect.reason in (StopReason.INCONSISTENT, StopReason.JOIN_LOST)


@given(st.lists(st.tuples(ids, messages), max_size=12), st.booleans())
def test_no_message_raises(told: list[tuple[MemberId, Message]], has_joined: bool) -> None:
    member = Member(B, 1, Random(1))
    member.start()
    before = GroupRecord(2, RECORD.members[:1])
    member.record_read(1, before)
    if has_joined:
        member.receive(A, Catchup(1, 3, 0, ()))
        member.record_read(2, RECORD)
        assert member.phase is JOINED
    for sender, message in told:
        answer(member, member.receive(sender, message))
        for state in member.circulation.states.values():
            state.check()
