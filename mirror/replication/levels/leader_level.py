"""The backing queue of a mirrored queue at its leader: it wraps another one, and writes down all
that this does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, cast

from warren.core.backing.backing_queue import (
    BackingQueueStatus,
    Listed,
    MirroredLevel,
    OneByOne,
    Peeked,
)
from warren.core.backing.handing_over import Followed, HasStore
from warren.core.backing.queue_store import QueueStore
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms
from warren.core.queues.redelivery import CountingQueue
from warren.core.scheduling.waiting import Event
from warren.mirror.replication.levels.hand_outs import HandOuts
from warren.mirror.replication.levels.instructions import Op


class KnownMirrors(Protocol):
    """The knowledge of a leader about its mirrors."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether a mirror has all messages, by the definition."""
        ...


class InstructionLog(Protocol):
    """The instructions of a queue, which its levels write; it knows when mirrors have them."""

    again: bool
    """Whether another leader may have delivered the messages that are published now."""

    @property
    def confirmation(self) -> KnownMirrors: ...

    def publishing_again(self) -> AbstractContextManager[None]:
        """Within this, another leader may have delivered the published messages already."""
        ...

    def publish(
        self,
        level: int,
        position: int,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        delivered: bool,
    ) -> int:
        """Write down a publish; return the number of its batch."""
        ...

    def publish_many(
        self,
        level: int,
        first: int,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        delivered: bool,
    ) -> int:
        """`publish` messages at positions from `first` on, which all expire at the same time."""
        ...

    def without_confirms(self, level: int, position: int, batch: int, count: int = 1) -> None:
        """Note that the publishers of messages from this position on wait for no confirm."""
        ...

    def hand_out(self, level: int, below: int) -> None: ...

    def withhold(self) -> None: ...

    def run(self, op: Op, level: int, position: int) -> None: ...

    def runs(self, op: Op, level: int, positions: Sequence[int]) -> None: ...

    def note(self, op: Op, level: int, position: int, number: int) -> None: ...

    def purge(self, level: int) -> None: ...

    def flush_soon(self) -> None:
        """Send mirrors the instructions when the turn is over."""
        ...

    def barrier(self, done: Callable[[bool], None]) -> None:
        """Call back when all instructions so far are as safe as confirmed publishes are; with False
        if another node leads by then."""
        ...

    def confirm(
        self,
        confirms: PublishConfirms,
        first_seq: int,
        local: bool,
        batch: int,
        count: int = 1,
    ) -> tuple[PublishConfirms | None, int]:
        """Settle `count` publishes, numbered from `first_seq` on, when every mirror has the batch;
        if `local`, the store too.

        Returns the object to which the store must answer, and the number of the first publish
        there.
        """
        ...


class LeaderLevel(OneByOne, Followed):
    """A `BackingQueue` around another one (`inner`). `pending` are the pending messages.

    `again` are the positions of messages that count as delivered though they are not below the
    announced position (`hand_outs`), until they are acknowledged. `taken` are the positions of
    pending messages that were taken from the middle.
    """

    defers_confirms = True
    defers_transient = True

    __slots__ = (
        "_fetched_below",
        "_journal",
        "again",
        "hand_outs",
        "inner",
        "level",
        "pending",
        "taken",
    )

    def __init__(self, inner: MirroredLevel, level: int, journal: InstructionLog) -> None:
        self.inner = inner
        self.level = level
        self.pending: dict[int, Message] = {}
        self.again: set[int] = set()
        self.taken: set[int] = set()
        self.hand_outs = HandOuts(level, inner.delivered_below, journal)
        self._journal = journal
        # No message at this position or later was handed out.
        self._fetched_below = inner.delivered_below

    @property
    def length(self) -> int:
        return self.inner.length

    @property
    def store(self) -> QueueStore | None:
        return cast(HasStore, self.inner).store

    @property
    def expiring(self) -> bool:
        return self.inner.expiring

    @property
    def ready_bytes(self) -> int:
        return self.inner.ready_bytes

    @property
    def published(self) -> int:
        return self.inner.published

    @property
    def next_position(self) -> int:
        return self.inner.next_position

    @property
    def undelivered_from(self) -> int:
        return self.inner.undelivered_from

    @property
    def delivered_below(self) -> int:
        """The position that the storage is told at a stop (`unwrapped`)."""
        return max(self.inner.delivered_below, self._again_below)

    def status(self, now: float) -> BackingQueueStatus:
        return self.inner.status(now)

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> None:
        inner, journal = self.inner, self._journal
        position = inner.next_position
        if journal.again:
            self.again.add(position)
            journal.run(Op.AGAIN, self.level, position)
        batch = journal.publish(self.level, position, envelope, body, expires_at, False)
        if confirms is None:
            journal.without_confirms(self.level, position, batch)
        else:
            local = inner.defers_confirms if envelope.persistent else inner.defers_transient
            confirms, publish_seq = journal.confirm(confirms, publish_seq, local, batch)
        inner.publish(envelope, body, expires_at, confirms, publish_seq)

    def publish_delivered(
        self,
        envelope: Envelope,
        body: bytes,
        expires_at: float | None,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Message:
        inner, journal = self.inner, self._journal
        position = inner.next_position
        if position >= self.hand_outs.renew_at:
            self.hand_outs.announce(position + 1)
        batch = journal.publish(self.level, position, envelope, body, expires_at, True)
        if confirms is None:
            journal.without_confirms(self.level, position, batch)
        else:
            local = inner.defers_confirms if envelope.persistent else inner.defers_transient
            confirms, publish_seq = journal.confirm(confirms, publish_seq, local, batch)
        message = inner.publish_delivered(envelope, body, expires_at, confirms, publish_seq)
        message.redelivered = journal.again
        self.pending[message.position] = message
        return message

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> None:
        if not self._are_alike(envelopes, confirms):
            super().publish_many(envelopes, bodies, expires_at, confirms, first_seq)
            return
        batch = self._journal.publish_many(
            self.level, self.inner.next_position, envelopes, bodies, expires_at, False
        )
        confirms, first_seq = self._await_mirrors(batch, envelopes, confirms, first_seq)
        self.inner.publish_many(envelopes, bodies, expires_at, confirms, first_seq)

    def publish_many_delivered(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        expires_at: float | None,
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> list[Message]:
        if not self._are_alike(envelopes, confirms):
            return super().publish_many_delivered(
                envelopes, bodies, expires_at, confirms, first_seq
            )
        first = self.inner.next_position
        end = first + len(bodies)
        if end > self.hand_outs.renew_at:
            self.hand_outs.announce(end)
        batch = self._journal.publish_many(self.level, first, envelopes, bodies, expires_at, True)
        confirms, first_seq = self._await_mirrors(batch, envelopes, confirms, first_seq)
        messages = self.inner.publish_many_delivered(
            envelopes, bodies, expires_at, confirms, first_seq
        )
        self.pending.update([(message.position, message) for message in messages])
        return messages

    def _are_alike(self, envelopes: Sequence[Envelope], confirms: PublishConfirms | None) -> bool:
        """Whether these messages can be written down at once: their confirms wait for the same."""
        if self._journal.again:
            return False
        if confirms is None or self.inner.defers_confirms is self.inner.defers_transient:
            return True
        persistent = envelopes[0].persistent
        return all([envelope.persistent is persistent for envelope in envelopes])

    def _await_mirrors(
        self,
        batch: int,
        envelopes: Sequence[Envelope],
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> tuple[PublishConfirms | None, int]:
        """Note who waits for mirrors to have the next messages, which are written down in this
        batch. Return the object that the store is to answer, and the number of the first publish
        there; None and 0 if it is not to answer."""
        inner, journal, count = self.inner, self._journal, len(envelopes)
        if confirms is None:
            journal.without_confirms(self.level, inner.next_position, batch, count)
            return None, 0
        local = inner.defers_confirms if envelopes[0].persistent else inner.defers_transient
        return journal.confirm(confirms, first_seq, local, batch, count)

    def fetch(self) -> Message | None:
        hand_outs = self.hand_outs
        if self._fetched_below >= hand_outs.noted and not self._make_room(1):
            return None
        message = self.inner.fetch()
        if message is None:
            return None
        position = message.position
        if position >= hand_outs.noted and not self._put_back([message]):
            return None
        if position >= self._fetched_below:
            self._fetched_below = position + 1
            if position >= hand_outs.renew_at:
                hand_outs.announce(position + 1)
        self._fetched((message,))
        return message

    def fetch_many(self, limit: int) -> list[Message]:
        room = self.hand_outs.noted - self._fetched_below
        if room < limit:
            limit = self._make_room(limit)
        messages = self.inner.fetch_many(limit)
        if messages:
            if self._end_of(messages) > self.hand_outs.noted:
                messages = self._put_back(messages)
            self._handed_out(messages)
            self._fetched(messages)
        return messages

    def _make_room(self, limit: int) -> int:
        """How many messages may be fetched now."""
        limit = min(limit, self.inner.length)
        if not limit:
            return 0
        # Messages that were handed out at once, expired or were purged do not come any more.
        self._fetched_below = max(self._fetched_below, self.inner.undelivered_from)
        return self.hand_outs.make_room(self._fetched_below, limit)

    def _put_back(self, messages: list[Message]) -> list[Message]:
        """Put back messages that may not be handed out yet; returns the others. There are some to
        put back if positions between the messages are empty."""
        beyond = messages
        while beyond := [one for one in beyond if one.position >= self.hand_outs.noted]:
            self._fetched_below = beyond[0].position
            if not self.hand_outs.make_room(self._fetched_below, len(beyond)):
                self.inner.requeue(beyond)
                break
        return [one for one in messages if one.position < self.hand_outs.noted]

    @staticmethod
    def _end_of(messages: Sequence[Message]) -> int:
        """The end behind the last position of messages that were fetched together."""
        return messages[-1].position + 1

    def _handed_out(self, messages: list[Message]) -> None:
        end = self._end_of(messages) if messages else 0
        if end > self._fetched_below:
            self._fetched_below = end
            if end > self.hand_outs.renew_at:
                self.hand_outs.announce(end)

    def fetch_to_drop(self) -> Message | None:
        message = self.inner.fetch_to_drop()
        if message is not None:
            self._fetched((message,))
        return message

    def fetch_expired(self, now: float, limit: int) -> list[Message]:
        messages = self.inner.fetch_expired(now, limit)
        self._fetched(messages)
        return messages

    def next_expiry(self) -> float | None:
        return self.inner.next_expiry()

    def load(self, messages: Iterable[Message]) -> list[Message]:
        return self.inner.load(messages)

    def ack(self, messages: Collection[Message]) -> None:
        self.inner.ack(messages)
        if self.again:
            self.again.difference_update([message.position for message in messages])
        self._settled(Op.ACK, messages)

    def publishing_again(self) -> AbstractContextManager[None]:
        return self._journal.publishing_again()

    async def noted(self) -> bool:
        answered, leads = Event(), False

        def answer(led_on: bool) -> None:
            nonlocal leads
            leads = led_on
            answered.happen()

        self._journal.barrier(answer)
        await answered
        return leads

    def retained(self, messages: Sequence[Message], first: int) -> None:
        self._journal.note(Op.RETAIN_AT, self.level, first, 0)
        self._journal.runs(Op.RETAIN, self.level, [message.position for message in messages])

    def requeue(self, messages: Iterable[Message]) -> None:
        messages = list(messages)
        self.inner.requeue(messages)
        self._settled(Op.REQUEUE, messages)

    def take(self, positions: Sequence[int]) -> list[Message]:
        messages = self.inner.take(positions)
        for message in messages:
            self.pending[message.position] = message
        self.taken.update([message.position for message in messages])
        self._journal.runs(Op.TAKE, self.level, [message.position for message in messages])
        return messages

    def purge(self) -> int:
        self._journal.purge(self.level)
        self.again &= self.pending.keys()
        return self.inner.purge()

    def set_mode(self, mode: str) -> None:
        self.inner.set_mode(mode)

    def stop(self) -> None:
        self.unwrapped().stop()

    def delete(self) -> None:
        # Messages lead back to the queue, and the garbage collector does not look at them.
        self.pending.clear()
        self.taken.clear()
        self.inner.delete()

    def unwrapped(self) -> MirroredLevel:
        """The backing queue itself, as it goes on without mirrors or after a restart."""
        if again_below := self._again_below:
            # The backing queue can only count all below a position as delivered: better too many
            # than too few.
            self.inner.count_as_delivered(again_below)
        return self.inner

    @property
    def _again_below(self) -> int:
        return max(self.again - self.pending.keys(), default=-1) + 1

    def is_out(self, message: Message, *, taken: bool) -> None:
        """Note that a message is out: a client has it from before the queue had mirrors, or it was
        `taken` from the middle."""
        self.pending[message.position] = message
        if taken:
            self.taken.add(message.position)

    def begins_epoch(self) -> None:
        """This node has begun to lead: mirrors may have heard less of the former leader than it
        has."""
        self.hand_outs.noted = 0
        self.hand_outs.begin_anew(self.inner.delivered_below)
        self.doubt_backlog()

    def doubt_backlog(self) -> None:
        """A majority may lack messages that this node has from before it led: hand out none of
        these until a majority has all. A level that announces hand-outs does so anyway."""

    def doubt_hand_outs(self) -> None:
        """A mirror is out of reach: hand out nothing more before mirrors have reported again."""
        self.hand_outs.doubt(max(self._fetched_below, self.inner.undelivered_from))

    # For the synchronisation of mirrors

    def peek(self, start: int, count_max: int, bytes_max: int) -> Peeked:
        return self.inner.peek(start, count_max, bytes_max)

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        return self.inner.list_positions(start, end, count_max)

    @property
    def is_durable(self) -> bool:
        """Whether persistent messages of this level outlive a restart."""
        return self.inner.defers_confirms

    def was_fetched(self, position: int) -> bool:
        """Whether a client has the message at this position; mirrors must have it pending, too."""
        return position in self.pending and position not in self.taken

    def notes(self, positions: Iterable[int]) -> list[tuple[Op, int, int]]:
        """Return further instructions, with position and number, for mirrors that are sent the
        messages at these positions."""
        counts = self.delivery_counts
        if not counts:
            return []
        return [(Op.COUNTED, at, counts[at]) for at in positions if at in counts]

    def ages_s(self, positions: Sequence[int], wall_time: float) -> dict[int, int]:
        """Return how many seconds ago messages of a stream arrived, by position, where that differs
        from the message before. Empty for other queues."""
        return {}

    @property
    def delivery_counts(self) -> dict[int, int]:
        """How often messages were returned, by position."""
        # Every backing queue that keeps messages can keep counts.
        return cast(CountingQueue, self.inner).delivery_counts

    def counts_changed(self, positions: Collection[int]) -> None:
        """Keep the new counts of these positions, here and at mirrors."""
        cast(CountingQueue, self.inner).counts_changed(positions)
        counts = self.delivery_counts
        for position in positions:
            self._journal.note(Op.COUNTED, self.level, position, counts[position])

    def oldest(self) -> int:
        """The position of the oldest message there is, pending or ready."""
        ready = self._oldest_ready()
        return min(ready, min(self.pending, default=ready))

    def _oldest_ready(self) -> int:
        inner = self.inner
        start, end = 0, inner.next_position
        while inner.length and start < end:
            messages, behind = inner.peek(start, 1, 1)
            if messages:
                return messages[0].position
            # The message at this position is pending or lost.
            start = max(behind, start + 1)
        return end

    def _fetched(self, messages: Sequence[Message]) -> None:
        positions = [message.position for message in messages]
        self.pending.update(zip(positions, messages, strict=True))
        self._journal.runs(Op.FETCH, self.level, positions)
        if self.again:
            for message in messages:
                message.redelivered |= message.position in self.again

    def _settled(self, op: Op, messages: Collection[Message]) -> None:
        positions = [message.position for message in messages]
        forget = self.pending.pop
        for position in positions:
            forget(position, None)
        self._journal.runs(op, self.level, positions)
        if self.taken and not self.taken.isdisjoint(positions):
            self.taken.difference_update(positions)
            # An operator is answered that these have left the queue.
            self._journal.flush_soon()
