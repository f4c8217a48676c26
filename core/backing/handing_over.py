"""Messages of a backing queue that go on in another store of the node.

The stores of the queue say who waits until such a message is safe, and where it is on disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Protocol, cast

from warren.core.backing.backing_queue import BackingQueue
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.backing.queue_store import NOT_HANDED, Handed, QueueStore
from warren.core.messages.message import Message


class Followed(ABC):
    """A level of a queue that other nodes follow."""

    __slots__ = ()

    @abstractmethod
    def retained(self, messages: Sequence[Message], first: int) -> None:
        """Note that these messages are kept after they are acknowledged, at positions from `first`
        on: other nodes are to keep them, too."""

    @abstractmethod
    def publishing_again(self) -> AbstractContextManager[None]:
        """While this lasts, what is published to any level of the queue counts as delivered."""

    @abstractmethod
    async def noted(self) -> bool:
        """Return when any next leader of the queue will know what was done so far. False when
        another node leads by then."""


class HasStore(Protocol):
    """A level of a queue. `store` is None where everything is in memory."""

    @property
    def store(self) -> QueueStore | None: ...


def hand_over(backing: BackingQueue, messages: Sequence[Message], first: int) -> list[Handed]:
    """Hand over these pending messages of the queue: they are about to be kept elsewhere, at
    positions from `first` on, and acknowledged here."""
    if not isinstance(backing, PriorityQueue):
        return _of_level(backing, messages, first)
    handed: list[Handed] = []
    for level, some in groupby(messages, lambda one: backing.level_of(one.envelope)):
        handed += _of_level(level, list(some), first + len(handed))
    return handed


def tell_next(backing: BackingQueue, position: int) -> None:
    """Tell other nodes the position of the message that the queue retains next."""
    level = backing.levels[0] if isinstance(backing, PriorityQueue) else backing
    if isinstance(level, Followed):
        level.retained((), position)


def _of_level(level: BackingQueue, messages: Sequence[Message], first: int) -> list[Handed]:
    if isinstance(level, Followed):
        level.retained(messages, first)
    store = cast(HasStore, level).store
    if store is None:
        return [NOT_HANDED] * len(messages)
    return [store.hand_over(message) for message in messages]
