"""A classic queue: which consumer gets a message, and what becomes of those that none gets.

Answerable for publishing, delivery, acknowledgement, expiry and length limits of one queue; not
for keeping messages (the backing queue), for routing, for permissions, or for what a consumer does
with a message. What a queue of any type does is in `local_queue.py`.

The rules are those of amqp_semantics.md section 4. `publish` is the hottest call of the broker: all
that few queues need is behind the flag `_rules`, which is false for a queue without time limits,
length limits, tracing, retention and the like (`_find_rules`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from warren.core.backing.backing_queue import BackingQueue, answer_of, answers_of
from warren.core.backing.priority_queue import level_number
from warren.core.backing.publishing_again import publishing_again
from warren.core.messages.message import Envelope, Message, parted_by_expiry
from warren.core.messages.message_observer import TracedClient
from warren.core.messages.message_stats import MessageStats
from warren.core.messages.settlement import PENDING, REJECTED, SETTLED, PublishConfirms, Settlement
from warren.core.queues.consumers import Consumer
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import DeclaredQueue, Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import DeathReason, LocalQueueOwner
from warren.core.queues.redelivery import Redelivery
from warren.core.queues.unkept import bury_unkept
from warren.core.scheduling.deadline import Deadline

DELIVERY_SLICE = 512
"""Messages handed over before other work gets a turn; about a millisecond."""

DELIVERY_SLICE_BYTES = 1 << 20
"""Body bytes handed over before the sockets get a turn."""

EXPIRY_SLICE = 1000
"""Expired messages dropped before other work gets a turn; a millisecond or two."""

GET_EXPIRY_SLICE = 20_000
"""Expired messages that a basic.get drops before it answers that there is none."""

DROP_SLICE = 1000
"""Messages dropped for a length limit before other work gets a turn."""

DROP_US = 2
"""The cost of dropping a message for its expiry or a length limit, in the microseconds of
`core/scheduling/turns.py`."""


class ClassicQueue(LocalQueue):
    """A classic queue that this node leads. Other types whose messages go to one consumer each
    derive from it."""

    __slots__ = ("_expiry", "_has_expiring", "_rules", "_sent_late", "_strict", "redelivery")

    def __init__(
        self,
        vhost: LocalQueueOwner[Queue, LocalQueue],
        declared: DeclaredQueue,
        settings: QueueSettings,
        backing: BackingQueue,
    ) -> None:
        self._sent_late = 0
        # Counts the messages that come back.
        self.redelivery: Redelivery | None = None
        # The time at which the first message expires; None until one can expire.
        self._expiry: Deadline | None = None
        self._has_expiring = backing.expiring
        self._rules = self._strict = False
        super().__init__(vhost, declared, settings, backing)
        if self._has_expiring:
            self._arm_expiry()

    @property
    def set_aside(self) -> tuple[int, int]:
        """Also counts returned messages that wait before they are ready again."""
        count, octets = super().set_aside
        redelivery = self.redelivery
        if redelivery is None:
            return count, octets
        return count + len(redelivery), octets + redelivery.waiting_bytes

    @property
    def waiting(self) -> int:
        return 0 if self.redelivery is None else len(self.redelivery)

    def waiting_messages(self) -> dict[Message, float]:
        return {} if self.redelivery is None else self.redelivery.waiting()

    @property
    def one_by_one(self) -> bool:
        """As in `Queue`: also while a full queue refuses messages; and with a length limit where
        messages can expire, as they die for one of two reasons, which a dead letter tells."""
        reasons = self._has_expiring and self.settings.has_length_limit
        return self._strict or reasons or (self.refuses_when_full and self._would_overflow(0))

    # Publishing

    def publish(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        if self._rules or envelope.expiration_ms is not None:
            return self._publish_by_rules(envelope, body, confirms, publish_seq)
        backing = self.backing
        ready = self.ring.top
        if ready and not backing.length:
            consumer = ready[0]
            if consumer.no_ack:
                consumer.send(envelope, body, False)
                if len(ready) > 1 and not consumer.blocked:
                    ready.rotate(-1)
                return SETTLED
            message = backing.publish_delivered(envelope, body, None, confirms, publish_seq)
            self.unacked += 1
            consumer.take(message)
            if len(ready) > 1 and not consumer.blocked:
                ready.rotate(-1)
        else:
            backing.publish(envelope, body, None, confirms, publish_seq)
        if confirms is not None and backing.defers_confirms:
            if envelope.persistent or backing.defers_transient:
                return PENDING
        return SETTLED

    def publish_many(
        self,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        confirms: PublishConfirms | None,
        first_seq: int,
    ) -> Sequence[Settlement]:
        backing = self.backing
        count = len(bodies)
        if self.refuses_when_full and not self._has_room(count, sum(map(len, bodies))):
            return self._publish_each(envelopes, bodies, confirms, first_seq)
        ttl_ms = self._time_to_live_ms(envelopes[0])
        expires_at = None if ttl_ms is None else self._vhost.clock.now() + ttl_ms / 1000
        if self._has_expiring:
            self._drop_expired(EXPIRY_SLICE)
        ready = self.ring.top
        if not ready or backing.length:
            backing.publish_many(envelopes, bodies, expires_at, confirms, first_seq)
            if expires_at is not None:
                self._has_expiring = True
                self._arm_expiry()
            self._drop_excess()
            return answers_of(backing, envelopes, confirms)
        if len(ready) > 1:
            return self._publish_each(envelopes, bodies, confirms, first_seq)
        consumer = ready[0]
        if consumer.no_ack:
            consumer.send_many(envelopes, bodies)
            if self._trace is not None:
                self._trace.sent_many(self, consumer.traced_as(), envelopes, bodies)
            if self.retention is None:
                return () if confirms is None else (SETTLED,) * count
            self._sent_late += count
            self.retention.ack(
                backing.publish_many_delivered(envelopes, bodies, expires_at, confirms, first_seq)
            )
            return answers_of(backing, envelopes, confirms)
        # Take one message at least, or this would never end.
        room = max(1, consumer.capacity())
        if room < count:
            first = self.publish_many(envelopes[:room], bodies[:room], confirms, first_seq)
            rest = self.publish_many(envelopes[room:], bodies[room:], confirms, first_seq + room)
            return (*first, *rest)
        messages = backing.publish_many_delivered(
            envelopes, bodies, expires_at, confirms, first_seq
        )
        self.unacked += count
        consumer.take_many(messages)
        if self._trace is not None:
            self._trace.handed_over_many(self, consumer.traced_as(), messages)
        return answers_of(backing, envelopes, confirms)

    def publish_again(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        with publishing_again(self.backing):
            return self._publish_by_rules(envelope, body, confirms, publish_seq, again=True)

    def _publish_by_rules(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
        *,
        again: bool = False,
    ) -> Settlement:
        if self._takes_nothing:
            return self._put_off(envelope, body, confirms, publish_seq, again)
        settings = self.settings
        backing = self.backing
        if settings.overflow != "drop-head" and self._would_overflow(len(body)):
            self._turn_away(envelope)
            if settings.overflow == "reject-publish-dlx":
                dead = Message(envelope, body, -1)
                return self._bury_unkept(dead, DeathReason.MAXLEN, REJECTED, confirms, publish_seq)
            return REJECTED
        ttl_ms = self._time_to_live_ms(envelope)
        expires_at = None if ttl_ms is None else self._vhost.clock.now() + ttl_ms / 1000
        if self._has_expiring:
            self._drop_expired(EXPIRY_SLICE)
        ready = self.ring.top
        if ready and not backing.length and (not self._still or ttl_ms == 0):
            consumer = ready[0]
            if at_once := consumer.no_ack and self.retention is None:
                self._send(consumer, envelope, body, again)
            else:
                message = backing.publish_delivered(
                    envelope, body, expires_at, confirms, publish_seq
                )
                message.redelivered |= again
                self._hand_over(consumer, message)
            if len(ready) > 1 and not consumer.blocked:
                ready.rotate(-1)
            if at_once:
                return SETTLED
        elif ttl_ms == 0 and (settings.message_ttl_ms == 0 or not backing.length):
            self._turned_away += 1
            self.ways_out.expired += 1
            dead = Message(envelope, body, -1)
            return self._bury_unkept(dead, DeathReason.EXPIRED, SETTLED, confirms, publish_seq)
        else:
            backing.publish(envelope, body, expires_at, confirms, publish_seq)
            if expires_at is not None:
                self._has_expiring = True
                self._arm_expiry()
            self._drop_excess()
        return answer_of(backing, envelope, confirms)

    def _time_to_live_ms(self, envelope: Envelope) -> int | None:
        return self.settings.time_to_live_ms(envelope.expiration_ms)

    # Consuming

    def deliver(self) -> None:
        backing = self.backing
        if not backing.length or self._held is not None or self._still:
            return
        if self._has_expiring and not self._drop_expired(EXPIRY_SLICE):
            self._resume_soon()
            return
        ring = self.ring
        acknowledged = self.retention or backing
        messages_left, bytes_left = DELIVERY_SLICE, DELIVERY_SLICE_BYTES
        ready = ring.top
        while ready:
            if messages_left <= 0 or bytes_left <= 0:
                self._resume_soon()
                return
            consumer = ready[0]
            if len(ready) == 1 and not (self._strict or consumer.no_ack):
                taken = self._hand_over_many(consumer, messages_left)
                if not taken or not backing.length:
                    return
                messages_left -= taken
                ready = ring.top
            else:
                message = backing.fetch()
                if message is None:
                    break
                messages_left -= 1
                bytes_left -= len(message.body)
                if consumer.no_ack:
                    self._send_message(consumer, message)
                    self._sent_late += 1
                    acknowledged.ack((message,))
                else:
                    self._hand_over(consumer, message)
                if consumer.blocked:
                    ready = ring.top
                elif len(ready) > 1:
                    ready.rotate(-1)
            if self._has_expiring and backing.length and not self._drop_expired(EXPIRY_SLICE):
                self._resume_soon()
                return

    def get(self, no_ack: bool, client: TracedClient) -> Message | None:
        """Fetch one message, and drop what expired behind it."""
        self.touch()
        if self._held is not None:
            self.got_nothing += 1
            return None
        if self._has_expiring and not self._drop_expired(GET_EXPIRY_SLICE):
            # All messages that were looked at have expired; the rest is dropped in turns.
            self._resume_soon()
            self.got_nothing += 1
            return None
        message = self.backing.fetch()
        if message is None:
            self.got_nothing += not self.is_withheld
            return None
        self.redelivered += message.redelivered
        if self._trace is not None:
            self._trace.delivered(
                self, client, message.envelope, message.body, message.redelivered, no_ack
            )
        if no_ack:
            self.got_no_ack += 1
            (self.retention or self.backing).ack((message,))
        else:
            self.got += 1
            self.unacked += 1
        if self._has_expiring and not self._drop_expired(EXPIRY_SLICE):
            self._resume_soon()
        return message

    def envelope_got(self, message: Message, no_ack: bool) -> Envelope:
        """The envelope that a client is sent with a message that `get` has returned."""
        if self.redelivery is None or no_ack:
            return message.envelope
        return self.redelivery.shown(self.backing, message)

    # Verdicts

    def ack(self, messages: Collection[Message]) -> None:
        if self.deleted:
            return
        self.unacked -= len(messages)
        self.acked += len(messages)
        if self._trace is not None:
            self._trace.acknowledged(self, messages)
        if self.retention is not None:
            self.retention.ack(messages)
        else:
            self.backing.ack(messages)

    def reject(self, messages: Iterable[Message]) -> None:
        if self.deleted:
            return
        dead = sorted(messages, key=lambda one: -level_number(self.backing, one.envelope))
        self.unacked -= len(dead)
        self.given_back += len(dead)
        self.ways_out.rejected += len(dead)
        self._bury(dead, DeathReason.REJECTED)

    def requeue(self, messages: list[Message], *, delivered: bool = True) -> None:
        if self.deleted:
            return
        self.unacked -= len(messages)
        self.given_back += len(messages)
        if self.redelivery is not None and delivered:
            messages = self._count_returns(self.redelivery, messages)
        for message in messages:
            message.redelivered |= delivered
        if self._trace is not None:
            self._trace.requeued(self, messages)
        self.ready_again(messages)

    def ready_again(self, messages: Sequence[Message]) -> None:
        self._has_expiring |= any([message.expires_at is not None for message in messages])
        self.backing.requeue(messages)
        self._keep_rules()
        self.deliver()

    def _count_returns(self, redelivery: Redelivery, messages: list[Message]) -> list[Message]:
        """Count the return of these messages; return those that are ready again at once."""
        for message in messages:
            message.redelivered = True
        ready, dead = redelivery.take_back(self.backing, messages, self.settings)
        if dead:
            self.ways_out.rejected += len(dead)
            self._bury(dead, DeathReason.DELIVERY_LIMIT)
        return ready

    def _end_waits(self) -> None:
        """Make messages ready again that have waited, a slice at a time."""
        redelivery = self.redelivery
        if self._held is not None or redelivery is None:
            # `release` looks again.
            return
        if messages := redelivery.due(EXPIRY_SLICE):
            self._vhost.turns.spend(len(messages) * DROP_US)
            if self._trace is not None:
                self._trace.requeued(self, messages)
            self.ready_again(messages)
        if redelivery.is_over:
            self.redelivery = None
            self._find_rules()

    # For operators

    def take_waiting(self, level: int, positions: Collection[int]) -> list[Message]:
        redelivery = self.redelivery
        return [] if redelivery is None else redelivery.take_out(self.backing, level, positions)

    def purge(self) -> int:
        if self._trace is not None:
            self._trace.emptied(self, False)
        count = self.backing.purge()
        self.ways_out.purged += count
        self._has_expiring = False
        return count

    def stats(self) -> MessageStats:
        """Deliveries are not counted; their number follows from what became of them.

        A publish that was neither kept nor turned away went at once to a consumer without
        acknowledgements.
        """
        sent_at_once = self.published - self.backing.published - self._turned_away
        return MessageStats(
            publish=self.published,
            get=self.got,
            get_no_ack=self.got_no_ack,
            get_empty=self.got_nothing,
            deliver=self.unacked + self.acked + self.given_back - self.got,
            deliver_no_ack=sent_at_once + self._sent_late,
            redeliver=self.redelivered,
            ack=self.acked,
        )

    # Life

    def keep_limits(self) -> None:
        if self.retained is not None or self.settings.retention is not None:
            self._vhost.follow_retention(self)
            self._find_rules()
        self._drop_excess()

    def _take_settings(self, settings: QueueSettings) -> None:
        super()._take_settings(settings)
        self._follow_returns()
        self._find_rules()

    def _follow_returns(self) -> None:
        """Begin to count returned messages; or stop that, once no returned message waits."""
        counts = self.settings.counts_returns and self.is_here
        if self.redelivery is not None:
            self.redelivery.ends = not counts
            self._end_waits()
        elif counts:
            self.redelivery = Redelivery(self._vhost.codec, self._vhost.clock, self._end_waits)

    def _find_rules(self) -> None:
        settings = self.settings
        # Whether the queue must look at each message by itself.
        self._strict = (
            settings.message_ttl_ms == 0
            or self._limits_one_by_one
            or self.redelivery is not None
            or (self._trace is not None and not self._trace.takes_batches)
            or self._takes_nothing
            or self._still > 0
        )
        self._rules = (
            self._strict
            or settings.message_ttl_ms is not None
            or settings.has_length_limit
            or self._trace is not None
            or self.retention is not None
        )

    def _stop_timers(self) -> None:
        super()._stop_timers()
        if self._expiry is not None:
            self._expiry.cancel()
        if self.redelivery is not None:
            self.redelivery.stop()
        self._expiry = self.redelivery = None

    def _catch_up(self) -> None:
        self._keep_rules()
        if self.redelivery is not None:
            self.redelivery.set_timer()

    def _go_on(self) -> None:
        self._drop_excess()
        super()._go_on()

    # Handing over

    def _send_message(self, consumer: Consumer, message: Message) -> None:
        """`_send` a message that the queue had kept."""
        if self._rules:
            envelope = self._envelope_delivered(message)
            self._send(consumer, envelope, message.body, message.redelivered)
            return
        consumer.send(message.envelope, message.body, message.redelivered)

    def _hand_over(self, consumer: Consumer, message: Message) -> None:
        if not self._rules:
            self.unacked += 1
            consumer.take(message)
            return
        if consumer.no_ack and self.retention is not None:
            self._send(consumer, message.envelope, message.body, message.redelivered)
            self._sent_late += 1
            self.retention.ack((message,))
            return
        self.unacked += 1
        envelope = message.envelope
        # The client is sent an envelope with the count; the queue keeps the one without.
        message.envelope = self._envelope_delivered(message)
        consumer.take(message)
        if self._trace is not None:
            recipient = consumer.traced_as()
            self._trace.delivered(
                self, recipient, message.envelope, message.body, message.redelivered, False
            )
        message.envelope = envelope

    def _envelope_delivered(self, message: Message) -> Envelope:
        """The envelope that a consumer is sent: with a count, once the message was returned."""
        if self.redelivery is None or not self.redelivery.count(self.backing, message):
            return message.envelope
        return self.redelivery.shown(self.backing, message)

    def _hand_over_many(self, consumer: Consumer, limit: int) -> int:
        """Hand the only consumer up to `limit` messages, less the expired ones. Returns how many
        left the queue; a higher number if they are large."""
        backing = self.backing
        # Fewer messages if they are large on average, so that a slice stays short.
        by_size = 1 + DELIVERY_SLICE_BYTES * backing.length // (backing.ready_bytes + 1)
        messages = backing.fetch_many(min(limit, by_size, consumer.capacity()))
        fetched = len(messages)
        expired: list[Message] = []
        if self._has_expiring:
            messages, expired = parted_by_expiry(messages, self._vhost.clock.now())
        self.unacked += len(messages)
        consumer.take_many(messages)
        if self._trace is not None:
            self._trace.handed_over_many(self, consumer.traced_as(), messages)
        if expired:
            self._expired(expired)
        return max(fetched, limit * fetched // by_size)

    # Deaths

    def _bury(self, dead: list[Message], reason: DeathReason) -> None:
        """Remove these dead, pending messages: at once, or when their dead letters are safe."""
        if self._trace is not None:
            self._trace.died(self, [message.envelope for message in dead], reason)
        if self.settings.dead_letter_exchange is None:
            self.backing.ack(dead)
        else:
            self._vhost.burials.bury(self, dead, reason)

    def _bury_unkept(
        self,
        dead: Message,
        reason: DeathReason,
        answer: Settlement,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        """Answer the publisher of a message that was never kept, when its dead letter is safe."""
        if self._trace is not None:
            self._trace.died(self, (dead.envelope,), reason)
        if self.settings.dead_letter_exchange is None:
            return answer
        return bury_unkept(self._vhost.burials, self, dead, reason, answer, confirms, publish_seq)

    # Length limits

    def _keep_rules(self) -> None:
        """Drop messages that have expired, or exceed the length limit."""
        if self._has_expiring:
            self._drop_expired(EXPIRY_SLICE)
        self._drop_excess()

    def _drop_excess(self) -> None:
        """Drop messages from the head until the limits are kept, a slice at a time."""
        if not self.settings.has_length_limit or self.refuses_when_full or self.is_held:
            return
        excess: list[Message] = []
        while len(excess) < DROP_SLICE and self._over_limit():
            message = self.backing.fetch_to_drop()
            if message is None:
                break
            excess.append(message)
        if not excess:
            return
        self._vhost.turns.spend(len(excess) * DROP_US)
        self.ways_out.dropped += len(excess)
        self._bury(excess, DeathReason.MAXLEN)
        if self._over_limit():
            self._resume_soon()
        if self._has_expiring:
            # The new head may have expired.
            self._drop_expired(EXPIRY_SLICE)

    def _over_limit(self) -> bool:
        return len(self) > 0 and self.settings.exceeded(len(self), self.backing.ready_bytes)

    # Expiry

    def _drop_expired(self, limit: int) -> bool:
        """Drop up to `limit` expired messages. Returns False if there may be more.

        While the queue is held, nothing expires; `release` looks again.
        """
        if self._held is not None:
            return True
        expired = self.backing.fetch_expired(self._vhost.clock.now(), limit)
        if expired:
            self._expired(expired)
        self._arm_expiry()
        return len(expired) < limit

    def _expired(self, messages: list[Message]) -> None:
        self._vhost.turns.spend(len(messages) * DROP_US)
        self.ways_out.expired += len(messages)
        self._bury(messages, DeathReason.EXPIRED)

    def _arm_expiry(self) -> None:
        """Keep one timer, set no later than the earliest expiry among the heads."""
        earliest = self.backing.next_expiry()
        if earliest is None:
            if not self.backing.length:
                self._has_expiring = False
            return
        if self._expiry is None:
            self._expiry = Deadline(self._vhost.clock, self._expire)
        self._expiry.no_later_than(earliest)

    def _expire(self) -> None:
        if self._vhost.turns.over or not self._drop_expired(EXPIRY_SLICE):
            self._resume_soon()
