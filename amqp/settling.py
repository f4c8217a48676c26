"""Limits and costs of settling (acknowledging, rejecting or requeueing) messages of a channel, and
the errors of settling that clients may cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from warren.core.errors import PreconditionFailed, Unsupported
from warren.core.messages.message import Message

SETTLED_AT_ONCE = 2000
"""Messages settled in one go, before other clients have their turn; they take some milliseconds."""

SETTLED_US = 2
"""The cost of settling one of many messages, in the microseconds of `core/scheduling/turns.py`."""

FEW = 64
"""Up to this number of messages, the cost of settling is not counted."""

SETTLED_PER_US = 2
"""Messages settled per microsecond when they are settled together."""

LOOKS_PER_US = 8
"""Messages that can be examined in a microsecond."""


class ReturningChannel(Protocol):
    """A channel that gives messages back. `has_streams`: it may hold messages of streams."""

    has_streams: bool
    unacked: dict[int, Message]


def slice_of(tags: Sequence[int], start: int) -> Sequence[int]:
    """The slice of these tags, from index `start` on, that is settled in one go."""
    return tags[start : start + SETTLED_AT_ONCE]


def unknown_delivery_tag(delivery_tag: int) -> PreconditionFailed:
    return PreconditionFailed(f"unknown delivery tag {delivery_tag}")


def check_returnable(channel: ReturningChannel, tags: Iterable[int], methods: str) -> None:
    """Raise `Unsupported` if one of these messages is of a stream, which takes no messages back."""
    if not channel.has_streams:
        return
    unacked = channel.unacked
    for message in [unacked[tag] for tag in tags if tag in unacked]:
        queue = message.holder.queue
        if queue.is_stream:
            described = f"queue '{queue.name}' in vhost '{queue.vhost_name}'"
            raise Unsupported(f"{methods} not supported by stream queues {described}")
