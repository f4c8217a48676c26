"""The messages of a stream: appended at the end, read from any offset, removed at the front.

Theory. A message's position is its offset: 0, 1, 2 and so on, across restarts. Nothing is taken out
to be delivered, so nothing is ever pending, and a reader is but a number. Readers see a message
when it is *committed*: on disk, and where other nodes have copies at so many of these that no crash
gives its offset to another message. Every message is written, whatever its delivery mode, and its
publisher is told when it is committed.

What is too much goes in pieces from the front. A piece is the shortest run of messages, beginning
with the first one there is, whose records take `segment_bytes`; the last messages, which do not
make a whole piece with one behind it, stay. So pieces need no list: the next one is found by
walking from the front, a bit at a time, and a restart finds the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, cast

from warren.core.backing.backing_queue import (
    BackingQueue,
    BackingQueueStatus,
    Listed,
    Peeked,
)
from warren.core.backing.stream_limits import StreamLimits
from warren.core.backing.stream_store import MemoryStreamStore, StreamStore, Walked
from warren.core.backing.stream_tail import StreamTail
from warren.core.backing.variable_queue import VariableQueue
from warren.core.messages.message import Envelope, Message, new_messages
from warren.core.messages.settlement import PublishConfirms, settle_in_rows

CHUNK_COUNT = 64
CHUNK_BYTES = 64 << 10
"""Messages, and octets, that are read at once: a millisecond at most, but for one large message."""

CHUNKS_MAX = 8
"""Chunks that were read last and are kept: readers at the end of a stream want the same ones."""

NOTHING = Walked(0, 0, 0, 0)
NO_WAITER = (None, 0)


class Trim(NamedTuple):
    """`more`: there is more to do at once; `due_s`: in how many seconds the first piece will be too
    old, None if that is not known."""

    more: bool
    due_s: float | None = None


class StreamLog(PublishConfirms):
    """Implements `MirroredLevel`, as far as a stream hands anything out.

    `committed`: every message below is safe. `on_committed` is called, once for many messages,
    when there are more of them, and `on_lost` when a reader comes to messages that are damaged on
    the disk. `is_in_doubt`: some copies may lack what seems committed here, so
    nothing is read for the moment. `tail`: the newest messages, while readers are near the end.
    """

    defers_confirms = True
    defers_transient = True

    __slots__ = (
        "_ahead",
        "_chunks",
        "_counted",
        "_first",
        "_front",
        "_front_of",
        "_published",
        "_store",
        "_trims_below",
        "_uncommitted",
        "_waiting",
        "committed",
        "end_at_start",
        "expiring",
        "is_in_doubt",
        "length",
        "next_position",
        "on_committed",
        "on_lost",
        "ready_bytes",
        "tail",
    )

    def __init__(self, store: StreamStore) -> None:
        recovered = store.recovered()
        self._store = store
        self.next_position = self.committed = self.end_at_start = store.end_of_sequence()
        self.length = recovered.count
        self.ready_bytes = recovered.body_bytes
        self.expiring = self.is_in_doubt = False
        self.tail = StreamTail()
        self.on_committed: Callable[[], None] = _no_callback
        self.on_lost: Callable[[], None] = _no_callback
        self._first: int | None = None
        self._published = 0
        # The messages that are not committed, in order.
        self._uncommitted: deque[Message] = deque()
        # The waiters for messages that are not committed, by position.
        self._waiting: dict[int, tuple[PublishConfirms, int]] = {}
        # The chunks that were read last: start and end of each, and its messages.
        self._chunks: deque[tuple[int, int, list[Message]]] = deque(maxlen=CHUNKS_MAX)
        # Messages below this position are to be removed when they are committed.
        self._trims_below = 0
        # How far all octets were counted, from the first message on.
        self._counted: Walked | None = None
        # How far the first piece was gone through, and for which size of pieces.
        self._front: Walked | None = None
        self._front_of = 0
        # Up to which position messages that seem to be from the future were there when that was
        # noticed, and when that was.
        self._ahead = (0, 0.0)

    @property
    def first(self) -> int:
        """The offset of the oldest message there is; that of the next one where there is none."""
        if self._first is None:
            found = self._store.list_positions(0, self.next_position, 1).positions
            self._first = found[0] if found else self.next_position
        return self._first

    @property
    def published(self) -> int:
        return self._published

    @property
    def undelivered_from(self) -> int:
        return self.next_position

    @property
    def delivered_below(self) -> int:
        return 0

    def status(self, now: float) -> BackingQueueStatus:
        store = self._store
        return BackingQueueStatus(
            mode="lazy",
            delta=(self.first, self.length, self.next_position),
            len=self.length,
            next_seq_id=self.next_position,
            persistent=(self.length, self.ready_bytes),
            disk_reads=store.read_count,
            disk_writes=store.written_count,
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
        position = self.next_position
        self.next_position = position + 1
        self._published += 1
        self.length += 1
        self.ready_bytes += len(body)
        if confirms is not None:
            self._waiting[position] = (confirms, publish_seq)
        message = Message(envelope, body, position)
        self._uncommitted.append(message)
        self._store.write(message, self, position)

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> None:
        self.append(envelopes, bodies, confirms, first_seq)

    def append(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
        first_seq: int,
        *,
        told: tuple[PublishConfirms | None, int] | None = None,
        arrived_at: float | None = None,
    ) -> None:
        """Publish these messages.

        `told`: the object that the store tells when they are on disk, and its number for the first
        of them. That object settles their positions when other nodes have them too. Without it,
        they are committed when they are on disk. `arrived_at`: when they arrived at another node,
        in seconds since 1970.
        """
        first, count = self.next_position, len(bodies)
        self.next_position = first + count
        self._published += count
        self.length += count
        self.ready_bytes += sum(map(len, bodies))
        if confirms is not None:
            for position, number in enumerate(range(first_seq, first_seq + count), first):
                self._waiting[position] = (confirms, number)
        messages = new_messages(envelopes, bodies, first, None)
        self._uncommitted.extend(messages)
        waiter, number = (self, first) if told is None else told
        if count == 1 and arrived_at is None:
            self._store.write(messages[0], waiter, number)
        else:
            self._store.write_many(messages, waiter, range(number, number + count), arrived_at)

    def publish_delivered(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Message:
        raise AssertionError("a stream hands out what is committed")

    def publish_many_delivered(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> list[Message]:
        raise AssertionError("a stream hands out what is committed")

    def settle(self, publish_seq: int) -> None:
        """`PublishConfirms`: the message with this position is safe."""
        self._commit(publish_seq + 1)
        waiting = self._waiting.pop(publish_seq, None)
        if waiting is not None:
            confirms, number = waiting
            confirms.settle(number)

    def settle_many(self, first_seq: int, count: int) -> None:
        self._commit(first_seq + count)
        take = self._waiting.pop
        found = [take(position, NO_WAITER) for position in range(first_seq, first_seq + count)]
        settle_in_rows(found)

    def refuse(self, publish_seq: int) -> None:
        """`PublishConfirms`: another node leads the stream now, and may lack the message.

        The message stays in this log, which is searched for such messages.
        """
        self._commit(publish_seq + 1)
        waiting = self._waiting.pop(publish_seq, None)
        if waiting is not None:
            confirms, number = waiting
            confirms.refuse(number)

    def _commit(self, below: int) -> None:
        if below > self.committed:
            self.committed = below
            uncommitted, newly = self._uncommitted, list[Message]()
            while uncommitted and uncommitted[0].position < below:
                newly.append(uncommitted.popleft())
            self.tail.add(newly)
            if self._trims_below:
                self._trim_committed()
            self.on_committed()

    # Reading

    def read(self, position: int, count_max: int) -> tuple[list[Message], int]:
        """Some committed messages from this offset on, new objects each time, and the offset to go
        on from."""
        position = max(position, self.first)
        newest = self.tail.read(position, count_max)
        if newest is not None:
            chosen = newest
            end = chosen[-1].position + 1 if len(chosen) == count_max else self.committed
        else:
            end, chunk = self._chunk(position)
            at = bisect_left(chunk, position, key=lambda message: message.position)
            chosen = chunk[at : at + count_max]
            if at + len(chosen) < len(chunk):
                end = chosen[-1].position + 1
        return [Message(one.envelope, one.body, one.position) for one in chosen], end

    def _chunk(self, position: int) -> tuple[int, list[Message]]:
        """Return the end of the chunk with this position, and its messages, some of which may be
        before."""
        for start, end, messages in self._chunks:
            if start <= position < end:
                return end, messages
        batch = self._store.read_stored(position, self.committed, CHUNK_COUNT, CHUNK_BYTES)
        if batch.lost:
            self._lost(batch.lost, batch.lost_bytes)
            self.on_lost()
        if sum([len(one.body) for one in batch.messages]) <= CHUNK_BYTES:
            self._chunks.append((position, batch.next_position, batch.messages))
        return batch.next_position, batch.messages

    def may_be_elsewhere(self) -> bool:
        """Whether another node has the messages that are damaged here, and may lead."""
        return False

    def _lost(self, count: int, body_bytes: int) -> None:
        self.length -= count
        self.ready_bytes -= body_bytes
        self._counted = self._front = None

    def forget_chunks(self, readers: Collection[int] = ()) -> None:
        """Forget the chunks that were read last, but those in which one of these readers stands:
        it goes on there when it has acknowledged something. Of many readers none is heeded."""
        if not self._chunks:
            return
        chunks = list(self._chunks) if len(readers) <= CHUNKS_MAX else []
        self._chunks.clear()
        self._chunks += [
            chunk for chunk in chunks if any([chunk[0] <= at < chunk[1] for at in readers])
        ]

    def arrived_at(self, position: int) -> float | None:
        """When a message arrived, in seconds since 1970; None if it is lost, or not on the disk
        yet."""
        return self._store.arrived_at(position)

    # Trimming

    def trim(self, limits: StreamLimits, wall_time: float) -> Trim:
        """Do one step of trimming: count messages, check ages, or remove one piece."""
        if limits.octets_max is not None:
            counted = self._counted or NOTHING._replace(position=self.first)
            if counted.position < self.committed:
                self._counted = self._further(counted, 1 << 62)
                return Trim(more=True)
        segment_bytes = max(1, limits.segment_bytes)
        front = self._front
        if front is None or self._front_of != segment_bytes:
            front = NOTHING._replace(position=self.first)
            self._front_of = segment_bytes
        if front.octets < segment_bytes and front.position < self.committed:
            self._front = self._further(front, segment_bytes)
            return Trim(more=True)
        self._front = front
        if front.octets < segment_bytes or front.position >= self.committed:
            # The first piece is the newest.
            return Trim(more=False)
        if self._counted is not None and limits.octets_max is not None:
            if self._counted.octets > limits.octets_max:
                self._remove(front)
                return Trim(more=True)
        if limits.age_max_s is None:
            return Trim(more=False)
        arrived_at = self._arrived_by(front.position - 1, wall_time)
        left_s = 0.0 if arrived_at is None else arrived_at + limits.age_max_s - wall_time
        if left_s > 0:
            return Trim(more=False, due_s=left_s)
        self._remove(front)
        return Trim(more=True)

    def _arrived_by(self, position: int, wall_time: float) -> float | None:
        """When a message arrived; one from the future, as the clock has been set back, counts as
        arrived when that was noticed. None if it is lost."""
        arrived_at = self._store.arrived_at(position)
        if arrived_at is None or arrived_at <= wall_time:
            return arrived_at
        end, noticed_at = self._ahead
        if position >= end:
            end, noticed_at = self.committed, wall_time
        self._ahead = end, min(noticed_at, wall_time)
        return self._ahead[1]

    def _further(self, walked: Walked, enough: int) -> Walked:
        step = self._store.walk(walked.position, self.committed, enough - walked.octets)
        return self._added(walked, step)

    @staticmethod
    def _added(walked: Walked, step: Walked) -> Walked:
        return Walked(
            step.position,
            walked.octets + step.octets,
            walked.messages + step.messages,
            walked.body_bytes + step.body_bytes,
        )

    def _remove(self, front: Walked) -> None:
        self._store.remove_range(self.first, front.position)
        self._first = front.position
        self.length = max(0, self.length - front.messages)
        self.ready_bytes = max(0, self.ready_bytes - front.body_bytes)
        self._front = None
        if self._counted is not None:
            octets = self._counted.octets - front.octets
            self._counted = self._counted._replace(octets=octets)

    def trim_below(self, position: int) -> None:
        """Remove the messages that the leader, another node, has removed. A message that is on its
        way to the disk is removed when it is there."""
        self._trims_below = position
        self._trim_committed()

    def _trim_committed(self) -> None:
        first, position = self.first, min(self._trims_below, self.committed)
        if position == self._trims_below:
            self._trims_below = 0
        if position <= first:
            return
        front = NOTHING._replace(position=first)
        while front.position < position:
            front = self._added(front, self._store.walk(front.position, position, 1 << 62))
        self._counted = None
        self._remove(front)
        self.forget_chunks()

    # Positions that mean the same at other nodes

    def skip_to(self, position: int) -> None:
        if self.committed == self.next_position:
            self.committed = position
        self.next_position = position
        if not self.length:
            self._first = None

    def peek_written(self, start: int, count_max: int, bytes_max: int) -> Peeked:
        """`peek` that also shows messages which are not committed."""
        if start < self.committed:
            return self.peek(start, count_max, bytes_max)
        messages: list[Message] = []
        octets = 0
        for message in self._uncommitted:
            if message.position < start:
                continue
            octets += len(message.body)
            if messages and (len(messages) == count_max or octets > bytes_max):
                return Peeked(messages, message.position)
            messages.append(message)
        return Peeked(messages, self.next_position)

    def list_written(self, start: int, end: int, count_max: int) -> Listed:
        """`list_positions` that also lists messages which are not committed."""
        if start < self.committed:
            return self._store.list_positions(start, min(end, self.committed), count_max)
        found = [one.position for one in self._uncommitted if start <= one.position < end]
        if len(found) > count_max:
            return Listed(found[:count_max], found[count_max], False)
        return Listed(found, end, False)

    # For people

    def peek(self, start: int, count_max: int, bytes_max: int) -> Peeked:
        start = max(start, self.first)
        if start >= self.committed:
            return Peeked([], max(start, self.next_position))
        batch = self._store.read_stored(start, self.committed, count_max, bytes_max)
        if batch.lost:
            self._lost(batch.lost, batch.lost_bytes)
        for message in batch.messages:
            # The store marks messages for queues; readers of a stream know no redelivery.
            message.redelivered = False
        return Peeked(batch.messages, batch.next_position)

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        listed = self._store.list_positions(start, min(end, self.committed), count_max)
        if listed.next_position >= self.committed:
            return listed._replace(next_position=max(end, listed.next_position))
        return listed

    # Nothing is ever taken out

    def fetch(self) -> Message | None:
        return None

    def fetch_many(self, limit: int) -> list[Message]:
        return []

    def fetch_to_drop(self) -> Message | None:
        return None

    def fetch_expired(self, now: float, limit: int) -> list[Message]:
        return []

    def next_expiry(self) -> float | None:
        return None

    def take(self, positions: Sequence[int]) -> list[Message]:
        return []

    def load(self, messages: Iterable[Message]) -> list[Message]:
        return list(messages)

    def ack(self, messages: Collection[Message]) -> None:
        """Nothing to do: acknowledged messages stay in a stream."""

    def requeue(self, messages: Iterable[Message]) -> None:
        """Nothing to do: messages never leave a stream when they are delivered."""

    def purge(self) -> int:
        return 0

    def set_mode(self, mode: str) -> None:
        """Ignored: a stream is always on disk."""

    def count_as_delivered(self, below: int) -> None:
        """Does nothing: in a stream no message counts as delivered."""

    # The end

    def stop(self) -> None:
        self._store.close(self.next_position)

    def delete(self) -> None:
        self.on_committed = self.on_lost = _no_callback
        self.forget_chunks()
        self.tail.forget()
        self._uncommitted.clear()
        self._store.delete()
        self.length = self.ready_bytes = 0


def _no_callback() -> None:
    """Stands for the callback while no consumer reads."""


def stream_log(
    backing: BackingQueue,
    call_soon: Callable[[Callable[[], None]], object],
    wall_time: Callable[[], float],
) -> StreamLog:
    """Return a stream log in the place of a new backing queue, with all that is in its store; a
    stream log is returned itself."""
    if isinstance(backing, StreamLog):
        return backing
    if isinstance(backing, VariableQueue):
        return StreamLog(cast(StreamStore, backing.store))
    return StreamLog(MemoryStreamStore(call_soon, wall_time))
