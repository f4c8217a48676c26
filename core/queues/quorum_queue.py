"""A quorum queue: its differences from a classic queue (quorum_queues.md sections 3 to 5).

Answerable for delivery counts and the delivery limit, for where returned messages go, for the
consumers' credit, and for what counts towards length limits. How returned messages are kept is the
business of its level (`quorum_level.py`), and what becomes of dead ones that of the burials.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, cast

from warren.core.backing.backing_queue import ReturningQueue
from warren.core.errors import ResourceLocked, Unsupported
from warren.core.messages.message import Envelope, Message, parted_by_expiry
from warren.core.messages.message_observer import TracedClient
from warren.core.messages.settlement import PublishConfirms, Settlement
from warren.core.queues.classic_queue import ClassicQueue
from warren.core.queues.consumers import NO_LIMIT, Consumer
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import DeclaredQueue, Queue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_owner import DeathReason, LocalQueueOwner
from warren.core.queues.quorum_level import QuorumLevel
from warren.core.queues.redelivery import CountedEnvelopes
from warren.core.queues.subscriptions import QuorumSubscriptions, Subscriptions

CREDIT: Final = 2000
"""Unacknowledged messages that a consumer without a prefetch limit may have."""

OPEN_AGAIN: Final = 0.8
"""A queue that refuses publishes takes them again when it is down to this share of its limit."""

REASONS: Final = {
    1: DeathReason.REJECTED,
    2: DeathReason.EXPIRED,
    3: DeathReason.MAXLEN,
    4: DeathReason.DELIVERY_LIMIT,
}
"""The reasons of deaths, as numbers in the storage."""
NUMBERS: Final = {reason: number for number, reason in REASONS.items()}


class QuorumQueue(ClassicQueue):
    """A quorum queue. `level` keeps its counts: the backing queue itself, or the level that a
    leader's one wraps."""

    __slots__ = ("_counted", "_kept", "_kept_bytes", "_refusing", "level")

    subscriptions: QuorumSubscriptions

    def __init__(
        self,
        vhost: LocalQueueOwner[Queue, LocalQueue],
        declared: DeclaredQueue,
        settings: QueueSettings,
        level: QuorumLevel,
    ) -> None:
        self.level = level
        self._counted = CountedEnvelopes(vhost.codec)
        # Whether the queue was too long and is not short enough yet.
        self._refusing = False
        # Dead messages that stay until their dead letters are safe: their positions and octets.
        self._kept: dict[int, int] = {}
        self._kept_bytes = 0
        super().__init__(vhost, declared, settings, level)

    @property
    def set_aside(self) -> tuple[int, int]:
        """Count dead messages, too, until their dead letters are safe."""
        count, octets = super().set_aside
        return count + len(self._kept), octets + self._kept_bytes

    def _time_to_live_ms(self, envelope: Envelope) -> int | None:
        ttl_ms = super()._time_to_live_ms(envelope)
        # As in RabbitMQ: a waiting consumer gets the message, otherwise it expires soon.
        return 1 if ttl_ms == 0 else ttl_ms

    # Consumers

    def _new_subscriptions(self) -> Subscriptions:
        return QuorumSubscriptions(self._vhost.clock)

    def add_consumer(self, consumer: Consumer) -> None:
        super().add_consumer(consumer)
        if consumer.prefetch == NO_LIMIT and not consumer.no_ack:
            consumer.prefetch = CREDIT

    def ack(self, messages: Collection[Message]) -> None:
        super().ack(messages)
        if self.subscriptions.leaving:
            self.subscriptions.forget_leavers()

    def delete(self) -> None:
        super().delete()
        self.subscriptions.leaving.clear()

    def _expires(self) -> None:
        if self.consumers or not self.consumer_total:
            super()._expires()
        else:
            self.touch()

    async def counts(self) -> tuple[int, int]:
        """Return the counts of `queue.declare-ok`: as in RabbitMQ, without the consumers that wait
        to become the active one."""
        ready, consumers = await super().counts()
        if self.active_consumer is not None:
            consumers -= len(self.consumers) - 1
        return ready, consumers

    # Delivery counts

    def _send_message(self, consumer: Consumer, message: Message) -> None:
        count = self.level.counts.get(message.position)
        envelope = message.envelope
        if count is not None:
            message.envelope = self._counted.of(envelope, count)
        super()._send_message(consumer, message)
        message.envelope = envelope

    def _hand_over(self, consumer: Consumer, message: Message) -> None:
        count = self.level.counts.get(message.position)
        if count is None:
            super()._hand_over(consumer, message)
            return
        # The client is sent an envelope with the count; the queue keeps the one without.
        envelope = message.envelope
        message.envelope = self._counted.of(envelope, count)
        super()._hand_over(consumer, message)
        message.envelope = envelope

    def _hand_over_many(self, consumer: Consumer, limit: int) -> int:
        if not self.level.counts:
            return super()._hand_over_many(consumer, limit)
        message = self.backing.fetch()
        if message is None:
            return 0
        _, expired = parted_by_expiry([message], self._vhost.clock.now())
        if expired:
            self._expired(expired)
        else:
            self._hand_over(consumer, message)
        return 1

    def get(self, no_ack: bool, client: TracedClient) -> Message | None:
        if self.settings.single_active_consumer:
            raise ResourceLocked(
                f"cannot obtain access to locked {self.described}. basic.get operations are not "
                "supported by quorum queues with single active consumer"
            )
        message = super().get(False, client)
        if message is not None and no_ack:
            # The message is gone in a moment, and its count with it.
            message.envelope = self.envelope_got(message, False)
            self.got -= 1
            self.got_no_ack += 1
            self.unacked -= 1
            if self._trace is not None:
                self._trace.acknowledged(self, (message,))
            (self.retention or self.backing).ack((message,))
        return message

    def envelope_got(self, message: Message, no_ack: bool) -> Envelope:
        if no_ack:
            return message.envelope
        return self._counted.of(message.envelope, self.level.counts.get(message.position, 0))

    # Returns

    def requeue(self, messages: list[Message], *, delivered: bool = True) -> None:
        """Return delivered messages: to the end, or with a delivery limit to the head."""
        if delivered:
            self._take_back(messages, last=self.settings.delivery_limit is None)
        else:
            super().requeue(messages, delivered=False)

    def abandoned(self, messages: list[Message]) -> None:
        self._take_back(messages, last=False)

    def _take_back(self, messages: list[Message], *, last: bool) -> None:
        if self.deleted:
            return
        self.unacked -= len(messages)
        self.given_back += len(messages)
        limit = self.settings.delivery_limit
        if limit is None:
            dead = []
        else:
            times = self.level.counts.get
            dead = [message for message in messages if times(message.position, 0) >= limit]
            if dead:
                messages = [message for message in messages if times(message.position, 0) < limit]
        for message in messages:
            message.redelivered = True
            if message.expires_at is not None:
                self._has_expiring = True
        if messages:
            if self._trace is not None:
                self._trace.requeued(self, messages)
            cast(ReturningQueue, self.backing).give_back(messages, last=last)
        if dead:
            self.ways_out.rejected += len(dead)
            self._bury(dead, DeathReason.DELIVERY_LIMIT)
        # As in RabbitMQ, messages that a consumer takes at once do not count towards the limits.
        self.deliver()
        self._keep_rules()

    # Deaths

    def _bury(self, dead: list[Message], reason: DeathReason) -> None:
        if self.settings.dead_letter_exchange is None:
            self._vhost.burials.died(self, len(dead), reason)
        if self.settings.keeps_dead:
            for message in dead:
                self._kept[message.position] = message.body_bytes
                self._kept_bytes += message.body_bytes
            cast(ReturningQueue, self.backing).mark_dead(dead, NUMBERS[reason])
        super()._bury(dead, reason)

    def buried(self, messages: list[Message]) -> None:
        for message in messages:
            self._kept_bytes -= self._kept.pop(message.position, 0)
        super().buried(messages)

    def keep_limits(self) -> None:
        self._bury_again()
        super().keep_limits()

    def _bury_again(self) -> None:
        """Bury the messages that had died before this node started, or led the queue.

        Every message before a dead one had been delivered, so only few have to be looked at.
        """
        marks = self.level.dead_marks
        left = marks.keys() - self._kept.keys() if marks else set()
        last = max(left, default=-1)
        living: list[Message] = []
        while left and (message := self.backing.fetch_to_drop()) is not None:
            if message.position in left:
                left.remove(message.position)
                self._bury([message], REASONS[marks.pop(message.position)])
                continue
            living.append(message)
            if message.position > last:
                break
        if living:
            self.backing.requeue(living)

    # Length limits

    def _over_limit(self) -> bool:
        return self.backing.length > 0 and self._is_longer_than(1)

    def _publish_by_rules(
        self,
        envelope: Envelope,
        body: bytes,
        confirms: PublishConfirms | None,
        publish_seq: int,
        *,
        again: bool = False,
    ) -> Settlement:
        settlement = super()._publish_by_rules(envelope, body, confirms, publish_seq, again=again)
        if self.settings.overflow != "drop-head" and not self._refusing:
            # This message may have been the one too many.
            self._refusing = self._is_longer_than(1)
        return settlement

    def _would_overflow(self, octets: int) -> bool:
        """Whether the queue refuses publishes: once it is too long, until it is short enough."""
        self._refusing = self._is_longer_than(OPEN_AGAIN if self._refusing else 1)
        return self._refusing

    def _has_room(self, count: int, octets: int) -> bool:
        return not (self._would_overflow(octets) or self._is_longer_than(1, count, octets))

    def _is_longer_than(self, part: float, count: int = 0, octets: int = 0) -> bool:
        """Whether it exceeds this part of a limit, with `count` more messages of `octets`."""
        settings = self.settings
        # After a change of policy, dead letters still kept from before must not push out messages.
        kept = (len(self._kept), self._kept_bytes) if settings.keeps_dead else (0, 0)
        return (
            settings.max_length is not None
            and self.backing.length + count + kept[0] > settings.max_length * part
        ) or (
            settings.max_length_bytes is not None
            and self.backing.ready_bytes + octets + kept[1] > settings.max_length_bytes * part
        )

    # Life

    def check_deletable(self, *, if_unused: bool, if_empty: bool) -> None:
        """Raise `Unsupported`: conditional deletion of quorum queues is not supported."""
        for wanted, flag in ((if_unused, "if-unused"), (if_empty, "if-empty")):
            if wanted:
                raise Unsupported(
                    f"cannot delete {self.described}. queue.delete operations with {flag} flag "
                    "set are not supported by quorum queues"
                )
