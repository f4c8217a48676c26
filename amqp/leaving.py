"""The end of channels: their consumers leave the queues, those of one connection all at once.

A queue looks through all its consumers for those that leave, and a connection may have thousands of
channels, each with a consumer of the same queue. Consumers of very many queues leave in several
turns of the loop. Messages that they are still handed meanwhile, one each at most, are not sent to
the client and go back with its other unacknowledged messages, which takes several turns too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from warren.amqp.consumer import ChannelConsumer
from warren.core.queues.consumers import ConsumedQueue, Consumer
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import Event, Waiting, run

GIVE_BACK_US = 40
"""The cost of ending a channel, without the messages that it gives back, in the microseconds of
`core/scheduling/turns.py`."""


LEFT_AT_ONCE = 100
LEAVE_US = 5
"""Queues that consumers leave in one turn, and the cost of each queue and each consumer, in the
microseconds of `core/scheduling/turns.py`."""

LOOKED_AT_ONCE = 1000
"""If consumers leave in several turns, so many are looked at together to find those of one queue:
a queue looks through all its consumers each time that some leave."""


class EndingChannel(Protocol):
    """A channel of a connection that ends."""

    def without_consumers(self) -> list[ChannelConsumer]:
        """Forget the consumers, and return them; their queues still know them."""
        ...

    def stop(self) -> None:
        """End timers, direct replies and confirms."""
        ...

    def give_back(self) -> Waiting[None]:
        """Give unacknowledged messages back to their queues, which have removed its consumers."""
        ...


def end_all(channels: Sequence[EndingChannel], turns: Turns) -> list[Event]:
    """End channels that are closed, or whose connection ends. Returns the events of `leave`."""
    consumers = [one for channel in channels for one in channel.without_consumers()]
    for channel in channels:
        channel.stop()
    give_back = _give_back(channels, turns)
    return leave(consumers, turns, lambda: run(give_back, lambda result: result()))


async def _give_back(channels: Sequence[EndingChannel], turns: Turns) -> None:
    for channel in channels:
        turns.spend(GIVE_BACK_US)
        await turns.pause()
        # A channel that waits for an operation under way does not hold up the next ones.
        run(channel.give_back(), lambda result: result())


def leave(consumers: list[ChannelConsumer], turns: Turns, then: Callable[[], None]) -> list[Event]:
    """Remove consumers from their queues; their channels have forgotten them before. `then` is
    called when all have left.

    Returns the event to wait for, or nothing if all is done. The event happens when all have left,
    and the auto-delete queues of other nodes that lost their last consumer are gone.
    """
    ending: list[Event] = []
    over = Event()

    def finish(result: Callable[[], None]) -> None:
        result()
        then()
        run(_after(ending, over), lambda result: result())

    if _is_much(consumers):
        for consumer in consumers:
            consumer.leave()
        run(_leave_in_turns(consumers, turns, ending), finish)
    else:
        ending += _leave(consumers)
        turns.let_go(consumers)
        finish(lambda: None)
    return [] if over.happened else [over]


def _is_much(consumers: Sequence[ChannelConsumer]) -> bool:
    """Whether leaving takes so long that other clients should have their turns meanwhile: there are
    many queues, or some are led by other nodes."""
    if len(consumers) <= LEFT_AT_ONCE:
        return False
    queues = {consumer.queue for consumer in consumers}
    return len(queues) > LEFT_AT_ONCE or not all([queue.is_here for queue in queues])


def _leave(consumers: Iterable[Consumer]) -> list[Event]:
    """Remove consumers from their queues; returns the events of `remove_consumers`."""
    left = [queue.remove_consumers(of_queue) for queue, of_queue in _by_queue(consumers).items()]
    return [event for event in left if event is not None]


async def _leave_in_turns(
    consumers: list[ChannelConsumer], turns: Turns, ending: list[Event]
) -> None:
    while consumers:
        some = consumers[-LOOKED_AT_ONCE:]
        del consumers[-LOOKED_AT_ONCE:]
        queues = 0
        for of_queue in _by_queue(some).values():
            queues += 1
            if queues > LEFT_AT_ONCE:
                queues = 0
                turns.spend(LEFT_AT_ONCE * LEAVE_US)
                await turns.pause()
            # The queue may be another object by now.
            ending += _leave(of_queue)
        turns.spend(len(some) * LEAVE_US)
        some.clear()
        await turns.pause()


async def _after(ending: list[Event], over: Event) -> None:
    for event in ending:
        await event
    over.happen()


def _by_queue(consumers: Iterable[Consumer]) -> dict[ConsumedQueue, list[Consumer]]:
    by_queue: dict[ConsumedQueue, list[Consumer]] = {}
    for consumer in consumers:
        by_queue.setdefault(consumer.queue, []).append(consumer)
    return by_queue
