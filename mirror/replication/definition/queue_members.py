"""Which nodes are to have a quorum queue or a stream: how operators change that.

The members stand in the definition of the queue. Its leader follows what is written there: it asks
new members to have a copy, and lets go of those that are no members any more
(`WantedMirrors.of_members`). A leader that is no member hands the queue over first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from warren.core.definitions.records import QueueRecord, forgotten
from warren.core.field import from_plain
from warren.core.ports import Key
from warren.core.queues.queue_type import STREAM, type_of
from warren.core.scheduling.waiting import Event
from warren.mirror.replication.definition.former_nodes import without_copies
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions

INVITE_AGAIN_S = 3.0
"""After this time, a node that was asked to have a mirror is asked again; that does no harm."""


def members_of(record: QueueRecord) -> list[str]:
    """The members of the queue; its leader is the only one of a queue that names none."""
    return list(record.members) or [record.leader]


def invitation_to(record: QueueRecord) -> str:
    """The name under which a leader asks another node to have a copy of its queue.

    Versions before 2026-11-29 have no copies of streams: they would make one of another kind, and
    end when they lead it. So they are asked by a name that they do not know.
    """
    is_stream = type_of(from_plain(record.arguments)) is STREAM
    return "mirror.invite_to_stream" if is_stream else "mirror.invite"


def is_needed(record: QueueRecord, node: str) -> bool:
    """Whether a whole copy of a quorum queue stays named though its node is gone: otherwise fewer
    copies than a majority would be named, and no other member could be elected."""
    return bool(record.members) and node in record.in_sync and len(record.in_sync) < record.acks


class QueueMembers:
    """The members of all quorum queues and streams of the cluster."""

    def __init__(self, definitions: QueueDefinitions) -> None:
        self._definitions = definitions

    async def add(self, key: Key, queue_id: int, node: str) -> None:
        """Give the queue one more member; return when that is written down."""

        def with_node(record: QueueRecord) -> list[str]:
            members = members_of(record)
            return members if node in members else [*members, node]

        await self._change(key, queue_id, with_node)

    async def remove(self, key: Key, queue_id: int, node: str) -> None:
        """Take a member away, unless it is the last one; return when that is written down."""

        def without_node(record: QueueRecord) -> list[str]:
            members = members_of(record)
            return [member for member in members if member != node] or members

        await self._change(key, queue_id, without_node)

    def any_has(self, node: str) -> bool:
        """Whether there is a queue that this node leads, mirrors or is a member of."""
        return any(
            node in (record.leader, *record.mirrors, *record.members, *record.former)
            for _, record in self._definitions.items()
        )

    async def forget(self, node: str, members: Collection[str]) -> None:
        """Take a node that will not come back out of every queue that it leads, has a copy of, or
        is a member of. `members` are the nodes of the cluster, with or without it."""
        left = frozenset(members) - {node}
        for key, record in list(self._definitions.items()):
            there = (record.leader, *record.mirrors, *record.former)
            if node in there or record.leader_is_forgotten:
                await self._forget_copies(key, record.queue_id, node, left)
            if node in record.members:
                await self.remove(key, record.queue_id, node)

    async def _forget_copies(
        self, key: Key, queue_id: int, node: str, left: Collection[str]
    ) -> None:
        """Have the queue led by the copies that are left: they need not wait for forgotten ones,
        and a new node that has the name of a leader or mirror is not taken for that."""
        done = Event()

        def change(record: QueueRecord) -> QueueRecord | None:
            is_led = record.leader != node and not record.leader_is_forgotten
            if not (record.can_move or record.former):
                return None
            gone = {node} if is_led else frozenset(record.mirrors).difference(left)
            changed = msgspec.structs.replace(
                without_copies(record, gone),
                leader=forgotten(node) if record.leader == node else record.leader,
                former=[one for one in record.former if one in left],
            )
            return None if changed == record else changed

        self._definitions.write_record(key, queue_id, change, done.happen, done.happen)
        await done

    async def _change(
        self, key: Key, queue_id: int, wanted: Callable[[QueueRecord], list[str]]
    ) -> None:
        done = Event()

        def change(record: QueueRecord) -> QueueRecord | None:
            members = wanted(record)
            if members == list(record.members):
                return None
            is_alone = len(members_of(record)) == 1 and not record.mirrors and not record.missing
            # The leader goes on confirming alone until the first mirror has everything.
            acks = 1 if is_alone else record.acks
            return msgspec.structs.replace(record, members=members, acks=acks)

        self._definitions.write_record(key, queue_id, change, done.happen, done.happen)
        await done
