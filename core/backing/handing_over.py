"""What a backing queue has its stores say of messages that go on in another store of the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from warren.core.backing.backing_queue import BackingQueue
from warren.core.backing.priority_queue import PriorityQueue
from warren.core.backing.queue_store import NOT_HANDED, Handed, QueueStore
from warren.core.messages.message import Message


class HasStore(Protocol):
    """A level of a queue. `store` is None where everything is in memory."""

    @property
    def store(self) -> QueueStore | None: ...


def hand_over(backing: BackingQueue, messages: Sequence[Message]) -> list[Handed]:
    """These pending messages of the queue are about to be kept elsewhere and acknowledged here."""
    if isinstance(backing, PriorityQueue):
        return [_handed(backing.level_of(message.envelope), message) for message in messages]
    store = cast(HasStore, backing).store
    if store is None:
        return [NOT_HANDED] * len(messages)
    return [store.hand_over(message) for message in messages]


def _handed(level: BackingQueue, message: Message) -> Handed:
    store = cast(HasStore, level).store
    return NOT_HANDED if store is None else store.hand_over(message)
