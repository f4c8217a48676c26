"""The rule of confirms against every election there can be, for small numbers of copies."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product

import pytest

from warren.mirror.replication.definition.confirm_rule import (
    ALL,
    can_shrink,
    confirmed_upto,
    copies_needed,
    stricter,
    votes_needed,
)

ACKS = (ALL, 2, 3, 4)


@dataclass
class Mirror:
    """What a leader knows of a mirror: some fields of `KnownCopy`."""

    has_batch: int = 0
    in_sync: bool = True
    is_named: bool = True
    is_leaving: bool = False


@pytest.mark.parametrize("acks", ACKS)
@pytest.mark.parametrize("copies", [1, 2, 3, 4, 5])
def test_whatever_copies_vote_one_of_them_has_all_that_was_confirmed(
    acks: int, copies: int
) -> None:
    nodes = range(copies)
    # The leader is node 0, and dead.
    for having in combinations(nodes, copies_needed(acks, copies)):
        for voting in combinations(nodes[1:], min(votes_needed(acks, copies), copies - 1)):
            if len(voting) == votes_needed(acks, copies):
                assert set(having) & set(voting)


@pytest.mark.parametrize("acks", ACKS)
def test_what_is_confirmed_has_been_reported_by_enough(acks: int) -> None:
    for has in product((0, 3, 7), repeat=3):
        mirrors = [Mirror(batch) for batch in has]
        upto = confirmed_upto(acks, mirrors, 0, 9)
        holders = 1 + sum([mirror.has_batch >= upto for mirror in mirrors])
        assert holders >= copies_needed(acks, 4)


def test_a_leader_alone_confirms_what_it_has() -> None:
    assert confirmed_upto(2, [], 0, 9) == 9
    assert confirmed_upto(ALL, [Mirror(4, in_sync=False, is_named=False)], 0, 9) == 9


def test_a_mirror_that_is_being_named_counts_with_and_without() -> None:
    """An election may go by the definition as it was, or as it will be."""
    named, new = Mirror(5), Mirror(9, is_named=False)
    assert confirmed_upto(ALL, [named, new], 0, 9) == 5
    new.has_batch = 3
    assert confirmed_upto(ALL, [named, new], 0, 9) == 3
    # Of three copies two are enough, and the new one is not yet one of two.
    assert confirmed_upto(2, [named, Mirror(9, is_named=False)], 0, 9) == 5


def test_a_mirror_that_is_leaving_is_needed_and_does_not_count() -> None:
    leaving, other = Mirror(9, is_leaving=True), Mirror(4)
    assert confirmed_upto(2, [leaving, other], 0, 9) == 4
    assert confirmed_upto(2, [leaving], 0, 9) == 0


@pytest.mark.parametrize("acks", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_copy_is_done_without_only_when_no_election_can_miss_anything(
    acks: int, count: int
) -> None:
    """Every history of two steps: something is confirmed, then a mirror goes."""
    confirmed = 5
    for has in product((0, confirmed), repeat=count):
        mirrors = [Mirror(batch) for batch in has]
        if 1 + sum([one.has_batch >= confirmed for one in mirrors]) < copies_needed(
            acks, 1 + count
        ):
            continue
        gone, rest = mirrors[0], mirrors[1:]
        gone.is_leaving = True
        if not can_shrink(acks, mirrors, count, confirmed):
            continue
        # The leader dies: of `count` copies without the one that went, any that are enough vote.
        for voting in combinations(rest, min(votes_needed(acks, count), len(rest))):
            if voting and len(voting) == votes_needed(acks, count):
                assert any(one.has_batch >= confirmed for one in voting)


def test_all_is_the_strictest_number() -> None:
    assert stricter(ALL, 3) == stricter(3, ALL) == ALL
    assert stricter(2, 3) == 3
