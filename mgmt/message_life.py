"""The life of one message, put together from what nodes have recorded of it.

Records are ordered by the time of day, each node's by its own clock. Where a message is by now
follows from them, queue by queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from warren.core.tracing.trace_record import TraceEvent, TraceRecord

READY = "ready"
UNACKNOWLEDGED = "unacknowledged"
CONSUMED = "consumed"

LEAVES: Final = {
    TraceEvent.PURGED: (READY,),
    TraceEvent.QUEUE_DELETED: (READY, UNACKNOWLEDGED),
}
"""What happens to a queue, and how messages in it are that go."""

KEEPS: Final = frozenset({TraceEvent.PUBLISHED, TraceEvent.COPIED, TraceEvent.REPLAYED})
"""Events that bring a message into queues and change nothing where it was before."""

SAYS_NOTHING: Final = frozenset({TraceEvent.MIRRORED, TraceEvent.RETURNED, TraceEvent.UNROUTABLE})
"""Events that change nothing about where a message is."""


class Lived(NamedTuple):
    """The records that are about a message, and how it is by the queues it has been in."""

    records: list[TraceRecord]
    queues: dict[str, str]


def lived(records: Iterable[TraceRecord]) -> Lived:
    """For records in order: what is told of a queue counts if the message was in it then."""
    states: dict[str, str] = {}
    # As it was before it was published once more.
    before: dict[str, str] = {}
    own: list[TraceRecord] = []
    for record in records:
        event, queue = record.event, record.queue
        if event in LEAVES and states.get(queue) not in LEAVES[event]:
            continue
        own.append(record)
        if event in SAYS_NOTHING:
            continue
        if event is TraceEvent.DUPLICATE:
            states[queue] = before.get(queue, event.value)
            continue
        if event is TraceEvent.ROLLED_BACK:
            states.update({name: before.get(name, event.value) for name in record.queues})
            continue
        if record.queues or event is TraceEvent.ARRIVED:
            before = {**before, **states}
        if event not in KEEPS:
            states[queue] = _state_after(record)
        states.update(dict.fromkeys(record.queues, READY))
    return Lived(own, states)


def _state_after(record: TraceRecord) -> str:
    """How the message is in the queue that the record names."""
    match record.event:
        case TraceEvent.DELIVERED:
            return CONSUMED if record.no_ack else UNACKNOWLEDGED
        case TraceEvent.REQUEUED | TraceEvent.ARRIVED:
            return READY
    return record.event.value


def row(record: TraceRecord) -> dict[str, Any]:
    """A record as JSON, with its time in words."""
    shown: dict[str, Any] = msgspec.to_builtins(record)
    time = datetime.fromtimestamp(record.at / 1_000_000, UTC)
    shown["time"] = time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return shown


def record_of(shown: Any) -> TraceRecord:
    """The record that another node has made a `row` of. Raises `msgspec.ValidationError`."""
    return msgspec.convert(shown, TraceRecord)


def in_order(records: Iterable[TraceRecord]) -> Sequence[TraceRecord]:
    """By time; what one node has recorded at one time stays in its order."""
    return sorted(records, key=lambda record: record.at)
