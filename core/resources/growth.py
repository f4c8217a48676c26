"""Which queues may take no more while a resource runs short, because they have grown.

An alarm is there to stop what fills memory and disk: queues into which more is published than
consumed. A queue whose consumers keep up fills nothing, so while the shortage is small
(`Alarms.all_wait` is false) its publishers go on. A queue has grown when it holds more than it did
when it was first published to during the shortage, and more than `ALWAYS`. Its publishers wait
until it is shorter again, or the shortage is over.

What a queue holds is known to the node that leads it. The nodes tell each other which queues have
grown (`told`), so that publishers anywhere in the cluster wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from warren.core.messages.stock import Stock
from warren.core.ports import Clock
from warren.core.resources.alarms import Alarms
from warren.core.scheduling.periodic import Periodic

LOOK_INTERVAL_S = 0.25
"""How often a queue that has grown is looked at, whether it is shorter again."""


ALWAYS = Stock(1000, 1 << 20)
"""What any queue may hold: consumers have some messages that are not acknowledged yet."""


class Holding(Protocol):
    """A queue, as far as this module looks at it."""

    @property
    def is_here(self) -> bool:
        """Whether this node leads it."""

    @property
    def queue_id(self) -> int:
        """The id of the queue, which is the same on every node."""

    @property
    def deleted(self) -> bool:
        """Whether it is gone, or another object stands for it."""

    def stock(self) -> Stock: ...


class Growth:
    """The queues that have grown since a resource runs short."""

    def __init__(self, alarms: Alarms, clock: Clock) -> None:
        self._alarms = alarms
        self._at_first: dict[Holding, Stock] = {}
        self._grown: dict[Holding, None] = {}
        self._elsewhere: dict[str, frozenset[int]] = {}
        self._subscribers: list[Callable[[], None]] = []
        self._look = Periodic(clock, self._look_again)
        alarms.subscribe(self._alarms_changed)

    def holds_back(self, queue: Holding) -> bool:
        """Whether publishers to this queue have to wait; asked before each publish of theirs."""
        if not queue.is_here:
            return any(queue.queue_id in grown for grown in self._elsewhere.values())
        if queue.deleted:
            return False
        held = queue.stock()
        before = self._at_first.setdefault(queue, held)
        has_grown = held.messages > max(before.messages, ALWAYS.messages) or held.octets > max(
            before.octets, ALWAYS.octets
        )
        if has_grown and queue not in self._grown:
            self._grown[queue] = None
            if len(self._grown) == 1:
                self._look.start()
            self._changed()
        return has_grown

    def grown_here(self) -> list[int]:
        """The ids of the queues led here that publishers wait for."""
        return sorted(queue.queue_id for queue in self._grown)

    def told(self, node: str, grown: Iterable[int]) -> None:
        """Note the queues led at another node that publishers have to wait for, as it names
        them."""
        ids = frozenset(grown)
        if ids != self._elsewhere.get(node, frozenset()):
            self._elsewhere[node] = ids
            self._changed()

    def node_down(self, node: str) -> None:
        """Forget what a node said that is gone: another one leads its queues, and will say which
        have grown."""
        self.told(node, ())

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when the queues have changed that publishers wait for."""
        self._subscribers.append(callback)

    def _changed(self) -> None:
        for callback in self._subscribers:
            callback()

    def _look_again(self, now: float) -> float | None:
        shorter = [queue for queue in self._grown if not self.holds_back(queue)]
        for queue in shorter:
            del self._grown[queue]
        if shorter:
            self._changed()
        return LOOK_INTERVAL_S if self._grown else None

    def _alarms_changed(self) -> None:
        if not self._alarms.raised:
            self._at_first.clear()
            self._grown.clear()
