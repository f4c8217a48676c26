"""The messages of a queue that would not be sent again if its leader lost them.

Their publishers did not ask for confirms, and are at the leader's node; or they are at another node
that the next leader may not have heard of. All other messages are known elsewhere, too: the node of
the publisher keeps them until the leader has answered, or the publisher waits for its confirm.
"""

from __future__ import annotations

from collections import deque


class Unasked:
    """Runs of positions, for as long as some mirror has not reported the batch they are in."""

    def __init__(self) -> None:
        # Batch, level, first position and the end behind the last.
        self._runs: deque[list[int]] = deque()

    def published(self, batch: int, level: int, position: int, count: int = 1) -> None:
        """`count` messages have got the positions from this one on."""
        if self._runs:
            last = self._runs[-1]
            if last[0] == batch and last[1] == level and last[3] == position:
                last[3] += count
                return
        self._runs.append([batch, level, position, position + count])

    def reported_by_all(self, upto: int) -> None:
        """Forget the runs up to this batch: every mirror has them."""
        while self._runs and self._runs[0][0] <= upto:
            self._runs.popleft()

    def runs(self, level: int) -> list[tuple[int, int]]:
        """First positions and ends of the runs of a level."""
        return [(start, end) for _, number, start, end in self._runs if number == level]
