"""The arguments of queue.declare: which are valid, when two declarations agree, what they say.

Answerable for amqp_semantics.md section 4.2 and the texts of section 2.1, not for who may use the
dead letter exchange.

Checks are made in a fixed order: the type of `x-dead-letter-exchange`, the queue type, the other
arguments of a classic queue in the order of `CHECKS`, and last those that only other queue types
know. Unknown arguments are nobody's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from warren.core.errors import PreconditionFailed
from warren.core.field import INTEGER_KINDS, KIND_NAMES, Field, Table, to_text
from warren.core.validation import string

# Ten years, RabbitMQ's longest time.
PERIOD_MS_MAX = 315_360_000_000
PRIORITY_MAX = 255
FLOAT_KINDS = frozenset("fd")

Check: TypeAlias = Callable[[Field, Table], str | None]


@dataclass(frozen=True, slots=True)
class QueueArguments:
    """What the arguments of a classic queue say; None where they say nothing."""

    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    queue_mode: str | None = None
    queue_version: int | None = None
    queue_master_locator: str | None = None
    max_priority: int | None = None
    single_active_consumer: bool = False


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What a classic queue goes by: its arguments and the policies that apply to it."""

    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    queue_mode: str = "default"
    queue_version: int = 1
    queue_master_locator: str | None = None
    max_priority: int | None = None
    single_active_consumer: bool = False


def parse(queue: str, vhost: str, arguments: Table) -> QueueArguments:
    """What the arguments say. Raises `PreconditionFailed` for the first that is not valid."""
    check(queue, vhost, arguments)

    def value(name: str, default: Any = None) -> Any:
        field = arguments.get(name)
        if field is None:
            return default
        return to_text(field.value) if field.kind == "S" else field.value

    return QueueArguments(
        message_ttl_ms=value("x-message-ttl"),
        expires_ms=value("x-expires"),
        max_length=value("x-max-length"),
        max_length_bytes=value("x-max-length-bytes"),
        overflow=value("x-overflow"),
        dead_letter_exchange=value("x-dead-letter-exchange"),
        dead_letter_routing_key=value("x-dead-letter-routing-key"),
        queue_mode=value("x-queue-mode"),
        queue_version=value("x-queue-version"),
        queue_master_locator=value("x-queue-master-locator"),
        max_priority=value("x-max-priority"),
        single_active_consumer=value("x-single-active-consumer", False),
    )


def check(queue: str, vhost: str, arguments: Table) -> None:
    """Raise `PreconditionFailed` for the first argument that is not valid."""
    described = f"queue '{queue}' in vhost '{vhost}'"
    exchange = arguments.get(DEAD_LETTER_EXCHANGE)
    if exchange is not None:
        check_dead_letter_exchange(queue, vhost, exchange)
    for name, reason_against in CHECKS.items():
        field = arguments.get(name)
        reason = None if field is None else reason_against(field, arguments)
        if reason is not None:
            raise PreconditionFailed(f"invalid arg '{name}' for {described}: {reason}")
    for name in OTHER_TYPES:
        if name in arguments:
            raise PreconditionFailed(
                f"invalid arg '{name}' for {described} of queue type rabbit_classic_queue"
            )


def check_dead_letter_exchange(queue: str, vhost: str, exchange: Field) -> None:
    """Raise `PreconditionFailed` when what names the dead letter exchange is no string."""
    if exchange.kind != "S":
        raise PreconditionFailed(
            f"invalid type '{KIND_NAMES[exchange.kind]}' for arg '{DEAD_LETTER_EXCHANGE}' in"
            f" queue '{queue}' in vhost '{vhost}'"
        )


def check_equivalent(queue: str, vhost: str, received: Table, current: Table) -> None:
    """Raise `PreconditionFailed` when a declaration contradicts the arguments of the queue.

    Only arguments classic queues know count, and integers are equal whatever their type.
    """
    for name in EQUIVALENCE_ORDER:
        new, old = received.get(name), current.get(name)
        if new == old or _same(new, old) or (name == QUEUE_TYPE and _both_classic(new, old)):
            continue
        both = new is not None and old is not None
        raise PreconditionFailed(
            f"inequivalent arg '{name}' for queue '{queue}' in vhost '{vhost}':"
            f" received {_shown(new, both)} but current is {_shown(old, both)}"
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
    return all(field is None or field == CLASSIC for field in (new, old))


def _shown(field: Field | None, both: bool) -> str:
    """`none`; the value with its type; or the value alone when both sides have one."""
    if field is None:
        return "none"
    if both:
        return f"'{_value_text(field)}'"
    return f"the value '{_value_text(field)}' of type '{KIND_NAMES[field.kind]}'"


def _value_text(field: Field) -> str:
    if field.kind in "Sx":
        return to_text(field.value)
    if field.kind == "t":
        return "true" if field.value else "false"
    return "undefined" if field.kind == "V" else str(field.value)


def _unacceptable(field: Field) -> str:
    return f"{{unacceptable_type,{KIND_NAMES[field.kind]}}}"


def _integer(field: Field) -> str | None:
    if field.kind in INTEGER_KINDS:
        return None
    return string(f"expected integer, got {KIND_NAMES[field.kind]}")


def _count(field: Field, arguments: Table) -> str | None:
    if field.kind in INTEGER_KINDS and field.value < 0:
        return f"{{value_negative,{field.value}}}"
    return _integer(field)


def _message_ttl(field: Field, arguments: Table) -> str | None:
    if field.kind in INTEGER_KINDS and field.value > PERIOD_MS_MAX:
        return f"{{value_too_large,{field.value}}}"
    return _count(field, arguments)


def _expires(field: Field, arguments: Table) -> str | None:
    if field.kind in INTEGER_KINDS and field.value == 0:
        return "{value_zero,0}"
    return _message_ttl(field, arguments)


def _max_priority(field: Field, arguments: Table) -> str | None:
    if field.kind in INTEGER_KINDS and field.value > PRIORITY_MAX:
        return f"{{max_value_exceeded,{field.value}}}"
    return _count(field, arguments)


def _dead_letter_routing_key(field: Field, arguments: Table) -> str | None:
    if field.kind != "S":
        return _unacceptable(field)
    if DEAD_LETTER_EXCHANGE not in arguments:
        return "routing_key_but_no_dlx_defined"
    return None


def _overflow(field: Field, arguments: Table) -> str | None:
    if field.kind != "S":
        return _unacceptable(field)
    known = field.value in (b"drop-head", b"reject-publish", b"reject-publish-dlx")
    return None if known else "invalid_overflow"


def _queue_version(field: Field, arguments: Table) -> str | None:
    reason = _count(field, arguments)
    if reason is None and field.value not in (1, 2):
        return string(f"unsupported queue version '{field.value}'")
    return reason


def _single_active_consumer(field: Field, arguments: Table) -> str | None:
    return None if field.kind == "t" else _unacceptable(field)


def _queue_type(field: Field, arguments: Table) -> str | None:
    if field.kind != "S":
        return _unacceptable(field)
    if field.value in (b"quorum", b"stream"):
        name = to_text(field.value)
        return string(f"unsupported queue type '{name}', only classic queues are offered")
    return _one_of(b"classic", what="type")(field, arguments)


def _one_of(*choices: bytes, what: str) -> Check:
    def reason_against(field: Field, arguments: Table) -> str | None:
        if field.kind != "S":
            return _unacceptable(field)
        if field.value in choices:
            return None
        return string(f"unsupported queue {what} '{to_text(field.value)}'")

    return reason_against


QUEUE_TYPE = "x-queue-type"
CLASSIC = Field("S", b"classic")

CHECKS: Mapping[str, Check] = {
    QUEUE_TYPE: _queue_type,
    "x-expires": _expires,
    "x-message-ttl": _message_ttl,
    "x-dead-letter-routing-key": _dead_letter_routing_key,
    "x-max-length": _count,
    "x-max-length-bytes": _count,
    "x-max-priority": _max_priority,
    "x-overflow": _overflow,
    "x-queue-mode": _one_of(b"default", b"lazy", what="mode"),
    "x-queue-version": _queue_version,
    "x-single-active-consumer": _single_active_consumer,
    "x-queue-master-locator": _one_of(
        b"client-local", b"min-masters", b"random", what="master locator"
    ),
}
DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"
EQUIVALENCE_ORDER = (
    DEAD_LETTER_EXCHANGE,
    *(name for name in CHECKS if name != QUEUE_TYPE),
    QUEUE_TYPE,
)

# Known to quorum queues or streams, and wrong for a classic queue.
OTHER_TYPES = (
    "x-dead-letter-strategy",
    "x-delivery-limit",
    "x-initial-cluster-size",
    "x-max-age",
    "x-max-in-memory-bytes",
    "x-max-in-memory-length",
    "x-queue-leader-locator",
    "x-quorum-initial-group-size",
    "x-stream-max-segment-size-bytes",
)
