"""The ring of a mirrored queue as users are shown it: its members in order, and their standing.

Made from the record of the group, which every node has, from the definition of the queue, and from
the synchronisations that its leader knows of. Pure functions.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from warren.core.definitions.records import GroupRecord, QueueRecord
from warren.mirror.carriers.ports import MemberId
from warren.mirror.gm.view import id_of


class RingStanding(StrEnum):
    """The standing of a member of the ring.

    `JOINING`: its node was asked for a mirror, or is in the ring already, but is not a mirror yet.
    `OUT_OF_SYNC`: the mirror lacks messages older than itself and is not being sent them.
    `DEAD`: the last messages of the member are still going round.
    """

    LEADER = "leader"
    IN_SYNC = "in_sync"
    SYNCING = "syncing"
    OUT_OF_SYNC = "out_of_sync"
    JOINING = "joining"
    DEAD = "dead"


class ShownMember(NamedTuple):
    """One member, in the order of the ring."""

    node: str
    standing: RingStanding


def shown_ring(
    record: QueueRecord,
    group: GroupRecord | None,
    *,
    syncing: Collection[str] = (),
    asked: Collection[str] = (),
) -> list[ShownMember]:
    """The members of the ring, in its order.

    `syncing` are the nodes whose mirrors are being synchronised, `asked` those that were asked for
    a mirror; asked nodes that are not in the ring yet come last.
    """
    members = group.members if group is not None else ()
    alive = {member.node: id_of(member) for member in members if member.alive}
    ring = [
        ShownMember(member.node, _standing(id_of(member), alive, record, syncing))
        for member in members
        # If a node is back, only the present life of its member is shown.
        if alive.get(member.node, id_of(member)) == id_of(member)
    ]
    there = {shown.node for shown in ring}
    return [
        *ring,
        *(ShownMember(node, RingStanding.JOINING) for node in asked if node not in there),
    ]


def shown_star(
    record: QueueRecord, *, syncing: Collection[str] = (), asked: Collection[str] = ()
) -> list[ShownMember]:
    """The members of a queue on the carrier `log`, which has no ring: the leader comes first."""
    shown = [ShownMember(record.leader, RingStanding.LEADER)]
    for node in record.mirrors:
        standing = RingStanding.SYNCING if node in syncing else RingStanding.OUT_OF_SYNC
        shown.append(
            ShownMember(node, RingStanding.IN_SYNC if node in record.in_sync else standing)
        )
    there = {record.leader, *record.mirrors}
    return [
        *shown,
        *(ShownMember(node, RingStanding.JOINING) for node in asked if node not in there),
    ]


def _standing(
    member: MemberId, alive: dict[str, MemberId], record: QueueRecord, syncing: Collection[str]
) -> RingStanding:
    node = member.node
    if node not in alive:
        return RingStanding.DEAD
    if node == record.leader:
        return RingStanding.LEADER
    if node in record.in_sync:
        return RingStanding.IN_SYNC
    if node in syncing:
        return RingStanding.SYNCING
    return RingStanding.OUT_OF_SYNC if node in record.mirrors else RingStanding.JOINING
