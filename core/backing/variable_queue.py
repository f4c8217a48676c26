"""A backing queue that moves messages to a disk when memory is short, and back.

Answerable for which messages of a queue are in memory; not for the order of the ready ones
(`ReadyMessages`), how the disk keeps them (the `QueueStore`), or how much memory there is (the
`Pager`). Pending messages stay in memory as objects, but lose their bodies when memory is short.

Persistent messages of a durable queue are written to the store when they arrive, so paging them out
costs nothing. Other messages are written when they are paged out.

Messages may be taken from the middle (`take`). They are pending, stay in the store, and are passed
over when the disk range is read; a requeue puts each back in its place.

A lazy queue aims at keeping no message in memory: a publish goes to q1, which is paged out when it
has grown to a small batch, or at the next tick of the pager (storage_internals.md section c).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import compress, count
from operator import attrgetter

from warren.core.backing.backing_queue import BackingQueueStatus, Listed, Peeked
from warren.core.backing.page_out import choose, drop_bodies, read_back
from warren.core.backing.paging import Pager
from warren.core.backing.queue_rates import QueueRates, Totals
from warren.core.backing.queue_store import Purged, QueueStore
from warren.core.backing.ready_messages import BatchSizes, ReadyMessages
from warren.core.backing.taking import in_order
from warren.core.messages.message import PAGED_OUT, Envelope, Message, new_messages
from warren.core.messages.settlement import PublishConfirms

_is_persistent = attrgetter("persistent")
_body_bytes = attrgetter("body_bytes")

DEFAULT_MODE = "default"
LAZY_MODE = "lazy"

REDUCE_INTERVAL = 1000
"""Publishes between two checks whether a queue has more in memory than its target."""

DEFAULT_SIZES = BatchSizes()


class VariableQueue:
    """Implements `MirroredLevel` and `Pageable`."""

    __slots__ = (
        "_acked",
        "_counts",
        "_durable",
        "_first_position",
        "_gone",
        "_initial_count",
        "_joined",
        "_lazy",
        "_look_at",
        "_next_position",
        "_pager",
        "_pending",
        "_rates",
        "_ready",
        "_returned_again",
        "_store",
        "_stored",
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
        # Delivery counts by position; empty in queues that do not count returns.
        self._counts = store.delivery_counts
        self._pager = pager
        self._durable = store.durable
        self.defers_confirms = store.durable
        self.defers_transient = False
        self.expiring = recovered.expiring
        self.length = self._initial_count = recovered.count
        self.ready_bytes = recovered.body_bytes
        self._first_position = self._next_position = store.first_position()
        # The pending messages that were taken from the middle, by position.
        self._taken: dict[int, Message] = {}
        self._ready = ReadyMessages(store, recovered, self._taken, sizes)
        # Whether the store may have had a message of this queue.
        self._stored = recovered.count > 0
        # Totals, from which all others follow with the length and the positions.
        self._acked = 0
        self._returned_again = 0
        self._gone = 0
        # Once the queue has joined the pager: the pending messages whose bodies are in memory, the
        # youngest last. Before that they are too few to be worth paging out.
        self._pending: dict[Message, None] = {}
        self._joined = False
        self._target_count: int | None = None
        self._rates: QueueRates | None = None
        self._lazy = False
        self._look_at = self._next_position + pager.worth_paging
        self.set_mode(mode)

    @property
    def store(self) -> QueueStore:
        """The store of its messages, for a backing queue of another kind that takes its place."""
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
        self._ready.tail.append(message)
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
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> None:
        messages = self._take_in(envelopes, bodies, expires_at, confirms, first_seq)
        body_bytes = sum(map(len, bodies))
        self._ready.tail.extend(messages)
        self.length += len(messages)
        self.ready_bytes += body_bytes
        if self._next_position > self._look_at:
            self._look(body_bytes)

    def publish_many_delivered(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> list[Message]:
        messages = self._take_in(envelopes, bodies, expires_at, confirms, first_seq)
        if self._joined:
            self._pending.update(dict.fromkeys(messages))
        if self._next_position > self._look_at:
            self._look(0)
        return messages

    def _take_in(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> list[Message]:
        """Give messages their positions, and hand the persistent ones to the store."""
        messages = new_messages(envelopes, bodies, self._next_position, expires_at)
        self._next_position += len(bodies)
        if self._durable:
            persistent = list(map(_is_persistent, envelopes))
            if any(persistent):
                self._stored = True
                kept = list(compress(messages, persistent))
                self._store.write_many(kept, confirms, compress(count(first_seq), persistent))
        return messages

    # Fetching

    def fetch(self) -> Message | None:
        ready = self._ready
        if ready.returned.heap or not ready.q4:
            if ready.bring_head(self._lose) is None:
                return None
            message = ready.take_head()
            if not self._joined:
                self._join_pager_if_large()
        else:
            message = ready.q4.popleft()
        self.length -= 1
        self.ready_bytes -= len(message.body)
        if self._joined:
            self._pending[message] = None
        return message

    def fetch_many(self, limit: int) -> list[Message]:
        count = min(limit, self.length)
        ready = self._ready
        if ready.returned.heap or len(ready.q4) < count:
            messages = ready.take_heads(count, self._lose)
            if not self._joined:
                self._join_pager_if_large()
        else:
            take = ready.q4.popleft
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
            head = self._ready.bring_head(self._lose)
            if head is None or head.expires_at is None or head.expires_at > now:
                break
            message = self.fetch()
            assert message is head
            expired.append(head)
        return expired

    def next_expiry(self) -> float | None:
        return self._ready.next_expiry()

    def _lose(self, count: int, body_bytes: int) -> None:
        self.length -= count
        self.ready_bytes -= body_bytes
        self._gone += count

    # Settling

    def load(self, messages: Iterable[Message]) -> list[Message]:
        loaded: list[Message] = []
        for message in messages:
            if message.body is PAGED_OUT:
                if not read_back(self._store, message):
                    continue
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
        self._ready.returned.add(messages)
        if not self._joined:
            self._join_pager_if_large()

    def part_from_holders(self) -> None:
        """Replace ready messages by copies if channels still hold them from before."""
        self._ready.returned.part_from_holders()

    def _forget_pending(self, messages: Iterable[Message]) -> None:
        forget = self._pending.pop
        for message in messages:
            forget(message, None)

    # Taking from the middle

    def take(self, positions: Sequence[int]) -> list[Message]:
        returned, middle = self._ready.take(sorted(positions), self._lose)
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
            elif self._ready.put_back(message):
                self._stored = True
                self._pending.pop(message, None)
                self.length += 1
                self.ready_bytes += message.body_bytes
                self._returned_again += 1
            else:
                self._gone += 1
        return others

    # Ending

    def purge(self) -> int:
        count = self.length
        if self._counts:
            self._forget_counts()
        if self._stored and count:
            returned = self._ready.returned
            if returned.heap:
                self._store.remove(Purged(returned.take_all()))
            # Messages that were never delivered are behind all pending ones, except those taken.
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
        ready = [position for position, _ in self._ready.returned.heap]
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
        """The node stops; no further call may follow."""
        self._leave_pager()
        self._store.close(self.delivered_below)

    def _forget_ready(self) -> None:
        self._gone += self.length
        self.length = 0
        self.ready_bytes = 0
        for messages in self._ready.clear():
            self._pager.free(messages)

    @property
    def end_at_start(self) -> int:
        return self._store.end_at_start

    @property
    def next_position(self) -> int:
        return self._next_position

    @property
    def undelivered_from(self) -> int:
        first = self._ready.undelivered_from
        return self._next_position if first is None else first

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

    # For mirrors

    def peek(self, start: int, count_max: int, bytes_max: int) -> Peeked:
        """As the interface says; returned messages whose bodies are lost are passed over."""
        return self._ready.peek(start, self._next_position, count_max, bytes_max, self._lose)

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        return self._ready.list_positions(start, min(end, self._next_position), count_max)

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
        self._ready.mark_delivered(counted, below)

    # Modes

    @property
    def mode(self) -> str:
        return LAZY_MODE if self._lazy else DEFAULT_MODE

    def set_mode(self, mode: str) -> None:
        """`default` or `lazy`. When a queue becomes lazy, its messages are paged out bit by bit."""
        lazy = mode == LAZY_MODE
        if lazy == self._lazy:
            return
        self._lazy = lazy
        self._ready.set_lazy(lazy)
        if lazy:
            self._look_at = 0
            if self.in_memory:
                self._join_pager()
                self._pager.ask(self)
        else:
            self._look_at = self._next_position + self._pager.worth_paging

    # With the pager

    @property
    def in_memory(self) -> int:
        """The number of messages whose bodies are in memory and can be paged out."""
        return self._ready.in_memory + len(self._pending)

    @property
    def _pending_count(self) -> int:
        """The number of pending messages, wherever their bodies are."""
        return self._initial_count + self.published - self._gone - self._acked - self.length

    @property
    def target_count(self) -> int | None:
        """The number of messages that may be in memory; None is without limit."""
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
        """Check the size, every `REDUCE_INTERVAL` publishes; in a lazy queue at each publish."""
        if self._lazy:
            self._stored = True
            self._ready.lazy_publishes(body_bytes)
            if not self._joined:
                self._join_pager()
        elif not self._joined:
            self._look_at = self._next_position + self._pager.worth_paging
            self._join_pager_if_large()
        else:
            self._look_at = self._next_position + REDUCE_INTERVAL
            if self.excess >= REDUCE_INTERVAL:
                self._pager.ask(self)

    def _join_pager_if_large(self) -> None:
        if self._ready.in_memory + self._pending_count >= self._pager.worth_paging:
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
        ingress = self.published + self._returned_again
        egress = self._initial_count + ingress - self._gone - self.length
        return Totals(ingress, egress, egress, self._acked)

    # Paging out

    def reduce(self, budget: int) -> int:
        self._stored = True
        parts = [self._ready.page_out, self._page_pending]
        if self._rates is not None and self._rates.acks_grow_faster:
            parts.reverse()
        spent = 0
        for page in parts:
            if spent < budget:
                spent += page(self.excess, budget - spent)
        return spent

    def _page_pending(self, count_max: int, budget: int) -> int:
        """Let go of the bodies of pending messages, the youngest first."""
        pending = self._pending
        messages, spent = choose(
            self._store, lambda: pending.popitem()[0], min(count_max, len(pending)), budget
        )
        drop_bodies(self._store, messages)
        return spent

    # Showing

    @property
    def published(self) -> int:
        return self._next_position - self._first_position

    def status(self, now: float) -> BackingQueueStatus:
        self._update_rates(now)
        assert self._rates is not None
        rates = self._rates.per_s
        ready, disk = self._ready, self._ready.disk
        delta = (disk.start, disk.count, disk.end)
        return BackingQueueStatus(
            mode=self.mode,
            q1=len(ready.q1) if ready.q1 else 0,
            delta=delta if disk.count else (self._next_position, 0, self._next_position),
            q4=len(ready.q4) + len(ready.returned.heap),
            len=self.length,
            target_ram_count=self.target_count,
            next_seq_id=self._next_position,
            avg_ingress_rate=rates.ingress,
            avg_egress_rate=rates.egress,
            avg_ack_ingress_rate=rates.ack_ingress,
            avg_ack_egress_rate=rates.ack_egress,
            ram_msg_count=ready.in_memory,
            ram_ack_count=len(self._pending) if self._joined else self._pending_count,
            ram_bytes=self.ready_bytes - disk.body_bytes,
            persistent=self._store.persistent if self._stored else (0, 0),
            disk_reads=self._store.read_count,
            disk_writes=self._store.written_count,
        )

    def check(self) -> None:
        """Assert everything that holds between two calls."""
        ready, disk = self._ready, self._ready.disk
        ready.check(self._next_position)
        whole = [*(message for _, message in ready.returned.heap), *ready.q4, *(ready.q1 or ())]
        assert self.length == ready.count
        assert self.ready_bytes == sum(map(_body_bytes, whole)) + disk.body_bytes
        assert self._stored or not disk.count
        assert all(message.body is not PAGED_OUT for message in self._pending)
        assert self._pending.keys().isdisjoint(whole)
        assert 0 <= len(self._pending) <= self._pending_count
        assert self._joined or not self._pending
