"""The ring of a mirrored queue as it is shown: order, lives, and how each member is."""

from __future__ import annotations

from warren.core.definitions.records import GroupMemberRecord, GroupRecord, QueueRecord
from warren.mirror.gm.ring_view import shown_ring

QUEUE = QueueRecord(False, {}, 1, leader="b", mirrors=["c", "a"], in_sync=["c"])


def group(*members: GroupMemberRecord) -> GroupRecord:
    return GroupRecord(7, members)


def standing(shown: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(node, str(how)) for node, how in shown]


def test_members_stand_in_the_order_of_the_ring() -> None:
    ring = group(*(GroupMemberRecord(node, 1) for node in "abcd"))
    assert standing(shown_ring(QUEUE, ring, syncing=["a"])) == [
        ("a", "syncing"),
        ("b", "leader"),
        ("c", "in_sync"),
        ("d", "joining"),
    ]
    assert standing(shown_ring(QUEUE, ring))[0] == ("a", "out_of_sync")


def test_the_dead_are_shown_until_they_are_erased() -> None:
    ring = group(GroupMemberRecord("c", 1, False), GroupMemberRecord("b", 2))
    assert standing(shown_ring(QUEUE, ring)) == [("c", "dead"), ("b", "leader")]


def test_of_a_node_that_is_back_its_present_life_is_shown() -> None:
    ring = group(
        GroupMemberRecord("c", 1, False), GroupMemberRecord("b", 2), GroupMemberRecord("c", 3)
    )
    assert standing(shown_ring(QUEUE, ring)) == [("b", "leader"), ("c", "in_sync")]


def test_who_is_asked_for_and_not_there_yet_comes_last() -> None:
    ring = group(GroupMemberRecord("b", 2))
    assert standing(shown_ring(QUEUE, ring, asked=["b", "d"])) == [
        ("b", "leader"),
        ("d", "joining"),
    ]
    assert shown_ring(QUEUE, None) == []
