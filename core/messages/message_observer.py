"""The interface of those who observe the messages of a virtual host: firehose and life trace.

The virtual host calls its observer, if it has one, at each step of a message's life. Messages of a
virtual host without an observer cost what they would cost if there were no observers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from warren.core.messages.message import Envelope, Message


class TracedClient(NamedTuple):
    """The client that published, or was handed something: connection name, channel number, user.

    `is_elsewhere`: the client is at another node than the queue, and both nodes report the
    delivery.
    """

    connection: str
    channel: int
    user: str
    is_elsewhere: bool = False


class TracedQueue(Protocol):
    """A queue, as observers see it."""

    name: str

    @property
    def is_here(self) -> bool:
        """Whether this node leads it; else the node that does reports what happens there."""
        ...

    def trace_with(self, observer: MessageObserver | None) -> None: ...


class MessageObserver:
    """The base of observers, which are told what becomes of messages: each overrides the calls that
    it needs. Messages that are handed in stay as they are.

    An observer that `takes_batches` leaves publishes and deliveries gathered as they are, and is
    told of many of them in one call: `published_many`, `sent_many`, `handed_over_many`. Others are
    told of each.
    """

    @property
    def takes_batches(self) -> bool:
        return False

    def published_many(
        self,
        publisher: TracedClient,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        queues: Sequence[TracedQueue],
    ) -> None:
        """`published`, for each of these messages."""

    def sent_many(
        self,
        queue: TracedQueue,
        recipient: TracedClient,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
    ) -> None:
        """`delivered` for the first time, with no acknowledgement to come, for each of these
        messages."""

    def handed_over_many(
        self, queue: TracedQueue, recipient: TracedClient, messages: Sequence[Message]
    ) -> None:
        """`delivered`, with an acknowledgement to come, for each of these messages."""

    def published(
        self,
        publisher: TracedClient,
        envelope: Envelope,
        body: bytes,
        queues: Sequence[TracedQueue],
    ) -> None:
        """A client published this, and it is about to reach these queues."""

    def rolled_back(self, envelope: Envelope, queues: Sequence[TracedQueue]) -> None:
        """A client had `published` this in a transaction, and rolled that back."""

    def unroutable(self, envelope: Envelope, returned: bool) -> None:
        """No queue took it. `returned`: its publisher got it back."""

    def arrived(self, queue: TracedQueue, envelope: Envelope, from_node: str) -> None:
        """A client of another node published this, and it is about to reach the queue."""

    def refused(self, queue: TracedQueue, envelope: Envelope) -> None:
        """The queue does not take it: it is full, or has too few copies."""

    def duplicate(self, queue: TracedQueue, envelope: Envelope) -> None:
        """The queue has taken a message with this id before, and drops this one."""

    def delivered(
        self,
        queue: TracedQueue,
        recipient: TracedClient,
        envelope: Envelope,
        body: bytes,
        redelivered: bool,
        no_ack: bool,
    ) -> None:
        """A client was handed this from the queue. `no_ack`: that was the end of it."""

    def acknowledged(self, queue: TracedQueue, messages: Collection[Message]) -> None:
        """Clients acknowledged these."""

    def requeued(self, queue: TracedQueue, messages: Collection[Message]) -> None:
        """These are in the queue again."""

    def died(self, queue: TracedQueue, envelopes: Collection[Envelope], reason: str) -> None:
        """These leave the queue for a `DeathReason`, or never got into it."""

    def due(self, queue: TracedQueue, messages: Collection[Message]) -> None:
        """The delay of these is over."""

    def dead_lettered(
        self, queue: TracedQueue, envelope: Envelope, targets: Sequence[TracedQueue]
    ) -> None:
        """A message that died in the queue is about to be published to these queues."""

    def sent_on(
        self, queue: TracedQueue, envelope: Envelope, targets: Sequence[TracedQueue]
    ) -> None:
        """A message whose delay is over is about to be published to these queues."""

    def taken(
        self, queue: TracedQueue, action: str, envelope: Envelope, targets: Sequence[TracedQueue]
    ) -> None:
        """A message is moved or copied to these queues, or deleted, because an operator said so."""

    def emptied(self, queue: TracedQueue, deleted: bool) -> None:
        """The queue was purged, or deleted with its messages."""

    def mirrored(self, queue: str, envelope: Envelope) -> None:
        """A queue that another node leads has a copy here, which got this message."""


class Observers(MessageObserver):
    """Tells several observers, in order; there may be none."""

    def __init__(self) -> None:
        self._observers: tuple[MessageObserver, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether there is any observer."""
        return bool(self._observers)

    def tell(self, *observers: MessageObserver | None) -> None:
        """Tell these observers from now on, in place of those before."""
        self._observers = tuple([one for one in observers if one is not None])

    @property
    def takes_batches(self) -> bool:
        return all(observer.takes_batches for observer in self._observers)

    def published_many(
        self,
        publisher: TracedClient,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
        queues: Sequence[TracedQueue],
    ) -> None:
        for observer in self._observers:
            observer.published_many(publisher, envelopes, bodies, queues)

    def sent_many(
        self,
        queue: TracedQueue,
        recipient: TracedClient,
        envelopes: Sequence[Envelope],
        bodies: Sequence[bytes],
    ) -> None:
        for observer in self._observers:
            observer.sent_many(queue, recipient, envelopes, bodies)

    def handed_over_many(
        self, queue: TracedQueue, recipient: TracedClient, messages: Sequence[Message]
    ) -> None:
        for observer in self._observers:
            observer.handed_over_many(queue, recipient, messages)

    def published(
        self,
        publisher: TracedClient,
        envelope: Envelope,
        body: bytes,
        queues: Sequence[TracedQueue],
    ) -> None:
        for observer in self._observers:
            observer.published(publisher, envelope, body, queues)

    def unroutable(self, envelope: Envelope, returned: bool) -> None:
        for observer in self._observers:
            observer.unroutable(envelope, returned)

    def arrived(self, queue: TracedQueue, envelope: Envelope, from_node: str) -> None:
        for observer in self._observers:
            observer.arrived(queue, envelope, from_node)

    def refused(self, queue: TracedQueue, envelope: Envelope) -> None:
        for observer in self._observers:
            observer.refused(queue, envelope)

    def duplicate(self, queue: TracedQueue, envelope: Envelope) -> None:
        for observer in self._observers:
            observer.duplicate(queue, envelope)

    def delivered(
        self,
        queue: TracedQueue,
        recipient: TracedClient,
        envelope: Envelope,
        body: bytes,
        redelivered: bool,
        no_ack: bool,
    ) -> None:
        for observer in self._observers:
            observer.delivered(queue, recipient, envelope, body, redelivered, no_ack)

    def acknowledged(self, queue: TracedQueue, messages: Collection[Message]) -> None:
        for observer in self._observers:
            observer.acknowledged(queue, messages)

    def requeued(self, queue: TracedQueue, messages: Collection[Message]) -> None:
        for observer in self._observers:
            observer.requeued(queue, messages)

    def died(self, queue: TracedQueue, envelopes: Collection[Envelope], reason: str) -> None:
        for observer in self._observers:
            observer.died(queue, envelopes, reason)

    def rolled_back(self, envelope: Envelope, queues: Sequence[TracedQueue]) -> None:
        for observer in self._observers:
            observer.rolled_back(envelope, queues)

    def due(self, queue: TracedQueue, messages: Collection[Message]) -> None:
        for observer in self._observers:
            observer.due(queue, messages)

    def dead_lettered(
        self, queue: TracedQueue, envelope: Envelope, targets: Sequence[TracedQueue]
    ) -> None:
        for observer in self._observers:
            observer.dead_lettered(queue, envelope, targets)

    def sent_on(
        self, queue: TracedQueue, envelope: Envelope, targets: Sequence[TracedQueue]
    ) -> None:
        for observer in self._observers:
            observer.sent_on(queue, envelope, targets)

    def taken(
        self, queue: TracedQueue, action: str, envelope: Envelope, targets: Sequence[TracedQueue]
    ) -> None:
        for observer in self._observers:
            observer.taken(queue, action, envelope, targets)

    def emptied(self, queue: TracedQueue, deleted: bool) -> None:
        for observer in self._observers:
            observer.emptied(queue, deleted)

    def mirrored(self, queue: str, envelope: Envelope) -> None:
        for observer in self._observers:
            observer.mirrored(queue, envelope)
