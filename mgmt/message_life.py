"""The life of one message, assembled from the trace records of all nodes.

Records are ordered by time of day, each by the clock of the node that made it. They determine the
state of the message in each queue.
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
"""Events of a whole queue, and the states of the messages that each removes."""

KEEPS: Final = frozenset({TraceEvent.PUBLISHED, TraceEvent.COPIED, TraceEvent.REPLAYED})
"""Events that put a message into queues and leave it as it was in the queue it came from."""

SAYS_NOTHING: Final = frozenset({TraceEvent.MIRRORED, TraceEvent.RETURNED, TraceEvent.UNROUTABLE})
"""Events that change nothing about where a message is."""


class Lived(NamedTuple):
    """The records of a message, and its state in each queue it has been in."""

    records: list[TraceRecord]
    queues: dict[str, str]


def lived(records: Iterable[TraceRecord]) -> Lived:
    """Read records in order. An event of a whole queue counts if the message was in it then."""
    states: dict[str, str] = {}
    # The states before the latest event that put the message into queues.
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
    """The state of the message in the queue that the record names."""
    match record.event:
        case TraceEvent.DELIVERED:
            return CONSUMED if record.no_ack else UNACKNOWLEDGED
        case TraceEvent.REQUEUED | TraceEvent.ARRIVED:
            return READY
    return record.event.value


def row(record: TraceRecord) -> dict[str, Any]:
    """A record as JSON, with its time in ISO 8601 as well."""
    shown: dict[str, Any] = msgspec.to_builtins(record)
    time = datetime.fromtimestamp(record.at / 1_000_000, UTC)
    shown["time"] = time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return shown


def record_of(shown: Any) -> TraceRecord:
    """The record in a `row` of another node. Raises `msgspec.ValidationError`."""
    return msgspec.convert(shown, TraceRecord)


def in_order(records: Iterable[TraceRecord]) -> Sequence[TraceRecord]:
    """Sort by time; records of the same time keep their order."""
    return sorted(records, key=lambda record: record.at)
