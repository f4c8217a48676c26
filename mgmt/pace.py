"""How much may be done now, where there is a limit of so much a second."""

from __future__ import annotations

BURST_S = 0.1
"""What was not used for longer is lost, so that a pause is not followed by a flood."""


class Pace:
    """Without a rate there is no limit. `now` is a clock in seconds that never goes back.

    What is counted is the caller's business: messages, or octets.
    """

    def __init__(self, per_s: float | None, now: float) -> None:
        self._per_s = per_s
        self._from = now
        """All before this moment is used up."""

    def allows(self, now: float) -> bool:
        return self.wait_s(now) <= 0

    def wait_s(self, now: float) -> float:
        """How long until the next one may go."""
        return 0.0 if self._per_s is None else self._from + 1 / self._per_s - now

    def used(self, now: float, amount: int = 1) -> None:
        """So much was done, however much was allowed."""
        if self._per_s is not None:
            earliest = now - max(BURST_S, 1 / self._per_s)
            self._from = max(self._from, earliest) + amount / self._per_s
