"""Trace records: one for each event in the life of a message."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class TraceEvent(StrEnum):
    """An event in the life of a message."""

    PUBLISHED = "published"
    RETURNED = "returned"
    UNROUTABLE = "unroutable"
    ARRIVED = "arrived"
    MIRRORED = "mirrored"
    REFUSED = "refused"
    DUPLICATE = "duplicate"
    DELIVERED = "delivered"
    ACKNOWLEDGED = "acknowledged"
    REQUEUED = "requeued"
    REJECTED = "rejected"
    EXPIRED = "expired"
    DROPPED = "dropped"
    RETURNED_TOO_OFTEN = "returned_too_often"
    DUE = "due"
    DEAD_LETTERED = "dead_lettered"
    SENT_ON = "sent_on"
    MOVED = "moved"
    COPIED = "copied"
    REPLAYED = "replayed"
    ROLLED_BACK = "rolled_back"
    DELETED = "deleted"
    # These happen to a queue, and so to all messages in it: the record names no message.
    PURGED = "purged"
    QUEUE_DELETED = "queue_deleted"


class TraceRecord(Struct, omit_defaults=True, gc=False):
    """One thing that happened. `at` is the time of day in microseconds since 1970, `id` the
    message; `queues` are those it was routed to. `no_ack`: its delivery was the end of it.
    `traceparent` and `tracestate` are the headers of W3C Trace Context that it came with."""

    at: int
    event: TraceEvent
    id: str
    vhost: str
    node: str
    queue: str = ""
    exchange: str | None = None
    routing_key: str = ""
    queues: tuple[str, ...] = ()
    user: str = ""
    connection: str = ""
    channel: int = 0
    from_node: str = ""
    redelivered: bool = False
    no_ack: bool = False
    size: int = 0
    rule: str = ""
    traceparent: str = ""
    tracestate: str = ""
