"""The part of a queue that is on the disk only: a range of positions, and a count.

RabbitMQ calls it *delta*. The queue knows no message of it; the store finds those that are there
by their positions. The range grows at both ends, as messages are paged out, and shrinks at its
start, as they are read ahead. Messages that were taken from the middle of the queue (`taken`) are
still in the store, and are passed over here.

Messages that the store has lost are noticed when they should be read. The reader passes `lose`,
which is told how many messages, and how many octets of bodies, the queue has less.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from warren.core.backing.backing_queue import Listed, Peeked
from warren.core.backing.queue_store import Batch, QueueStore, Recovered
from warren.core.messages.message import Message

TAKE_SPAN = 128
TAKE_BYTES = 1 << 20
"""Messages, and octets, that are read from the disk at once to take some of them."""

Lose: TypeAlias = Callable[[int, int], None]


class DiskRange:
    """The positions from `start` to `end`, without the latter; `count` messages are ready there.

    While `count` is 0 the positions mean nothing. `taken` is the queue's, by position.
    """

    __slots__ = ("_store", "_taken", "body_bytes", "count", "end", "start")

    def __init__(
        self, store: QueueStore, recovered: Recovered, taken: Mapping[int, Message]
    ) -> None:
        self._store = store
        self._taken = taken
        self.start = recovered.start
        self.end = recovered.end
        self.count = recovered.count
        self.body_bytes = recovered.body_bytes

    # Growing and shrinking

    def append(self, messages: Sequence[Message]) -> None:
        """Extend the range by messages that stand behind it, in order, and are in the store."""
        if not self.count:
            self.start = messages[0].position
        self.end = messages[-1].position + 1
        self._grow(messages)

    def prepend(self, messages: Sequence[Message]) -> None:
        """Extend the range by messages that stand before it, in order, and are in the store."""
        if not self.count:
            self.end = messages[-1].position + 1
        self.start = messages[0].position
        self._grow(messages)

    def _grow(self, messages: Sequence[Message]) -> None:
        self.count += len(messages)
        self.body_bytes += sum([len(message.body) for message in messages])

    def _shrink(self, messages: Sequence[Message]) -> None:
        self.count -= len(messages)
        self.body_bytes -= sum([len(message.body) for message in messages])
        assert self.count >= 0, (self.count, self.start, self.end)

    def clear(self) -> None:
        """Its messages are gone."""
        self.count = 0
        self.body_bytes = 0

    # Reading

    def read_ahead(self, count_max: int, bytes_max: int, lose: Lose) -> list[Message]:
        """Remove and return the first messages: none if all that was read is lost."""
        batch = self._read(self.start, self.end, count_max, bytes_max, lose)
        assert batch.messages or batch.lost, (self.start, self.end, self.count)
        messages = self._ready(batch.messages)
        self.start = batch.next_position
        self._shrink(messages)
        return messages

    def peek(self, start: int, count_max: int, bytes_max: int, lose: Lose) -> Peeked:
        """Look at messages from a position on, which may be one before the range."""
        start = max(start, self.start)
        while True:
            batch = self._read(start, self.end, count_max, bytes_max, lose)
            messages = self._ready(batch.messages)
            start = batch.next_position
            if messages or start >= self.end:
                return Peeked(messages, start)

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        """The positions in the range of ready messages, from one to another."""
        listed = self._store.list_positions(max(start, self.start), min(end, self.end), count_max)
        if not self._taken:
            return listed
        ready = [position for position in listed.positions if position not in self._taken]
        return listed._replace(positions=ready)

    def next_expiry(self) -> float | None:
        """Return when the first ready message of the range expires."""
        return self._store.next_expiry(self._first(), self.end)

    def _first(self) -> int:
        """Return a position before which no message of the range is ready."""
        if not self._taken:
            return self.start
        count = len(self._taken) + 1
        listed = self._store.list_positions(self.start, self.end, count)
        return next((at for at in listed.positions if at not in self._taken), self.end)

    # Taking from the middle

    def take(self, wanted: Sequence[int], lose: Lose) -> list[Message]:
        """Remove the ready messages with these positions, given in order, wherever they stand."""
        left = [at for at in wanted if self.start <= at < self.end and at not in self._taken]
        found: list[Message] = []
        while left:
            # Messages that stand close together are read at once.
            near = bisect_left(left, left[0] + TAKE_SPAN)
            batch = self._read(left[0], left[near - 1] + 1, TAKE_SPAN, TAKE_BYTES, lose)
            chosen = set(left[:near])
            found += [message for message in batch.messages if message.position in chosen]
            left = left[bisect_left(left, batch.next_position) :]
        self._shrink(found)
        return found

    def covers(self, position: int) -> bool:
        """Whether a message with this position belongs here."""
        return self.count > 0 and self.start <= position < self.end

    def put_back(self, message: Message) -> None:
        """Count a message that was taken as ready again; the store has it."""
        self.count += 1
        self.body_bytes += message.body_bytes

    # Inside

    def _read(self, start: int, end: int, count_max: int, bytes_max: int, lose: Lose) -> Batch:
        """Read from the store, and note what it has lost of the ready messages."""
        taken = [m for m in self._taken.values() if start <= m.position < end and self._has(m)]
        batch = self._store.read(start, end, count_max, bytes_max)
        if batch.lost:
            gone = [message for message in taken if not self._has(message)]
            found = self._ready(batch.messages)
            # An index that is lost may have had pending messages, too, which are not counted here.
            left = self.count - len(found)
            left_bytes = self.body_bytes - sum([len(message.body) for message in found])
            lost = min(batch.lost - len(gone), left)
            gone_bytes = sum([message.body_bytes for message in gone])
            lost_bytes = min(batch.lost_bytes - gone_bytes, left_bytes)
            self.count -= lost
            self.body_bytes -= lost_bytes
            lose(lost, lost_bytes)
        return batch

    def _has(self, message: Message) -> bool:
        """Whether the message is in the store."""
        position = message.position
        return bool(self._store.list_positions(position, position + 1, 1).positions)

    def _ready(self, messages: list[Message]) -> list[Message]:
        """The messages that were not taken from the middle."""
        if not self._taken:
            return messages
        return [message for message in messages if message.position not in self._taken]

    def check(self) -> None:
        """Assert the invariants that hold between two calls of the queue."""
        if self.count:
            assert 0 < self.count <= self.end - self.start
        else:
            assert self.body_bytes == 0
