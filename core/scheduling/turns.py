"""The turns of the loop, and how much work one of them may hold.

Everything runs on one loop, so long work makes all clients wait. Work whose amount a client decides
notes its cost (`spend`), and checks whether the turn is `over`. If it is, the work goes on in a
later turn: a coroutine awaits `pause`, other code hands its next step to `soon`. Steps wait in one
line for the whole node and are taken in order, so ten clients with costly requests cost the others
no more of a turn than one. Requests that have arrived from clients wait in a line of their own,
which comes first: such a request may be small, and must not stand behind a thousand queues with
work to do. At least one step of the other line is taken in each turn.

Costs are estimates in microseconds of this code on an ordinary machine, not measurements: the same
input takes the same turns wherever it runs, in simulations as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from warren.core.ports import Clock
from warren.core.scheduling.waiting import Awaited

TURN_US = 1500
"""The cost that one turn may have. A request and its answer take a few turns, which together stay
well below 20 ms."""

Answer = TypeVar("Answer")

LET_GO_AT_ONCE = 500
LET_GO_US = 2
"""The number of objects that are freed in one turn, and the cost of each."""


class Unfinished(Exception):
    """The answer takes more than a turn. The caller asks again, and the work goes on."""


class Turns:
    """The turns of one node.

    `left_us` is the cost that the present turn may still have; it is negative if more was spent. It
    is a plain attribute, because the message path reads it.
    """

    __slots__ = ("_clients", "_clock", "_line", "_scheduled", "left_us")

    def __init__(self, clock: Clock) -> None:
        self.left_us = TURN_US
        self._clock = clock
        self._clients: deque[Callable[[], None]] = deque()
        self._line: deque[Callable[[], None]] = deque()
        self._scheduled = False

    @property
    def over(self) -> bool:
        """Whether the present turn is used up, so that work which can wait has to."""
        return self.left_us <= 0

    def spend(self, cost_us: int) -> None:
        """Note the cost of work that was done, or is about to be."""
        self.left_us -= cost_us
        if self.left_us <= 0:
            self._schedule()

    def soon(self, step: Callable[[], None]) -> None:
        """Run a step in one of the next turns, behind the steps that wait already."""
        self._line.append(step)
        self._schedule()

    def soon_for_client(self, step: Callable[[], None]) -> None:
        """Go on with the requests of a client, in one of the next turns."""
        self._clients.append(step)
        self._schedule()

    def let_go(self, items: list[Any]) -> None:
        """Empty a list that is not needed any more, a part in each turn.

        To free a hundred thousand objects at once takes tens of milliseconds.
        """
        self.spend(min(len(items), LET_GO_AT_ONCE) * LET_GO_US)
        del items[-LET_GO_AT_ONCE:]
        if items:
            self.soon(lambda: self.let_go(items))

    def pause(self) -> Pause:
        """`await turns.pause()` goes on at once, or in a later turn if this one is over."""
        return Pause(self)

    async def answer(self, ask: Callable[[], Answer]) -> Answer:
        """Return what `ask` returns, in as many turns as it needs (`Unfinished`)."""
        while True:
            try:
                return ask()
            except Unfinished:
                self.spend(TURN_US)
            await self.pause()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._clock.call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        self.left_us = TURN_US
        try:
            self._take(self._clients)
            self._take(self._line)
        finally:
            if self._clients or self._line:
                self._schedule()

    def _take(self, line: deque[Callable[[], None]]) -> None:
        """Take steps until the turn is over, at least one. Steps that they add run in the next
        turn, after sockets have been served."""
        for _ in range(len(line)):
            line.popleft()()
            if self.left_us <= 0:
                break


class Pause:
    """A coroutine awaits this to let others have their turn (`waiting.Awaited`)."""

    __slots__ = ("_turns",)

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def then(self, callback: Callable[[], None]) -> None:
        self._turns.soon(callback)

    def __await__(self) -> Generator[Awaited, None, None]:
        if self._turns.left_us <= 0:
            yield self
