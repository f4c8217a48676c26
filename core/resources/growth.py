"""Growing queues: while a resource runs a little short, only their publishers have to wait.

Memory and disk are filled by queues into which more is published than consumed. A queue whose
consumers keep up fills nothing, so while the shortage is small (`Alarms.all_wait` is false) its
publishers go on. A queue has grown when it holds more than it did
when it was first published to during the shortage, and more than `ALWAYS`. Its publishers wait
until it is shorter again, or the shortage is over.

Only the node that leads a queue knows its size. The nodes tell each other which queues have grown
(`told`), so that publishers anywhere in the cluster wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from warren.core.messages.stock import Stock
from warren.core.ports import Clock
from warren.core.resources.alarms import Alarms
from warren.core.scheduling.periodic import Periodic

LOOK_INTERVAL_S = 0.25
"""The time between two checks whether queues that had grown are shorter again."""


ALWAYS = Stock(1000, 1 << 20)
"""A queue with no more than this has not grown: some messages are always unacknowledged."""


class GrowingQueue(Protocol):
    """The part of a queue that this module uses."""

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
    """The queues that have grown since a resource began to run short."""

    def __init__(self, alarms: Alarms, clock: Clock) -> None:
        self._alarms = alarms
        self._at_first: dict[GrowingQueue, Stock] = {}
        self._grown: dict[GrowingQueue, None] = {}
        self._elsewhere: dict[str, frozenset[int]] = {}
        self._subscribers: list[Callable[[], None]] = []
        self._look = Periodic(clock, self._look_again)
        alarms.subscribe(self._alarms_changed)

    def holds_back(self, queue: GrowingQueue) -> bool:
        """Whether publishers to this queue have to wait; it is asked before each publish."""
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
        """The ids of the queues that this node leads and that have grown."""
        return sorted(queue.queue_id for queue in self._grown)

    def told(self, node: str, grown: Iterable[int]) -> None:
        """Note the queues that have grown at another node, which has told this one."""
        ids = frozenset(grown)
        if ids != self._elsewhere.get(node, frozenset()):
            self._elsewhere[node] = ids
            self._changed()

    def node_down(self, node: str) -> None:
        """Forget the queues of a node that is gone: the nodes that lead them now will tell."""
        self.told(node, ())

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when the set of grown queues changes."""
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
