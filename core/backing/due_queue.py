"""A backing queue whose messages come out in the order of their due times.

It holds the delayed messages of one exchange. `expires_at` is when a message is due; of those that
are due at the same time the one published first is first. A message without it is due at once.

Theory. Positions grow with every publish, as in any backing queue; the order of due times is a
heap beside them, of one whole number for each message: the due time in microseconds, shifted, plus
the position. That is some 50 octets of memory a message. The messages themselves are in the store,
which finds each by its position. Without a store, on a node without a disk, they are in memory.

Persistent messages of a durable queue are written to the store when they arrive; others wait in
memory until they are a small batch, and are paged out then.

A message that is taken out of the middle (`take`) leaves its number in the heap, and `_stale` says
to pass it over there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from warren.core.backing.backing_queue import (
    BackingQueue,
    BackingQueueStatus,
    Listed,
    OneByOne,
    Peeked,
)
from warren.core.backing.queue_store import QueueStore
from warren.core.backing.variable_queue import VariableQueue
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms

POSITION_BITS = 64
_POSITION = (1 << POSITION_BITS) - 1

PAGE_COUNT = 64
PAGE_BYTES = 64 << 10
"""Messages that are not written yet are paged out when they are so many, or so large."""

FETCH_BYTES = 1 << 20
"""Octets of messages due at the same time that are handed out at once."""


class DueQueue(OneByOne):
    """Implements `MirroredLevel` over a store, or in memory where there is none."""

    __slots__ = (
        "_due",
        "_held",
        "_held_bytes",
        "_let_go",
        "_next_position",
        "_pending",
        "_published",
        "_stale",
        "_store",
        "defers_confirms",
        "defers_transient",
        "expiring",
        "length",
        "ready_bytes",
    )

    def __init__(
        self, store: QueueStore | None = None, let_go: Callable[[list[Any]], None] = list.clear
    ) -> None:
        """`let_go` empties a list that is not needed any more, in turns where it is long."""
        self._store = store
        self._let_go = let_go
        self.defers_confirms = store is not None and store.durable
        self.defers_transient = False
        self._due: list[int] = []
        # Messages that are in memory only, by position, and the octets of their bodies.
        self._held: dict[int, Message] = {}
        self._held_bytes = 0
        self._pending: set[int] = set()
        # Positions of messages that were taken out or lost, whose numbers are still in the heap.
        self._stale: set[int] = set()
        self._published = 0
        self._next_position = 0
        self.length = self.ready_bytes = 0
        if store is not None:
            self._due = [_number(due, position) for position, due in store.expiries()]
            heapify(self._due)
            self._next_position = store.first_position()
            # Only now is it known what of the index can be read.
            recovered = store.recovered()
            self.length, self.ready_bytes = recovered.count, recovered.body_bytes
        self.expiring = self.length > 0

    @property
    def published(self) -> int:
        return self._published

    @property
    def end_at_start(self) -> int:
        return 0 if self._store is None else self._store.end_at_start

    @property
    def next_position(self) -> int:
        return self._next_position

    @property
    def undelivered_from(self) -> int:
        """No message was ever delivered: clients get what leaves from other queues."""
        return self.delivered_below

    @property
    def delivered_below(self) -> int:
        return self._store.redelivered_below if self._store is not None else 0

    def status(self, now: float) -> BackingQueueStatus:
        store = self._store
        in_memory = len(self._held)
        return BackingQueueStatus(
            mode="lazy",
            delta=(0, self.length - in_memory, self._next_position),
            q4=in_memory,
            len=self.length,
            next_seq_id=self._next_position,
            ram_msg_count=in_memory,
            ram_ack_count=len(self._pending),
            ram_bytes=self._held_bytes,
            persistent=store.persistent if store is not None else (0, 0),
            disk_reads=store.read_count if store is not None else 0,
            disk_writes=store.written_count if store is not None else 0,
        )

    # Publishing

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
        self._published += 1
        message = Message(envelope, body, position, expires_at)
        if self._is_written(envelope):
            assert self._store is not None
            self._store.write(message, confirms, publish_seq)
        else:
            self._hold(message)
        self._became_ready(message)

    def publish_delivered(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Message:
        position = self._next_position
        self.publish(envelope, body, expires_at, confirms, publish_seq)
        return self.take((position,))[0]

    def _is_written(self, envelope: Envelope) -> bool:
        """Whether the store gets such a message when it arrives."""
        return envelope.persistent and self.defers_confirms

    def _hold(self, message: Message) -> None:
        """Keep in memory what the store does not have, until it is worth paging out."""
        self._held[message.position] = message
        self._held_bytes += len(message.body)
        if self._store is None:
            return
        if len(self._held) >= PAGE_COUNT or self._held_bytes >= PAGE_BYTES:
            self._store.page([self._held[position] for position in sorted(self._held)])
            self._held.clear()
            self._held_bytes = 0

    def _became_ready(self, message: Message) -> None:
        self.length += 1
        self.ready_bytes += len(message.body)
        position = message.position
        if position in self._stale:
            # Its number is still in the heap.
            self._stale.remove(position)
        else:
            heappush(self._due, _number(message.expires_at, position))

    # Taking out

    def fetch(self) -> Message | None:
        messages = self.fetch_many(1)
        return messages[0] if messages else None

    def fetch_many(self, limit: int) -> list[Message]:
        """The messages that are due first, whether they are due yet or not."""
        return self._fetch(limit, None)

    def fetch_to_drop(self) -> Message | None:
        return self.fetch()

    def fetch_expired(self, now: float, limit: int) -> list[Message]:
        """Messages that are due; fewer than the limit where they are large."""
        return self._fetch(limit, now)

    def _fetch(self, limit: int, now: float | None) -> list[Message]:
        messages: list[Message] = []
        octets = 0
        while len(messages) < limit and octets < FETCH_BYTES:
            position = self._first(now)
            if position is None:
                break
            for message in self._taken((position,)):
                octets += len(message.body)
                messages.append(message)
        return messages

    def _first(self, now: float | None) -> int | None:
        """Remove the first number from the heap that is not stale, if it is due by `now`; return
        its position."""
        due_at = self.next_expiry()
        if due_at is None or (now is not None and due_at > now):
            return None
        return heappop(self._due) & _POSITION

    def take(self, positions: Collection[int]) -> list[Message]:
        """Make these messages pending, whenever they are due; those that are not ready are passed
        over."""
        there = [position for position in positions if self._is_ready(position)]
        self._stale.update(there)
        taken = self._taken(there)
        # At a mirror all messages leave by this call, mostly in the order of the heap.
        self._drop_stale()
        return taken

    def _is_ready(self, position: int) -> bool:
        if position in self._pending:
            return False
        return position in self._held or (
            self._store is not None
            and self._store.list_positions(position, position + 1, 1).positions != []
        )

    def _taken(self, positions: Collection[int]) -> list[Message]:
        """Make ready messages pending, in the order given; the caller deals with their numbers."""
        taken: list[Message] = []
        for position in positions:
            message = self._held.pop(position, None)
            if message is None:
                message = self._read(position)
                if message is None:
                    continue
            else:
                self._held_bytes -= len(message.body)
            self.length -= 1
            self.ready_bytes -= len(message.body)
            self._pending.add(position)
            taken.append(message)
        return taken

    def _read(self, position: int) -> Message | None:
        """A ready message of the store; None when it is lost, which the store reports."""
        assert self._store is not None, position
        batch = self._store.read(position, position + 1, 1, 1)
        if batch.messages:
            return batch.messages[0]
        self.length -= batch.lost
        self.ready_bytes -= batch.lost_bytes
        return None

    def next_expiry(self) -> float | None:
        self._drop_stale()
        return (self._due[0] >> POSITION_BITS) / 1e6 if self._due else None

    def _drop_stale(self) -> None:
        """Remove stale numbers, so that the first number in the heap is that of a ready message."""
        due, stale = self._due, self._stale
        while due and due[0] & _POSITION in stale:
            stale.remove(heappop(due) & _POSITION)

    # Settling

    def load(self, messages: Iterable[Message]) -> list[Message]:
        """Pending messages keep their bodies."""
        return list(messages)

    def ack(self, messages: Collection[Message]) -> None:
        self._pending.difference_update([message.position for message in messages])
        if self._store is not None:
            self._store.remove(messages)

    def requeue(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._pending.discard(message.position)
            if not self._is_written(message.envelope):
                if self._store is None or not self._store.has_written(message):
                    self._hold(message)
            self._became_ready(message)

    # Ending

    def purge(self) -> int:
        count = self.length
        if self._store is not None and count:
            start = 0
            for position in sorted(self._pending):
                self._store.remove_range(start, position)
                start = position + 1
            self._store.remove_range(start, self._next_position)
        self._forget_ready()
        return count

    def _forget_ready(self) -> None:
        self.length = self.ready_bytes = self._held_bytes = 0
        self._held.clear()
        due, self._due = self._due, []
        self._let_go(due)
        self._stale.clear()

    def set_mode(self, mode: str) -> None:
        """Ignored: a due queue is always lazy."""

    def stop(self) -> None:
        if self._store is not None:
            self._store.close(self._store.redelivered_below)

    def delete(self) -> None:
        self._forget_ready()
        self._pending.clear()
        if self._store is not None:
            self._store.delete()

    # For people

    def due_order(self) -> Iterator[int]:
        """The positions of the messages that are ready now, by due time. Some of them may have left
        when they are looked at.

        It costs a copy of the numbers, and then what is gone through: a number is looked at after
        the one above it in the heap."""
        return _in_order(self._due.copy(), self._stale.copy())

    def look_at(self, positions: Iterable[int]) -> list[Message]:
        """Look at the messages at these positions that are still ready."""
        found: list[Message] = []
        for position in positions:
            message = self._held.get(position)
            if message is None and self._store is not None and position not in self._pending:
                message = self._look_up(position)
            if message is not None:
                found.append(message)
        return found

    # For copies at other nodes

    def peek(self, start: int, count_max: int, bytes_max: int) -> Peeked:
        """Peek in the order of positions, as any other backing queue does."""
        messages: list[Message] = []
        octets = 0
        at = start
        while at < self._next_position:
            positions, at, _ = self.list_positions(at, self._next_position, count_max)
            for position in positions:
                if messages and (len(messages) >= count_max or octets >= bytes_max):
                    return Peeked(messages, position)
                message = self._held.get(position) or self._look_up(position)
                if message is not None:
                    messages.append(message)
                    octets += len(message.body)
        return Peeked(messages, max(at, start))

    def _look_up(self, position: int) -> Message | None:
        assert self._store is not None, position
        batch = self._store.read(position, position + 1, 1, 1)
        self.length -= batch.lost
        self.ready_bytes -= batch.lost_bytes
        if batch.lost:
            self._stale.add(position)
        return batch.messages[0] if batch.messages else None

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        held = sorted([position for position in self._held if start <= position < end])
        safe = self.defers_confirms
        positions: list[int] = []
        beyond = end
        if self._store is not None:
            wanted = count_max + len(self._pending) + 1
            stored = self._store.list_positions(start, end, wanted)
            pending = self._pending
            positions = [position for position in stored.positions if position not in pending]
            beyond = min(stored.next_position, end)
            safe = safe and stored.safe
        positions = sorted(positions + [position for position in held if position < beyond])
        if len(positions) > count_max:
            beyond = positions[count_max]
            del positions[count_max:]
        return Listed(positions, beyond, safe and not held)

    def skip_to(self, position: int) -> None:
        assert position >= self._next_position, (position, self._next_position)
        self._next_position = position

    def count_as_delivered(self, below: int) -> None:
        """Does nothing: no client is ever told that a message was in here before."""


def due_queue(backing: BackingQueue, let_go: Callable[[list[Any]], None]) -> DueQueue:
    """Return a due queue in the place of a new backing queue, with all that is in its store; a due
    queue is returned itself."""
    if isinstance(backing, DueQueue):
        return backing
    return DueQueue(backing.store if isinstance(backing, VariableQueue) else None, let_go)


def _number(due: float | None, position: int) -> int:
    """The number that stands for a message in the heap."""
    return (0 if due is None else int(due * 1e6)) << POSITION_BITS | position


def _in_order(due: list[int], stale: set[int]) -> Iterator[int]:
    """The positions of a heap's numbers from the smallest on, without the stale ones."""
    ahead = [(due[0], 0)] if due else []
    while ahead:
        number, at = heappop(ahead)
        for below in (2 * at + 1, 2 * at + 2):
            if below < len(due):
                heappush(ahead, (due[below], below))
        if number & _POSITION not in stale:
            yield number & _POSITION
