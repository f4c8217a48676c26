"""The end of channels: their consumers leave the queues, those of one connection all at once.

A queue looks through all its consumers for those that leave, and a connection may have thousands of
channels, each with a consumer of the same queue. The messages that channels give back are given
back in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from warren.core.queues.consumers import ConsumedQueue, Consumer
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import Event, Waiting, run

GIVE_BACK_US = 40
"""The cost of ending a channel, without the messages that it gives back, in the microseconds of
`core/scheduling/turns.py`."""


class EndingChannel(Protocol):
    """A channel of a connection that ends."""

    def without_consumers(self) -> list[Consumer]:
        """Forget the consumers, and return them; their queues still know them."""
        ...

    def stop(self) -> None:
        """End timers, direct replies and confirms. The queues have removed its consumers before."""
        ...

    def give_back(self) -> Waiting[None]:
        """Give unacknowledged messages back to their queues."""
        ...


def end_all(channels: Sequence[EndingChannel], turns: Turns) -> list[Event]:
    """End channels that are closed, or whose connection ends. Returns the events of `leave`."""
    left = leave([one for channel in channels for one in channel.without_consumers()], turns)
    for channel in channels:
        channel.stop()
    run(_give_back(channels, turns), lambda result: result())
    return left


async def _give_back(channels: Sequence[EndingChannel], turns: Turns) -> None:
    for channel in channels:
        turns.spend(GIVE_BACK_US)
        await turns.pause()
        # A channel that waits for an operation under way does not hold up the next ones.
        run(channel.give_back(), lambda result: result())


def leave(consumers: list[Consumer], turns: Turns) -> list[Event]:
    """Remove consumers from their queues; their channels have forgotten them before. Returns an
    event for each auto-delete queue of another node that has lost its last consumer: it happens
    when the queue is gone."""
    by_queue: dict[ConsumedQueue, list[Consumer]] = {}
    for consumer in consumers:
        by_queue.setdefault(consumer.queue, []).append(consumer)
    left = [queue.remove_consumers(of_queue) for queue, of_queue in by_queue.items()]
    turns.let_go(consumers)
    return [event for event in left if event is not None]
