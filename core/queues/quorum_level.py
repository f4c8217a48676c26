"""The level of a quorum queue: returned messages, and how often each was returned.

This level wraps a backing queue, which keeps the messages. Returned messages stay pending there and
wait here, in the order of their returns, in two lines:

    first   read before everything else: messages that a channel left behind, and with a delivery
            limit all returned messages
    last    read after the messages that were ready when they were returned, and before those
            published since

So all ready messages of the backing queue were never delivered. Their positions are above those of
all returned messages, and they are handed out in order.

`counts` has, by position, how often a message was returned; it has no entry for one that never was.
`dead_marks` has the reasons why messages died that stay until their dead letters are safe. The
store keeps both as durably as acknowledgements, but not the order of returns. After a restart all
messages are where they were published; the queue then takes out the dead ones.

Given the same calls in the same order, two levels do the same. `requeue` puts messages back that
did not reach their consumer, and counts nothing; `give_back` is a return.

Every message is kept as if it were persistent, whatever its delivery mode says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import msgspec

from warren.core.backing.backing_queue import (
    BackingQueue,
    BackingQueueStatus,
    Listed,
    Peeked,
)
from warren.core.backing.handing_over import HasStore
from warren.core.backing.peeking import first_positions, list_positions, peek
from warren.core.backing.queue_store import QueueStore
from warren.core.backing.taking import in_order, without_holder
from warren.core.messages.message import NO_HOLDER, Envelope, Message
from warren.core.messages.settlement import PublishConfirms
from warren.core.queues.redelivery import CountingQueue

WALK = 1000
"""Positions that are passed in one go on the way to a message in the middle of a queue."""


class LastingEnvelopes:
    """Makes persistent envelopes of those that are not, with the same content header.

    It remembers the last one: copies of one message for several queues share an envelope, and so
    the message is on disk once.
    """

    __slots__ = ("_given", "_made")

    def __init__(self) -> None:
        self._given: Envelope | None = None
        self._made: Envelope | None = None

    def of(self, envelope: Envelope) -> Envelope:
        if envelope.persistent:
            return envelope
        made = self._made
        if made is None or envelope is not self._given:
            made = self._made = msgspec.structs.replace(envelope, persistent=True)
            self._given = envelope
        return made


class _Behind(NamedTuple):
    """A returned message, how many messages had become ready in the queue by then, and the position
    of the next one."""

    entered: int
    message: Message
    next_position: int


class QuorumLevel:
    """Implements `MirroredLevel` around a backing queue."""

    __slots__ = (
        "_back",
        "_entered",
        "_first",
        "_inner",
        "_last",
        "_lasting",
        "_returned_bytes",
        "counts",
        "dead_marks",
        "defers_confirms",
        "defers_transient",
        "expiring",
    )

    def __init__(self, inner: CountingQueue, lasting: LastingEnvelopes) -> None:
        self._inner = inner
        self._lasting = lasting
        self._first: deque[Message] = deque()
        self._last: deque[_Behind] = deque()
        # All of these, by position.
        self._back: dict[int, Message] = {}
        self._returned_bytes = 0
        # Messages that became ready in the inner queue since the start, those found then included.
        self._entered = inner.length
        self.counts = inner.delivery_counts
        self.dead_marks = inner.dead_marks
        self.defers_confirms = self.defers_transient = inner.defers_confirms
        self.expiring = inner.expiring

    @property
    def length(self) -> int:
        return self._inner.length + len(self._first) + len(self._last)

    @property
    def ready_bytes(self) -> int:
        return self._inner.ready_bytes + self._returned_bytes

    @property
    def published(self) -> int:
        return self._inner.published

    @property
    def end_at_start(self) -> int:
        return self._inner.end_at_start

    @property
    def next_position(self) -> int:
        return self._inner.next_position

    @property
    def undelivered_from(self) -> int:
        return self._inner.undelivered_from

    @property
    def delivered_below(self) -> int:
        return self._inner.delivered_below

    @property
    def store(self) -> QueueStore | None:
        return cast(HasStore, self._inner).store

    def status(self, now: float) -> BackingQueueStatus:
        status = self._inner.status(now)
        returned = len(self._first) + len(self._last)
        return replace(status, len=status.len + returned, q4=status.q4 + returned)

    # Publishing

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> None:
        self._entered += 1
        lasting = self._lasting.of(envelope)
        self._inner.publish(lasting, body, expires_at, confirms, publish_seq)

    def publish_delivered(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Message:
        lasting = self._lasting.of(envelope)
        return self._inner.publish_delivered(lasting, body, expires_at, confirms, publish_seq)

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> None:
        self._entered += len(bodies)
        lasting = list(map(self._lasting.of, envelopes))
        self._inner.publish_many(lasting, bodies, expires_at, confirms, first_seq)

    def publish_many_delivered(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> list[Message]:
        lasting = list(map(self._lasting.of, envelopes))
        return self._inner.publish_many_delivered(lasting, bodies, expires_at, confirms, first_seq)

    # Fetching

    def fetch(self) -> Message | None:
        if not self._first and not self._last:
            return self._inner.fetch()
        messages = self.fetch_many(1)
        return messages[0] if messages else None

    def fetch_many(self, limit: int) -> list[Message]:
        if not self._first and not self._last:
            return self._inner.fetch_many(limit)
        messages: list[Message] = []
        while len(messages) < limit:
            wanted = limit - len(messages)
            if self._first:
                messages += self._loaded(self._first.popleft())
            elif not self._last:
                messages += self._inner.fetch_many(wanted)
                break
            elif (ahead := self._ahead_of_last()) > 0:
                # Fewer come where the store has lost some: then fewer are ahead, too.
                messages += self._inner.fetch_many(min(wanted, ahead))
            else:
                messages += self._loaded(self._last.popleft().message)
        return messages

    def _ahead_of_last(self) -> int:
        """The number of messages of the inner queue that come before the first of `last`."""
        left = self._entered - self._inner.length
        return min(self._last[0].entered - left, self._inner.length)

    def _loaded(self, message: Message) -> list[Message]:
        """Load a returned message that is handed out again; return an empty list if its body is
        lost."""
        del self._back[message.position]
        self._returned_bytes -= message.body_bytes
        loaded = self._inner.load((message,))
        if not loaded:
            self.ack((message,))
        return loaded

    def fetch_to_drop(self) -> Message | None:
        return self.fetch()

    def fetch_expired(self, now: float, limit: int) -> list[Message]:
        expired: list[Message] = []
        while len(expired) < limit:
            expires_at = self.next_expiry()
            if expires_at is None or expires_at > now:
                break
            if self._returned_head() is None:
                wanted = limit - len(expired)
                if self._last:
                    wanted = min(wanted, self._ahead_of_last())
                found = self._inner.fetch_expired(now, wanted)
                if not found:
                    break
                expired += found
            else:
                expired += self.fetch_many(1)
        return expired

    def next_expiry(self) -> float | None:
        head = self._returned_head()
        return self._inner.next_expiry() if head is None else head.expires_at

    def _returned_head(self) -> Message | None:
        """The head of the queue if that is a returned message."""
        if self._first:
            return self._first[0]
        if self._last and self._ahead_of_last() <= 0:
            return self._last[0].message
        return None

    def load(self, messages: Iterable[Message]) -> list[Message]:
        return self._inner.load(messages)

    def part_from_holders(self) -> None:
        """Put a copy in the place of each returned message that a channel still has from the time
        when this node led the queue before: the verdicts on these count no more."""
        back = self._back
        held = [message for message in back.values() if message.holder is not NO_HOLDER]
        back.update({one.position: without_holder(one) for one in held})
        self._first = deque([back[message.position] for message in self._first])
        self._last = deque(
            [behind._replace(message=back[behind.message.position]) for behind in self._last]
        )

    # Settling

    def ack(self, messages: Collection[Message]) -> None:
        self._inner.ack(messages)
        counts = self.counts
        if counts:
            for message in messages:
                counts.pop(message.position, None)
        marks = self.dead_marks
        if marks:
            for message in messages:
                marks.pop(message.position, None)

    def mark_dead(self, messages: Collection[Message], why: int) -> None:
        """Remember why these pending messages died, so that a restart does not deliver them."""
        self.note_dead([message.position for message in messages], why)

    def note_dead(self, positions: Collection[int], why: int) -> None:
        """Note messages as dead, by their positions."""
        self.dead_marks.update(dict.fromkeys(positions, why))
        self._inner.counts_changed(positions)

    def note_count(self, position: int, times: int) -> None:
        """Note how often a message was returned."""
        self.counts[position] = times
        self._inner.counts_changed((position,))

    def count_returns(self, positions: Collection[int]) -> None:
        """Note that each of these messages was returned once more."""
        counts = self.counts
        for position in positions:
            counts[position] = counts.get(position, 0) + 1
        self._inner.counts_changed(positions)

    def requeue(self, messages: Iterable[Message]) -> None:
        """Put messages back that did not reach their consumer: they come first, and no return is
        counted."""
        messages = list(messages)
        beyond = self._inner.undelivered_from
        middle = [message for message in messages if message.position > beyond]
        if middle:
            # These were taken from among the messages that were never delivered.
            self._inner.requeue(middle)
            self._count_entered([message.position for message in middle], 1)
            messages = [message for message in messages if message.position <= beyond]
        self._first.extendleft(reversed(messages))
        self._are_back(messages)

    def take(self, positions: Sequence[int]) -> list[Message]:
        back = self._back
        returned = [back.pop(position) for position in positions if position in back]
        if returned:
            self._first = deque([one for one in self._first if one.position in back])
            self._last = deque([one for one in self._last if one.message.position in back])
            self._returned_bytes -= sum([message.body_bytes for message in returned])
        loaded = self._inner.load(returned)
        if len(loaded) < len(returned):
            there = {message.position for message in loaded}
            self.ack([message for message in returned if message.position not in there])
        taken = self._inner.take(positions)
        self._count_entered([message.position for message in taken], -1)
        return in_order(loaded + taken)

    def _count_entered(self, positions: Collection[int], by: int) -> None:
        """Messages were taken from the inner queue (`by` -1), or put back (1): for each returned
        message, correct how many come before it, as if they had never been there, or always."""
        if not positions:
            return
        self._entered += by * len(positions)
        self._last = deque(
            [
                behind._replace(
                    entered=behind.entered
                    + by * sum([position < behind.next_position for position in positions])
                )
                for behind in self._last
            ]
        )

    def give_back(self, messages: Collection[Message], *, last: bool) -> None:
        """Count a return of each message, and make it ready again: behind the messages that were
        returned before, or behind all that are ready."""
        self.count_returns([message.position for message in messages])
        if last:
            entered, next_position = self._entered, self.next_position
            self._last.extend([_Behind(entered, one, next_position) for one in messages])
        else:
            self._first.extend(messages)
        self._are_back(messages)

    def _are_back(self, messages: Collection[Message]) -> None:
        self._back.update([(message.position, message) for message in messages])
        self._returned_bytes += sum([message.body_bytes for message in messages])

    # Ending

    def purge(self) -> int:
        count = self.length
        self.ack(self.returned())
        self._forget_returned()
        undelivered_from = self._inner.undelivered_from
        for known in (self.counts, self.dead_marks):
            for position in [at for at in known if at >= undelivered_from]:
                # These messages are from before the node was started.
                del known[position]
        self._inner.purge()
        return count

    def set_mode(self, mode: str) -> None:
        self._inner.set_mode(mode)

    def stop(self) -> None:
        self._inner.stop()

    def delete(self) -> None:
        self._forget_returned()
        self.counts.clear()
        self.dead_marks.clear()
        self._inner.delete()

    def returned(self) -> list[Message]:
        """The messages that were returned and are ready."""
        return list(self._back.values())

    def _forget_returned(self) -> None:
        self._first.clear()
        self._last.clear()
        self._back.clear()
        self._returned_bytes = 0

    # For copies at other nodes

    def peek(self, start: int, count_max: int, bytes_max: int) -> Peeked:
        beyond = self._inner.undelivered_from
        while start < beyond:
            back, end = self._back_from(start, beyond, count_max)
            found = peek(back, (), start, end, count_max, bytes_max, self._with_body)
            if found.messages:
                return found
            start = found.next_position
        return self._inner.peek(start, count_max, bytes_max)

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        beyond = self._inner.undelivered_from
        if start < beyond:
            back, here = self._back_from(start, min(end, beyond), count_max)
            found = list_positions(back, (), start, here, count_max, self.defers_confirms)
            if found.positions or here == end:
                return found
        return self._inner.list_positions(max(start, beyond), end, count_max)

    def _back_from(self, start: int, end: int, count: int) -> tuple[list[tuple[int, Message]], int]:
        """Return the first `count` returned messages from a position on, and up to which position
        these are all."""
        positions = first_positions(self._back, start, end, count + 1)
        if len(positions) > count:
            end = positions.pop()
        return [(position, self._back[position]) for position in positions], end

    def _with_body(self, message: Message) -> Message | None:
        loaded = self._inner.load((message,))
        return loaded[0] if loaded else None

    def skip_to(self, position: int) -> None:
        self._inner.skip_to(position)

    def count_as_delivered(self, below: int) -> None:
        for message in self.returned():
            if message.position < below:
                message.redelivered = True
        self._inner.count_as_delivered(below)

    # For operators

    def look(self, place: int) -> Message | None:
        """The ready message at this place, the head being at 0; it stays where it is."""
        if place < len(self._first):
            return self._with_body(self._first[place])
        place -= len(self._first)
        left = self._entered - self._inner.length
        ahead = 0
        for behind in self._last:
            at = ahead + max(0, min(behind.entered - left, self._inner.length))
            if at == place:
                return self._with_body(behind.message)
            if at > place:
                break
            ahead += 1
        return self._look_inside(place - ahead)

    def _look_inside(self, place: int) -> Message | None:
        inner = self._inner
        start = 0
        while True:
            listed = inner.list_positions(start, inner.next_position, WALK)
            if place < len(listed.positions):
                messages = inner.peek(listed.positions[place], 1, 1).messages
                return messages[0] if messages else None
            place -= len(listed.positions)
            if listed.next_position >= inner.next_position:
                return None
            start = listed.next_position


def quorum_level(backing: BackingQueue, lasting: LastingEnvelopes) -> QuorumLevel:
    """The level around a new backing queue, or the backing queue itself where a copy has one."""
    if isinstance(backing, QuorumLevel):
        return backing
    # All that keep messages can keep counts.
    return QuorumLevel(cast(CountingQueue, backing), lasting)
