"""The clocks of a node: the event loop's, one that tests can set forward, and one for timers that
must end before the node's others do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from warren.core.ports import Clock, Timer


class LoopClock:
    """Implements `core.ports.Clock` on an event loop, until the node that it is for has stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: dict[_LoopTimer, None] = {}
        self._ended = False
        self.now: Callable[[], float] = loop.time
        self.wall_time: Callable[[], float] = time.time

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = _LoopTimer(self.now() + delay_s, callback, self._timers)
        if not self._ended:
            self._start(timer, delay_s)
        return timer

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        return self._loop.call_soon(callback)

    def end(self) -> None:
        """Cancel all timers, and start no more.

        A node that pauses stops, but its process goes on: timers of the stopped node must not act
        later, and would keep it in memory.
        """
        self._ended = True
        for timer in list(self._timers):
            timer.cancel()

    def _start(self, timer: _LoopTimer, delay_s: float) -> None:
        self._timers[timer] = None
        timer.handle = self._loop.call_later(delay_s, timer.happen)


class MovableClock(LoopClock):
    """A clock that can be set forward, for tests of things that take hours.

    `advance` must be called on the loop. It works as if that much time had passed at once: the
    timers that are then due are called in order, each once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._ahead_s = 0.0
        self.now = lambda: loop.time() + self._ahead_s
        self.wall_time = lambda: time.time() + self._ahead_s

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds
        for timer in sorted(self._timers, key=lambda timer: timer.due):
            timer.cancel()
            self._start(timer, max(0.0, timer.due - self.now()))


class _LoopTimer:
    __slots__ = ("_callback", "_timers", "due", "handle")

    handle: asyncio.TimerHandle

    def __init__(
        self, due: float, callback: Callable[[], None], timers: dict[_LoopTimer, None]
    ) -> None:
        self.due = due
        self._callback = callback
        self._timers = timers

    def cancel(self) -> None:
        if self in self._timers:
            del self._timers[self]
            self.handle.cancel()

    def happen(self) -> None:
        del self._timers[self]
        self._callback()


class EndingClock:
    """The clock of a part that may end before its process does, such as the queues of a node that
    pauses. After `end` its timers do nothing; the clock beneath it goes on. Implements
    `core.ports.Clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended = False
        self.now = clock.now
        self.wall_time = clock.wall_time

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later(delay_s, lambda: self._call(callback))

    def call_soon(self, callback: Callable[[], None]) -> object:
        return self._clock.call_soon(lambda: self._call(callback))

    def end(self) -> None:
        self._ended = True

    def _call(self, callback: Callable[[], None]) -> None:
        if not self._ended:
            callback()
