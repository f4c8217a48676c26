"""The batches of a queue that one of its mirrors may lack, in order."""

from __future__ import annotations

from collections import deque

from warren.mirror.carriers.batch import NOTHING, Position


class Window:
    """Places count all batches ever appended, so that a place stays what it is.

    It begins behind the batch `before`; or, where nothing came before, with the first batch there
    is. What a mirror has that came later was not sent to it as batches, so nobody else can be sent
    that from here.
    """

    def __init__(self, before: Position = NOTHING) -> None:
        self._batches: deque[tuple[Position, bytes]] = deque()
        # The place of the first one, and the position of the one before it.
        self.first_place = 0
        self._before = before

    @property
    def end_place(self) -> int:
        """Behind the last one."""
        return self.first_place + len(self._batches)

    @property
    def last(self) -> Position:
        """The last batch that was appended."""
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
        """Everything up to this position is everywhere."""
        batches = self._batches
        while batches and batches[0][0] <= upto:
            self._before = batches.popleft()[0]
            self.first_place += 1

    def place_after(self, position: Position, epoch: int) -> int | None:
        """Where to go on for who has everything up to this position; None if that is not known.

        Who has more of an epoch than there is here is sent what comes after that epoch, and finds
        out by it; `epoch` is the present one, of which there may be nothing yet.
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
        # Not one of ours: it has more than we got of an earlier epoch.
        is_last = place == self.end_place
        following = epoch if is_last else self._batches[place - self.first_place][0][0]
        return place if following > position[0] else None
