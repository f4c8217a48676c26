"""When the arguments of two declarations of a queue agree (amqp_semantics.md section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping

from warren.core.erlang_text import argument_text
from warren.core.errors import PreconditionFailed
from warren.core.field import FLOAT_KINDS, INTEGER_KINDS, Field, Table
from warren.core.queues.queue_arguments import (
    DEAD_LETTER_EXCHANGE,
    DEDUPLICATION_WINDOW,
    DELIVERY_LIMIT,
    EXPLICITLY_CLASSIC,
    MAX_AGE,
    REDELIVERY_DELAY,
    SEGMENT_SIZE,
)
from warren.core.queues.queue_type import CLASSIC, QUEUE_TYPE, QUORUM, STREAM, QueueType, type_of

EQUIVALENCE_ORDER: Mapping[QueueType, tuple[str, ...]] = {
    CLASSIC: (
        "x-expires",
        "x-message-ttl",
        DEAD_LETTER_EXCHANGE,
        "x-dead-letter-routing-key",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-priority",
        "x-overflow",
        "x-queue-mode",
        "x-queue-version",
        "x-single-active-consumer",
        QUEUE_TYPE,
        "x-queue-master-locator",
        DELIVERY_LIMIT,
        REDELIVERY_DELAY,
        DEDUPLICATION_WINDOW,
    ),
    QUORUM: (
        DEAD_LETTER_EXCHANGE,
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-overflow",
        "x-single-active-consumer",
        QUEUE_TYPE,
        "x-quorum-initial-group-size",
        DELIVERY_LIMIT,
        "x-message-ttl",
        "x-queue-leader-locator",
    ),
    STREAM: (
        "x-max-length-bytes",
        QUEUE_TYPE,
        MAX_AGE,
        SEGMENT_SIZE,
        "x-initial-cluster-size",
        "x-queue-leader-locator",
    ),
}
"""The arguments that two declarations are compared by, in the order in which RabbitMQ looks."""


def check_equivalent(queue: str, vhost: str, received: Table, current: Table) -> None:
    """Raise `PreconditionFailed` when a declaration contradicts the arguments of the queue.

    Only arguments that queues of its type know count, and integers are equal whatever their type.
    """
    for name in EQUIVALENCE_ORDER[type_of(current)]:
        new, old = received.get(name), current.get(name)
        if new == old or _same(new, old) or (name == QUEUE_TYPE and _both_classic(new, old)):
            continue
        both = new is not None and old is not None
        raise PreconditionFailed(
            f"inequivalent arg '{name}' for queue '{queue}' in vhost '{vhost}':"
            f" received {argument_text(new, both)} but current is {argument_text(old, both)}"
        )


def _same(new: Field | None, old: Field | None) -> bool:
    if new is None or old is None:
        return False
    return _kind_class(new.kind) == _kind_class(old.kind) and bool(new.value == old.value)


def _kind_class(kind: str) -> str:
    if kind in INTEGER_KINDS:
        return "int"
    return "float" if kind in FLOAT_KINDS else kind


def _both_classic(new: Field | None, old: Field | None) -> bool:
    return all(field is None or field == EXPLICITLY_CLASSIC for field in (new, old))
