"""Publishes that a leader has not confirmed yet: they wait for its own store and its mirrors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from warren.core.messages.settlement import PublishConfirms
from warren.mirror.replication.levels.numbered_groups import NumberedGroups


class _Group:
    """Publishes of one batch that are answered together: when enough mirrors have the batch, and
    the store has them all."""

    __slots__ = ("confirms", "count", "first_seq", "in_mirrors", "in_store", "refused")

    def __init__(self, confirms: PublishConfirms, first_seq: int, count: int, local: bool) -> None:
        self.confirms = confirms
        self.first_seq = first_seq
        self.count = count
        self.in_store = not local
        self.in_mirrors = False
        # The numbers of publishes that the store has refused.
        self.refused: set[int] = set()


class _Barrier(PublishConfirms):
    """A barrier: waits in the place of a publish, for the moment at which it was added."""

    def __init__(self, done: Callable[[bool], None]) -> None:
        self._done = done

    def settle(self, publish_seq: int) -> None:
        self._done(True)

    def refuse(self, publish_seq: int) -> None:
        self._done(False)


class AwaitedConfirms(PublishConfirms):
    """The unconfirmed publishes of a queue. The store answers this object, by numbers of `add`."""

    def __init__(self) -> None:
        self._by_batch: deque[tuple[int, _Group]] = deque()
        # Barriers that wait until every mirror in sync has the batch, even if fewer confirm.
        self._everywhere: deque[tuple[int, _Group]] = deque()
        self._of_store: NumberedGroups[_Group] = NumberedGroups()

    def add(
        self, confirms: PublishConfirms, first_seq: int, count: int, local: bool, batch: int
    ) -> tuple[PublishConfirms | None, int]:
        """Have `count` publishes of one batch, numbered from `first_seq` on, wait for the mirrors;
        if `local`, for the store, too.

        Return the object that the store is to answer, and the number of the first publish there;
        None and 0 if it is not to answer.
        """
        group = _Group(confirms, first_seq, count, local)
        self._by_batch.append((batch, group))
        if not local:
            return None, 0
        return self, self._of_store.add(group, count)

    def add_barrier(self, done: Callable[[bool], None], batch: int, *, everywhere: bool) -> None:
        """Call `done` when this batch is confirmed or, if `everywhere`, at all mirrors in sync;
        with False when another node leads by then."""
        waiting = self._everywhere if everywhere else self._by_batch
        waiting.append((batch, _Group(_Barrier(done), 0, 1, False)))

    def settle(self, publish_seq: int) -> None:
        """The store has this publish."""
        self.settle_many(publish_seq, 1)

    def settle_many(self, first_seq: int, count: int) -> None:
        for part in self._of_store.settled(first_seq, count):
            if part.is_last:
                part.group.in_store = True
                _answer(part.group)

    def refuse(self, publish_seq: int) -> None:
        """The store cannot take this publish."""
        for part in self._of_store.settled(publish_seq, 1):
            part.group.refused.add(part.group.first_seq + part.offset)
            if part.is_last:
                part.group.in_store = True
                _answer(part.group)

    def mirrors_have(self, upto: int, everywhere: int) -> None:
        """Enough mirrors have every batch up to `upto`, and all that are in sync those up to
        `everywhere`."""
        for waiting, reached in ((self._by_batch, upto), (self._everywhere, everywhere)):
            while waiting and waiting[0][0] <= reached:
                group = waiting.popleft()[1]
                group.in_mirrors = True
                _answer(group)

    def end(self, *, refuse: bool) -> None:
        """Answer everything that is left."""
        left = [group for _, group in (*self._by_batch, *self._everywhere)]
        self._by_batch.clear()
        self._everywhere.clear()
        for group in {id(one): one for one in (*left, *self._of_store)}.values():
            if refuse:
                group.refused.update(range(group.first_seq, group.first_seq + group.count))
            group.in_store = group.in_mirrors = True
            _answer(group)
        self._of_store.clear()


def _answer(group: _Group) -> None:
    """Settle or refuse the publishes of a group, unless it still waits for something."""
    if not (group.in_store and group.in_mirrors):
        return
    if not group.refused:
        group.confirms.settle_many(group.first_seq, group.count)
        return
    for publish_seq in range(group.first_seq, group.first_seq + group.count):
        if publish_seq in group.refused:
            group.confirms.refuse(publish_seq)
        else:
            group.confirms.settle(publish_seq)
