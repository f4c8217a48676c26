"""The clock of one connection: a failing callback ends the connection, not the node."""

from __future__ import annotations

from collections.abc import Callable

from warren.core.ports import Clock, Timer


class GuardedClock:
    """Implements `core.ports.Clock`. `fault` is called while the exception is handled."""

    __slots__ = ("_clock", "_fault")

    def __init__(self, clock: Clock, fault: Callable[[], None]) -> None:
        self._clock = clock
        self._fault = fault

    def now(self) -> float:
        return self._clock.now()

    def wall_time(self) -> float:
        return self._clock.wall_time()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later(delay_s, self.guarded(callback))

    def call_soon(self, callback: Callable[[], None]) -> object:
        return self._clock.call_soon(self.guarded(callback))

    def guarded(self, callback: Callable[[], None]) -> Guarded:
        """The callback guarded, for callers other than this clock."""
        return Guarded(callback, self._fault)


class Guarded:
    """A callback that never raises: it calls `fault` instead."""

    __slots__ = ("_fault", "callback")

    def __init__(self, callback: Callable[[], None], fault: Callable[[], None]) -> None:
        self.callback = callback
        self._fault = fault

    def __call__(self) -> None:
        try:
            self.callback()
        except Exception:
            self._fault()
