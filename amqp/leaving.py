"""Channels that end: their consumers leave the queues, those of a connection all at once.

A queue looks through all its consumers for those that leave. A connection may have thousands of
channels with a consumer of the same queue each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from warren.core.queues.consumers import ConsumedQueue, Consumer
from warren.core.scheduling.turns import Turns


class EndingChannel(Protocol):
    """A channel of a connection that ends."""

    def without_consumers(self) -> list[Consumer]:
        """Forget the consumers, and return them; their queues still know them."""
        ...

    def end(self) -> None: ...


def end_all(channels: Sequence[EndingChannel], turns: Turns) -> None:
    """Their connection ends."""
    leave([one for channel in channels for one in channel.without_consumers()], turns)
    for channel in channels:
        channel.end()


def leave(consumers: list[Consumer], turns: Turns) -> None:
    """Have the queues forget consumers that their channels have forgotten."""
    by_queue: dict[ConsumedQueue, list[Consumer]] = {}
    for consumer in consumers:
        by_queue.setdefault(consumer.queue, []).append(consumer)
    for queue, of_queue in by_queue.items():
        queue.remove_consumers(of_queue)
    turns.let_go(consumers)
