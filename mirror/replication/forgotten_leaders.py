"""Finds another leader for a queue whose leader is forgotten while no other node has a whole copy.

A queue is in this state right after a start of the whole cluster: its leader has gone on, and the
other nodes are about to be sent what they lack. Each of them still has, as a former copy, the
messages it had when the cluster went down. A quorum queue or stream confirms nothing new before
another member is in sync, so no confirmed message is lost with its leader. The leader of a
classic queue confirms alone while no mirror is in sync. What it has confirmed since then is lost
with it, but for what mirrors have got: that is put into `lost+found`.

The first of the nodes that may have former copies asks all of them what they have, and tells the
one that has the most to lead. All have to answer: without one of them it is not known which has the
most. If none has anything, the queue waits for its deletion, or for a policy that lets one of its
mirrors lead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cmp_to_key, partial
from typing import Any, NamedTuple

import msgspec

from warren.core.definitions.records import QueueRecord
from warren.core.errors import NotFound
from warren.core.log_line import log_event
from warren.core.ports import Key
from warren.core.scheduling.waiting import run
from warren.mirror.messages.calls import Calls
from warren.mirror.replication.copies.copies_here import CopiesHere
from warren.mirror.replication.copies.former_copies import FormerCopies
from warren.mirror.replication.copies.former_copy import EMPTY
from warren.mirror.replication.definition.former_nodes import (
    former_without,
    has_only_former_copies,
    nodes_with_former_copies,
    without_copies,
    without_former,
)
from warren.mirror.replication.definition.nodes import Nodes
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions

log = logging.getLogger("warren.queue")

BEST_COPY = "mirror.best_copy"
LEAD = "mirror.lead_with_best_copy"


class Extent(NamedTuple):
    """What a node has: the last epoch in which its copy was whole, and per level the position
    behind its last message."""

    epoch: int
    ends: Sequence[int]


def _further(one: Extent, other: Extent) -> int:
    """How much further one copy reaches than the other; below 0 if it reaches less far.

    A level without messages does not say how far it reached. In all levels where both have
    messages, the later copy reaches as far as the other one or further.
    """
    if one.epoch != other.epoch:
        return one.epoch - other.epoch
    ends = list(zip(one.ends, other.ends, strict=True))
    further = sum([here - there for here, there in ends if EMPTY not in (here, there)])
    return further or sum([here - there for here, there in ends])


class ForgottenLeaders:
    """The queues that have nothing left but former copies, where this node is the first that may
    have one."""

    def __init__(
        self,
        nodes: Nodes,
        calls: Calls,
        definitions: QueueDefinitions,
        copies: CopiesHere,
        formers: FormerCopies,
    ) -> None:
        self._node = nodes.name
        self._calls = calls
        self._definitions = definitions
        self._copies = copies
        self._formers = formers
        self._queues: dict[Key, int] = {}
        # The queues of which this node has a whole copy, as their definitions say.
        self._called_whole: dict[Key, int] = {}
        # The queues about which nodes are being asked at the moment.
        self._asking: set[Key] = set()
        # The queues of which no node had anything when it was asked last.
        self._without_copies: set[Key] = set()
        calls.serve(BEST_COPY, self._asked_for_extent)
        calls.serve(LEAD, self._asked_to_lead)

    def changed(self, key: Key, record: object | None) -> None:
        """Note the present definition of a queue; None if it was deleted."""
        self._without_copies.discard(key)
        if isinstance(record, QueueRecord) and self._is_to_decide(record):
            self._queues[key] = record.queue_id
        else:
            self._queues.pop(key, None)
        if isinstance(record, QueueRecord) and self._is_called_whole(record):
            self._called_whole[key] = record.queue_id
        else:
            self._called_whole.pop(key, None)

    def _is_called_whole(self, record: QueueRecord) -> bool:
        return record.leader_is_forgotten and self._node in record.in_sync

    def _is_to_decide(self, record: QueueRecord) -> bool:
        return has_only_former_copies(record) and nodes_with_former_copies(record)[0] == self._node

    def node_up(self) -> None:
        """A node can be reached again: it may have a disk that was lost before."""
        self._without_copies.clear()

    def look(self) -> None:
        """Ask the nodes that may have copies of these queues what they have. Those that cannot be
        reached are asked again when this is called again.

        A copy here that is called in sync and cannot lead, as its card is of an earlier epoch, or
        it may lack messages that were not on disk, is a former copy like others."""
        for key, queue_id in list(self._called_whole.items()):
            copy = self._copies.by_queue.get(queue_id)
            if copy is None or not copy.mirror.started:
                self._definitions.write_record(key, queue_id, self._without_own)
        for key, queue_id in list(self._queues.items()):
            record = self._definitions.record_of(key, queue_id)
            is_over = key in self._asking or key in self._without_copies
            if record is not None and not is_over:
                self._asking.add(key)
                run(self._decide(key, record), partial(self._decided, key))

    def _without_own(self, record: QueueRecord) -> QueueRecord | None:
        if not self._is_called_whole(record):
            return None
        without = without_copies(record, [self._node])
        former = former_without(record, record.leader, without.in_sync)
        return msgspec.structs.replace(without, former=former)

    def _decided(self, key: Key, result: Callable[[], None]) -> None:
        self._asking.discard(key)
        try:
            result()
        except NotFound:
            # One of the nodes cannot be reached, or is of an earlier version.
            return

    async def _decide(self, key: Key, record: QueueRecord) -> None:
        """Tell the node that has the most to lead. Raises `NotFound` if one does not answer."""
        there: dict[str, Extent] = {}
        for node in nodes_with_former_copies(record):
            answer = await self._ask(node, BEST_COPY, key, record)
            if answer is not None:
                there[node] = Extent(*answer)
        if there:
            reach = cmp_to_key(_further)
            best = max(there, key=lambda node: reach(there[node]))
            await self._ask(best, LEAD, key, record)
        else:
            _, vhost, name = key
            log_event(log, logging.WARNING, "no_copy_is_left", queue=name, vhost=vhost)
            self._without_copies.add(key)
            if record.mirrors:
                # The policy may allow that one of them leads, though it is not whole.
                self._definitions.write_record(key, record.queue_id, without_former)

    async def _ask(self, node: str, question: str, key: Key, record: QueueRecord) -> Any:
        _, vhost, name = key
        at = (record.queue_id, vhost, name, record.epoch, record.ballot)
        if node != self._node:
            return await self._calls.ask(node, question, *at)
        if question == LEAD:
            return await self._asked_to_lead(self._node, *at)
        return await self._asked_for_extent(self._node, *at)

    # At a node that may have a copy

    async def _asked_for_extent(
        self, _node: str, queue_id: int, vhost: str, name: str, epoch: int, ballot: int
    ) -> Extent | None:
        self._record(("queue", vhost, name), queue_id, epoch, ballot)
        return self.best_copy(queue_id)

    def best_copy(self, queue_id: int) -> Extent | None:
        """The extent of this node's copy of a queue; None if it has had no whole copy."""
        copy = self._copies.by_queue.get(queue_id)
        if copy is not None and copy.mirror.has_card:
            return Extent(copy.mirror.epoch, copy.mirror.ends())
        former = self._copies.former_of(queue_id)
        if former is None or not self._formers.was_whole(former):
            return None
        return Extent(former.epoch, former.ends_at_leader())

    async def _asked_to_lead(
        self, _node: str, queue_id: int, vhost: str, name: str, epoch: int, ballot: int
    ) -> None:
        key: Key = ("queue", vhost, name)
        record = self._record(key, queue_id, epoch, ballot)
        self._copies.lead_with_best_copy(key, record)

    def _record(self, key: Key, queue_id: int, epoch: int, ballot: int) -> QueueRecord:
        """The definition, if it is the one that the asking node knows. Raises `NotFound`."""
        record = self._definitions.record_of(key, queue_id)
        if record is None or (record.epoch, record.ballot) != (epoch, ballot):
            raise NotFound(f"the definition of queue {queue_id} is another one here")
        return record
