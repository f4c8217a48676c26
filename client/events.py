"""Events that a client gets from its broker, in the order in which they came."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pamqp import base


class Opened(NamedTuple):
    """The connection is open: channels may be opened."""


class Answered(NamedTuple):
    """The answer to the oldest unanswered question on the channel."""

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


class PublishesConfirmed(NamedTuple):
    """The broker has confirmed these publishes, in the order of their tags."""

    channel: int
    tags: list[int]


class PublishRefused(NamedTuple):
    """The broker refused this publish: it was nacked, or returned as unroutable."""

    channel: int
    tag: int
    reason: str


class Cancelled(NamedTuple):
    """The broker ended the consumer, usually because its queue is gone."""

    channel: int
    consumer_tag: str


class PublishingBlocked(NamedTuple):
    """The broker wants no publishes now, for this reason; None: it wants them again."""

    reason: str | None


class ChannelClosed(NamedTuple):
    """The broker closed the channel, which can be opened anew."""

    channel: int
    code: int
    text: str


class ConnectionEnded(NamedTuple):
    """The connection has ended. `code` is 0 if the broker gave no reason."""

    code: int
    text: str


Event: TypeAlias = (
    Opened
    | Answered
    | Delivered
    | PublishesConfirmed
    | PublishRefused
    | Cancelled
    | PublishingBlocked
    | ChannelClosed
    | ConnectionEnded
)
