"""Channels that end: their consumers leave the queues, those of a connection all at once.

A queue looks through all its consumers for those that leave. A connection may have thousands of
channels with a consumer of the same queue each. What these give back goes back in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from warren.core.queues.consumers import ConsumedQueue, Consumer
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import Event, Waiting, run

GIVE_BACK_US = 40
"""What the end of a channel costs, besides the messages it gives back."""


class EndingChannel(Protocol):
    """A channel of a connection that ends."""

    def without_consumers(self) -> list[Consumer]:
        """Forget the consumers, and return them; their queues still know them."""
        ...

    def stop(self) -> None:
        """End timers, direct replies and confirms, when the queues know no consumer of it."""
        ...

    def give_back(self) -> Waiting[None]:
        """What the client has not acknowledged goes back."""
        ...


def end_all(channels: Sequence[EndingChannel], turns: Turns) -> list[Event]:
    """End channels that are closed, or whose connection ends. Returns what `leave` does."""
    left = leave([one for channel in channels for one in channel.without_consumers()], turns)
    for channel in channels:
        channel.stop()
    run(_give_back(channels, turns), lambda result: result())
    return left


async def _give_back(channels: Sequence[EndingChannel], turns: Turns) -> None:
    for channel in channels:
        turns.spend(GIVE_BACK_US)
        await turns.pause()
        # One that waits for something under way does not hold up the next ones.
        run(channel.give_back(), lambda result: result())


def leave(consumers: list[Consumer], turns: Turns) -> list[Event]:
    """Have the queues forget consumers that their channels have forgotten. Returns what happens
    when the auto-delete queues of other nodes are gone that have lost their last consumer."""
    by_queue: dict[ConsumedQueue, list[Consumer]] = {}
    for consumer in consumers:
        by_queue.setdefault(consumer.queue, []).append(consumer)
    left = [queue.remove_consumers(of_queue) for queue, of_queue in by_queue.items()]
    turns.let_go(consumers)
    return [event for event in left if event is not None]
