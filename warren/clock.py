"""The clock of a running node: the event loop's, and one for what must end with the node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from warren.core.ports import Clock, Timer


class LoopClock:
    """Implements `core.ports.Clock` on an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time
        self.wall_time = time.time

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback)

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        return self._loop.call_soon(callback)


class EndingClock:
    """A clock whose timers do nothing any more after `end`; implements `core.ports.Clock`.

    A node that pauses stops, and its process goes on: nothing of the stopped one may happen later.
    """

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
