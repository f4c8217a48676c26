"""The comparison with a new left neighbour."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.mirror.carriers.ports import MemberId
from warren.mirror.gm.catch_up import missed
from warren.mirror.gm.circulation import Circulation
from warren.mirror.gm.errors import Inconsistent
from warren.mirror.gm.member_state import MemberState
from warren.mirror.gm.messages import NONE, Known, MemberNews

ME, X = MemberId("me", 1), MemberId("x", 1)


def numbers(first: int, last: int) -> tuple[bytes, ...]:
    return tuple(b"%d" % number for number in range(first, last + 1))


def state(acked: int, last_pub: int) -> MemberState:
    return MemberState(last_pub, numbers(acked + 1, last_pub))


def known(member: MemberId, acked: int, last_pub: int) -> Known:
    return Known(member, last_pub, numbers(acked + 1, last_pub))


def test_who_knows_the_same_has_missed_nothing() -> None:
    assert missed({X: state(3, 7)}, [known(X, 3, 7)], {ME}) == []


def test_later_publishes_were_missed() -> None:
    assert missed({X: state(3, 5)}, [known(X, 3, 7)], {ME}) == [
        MemberNews(X, 6, numbers(6, 7), NONE)
    ]


def test_what_the_left_one_has_no_more_was_acked() -> None:
    assert missed({X: state(3, 5)}, [known(X, 5, 5)], {ME}) == [MemberNews(X, 6, (), 5)]


def test_a_left_one_that_has_nothing_pending_says_that_all_up_to_its_last_is_acked() -> None:
    assert missed({X: state(3, 5)}, [known(X, 4, 9)], {ME}) == [MemberNews(X, 6, numbers(6, 9), 4)]


def test_own_publishes_that_the_left_one_has_seen_have_come_round() -> None:
    assert missed({X: state(3, 7)}, [known(X, 3, 5)], {X}) == [
        MemberNews(X, 4, numbers(4, 5), NONE)
    ]


def test_acks_of_own_publishes_that_the_left_one_has_seen_have_come_round() -> None:
    mine = state(5, 7)
    mine.last_ack = 2
    assert missed({X: mine}, [known(X, 4, 5)], {X}) == [MemberNews(X, 6, (), 4)]


def test_members_erased_since_are_passed_over() -> None:
    assert missed({}, [known(X, 3, 7)], {ME}) == []


@pytest.mark.parametrize(("acked", "last_pub"), [(3, 6), (2, 7), (8, 9)])
def test_a_left_one_that_knows_less_than_it_must_is_inconsistent(acked: int, last_pub: int) -> None:
    with pytest.raises(Inconsistent):
        missed({X: state(3, 7)}, [known(X, acked, last_pub)], {ME})


@pytest.mark.parametrize(("acked", "last_pub"), [(3, 8), (4, 7)])
def test_a_left_one_that_knows_more_than_the_owner_is_inconsistent(
    acked: int, last_pub: int
) -> None:
    with pytest.raises(Inconsistent):
        missed({X: state(3, 7)}, [known(X, acked, last_pub)], {X})


@given(*[st.integers(0, 6)] * 4)
def test_comparing_again_gives_nothing_and_leaves_both_alike(
    acked: int, held: int, acks: int, pubs: int
) -> None:
    mine = Circulation(ME)
    mine.states[X] = state(acked, acked + held)
    left_acked = min(acked + acks, acked + held)
    left = [known(X, left_acked, acked + held + pubs)]
    progress = mine.catch_up(left, {ME})
    assert [len(entry.pubs) for entry in progress.deliveries] == ([pubs] if pubs else [])
    assert tuple(mine.states[X].pending) == left[0].pending
    mine.states[X].check()
    assert missed(mine.states, left, {ME}) == []
