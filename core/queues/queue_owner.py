"""The interfaces through which a queue asks its virtual host, and publishes its dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

from warren.core.messages.message import Message
from warren.core.messages.message_observer import MessageObserver
from warren.core.ports import Clock, ContentCodec
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import Event

Q = TypeVar("Q")
"""The queues of the virtual host."""

L_contra = TypeVar("L_contra", contravariant=True)
"""The queues of the virtual host that this node has."""


class DeathReason(StrEnum):
    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


class DeadLetters(Protocol[L_contra]):
    """Publishes what died in a queue to its dead letter exchange."""

    def died(self, queue: L_contra, count: int, reason: DeathReason) -> None:
        """Count messages that are not to be published."""
        ...

    def bury(self, queue: L_contra, messages: Sequence[Message], reason: DeathReason) -> None:
        """Bury these pending messages of the queue, the oldest first.

        `LocalQueue.buried` is told when their dead letters are safe.
        """
        ...

    def bury_unkept(
        self, queue: L_contra, message: Message, reason: DeathReason, done: Callable[[], None]
    ) -> None:
        """Bury a message that died before the queue took it. `done` is called when its dead letter
        is safe, which may be at once."""
        ...

    def all_buried(self, queue: L_contra) -> Event:
        """Happens when nothing of the queue is left to bury."""
        ...

    def queue_ends(self, queue: L_contra) -> None:
        """The queue is about to be deleted, and its messages with it; the dead ones are not."""
        ...

    def queue_moves(self, queue: L_contra) -> None:
        """Another object is about to stand for the queue, in which the dead ones die again."""
        ...


class QueueOwner(Protocol[Q]):
    """The calls of a queue to its virtual host."""

    @property
    def name(self) -> str: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def turns(self) -> Turns: ...

    @property
    def codec(self) -> ContentCodec: ...

    @property
    def observer(self) -> MessageObserver | None:
        """The observer of what clients publish."""
        ...

    async def end_queue(self, queue: Q, check: Callable[[], None]) -> None:
        """Delete the queue and its bindings, unless `check` raises."""
        ...

    def current(self, queue: Q) -> Q | None:
        """The object that stands for the queue now; None when it was deleted."""
        ...

    def renew_queue(self, queue: Q) -> None:
        """The leader of the queue, at another node, has forgotten us: begin anew with it."""
        ...


class LocalQueueOwner(QueueOwner[Q], Protocol[Q, L_contra]):
    """The further calls to its virtual host of a queue that this node has."""

    @property
    def burials(self) -> DeadLetters[L_contra]: ...

    def queue_unused(self, queue: L_contra) -> None:
        """Delete the queue, which has lost its last user."""
        ...

    def follow_retention(self, queue: L_contra) -> None:
        """Have the queue retain acknowledged messages as its settings say."""
        ...
