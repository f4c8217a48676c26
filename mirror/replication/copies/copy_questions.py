"""Answers the questions of other nodes about the copies of this node."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from warren.core.definitions.records import QueueRecord
from warren.core.errors import NotFound
from warren.core.ports import Commit
from warren.core.scheduling.waiting import Event
from warren.mirror.carriers.ports import CarrierKind
from warren.mirror.messages.calls import Calls
from warren.mirror.replication.copies.copy_here import CopyHere
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions
from warren.mirror.replication.levels.renumbering import Renumbering

ANY_BALLOT = sys.maxsize

WRITE_CARD = "mirror.write_card"
"""A leader asks a whole mirror to write its card."""

WRITE_CARD_OF_DAMAGED = "mirror.write_card_of_damaged"
"""The same of a leader that has lost messages, with what it knows of other epochs."""

TAKE_LEAD = "mirror.take_lead"
"""A leader that was away asks a mirror whether it has a copy, and to lead if it has."""

HAS_MORE_ON_DISK = "mirror.has_more_on_disk"
"""A leader that was away asks a mirror whether that has messages which the leader never had."""

TAKE_LEAD_FROM_DISK = "mirror.take_lead_from_disk"
"""A leader whose disk lacks messages asks a mirror to lead with the copy on its own disk."""


class CopyQuestions:
    """The methods that answer, for one node. `copies` are its copies, by queue id; `note_whole`
    writes the card of a copy that is whole."""

    def __init__(
        self,
        node: str,
        copies: Mapping[int, CopyHere],
        note_whole: Callable[[CopyHere, QueueRecord, Renumbering | None], Commit],
        definitions: QueueDefinitions,
    ) -> None:
        self._node = node
        self._copies = copies
        self._note_whole = note_whole
        self._definitions = definitions

    def serve(self, calls: Calls) -> None:
        calls.serve("mirror.have_copy", self._has_copy)
        calls.serve(WRITE_CARD, self._write_card)
        calls.serve(WRITE_CARD_OF_DAMAGED, self._write_card)
        calls.serve(TAKE_LEAD, self._take_lead)
        calls.serve(HAS_MORE_ON_DISK, self._has_more_on_disk)
        calls.serve(TAKE_LEAD_FROM_DISK, self._take_lead_from_disk)
        calls.serve("mirror.take_over", self._take_over)
        calls.serve("mirror.take_over_in", self._take_over)

    async def _has_copy(self, _node: str, queue_id: int) -> bool:
        """Whether this node has a copy that has begun; the definition says whether it is whole."""
        copy = self._copies.get(queue_id)
        return copy is not None and copy.mirror.started

    async def _write_card(
        self, _node: str, queue_id: int, epoch: int, incarnation: int, *known: Any
    ) -> bool:
        """Write the card of this copy, which its leader knows to be whole, and return whether the
        card is durable. Returns False if the copy of which the leader speaks is not here. `known`
        is what the leader knows of other epochs, if its disk has lost messages."""
        copy = self._copies.get(queue_id)
        if copy is None or not copy.mirror.started or copy.is_outside:
            return False
        record = self._definitions.record_of(copy.key, queue_id)
        is_meant = (copy.mirror.epoch, copy.member.me.incarnation) == (epoch, incarnation)
        if record is None or not is_meant:
            return False
        durable = Event()
        told = Renumbering.told(*known) if known else None
        self._note_whole(copy, record, told).then(durable.happen)
        await durable
        return self._copies.get(queue_id) is copy

    async def _take_lead(self, node: str, queue_id: int, epoch: int, ballot: int) -> bool:
        """The leader was away. It asks whether this node has a copy, and asks it to lead if it has.

        Raises `NotFound` to be asked again, if that cannot be said yet.
        """
        copy = self._copies.get(queue_id)
        if copy is None or not copy.mirror.started or copy.mirror.from_disk is not None:
            # The leader should have on its own disk what is on disk here; it asks about that.
            return False
        record = self._definitions.record_of(copy.key, queue_id)
        if copy.carrier is CarrierKind.LOG and record is not None and not copy.may_vote(record):
            # The leader asks only mirrors in sync: a definition that says so may be on its way
            # here.
            is_known = self._node in record.in_sync
            if not is_known and (record.epoch, record.ballot) <= (epoch, ballot):
                raise NotFound(f"the definition of queue {queue_id} is not known here yet")
            return False
        copy.leader_was_away(node)
        return True

    async def _has_more_on_disk(
        self, _node: str, queue_id: int, epoch: int, ballot: int, ends: list[int]
    ) -> bool | None:
        """The leader was away, and knows of no message of this epoch from `ends` on, which are per
        level. Whether this copy was on disk when this node started, and has such messages.

        Returns None if that cannot be said yet. Never raises `NotFound`: so a leader knows nodes of
        earlier versions, which do not answer this.
        """
        copy = self._copies.get(queue_id)
        if copy is None or copy.mirror.from_disk is None:
            return False
        record = self._definitions.record_of(copy.key, queue_id)
        if record is None or (record.epoch, record.ballot) != (epoch, ballot):
            return None
        return copy.mirror.from_disk.has_behind(ends)

    async def _take_lead_from_disk(self, node: str, queue_id: int, epoch: int, ballot: int) -> bool:
        """The leader was away, and its disk lacks messages. Take the lead if this copy was on disk
        when this node started, and return whether it was.

        Raises `NotFound` to be asked again, if the definition is not known here yet.
        """
        copy = self._copies.get(queue_id)
        if copy is None or copy.mirror.from_disk is None:
            return False
        record = self._definitions.record_of(copy.key, queue_id)
        if record is None or (record.epoch, record.ballot) != (epoch, ballot):
            raise NotFound(f"the definition of queue {queue_id} is another one here")
        copy.leader_was_away(node)
        return True

    async def _take_over(
        self, node: str, queue_id: int, epoch: int, ballot: int = ANY_BALLOT
    ) -> bool:
        """The leader hands the queue over; a leader of an earlier version names no ballot. Returns
        False if this node cannot lead."""
        copy = self._copies.get(queue_id)
        if copy is None or not copy.mirror.started or copy.mirror.from_disk is not None:
            # A copy that was on disk when this node started may lack what the leader has.
            return False
        if copy.is_outside:
            # Mirrors in the group, which goes on without this copy, would not hear of this leader.
            return False
        return await copy.take_over(node, epoch, ballot)
