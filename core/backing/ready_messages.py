"""The ready messages of a queue, in memory and on the disk, and their order.

From head to tail, ordered by position, they are

    returned    messages that came back; their bodies may be on the disk only
    q4          messages in memory
    disk range  positions of messages that only the store knows
    q1          messages in memory

Whatever came back was delivered once, and what never was delivered is always behind it. While
the disk range is empty a publish goes to q4, else to q1. A fetch that finds q4 empty reads ahead
from the disk range; when that is exhausted, q1 joins q4. Paging out extends the disk range into
q1, from its front, and then into q4, from its tail: these messages were never delivered, so the
store can make them anew and the objects are forgotten. Returned messages keep their objects and
lose their bodies only.

Messages that the store has lost are noticed when they should be read. The reader passes `lose`,
which is told how many messages, and how many octets of bodies, the queue has less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from warren.core.backing.backing_queue import Listed, Peeked
from warren.core.backing.disk_range import DiskRange, Lose
from warren.core.backing.page_out import choose, drop_bodies, keep, price, read_back
from warren.core.backing.paging import SLICE
from warren.core.backing.peeking import FAR, Ahead, list_positions, peek
from warren.core.backing.queue_store import QueueStore, Recovered
from warren.core.backing.returned_messages import ReturnedMessages
from warren.core.backing.taking import put_into_run, take_from_run
from warren.core.messages.message import PAGED_OUT, Message, mark_delivered


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


class ReadyMessages:
    """The four parts. The queue that owns them counts the messages; `taken` are those that it has
    taken from the middle, by position."""

    __slots__ = (
        "_ahead",
        "_lazy",
        "_sizes",
        "_store",
        "_unpaged_bytes",
        "disk",
        "q1",
        "q4",
        "returned",
        "tail",
    )

    def __init__(
        self,
        store: QueueStore,
        recovered: Recovered,
        taken: Mapping[int, Message],
        sizes: BatchSizes,
    ) -> None:
        self._store = store
        self._sizes = sizes
        self._lazy = False
        # Octets of bodies that came to q1 of a lazy queue and have not been paged out.
        self._unpaged_bytes = 0
        self.returned = ReturnedMessages()
        self.q4: deque[Message] = deque()
        self.disk = DiskRange(store, recovered, taken)
        # An empty deque takes 600 bytes, and most queues never have a q1.
        self.q1: deque[Message] | None = None
        # q4 or q1: where a publish goes.
        self.tail = self.q4
        # For readers that look into the middle of a long queue.
        self._ahead: Ahead | None = None
        self._find_tail()

    @property
    def count(self) -> int:
        """How many messages there are."""
        q1 = len(self.q1) if self.q1 else 0
        return len(self.returned.heap) + len(self.q4) + self.disk.count + q1

    @property
    def in_memory(self) -> int:
        """How many messages have their bodies in memory."""
        q1 = len(self.q1) if self.q1 else 0
        return len(self.q4) + q1 + self.returned.whole

    @property
    def undelivered_from(self) -> int | None:
        """The position of the first message that was never delivered; None if there is none."""
        if self.q4:
            return self.q4[0].position
        if self.disk.count:
            return self.disk.start
        return self.q1[0].position if self.q1 else None

    # Where a publish goes

    def set_lazy(self, lazy: bool) -> None:
        """Whether publishes go to q1 in any case, to be paged out."""
        self._lazy = lazy
        if lazy:
            self._find_tail()
        elif not self.disk.count:
            self._join_q1()

    def _find_tail(self) -> None:
        """Choose the tail: the disk range has become empty or not, or the mode has changed."""
        if self.disk.count or self._lazy:
            if self.q1 is None:
                self.q1 = deque()
            self.tail = self.q1
        else:
            assert not self.q1
            self.q1 = None
            self.tail = self.q4

    def _join_q1(self) -> None:
        """The disk range is empty: q1 joins q4, at the cost of the shorter."""
        q1 = self.q1
        if q1:
            if len(self.q4) < len(q1):
                q1.extendleft(reversed(self.q4))
                self.q4.clear()
                self.q4, self.q1 = q1, self.q4
            else:
                self.q4.extend(q1)
                q1.clear()
            self._unpaged_bytes = 0
        self._find_tail()

    # The head

    def next_expiry(self) -> float | None:
        """Return when the first message expires; None if it does not."""
        if self.returned.heap:
            return self.returned.heap[0][1].expires_at
        if self.q4:
            return self.q4[0].expires_at
        if self.disk.count:
            return self.disk.next_expiry()
        return self.q1[0].expires_at if self.q1 else None

    def bring_head(self, lose: Lose) -> Message | None:
        """Bring the first message to memory and return it; None when there is none left.

        On the way it drops messages that are lost.
        """
        returned = self.returned.bring_head(self._store, lose)
        if returned is not None:
            return returned
        while not self.q4 and self.disk.count:
            self._read_ahead(lose)
        if not self.q4 and self.q1:
            self._join_q1()
        return self.q4[0] if self.q4 else None

    def take_head(self) -> Message:
        """Remove and return the message that `bring_head` has brought."""
        if self.returned.heap:
            return self.returned.take_head()
        return self.q4.popleft()

    def take_heads(self, count: int, lose: Lose) -> list[Message]:
        """Remove and return the first messages, wherever they are: up to `count`."""
        messages: list[Message] = []
        while len(messages) < count:
            if self.returned.heap:
                wanted = count - len(messages)
                messages += self.returned.take_heads(wanted, self._store, lose)
            elif self.bring_head(lose) is not None:
                take = self.q4.popleft
                run = min(count - len(messages), len(self.q4))
                messages += [take() for _ in range(run)]
            else:
                break
        return messages

    def _read_ahead(self, lose: Lose) -> None:
        """Bring the first messages of the disk range to q4, which is empty."""
        sizes = self._sizes
        if self._lazy:
            count_max, bytes_max = sizes.lazy_read_count, sizes.lazy_read_bytes
        else:
            count_max, bytes_max = sizes.read_count, sizes.read_bytes
        self.q4.extend(self.disk.read_ahead(count_max, bytes_max, lose))
        if not self.disk.count:
            self._join_q1()

    # The middle

    def take(self, wanted: Sequence[int], lose: Lose) -> tuple[list[Message], list[Message]]:
        """Remove the messages with these positions, given in order. Returns those that had come
        back, which may be without their bodies, and the others."""
        returned = self.returned.take(wanted)
        middle = take_from_run(self.q4, wanted)
        if self.q1:
            middle += take_from_run(self.q1, wanted)
        if self.disk.count:
            # Last, because q1 joins q4 when nothing is left on the disk.
            middle += self.disk.take(wanted, lose)
            if not self.disk.count:
                self._join_q1()
        if middle:
            self._ahead = None
        return returned, middle

    def put_back(self, message: Message) -> bool:
        """Make a message that was taken from the middle ready there, whatever became of the
        others. False if its body is lost."""
        if self.disk.covers(message.position):
            keep(self._store, (message,))
            self.disk.put_back(message)
            return True
        if not read_back(self._store, message):
            return False
        self._ahead = None
        put_into_run(self._run_at(message.position), message)
        return True

    def _run_at(self, position: int) -> deque[Message]:
        """The run in memory that a position belongs to."""
        q1 = self.q1
        if q1 is None:
            return self.q4
        if self.disk.count:
            return q1 if position >= self.disk.end else self.q4
        return q1 if not self.q4 or position > self.q4[-1].position else self.q4

    def mark_delivered(self, start: int, below: int) -> None:
        """Mark the messages between these positions as redelivered, where they are in memory."""
        mark_delivered(self.q4, start, below)
        mark_delivered(self.q1 or (), start, below)
        first = self.undelivered_from
        if first is None or first > start:
            for _, message in self.returned.heap:
                message.redelivered |= message.position < below

    def peek(self, start: int, end: int, count_max: int, bytes_max: int, lose: Lose) -> Peeked:
        """As `BackingQueue.peek`, up to `end`, the position that the next message gets."""
        q1 = self.q1 if self.q1 is not None else ()
        disk = self.disk
        if not disk.count:
            heap, runs = self.returned.heap, (self.q4, q1)
            if self._ahead is None and len(self.q4) > 2 * FAR:
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
            self.returned.heap,
            (self.q4,),
            start,
            disk.start,
            count_max,
            bytes_max,
            self._with_body,
        )
        if head.messages:
            return head
        peeked = disk.peek(start, count_max, bytes_max, lose)
        if not disk.count:
            # All messages of the disk range are lost.
            self._join_q1()
        return peeked

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        """As `BackingQueue.list_positions`; `end` is not behind the last message."""
        durable, heap, disk = self._store.durable, self.returned.heap, self.disk
        if not disk.count or start >= disk.end:
            runs = (self.q4, self.q1 or ())
            return list_positions(heap, runs, start, end, count_max, durable)
        if start < disk.start:
            head_end = min(end, disk.start)
            head = list_positions(heap, (self.q4,), start, head_end, count_max, durable)
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

    # Paging out

    def lazy_publishes(self, body_bytes: int) -> None:
        """Publishes came to a lazy queue: page q1 out when it has grown to a batch."""
        assert self.q1 is not None
        self._unpaged_bytes += body_bytes
        count, sizes = len(self.q1), self._sizes
        if count >= sizes.lazy_write_count or self._unpaged_bytes >= sizes.lazy_write_bytes:
            self._page_q1(count, SLICE)
            self._unpaged_bytes = 0

    def page_out(self, count_max: int, budget: int) -> int:
        """Page out messages, beginning with those delivered last. Returns the cost."""
        wanted = self.in_memory - count_max
        spent = self._page_q1(count_max, budget)
        if spent < budget:
            spent += self._page_q4(self.in_memory - wanted, budget - spent)
        if spent < budget:
            spent += self._page_returned(self.in_memory - wanted, budget - spent)
        return spent

    def _page_q1(self, count_max: int, budget: int) -> int:
        """Extend the disk range at its end."""
        q1 = self.q1
        if not q1:
            return 0
        messages, spent = choose(self._store, q1.popleft, min(count_max, len(q1)), budget)
        if messages:
            keep(self._store, messages)
            self.disk.append(messages)
            self._disk_grew()
        return spent

    def _page_q4(self, count_max: int, budget: int) -> int:
        """Extend the disk range at its start."""
        q4 = self.q4
        messages, spent = choose(self._store, q4.pop, min(count_max, len(q4)), budget)
        if messages:
            messages.reverse()
            keep(self._store, messages)
            self.disk.prepend(messages)
            self._disk_grew()
        return spent

    def _disk_grew(self) -> None:
        # Messages that come back from disk are other objects.
        self._ahead = None
        self._find_tail()

    def _page_returned(self, count_max: int, budget: int) -> int:
        """Let go of the bodies of returned messages, those at the end of the heap first."""
        store = self._store
        chosen = self.returned.choose(count_max, budget, lambda message: price(store, message))
        drop_bodies(store, chosen.messages)
        return chosen.spent

    # Ending

    def clear(self) -> list[deque[Message] | list[tuple[int, Message]]]:
        """Forget all messages. Returns what had them in memory: to free very many takes time."""
        cleared: list[deque[Message] | list[tuple[int, Message]]] = [self.returned.take_all()]
        cleared += [run for run in (self.q4, self.q1) if run]
        self.q4 = deque()
        self.q1 = None
        self.disk.clear()
        self._ahead = None
        self._unpaged_bytes = 0
        self._find_tail()
        return cleared

    def check(self, next_position: int) -> None:
        """Assert everything that holds between two calls of the queue."""
        q1 = list(self.q1 or ())
        q4 = list(self.q4)
        disk = self.disk
        returned = [message for _, message in sorted(self.returned.heap)]
        self.returned.check()
        disk.check()
        assert all(message.body is not PAGED_OUT for message in q4 + q1)

        spans = [(message.position, message.position + 1) for message in returned + q4]
        if disk.count:
            spans.append((disk.start, disk.end))
        else:
            assert self._lazy or not q1
        spans += [(message.position, message.position + 1) for message in q1]
        spans.append((next_position, next_position))
        assert all(end <= start for (_, end), (start, _) in pairwise(spans)), spans
        assert self.tail is (self.q1 if disk.count or self._lazy else self.q4)
