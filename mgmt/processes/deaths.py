"""When a process that has ended is started again, and when not any more."""

from __future__ import annotations

from collections import deque

DEATHS_MAX = 5
WITHIN_S = 60.0
"""A process that has ended so often in so little time will end again, whatever the reason."""
PAUSES_S = (0.0, 0.25, 0.5, 1.0)
"""Before the next start, by how many ends there were lately. The first one waits for nothing: what
the process led is to be back."""


class Deaths:
    """The ends of one process."""

    def __init__(self) -> None:
        self.count = 0
        self._lately: deque[float] = deque()

    def note(self, now: float) -> float | None:
        """It has ended: how long to wait before it is started again; None: leave it."""
        self.count += 1
        self._lately.append(now)
        while self._lately[0] <= now - WITHIN_S:
            self._lately.popleft()
        lately = len(self._lately)
        return None if lately >= DEATHS_MAX else PAUSES_S[min(lately, len(PAUSES_S)) - 1]
