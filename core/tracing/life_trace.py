"""Records the lives of messages of one virtual host: of those that a rule selects when they are
published, all that becomes of them, in whatever queue.

A message is known by its id (`ContentCodec.message_name`): the property `message_id`, else
`correlation_id`, else the header `traceparent`. Ids of selected messages are *followed*
(`tracer.py`), at all nodes of a cluster, and whatever happens to a message with such an id is
recorded. So nothing has to be added to messages, and it makes no difference where they are: on
disk, at another node, or in a dead letter queue that no rule names.

A queue reports what happens in it (`Queue.trace_with`) from the first time on that a followed
message is about to be in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from warren.core.field import json_text
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_filter import (
    SEARCHED_BYTES,
    FilterTooSlow,
    MessageState,
    Subject,
)
from warren.core.messages.message_observer import MessageObserver, TracedClient, TracedQueue
from warren.core.tracing.trace_record import TraceEvent, TraceRecord
from warren.core.tracing.trace_rules import Rule
from warren.core.tracing.tracer import Tracer

LOOK_US = 3
"""The cost of finding out whether a message is followed, in the microseconds of
`core/scheduling/turns.py`."""

FILTER_US = 10
FILTERED_BYTES_PER_US = 256
"""The cost of a filter, and the octets of a body that it examines in a microsecond."""

DEATHS: Final = {
    "rejected": TraceEvent.REJECTED,
    "expired": TraceEvent.EXPIRED,
    "maxlen": TraceEvent.DROPPED,
    "delivery_limit": TraceEvent.RETURNED_TOO_OFTEN,
}

ACTIONS: Final = {
    "move": TraceEvent.MOVED,
    "requeue": TraceEvent.MOVED,
    "redrive": TraceEvent.MOVED,
    "copy": TraceEvent.COPIED,
    "replay": TraceEvent.REPLAYED,
    "delete": TraceEvent.DELETED,
}
"""The operations of operators on messages."""


class LifeTrace(MessageObserver):
    """The trace of one virtual host. `watched` are the names of the queues that report to it;
    `watch` is called for a queue that is to do so from now on."""

    def __init__(
        self, vhost: str, rules: Iterable[Rule], tracer: Tracer, watched: Iterable[str] = ()
    ) -> None:
        self.watched = set(watched)
        self.watch: Callable[[TracedQueue], None] = lambda queue: None
        self._vhost = vhost
        self._rules = tuple(rules)
        self._tracer = tracer
        self._codec = tracer.codec

    def may_select(self, user: str, queues: Sequence[TracedQueue] | None) -> bool:
        """Whether a message that the user publishes to these queues may be selected."""
        names = None if queues is None else [queue.name for queue in queues]
        return any(rule.may_select_from(user, names) for rule in self._rules)

    # `MessageObserver`

    def published(
        self,
        publisher: TracedClient,
        envelope: Envelope,
        body: bytes,
        queues: Sequence[TracedQueue],
    ) -> None:
        name = self._name(envelope)
        rule = ""
        if name is None or not self._tracer.is_followed(self._vhost, name):
            selected = self._selected_by(publisher.user, envelope, body, queues, name)
            if selected is None:
                return
            rule = selected.name
            if name is None:
                self._tracer.nameless += 1
                return
            if not self._tracer.follow(self._vhost, name):
                return
        self._watch_all(queues)
        context = self._codec.trace_context(envelope.header)
        record = self._record(TraceEvent.PUBLISHED, name, envelope)
        record.queues = tuple([queue.name for queue in queues])
        record.connection, record.channel, record.user, _ = publisher
        record.size = len(body)
        record.rule = rule
        record.traceparent, record.tracestate = context
        self._tracer.add(record)

    @property
    def takes_batches(self) -> bool:
        # A filter may take a millisecond for a message, so the turn is looked at after each one.
        return not any(rule.filters for rule in self._rules)

    def published_many(
        self,
        publisher: TracedClient,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        queues: Sequence[TracedQueue],
    ) -> None:
        self._tracer.turns.spend(LOOK_US * len(bodies))
        names = [queue.name for queue in queues]
        user, vhost = publisher.user, self._vhost
        rules = [rule for rule in self._rules if rule.may_select_from(user, names)]
        name_of, is_followed = self._codec.message_name, self._tracer.is_followed
        for envelope, body in zip(envelopes, bodies, strict=True):
            name = name_of(envelope.header)
            if (
                name is None
                or is_followed(vhost, name)
                or any([rule.is_its_turn(name) for rule in rules])
            ):
                # It may be one of the few: `published` finds out all about it.
                self.published(publisher, envelope, body, queues)

    def sent_many(
        self,
        queue: TracedQueue,
        recipient: TracedClient,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
    ) -> None:
        for at in self._followed_among(envelopes):
            self.delivered(queue, recipient, envelopes[at], bodies[at], False, True)

    def handed_over_many(
        self, queue: TracedQueue, recipient: TracedClient, messages: Sequence[Message]
    ) -> None:
        for at in self._followed_among([message.envelope for message in messages]):
            message = messages[at]
            envelope, body = message.envelope, message.body
            self.delivered(queue, recipient, envelope, body, message.redelivered, False)

    def unroutable(self, envelope: Envelope, returned: bool) -> None:
        name = self._followed(envelope)
        if name is not None:
            event = TraceEvent.RETURNED if returned else TraceEvent.UNROUTABLE
            self._tracer.add(self._record(event, name, envelope))

    def arrived(self, queue: TracedQueue, envelope: Envelope, from_node: str) -> None:
        name = self._followed(envelope)
        if name is not None:
            self._watch_all((queue,))
            record = self._record(TraceEvent.ARRIVED, name, envelope, queue.name)
            record.from_node = from_node
            record.traceparent, record.tracestate = self._codec.trace_context(envelope.header)
            self._tracer.add(record)

    def mirrored(self, queue: str, envelope: Envelope) -> None:
        name = self._followed(envelope)
        if name is not None:
            # Should this node lead the queue one day, the queue is to report.
            self.watched.add(queue)
            self._tracer.add(self._record(TraceEvent.MIRRORED, name, envelope, queue))

    def refused(self, queue: TracedQueue, envelope: Envelope) -> None:
        self._note(TraceEvent.REFUSED, queue, (envelope,))

    def duplicate(self, queue: TracedQueue, envelope: Envelope) -> None:
        self._note(TraceEvent.DUPLICATE, queue, (envelope,))

    def delivered(
        self,
        queue: TracedQueue,
        recipient: TracedClient,
        envelope: Envelope,
        body: bytes,
        redelivered: bool,
        no_ack: bool,
    ) -> None:
        name = self._followed(envelope)
        if name is None or not queue.is_here:
            return
        record = self._record(TraceEvent.DELIVERED, name, envelope, queue.name)
        record.connection, record.channel, record.user, _ = recipient
        record.redelivered = redelivered
        record.no_ack = no_ack
        record.size = len(body)
        # The maker of spans may not have seen how the message came here.
        record.traceparent, record.tracestate = self._codec.trace_context(envelope.header)
        self._tracer.add(record)

    def rolled_back(self, envelope: Envelope, queues: Sequence[TracedQueue]) -> None:
        name = self._followed(envelope)
        if name is not None:
            record = self._record(TraceEvent.ROLLED_BACK, name, envelope)
            record.queues = tuple([queue.name for queue in queues])
            self._tracer.add(record)

    def acknowledged(self, queue: TracedQueue, messages: Collection[Message]) -> None:
        self._note(TraceEvent.ACKNOWLEDGED, queue, [message.envelope for message in messages])

    def requeued(self, queue: TracedQueue, messages: Collection[Message]) -> None:
        self._note(TraceEvent.REQUEUED, queue, [message.envelope for message in messages])

    def died(self, queue: TracedQueue, envelopes: Collection[Envelope], reason: str) -> None:
        self._note(DEATHS[reason], queue, list(envelopes))

    def due(self, queue: TracedQueue, messages: Collection[Message]) -> None:
        self._note(TraceEvent.DUE, queue, [message.envelope for message in messages])

    def dead_lettered(
        self, queue: TracedQueue, envelope: Envelope, targets: Sequence[TracedQueue]
    ) -> None:
        self._passed_on(TraceEvent.DEAD_LETTERED, queue, envelope, targets)

    def sent_on(
        self, queue: TracedQueue, envelope: Envelope, targets: Sequence[TracedQueue]
    ) -> None:
        self._passed_on(TraceEvent.SENT_ON, queue, envelope, targets)

    def taken(
        self, queue: TracedQueue, action: str, envelope: Envelope, targets: Sequence[TracedQueue]
    ) -> None:
        self._passed_on(ACTIONS[action], queue, envelope, targets)

    def emptied(self, queue: TracedQueue, deleted: bool) -> None:
        event = TraceEvent.QUEUE_DELETED if deleted else TraceEvent.PURGED
        tracer = self._tracer
        now = int(tracer.clock.wall_time() * 1_000_000)
        tracer.add(TraceRecord(now, event, "", self._vhost, tracer.node, queue.name))

    # Inside

    def _passed_on(
        self,
        event: TraceEvent,
        queue: TracedQueue,
        envelope: Envelope,
        targets: Sequence[TracedQueue],
    ) -> None:
        name = self._followed(envelope)
        if name is not None:
            self._watch_all(targets)
            record = self._record(event, name, envelope, queue.name)
            record.queues = tuple([target.name for target in targets])
            self._tracer.add(record)

    def _note(self, event: TraceEvent, queue: TracedQueue, envelopes: Sequence[Envelope]) -> None:
        for at in self._followed_among(envelopes):
            envelope = envelopes[at]
            name = self._codec.message_name(envelope.header) or ""
            self._tracer.add(self._record(event, name, envelope, queue.name))

    def _record(
        self, event: TraceEvent, name: str, envelope: Envelope, queue: str = ""
    ) -> TraceRecord:
        tracer = self._tracer
        now = int(tracer.clock.wall_time() * 1_000_000)
        return TraceRecord(
            now,
            event,
            name,
            self._vhost,
            tracer.node,
            queue,
            envelope.exchange,
            json_text(envelope.routing_key),
        )

    def _name(self, envelope: Envelope) -> str | None:
        self._tracer.turns.spend(LOOK_US)
        return self._codec.message_name(envelope.header)

    def _followed(self, envelope: Envelope) -> str | None:
        """The id of a message that is followed, else None."""
        name = self._name(envelope)
        return name if name is not None and self._tracer.is_followed(self._vhost, name) else None

    def _followed_among(self, envelopes: Sequence[Envelope]) -> list[int]:
        """Return the places of those of these messages that are followed: few of many."""
        self._tracer.turns.spend(LOOK_US * len(envelopes))
        vhost, followed = self._vhost, self._tracer.all_followed
        name_of = self._codec.message_name
        return [
            at
            for at, envelope in enumerate(envelopes)
            if (vhost, name_of(envelope.header)) in followed
        ]

    def _watch_all(self, queues: Sequence[TracedQueue]) -> None:
        for queue in queues:
            if queue.is_here and queue.name not in self.watched:
                self.watched.add(queue.name)
                self.watch(queue)

    def _selected_by(
        self,
        user: str,
        envelope: Envelope,
        body: bytes,
        queues: Sequence[TracedQueue],
        name: str | None,
    ) -> Rule | None:
        """The first rule that selects the message."""
        names = [queue.name for queue in queues]
        subject: Subject | None = None
        for rule in self._rules:
            if name is not None and not rule.is_its_turn(name):
                continue
            if not rule.may_select_from(user, names):
                continue
            if rule.filters:
                size = min(len(body), SEARCHED_BYTES)
                self._tracer.turns.spend(FILTER_US + size // FILTERED_BYTES_PER_US)
                subject = subject or self._subject(envelope, body)
                try:
                    if not rule.passes(subject):
                        continue
                except FilterTooSlow:
                    self._tracer.too_slow += 1
                    continue
            return rule
        return None

    def _subject(self, envelope: Envelope, body: bytes) -> Subject:
        message = Message(envelope, body, 0)
        return Subject(message, MessageState.READY, self._codec, self._tracer.clock.wall_time())
