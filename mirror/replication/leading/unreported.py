"""How much a leader has broadcast that its mirrors have not reported yet, in octets."""

from __future__ import annotations

from collections import deque


class Unreported:
    """The sizes of the batches that some mirror has not reported."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, int]] = deque()

    def broadcast(self, batch: int, octets: int) -> None:
        self._batches.append((batch, octets))

    def reported_by_all(self, upto: int) -> None:
        """Forget the sizes up to this batch: every mirror has reported it."""
        while self._batches and self._batches[0][0] <= upto:
            self._batches.popleft()

    def octets_after(self, batch: int) -> int:
        """How many octets a mirror lacks that has everything up to this batch."""
        return sum([octets for number, octets in self._batches if number > batch])
