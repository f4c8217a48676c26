"""What travels: an envelope shared by all copies of a publish, and one message per queue.

An `Envelope` is everything about a publish except its body. A publisher that repeats exchange,
routing key, properties and body size shares one envelope between all its messages, so reading
facts out of the property bytes happens once. The raw content header is kept as it came, types
and all; it is decoded only when a rule needs it, by the `ContentCodec` of the node.

A `Message` is one entry of one queue: the shared envelope and body, plus what differs from queue
to queue.
"""

from __future__ import annotations

from collections.abc import Collection, Reversible
from typing import Final, Protocol, cast

from msgspec import Struct

PAGED_OUT: Final = b"paged out"
"""Stands in a message for a body that only the store of its queue has; compare it with `is`."""


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


NOBODY: Final = cast("Holder", None)
"""Holds what is ready."""


class Envelope(Struct, eq=False, gc=False):
    """Everything about a publish but its body. It stays as it was made.

    `header` is the payload of the content header frame: class, weight, body size (u64), flags
    word and property bytes. It is for exactly one body size. `copies` are the further routing keys
    of the CC and BCC headers; BCC is no longer in `header`. `address` are exchange and routing
    key as they stand in methods, if they were met there. `stored` is for the storage: the envelope
    as it is written, and the checksum of that.
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
        """All keys the message is routed by."""
        return (self.routing_key, *self.copies)


class Message(Struct, eq=False, gc=False):
    """A message in one queue.

    `position` is its place in that queue for ever: requeueing puts it back there.
    `expires_at` is on the clock of the node, or None. `holder` is who got it and has not settled
    it yet, or `NOBODY`. Code that keeps a message for long must expect its body to be paged out,
    and `BackingQueue.load` it before use.

    The collector does not look at messages, of which there may be millions: objects that end let
    go of the messages they hold, so that no cycle is left.
    """

    envelope: Envelope
    body: bytes
    position: int
    expires_at: float | None = None
    redelivered: bool = False
    holder: Holder = NOBODY
    paged_bytes: int = 0

    @property
    def body_bytes(self) -> int:
        """The size of the body, wherever it is."""
        body = self.body
        return self.paged_bytes if body is PAGED_OUT else len(body)

    def page_out(self) -> None:
        """Let go of the body, which a store has."""
        assert self.body is not PAGED_OUT, self.position
        self.paged_bytes = len(self.body)
        self.body = PAGED_OUT


def mark_delivered(messages: Reversible[Message], start: int, below: int) -> None:
    """Have those with positions in [start, below) come as redelivered; they are in order."""
    for message in reversed(messages):
        if message.position < start:
            return
        message.redelivered |= message.position < below
