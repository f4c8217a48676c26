"""Spans of messages, made from their trace records: the time in a queue, and the time to ack.

Pure: records in, spans out. The time in a queue begins with the record that puts the message there
and ends when it is delivered or removed. The time to ack goes from the delivery to the client's
verdict. The parent of the first span is the span that the publisher names in the header
`traceparent` (W3C Trace Context); the parent of the second is the first. A message has no spans if
its publisher says that its trace is not sampled.

Names and attributes follow OpenTelemetry's conventions for messaging, as far as these apply to a
broker: they describe clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from warren.core.tracing.trace_record import TraceEvent, TraceRecord

OPEN_MAX = 50_000
"""The most open spans of messages in queues, and of messages with clients. Beyond that the oldest
is dropped."""

SAMPLED = 1

TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?:-.*)?"
)


class Context(NamedTuple):
    """Identifies a span. `is_remote`: another process has made it."""

    trace_id: int
    span_id: int
    state: str = ""
    is_remote: bool = False


class MessageSpan(NamedTuple):
    """`began` and `ended` are in microseconds since 1970. `parent` is None for a span that begins
    a trace. `failed` is the event that made the message fail, or empty."""

    name: str
    context: Context
    parent: Context | None
    began: int
    ended: int
    attributes: dict[str, str | int | bool]
    failed: str


class _OpenSpan(NamedTuple):
    """A span that has not ended."""

    began: int
    parent: Context | None


Place = tuple[str, str, str]
"""Virtual host, message, queue."""

BRINGS: Final = frozenset(
    {
        TraceEvent.PUBLISHED,
        TraceEvent.DEAD_LETTERED,
        TraceEvent.SENT_ON,
        TraceEvent.MOVED,
        TraceEvent.COPIED,
        TraceEvent.REPLAYED,
    }
)
"""Events that put a message into the queues that the record names."""

LEAVES: Final = frozenset(
    {TraceEvent.EXPIRED, TraceEvent.DROPPED, TraceEvent.DUE, TraceEvent.MOVED, TraceEvent.DELETED}
)
"""Events that take a message out of a queue without delivery."""

FAILURES: Final = frozenset(
    {TraceEvent.EXPIRED, TraceEvent.DROPPED, TraceEvent.REJECTED, TraceEvent.RETURNED_TOO_OFTEN}
)

VERDICTS: Final = {
    TraceEvent.ACKNOWLEDGED: "ack",
    TraceEvent.REQUEUED: "requeue",
    TraceEvent.REJECTED: "reject",
    TraceEvent.RETURNED_TOO_OFTEN: "requeue",
}


def parse_context(traceparent: str, tracestate: str) -> Context | None:
    """The span that the headers name; None if they name none. Raises `NotSampled`."""
    found = TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    trace_id, span_id = int(found["trace"], 16), int(found["span"], 16)
    if not trace_id or not span_id:
        return None
    if not int(found["flags"], 16) & SAMPLED:
        raise NotSampled
    return Context(trace_id, span_id, tracestate, True)


class NotSampled(Exception):
    """The publisher does not record its trace."""


class Spans:
    """Makes spans from the records of one node. `random_bits` makes trace and span ids."""

    def __init__(self, random_bits: Callable[[int], int]) -> None:
        self._random_bits = random_bits
        self._waiting: dict[Place, _OpenSpan] = {}
        self._held: dict[Place, _OpenSpan] = {}
        # Places of the latest message to arrive, without those where it was waiting already.
        self._new: set[Place] = set()
        # The parent of a message's spans, by virtual host and message id.
        self._parents: dict[tuple[str, str], Context | None] = {}

    def spans(self, record: TraceRecord) -> list[MessageSpan]:
        """The spans that end with this record."""
        event = record.event
        if event is TraceEvent.PURGED or event is TraceEvent.QUEUE_DELETED:
            self._forget(record.vhost, record.queue, held=event is TraceEvent.QUEUE_DELETED)
            return []
        try:
            parent = self._parent(record)
        except NotSampled:
            return []
        place = (record.vhost, record.id, record.queue)
        ended: list[MessageSpan] = []
        if event in VERDICTS:
            ended += self._settled(place, record)
            if event is TraceEvent.REQUEUED:
                self._begin(self._waiting, place, _OpenSpan(record.at, parent))
        elif event is TraceEvent.DELIVERED:
            ended += self._delivered(place, record, parent)
        elif event in LEAVES:
            ended += self._left(place, record)
        elif event is TraceEvent.DUPLICATE and place in self._new:
            self._waiting.pop(place, None)
        elif event is TraceEvent.ROLLED_BACK:
            for queue in record.queues:
                self._waiting.pop((record.vhost, record.id, queue), None)
        elif event is TraceEvent.ARRIVED:
            self._brought((place,), _OpenSpan(record.at, parent))
        if event in BRINGS:
            places = [(record.vhost, record.id, queue) for queue in record.queues]
            self._brought(places, _OpenSpan(record.at, parent))
        return ended

    def _parent(self, record: TraceRecord) -> Context | None:
        """The parent of the message's spans; None if they begin a trace. Raises `NotSampled`."""
        key = (record.vhost, record.id)
        if record.traceparent or key not in self._parents:
            context = parse_context(record.traceparent, record.tracestate)
            self._parents.pop(key, None)
            self._parents[key] = context
            if len(self._parents) > 2 * OPEN_MAX:
                del self._parents[next(iter(self._parents))]
        return self._parents[key]

    def _brought(self, places: Iterable[Place], span: _OpenSpan) -> None:
        """A message came into these queues. One with its id that waits there keeps its span."""
        self._new = {place for place in places if place not in self._waiting}
        for place in self._new:
            self._begin(self._waiting, place, span)

    def _begin(self, opened: dict[Place, _OpenSpan], place: Place, span: _OpenSpan) -> None:
        opened.pop(place, None)
        opened[place] = span
        if len(opened) > OPEN_MAX:
            del opened[next(iter(opened))]

    def _delivered(
        self, place: Place, record: TraceRecord, parent: Context | None
    ) -> list[MessageSpan]:
        waited = self._left(place, record)
        if not record.no_ack:
            below = waited[0].context if waited else parent
            self._begin(self._held, place, _OpenSpan(record.at, below))
        return waited

    def _left(self, place: Place, record: TraceRecord) -> list[MessageSpan]:
        opened = self._waiting.pop(place, None)
        return [] if opened is None else [self._span("queue", opened, record)]

    def _settled(self, place: Place, record: TraceRecord) -> list[MessageSpan]:
        opened = self._held.pop(place, None)
        return [] if opened is None else [self._span(VERDICTS[record.event], opened, record)]

    def _span(self, operation: str, opened: _OpenSpan, record: TraceRecord) -> MessageSpan:
        parent = opened.parent
        trace_id = self._random_bits(128) if parent is None else parent.trace_id
        state = "" if parent is None else parent.state
        context = Context(trace_id or 1, self._random_bits(64) or 1, state)
        failed = record.event.value if record.event in FAILURES else ""
        return MessageSpan(
            f"{operation} {record.queue}",
            context,
            parent,
            opened.began,
            record.at,
            _attributes(operation, record, failed),
            failed,
        )

    def _forget(self, vhost: str, queue: str, *, held: bool) -> None:
        """Drop the open spans of an emptied queue; with `held`, those of unacked messages, too."""
        for opened in (self._waiting, self._held) if held else (self._waiting,):
            for place in [one for one in opened if one[0] == vhost and one[2] == queue]:
                del opened[place]


def _attributes(operation: str, record: TraceRecord, failed: str) -> dict[str, str | int | bool]:
    attributes: dict[str, str | int | bool] = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": operation,
        "messaging.destination.name": _destination(record),
        "messaging.message.id": record.id,
        "warren.vhost": record.vhost,
        "warren.queue": record.queue,
        "warren.node": record.node,
    }
    if operation != "queue":
        attributes["messaging.operation.type"] = "settle"
    if record.routing_key:
        attributes["messaging.rabbitmq.destination.routing_key"] = record.routing_key
    if record.event is TraceEvent.DELIVERED:
        attributes["messaging.message.body.size"] = record.size
        attributes["warren.redelivered"] = record.redelivered
        attributes["messaging.client.id"] = record.connection
    if failed:
        attributes["error.type"] = failed
    return attributes


def _destination(record: TraceRecord) -> str:
    """Exchange, routing key and queue, as the conventions say for consumers: without empty ones,
    and without a queue that has the name of the routing key."""
    parts = [record.exchange or "", record.routing_key]
    if record.queue != record.routing_key:
        parts.append(record.queue)
    return ":".join([part for part in parts if part])
