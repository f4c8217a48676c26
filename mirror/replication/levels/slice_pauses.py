"""Pauses between the slices that a mirror is sent while it is synchronised."""

from __future__ import annotations

from collections.abc import Callable

from warren.core.ports import Clock

SLICE_PAUSE_S = 0.003
BUSY_PAUSE_S = 0.012
"""Pause between slices, and the longer pause under load: slices of the synchronisation compete for
the mirrors' disks."""

LOOK_AGAIN_S = 1.0
"""During longer pauses, look so often whether the limit has changed."""


class SlicePauses:
    """`rate` is how many octets a second a mirror may be sent; 0: no limit."""

    def __init__(self, clock: Clock) -> None:
        self.rate = 0
        self._clock = clock

    def begin(
        self, octets: int, *, is_busy: bool, is_wanted: Callable[[], bool], then: Callable[[], None]
    ) -> None:
        """After a slice of so many octets, call `then` when the next one may go, if it still
        `is_wanted`."""
        started = self._clock.now()

        def look() -> None:
            if not is_wanted():
                return
            left_s = octets / self.rate - (self._clock.now() - started) if self.rate else 0.0
            if left_s > 0:
                self._clock.call_later(min(left_s, LOOK_AGAIN_S), look)
            else:
                then()

        self._clock.call_later(BUSY_PAUSE_S if is_busy else SLICE_PAUSE_S, look)
