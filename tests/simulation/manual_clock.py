"""A clock that stands still until a test moves it; implements `core.ports.Clock`."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

TURNS_MAX = 1_000_000
"""Callbacks that may run in one `settle`; more means that they call each other for ever."""


class ManualTimer:
    """A call at a time."""

    __slots__ = ("_clock", "callback", "cancelled", "due")

    def __init__(self, clock: ManualClock, due: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self.due = due
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        if not self.cancelled:
            self.cancelled = True
            # As an event loop's handle: what was to be called is let go.
            self.callback = _nothing
            self._clock.forget(self)


def _nothing() -> None:
    """What a cancelled timer calls."""


class ManualClock:
    """`settle` runs what was asked for with `call_soon`, `advance` what is due later."""

    def __init__(self, start: float = 1000.0, wall_start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._wall_offset = wall_start - start
        self._soon: deque[Callable[[], None]] = deque()
        # By when they are due; the order of equal times is that of their making.
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._made = 0
        self._cancelled = 0

    def now(self) -> float:
        return self._now

    def set_wall(self, ahead_s: float) -> None:
        """Set the clock on the wall forward, or with a number below 0 back."""
        self._wall_offset += ahead_s

    def wall_time(self) -> float:
        return self._now + self._wall_offset

    def set_wall_forward(self, seconds: float) -> None:
        """The clock on the wall is set; no time passes."""
        self._wall_offset += seconds

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        assert delay_s >= 0, delay_s
        self._made += 1
        due = self._now + delay_s
        timer = ManualTimer(self, due, callback)
        heapq.heappush(self._timers, (due, self._made, timer))
        return timer

    def call_soon(self, callback: Callable[[], None]) -> object:
        self._soon.append(callback)
        return callback

    @property
    def timers(self) -> list[ManualTimer]:
        """What is still to be called, in no particular order."""
        return [timer for _, _, timer in self._timers if not timer.cancelled]

    def forget(self, timer: ManualTimer) -> None:
        """A timer was cancelled; cancelled ones are swept out when they are many."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled > len(self._timers) // 2:
            self._timers = [entry for entry in self._timers if not entry[2].cancelled]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def settle(self) -> None:
        """Run what is to run soon, until nothing is."""
        soon = self._soon
        for _ in range(TURNS_MAX):
            if not soon:
                return
            soon.popleft()()
        raise AssertionError(f"callbacks go on after {TURNS_MAX} turns")

    def turn(self) -> None:
        """One turn of the loop: run what is to run soon, but not what that asks for."""
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    def advance(self, seconds: float) -> None:
        """Let time pass, and run what becomes due in its order."""
        self.settle()
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            if timer.cancelled:
                self._cancelled -= 1
                continue
            timer.cancelled = True
            if due > self._now:
                self._now = due
            timer.callback()
            timer.callback = _nothing
            if self._soon:
                self.settle()
        self._now = end
