"""One timer for the earliest of several moments."""

from __future__ import annotations

from collections.abc import Callable

from warren.core.ports import Clock, Timer


class Deadline:
    """Calls `callback` once, at the earliest of the moments it was set for; then it is not set.

    The callback refers to the owner, so an owner that ends cancels the deadline and drops it.
    """

    __slots__ = ("_clock", "_moment", "_timer", "callback")

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self.callback = callback
        self._timer: Timer | None = None
        self._moment = 0.0

    @property
    def is_set(self) -> bool:
        return self._timer is not None

    def no_later_than(self, moment: float) -> None:
        """Call back at this moment of the clock, or earlier if it is set for earlier already."""
        if self._timer is not None and self._moment <= moment:
            return
        self._set(max(0.0, moment - self._clock.now()), moment)

    def restart(self, delay_s: float) -> None:
        """Call back after this time, whatever it was set for before."""
        self._set(delay_s, self._clock.now() + delay_s)

    def cancel(self) -> None:
        """Do not call back, unless it is set again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, delay_s: float, moment: float) -> None:
        self.cancel()
        self._moment = moment
        self._timer = self._clock.call_later(delay_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self.callback()
