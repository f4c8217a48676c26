"""Messages of a backing queue that go on in another store of the node.

The stores of the queue say who waits until such a message is safe, and where it is on disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol, cast

from warren.core.backing.backing_queue import BackingQueue
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.backing.queue_store import NOT_HANDED, Handed, QueueStore
from warren.core.messages.message import Message


class Followed(ABC):
    """A level of a queue that other nodes follow."""

    __slots__ = ()

    @abstractmethod
    def retained(self, messages: Sequence[Message]) -> None:
        """These messages are kept after they are acknowledged: others are to do the same."""


class HasStore(Protocol):
    """A level of a queue. `store` is None where everything is in memory."""

    @property
    def store(self) -> QueueStore | None: ...


def hand_over(backing: BackingQueue, messages: Sequence[Message]) -> list[Handed]:
    """These pending messages of the queue are about to be kept elsewhere and acknowledged here."""
    if isinstance(backing, PriorityQueue):
        by_level: defaultdict[BackingQueue, list[Message]] = defaultdict(list)
        for message in messages:
            by_level[backing.level_of(message.envelope)].append(message)
        handed: dict[Message, Handed] = {}
        for level, of_level in by_level.items():
            handed.update(zip(of_level, _of_level(level, of_level), strict=True))
        return [handed[message] for message in messages]
    return _of_level(backing, messages)


def _of_level(level: BackingQueue, messages: Sequence[Message]) -> list[Handed]:
    if isinstance(level, Followed):
        level.retained(messages)
    store = cast(HasStore, level).store
    if store is None:
        return [NOT_HANDED] * len(messages)
    return [store.hand_over(message) for message in messages]
