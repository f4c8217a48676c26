"""The consumers of one queue: all of them, those that can be served, and the one that is active.

Answerable for who may subscribe, and for which consumer is active in a queue with single active
consumer (amqp_semantics.md section 5.2). The ring decides which consumer is served next.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from warren.core.ports import Clock
from warren.core.queues.consumers import Blocked, Consumer, ConsumerRing
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import run

LOOKS_PER_US = 4
"""Consumers that are examined in a microsecond, to find those that unsubscribe."""


CANCELLED_AT_ONCE = 100
CANCEL_US = 10
"""Consumers that are told in one turn that their queue is gone, and the cost of each."""


def cancel_all(consumers: list[Consumer], turns: Turns) -> None:
    """Tell consumers that their queue is gone, in turns. The list is emptied.

    All have left the queue before, so nothing reaches those that are told later.
    """
    consumers.reverse()
    run(_cancel_all(consumers, turns), lambda result: result())


async def _cancel_all(consumers: list[Consumer], turns: Turns) -> None:
    while consumers:
        few = min(len(consumers), CANCELLED_AT_ONCE)
        for _ in range(few):
            consumers.pop().cancelled()
        turns.spend(few * CANCEL_US)
        await turns.pause()


class Subscriptions:
    """`consumers` are in the order in which they subscribed, `ring` has those that nothing blocks.

    `active` is the single active consumer; None in a queue without. Without
    `heeds_exclusive`, exclusive consumers are served like the others.
    """

    __slots__ = ("active", "consumers", "heeds_exclusive", "ring")

    def __init__(self, *, heeds_exclusive: bool = True) -> None:
        self.heeds_exclusive = heeds_exclusive
        self.consumers: list[Consumer] = []
        self.ring = ConsumerRing()
        self.active: Consumer | None = None

    @property
    def total(self) -> int:
        """The number of consumers that clients and operators are told."""
        return len(self.consumers)

    def admits(self, consumer: Consumer, *, single_active: bool) -> bool:
        """Whether the consumer may subscribe; an exclusive consumer must be alone."""
        if not self.heeds_exclusive:
            return True
        in_exclusive_use = bool(self.consumers) and self.consumers[0].exclusive
        wants_all = consumer.exclusive and (bool(self.consumers) or single_active)
        return not in_exclusive_use and not wants_all

    def add(self, consumer: Consumer, *, single_active: bool) -> None:
        """Subscribe a consumer that the queue `admits`."""
        self.consumers.append(consumer)
        if not consumer.blocked:
            self.ring.add(consumer)
        if single_active:
            if self.active is None:
                self.active = consumer
            else:
                consumer.block(Blocked.NOT_ACTIVE)

    def remove_all(self, gone: Collection[Consumer]) -> int:
        """Unsubscribe these together, as each alone would go through all consumers of the queue.
        Returns the cost in the microseconds of `core/scheduling/turns.py`."""
        looked_at = len(self.consumers)
        if len(gone) == 1:
            (consumer,) = gone
            with suppress(ValueError):
                self.consumers.remove(consumer)
            if not consumer.blocked:
                self.ring.remove(consumer)
        else:
            self.consumers[:] = [consumer for consumer in self.consumers if consumer not in gone]
            self.ring.remove_all(gone)
        self._bar(gone)
        return looked_at // LOOKS_PER_US

    def _bar(self, gone: Collection[Consumer]) -> None:
        """Keep these consumers out of the ring: later acknowledgements must not bring them back."""
        for consumer in gone:
            consumer.blocked |= Blocked.NOT_ACTIVE

    def activate_next(self) -> bool:
        """Choose the next single active consumer. True if it can be served now."""
        self.active = self._next_active()
        return self.active is not None and self.active.unblock(Blocked.NOT_ACTIVE)

    def _next_active(self) -> Consumer | None:
        """Return the waiting consumer with the highest priority, the oldest among equals."""
        return max(self.consumers, key=lambda consumer: consumer.priority, default=None)


class QuorumSubscriptions(Subscriptions):
    """The consumers of a quorum queue: a cancelled one counts while it has unacknowledged messages.

    The next single active consumer is the oldest, whatever its priority.
    """

    __slots__ = ("_clock", "leaving")

    def __init__(self, clock: Clock) -> None:
        super().__init__(heeds_exclusive=False)
        self._clock = clock
        # Consumers that were cancelled and have unacknowledged messages.
        self.leaving: dict[Consumer, None] = {}

    @property
    def total(self) -> int:
        self.forget_leavers()
        return len(self.consumers) + len(self.leaving)

    def forget_leavers(self) -> None:
        """Forget cancelled consumers that have no unacknowledged message any more."""
        for consumer in [consumer for consumer in self.leaving if not consumer.unacked]:
            del self.leaving[consumer]

    def _bar(self, gone: Collection[Consumer]) -> None:
        super()._bar(gone)
        leaving = [consumer for consumer in gone if consumer.unacked]
        if leaving:
            self.leaving.update(dict.fromkeys(leaving))
            # When its channel closes, its messages come back at once.
            self._clock.call_soon(self.forget_leavers)

    def _next_active(self) -> Consumer | None:
        return next(iter(self.consumers), None)
