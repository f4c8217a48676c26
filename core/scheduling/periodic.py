"""Runs a check again and again, at intervals the check decides."""

from __future__ import annotations

from collections.abc import Callable

from warren.core.ports import Clock, Timer


class Periodic:
    """Calls `check(now)` at once and then after as many seconds as it answers; None ends it."""

    def __init__(self, clock: Clock, check: Callable[[float], float | None]) -> None:
        self._clock = clock
        self._check = check
        self._timer: Timer | None = None

    def start(self) -> None:
        """Check now and go on; checks now again when it is running already."""
        self.stop()
        interval_s = self._check(self._clock.now())
        if interval_s is not None:
            self._timer = self._clock.call_later(interval_s, self._due)

    def stop(self) -> None:
        """Check no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self.start()
