"""How many messages a channel acknowledges, rejects or requeues before others have their turn, and
what it refuses to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from warren.core.errors import PreconditionFailed, Unsupported
from warren.core.messages.message import Message

SETTLED_AT_ONCE = 2000
"""Some milliseconds."""

SETTLED_US = 2
"""What one of them costs, as `core/scheduling/turns.py` counts it."""

FEW = 64
"""So few are not worth counting."""

SETTLED_PER_US = 2
"""Messages that are acknowledged together in a microsecond."""

LOOKS_PER_US = 8
"""Messages that can be looked at in a microsecond."""


class ReturningChannel(Protocol):
    """A channel that gives messages back. `has_streams`: some of them may be from streams."""

    has_streams: bool
    unacked: dict[int, Message]


def slice_of(tags: Sequence[int], start: int) -> Sequence[int]:
    """So many of these as are settled at once, from this one on."""
    return tags[start : start + SETTLED_AT_ONCE]


def unknown_delivery_tag(delivery_tag: int) -> PreconditionFailed:
    return PreconditionFailed(f"unknown delivery tag {delivery_tag}")


def check_returnable(channel: ReturningChannel, tags: Iterable[int], methods: str) -> None:
    """Raise `Unsupported` if one of these messages is of a stream, which takes nothing back."""
    if not channel.has_streams:
        return
    unacked = channel.unacked
    for message in [unacked[tag] for tag in tags if tag in unacked]:
        queue = message.holder.queue
        if queue.is_stream:
            described = f"queue '{queue.name}' in vhost '{queue.vhost_name}'"
            raise Unsupported(f"{methods} not supported by stream queues {described}")
