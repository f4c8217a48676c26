"""The limit on what all consumers of a channel may hold together: basic.qos with `global`
(amqp_semantics.md section 5.1).

Theory. A channel may have tens of thousands of consumers, and an acknowledgement makes room for one
message. The consumers that the limit holds back are served in turn. Those whose queue has a message
come first, so the limit is usually reached again before the others are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from warren.amqp.settling import LOOKS_PER_US
from warren.core.queues.consumers import Blocked, Consumer
from warren.core.scheduling.turns import Turns

HELD_PER_US = 32
"""Consumers that are held back and can be passed over in a microsecond."""


class DeliveryLimit:
    """At most `most` messages may be outstanding. Consumers count here the messages that they are
    handed."""

    __slots__ = ("_held", "_outstanding", "_served", "_turns", "most")

    def __init__(
        self, most: int, outstanding: int, consumers: Iterable[Consumer], turns: Turns
    ) -> None:
        self.most = most
        self._outstanding = outstanding
        # The consumers that may be served, and those that the limit holds back, in turn.
        self._served = dict.fromkeys(consumers)
        self._held: dict[Consumer, None] = {}
        self._turns = turns
        if self.is_reached:
            self._stop()

    @property
    def room(self) -> int:
        """How many messages may still be delivered."""
        return self.most - self._outstanding

    @property
    def is_reached(self) -> bool:
        return self._outstanding >= self.most

    def change(self, most: int, outstanding: int) -> None:
        """Set another limit; `outstanding` messages are not settled at present."""
        self.most = most
        self._outstanding = outstanding
        if self.is_reached:
            self._stop()
        else:
            self._go_on()

    def lift(self) -> None:
        """There is no limit any more: serve those that it holds back."""
        held, self._held = self._held, {}
        _wake(held)

    def add(self, consumer: Consumer) -> None:
        """A new consumer, which is blocked already if the limit is reached."""
        (self._held if consumer.blocked & Blocked.CHANNEL_LIMIT else self._served)[consumer] = None

    def discard(self, consumer: Consumer) -> None:
        """A consumer has left its queue."""
        self._served.pop(consumer, None)
        self._held.pop(consumer, None)

    def clear(self) -> None:
        """All consumers have left their queues."""
        self._served.clear()
        self._held.clear()

    def count(self, count: int) -> None:
        """`count` messages were handed to a consumer."""
        self._outstanding += count
        if self.is_reached:
            self._stop()

    def settled(self, count: int) -> None:
        """`count` of the outstanding messages were settled."""
        self._outstanding -= count
        self._go_on()

    def _stop(self) -> None:
        self._turns.spend(len(self._served) // LOOKS_PER_US)
        for consumer in self._served:
            consumer.block(Blocked.CHANNEL_LIMIT)
        self._held.update(self._served)
        self._served.clear()

    def _go_on(self) -> None:
        """Serve the consumers that are held back, in turn, until the limit is reached again; those
        whose queue has no ready message come last."""
        self._turns.spend(len(self._held) // HELD_PER_US)
        self._serve(filter(lambda held: held.queue.has_ready, list(self._held)))
        self._serve(iter(list(self._held)))

    def _serve(self, held: Iterator[Consumer]) -> None:
        """Serve as many consumers at a time as there is room for messages, so that they share the
        room."""
        while not self.is_reached and (some := list(islice(held, self.room))):
            some = [consumer for consumer in some if consumer in self._held]
            for consumer in some:
                del self._held[consumer]
                self._served[consumer] = None
            _wake(some)


def _wake(consumers: Iterable[Consumer]) -> None:
    """Unblock all these consumers before any of their queues delivers: a queue serves its consumers
    in turn, and must find all of them able."""
    able = [one.queue for one in consumers if one.unblock(Blocked.CHANNEL_LIMIT)]
    for queue in dict.fromkeys(able):
        queue.deliver()
