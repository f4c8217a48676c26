"""Keeps acknowledged messages on a node without a disk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from warren.core.backing.queue_store import StoredBody
from warren.core.backing.stream_store import MemoryStreamStore
from warren.core.messages.message import Message
from warren.core.messages.settlement import PublishConfirms

LOOKS_MAX = 2048
"""How many messages one search for old ones looks at."""


class MemoryRetainedStore(MemoryStreamStore):
    """Implements `RetainedStore`."""

    def first_position(self) -> int:
        return 0

    def write_retained(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms,
        stored: Sequence[StoredBody | None],
        acknowledged_at: float,
        *,
        awaited: bool,
    ) -> None:
        self.write_many(messages, confirms, [message.position for message in messages])

    def end_of_old(self, start: int, end: int, since: float) -> int:
        last = min(end, start + LOOKS_MAX)
        for position, kept in enumerate(islice(self._between(start, last), LOOKS_MAX), start):
            if kept.arrived_at >= since:
                return position
        return last
