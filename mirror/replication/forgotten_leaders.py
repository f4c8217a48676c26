"""Quorum queues and streams whose leader is forgotten while no other member was in sync.

A queue is in this state right after a start of the whole cluster: its leader has gone on, and the
other members are about to be sent what they lack. Each of them still has, as a former copy, the
messages it had when the cluster went down. If the leader is lost in that moment, no confirmed
message is lost with it: nothing new is confirmed before another member is in sync, and the former
copies have everything that had been confirmed before.

The first member asks all members what they have, and tells the one that has the most to lead. All
have to answer: without one of them it is not known which has the most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from warren.core.definitions.records import QueueRecord
from warren.core.errors import NotFound
from warren.core.ports import Key
from warren.core.scheduling.waiting import run
from warren.mirror.messages.calls import Calls
from warren.mirror.replication.copies_here import CopiesHere
from warren.mirror.replication.nodes import Nodes
from warren.mirror.replication.queue_definitions import QueueDefinitions
from warren.mirror.replication.queue_members import has_only_former_copies

BEST_COPY = "mirror.best_copy"
LEAD = "mirror.lead_with_best_copy"


class Extent(NamedTuple):
    """What a member has: the last epoch in which its copy was whole, and per level the position
    behind its last message."""

    epoch: int
    ends: Sequence[int]


class ForgottenLeaders:
    """The queues that have nothing left but former copies, and whose first member is this node."""

    def __init__(
        self, nodes: Nodes, calls: Calls, definitions: QueueDefinitions, copies: CopiesHere
    ) -> None:
        self._node = nodes.name
        self._calls = calls
        self._definitions = definitions
        self._copies = copies
        self._queues: dict[Key, int] = {}
        # The queues whose members are being asked.
        self._asking: set[Key] = set()
        calls.serve(BEST_COPY, self._asked_what_it_has)
        calls.serve(LEAD, self._asked_to_lead)

    def changed(self, key: Key, record: object | None) -> None:
        """Note the present definition of a queue; None if it was deleted."""
        if isinstance(record, QueueRecord) and self._is_to_decide(record):
            self._queues[key] = record.queue_id
        else:
            self._queues.pop(key, None)

    def _is_to_decide(self, record: QueueRecord) -> bool:
        return has_only_former_copies(record) and record.members[0] == self._node

    def look(self) -> None:
        """Ask the members of these queues what they have. Those that cannot be reached are asked
        again when this is called again."""
        for key, queue_id in list(self._queues.items()):
            record = self._definitions.record_of(key, queue_id)
            if record is not None and key not in self._asking:
                self._asking.add(key)
                run(self._decide(key, record), partial(self._decided, key))

    def _decided(self, key: Key, result: Callable[[], None]) -> None:
        self._asking.discard(key)
        try:
            result()
        except NotFound:
            # One of the members cannot be reached, or is of an earlier version.
            return

    async def _decide(self, key: Key, record: QueueRecord) -> None:
        """Tell the member that has the most to lead. Raises `NotFound` if one does not answer."""
        there: dict[str, Extent] = {}
        for member in record.members:
            answer = await self._ask(member, BEST_COPY, key, record)
            if answer is not None:
                there[member] = Extent(*answer)
        if there:
            best = max(there, key=lambda member: (there[member].epoch, list(there[member].ends)))
            await self._ask(best, LEAD, key, record)

    async def _ask(self, member: str, question: str, key: Key, record: QueueRecord) -> Any:
        _, vhost, name = key
        at = (record.queue_id, vhost, name, record.epoch, record.ballot)
        if member != self._node:
            return await self._calls.ask(member, question, *at)
        if question == LEAD:
            return await self._asked_to_lead(self._node, *at)
        return await self._asked_what_it_has(self._node, *at)

    # At a member

    async def _asked_what_it_has(
        self, _node: str, queue_id: int, vhost: str, name: str, epoch: int, ballot: int
    ) -> tuple[int, list[int]] | None:
        self._record(("queue", vhost, name), queue_id, epoch, ballot)
        return self._copies.best_copy(queue_id)

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
