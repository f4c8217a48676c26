"""A stream: a queue from which nothing is taken (streams.md of the reference).

Answerable for its readers, each of which is at an offset of its own, and for what it keeps. An
acknowledgement gives credit and says nothing else. The messages are in `stream_log.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol, cast

from warren.core.backing.backing_queue import BackingQueue, MirroredLevel
from warren.core.backing.stream_limits import StreamLimits
from warren.core.backing.stream_log import StreamLog, Trim
from warren.core.backing.stream_tail import HEADER_BYTES_MAX
from warren.core.errors import Unsupported
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import TracedClient
from warren.core.messages.message_stats import MessageStats
from warren.core.messages.settlement import PENDING, SETTLED, PublishConfirms, Settlement
from warren.core.queues.consumers import Blocked, Consumer
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.messages_in_hand import MessagesInHand
from warren.core.queues.moving import Moving
from warren.core.queues.queue import DeclaredQueue, Fetched, Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import LocalQueueOwner
from warren.core.queues.seeking import offset_at
from warren.core.queues.stream_arguments import STREAM_OFFSET, Begin, stream_offset
from warren.core.queues.subscriptions import Subscriptions
from warren.core.scheduling.deadline import Deadline
from warren.core.scheduling.waiting import run

SLICE: Final = 256
SLICE_BYTES: Final = 1 << 20
"""Messages, and octets of bodies, that are handed over before other work gets a turn."""

READ_US: Final = 6
"""The cost of reading and handing over a message, in the microseconds of
`core/scheduling/turns.py`."""

HEADER_BYTES_PER_US: Final = 4
"""Octets per microsecond at which the offset is put into a header above `HEADER_BYTES_MAX`."""

TRIM_US: Final = 1500
"""The cost of one step of trimming, in the same microseconds."""

LOOK_AGAIN_S: Final = 3600.0
"""The longest time between two checks of the age of the first piece, as clocks may be set."""

AWAIT_COPY_S: Final = 45.0
"""How long readers wait at a damaged message for another node to lead, which has the message. If
handing over fails, it is tried again after half a minute."""

BARE: Final = Envelope("", "", b"", True, 0, None)
"""In place of the envelope of a message that a client has got: the stream has the message."""


def _with_header(envelope: Envelope, header: bytes) -> Envelope:
    return Envelope(
        envelope.exchange,
        envelope.routing_key,
        header,
        envelope.persistent,
        envelope.priority,
        None,
        (),
        envelope.address,
    )


class EmptyHand(MessagesInHand):
    """`MessagesInHand` of a stream, from which operators take no messages."""

    def take(self, level: int, positions: Sequence[int]) -> list[Message]:
        raise Unsupported(f"messages stay in a stream: {self._queue.described}")


class TrimmingQueue(BackingQueue, Protocol):
    """The backing queue of a stream: its log, or a leader's level around that."""

    def trim(self, limits: StreamLimits, wall_time: float) -> Trim:
        """Do one step of trimming to the limits."""
        ...

    def may_be_elsewhere(self) -> bool:
        """Whether another node has the messages that are damaged here, and may lead."""
        ...


class StreamingQueue(LocalQueue):
    """A stream. `log` has its messages: the backing queue itself, or the log inside a leader's
    level. `unacked` stays 0: what a client has is in the stream all the same, and counts for the
    client alone."""

    __slots__ = (
        "_awaits_copy",
        "_before_end",
        "_cursors",
        "_delivered",
        "_offset_header",
        "_seeking",
        "_trim_deadline",
        "_trim_is_due",
        "_waiting_for_more",
        "_woken",
        "log",
    )

    def __init__(
        self,
        vhost: LocalQueueOwner[Queue, LocalQueue],
        declared: DeclaredQueue,
        settings: QueueSettings,
        log: StreamLog,
    ) -> None:
        self.log = log
        self._offset_header = vhost.codec.added_header(STREAM_OFFSET)
        # The offset of each reader.
        self._cursors: dict[Consumer, int] = {}
        # For readers that begin behind messages which are not committed: the offset of the first of
        # these messages. Another leader may give their offsets to later ones.
        self._before_end: dict[Consumer, int] = {}
        # Readers that begin at a time, while the offset for it is being looked up.
        self._seeking: set[Consumer] = set()
        # Readers that have caught up.
        self._waiting_for_more: dict[Consumer, None] = {}
        self._delivered = 0
        self._woken = False
        # Whether readers wait for a node that has messages which are damaged here.
        self._awaits_copy = False
        self._trim_is_due = False
        # The time at which the first piece is too old; None until one can be.
        self._trim_deadline: Deadline | None = None
        super().__init__(vhost, declared, settings, log)
        log.on_committed = self._more_is_committed
        log.on_lost = self._await_copy

    # Publishing

    @property
    def one_by_one(self) -> bool:
        return self._takes_nothing

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        if self._takes_nothing:
            return self._put_off(envelope, body, confirms, publish_seq, again=False)
        self.backing.publish(envelope, body, None, confirms, publish_seq)
        return SETTLED if confirms is None else PENDING

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> Sequence[Settlement]:
        self.backing.publish_many(envelopes, bodies, None, confirms, first_seq)
        return () if confirms is None else (PENDING,) * len(bodies)

    def publish_again(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        return self.publish(envelope, body, confirms, publish_seq)

    def _more_is_committed(self) -> None:
        if not self._woken and not self.deleted:
            self._woken = True
            self._vhost.turns.soon(self._wake)

    def _wake(self) -> None:
        """Some messages were committed: let readers that waited for them go on."""
        self._woken = False
        if self.deleted:
            return
        committed = self.log.committed
        if self._before_end:
            behind = [one for one in self._before_end if self._cursors[one] <= committed]
            for consumer in behind:
                del self._before_end[consumer]
        for consumer in list(self._waiting_for_more):
            if self._cursors[consumer] < committed:
                del self._waiting_for_more[consumer]
                consumer.unblock(Blocked.CAUGHT_UP)
        self.deliver()
        if not self.settings.keeps.keeps_all:
            self._trim_soon()

    # Reading

    def _new_subscriptions(self) -> Subscriptions:
        """A stream accepts exclusive consumers and treats them like the others."""
        return Subscriptions(heeds_exclusive=False)

    def add_consumer(self, consumer: Consumer) -> None:
        begin, value = stream_offset(consumer.arguments.get(STREAM_OFFSET), self.described)
        log = self.log
        super().add_consumer(consumer)
        if consumer.goes_on_at is not None:
            self._cursors[consumer] = consumer.goes_on_at
            return
        if begin is Begin.FIRST:
            self._cursors[consumer] = log.first
        elif begin is Begin.LAST:
            self._cursors[consumer] = max(log.first, log.committed - 1)
        elif begin is Begin.OFFSET:
            self._cursors[consumer] = value
        else:
            self._cursors[consumer] = log.next_position
            if log.committed < log.next_position:
                self._before_end[consumer] = log.committed
        if begin in (Begin.TIME, Begin.AGO):
            since = value if begin is Begin.TIME else self._vhost.clock.wall_time() - value
            consumer.block(Blocked.CAUGHT_UP)
            self._seeking.add(consumer)
            run(self._seek(consumer, since), lambda result: result())

    async def _seek(self, consumer: Consumer, since: float) -> None:
        """Let a reader begin at the first message that arrived at this time or later."""
        offset = await self.offset_at(since)
        if self.deleted or consumer not in self._cursors:
            return
        self._seeking.discard(consumer)
        self._before_end.pop(consumer, None)
        self._cursors[consumer] = offset
        if consumer.unblock(Blocked.CAUGHT_UP):
            self._resume_soon()

    async def offset_at(self, since: float) -> int:
        """The offset of the first message that arrived at this time (seconds since 1970) or later;
        if there is none, that of the next message."""
        return await offset_at(self.log, self._vhost.turns, since, lambda: self.deleted)

    def goes_on_at(self, consumer: Consumer) -> int | None:
        """The offset of the next message that a reader gets from another leader; None if it is not
        known yet."""
        if consumer in self._seeking:
            return None
        return self._before_end.get(consumer, self._cursors.get(consumer))

    def not_taken(self, messages: Iterable[Message]) -> None:
        """Move the readers that hold these messages back to them: they never saw them."""
        cursors = self._cursors
        for message in messages:
            reader = message.holder
            if isinstance(reader, Consumer) and cursors.get(reader, -1) > message.position:
                cursors[reader] = message.position
                if reader in self._waiting_for_more:
                    del self._waiting_for_more[reader]
                    reader.unblock(Blocked.CAUGHT_UP)

    def _unsubscribed(self, gone: Collection[Consumer]) -> None:
        for consumer in gone:
            self._cursors.pop(consumer, None)
            self._before_end.pop(consumer, None)
            self._seeking.discard(consumer)
            self._waiting_for_more.pop(consumer, None)
        self._keep_the_tail()
        super()._unsubscribed(gone)

    def deliver(self) -> None:
        """Hand each reader its next messages, a slice at a time; at least one chunk, so that it
        gets on even in turns that are used up."""
        if self._held is not None or self._still or self.log.is_in_doubt or self._awaits_copy:
            return
        log, cursors, ready = self.log, self._cursors, self.ring.top
        turns = self._vhost.turns
        messages_left, bytes_left = SLICE, SLICE_BYTES
        while ready:
            if messages_left <= 0 or bytes_left <= 0:
                self._resume_soon()
                return
            consumer = ready[0]
            position = cursors[consumer]
            if position >= log.committed:
                self._waiting_for_more[consumer] = None
                consumer.block(Blocked.CAUGHT_UP)
                ready = self.ring.top
                continue
            room = min(messages_left, consumer.capacity())
            messages, beyond = log.read(position, room)
            if self._awaits_copy:
                return
            cursors[consumer] = beyond
            self._hand_all(consumer, messages)
            messages_left -= max(1, len(messages))
            turns.spend(READ_US * len(messages))
            bytes_left -= sum([message.paged_bytes for message in messages])
            if consumer.blocked:
                ready = self.ring.top
            elif len(ready) > 1:
                ready.rotate(-1)
            if turns.over and ready:
                self._resume_soon()
                return
        log.forget_chunks(cursors.values())
        self._keep_the_tail()

    def _await_copy(self) -> None:
        """Some messages are damaged here: read nothing more if another node has them, and is about
        to lead. If none leads after a while, the messages are passed over."""
        if not self._awaits_copy and cast(TrimmingQueue, self.backing).may_be_elsewhere():
            self._awaits_copy = True
            self._vhost.clock.call_later(AWAIT_COPY_S, self._await_no_copy)

    def _await_no_copy(self) -> None:
        self._awaits_copy = False
        if not self.deleted:
            self.deliver()

    def _keep_the_tail(self) -> None:
        """Keep the newest messages in memory only while there are readers near them."""
        tail, waiting = self.log.tail, self._waiting_for_more
        tail.is_awaited = bool(waiting)
        if len(waiting) == len(self._cursors):
            tail.forget()

    def _hand_all(self, consumer: Consumer, messages: list[Message]) -> None:
        """Hand these messages over; their bodies are not kept, as the stream has them."""
        if not messages:
            return
        add = self._offset_header.add
        for message in messages:
            envelope = message.envelope
            header = envelope.header
            if len(header) > HEADER_BYTES_MAX:
                self._vhost.turns.spend(len(header) // HEADER_BYTES_PER_US)
            message.envelope = _with_header(envelope, add(header, message.position))
        self._delivered += len(messages)
        consumer.take_many(messages)
        if self._trace is not None:
            recipient = consumer.traced_as()
            for message in messages:
                self._trace.delivered(self, recipient, message.envelope, message.body, False, False)
        for message in messages:
            if self._trace is None:
                message.envelope = BARE
            message.page_out()

    def ack(self, messages: Collection[Message]) -> None:
        self.acked += len(messages)
        if self._trace is not None:
            known = [message for message in messages if message.envelope is not BARE]
            self._trace.acknowledged(self, known)

    def reject(self, messages: Iterable[Message]) -> None:
        """Count messages of a channel that ends. The channel refuses basic.reject to its client."""
        self.given_back += len(list(messages))

    def requeue(self, messages: list[Message], *, delivered: bool = True) -> None:
        self.given_back += len(messages)

    # Operations of queues that streams do not have

    def get(self, no_ack: bool, client: TracedClient) -> Message | None:
        raise Unsupported(f"basic.get not supported by stream queues {self.described}")

    async def get_one(self, no_ack: bool, client: TracedClient) -> Fetched:
        raise Unsupported(f"basic.get not supported by stream queues {self.described}")

    def purge(self) -> int:
        raise Unsupported(f"queue.purge not supported by stream queues {self.described}")

    async def empty(self) -> int:
        return self.purge()

    async def counts(self) -> tuple[int, int]:
        """Count no readers for a client that declares the stream, as in RabbitMQ."""
        return len(self), 0

    def ready_again(self, messages: Sequence[Message]) -> None:
        """Do nothing: no message was taken out of the stream."""

    @property
    def levels(self) -> list[MirroredLevel]:
        """The log itself. The backing queue of a leader also shows messages that are not committed,
        which operators must not see."""
        return [self.log]

    def _new_hand(self) -> MessagesInHand:
        return EmptyHand(self)

    def check_deletable(self, *, if_unused: bool, if_empty: bool) -> None:
        """Check nothing: the conditions do not count, as in RabbitMQ."""

    def stats(self) -> MessageStats:
        return MessageStats(publish=self.published, deliver=self._delivered, ack=self.acked)

    # Limits

    def keep_limits(self) -> None:
        if not self.settings.keeps.keeps_all:
            self._trim_soon()

    def _trim_soon(self) -> None:
        if not self._trim_is_due:
            self._trim_is_due = True
            self._vhost.turns.soon(self._trim)

    def _trim(self) -> None:
        self._trim_is_due = False
        if self.deleted or self.settings.keeps.keeps_all:
            return
        self._stop_trim_timer()
        clock = self._vhost.clock
        before = self.log.length
        trimmed = cast(TrimmingQueue, self.backing).trim(self.settings.keeps, clock.wall_time())
        self.ways_out.dropped += max(0, before - self.log.length)
        self._vhost.turns.spend(TRIM_US)
        if trimmed.more:
            self._trim_soon()
        elif trimmed.due_s is not None:
            self._trim_deadline = self._trim_deadline or Deadline(clock, self._trim_soon)
            self._trim_deadline.restart(min(trimmed.due_s, LOOK_AGAIN_S))

    def _stop_trim_timer(self) -> None:
        if self._trim_deadline is not None:
            self._trim_deadline.cancel()

    # Moving to another leader

    def move_out(self) -> Moving:
        """Readers go on where they are."""
        for consumer in self.consumers:
            consumer.goes_on_at = self.goes_on_at(consumer)
        self._stop_trim_timer()
        self.log.on_committed = self.log.on_lost = _no_callback
        self._cursors.clear()
        self._before_end.clear()
        self._waiting_for_more.clear()
        self._keep_the_tail()
        return super().move_out()

    # The end

    def delete(self) -> None:
        self._stop_trim_timer()
        super().delete()
        self.left_ready = 0
        self._cursors.clear()
        self._before_end.clear()

    def stop(self) -> None:
        self._stop_trim_timer()
        super().stop()


def _no_callback() -> None:
    """Stands for the callback when the queue has moved."""
