"""The clock of a running node: the event loop's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


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
