"""A backing queue that holds everything in memory.

Ready messages stand in a deque in the order of their positions; positions only grow, so a publish
is an append. Messages that come back stand in a heap beside it: in whatever order they are
returned, each costs the logarithm of how many are. The head is the lower of the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush

from warren.core.backing.backing_queue import BackingQueueStatus, Listed, Peeked
from warren.core.backing.peeking import list_positions, peek
from warren.core.backing.taking import (
    in_order,
    parted,
    put_into_run,
    take_from_heap,
    take_from_run,
)
from warren.core.messages.message import Envelope, Message, mark_delivered, new_messages
from warren.core.messages.settlement import PublishConfirms


class MemoryQueue:
    """Implements `MirroredLevel`."""

    store = None

    __slots__ = (
        "_counts",
        "_delivered_below",
        "_next_position",
        "_ready",
        "_returned",
        "defers_confirms",
        "defers_transient",
        "expiring",
        "length",
        "ready_bytes",
    )

    def __init__(self) -> None:
        self._ready: deque[Message] = deque()
        self._returned: list[tuple[int, Message]] = []
        self._next_position = 0
        self._delivered_below = 0
        self._counts: dict[int, int] = {}
        self.length = 0
        self.ready_bytes = 0
        self.defers_confirms = False
        self.defers_transient = False
        self.expiring = False

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

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> None:
        self._ready += self.publish_many_delivered(
            envelopes, bodies, expires_at, confirms, first_seq
        )
        self.length += len(bodies)
        self.ready_bytes += sum(map(len, bodies))

    def publish_many_delivered(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> list[Message]:
        first = self._next_position
        self._next_position = first + len(bodies)
        return new_messages(envelopes, bodies, first, expires_at)

    def fetch(self) -> Message | None:
        if not self.length:
            return None
        message = self._take_head()
        self.length -= 1
        self.ready_bytes -= len(message.body)
        return message

    def fetch_many(self, limit: int) -> list[Message]:
        take = self._take_head if self._returned else self._ready.popleft
        messages = [take() for _ in range(min(limit, self.length))]
        self.length -= len(messages)
        self.ready_bytes -= sum([len(message.body) for message in messages])
        return messages

    def fetch_to_drop(self) -> Message | None:
        return self.fetch()

    def fetch_expired(self, now: float, limit: int) -> list[Message]:
        expired: list[Message] = []
        while len(expired) < limit:
            expires_at = self.next_expiry()
            if expires_at is None or expires_at > now:
                break
            message = self.fetch()
            assert message is not None
            expired.append(message)
        return expired

    def next_expiry(self) -> float | None:
        if self._head_was_returned():
            return self._returned[0][1].expires_at
        return self._ready[0].expires_at if self._ready else None

    def load(self, messages: Iterable[Message]) -> list[Message]:
        return list(messages)

    def ack(self, messages: Collection[Message]) -> None:
        """Forget how often the messages were returned; nothing else is kept of pending ones."""
        if self._counts:
            for message in messages:
                self._counts.pop(message.position, None)

    def requeue(self, messages: Iterable[Message]) -> None:
        messages = list(messages)
        self.length += len(messages)
        self.ready_bytes += sum([len(message.body) for message in messages])
        beyond = self.undelivered_from
        for message in messages:
            if message.position > beyond:
                # The message was taken from the middle.
                put_into_run(self._ready, message)
        entries = [(one.position, one) for one in messages if one.position <= beyond]
        returned = self._returned
        if len(entries) > len(returned):
            returned += entries
            heapify(returned)
        else:
            for entry in entries:
                heappush(returned, entry)

    def part_from_holders(self) -> None:
        """Put copies in the place of ready messages that channels still have from another time."""
        self._returned = parted(self._returned)

    def purge(self) -> int:
        count = self.length
        for position, _ in self._returned:
            self._counts.pop(position, None)
        self._ready.clear()
        self._returned.clear()
        self.length = 0
        self.ready_bytes = 0
        return count

    @property
    def published(self) -> int:
        return self._next_position

    @property
    def end_at_start(self) -> int:
        return 0

    @property
    def next_position(self) -> int:
        return self._next_position

    @property
    def undelivered_from(self) -> int:
        return self._ready[0].position if self._ready else self._next_position

    def status(self, now: float) -> BackingQueueStatus:
        return BackingQueueStatus(
            q4=self.length,
            len=self.length,
            next_seq_id=self._next_position,
            ram_msg_count=self.length,
            ram_bytes=self.ready_bytes,
        )

    @property
    def delivery_counts(self) -> dict[int, int]:
        """The counts since the node started: none are kept from before."""
        return self._counts

    @property
    def dead_marks(self) -> dict[int, int]:
        """No marks: none are kept from before."""
        return {}

    def counts_changed(self, positions: Iterable[int]) -> None:
        """Nothing to do: the counts are in memory."""

    def peek(self, start: int, count_max: int, bytes_max: int) -> Peeked:
        end = self._next_position
        return peek(self._returned, (self._ready,), start, end, count_max, bytes_max)

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        end = min(end, self._next_position)
        durable = self.defers_confirms
        return list_positions(self._returned, (self._ready,), start, end, count_max, durable)

    def take(self, positions: Sequence[int]) -> list[Message]:
        wanted = sorted(positions)
        taken = take_from_heap(self._returned, wanted) + take_from_run(self._ready, wanted)
        self.length -= len(taken)
        self.ready_bytes -= sum([len(message.body) for message in taken])
        return in_order(taken)

    def skip_to(self, position: int) -> None:
        assert position >= self._next_position, (position, self._next_position)
        self._next_position = position

    @property
    def delivered_below(self) -> int:
        return max(self.undelivered_from, self._delivered_below)

    def count_as_delivered(self, below: int) -> None:
        counted = self._delivered_below
        if below <= counted:
            return
        self._delivered_below = below
        mark_delivered(self._ready, counted, below)
        if self.undelivered_from > counted:
            for _, message in self._returned:
                message.redelivered |= message.position < below

    def set_mode(self, mode: str) -> None:
        """Does nothing: there is only memory."""

    def stop(self) -> None:
        """Does nothing: no message survives."""

    def delete(self) -> None:
        self.purge()

    def _take_head(self) -> Message:
        if self._head_was_returned():
            return heappop(self._returned)[1]
        return self._ready.popleft()

    def _head_was_returned(self) -> bool:
        returned, ready = self._returned, self._ready
        return bool(returned) and (not ready or returned[0][0] < ready[0].position)
