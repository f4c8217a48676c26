"""The delivery counts and dead marks of one queue's messages, as the disk has them.

Both are numbers by position. They are in the journal only: each batch has those that changed, and
before a checkpoint all there are go to a small file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from warren.persist.layout.format import COUNT_MAX, MARK_SHIFT


class DeliveryCounts:
    """Delivery counts and marks. The queue changes them, and says so with `changed`."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.counts: dict[int, int] = {}
        self.marks: dict[int, int] = {}
        # Positions that are to be in the next batch of the journal.
        self._changed: dict[int, None] = {}

    def __bool__(self) -> bool:
        """Whether there is any count or mark."""
        return bool(self.counts or self.marks)

    def adopt(self, position: int, value: int) -> None:
        """Take in a value that was found at start."""
        count, mark = value & COUNT_MAX, value >> MARK_SHIFT
        if count:
            self.counts[position] = count
        if mark:
            self.marks[position] = mark

    def changed(self, positions: Iterable[int]) -> None:
        self._changed.update(dict.fromkeys(positions))

    def take_changed(self) -> list[tuple[int, int]]:
        """Return the values that changed since the last call."""
        if not self._changed:
            return []
        changed, self._changed = self._changed, {}
        return list(self._values(changed))

    def all(self) -> list[tuple[int, int]]:
        """Positions, each with the value that is kept: count and dead mark in one number."""
        return list(self._values({**self.counts, **self.marks}))

    def _values(self, positions: Iterable[int]) -> Iterator[tuple[int, int]]:
        counts, marks = self.counts, self.marks
        for at in positions:
            if at in counts or at in marks:
                yield at, counts.get(at, 0) | marks.get(at, 0) << MARK_SHIFT
