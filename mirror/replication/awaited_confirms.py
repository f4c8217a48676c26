"""Publishes of a leader that wait to be confirmed: for its own store, and for its mirrors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from warren.core.messages.settlement import PublishConfirms


class _Confirm:
    """A publish that waits; `left` is for how many answers."""

    __slots__ = ("confirms", "left", "publish_seq", "refused")

    def __init__(self, confirms: PublishConfirms, publish_seq: int, left: int) -> None:
        self.confirms = confirms
        self.publish_seq = publish_seq
        self.left = left
        self.refused = False


class _Barrier:
    """`PublishConfirms` of nothing but a moment."""

    def __init__(self, done: Callable[[bool], None]) -> None:
        self._done = done

    def settle(self, publish_seq: int) -> None:
        self._done(True)

    def refuse(self, publish_seq: int) -> None:
        self._done(False)


class AwaitedConfirms:
    """All of a queue. It is the `PublishConfirms` that the store answers, by numbers given here."""

    def __init__(self) -> None:
        self._by_batch: deque[tuple[int, _Confirm]] = deque()
        # Those that wait until every mirror in sync has the batch, whoever else confirms.
        self._everywhere: deque[tuple[int, _Confirm]] = deque()
        self._of_store: dict[int, _Confirm] = {}
        self._numbered = 0

    def add(
        self, confirms: PublishConfirms, first_seq: int, count: int, local: bool, batch: int
    ) -> tuple[PublishConfirms | None, int]:
        """So many publishes of one batch, numbered from `first_seq` on, wait for the mirrors; if
        `local`, for the store, too.

        Returns whom the store is to tell, and under which number the first of them.
        """
        waiting = [
            _Confirm(confirms, seq, 1 + local) for seq in range(first_seq, first_seq + count)
        ]
        self._by_batch.extend([(batch, one) for one in waiting])
        if not local:
            return None, 0
        first = self._numbered + 1
        self._numbered += count
        self._of_store.update(zip(range(first, first + count), waiting, strict=True))
        return self, first

    def add_barrier(self, done: Callable[[bool], None], batch: int, *, everywhere: bool) -> None:
        """Call back when this batch is confirmed; with False when another node leads by then."""
        waiting = self._everywhere if everywhere else self._by_batch
        waiting.append((batch, _Confirm(_Barrier(done), 0, 1)))

    def settle(self, publish_seq: int) -> None:
        """The store has it."""
        waiting = self._of_store.pop(publish_seq, None)
        if waiting is not None:
            _answer(waiting)

    def refuse(self, publish_seq: int) -> None:
        """The store cannot have it."""
        waiting = self._of_store.pop(publish_seq, None)
        if waiting is not None:
            waiting.refused = True
            _answer(waiting)

    def mirrors_have(self, upto: int, everywhere: int) -> None:
        """Enough mirrors have all up to one batch, and all that are in sync up to the other."""
        for waiting, reached in ((self._by_batch, upto), (self._everywhere, everywhere)):
            while waiting and waiting[0][0] <= reached:
                _answer(waiting.popleft()[1])

    def end(self, *, refuse: bool) -> None:
        """Answer everything that is left."""
        left = [waiting for _, waiting in (*self._by_batch, *self._everywhere)]
        self._by_batch.clear()
        self._everywhere.clear()
        for waiting in {id(one): one for one in (*left, *self._of_store.values())}.values():
            waiting.refused |= refuse
            waiting.left = 1
            _answer(waiting)
        self._of_store.clear()


def _answer(waiting: _Confirm) -> None:
    waiting.left -= 1
    if waiting.left:
        return
    if waiting.refused:
        waiting.confirms.refuse(waiting.publish_seq)
    else:
        waiting.confirms.settle(waiting.publish_seq)
