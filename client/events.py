"""What a client hears from its broker, in the order in which it came."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pamqp import base


class Opened(NamedTuple):
    """The connection is open: channels may be opened."""


class Answered(NamedTuple):
    """The answer to the oldest question on the channel that has none yet."""

    channel: int
    method: base.Frame


class Delivered(NamedTuple):
    """A message of a consumer. Names and content header are octets, as they came."""

    channel: int
    delivery_tag: int
    redelivered: bool
    exchange: bytes
    routing_key: bytes
    header: bytes
    body: bytes


class Confirmed(NamedTuple):
    """The broker answers for these publishes, in the order of their tags."""

    channel: int
    tags: list[int]


class Refused(NamedTuple):
    """The broker did not take this publish: it was nacked, or returned as unroutable."""

    channel: int
    tag: int
    reason: str


class Cancelled(NamedTuple):
    """The broker ended the consumer, mostly because its queue is gone."""

    channel: int
    consumer_tag: str


class Blocked(NamedTuple):
    """The broker wants no publishes now; None: it wants them again."""

    reason: str | None


class ChannelClosed(NamedTuple):
    """The broker closed the channel, which can be opened anew."""

    channel: int
    code: int
    text: str


class ConnectionEnded(NamedTuple):
    """Nothing more will come. `code` is 0 where the broker did not say why."""

    code: int
    text: str


Event: TypeAlias = (
    Opened
    | Answered
    | Delivered
    | Confirmed
    | Refused
    | Cancelled
    | Blocked
    | ChannelClosed
    | ConnectionEnded
)
