"""Envelopes and messages: one envelope for all copies of a publish, one message for each queue.

An `Envelope` is everything about a publish except its body. A publisher that repeats exchange,
routing key, properties and body size shares one envelope between all its messages, so reading
facts out of the property bytes happens once. The raw content header is kept as it came, types
and all; it is decoded only when a rule needs it, by the `ContentCodec` of the node.

A `Message` is one entry of one queue: the shared envelope and body, plus what differs from queue
to queue.
"""

from __future__ import annotations

from collections.abc import Collection, Reversible, Sequence
from itertools import repeat
from typing import Final, Protocol, cast

from msgspec import Struct

PAGED_OUT: Final = b"paged out"
"""In place of a body that only the store of the queue has; compare it with `is`."""

MESSAGE_SIZE_CAP = 536_870_912
"""Octets of the largest body that any configuration allows, as in RabbitMQ."""


class HeldQueue(Protocol):
    """The queue of a delivered message, as the code that settles the message knows it."""

    name: str

    @property
    def vhost_name(self) -> str: ...

    @property
    def is_stream(self) -> bool: ...

    @property
    def has_ready(self) -> bool:
        """Whether a message waits in the queue for a consumer."""
        ...

    def ack(self, messages: Collection[Message]) -> None: ...

    def reject(self, messages: Collection[Message]) -> None: ...

    def requeue(self, messages: list[Message]) -> None: ...

    def abandoned(self, messages: list[Message]) -> None:
        """Take back messages whose holder is gone."""
        ...

    def deliver(self) -> None:
        """Serve the consumers."""
        ...


class Holder(Protocol):
    """The consumer, or basic.get, that got a message."""

    @property
    def queue(self) -> HeldQueue: ...

    limited: bool
    """Whether a limit of the whole channel counts the messages that this holder has."""

    def settled(self, count: int) -> None:
        """`count` of the holder's messages were acknowledged, rejected or requeued."""
        ...


NO_HOLDER: Final = cast("Holder", None)
"""The holder of ready messages."""


class Envelope(Struct, eq=False, gc=False):
    """Everything about a publish except its body. An envelope is never changed.

    `header` is the payload of the content header frame: class, weight, body size (u64), flags
    word and property bytes; so it is for exactly one body size. `copies` are the further routing
    keys in the headers CC and BCC; BCC is no longer in `header`. `address` has the octets of
    exchange and routing key as methods carry them; empty if they did not come in a method. `stored`
    is for the storage: the envelope as it is written, and the checksum of that.
    """

    exchange: str
    routing_key: str
    header: bytes
    persistent: bool
    priority: int
    expiration_ms: int | None
    copies: tuple[str, ...] = ()
    address: bytes = b""
    stored: tuple[bytes, int] | None = None

    @property
    def routing_keys(self) -> tuple[str, ...]:
        """All keys by which the message is routed."""
        return (self.routing_key, *self.copies)


def address_of(exchange: bytes, routing_key: bytes) -> bytes:
    """Exchange and routing key as methods carry them: each behind its length."""
    return b"%c%b%c%b" % (len(exchange), exchange, len(routing_key), routing_key)


class Message(Struct, eq=False, gc=False):
    """A message in one queue.

    `position` is its place in that queue for ever: requeueing puts it back there. `expires_at` is a
    time of the node's clock, or None. `holder` is the consumer or basic.get that has not settled
    the message yet, or `NO_HOLDER`. Code that keeps a message for long must expect its body to be
    paged out, and call `BackingQueue.load` before it uses the body.

    The garbage collector does not look at messages, of which there may be millions. So objects that
    end must let go of their messages: a cycle would never be freed.
    """

    envelope: Envelope
    body: bytes
    position: int
    expires_at: float | None = None
    redelivered: bool = False
    holder: Holder = NO_HOLDER
    paged_bytes: int = 0

    @property
    def body_bytes(self) -> int:
        """The size of the body, whether it is in memory or not."""
        body = self.body
        return self.paged_bytes if body is PAGED_OUT else len(body)

    def page_out(self) -> None:
        """Drop the body, which a store has."""
        assert self.body is not PAGED_OUT, self.position
        self.paged_bytes = len(self.body)
        self.body = PAGED_OUT


def parted_by_expiry(messages: list[Message], now: float) -> tuple[list[Message], list[Message]]:
    """The messages that have not expired by now, and those that have."""
    expired = [one for one in messages if one.expires_at is not None and one.expires_at <= now]
    if not expired:
        return messages, expired
    return [one for one in messages if one.expires_at is None or one.expires_at > now], expired


def new_messages(
    envelopes: Sequence[Envelope], bodies: Sequence[bytes], first: int, expires_at: float | None
) -> list[Message]:
    """Messages at positions from `first` on, which expire together."""
    positions = range(first, first + len(bodies))
    if expires_at is None:
        return list(map(Message, envelopes, bodies, positions))
    return list(map(Message, envelopes, bodies, positions, repeat(expires_at)))


def mark_delivered(messages: Reversible[Message], start: int, below: int) -> None:
    """Mark those with positions in [start, below) as redelivered; `messages` are in order."""
    for message in reversed(messages):
        if message.position < start:
            return
        message.redelivered |= message.position < below
