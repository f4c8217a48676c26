"""Limits a rate: how much may be done now if only so much a second is allowed."""

from __future__ import annotations

BURST_S = 0.1
"""Allowance unused for longer than this is lost, so that a pause is not followed by a flood."""


class Pace:
    """A limit of `per_s` units a second; None is no limit.

    The caller decides what a unit is: a message, or an octet. `now` is a clock in seconds that
    never goes back.
    """

    def __init__(self, per_s: float | None, now: float) -> None:
        self._per_s = per_s
        self._from = now
        """The allowance up to this moment is used up."""

    def allows(self, now: float) -> bool:
        return self.wait_s(now) <= 0

    def wait_s(self, now: float) -> float:
        """Seconds until the next unit is allowed; zero or less if it is allowed now."""
        return 0.0 if self._per_s is None else self._from + 1 / self._per_s - now

    def used(self, now: float, amount: int = 1) -> None:
        """Count `amount` units as done, even if fewer were allowed."""
        if self._per_s is not None:
            earliest = now - max(BURST_S, 1 / self._per_s)
            self._from = max(self._from, earliest) + amount / self._per_s
