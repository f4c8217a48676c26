"""Views: neighbours, aliases, and the changes of a record."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from warren.core.definitions.records import RECORD_TYPES, GroupMemberRecord, GroupRecord
from warren.mirror.carriers.ports import MemberId
from warren.mirror.gm.view import (
    alive_members,
    between,
    id_of,
    view_of,
    with_dead,
    with_only,
    with_right_of,
    without,
)

A, B, C, D = (MemberId(node, 1) for node in "abcd")


def record(*members: MemberId, dead: tuple[MemberId, ...] = (), version: int = 7) -> GroupRecord:
    return GroupRecord(
        version,
        tuple(GroupMemberRecord(m.node, m.incarnation, m not in dead) for m in members),
    )


def test_who_is_alone_is_its_own_neighbour() -> None:
    view = view_of(record(A), A)
    assert (view.left, view.right, view.aliases) == (A, A, frozenset())


def test_the_first_is_the_right_neighbour_of_the_last() -> None:
    view = view_of(record(A, B, C), C)
    assert (view.left, view.right) == (B, A)


def test_the_dead_are_inherited_to_the_right_also_around_the_end() -> None:
    group = record(A, B, C, D, dead=(B, D))
    assert view_of(group, C).aliases == {B}
    assert view_of(group, A).aliases == {D}
    assert view_of(group, A).right == C
    assert view_of(group, A).left == C


records = st.lists(st.booleans(), min_size=1, max_size=8).map(
    lambda lives: GroupRecord(
        1, tuple(GroupMemberRecord(f"n{at}", 1, alive) for at, alive in enumerate(lives))
    )
)


@given(records)
def test_each_dead_member_has_exactly_one_heir_and_neighbours_agree(group: GroupRecord) -> None:
    views = {member: view_of(group, member) for member in alive_members(group)}
    dead = [id_of(member) for member in group.members if not member.alive]
    if views:
        assert sorted(alias for view in views.values() for alias in view.aliases) == sorted(dead)
    for member, view in views.items():
        assert views[view.right].left == member
        assert views[view.left].right == member


def test_who_stands_between_two_is_counted_to_the_right() -> None:
    group = record(A, B, C, D)
    assert between(group, A, C) == (B,)
    assert between(group, C, B) == (D, A)
    assert between(group, A, B) == between(group, D, A) == ()
    assert between(group, A, A) == (B, C, D)


def test_a_change_that_changes_nothing_returns_the_record_itself() -> None:
    group = record(A, B, dead=(B,))
    assert with_dead(group, B) is group
    assert with_dead(group, C) is group
    assert with_right_of(group, A, B) is group
    assert without(group, {A, C}) is group
    assert with_only(group, C) is group


def test_changes_count_versions() -> None:
    group = record(A, B)
    assert with_right_of(group, A, C) == record(A, C, B, version=8)
    assert with_right_of(group, B, C) == record(A, B, C, version=8)
    assert with_dead(group, A) == record(A, B, dead=(A,), version=8)
    assert without(record(A, B, dead=(A,)), {A, B}) == record(B, version=8)
    assert with_only(None, A) == record(A, version=1)
    assert with_only(record(A, B, dead=(A, B)), C) == record(C, version=8)
    assert with_only(record(A, B, dead=(A,)), C, lost={B}) == record(C, version=8)


def test_a_record_survives_the_form_in_which_it_is_stored() -> None:
    group = record(A, B, dead=(B,))
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(group))
    assert msgspec.convert(plain, RECORD_TYPES["group"]) == group
