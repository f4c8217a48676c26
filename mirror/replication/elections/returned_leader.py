"""A leader that was away, and the mirrors that may have messages which its disk lacks.

The definition still names the mirrors that were in sync when the leader went. Each of them is asked
to lead, and says whether it has a copy. A mirror that has one is waited for, however long it takes
to write itself into the definition. When all say that they have none, or one on disk with nothing
that the leader lacks, as after a start of the whole cluster, the leader goes on at once. A mirror
that says nothing is waited for while it is up for the cluster or can be reached, and for
`RECLAIM_S` in any case: links take a moment to come up. A leader whose disk was found damaged, or
lacks messages that a mirror has, waits for `MIRROR_MAY_COME_S`: a mirror that comes has on its own
disk what is missing here. If only a copy with all messages may lead (`ha-promote-on-failure:
when-synced`, quorum queues), it waits for all these mirrors without a limit, as this copy is none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Clock
from warren.mirror.replication.elections.whole_copies import Ask, WholeCopies

RECLAIM_S = 3.0
"""How long a leader that was away waits for mirrors that give no sign of life."""

MIRROR_MAY_COME_S = 10.0
"""How long it waits if its disk is damaged: the whole cluster may be starting."""


class ReturnedLeader:
    """The returned leader of one queue, until it is known which node leads. `there()` are the nodes
    that show signs of life; `ask` asks a node to lead, and tells whether it has a copy."""

    def __init__(
        self,
        clock: Clock,
        there: Callable[[], Collection[str]],
        ask: Ask,
        can_lead: Callable[[QueueRecord, int], bool] = lambda record, mirrors: True,
        *,
        is_damaged: bool = False,
        may_lack: Callable[[], bool] = lambda: True,
    ) -> None:
        """`can_lead`: whether this many mirrors in sync are enough for one of them to lead.
        `is_damaged`: the leader's disk is known to lack messages. `may_lack`: whether a node that
        lacks messages may lead the queue at all."""
        self._clock = clock
        self._until = clock.now() + (MIRROR_MAY_COME_S if is_damaged else RECLAIM_S)
        self._is_damaged = is_damaged
        self._may_lack = may_lack
        # Whether the log has said which mirrors are awaited without a limit.
        self.has_told = False
        self._ask = ask
        self._mirrors = WholeCopies(there)
        self._can_lead = can_lead

    def awaited(self, record: QueueRecord) -> list[str]:
        """The mirrors that may have more than this leader, and may take the lead."""
        without = self._mirrors.without(record.epoch)
        awaited = [mirror for mirror in record.in_sync if mirror not in without]
        if self._clock.now() < self._until:
            return awaited
        if not self._waits_without_limit:
            awaited = self._mirrors.may_have(awaited, record.epoch)
        return awaited if self._can_lead(record, len(awaited)) else []

    def awaited_without_limit(self, record: QueueRecord) -> list[str]:
        """The awaited mirrors, if operators have to see that they come."""
        is_so = self._waits_without_limit and self._clock.now() >= self._until
        return self.awaited(record) if is_so else []

    @property
    def _waits_without_limit(self) -> bool:
        return self._is_damaged and not self._may_lack()

    def ask(self, record: QueueRecord, then: Callable[[], None]) -> None:
        """Ask the awaited mirrors to lead; `then` is called when one turns out to have no copy."""
        self._mirrors.ask(self._ask, self.awaited(record), record.epoch, then)
