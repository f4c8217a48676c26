"""The arguments of queue.declare: checking them, and the settings that they give.

Answerable for amqp_semantics.md section 4.2 and the texts of section 2.1, not for who may use the
dead letter exchange.

Checks are made in a fixed order: the type of `x-dead-letter-exchange`, the queue type, the other
arguments of a queue of this type in the order of `CHECKS`, and last those that only other types of
queues know (`OTHER_TYPES`), in the order given. Other arguments may have any value.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from warren.core.backing.stream_limits import KEEP_ALL, StreamLimits
from warren.core.definitions.validation import string
from warren.core.errors import PreconditionFailed
from warren.core.field import INTEGER_KINDS, KIND_NAMES, NUMBER_KINDS, Field, Table, to_text
from warren.core.queues.queue_type import CLASSIC, QUEUE_TYPE, QUORUM, STREAM, QueueType, type_of
from warren.core.queues.stream_arguments import (
    SEGMENT_BYTES_MAX,
    STREAM_OFFSET,
    period_s,
    stream_offset,
)

# Ten years, RabbitMQ's longest time.
PERIOD_MS_MAX = 315_360_000_000
PRIORITY_MAX = 255

NEVER_REACHED = 1 << 63
"""Stands for a delivery limit that is text: RabbitMQ accepts it and never reaches it."""

AT_LEAST_ONCE = "at-least-once"

Check: TypeAlias = Callable[[Field, Table], str | None]


@dataclass(frozen=True, slots=True)
class QueueArguments:
    """The values of a queue's arguments; None where there is no argument."""

    type: QueueType = CLASSIC
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
    delivery_limit: float | None = None
    redelivery_delay_ms: tuple[int, ...] | None = None
    deduplication_window: int | None = None
    dead_letter_strategy: str | None = None
    queue_leader_locator: str | None = None
    initial_members: int | None = None
    max_age: str | None = None
    segment_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue: from its arguments and the policies that apply to it.

    `delivery_limit`: how often a message may be returned; `redelivery_delay_ms`: how long each
    return keeps it waiting; `deduplication_window`: of how many messages the ids are remembered;
    `dead_letter_strategy`: whether a dead letter that reaches no queue is
    kept; `initial_members`: how many nodes get a new quorum queue or stream. They are None where
    the queue knows no such thing.
    `delays`: the exchange whose delayed messages wait in the queue; None for an ordinary queue.
    `keeps`: what a stream keeps. `retention`: what a queue keeps of acknowledged messages;
    None where it keeps none.
    """

    type: QueueType = CLASSIC
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
    delivery_limit: float | None = None
    redelivery_delay_ms: tuple[int, ...] | None = None
    deduplication_window: int | None = None
    dead_letter_strategy: str | None = None
    queue_leader_locator: str | None = None
    initial_members: int | None = None
    delays: str | None = None
    keeps: StreamLimits = KEEP_ALL
    retention: StreamLimits | None = None

    @property
    def remembers_ids(self) -> bool:
        """Whether the queue takes each message id once."""
        return self.deduplication_window is not None

    @property
    def levels(self) -> int:
        """How many backing queues a classic queue has: one for each priority, or a second one for
        the ids that it remembers."""
        return 2 if self.remembers_ids else (self.max_priority or 0) + 1

    @property
    def has_length_limit(self) -> bool:
        return self.max_length is not None or self.max_length_bytes is not None

    def exceeded(self, length: int, octets: int) -> bool:
        """Whether `length` messages with `octets` octets are more than may be in the queue."""
        return (self.max_length is not None and length > self.max_length) or (
            self.max_length_bytes is not None and octets > self.max_length_bytes
        )

    def time_to_live_ms(self, expiration_ms: int | None) -> int | None:
        """The time to live of a message that has this expiration."""
        ttl_ms = self.message_ttl_ms
        if ttl_ms is None or expiration_ms is None:
            return expiration_ms if ttl_ms is None else ttl_ms
        return min(ttl_ms, expiration_ms)

    @property
    def counts_returns(self) -> bool:
        """Whether a classic queue counts how often its messages come back."""
        limited = self.delivery_limit is not None or self.redelivery_delay_ms is not None
        return limited and self.type is CLASSIC

    @property
    def keeps_dead(self) -> bool:
        """Whether a dead letter stays until every queue it is for has taken it.

        As in RabbitMQ that needs `reject-publish`: with `drop-head` a full queue could not let go
        of anything.
        """
        return (
            self.dead_letter_strategy == AT_LEAST_ONCE
            and self.overflow == "reject-publish"
            and self.dead_letter_exchange is not None
        )


def parse(queue: str, vhost: str, arguments: Table) -> QueueArguments:
    """Read the arguments. Raises `PreconditionFailed` for the first that is not valid."""
    check(queue, vhost, arguments)

    def value(name: str, default: Any = None) -> Any:
        field = arguments.get(name)
        if field is None:
            return default
        return to_text(field.value) if field.kind == "S" else field.value

    return QueueArguments(
        type=type_of(arguments),
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
        delivery_limit=_delivery_limit(arguments.get(DELIVERY_LIMIT)),
        redelivery_delay_ms=_redelivery_delay(arguments.get(REDELIVERY_DELAY)),
        deduplication_window=value(DEDUPLICATION_WINDOW),
        dead_letter_strategy=value("x-dead-letter-strategy"),
        queue_leader_locator=value("x-queue-leader-locator"),
        initial_members=value("x-quorum-initial-group-size", value("x-initial-cluster-size")),
        max_age=value(MAX_AGE),
        segment_bytes=value(SEGMENT_SIZE),
    )


def _delivery_limit(field: Field | None) -> float | None:
    if field is None:
        return None
    is_number = field.kind in NUMBER_KINDS
    limit: float = field.value if is_number else NEVER_REACHED
    return limit


def _redelivery_delay(field: Field | None) -> tuple[int, ...] | None:
    return None if field is None else tuple([one.value for one in field.value])


def check(queue: str, vhost: str, arguments: Table) -> None:
    """Raise `PreconditionFailed` for the first argument that is not valid."""
    described = f"queue '{queue}' in vhost '{vhost}'"
    exchange = arguments.get(DEAD_LETTER_EXCHANGE)
    if exchange is not None:
        check_dead_letter_exchange(queue, vhost, exchange)
    kind = type_of(arguments)
    for name, reason_against in CHECKS[kind].items():
        field = arguments.get(name)
        reason = None if field is None else reason_against(field, arguments)
        if reason == TOO_LARGE_A_SEGMENT:
            raise PreconditionFailed(reason)
        if reason is not None:
            raise PreconditionFailed(f"invalid arg '{name}' for {described}: {reason}")
    _check_known(arguments, OTHER_TYPES[kind], described, kind)


def _check_known(
    arguments: Table, of_others: Container[str], described: str, kind: QueueType
) -> None:
    """Raise `PreconditionFailed` for the first argument, as given, that is for other types only."""
    for name in arguments:
        if name in of_others:
            raise PreconditionFailed(
                f"invalid arg '{name}' for {described} of queue type {kind.module}"
            )


def check_properties(
    queue: str,
    vhost: str,
    arguments: Table,
    *,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
) -> None:
    """Raise `PreconditionFailed` if a queue of this type cannot have these properties."""
    if type_of(arguments) is CLASSIC:
        return
    for is_so, wrong in (
        (auto_delete, "auto-delete"),
        (exclusive, "exclusive-owner"),
        (not durable, "non-durable"),
    ):
        if is_so:
            raise PreconditionFailed(
                f"invalid property '{wrong}' for queue '{queue}' in vhost '{vhost}'"
            )


def check_named_by_client(arguments: Table) -> None:
    """Raise `PreconditionFailed` when the broker may not choose the name of such a queue."""
    kind = type_of(arguments)
    if kind is not CLASSIC:
        raise PreconditionFailed(f"Cannot declare a server-named queue for type {kind.module}")


def check_consumer(queue: str, vhost: str, kind: QueueType, arguments: Table) -> None:
    """Raise `PreconditionFailed` for an argument of basic.consume that is not valid."""
    described = f"queue '{queue}' in vhost '{vhost}'"
    for name, reason_against in CONSUMER_CHECKS.items():
        field = arguments.get(name)
        if field is None or name in OTHER_CONSUMERS[kind]:
            continue
        reason = reason_against(field, arguments)
        if reason is not None:
            raise PreconditionFailed(f"invalid arg '{name}' for {described}: {reason}")
    _check_known(arguments, OTHER_CONSUMERS[kind], described, kind)
    if kind is STREAM:
        stream_offset(arguments.get(STREAM_OFFSET), described)


def check_dead_letter_exchange(queue: str, vhost: str, exchange: Field) -> None:
    """Raise `PreconditionFailed` if the dead letter exchange is not named by a string."""
    if exchange.kind != "S":
        raise PreconditionFailed(
            f"invalid type '{KIND_NAMES[exchange.kind]}' for arg '{DEAD_LETTER_EXCHANGE}' in"
            f" queue '{queue}' in vhost '{vhost}'"
        )


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


def _boolean(field: Field, arguments: Table) -> str | None:
    return None if field.kind == "t" else _unacceptable(field)


def _queue_type(field: Field, arguments: Table) -> str | None:
    if field.kind != "S":
        return _unacceptable(field)
    return _one_of(b"classic", b"quorum", b"stream", what="type")(field, arguments)


def _one_of(*choices: bytes, what: str) -> Check:
    def reason_against(field: Field, arguments: Table) -> str | None:
        if field.kind != "S":
            return _unacceptable(field)
        if field.value in choices:
            return None
        return string(f"unsupported queue {what} '{to_text(field.value)}'")

    return reason_against


def _choice(*choices: bytes, wrong: str) -> Check:
    def reason_against(field: Field, arguments: Table) -> str | None:
        if field.kind != "S":
            return _unacceptable(field)
        return None if field.value in choices else wrong

    return reason_against


def _positive(field: Field, arguments: Table) -> str | None:
    if field.kind in INTEGER_KINDS and field.value == 0:
        return "{value_zero,0}"
    return _count(field, arguments)


def _whole_number(field: Field, arguments: Table) -> str | None:
    return _integer(field)


def _delays(field: Field, arguments: Table) -> str | None:
    """A list of times in milliseconds."""
    if field.kind != "A":
        return _unacceptable(field)
    if not 0 < len(field.value) <= REDELIVERY_DELAYS_MAX:
        return string(f"a list of 1 to {REDELIVERY_DELAYS_MAX} times is wanted")
    for one in field.value:
        reason = _count(one, arguments)
        if reason is not None:
            return reason
        if one.value > PERIOD_MS_MAX:
            return f"{{value_too_big,{one.value}}}"
    return None


def _max_age(field: Field, arguments: Table) -> str | None:
    if field.kind != "S":
        return _unacceptable(field)
    return None if period_s(to_text(field.value)) is not None else "invalid_max_age"


def _segment_size(field: Field, arguments: Table) -> str | None:
    if field.kind in INTEGER_KINDS and field.value > SEGMENT_BYTES_MAX:
        return TOO_LARGE_A_SEGMENT
    return _count(field, arguments)


def _window(field: Field, arguments: Table) -> str | None:
    reason = _positive(field, arguments)
    if reason is None and field.value > DEDUPLICATION_WINDOW_MAX:
        return f"{{value_too_big,{field.value}}}"
    if reason is None and "x-max-priority" in arguments:
        return string("a queue with priorities has no such window")
    return reason


EXPLICITLY_CLASSIC = Field("S", b"classic")

DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"
DELIVERY_LIMIT = "x-delivery-limit"
REDELIVERY_DELAY = "x-redelivery-delay"
REDELIVERY_DELAYS_MAX = 100
MAX_AGE = "x-max-age"
SEGMENT_SIZE = "x-stream-max-segment-size-bytes"

TOO_LARGE_A_SEGMENT = f"Exceeded max value for {SEGMENT_SIZE}"
"""The whole text of this refusal, which names neither the argument nor the queue in RabbitMQ."""

_LEADER_LOCATORS = _choice(
    b"client-local",
    b"balanced",
    b"random",
    b"least-leaders",
    wrong="invalid_queue_locator_arg",
)
DEDUPLICATION_WINDOW = "x-message-deduplication-window"
DEDUPLICATION_WINDOW_MAX = 100_000
"""Each id takes about half a kilobyte of memory."""


CHECKS: Mapping[QueueType, Mapping[str, Check]] = {
    CLASSIC: {
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
        "x-single-active-consumer": _boolean,
        "x-queue-master-locator": _one_of(
            b"client-local", b"min-masters", b"random", what="master locator"
        ),
        # RabbitMQ refuses the one and does not know the other.
        DELIVERY_LIMIT: _count,
        REDELIVERY_DELAY: _delays,
        DEDUPLICATION_WINDOW: _window,
    },
    QUORUM: {
        QUEUE_TYPE: _queue_type,
        "x-expires": _expires,
        "x-message-ttl": _message_ttl,
        "x-dead-letter-routing-key": _dead_letter_routing_key,
        "x-dead-letter-strategy": _choice(
            b"at-most-once", b"at-least-once", wrong="invalid_dlx_strategy"
        ),
        "x-max-length": _count,
        "x-max-length-bytes": _count,
        "x-max-in-memory-length": _count,
        "x-max-in-memory-bytes": _count,
        "x-overflow": _overflow,
        "x-single-active-consumer": _boolean,
        "x-quorum-initial-group-size": _positive,
        "x-queue-leader-locator": _LEADER_LOCATORS,
        DELIVERY_LIMIT: lambda field, arguments: None,
    },
    STREAM: {
        QUEUE_TYPE: _queue_type,
        "x-max-length-bytes": _count,
        MAX_AGE: _max_age,
        SEGMENT_SIZE: _segment_size,
        "x-initial-cluster-size": _positive,
        "x-queue-leader-locator": _LEADER_LOCATORS,
    },
}

# Known to other types of queues, and wrong for one of this type.
OTHER_TYPES: Mapping[QueueType, tuple[str, ...]] = {
    CLASSIC: (
        "x-dead-letter-strategy",
        "x-initial-cluster-size",
        "x-max-age",
        "x-max-in-memory-bytes",
        "x-max-in-memory-length",
        "x-queue-leader-locator",
        "x-quorum-initial-group-size",
        "x-stream-max-segment-size-bytes",
    ),
    QUORUM: (
        "x-initial-cluster-size",
        "x-max-age",
        "x-max-priority",
        "x-queue-master-locator",
        "x-queue-mode",
        "x-queue-version",
        REDELIVERY_DELAY,
        DEDUPLICATION_WINDOW,
        "x-stream-max-segment-size-bytes",
    ),
    STREAM: (
        DEAD_LETTER_EXCHANGE,
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        DELIVERY_LIMIT,
        "x-expires",
        "x-max-in-memory-bytes",
        "x-max-in-memory-length",
        "x-max-length",
        "x-max-priority",
        "x-message-ttl",
        "x-overflow",
        "x-queue-master-locator",
        "x-queue-mode",
        "x-queue-version",
        "x-quorum-initial-group-size",
        REDELIVERY_DELAY,
        DEDUPLICATION_WINDOW,
        "x-single-active-consumer",
    ),
}

CANCEL_ON_FAILOVER = "x-cancel-on-ha-failover"
PRIORITY = "x-priority"

CONSUMER_CHECKS: Mapping[str, Check] = {
    PRIORITY: _whole_number,
    CANCEL_ON_FAILOVER: _boolean,
}
OTHER_CONSUMERS: Mapping[QueueType, tuple[str, ...]] = {
    CLASSIC: (STREAM_OFFSET,),
    QUORUM: (CANCEL_ON_FAILOVER, STREAM_OFFSET),
    STREAM: (PRIORITY, CANCEL_ON_FAILOVER),
}
"""Arguments of basic.consume that other types of queues know, and that are refused."""
