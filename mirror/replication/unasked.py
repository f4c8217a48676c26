"""Which messages of a queue nobody would send again if its leader lost them.

They were published here, to a queue that is led here, and whoever published them did not ask for a
confirm. Of all others somebody else knows: the node of the publisher keeps them until the leader
has answered, or the publisher waits for its confirm.
"""

from __future__ import annotations

from collections import deque


class Unasked:
    """Runs of positions, for as long as some mirror has not reported the batch they are in."""

    def __init__(self) -> None:
        # Batch, level, first position and the end behind the last.
        self._runs: deque[list[int]] = deque()

    def published(self, batch: int, level: int, position: int, count: int = 1) -> None:
        """So many messages from this position on."""
        if self._runs:
            last = self._runs[-1]
            if last[0] == batch and last[1] == level and last[3] == position:
                last[3] += count
                return
        self._runs.append([batch, level, position, position + count])

    def reported_by_all(self, upto: int) -> None:
        """Every mirror has all up to this batch."""
        while self._runs and self._runs[0][0] <= upto:
            self._runs.popleft()

    def runs(self, level: int) -> list[tuple[int, int]]:
        """First positions and ends of those of a level."""
        return [(start, end) for _, number, start, end in self._runs if number == level]
