"""The batches of a queue that one of its mirrors may lack, in order."""

from __future__ import annotations

from collections import deque

from warren.mirror.carriers.batch import NOTHING, Position


class BatchWindow:
    """The batches by position and by place. A batch keeps its place: places count all batches ever
    appended.

    The window begins behind the batch `before`; or, where nothing came before, with the first batch
    appended. What a mirror has from before its window did not come to it as batches, so the window
    cannot send that to other mirrors.
    """

    def __init__(self, before: Position = NOTHING) -> None:
        self._batches: deque[tuple[Position, bytes]] = deque()
        # The place of the first batch here, and the position of the batch before it.
        self.first_place = 0
        self._before = before

    @property
    def end_place(self) -> int:
        """The place behind the last batch."""
        return self.first_place + len(self._batches)

    @property
    def last(self) -> Position:
        """The position of the last batch that was appended."""
        return self._batches[-1][0] if self._batches else self._before

    def append(self, position: Position, payload: bytes) -> None:
        assert position > self.last, (position, self.last)
        if self.last == NOTHING:
            epoch, batch = position
            self._before = (epoch, batch - 1)
        self._batches.append((position, payload))

    def payload_at(self, place: int) -> bytes:
        return self._batches[place - self.first_place][1]

    def trim(self, upto: Position) -> None:
        """Drop the batches up to this position: all mirrors have them."""
        batches = self._batches
        while batches and batches[0][0] <= upto:
            self._before = batches.popleft()[0]
            self.first_place += 1

    def place_after(self, position: Position, epoch: int) -> int | None:
        """The place of the next batch for a mirror that has everything up to this position.

        None if the window cannot continue from that position. A mirror that has more of an earlier
        epoch than this window is sent the batches after that epoch, and finds out by them. `epoch`
        is the present epoch, of which there may be no batch yet.
        """
        if position < self._before:
            return None
        place = self.first_place
        is_known = position == self._before
        for there, _ in self._batches:
            if there > position:
                break
            is_known = there == position
            place += 1
        if is_known:
            return place
        # The position is not in this window: the mirror has more of its epoch than we got.
        is_last = place == self.end_place
        following = epoch if is_last else self._batches[place - self.first_place][0][0]
        return place if following > position[0] else None
