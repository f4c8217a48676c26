"""A queue that this node has: which consumer gets a message, and what becomes of messages that no
consumer gets.

Answerable for consumers, acknowledgement, expiry, length limits and deletion of one queue. Not
for keeping messages (the backing queue), for routing, for permissions, or for what a consumer
does with what it is handed.

The rules are those of amqp_semantics.md section 4. `publish` is the hottest call of the broker:
what few queues need is behind `_rules`, a flag that is false for a queue without time limits,
length limits and tracing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import cast

from warren.core.backing.backing_queue import BackingQueue, MirroredLevel, answers_of
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.backing.publishing_again import publishing_again
from warren.core.errors import (
    AccessRefused,
    PreconditionFailed,
    no_queue,
)
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import MessageObserver, TracedClient
from warren.core.messages.message_stats import MessageStats
from warren.core.messages.settlement import PENDING, REJECTED, SETTLED, PublishConfirms, Settlement
from warren.core.messages.stock import Stock
from warren.core.messages.ways_out import WaysOut
from warren.core.queues.consumers import Blocked, Consumer
from warren.core.queues.messages_in_hand import MessagesInHand
from warren.core.queues.moving import Moving, Unanswered, move_consumers, publish_held
from warren.core.queues.queue import DeclaredQueue, Fetched, Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import DeathReason, LocalQueueOwner
from warren.core.queues.redelivery import Redelivery
from warren.core.queues.retention import Retention
from warren.core.queues.subscriptions import Subscriptions, cancel_all
from warren.core.queues.unkept import bury_unkept
from warren.core.scheduling.deadline import Deadline
from warren.core.scheduling.waiting import Event

DELIVERY_SLICE = 512
"""Messages handed over before other work gets a turn; about a millisecond."""

DELIVERY_SLICE_BYTES = 1 << 20
"""Body bytes handed over before the sockets get a turn."""

EXPIRY_SLICE = 1000
"""Expired messages dropped before other work gets a turn; a millisecond or two."""

GET_EXPIRY_SLICE = 20_000
"""Expired messages a basic.get looks past at once, before it says that there are none."""

DROP_SLICE = 1000
"""Messages dropped for a length limit before other work gets a turn."""

DROP_US = 2
"""What it costs to drop a message that expired, or is too much, as `core/scheduling/turns.py`
counts it."""

RESUME_US = 500
"""What it costs to go on delivering."""


class LocalQueue(Queue):
    """A queue that this node has: in a cluster, one that it leads."""

    is_here = True

    _vhost: LocalQueueOwner[Queue, LocalQueue]

    __slots__ = (
        "_expiry",
        "_has_expiring",
        "_held",
        "_in_hand",
        "_let_go",
        "_resume_scheduled",
        "_rules",
        "_sent_late",
        "_still",
        "_strict",
        "_turned_away",
        "_unused",
        "backing",
        "lacks_copies",
        "redelivery",
        "retained",
        "retention",
        "subscriptions",
        "unacked",
        "ways_out",
    )

    def __init__(
        self,
        vhost: LocalQueueOwner[Queue, LocalQueue],
        declared: DeclaredQueue,
        settings: QueueSettings,
        backing: BackingQueue,
    ) -> None:
        super().__init__(vhost, declared, settings)
        self.backing = backing
        self.subscriptions = self._new_subscriptions()
        # The ring and consumers of `subscriptions`, kept here because they are used often.
        self.ring = self.subscriptions.ring
        self.consumers = self.subscriptions.consumers
        self.unacked = 0
        self._sent_late = 0
        self._turned_away = 0
        self.ways_out = WaysOut()
        self.lacks_copies = False
        # None until an operator takes messages out, or asks which are out.
        self._in_hand: MessagesInHand | None = None
        # Keeps acknowledged messages, once it did; `retention` is the same object while it does.
        self.retained: Retention | None = None
        self.retention: Retention | None = None
        # Messages that are published while the queue is being handed over to another node.
        self._held: list[Unanswered] | None = None
        # The number of reasons for which the queue delivers nothing for a moment.
        self._still = 0
        # Happens when the queue stays here, or another object has taken the place of this one; or
        # when messages may be handed out that could not be before.
        self._let_go: Event | None = None
        # Counts the messages that come back.
        self.redelivery: Redelivery | None = None
        # When the first message expires; None until one can.
        self._expiry: Deadline | None = None
        self._has_expiring = backing.expiring
        # When the queue is deleted for want of use; None until it has `expires`.
        self._unused: Deadline | None = None
        self._resume_scheduled = False
        self._rules = self._strict = False
        self._take_settings(settings)
        if self._has_expiring:
            self._arm_expiry()

    def __len__(self) -> int:
        """Ready messages."""
        return self.backing.length

    def stock(self) -> Stock:
        """How much it holds: messages, wherever they are, and octets of ready ones."""
        return Stock(len(self) + self.unacked + self.set_aside[0], self.backing.ready_bytes)

    @property
    def has_ready(self) -> bool:
        """Whether a message waits here for a consumer."""
        return self.backing.length > 0

    @property
    def set_aside(self) -> tuple[int, int]:
        """Messages that are neither ready nor unacknowledged and count as in the queue, and the
        octets of their bodies: returned ones that wait, and those that operators have taken out."""
        redelivery, hand = self.redelivery, self._in_hand or ()
        octets = sum([message.body_bytes for message in hand])
        return self.waiting + len(hand), octets + (redelivery.waiting_bytes if redelivery else 0)

    @property
    def waiting(self) -> int:
        """Returned messages that wait before they are ready again."""
        return 0 if self.redelivery is None else len(self.redelivery)

    def waiting_messages(self) -> dict[Message, float]:
        """The returned messages that wait, and until when; the backing queue has them pending."""
        return {} if self.redelivery is None else self.redelivery.waiting()

    @property
    def one_by_one(self) -> bool:
        """Whether `publish_many` is not for it: there are rules."""
        return self._strict

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
        ready = self.ring.top
        count = len(bodies)
        if not ready or backing.length:
            backing.publish_many(envelopes, bodies, confirms, first_seq)
            return answers_of(backing, envelopes, confirms)
        if len(ready) > 1:
            each = zip(envelopes, bodies, range(first_seq, first_seq + count), strict=True)
            answers = [self.publish(envelope, body, confirms, seq) for envelope, body, seq in each]
            return () if confirms is None else answers
        consumer = ready[0]
        if consumer.no_ack:
            consumer.send_many(envelopes, bodies)
            if self._trace is not None:
                self._trace.sent_many(self, consumer.traced_as(), envelopes, bodies)
            if self.retention is not None:
                messages = backing.publish_many_delivered(envelopes, bodies, confirms, first_seq)
                self._sent_late += count
                self.retention.ack(messages)
                return answers_of(backing, envelopes, confirms)
            return () if confirms is None else (SETTLED,) * count
        # Take one message at least, or this would never end.
        room = max(1, consumer.capacity())
        if room < count:
            first = self.publish_many(envelopes[:room], bodies[:room], confirms, first_seq)
            rest_seq = first_seq + room
            rest = self.publish_many(envelopes[room:], bodies[room:], confirms, rest_seq)
            return (*first, *rest)
        messages = backing.publish_many_delivered(envelopes, bodies, confirms, first_seq)
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
        if self._held is not None:
            held = Unanswered(0, envelope, body, confirms, publish_seq, may_be_delivered=again)
            self._held.append(held)
            return PENDING if confirms is not None else SETTLED
        if self.lacks_copies:
            self._turn_away(envelope)
            return REJECTED
        settings = self.settings
        backing = self.backing
        if settings.overflow != "drop-head" and self._would_overflow(len(body)):
            self._turn_away(envelope)
            if settings.overflow == "reject-publish-dlx":
                return self._bury_unkept(
                    envelope, body, DeathReason.MAXLEN, REJECTED, confirms, publish_seq
                )
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
            return self._bury_unkept(
                envelope, body, DeathReason.EXPIRED, SETTLED, confirms, publish_seq
            )
        else:
            backing.publish(envelope, body, expires_at, confirms, publish_seq)
            if expires_at is not None:
                self._has_expiring = True
                self._arm_expiry()
            self._drop_excess()
        if confirms is not None and backing.defers_confirms:
            if envelope.persistent or backing.defers_transient:
                return PENDING
        return SETTLED

    def _turn_away(self, envelope: Envelope) -> None:
        """Count a publish as refused."""
        self._turned_away += 1
        self.ways_out.refused += 1
        if self._trace is not None:
            self._trace.refused(self, envelope)

    def _time_to_live_ms(self, envelope: Envelope) -> int | None:
        return self.settings.time_to_live_ms(envelope.expiration_ms)

    # Consuming

    @property
    def consumer_total(self) -> int:
        """The number of consumers, as clients and operators are told it."""
        return self.subscriptions.total

    @property
    def active_consumer(self) -> Consumer | None:
        """The single active consumer, in a queue that has one."""
        return self.subscriptions.active

    def _new_subscriptions(self) -> Subscriptions:
        return Subscriptions()

    def add_consumer(self, consumer: Consumer) -> None:
        """Subscribe. Raises `AccessRefused` when there is an exclusive consumer.

        The consumer is blocked until the caller's `deliver`, so that its reply can go out first.
        """
        single_active = self.settings.single_active_consumer
        if not self.subscriptions.admits(consumer, single_active=single_active):
            raise AccessRefused(f"{self.described} in exclusive use")
        self._stop_expires()
        self.subscriptions.add(consumer, single_active=single_active)

    def not_taken(self, messages: Iterable[Message]) -> None:
        """These messages, which are about to be put back, never reached the consumers that hold
        them. Nothing to do, but for streams, which take no messages back."""

    def remove_consumer(self, consumer: Consumer) -> Event | None:
        """Unsubscribe. Its unacknowledged messages stay with the channel."""
        return self.remove_consumers((consumer,))

    def remove_consumers(self, consumers: Collection[Consumer]) -> Event | None:
        """`remove_consumer` for many: each looks at all consumers of the queue."""
        gone = frozenset(consumers)
        self._vhost.turns.spend(self.subscriptions.remove_all(gone))
        self._unsubscribed(gone)
        return None

    def _unsubscribed(self, gone: Collection[Consumer]) -> None:
        subscriptions = self.subscriptions
        if subscriptions.active in gone and not self.deleted and subscriptions.activate_next():
            self._resume_soon()
        if not self.consumers and not self.deleted:
            if self.auto_delete:
                self._vhost.queue_unused(self)
            else:
                self.touch()

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
            if len(ready) == 1 and not (self._strict or self._has_expiring or consumer.no_ack):
                taken = self._hand_over_many(consumer, messages_left)
                if not taken or not backing.length:
                    return
                messages_left -= taken
                ready = ring.top
                continue
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
        """Fetch one message for basic.get; it is unacknowledged unless `no_ack`.

        None while the queue is empty, or `is_withheld`. What expired behind the message is dropped.
        """
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
        """The envelope that a client is shown of a message that `get` has returned."""
        if self.redelivery is None or no_ack:
            return message.envelope
        return self.redelivery.shown(self.backing, message)

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
        dead = sorted(messages, key=lambda message: message.position)
        self.unacked -= len(dead)
        self.given_back += len(dead)
        self.ways_out.rejected += len(dead)
        self._bury(dead, DeathReason.REJECTED)

    def buried(self, messages: list[Message]) -> None:
        """Drop these messages: their dead letters are safe, so nothing is lost."""
        if not self.deleted:
            self.backing.ack(messages)

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
        """Make these pending messages ready, in their places."""
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

    @property
    def levels(self) -> list[MirroredLevel]:
        """The backing queues that operators can look at: one, or one for each priority."""
        backing = self.backing
        levels = backing.levels if isinstance(backing, PriorityQueue) else [backing]
        return cast("list[MirroredLevel]", levels)

    @property
    def in_hand(self) -> MessagesInHand:
        """The messages that operators have taken out."""
        if self._in_hand is None:
            self._in_hand = self._new_hand()
        return self._in_hand

    def _new_hand(self) -> MessagesInHand:
        return MessagesInHand(self)

    def abandoned(self, messages: list[Message]) -> None:
        self.requeue(messages)

    def pause_delivery(self) -> None:
        self._still += 1
        self._find_rules()

    def resume_delivery(self) -> None:
        self._still -= 1
        self._find_rules()
        if not self.deleted:
            self.deliver()

    def set_lacks_copies(self, lacks: bool) -> None:
        """Set whether publishes are refused because too few nodes have the queue."""
        if lacks != self.lacks_copies:
            self.lacks_copies = lacks
            self._find_rules()

    def withhold(self) -> None:
        """Messages that are ready may not be handed out yet, and fetches give none, until
        `hand_out`: other nodes are to hear of it first."""
        self._let_go = self._let_go or Event()

    def hand_out(self) -> None:
        """Hand messages out again: the other nodes have heard of them."""
        if self._held is None:
            self._hold_is_over()
        self._resume_soon()

    @property
    def is_withheld(self) -> bool:
        """Whether a `basic.get` has to wait, because the queue is held or its messages are."""
        return self._let_go is not None

    def purge(self) -> int:
        """Drop all ready messages; returns how many."""
        if self._trace is not None:
            self._trace.emptied(self, False)
        count = self.backing.purge()
        self.ways_out.purged += count
        self._has_expiring = False
        return count

    # The same, wherever the queue is

    async def subscribe(self, consumer: Consumer) -> None:
        """`add_consumer`."""
        self.add_consumer(consumer)

    async def counts(self) -> tuple[int, int]:
        self.touch()
        return self.backing.length, self.consumer_total

    async def get_one(self, no_ack: bool, client: TracedClient) -> Fetched:
        """`get`, when the queue is not withheld; where it is handed over, from what stands for it
        then.

        Raises `NotFound` when it is deleted meanwhile.
        """
        if not self.is_withheld:
            message = self.get(no_ack, client)
            if message is not None or not self.is_withheld:
                return Fetched(message, self.backing.length, self)
        return await (await self._after_hand_over()).get_one(no_ack, client)

    async def empty(self) -> int:
        """`purge`; where the queue is handed over, of what stands for it then.

        Raises `NotFound` when it is deleted meanwhile.
        """
        if self.is_held:
            return await (await self._after_hand_over()).empty()
        return self.purge()

    async def _after_hand_over(self) -> Queue:
        """Return the object that stands for the queue when it has been handed over, or stays."""
        await self.let_go()
        current = self._vhost.current(self)
        if current is None or current.deleted:
            raise no_queue(self.name, self._vhost.name)
        return current

    async def end(self, *, if_unused: bool, if_empty: bool) -> None:

        def check() -> None:
            self.check_deletable(if_unused=if_unused, if_empty=if_empty)

        await self._vhost.end_queue(self, check)

    def stats(self) -> MessageStats:
        """How many messages passed through. Deliveries are worked out from what they led to.

        A publish that was neither kept nor turned away went straight to a consumer that
        acknowledges nothing.
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

    def check_deletable(self, *, if_unused: bool, if_empty: bool) -> None:
        """Raise `PreconditionFailed` when a conditional delete must not go through."""
        if if_empty and (self.backing.length or self.set_aside[0]):
            raise PreconditionFailed(f"{self.described} not empty")
        if if_unused:
            self.check_unused()

    def check_unused(self) -> None:
        """Raise `PreconditionFailed` when the queue has consumers."""
        if self.consumers:
            raise PreconditionFailed(f"{self.described} in use")

    def delete(self) -> None:
        """End the queue: forget its messages, cancel its consumers."""
        self.left_ready = self.backing.length
        if self._trace is not None:
            self._trace.emptied(self, True)
        self.deleted = True
        self._stop_timers()
        self._vhost.burials.queue_ends(self)
        self.backing.delete()
        if self.retained is not None:
            self.retained.delete()
        self.unacked = 0
        held, self._held = self._held, None
        for publish in held or ():
            # The message cannot be sent again: by now another queue may have the name.
            if publish.confirms is not None:
                publish.confirms.refuse(publish.publish_seq)
        consumers = list(self.consumers)
        self.remove_consumers(consumers)
        cancel_all(consumers, self._vhost.turns)
        self._hold_is_over()

    # Moving to another leader

    def is_led_as(self, leader: str, epoch: int, here: bool) -> bool:
        return here

    def hold(self) -> None:
        """Keep everything as it is, for a moment, so that another node can take over.

        What is published is held back, and nothing is delivered, nor does anything expire. Verdicts
        may get lost: what they are about is delivered again then.
        """
        assert self._held is None
        if self.retention is not None:
            self.retention.catch_up()
        self._held = []
        self._let_go = self._let_go or Event()
        self._find_rules()
        for consumer in self.consumers:
            consumer.block(Blocked.MOVING)

    def all_buried(self) -> Event:
        """Return an event for when the dead letters of this queue are safe; but while operators
        have taken messages out, for when these are settled: the caller then asks again."""
        if self._in_hand:
            return self._in_hand.all_settled()
        return self._vhost.burials.all_buried(self)

    @property
    def is_held(self) -> bool:
        return self._held is not None

    async def let_go(self) -> None:
        """Return when the queue is neither being handed over nor withheld any more."""
        if self._let_go is not None:
            await self._let_go

    def release(self) -> None:
        """Go on after `hold`: the queue stays where it is."""
        held, self._held = self._held, None
        self._find_rules()
        self._keep_rules()
        publish_held(self, held or ())
        for consumer in list(self.consumers):
            consumer.unblock(Blocked.MOVING)
        if self.redelivery is not None:
            self.redelivery.set_timer()
        self.touch()
        self.deliver()
        self._hold_is_over()

    def move_out(self) -> Moving:
        self.deleted = True
        self._stop_timers()
        consumers = [consumer for consumer in self.consumers if consumer.is_local]
        self.consumers.clear()
        self._vhost.burials.queue_moves(self)
        self.backing.delete()
        if self.retained is not None:
            self.retained.delete()
        return Moving(consumers, self._held or [])

    def succeeded_by(self, queue: Queue) -> None:
        self._hold_is_over()

    def _hold_is_over(self) -> None:
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go.happen()

    def move_in(self, consumers: Iterable[Consumer]) -> None:
        """Go on serving the consumers of the object that stood for the queue before."""
        move_consumers(consumers, self)
        self.deliver()

    def stop(self) -> None:
        if self.retained is not None:
            self.retained.stop()
        self.backing.stop()

    def touch(self) -> None:
        expires_ms = self.settings.expires_ms
        if expires_ms is None or self.consumers or self.deleted:
            self._stop_expires()
            return
        if self._unused is None:
            self._unused = Deadline(self._vhost.clock, self._expires)
        self._unused.restart(expires_ms / 1000)

    def apply_settings(self, settings: QueueSettings) -> None:
        self._take_settings(settings)
        self.keep_limits()

    def keep_limits(self) -> None:
        """Drop what is too much: after a restart, or at another node, limits may be others.

        Not done by the constructor: watchers of the queue are to see it before it drops anything.
        """
        if self.retained is not None or self.settings.retention is not None:
            self._vhost.follow_retention(self)
            self._find_rules()
        self._drop_excess()

    def _take_settings(self, settings: QueueSettings) -> None:
        expires_changed = self.settings.expires_ms != settings.expires_ms
        self.settings = settings
        self.backing.set_mode(settings.queue_mode)
        self._follow_returns()
        self._find_rules()
        if expires_changed or self._unused is None or not self._unused.is_set:
            self.touch()

    def _follow_returns(self) -> None:
        """Count what comes back from now on, or no more once nothing waits."""
        counts = self.settings.counts_returns and self.is_here
        if self.redelivery is not None:
            self.redelivery.ends = not counts
            self._end_waits()
        elif counts:
            self.redelivery = Redelivery(self._vhost.codec, self._vhost.clock, self._end_waits)

    def trace_with(self, observer: MessageObserver | None) -> None:
        super().trace_with(observer)
        self._find_rules()

    def _find_rules(self) -> None:
        settings = self.settings
        # Whether the queue has something to do for each message by itself.
        self._strict = (
            settings.message_ttl_ms is not None
            or settings.has_length_limit
            or self.redelivery is not None
            or (self._trace is not None and not self._trace.takes_batches)
            or self._held is not None
            or self._still > 0
            or self.lacks_copies
        )
        self._rules = self._strict or self._trace is not None or self.retention is not None

    def _expires(self) -> None:
        """Delete the queue if it is unused: the time that `expires` says is over."""
        if self._held is not None:
            # Another node is taking the lead, and may have users of the queue.
            return
        if not self.consumers:
            self._vhost.queue_unused(self)

    def _stop_expires(self) -> None:
        if self._unused is not None:
            self._unused.cancel()

    def _stop_timers(self) -> None:
        """Have nothing expire or wait here any more: the queue ends, or moves."""
        self._stop_expires()
        if self._expiry is not None:
            self._expiry.cancel()
        if self.redelivery is not None:
            self.redelivery.stop()
        self._unused = self._expiry = self.redelivery = None
        self._in_hand = self._in_hand or None  # Empty, it would only keep this object alive.

    # Handing over

    def _send_message(self, consumer: Consumer, message: Message) -> None:
        """`_send` a message that the queue had kept."""
        if self._rules:
            envelope = self._envelope_delivered(message)
            self._send(consumer, envelope, message.body, message.redelivered)
            return
        consumer.send(message.envelope, message.body, message.redelivered)

    def _hand_over(self, consumer: Consumer, message: Message) -> None:
        if self._rules:
            self._hand_over_by_rules(consumer, message)
            return
        self.unacked += 1
        consumer.take(message)

    def _hand_over_by_rules(self, consumer: Consumer, message: Message) -> None:
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
        """Give the only consumer what it can take, up to a limit. Returns how many it took."""
        backing = self.backing
        # By the average size, so that large bodies do not make a slice long.
        by_size = 1 + DELIVERY_SLICE_BYTES * backing.length // (backing.ready_bytes + 1)
        messages = backing.fetch_many(min(limit, by_size, consumer.capacity()))
        self.unacked += len(messages)
        consumer.take_many(messages)
        if self._trace is not None:
            self._trace.handed_over_many(self, consumer.traced_as(), messages)
        if by_size < limit:
            return max(len(messages), limit * len(messages) // by_size)
        return len(messages)

    def _resume_soon(self) -> None:
        if not self._resume_scheduled:
            self._resume_scheduled = True
            self._vhost.turns.soon(self._resume)

    def _resume(self) -> None:
        self._resume_scheduled = False
        self._vhost.turns.spend(RESUME_US)
        if not self.deleted:
            self._drop_excess()
            self.deliver()

    # Deaths

    def _bury(self, dead: list[Message], reason: DeathReason) -> None:
        """Bury these pending messages: they leave at once, or when their dead letters are safe."""
        if self._trace is not None:
            self._trace.died(self, [message.envelope for message in dead], reason)
        if self.settings.dead_letter_exchange is None:
            self.backing.ack(dead)
        else:
            self._vhost.burials.bury(self, dead, reason)

    def _bury_unkept(
        self,
        envelope: Envelope,
        body: bytes,
        reason: DeathReason,
        answer: Settlement,
        confirms: PublishConfirms | None,
        publish_seq: int,
    ) -> Settlement:
        """A publish died here and was never kept. Its publisher gets the answer when the dead
        letter is safe."""
        if self._trace is not None:
            self._trace.died(self, (envelope,), reason)
        if self.settings.dead_letter_exchange is None:
            return answer
        message = Message(envelope, body, -1, None)
        burials = self._vhost.burials
        return bury_unkept(burials, self, message, reason, answer, confirms, publish_seq)

    # Length limits

    def _would_overflow(self, body_size: int) -> bool:
        backing = self.backing
        return self.settings.exceeded(backing.length + 1, backing.ready_bytes + body_size)

    def _keep_rules(self) -> None:
        """Drop what has expired, or is too much."""
        if self._has_expiring:
            self._drop_expired(EXPIRY_SLICE)
        self._drop_excess()

    def _drop_excess(self) -> None:
        """Drop from the head until within the limits, a slice at a time."""
        settings = self.settings
        if settings.overflow != "drop-head" or self._held is not None:
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
            # Another message is the head now.
            self._drop_expired(EXPIRY_SLICE)

    def _over_limit(self) -> bool:
        backing = self.backing
        return backing.length > 0 and self.settings.exceeded(backing.length, backing.ready_bytes)

    # Expiry

    def _drop_expired(self, limit: int) -> bool:
        """Drop up to `limit` expired messages. False when there may be more.

        While the queue is held nothing expires; `release` looks again.
        """
        if self._held is not None:
            return True
        expired = self.backing.fetch_expired(self._vhost.clock.now(), limit)
        if expired:
            self._vhost.turns.spend(len(expired) * DROP_US)
            self.ways_out.expired += len(expired)
            self._bury(expired, DeathReason.EXPIRED)
        self._arm_expiry()
        return len(expired) < limit

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
