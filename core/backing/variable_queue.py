"""A backing queue that moves messages to a disk when memory is short, and back.

Answerable for which messages of a queue are in memory, and for their order; not for how the disk
keeps them, which is the `QueueStore`'s, nor for how much memory there is, which is the `Pager`'s.

From head to tail, ordered by position, the ready messages are

    returned    messages that came back; their bodies may be on the disk only
    q4          messages in memory
    disk range  positions of messages that only the store knows
    q1          messages in memory

Whatever came back was delivered once, and what never was delivered is always behind it. While
the disk range is empty a publish goes to q4, else to q1. A fetch that finds q4 empty reads ahead
from the disk range; when that is exhausted, q1 joins q4. Paging out extends the disk range into
q1, from its front, and then into q4, from its tail: these messages were never delivered, so the
store can make them anew and the objects are forgotten. Pending messages and returned ones keep
their objects and lose their bodies only.

Persistent messages of a durable queue are written to the store when they arrive, and paging them
out costs nothing; others are written when they are paged out.

Messages may be taken from the middle (`take`). They are pending, stay in the store, and are passed
over when the disk range is read; each is put back where it stood.

A lazy queue has a target of nothing: a publish goes to q1, which is paged out when it has grown
to a small batch, or at the next tick of the pager (storage_internals.md section c).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from operator import attrgetter

from warren.core.backing.backing_queue import BackingQueueStatus, Listed, Peeked
from warren.core.backing.disk_range import DiskRange
from warren.core.backing.paging import FREED_AT_ONCE, SLICE, Pager
from warren.core.backing.peeking import FAR, Ahead, list_positions, peek
from warren.core.backing.queue_rates import QueueRates, Totals
from warren.core.backing.queue_store import Purged, QueueStore
from warren.core.backing.returned_messages import ReturnedMessages
from warren.core.backing.taking import in_order, put_into_run, take_from_run
from warren.core.messages.message import PAGED_OUT, Envelope, Message, mark_delivered
from warren.core.messages.settlement import PublishConfirms

_is_persistent = attrgetter("persistent")

DEFAULT_MODE = "default"
LAZY_MODE = "lazy"

REDUCE_INTERVAL = 1000
"""Publishes between two looks at whether a queue has outgrown its target."""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """How much goes to the disk and back at once.

    Reading ahead makes reads long enough to be worth a seek, and short enough to be no stall. A
    lazy queue, of which there may be very many, holds less.
    """

    read_count: int = 512
    read_bytes: int = 1 << 20
    lazy_read_count: int = 64
    lazy_read_bytes: int = 256 << 10
    lazy_write_count: int = 64
    lazy_write_bytes: int = 64 << 10


DEFAULT_SIZES = BatchSizes()


class VariableQueue:
    """Implements `BackingQueue` and `Pageable`."""

    __slots__ = (
        "_acked",
        "_ahead",
        "_counts",
        "_disk",
        "_durable",
        "_first_position",
        "_gone",
        "_initial_count",
        "_joined",
        "_lazy",
        "_lazy_bytes",
        "_look_at",
        "_next_position",
        "_pager",
        "_pending",
        "_q1",
        "_q4",
        "_rates",
        "_returned",
        "_returned_again",
        "_sizes",
        "_store",
        "_stored",
        "_tail",
        "_taken",
        "_target_count",
        "defers_confirms",
        "defers_transient",
        "expiring",
        "length",
        "ready_bytes",
    )

    def __init__(
        self,
        store: QueueStore,
        pager: Pager,
        *,
        mode: str = DEFAULT_MODE,
        sizes: BatchSizes = DEFAULT_SIZES,
    ) -> None:
        recovered = store.recovered()
        self._store = store
        # Empty but in queues that count returns.
        self._counts = store.delivery_counts
        self._pager = pager
        self._sizes = sizes
        self._durable = store.durable
        self.defers_confirms = store.durable
        self.defers_transient = False
        self.expiring = recovered.expiring
        self.length = recovered.count
        self.ready_bytes = recovered.body_bytes
        self._first_position = self._next_position = store.first_position()
        self._initial_count = recovered.count

        # Pending messages that were taken from the middle, by position.
        self._taken: dict[int, Message] = {}

        self._returned = ReturnedMessages()
        self._q4: deque[Message] = deque()
        self._disk = DiskRange(store, recovered, self._taken)
        # An empty deque takes 600 bytes, and most queues never have a q1.
        self._q1: deque[Message] | None = None
        # q4 or q1: where a publish goes.
        self._tail = self._q4

        # For readers that look into the middle of a long queue.
        self._ahead: Ahead | None = None

        # Whether anything of this queue was ever in the store.
        self._stored = recovered.count > 0
        # Totals; with the length and positions they give all others.
        self._acked = 0
        self._returned_again = 0
        self._gone = 0

        # While the queue is with the pager, the pending messages whose bodies are in memory, the
        # youngest last. Before that it has too few to be worth keeping book of.
        self._pending: dict[Message, None] = {}
        self._joined = False
        self._target_count: int | None = None
        self._rates: QueueRates | None = None
        self._lazy = False
        self._lazy_bytes = 0
        self._look_at = self._next_position + pager.worth_paging
        self._find_tail()
        self.set_mode(mode)

    @property
    def store(self) -> QueueStore:
        """Where its messages are, for a backing queue of another kind that takes its place."""
        return self._store

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
        message = Message(envelope, body, position, expires_at)
        self._tail.append(message)
        self.length += 1
        self.ready_bytes += len(body)
        if self._durable and envelope.persistent:
            self._stored = True
            self._store.write(message, confirms, publish_seq)
        if position >= self._look_at:
            self._look(len(body))

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
        message = Message(envelope, body, position, expires_at)
        if self._durable and envelope.persistent:
            self._stored = True
            self._store.write(message, confirms, publish_seq)
        if self._joined:
            self._pending[message] = None
        if position >= self._look_at:
            self._look(0)
        return message

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> None:
        messages = self._take_in(envelopes, bodies, confirms, first_seq)
        body_bytes = sum(map(len, bodies))
        self._tail += messages
        self.length += len(messages)
        self.ready_bytes += body_bytes
        if self._next_position > self._look_at:
            self._look(body_bytes)

    def publish_many_delivered(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> list[Message]:
        messages = self._take_in(envelopes, bodies, confirms, first_seq)
        if self._joined:
            self._pending.update(dict.fromkeys(messages))
        if self._next_position > self._look_at:
            self._look(0)
        return messages

    def _take_in(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> list[Message]:
        """Give messages their positions, and to the store those that it has to keep."""
        first = self._next_position
        self._next_position = end = first + len(bodies)
        messages = list(map(Message, envelopes, bodies, range(first, end)))
        if self._durable:
            persistent = list(map(_is_persistent, envelopes))
            if any(persistent):
                seqs = range(first_seq, first_seq + len(messages))
                self._stored = True
                self._store.write_many(
                    list(compress(messages, persistent)), confirms, compress(seqs, persistent)
                )
        return messages

    # Fetching

    def fetch(self) -> Message | None:
        if self._returned.heap or not self._q4:
            if self._bring_head() is None:
                return None
            message = self._take_head()
        else:
            message = self._q4.popleft()
        self.length -= 1
        self.ready_bytes -= len(message.body)
        if self._joined:
            self._pending[message] = None
        return message

    def fetch_many(self, limit: int) -> list[Message]:
        count = min(limit, self.length)
        q4 = self._q4
        if self._returned.heap or len(q4) < count:
            messages = self._take_heads(count)
        else:
            take = q4.popleft
            messages = [take() for _ in range(count)]
        self.length -= len(messages)
        self.ready_bytes -= sum([len(message.body) for message in messages])
        if self._joined:
            self._pending.update(dict.fromkeys(messages))
        return messages

    def fetch_to_drop(self) -> Message | None:
        return self.fetch()

    def fetch_expired(self, now: float, limit: int) -> list[Message]:
        expired: list[Message] = []
        while len(expired) < limit:
            expires_at = self.next_expiry()
            if expires_at is None or expires_at > now:
                break
            # The head may be another now: messages in front of it may be lost.
            head = self._bring_head()
            if head is None or head.expires_at is None or head.expires_at > now:
                break
            message = self.fetch()
            assert message is head
            expired.append(head)
        return expired

    def next_expiry(self) -> float | None:
        if self._returned.heap:
            return self._returned.heap[0][1].expires_at
        if self._q4:
            return self._q4[0].expires_at
        if self._disk.count:
            return self._disk.next_expiry()
        return self._q1[0].expires_at if self._q1 else None

    def _bring_head(self) -> Message | None:
        """Bring the first ready message to memory and return it; None when there is none left.

        On the way it drops messages that are lost.
        """
        returned = self._returned.bring_head(self._store, self._lose)
        if returned is not None:
            return returned
        while not self._q4 and self._disk.count:
            self._read_ahead()
        if not self._q4 and self._q1:
            self._join_q1()
        return self._q4[0] if self._q4 else None

    def _take_head(self) -> Message:
        """Remove and return the message that `_bring_head` has brought."""
        if self._returned.heap:
            return self._returned.take_head()
        return self._q4.popleft()

    def _take_heads(self, count: int) -> list[Message]:
        """Remove and return the first ready messages, wherever they are: up to `count`."""
        messages: list[Message] = []
        while len(messages) < count:
            if self._returned.heap:
                wanted = count - len(messages)
                messages += self._returned.take_heads(wanted, self._store, self._lose)
            elif self._bring_head() is not None:
                take = self._q4.popleft
                run = min(count - len(messages), len(self._q4))
                messages += [take() for _ in range(run)]
            else:
                break
        return messages

    def _read_ahead(self) -> None:
        """Bring the first messages of the disk range to q4, which is empty."""
        sizes = self._sizes
        if self._lazy:
            count_max, bytes_max = sizes.lazy_read_count, sizes.lazy_read_bytes
        else:
            count_max, bytes_max = sizes.read_count, sizes.read_bytes
        self._q4.extend(self._disk.read_ahead(count_max, bytes_max, self._lose))
        if not self._disk.count:
            self._join_q1()
        if not self._joined:
            self._join_pager_if_large()

    def _lose(self, count: int, body_bytes: int) -> None:
        self.length -= count
        self.ready_bytes -= body_bytes
        self._gone += count

    # Settling

    def load(self, messages: Iterable[Message]) -> list[Message]:
        loaded: list[Message] = []
        for message in messages:
            if message.body is PAGED_OUT:
                body = self._store.read_body(message)
                if body is None:
                    continue
                message.body = body
                if self._joined:
                    self._pending[message] = None
            loaded.append(message)
        return loaded

    def ack(self, messages: Collection[Message]) -> None:
        self._acked += len(messages)
        if self._stored:
            self._store.remove(messages)
        if self._pending:
            self._forget_pending(messages)
        if self._counts:
            for message in messages:
                self._counts.pop(message.position, None)
        if self._taken:
            for message in messages:
                self._taken.pop(message.position, None)

    def requeue(self, messages: Iterable[Message]) -> None:
        messages = list(messages)
        self._forget_pending(messages)
        if self._taken:
            messages = self._put_back(messages)
        self.length += len(messages)
        self.ready_bytes += sum([message.body_bytes for message in messages])
        self._returned_again += len(messages)
        self._returned.add(messages)
        if not self._joined:
            self._join_pager_if_large()

    def _forget_pending(self, messages: Iterable[Message]) -> None:
        forget = self._pending.pop
        for message in messages:
            forget(message, None)

    # Taking from the middle

    def take(self, positions: Sequence[int]) -> list[Message]:
        wanted = sorted(positions)
        returned = self._returned.take(wanted)
        middle = take_from_run(self._q4, wanted)
        if self._q1:
            middle += take_from_run(self._q1, wanted)
        if self._disk.count:
            # Last, because q1 joins q4 when nothing is left on the disk.
            middle += self._disk.take(wanted, self._lose)
            if not self._disk.count:
                self._join_q1()
        if middle:
            self._ahead = None
            self._taken.update([(message.position, message) for message in middle])
        taken = self.load(returned) + middle
        # Messages whose bodies the store has lost leave the queue, too.
        self._gone += len(returned) + len(middle) - len(taken)
        self.length -= len(returned) + len(middle)
        self.ready_bytes -= sum([message.body_bytes for message in (*returned, *middle)])
        if self._joined:
            self._pending.update(dict.fromkeys(taken))
        return in_order(taken)

    def _put_back(self, messages: list[Message]) -> list[Message]:
        """Make the messages that were taken from the middle ready there; returns the others."""
        others: list[Message] = []
        for message in messages:
            taken = self._taken.pop(message.position, None)
            if taken is None or message.position < self.undelivered_from:
                others.append(message)
            elif self._disk.covers(message.position):
                self._keep([message])
                self._disk.put_back(message)
                self._is_back(message)
            elif self.load((message,)):
                self._ahead = None
                put_into_run(self._run_at(message.position), message)
                self._pending.pop(message, None)
                self._is_back(message)
            else:
                self._gone += 1
        return others

    def _is_back(self, message: Message) -> None:
        self.length += 1
        self.ready_bytes += message.body_bytes
        self._returned_again += 1

    def _run_at(self, position: int) -> deque[Message]:
        """The run in memory that a position belongs to."""
        q1 = self._q1
        if q1 is None:
            return self._q4
        if self._disk.count:
            return q1 if position >= self._disk.end else self._q4
        return q1 if not self._q4 or position > self._q4[-1].position else self._q4

    # Ending

    def purge(self) -> int:
        count = self.length
        if self._counts:
            self._forget_counts()
        if self._stored and count:
            if self._returned.heap:
                self._store.remove(Purged(self._returned.take_all()))
            # Messages that were never delivered stand behind all pending ones but those taken.
            start = self.undelivered_from
            for position in sorted(self._taken):
                if position >= start:
                    self._store.remove_range(start, position)
                    start = position + 1
            self._store.remove_range(start, self._next_position)
        self._forget_ready()
        return count

    def _forget_counts(self) -> None:
        """Forget the counts of ready messages: of returned ones, and those found at the start."""
        ready = [position for position, _ in self._returned.heap]
        undelivered_from = self.undelivered_from
        for position in (*ready, *[at for at in self._counts if at >= undelivered_from]):
            self._counts.pop(position, None)

    def delete(self) -> None:
        self._forget_ready()
        self._pending.clear()
        self._taken.clear()
        self._leave_pager()
        self._store.delete()

    def stop(self) -> None:
        """The node stops; nothing may be called any more."""
        self._leave_pager()
        self._store.close(self.delivered_below)

    def _forget_ready(self) -> None:
        self._pager.free(self._returned.take_all())
        if len(self._q4) > FREED_AT_ONCE:
            self._pager.free(self._q4)
            self._q4 = deque()
        self._gone += self.length
        self.length = 0
        self.ready_bytes = 0
        self._q4.clear()
        self._ahead = None
        self._disk.clear()
        self._q1 = None
        self._lazy_bytes = 0
        self._find_tail()

    @property
    def next_position(self) -> int:
        return self._next_position

    @property
    def undelivered_from(self) -> int:
        if self._q4:
            return self._q4[0].position
        if self._disk.count:
            return self._disk.start
        return self._q1[0].position if self._q1 else self._next_position

    # For queues that count returns

    @property
    def delivery_counts(self) -> dict[int, int]:
        """How often messages were returned, as `core/queues/redelivery.py` and
        `core/queues/quorum_level.py` count it."""
        return self._counts

    @property
    def dead_marks(self) -> dict[int, int]:
        return self._store.dead_marks

    def counts_changed(self, positions: Iterable[int]) -> None:
        self._store.counts_changed(positions)

    # For copies at other nodes

    def peek(self, start: int, count_max: int, bytes_max: int) -> Peeked:
        """As the interface says; returned messages whose bodies are lost are passed over."""
        end = self._next_position
        q1 = self._q1 if self._q1 is not None else ()
        disk = self._disk
        if not disk.count:
            heap, runs = self._returned.heap, (self._q4, q1)
            if self._ahead is None and len(self._q4) > 2 * FAR:
                self._ahead = Ahead()
            peeked = peek(
                heap, runs, start, end, count_max, bytes_max, self._with_body, self._ahead
            )
            if peeked.next_position >= end:
                # The reader that went through the queue is at its end.
                self._ahead = None
            return peeked
        if start >= disk.end:
            return peek((), (q1,), start, end, count_max, bytes_max, self._with_body)
        head = peek(
            self._returned.heap,
            (self._q4,),
            start,
            disk.start,
            count_max,
            bytes_max,
            self._with_body,
        )
        if head.messages:
            return head
        peeked = disk.peek(start, count_max, bytes_max, self._lose)
        if not disk.count:
            # All messages of the disk range are lost.
            self._join_q1()
        return peeked

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        end = min(end, self._next_position)
        durable, heap, disk = self._durable, self._returned.heap, self._disk
        if not disk.count or start >= disk.end:
            runs = (self._q4, self._q1 or ())
            return list_positions(heap, runs, start, end, count_max, durable)
        if start < disk.start:
            head_end = min(end, disk.start)
            head = list_positions(heap, (self._q4,), start, head_end, count_max, durable)
            if head.positions or head.next_position >= end:
                return head
        return disk.list_positions(start, end, count_max)

    def _with_body(self, message: Message) -> Message | None:
        """The message as it can be looked at: itself, or a copy with its body; None if lost."""
        if message.body is not PAGED_OUT:
            return message
        body = self._store.read_body(message)
        if body is None:
            return None
        copy = Message(message.envelope, body, message.position, message.expires_at)
        copy.redelivered = message.redelivered
        return copy

    def skip_to(self, position: int) -> None:
        skipped = position - self._next_position
        assert skipped >= 0, (position, self._next_position)
        # Count them as published and lost, which keeps the totals right.
        self._gone += skipped
        self._next_position = position

    @property
    def delivered_below(self) -> int:
        return max(self.undelivered_from, self._store.redelivered_below)

    def count_as_delivered(self, below: int) -> None:
        counted = self._store.redelivered_below
        if below <= counted:
            return
        self._store.redelivered_below = below
        # Messages below the former end were marked when they were counted, or when read.
        mark_delivered(self._q4, counted, below)
        mark_delivered(self._q1 or (), counted, below)
        if self.undelivered_from > counted:
            for _, message in self._returned.heap:
                message.redelivered |= message.position < below

    # Where a publish goes

    def _find_tail(self) -> None:
        """Choose the tail: the disk range has become empty or not, or the mode has changed."""
        if self._disk.count or self._lazy:
            if self._q1 is None:
                self._q1 = deque()
            self._tail = self._q1
        else:
            assert not self._q1
            self._q1 = None
            self._tail = self._q4

    def _join_q1(self) -> None:
        """The disk range is empty: q1 joins q4, at the cost of the shorter."""
        q1 = self._q1
        if q1:
            if len(self._q4) < len(q1):
                q1.extendleft(reversed(self._q4))
                self._q4.clear()
                self._q4, self._q1 = q1, self._q4
            else:
                self._q4.extend(q1)
                q1.clear()
            self._lazy_bytes = 0
        self._find_tail()

    # Modes

    @property
    def mode(self) -> str:
        return LAZY_MODE if self._lazy else DEFAULT_MODE

    def set_mode(self, mode: str) -> None:
        """`default` or `lazy`. What is in memory is paged out bit by bit, and read when needed."""
        lazy = mode == LAZY_MODE
        if lazy == self._lazy:
            return
        self._lazy = lazy
        if lazy:
            self._find_tail()
            self._look_at = 0
            if self.in_memory:
                self._join_pager()
                self._pager.ask(self)
        else:
            if not self._disk.count:
                self._join_q1()
            self._look_at = self._next_position + self._pager.worth_paging

    # With the pager

    @property
    def in_memory(self) -> int:
        """Messages whose bodies are in memory, as far as they could be paged out."""
        return self._ready_in_memory + len(self._pending)

    @property
    def _ready_in_memory(self) -> int:
        q1 = len(self._q1) if self._q1 else 0
        return len(self._q4) + q1 + self._returned.whole

    @property
    def _pending_count(self) -> int:
        """All pending messages, wherever their bodies are."""
        published = self._next_position - self._first_position
        return self._initial_count + published - self._gone - self._acked - self.length

    @property
    def target_count(self) -> int | None:
        """How many messages may be in memory; None is without limit."""
        return 0 if self._lazy else self._target_count

    @property
    def excess(self) -> int:
        target = self.target_count
        return 0 if target is None else max(0, self.in_memory - target)

    def report(self, now: float) -> float | None:
        self._update_rates(now)
        assert self._rates is not None
        return self._rates.duration_s(self.in_memory)

    def set_duration_target(self, duration_s: float | None) -> None:
        if duration_s is None or self._rates is None:
            self._target_count = None
        else:
            self._target_count = self._rates.count_for(duration_s)

    def leave_pager(self) -> bool:
        few = 0 if self._lazy else self._pager.worth_paging // 2
        if self.in_memory > few:
            return False
        self._joined = False
        self._pending.clear()
        self._target_count = None
        if not self._lazy:
            self._look_at = self._next_position + self._pager.worth_paging
        return True

    def _look(self, body_bytes: int) -> None:
        """Look at the size: every so many publishes, and at every publish to a lazy queue."""
        if self._lazy:
            self._write_lazily(body_bytes)
        elif not self._joined:
            self._look_at = self._next_position + self._pager.worth_paging
            self._join_pager_if_large()
        else:
            self._look_at = self._next_position + REDUCE_INTERVAL
            if self.excess >= REDUCE_INTERVAL:
                self._pager.ask(self)

    def _write_lazily(self, body_bytes: int) -> None:
        """Page q1 out when it has grown to a batch; leave less to the pager."""
        assert self._q1 is not None
        self._lazy_bytes += body_bytes
        count = len(self._q1)
        if (
            count >= self._sizes.lazy_write_count
            or self._lazy_bytes >= self._sizes.lazy_write_bytes
        ):
            self._page_q1(count, SLICE)
            self._lazy_bytes = 0
        if not self._joined:
            self._join_pager()

    def _join_pager_if_large(self) -> None:
        if self._ready_in_memory + self._pending_count >= self._pager.worth_paging:
            self._join_pager()

    def _join_pager(self) -> None:
        self._joined = True
        self._update_rates(self._pager.now())
        self._pager.join(self)
        if not self._lazy:
            self._look_at = self._next_position + REDUCE_INTERVAL

    def _leave_pager(self) -> None:
        self._joined = False
        self._pager.leave(self)

    def _update_rates(self, now: float) -> None:
        if self._rates is None:
            self._rates = QueueRates(self._totals(), now)
        else:
            self._rates.update(self._totals(), now)

    def _totals(self) -> Totals:
        published = self._next_position - self._first_position
        ingress = published + self._returned_again
        egress = self._initial_count + ingress - self._gone - self.length
        return Totals(ingress, egress, egress, self._acked)

    # Paging out

    def reduce(self, budget: int) -> int:
        parts = [self._page_alphas, self._page_pending]
        if self._rates is not None and self._rates.acks_grow_faster:
            parts.reverse()
        spent = 0
        for page in parts:
            if spent < budget:
                spent += page(self.excess, budget - spent)
        return spent

    def _page_alphas(self, count_max: int, budget: int) -> int:
        """Page out ready messages, those that are delivered last first."""
        spent = self._page_q1(count_max, budget)
        if spent < budget:
            spent += self._page_q4(min(count_max, self.excess), budget - spent)
        if spent < budget:
            spent += self._page_returned(min(count_max, self.excess), budget - spent)
        return spent

    def _page_q1(self, count_max: int, budget: int) -> int:
        """Extend the disk range at its end."""
        q1 = self._q1
        if not q1:
            return 0
        messages, spent = self._choose(q1.popleft, min(count_max, len(q1)), budget)
        if messages:
            self._keep(messages)
            self._disk.append(messages)
            self._disk_grew()
        return spent

    def _page_q4(self, count_max: int, budget: int) -> int:
        """Extend the disk range at its start."""
        q4 = self._q4
        messages, spent = self._choose(q4.pop, min(count_max, len(q4)), budget)
        if messages:
            messages.reverse()
            self._keep(messages)
            self._disk.prepend(messages)
            self._disk_grew()
        return spent

    def _disk_grew(self) -> None:
        # Messages that come back from disk are other objects.
        self._ahead = None
        self._find_tail()

    def _page_pending(self, count_max: int, budget: int) -> int:
        """Let go of the bodies of pending messages, the youngest first."""
        pending = self._pending
        messages, spent = self._choose(
            lambda: pending.popitem()[0], min(count_max, len(pending)), budget
        )
        self._drop_bodies(messages)
        return spent

    def _page_returned(self, count_max: int, budget: int) -> int:
        """Let go of the bodies of returned messages, those at the end of the heap first."""
        chosen = self._returned.choose(count_max, budget, self._price)
        self._drop_bodies(chosen.messages)
        return chosen.spent

    def _choose(
        self, take: Callable[[], Message], count_max: int, budget: int
    ) -> tuple[list[Message], int]:
        messages: list[Message] = []
        spent = 0
        while len(messages) < count_max and spent < budget:
            message = take()
            messages.append(message)
            spent += self._price(message)
        return messages, spent

    def _price(self, message: Message) -> int:
        """The cost of paging a message out, in the measure of `Pageable.reduce`."""
        if self._durable and message.envelope.persistent:
            return 1
        return 1 + (len(message.body) >> 10)

    def _drop_bodies(self, messages: list[Message]) -> None:
        self._keep(sorted(messages, key=lambda message: message.position))
        for message in messages:
            message.page_out()

    def _keep(self, messages: list[Message]) -> None:
        """See to it that the store has these messages, given in the order of their positions."""
        durable, has_written = self._durable, self._store.has_written
        unwritten = [
            message
            for message in messages
            # Messages that were paged out and read back are still there.
            if not (durable and message.envelope.persistent) and not has_written(message)
        ]
        if unwritten:
            self._stored = True
            self._store.page(unwritten)

    # Showing

    @property
    def published(self) -> int:
        return self._next_position - self._first_position

    def status(self, now: float) -> BackingQueueStatus:
        self._update_rates(now)
        assert self._rates is not None
        rates = self._rates.per_s
        disk = self._disk
        delta = (disk.start, disk.count, disk.end)
        return BackingQueueStatus(
            mode=self.mode,
            q1=len(self._q1) if self._q1 else 0,
            delta=delta if disk.count else (self._next_position, 0, self._next_position),
            q4=len(self._q4) + len(self._returned.heap),
            len=self.length,
            target_ram_count=self.target_count,
            next_seq_id=self._next_position,
            avg_ingress_rate=rates.ingress,
            avg_egress_rate=rates.egress,
            avg_ack_ingress_rate=rates.ack_ingress,
            avg_ack_egress_rate=rates.ack_egress,
            ram_msg_count=self._ready_in_memory,
            ram_ack_count=len(self._pending) if self._joined else self._pending_count,
            ram_bytes=self.ready_bytes - disk.body_bytes,
            stored_count=self._store.count if self._stored else 0,
            disk_reads=self._store.read_count,
            disk_writes=self._store.written_count,
        )

    def check(self) -> None:
        """Assert everything that holds between two calls."""
        q1 = list(self._q1 or ())
        q4 = list(self._q4)
        disk = self._disk
        returned = [message for _, message in sorted(self._returned.heap)]
        assert self.length == len(returned) + len(q4) + disk.count + len(q1)
        in_memory_bytes = sum(message.body_bytes for message in returned + q4 + q1)
        assert self.ready_bytes == in_memory_bytes + disk.body_bytes
        self._returned.check()
        disk.check()
        assert all(message.body is not PAGED_OUT for message in q4 + q1)

        spans = [(message.position, message.position + 1) for message in returned + q4]
        if disk.count:
            spans.append((disk.start, disk.end))
        else:
            assert self._lazy or not q1
        spans += [(message.position, message.position + 1) for message in q1]
        spans.append((self._next_position, self._next_position))
        assert all(end <= start for (_, end), (start, _) in pairwise(spans)), spans

        assert self._tail is (self._q1 if disk.count or self._lazy else self._q4)
        assert self._stored or not disk.count
        assert all(message.body is not PAGED_OUT for message in self._pending)
        assert self._pending.keys().isdisjoint(returned + q4 + q1)
        assert 0 <= len(self._pending) <= self._pending_count
        assert self._joined or not self._pending
