"""Delayed messages: what the header `x-delay` says, and the names that belong to it.

A message with a delay waits in the *delay queue* of its exchange (`delay_queue.py`), which the
broker declares and deletes with the exchange. No client can use that queue.

The rules are those of delayed_and_redelivery.md. A value that is not a delay in range means that
the message is routed at once: the same rule holds for a publish, for a dead letter and for what
comes through another exchange.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from warren.core.errors import PreconditionFailed, unknown_type
from warren.core.exchanges.recent_history import HISTORY_TYPE
from warren.core.field import FLOAT_KINDS, INTEGER_KINDS, Table, long, to_octets, to_text
from warren.core.messages.message import Envelope
from warren.core.ports import ContentCodec

DELAYED_TYPE: Final = "x-delayed-message"
ROUTING_TYPE: Final = "x-delayed-type"
"""The argument that names the type by whose rules the exchange routes."""

DELAY: Final = "x-delay"
DELAY_NAMES: Final = (to_octets(DELAY),)
"""The headers that `delay_ms` looks at."""

DELAY_MS_MAX: Final = (1 << 32) - 1

DELAY_QUEUE_PREFIX: Final = "amq.delayed."
NAME_BYTES_MAX: Final = 255 - len(DELAY_QUEUE_PREFIX)
"""A longer name would leave no room for that of the delay queue."""


_CANNOT_ROUTE = frozenset((DELAYED_TYPE, HISTORY_TYPE))
"""Types that keep messages themselves."""


def delay_queue_name(exchange: str) -> str:
    """The name of the queue in which the delayed messages of an exchange wait."""
    return DELAY_QUEUE_PREFIX + exchange


def exchange_behind(queue: str) -> str | None:
    """The exchange whose delayed messages wait in the queue of this name; None if it is an
    ordinary queue."""
    return queue[len(DELAY_QUEUE_PREFIX) :] if queue.startswith(DELAY_QUEUE_PREFIX) else None


def delay_ms(headers: Table) -> int | None:
    """How long a message with these headers waits; None if it is routed at once."""
    field = headers.get(DELAY)
    if field is None:
        return None
    if field.kind in INTEGER_KINDS:
        delay = field.value
    elif field.kind in FLOAT_KINDS:
        # Neither infinity nor what is no number at all is in range.
        delay = int(field.value) if 0 < field.value <= DELAY_MS_MAX else 0
    elif field.kind == "S" and field.value.isdigit():
        delay = int(field.value[:20])
    else:
        return None
    return delay if 0 < delay <= DELAY_MS_MAX else None


def when_due(envelope: Envelope, codec: ContentCodec) -> Envelope:
    """The envelope of a message whose delay is over: its delay is negative now, so that a further
    exchange does not delay it again."""
    headers = codec.headers(envelope.header)
    delay = delay_ms(headers)
    if delay is None:
        return envelope
    header = codec.with_headers(envelope.header, {**headers, DELAY: long(-delay)})
    return replace(envelope, header=header, stored=None)


def routing_type(arguments: Table) -> str:
    """The type by whose rules a delayed exchange with these arguments routes.

    Raises `PreconditionFailed` or `CommandInvalid`; whether the type exists is for the caller.
    """
    field = arguments.get(ROUTING_TYPE)
    if field is None or field.kind != "S":
        raise PreconditionFailed(
            f"Invalid argument, '{ROUTING_TYPE}' must be an existing exchange type"
        )
    kind = to_text(field.value)
    if not kind:
        raise unknown_type("")
    if kind in _CANNOT_ROUTE:
        raise PreconditionFailed(f"Invalid argument, '{kind}' can't be used for '{ROUTING_TYPE}'")
    return kind


def check_name(exchange: str, vhost: str) -> None:
    """Raise `PreconditionFailed` for a name that is too long for a delayed exchange."""
    octets = len(to_octets(exchange))
    if octets > NAME_BYTES_MAX:
        raise PreconditionFailed(
            f"the name of an exchange of type '{DELAYED_TYPE}' may have {NAME_BYTES_MAX} octets,"
            f" and exchange '{exchange}' in vhost '{vhost}' has {octets}"
        )
