"""The ring of a mirrored queue as people are shown it: who stands in it, in its order, and how.

Made of the record of the group, which every node has, of the definition of the queue, and of what
its leader knows besides. A pure function.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from warren.core.definitions.records import GroupRecord, QueueRecord
from warren.mirror.carriers.ports import MemberId
from warren.mirror.gm.view import id_of


class RingStanding(StrEnum):
    """How a member of the ring is.

    `JOINING`: it is asked for or in the ring already, and not a mirror yet. `OUT_OF_SYNC`: it lacks
    what is older than itself, and is not sent it. `DEAD`: its last messages are still on their way
    round.
    """

    LEADER = "leader"
    IN_SYNC = "in_sync"
    SYNCING = "syncing"
    OUT_OF_SYNC = "out_of_sync"
    JOINING = "joining"
    DEAD = "dead"


class Shown(NamedTuple):
    """One member, in the order of the ring."""

    node: str
    standing: RingStanding


def shown_ring(
    record: QueueRecord,
    group: GroupRecord | None,
    *,
    syncing: Collection[str] = (),
    asked: Collection[str] = (),
) -> list[Shown]:
    """`asked` are the nodes that shall have a mirror; those not in the ring yet come last."""
    members = group.members if group is not None else ()
    alive = {member.node: id_of(member) for member in members if member.alive}
    ring = [
        Shown(member.node, _standing(id_of(member), alive, record, syncing))
        for member in members
        # Of a node that is back its present life is what counts.
        if alive.get(member.node, id_of(member)) == id_of(member)
    ]
    there = {shown.node for shown in ring}
    return [*ring, *(Shown(node, RingStanding.JOINING) for node in asked if node not in there)]


def shown_star(
    record: QueueRecord, *, syncing: Collection[str] = (), asked: Collection[str] = ()
) -> list[Shown]:
    """The same where the leader sends batches straight to each mirror: it comes first."""
    shown = [Shown(record.leader, RingStanding.LEADER)]
    for node in record.mirrors:
        standing = RingStanding.SYNCING if node in syncing else RingStanding.OUT_OF_SYNC
        shown.append(Shown(node, RingStanding.IN_SYNC if node in record.in_sync else standing))
    there = {record.leader, *record.mirrors}
    return [*shown, *(Shown(node, RingStanding.JOINING) for node in asked if node not in there)]


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
