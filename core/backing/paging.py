"""Decides how much queues may keep in memory, and has them page out the rest a slice at a time.

Answerable for storage_internals.md section d.2: from half of the memory limit on, every queue
gets a number of seconds; what it holds in memory may last so long at its present rates. The
seconds are the average of what queues hold, over the share of memory in use, so that all shrink
alike. While the disk runs short no queue pages out.

Only queues that have something worth paging out are known here: they `join` when they have grown
past `WORTH_PAGING` messages, and are let go when they have shrunk. So a tick costs what those
cost, not what all queues of the node would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from warren.core.messages.message import Message
from warren.core.ports import Clock

INTERVAL_S = 2.5
DEFAULT_PAGING_RATIO = 0.5
"""The share of the memory limit from which on queues page out."""

GROWING_RATIO = 0.95
"""Below this share of the memory limit targets may grow, even from nothing."""

GROWTH_S = 1.0

WORTH_PAGING: Final = 256
"""Messages in the memory of a queue that does not yet concern the pager."""

SLICE = 1000
"""Messages paged out before other work gets a turn; a millisecond or two."""


VISITS = 1000
"""Queues asked or told before other work gets a turn; a millisecond or two."""

DONE: Final = object()


class Pageable(Protocol):
    """A queue, as the pager sees it."""

    @property
    def excess(self) -> int:
        """Messages in memory beyond the target."""
        ...

    def report(self, now: float) -> float | None:
        """Bring the rates up to date. Return for how many seconds the messages in memory last; None
        if there is no end to it."""
        ...

    def set_duration_target(self, duration_s: float | None) -> None:
        """From now on keep in memory as much as lasts for so long; None is without limit."""
        ...

    def reduce(self, budget: int) -> int:
        """Page out some of the excess; returns the cost.

        A message costs 1, and 1 more for each KiB of a body that has to be written. The last
        one may overdraw the budget.
        """
        ...

    def leave_pager(self) -> bool:
        """Return True if too little is in memory for the pager to care; called at every tick."""
        ...


def desired_duration(
    durations_s: list[float], ratio: float | None, paging_ratio: float, disk_alarm: bool
) -> float | None:
    """Return the duration target of every queue in seconds; None is without limit. `ratio` is the
    share of the memory limit in use, None if unknown."""
    count = len(durations_s)
    if disk_alarm or ratio is None or ratio < paging_ratio or not count:
        return None
    total_s = sum(durations_s)
    if ratio < GROWING_RATIO:
        total_s += GROWTH_S
    return total_s / count / ratio


FREED_AT_ONCE = 5000
"""Messages that are freed before others have their turn: about a millisecond."""


class Pager:
    """The pager of a node; `Periodic` drives `check`.

    `memory_ratio` answers the memory in use as a share of the limit, or None if that is unknown;
    `disk_alarm` whether the disk of this node runs short.
    """

    def __init__(
        self,
        clock: Clock,
        memory_ratio: Callable[[], float | None],
        *,
        disk_alarm: Callable[[], bool] = lambda: False,
        paging_ratio: float = DEFAULT_PAGING_RATIO,
        worth_paging: int = WORTH_PAGING,
    ) -> None:
        self.paging_ratio = paging_ratio
        self.worth_paging = worth_paging
        self.duration_s: float | None = None
        """The duration target that every queue was told last."""
        self._clock = clock
        self._memory_ratio = memory_ratio
        self._disk_alarm = disk_alarm
        self._queues: dict[Pageable, None] = {}
        self._to_reduce: deque[Pageable] = deque()
        self._waiting: set[Pageable] = set()
        self._scheduled = False
        self._round: Iterator[None] | None = None

    def now(self) -> float:
        return self._clock.now()

    def join(self, queue: Pageable) -> None:
        """Take in a queue that has something worth paging out."""
        self._queues[queue] = None
        queue.set_duration_target(self.duration_s)

    def leave(self, queue: Pageable) -> None:
        """Let go of a queue that is gone, or has nothing to page out."""
        self._queues.pop(queue, None)

    def ask(self, queue: Pageable) -> None:
        """Have a queue that joined reduce itself soon, in turn with the others."""
        if queue not in self._waiting:
            self._waiting.add(queue)
            self._to_reduce.append(queue)
            self._resume_soon()

    def free(self, messages: deque[Message] | list[tuple[int, Message]]) -> None:
        """Free messages in turns: to free very many at once takes tens of milliseconds."""
        for _ in range(min(FREED_AT_ONCE, len(messages))):
            messages.pop()
        if messages:
            self._clock.call_soon(lambda: self.free(messages))

    def check(self, now: float) -> float:
        """Give every queue its target; returns the seconds until the next time.

        Very many queues have their turns one after the other, with other work in between.
        """
        if self._round is None:
            self._round = self._visit_all(now)
            self._go_on_visiting()
        return INTERVAL_S

    def _go_on_visiting(self) -> None:
        assert self._round is not None
        if next(self._round, DONE) is DONE:
            self._round = None
        else:
            self._clock.call_soon(self._go_on_visiting)

    def _visit_all(self, now: float) -> Iterator[None]:
        """Visit all queues once; other work gets its turn at every yield."""
        durations_s: list[float] = []
        queues = list(self._queues)
        for visited, queue in enumerate(queues, 1):
            if queue in self._queues:
                duration_s = queue.report(now)
                if duration_s is not None:
                    durations_s.append(duration_s)
            if not visited % VISITS:
                yield
        self.duration_s = desired_duration(
            durations_s, self._memory_ratio(), self.paging_ratio, self._disk_alarm()
        )
        for visited, queue in enumerate(queues, 1):
            if queue in self._queues:
                self._give_target(queue)
            if not visited % VISITS:
                yield

    def _give_target(self, queue: Pageable) -> None:
        queue.set_duration_target(self.duration_s)
        if queue.excess > 0:
            self.ask(queue)
        elif queue.leave_pager():
            self.leave(queue)

    def _resume_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._clock.call_soon(self._reduce_slice)

    def _reduce_slice(self) -> None:
        """Queues with more to page out go to the back of the line."""
        self._scheduled = False
        budget = SLICE
        while self._to_reduce and budget > 0:
            queue = self._to_reduce.popleft()
            self._waiting.discard(queue)
            if queue not in self._queues:
                continue
            # A queue that has nothing to do costs its turn all the same.
            budget -= 1 + queue.reduce(budget)
            if queue.excess > 0:
                self._waiting.add(queue)
                self._to_reduce.append(queue)
        if self._to_reduce:
            self._resume_soon()
