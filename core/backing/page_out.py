"""Moving bodies of messages from memory to the disk, and back.

Persistent messages of a durable queue were written to its store when they arrived, and letting go
of them costs nothing; others are written when they are paged out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from warren.core.backing.queue_store import QueueStore
from warren.core.messages.message import PAGED_OUT, Message


def price(store: QueueStore, message: Message) -> int:
    """The cost of paging a message out, in the measure of `Pageable.reduce`."""
    if store.durable and message.envelope.persistent:
        return 1
    return 1 + (len(message.body) >> 10)


def choose(
    store: QueueStore, take: Callable[[], Message], count_max: int, budget: int
) -> tuple[list[Message], int]:
    """Take up to `count_max` messages, until they cost the budget. Returns them and their cost."""
    messages: list[Message] = []
    spent = 0
    while len(messages) < count_max and spent < budget:
        message = take()
        messages.append(message)
        spent += price(store, message)
    return messages, spent


def keep(store: QueueStore, messages: Iterable[Message]) -> None:
    """See to it that the store has these messages, given in the order of their positions."""
    durable, has_written = store.durable, store.has_written
    unwritten = [
        message
        for message in messages
        # Messages that were paged out and read back are still there.
        if not (durable and message.envelope.persistent) and not has_written(message)
    ]
    if unwritten:
        store.page(unwritten)


def drop_bodies(store: QueueStore, messages: Iterable[Message]) -> None:
    """Keep the objects of these messages without their bodies."""
    messages = sorted(messages, key=lambda message: message.position)
    keep(store, messages)
    for message in messages:
        message.page_out()


def read_back(store: QueueStore, message: Message) -> bool:
    """See to it that the message has its body in memory. False if the store has lost that."""
    if message.body is PAGED_OUT:
        body = store.read_body(message)
        if body is None:
            return False
        message.body = body
    return True
