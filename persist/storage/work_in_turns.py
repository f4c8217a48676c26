"""Work of the storage that takes long, done a step in each turn of the loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

DONE = object()
"""Returned by `next` when a work has no further step."""


class WorkInTurns:
    """Goes on with works in turns. Each work is an iterator; each item it yields is a step."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._waiting: deque[Iterator[None]] = deque()
        self._stopped = False

    def add(self, work: Iterator[None]) -> None:
        """Take a step now, and the others one a turn, each work after the one before."""
        if self._waiting:
            self._waiting.append(work)
        elif next(work, DONE) is not DONE:
            self._waiting.append(work)
            self._call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._stopped or not self._waiting:
            return
        if next(self._waiting[0], DONE) is DONE:
            self._waiting.popleft()
        if self._waiting:
            self._call_soon(self._go_on)

    def finish(self) -> None:
        """Do all that is left, at once."""
        while self._waiting:
            for _ in self._waiting.popleft():
                pass

    def stop(self) -> None:
        """Take no further step."""
        self._stopped = True
