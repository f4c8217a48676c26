"""The interfaces of a queue to its virtual host, and to the burials of its dead messages."""

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
"""The queues of the virtual host that this node leads."""


class DeathReason(StrEnum):
    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


class DeadLetters(Protocol[L_contra]):
    """Publishes dead letters of queues; `core/vhosts/burials.py` implements it."""

    def died(self, queue: L_contra, count: int, reason: DeathReason) -> None:
        """Count dead messages that are not published."""
        ...

    def bury(self, queue: L_contra, messages: Sequence[Message], reason: DeathReason) -> None:
        """Bury these pending messages of the queue, the oldest first.

        `LocalQueue.buried` is told when their dead letters are safe.
        """
        ...

    def bury_unkept(
        self, queue: L_contra, message: Message, reason: DeathReason, done: Callable[[], None]
    ) -> None:
        """Bury a message that died before the queue had taken it. Calls `done` when its dead letter
        is safe, which may be at once."""
        ...

    def all_buried(self, queue: L_contra) -> Event:
        """The event that the queue has nothing to bury any more."""
        ...

    def queue_ends(self, queue: L_contra) -> None:
        """The queue is about to be deleted with its messages; dead ones are still published."""
        ...

    def queue_moves(self, queue: L_contra) -> None:
        """Another object is about to stand for the queue; there, dead messages die again."""
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
        """The observer of published messages; None if there is none."""
        ...

    async def end_queue(self, queue: Q, check: Callable[[], None]) -> None:
        """Delete the queue and its bindings, unless `check` raises."""
        ...

    def current(self, queue: Q) -> Q | None:
        """The object that now stands for the queue; None if it was deleted."""
        ...

    def renew_queue(self, queue: Q) -> None:
        """Make another object for a queue whose leader has forgotten this node."""
        ...


class LocalQueueOwner(QueueOwner[Q], Protocol[Q, L_contra]):
    """The further calls of a queue that this node leads to its virtual host."""

    @property
    def burials(self) -> DeadLetters[L_contra]: ...

    def queue_unused(self, queue: L_contra) -> None:
        """Delete the queue, which has lost its last user."""
        ...

    def follow_retention(self, queue: L_contra) -> None:
        """Let the queue retain acknowledged messages as its settings say."""
        ...
