"""Virtual time, and everything that will happen in it; one seed, one order of events.

    scheduler = Scheduler(Random(seed))
    scheduler.after(0.5, lambda: ...)
    scheduler.run()                      until nothing is left to happen

Answerable for order and trace. Events of one time happen in the order in which they were made. What
happens may be noted; `trace` is a checksum of all notes, the same for the same seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import TypeAlias
from zlib import crc32

Event: TypeAlias = Callable[[], None]

EVENTS_MAX = 200_000
"""Events of one history; more means that they cause each other for ever."""


class Scheduler:
    """All chance of a history comes from `random`."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.trace = 0
        self.events = 0
        self._queue: list[tuple[float, int, Event]] = []
        self._made = 0

    def after(self, delay_s: float, event: Event) -> None:
        self.at(self.now + delay_s, event)

    def at(self, time: float, event: Event) -> None:
        assert time >= self.now, (time, self.now)
        self._made += 1
        heapq.heappush(self._queue, (time, self._made, event))

    def note(self, text: str) -> None:
        self.trace = crc32(text.encode(), self.trace)

    def run(self, until: float = float("inf")) -> None:
        """Let everything happen that is due up to that time."""
        while self._queue and self._queue[0][0] <= until:
            self.step()
        if until != float("inf"):
            self.now = max(self.now, until)

    def step(self) -> bool:
        """Let the next thing happen; False if there is none."""
        if not self._queue:
            return False
        self.now, _, event = heapq.heappop(self._queue)
        self.events += 1
        if self.events > EVENTS_MAX:
            raise AssertionError(f"events go on after {EVENTS_MAX}")
        event()
        return True
