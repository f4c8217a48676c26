"""When a process that has ended is started again, and when it is given up."""

from __future__ import annotations

from collections import deque

DEATHS_MAX = 5
WITHIN_S = 60.0
"""A process that has ended so often in so little time will end again, whatever the reason."""
PAUSES_S = (0.0, 0.25, 0.5, 1.0)
"""Pause before the next start, by the number of recent ends. There is none after the first, so that
the queues of the process are back soon."""


class Deaths:
    """The ends of one process."""

    def __init__(self) -> None:
        self.count = 0
        self._lately: deque[float] = deque()

    def note(self, now: float) -> float | None:
        """Count an end; returns seconds until the next start, None if the process is given up."""
        self.count += 1
        self._lately.append(now)
        while self._lately[0] <= now - WITHIN_S:
            self._lately.popleft()
        lately = len(self._lately)
        return None if lately >= DEATHS_MAX else PAUSES_S[min(lately, len(PAUSES_S)) - 1]
