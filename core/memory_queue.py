"""A backing queue that holds everything in memory.

Ready messages stand in a deque in the order of their positions. Positions only grow, so a publish
is an append, and a requeue is a merge with the front of the deque.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import attrgetter

from warren.core.message import Envelope, Message
from warren.core.settlement import PublishConfirms

_position = attrgetter("position")


class MemoryQueue:
    """Implements `BackingQueue`."""

    __slots__ = ("_next_position", "_ready", "defers_confirms", "length", "ready_bytes")

    def __init__(self) -> None:
        self._ready: deque[Message] = deque()
        self._next_position = 0
        self.length = 0
        self.ready_bytes = 0
        self.defers_confirms = False

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> None:
        position = self._next_position
        self._next_position = position + 1
        self._ready.append(Message(envelope, body, position, expires_at))
        self.length += 1
        self.ready_bytes += len(body)

    def publish_delivered(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Message:
        position = self._next_position
        self._next_position = position + 1
        return Message(envelope, body, position, expires_at)

    def fetch(self) -> Message | None:
        if not self._ready:
            return None
        message = self._ready.popleft()
        self.length -= 1
        self.ready_bytes -= len(message.body)
        return message

    def fetch_many(self, limit: int) -> list[Message]:
        take = self._ready.popleft
        messages = [take() for _ in range(min(limit, self.length))]
        self.length -= len(messages)
        self.ready_bytes -= sum([len(message.body) for message in messages])
        return messages

    def fetch_expired(self, now: float, limit: int) -> list[Message]:
        expired: list[Message] = []
        ready = self._ready
        while ready and len(expired) < limit:
            expires_at = ready[0].expires_at
            if expires_at is None or expires_at > now:
                break
            message = self.fetch()
            assert message is not None
            expired.append(message)
        return expired

    def next_expiry(self) -> float | None:
        return self._ready[0].expires_at if self._ready else None

    def ack(self, messages: Iterable[Message]) -> None:
        """Nothing is kept of pending messages, so there is nothing to forget."""

    def requeue(self, messages: Iterable[Message]) -> None:
        returned = sorted(messages, key=_position)
        if not returned:
            return
        ready = self._ready
        self.length += len(returned)
        self.ready_bytes += sum(len(message.body) for message in returned)
        last = returned[-1].position
        overtaken = []
        while ready and ready[0].position < last:
            overtaken.append(ready.popleft())
        # Timsort merges two sorted runs in linear time.
        ready.extendleft(sorted(overtaken + returned, key=_position, reverse=True))

    def purge(self) -> int:
        count = self.length
        self._ready.clear()
        self.length = 0
        self.ready_bytes = 0
        return count

    def delete(self) -> None:
        self.purge()
