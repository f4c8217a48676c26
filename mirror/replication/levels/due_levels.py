"""The backing queue of a delay queue at its leader, and its copies at mirrors.

Theory. Messages leave in the order of their due times, which is not that of positions. And the
moment at which a message is due is not the same at two nodes: a batch takes a while. So a mirror
does not look at the time: it takes the messages with the positions its leader names, wherever they
stand (`core/backing/due_queue.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import cast

from warren.core.backing.due_queue import DueQueue
from warren.core.messages.message import Message
from warren.mirror.replication.levels.instructions import Op
from warren.mirror.replication.levels.leader_level import LeaderLevel
from warren.mirror.replication.levels.mirror_level import MirrorLevel


class DueLeaderLevel(LeaderLevel):
    """Implements `core.vhosts.delay_queue.TakingQueue`."""

    __slots__ = ()

    @property
    def _due(self) -> DueQueue:
        return cast(DueQueue, self.inner)

    def take(self, positions: Collection[int]) -> list[Message]:
        messages = self._due.take(positions)
        self._fetched(messages)
        return messages

    def ack(self, messages: Collection[Message]) -> None:
        super().ack(messages)
        # An operator is answered that these are cancelled, or they have gone to other queues.
        self._journal.flush_soon()

    def notes(self, positions: Iterable[int]) -> list[tuple[Op, int, int]]:
        return []

    def due_order(self) -> Iterator[int]:
        return self._due.due_order()

    def look_at(self, positions: Iterable[int]) -> list[Message]:
        return self._due.look_at(positions)


class DueMirrorLevel(MirrorLevel):
    """A copy of a delay queue."""

    hands_out = False

    @property
    def _due(self) -> DueQueue:
        return cast(DueQueue, self.backing)

    def _fetch(self, start: int, stop: int) -> None:
        for message in self._due.take(range(start + self.delta, stop + self.delta)):
            self.pending[message.position - self.delta] = message

    def _fetch_behind(self, own: int, position: int) -> None:
        for message in self._due.take((own,)):
            self.pending[position] = message
