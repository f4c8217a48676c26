"""The record of a group, and the view that one member has of it.

The *record* of a group (`GroupRecord`) is kept in the metadata store and changed by compare-and-set
only: its version goes up by one with each change. Members stand in it in the order of the ring; the
right neighbour of the last is the first. A dead member stays in the record until its last messages
have gone round.

A *view* is derived from a record for one member: its alive neighbours, and its *aliases*, the dead
members between it and its alive left neighbour. The member inherits the messages of its aliases:
they have gone round when they come back to it. Each dead member is the alias of exactly one alive
member.

The functions that change a record return the record itself when there is nothing to change.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from warren.core.definitions.records import GroupMemberRecord, GroupRecord
from warren.mirror.carriers.ports import MemberId, Members


class View(NamedTuple):
    """The view of one member. `members` are all members of the record, including the dead."""

    version: int
    left: MemberId
    right: MemberId
    aliases: frozenset[MemberId]
    members: Members


def view_of(record: GroupRecord, me: MemberId) -> View:
    """The view of an alive member of the record."""
    members = tuple(id_of(member) for member in record.members)
    at = members.index(me)
    assert record.members[at].alive, f"{me} is dead in version {record.version}"
    aliases = []
    left = at - 1
    while not record.members[left].alive:
        aliases.append(members[left])
        left -= 1
    right = (at + 1) % len(members)
    while not record.members[right].alive:
        right = (right + 1) % len(members)
    return View(record.version, members[left], members[right], frozenset(aliases), members)


def id_of(member: GroupMemberRecord) -> MemberId:
    return MemberId(member.node, member.incarnation)


def alive_members(record: GroupRecord | None) -> Members:
    if record is None:
        return ()
    return tuple(id_of(member) for member in record.members if member.alive)


def is_alive(record: GroupRecord | None, member: MemberId) -> bool:
    return member in alive_members(record)


def is_known(record: GroupRecord | None, member: MemberId) -> bool:
    """Whether the record names the member, alive or dead."""
    return record is not None and any(id_of(other) == member for other in record.members)


def between(record: GroupRecord, left: MemberId, right: MemberId) -> Members:
    """The members between two others, going from the left one to the right."""
    members = [id_of(member) for member in record.members]
    start, end = members.index(left) + 1, members.index(right)
    return tuple(members[start:end] if start <= end else members[start:] + members[:end])


# Changes of a record


def with_only(
    record: GroupRecord | None,
    member: MemberId,
    lost: Collection[MemberId] = (),
    founders: Members = (),
) -> GroupRecord | None:
    """A group of this member alone, in place of a record whose members are all dead or lost.

    Where there is no record, the founders are in the new group, too.
    """
    if record is None:
        return GroupRecord(1, tuple(_alive(founder) for founder in (member, *founders)))
    if set(alive_members(record)).difference(lost):
        return record
    return GroupRecord(record.version + 1, (_alive(member),))


def with_right_of(record: GroupRecord, left: MemberId, new: MemberId) -> GroupRecord:
    """The record with the new member directly to the right of `left`; a known member stays where it
    is."""
    if is_known(record, new):
        return record
    at = 1 + [id_of(member) for member in record.members].index(left)
    members = (*record.members[:at], _alive(new), *record.members[at:])
    return GroupRecord(record.version + 1, members)


def with_dead(record: GroupRecord, dead: MemberId) -> GroupRecord:
    if not is_alive(record, dead):
        return record
    members = tuple(
        GroupMemberRecord(member.node, member.incarnation, False)
        if id_of(member) == dead
        else member
        for member in record.members
    )
    return GroupRecord(record.version + 1, members)


def without(record: GroupRecord, erased: Collection[MemberId]) -> GroupRecord:
    """The record without those of the erased members that are dead."""
    members = tuple(
        member for member in record.members if member.alive or id_of(member) not in erased
    )
    if len(members) == len(record.members):
        return record
    return GroupRecord(record.version + 1, members)


def _alive(member: MemberId) -> GroupMemberRecord:
    return GroupMemberRecord(member.node, member.incarnation)
