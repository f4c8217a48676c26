"""Publisher confirms of one channel: which publishes are settled, and how that is reported.

Reports are gathered and written when the connection flushes. One basic.ack with `multiple` covers
all publishes below the oldest open one; publishes settled above it are reported one by one
(amqp_semantics.md section 6).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import groupby, repeat
from operator import itemgetter

from warren.amqp.frames import END
from warren.core.messages.settlement import PENDING, REJECTED, PublishConfirms, Settlement

_ACK = struct.Struct(">BHIIQB")
_BASIC_ACK = 60 << 16 | 80
_BASIC_NACK = 60 << 16 | 120
_MULTIPLE = 1
_REQUEUE = 2


class ChannelConfirms(PublishConfirms):
    """Numbers the publishes of a channel from 1 and reports each exactly once.

    `on_news` is called whenever there may be something to report.
    """

    __slots__ = (
        "_alone",
        "_nacked",
        "_open",
        "_refusals",
        "_refused",
        "_reported",
        "_settled",
        "issued",
        "on_news",
    )

    def __init__(self, on_news: Callable[[], None]) -> None:
        self.issued = 0
        self._reported = 0
        self._open: dict[int, int] = {}
        self._refused: dict[int, int] = {}
        self._settled: list[int] = []
        self._nacked: list[int] = []
        self._refusals = 0
        # Publishes above the oldest open one that were answered one by one.
        self._alone: set[int] = set()
        self.on_news = on_news

    def number(self) -> int:
        """The number of the next publish."""
        self.issued += 1
        return self.issued

    def number_many(self, count: int) -> int:
        """Number `count` publishes; returns the number of the first."""
        first = self.issued + 1
        self.issued += count
        return first

    @property
    def confirmed(self) -> int:
        """The number of publishes that were acknowledged, or are about to be."""
        return self.issued - len(self._open) - self._refusals

    @property
    def unconfirmed(self) -> int:
        """The number of publishes neither acknowledged nor refused."""
        return len(self._open)

    @property
    def undisturbed(self) -> bool:
        """Whether every publish so far was settled at once."""
        return not (self._open or self._nacked or self._settled)

    def record(self, publish_seq: int, answers: tuple[Settlement, ...]) -> None:
        """Note what the queues answered to a publish; `answers` is empty if it reached no queue."""
        if REJECTED in answers:
            self._nacked.append(publish_seq)
            self._refusals += 1
            if PENDING in answers:
                self._refused[publish_seq] = answers.count(PENDING)
        elif PENDING in answers:
            self._open[publish_seq] = answers.count(PENDING)
        elif not self.undisturbed:
            self._settled.append(publish_seq)
        self.on_news()

    def record_many(self, first_seq: int, answers: Sequence[Sequence[Settlement]]) -> None:
        """`record` for publishes from number `first_seq` on; `answers` has a sequence for each
        queue."""
        (answered, *others) = answers
        count = len(answered)
        if all([of_queue.count(PENDING) == count for of_queue in answers]):
            self._open.update(zip(range(first_seq, first_seq + count), repeat(len(answers))))
            return
        if not others and PENDING not in answered and REJECTED not in answered and self.undisturbed:
            self.on_news()
            return
        for publish_seq, of_publish in enumerate(zip(*answers, strict=True), first_seq):
            self.record(publish_seq, of_publish)

    def settle(self, publish_seq: int) -> None:
        """One more queue has stored this publish safely."""
        if publish_seq in self._refused:
            self._refused[publish_seq] -= 1
            if not self._refused[publish_seq]:
                del self._refused[publish_seq]
            return
        still_open = self._open[publish_seq]
        if still_open > 1:
            self._open[publish_seq] = still_open - 1
            return
        del self._open[publish_seq]
        self._settled.append(publish_seq)
        self.on_news()

    def settle_many(self, first_seq: int, count: int) -> None:
        self.settle_each(range(first_seq, first_seq + count))

    def settle_each(self, numbers: Sequence[int]) -> None:
        """`settle` each of these publishes."""
        still_open = self._open
        waiting = set(map(still_open.get, numbers))
        queues = waiting.pop() if len(waiting) == 1 else None
        if self._refused or queues is None:
            for publish_seq in numbers:
                self.settle(publish_seq)
            return
        if queues > 1:
            still_open.update(zip(numbers, repeat(queues - 1)))
            return
        for number in numbers:
            del still_open[number]
        self._settled += numbers
        self.on_news()

    def refuse(self, publish_seq: int) -> None:
        """A queue refuses this publish: it is nacked, whatever the other queues answer."""
        if publish_seq in self._refused:
            self.settle(publish_seq)
            return
        others = self._open.pop(publish_seq) - 1
        if others:
            self._refused[publish_seq] = others
        self._nacked.append(publish_seq)
        self._refusals += 1
        self.on_news()

    def close(self) -> None:
        """The channel is gone: publishes settled from now on are not reported."""
        self.on_news = _no_news

    def report(self, channel: int) -> bytes:
        """The frames that report the publishes settled since the last report."""
        frames = []
        oldest_unsettled = min(
            next(iter(self._open), self.issued + 1), min(self._nacked, default=self.issued + 1)
        )
        upto = oldest_unsettled - 1
        last = upto
        while last in self._alone:
            # These publishes were reported one by one, and so was everything from here to `upto`.
            last -= 1
        if last > self._reported:
            multiple = _MULTIPLE if last - self._reported > 1 else 0
            frames.append(_ACK.pack(1, channel, 13, _BASIC_ACK, last, multiple) + END)
        if self._alone:
            self._alone = {seq for seq in self._alone if seq > upto}
        for seq in sorted(self._settled):
            if seq > upto:
                frames.append(_ACK.pack(1, channel, 13, _BASIC_ACK, seq, 0) + END)
                self._alone.add(seq)
        for seq in self._nacked:
            frames.append(_ACK.pack(1, channel, 13, _BASIC_NACK, seq, _REQUEUE) + END)
            self._alone.add(seq)
        self._settled.clear()
        self._nacked.clear()
        # Every publish up to here has been answered by now, with an ack or a nack.
        self._reported = next(iter(self._open), self.issued + 1) - 1
        if self._alone and self._reported == self.issued:
            self._alone.clear()
        return b"".join(frames)


class ScatteredConfirms(PublishConfirms):
    """The waiter for publishes that a queue gets in one call, though their numbers are not in a row
    or they came on several channels. The queue numbers them from 0 on: by their places among the
    `waiters`."""

    __slots__ = ("_waiters",)

    def __init__(self, waiters: Sequence[tuple[ChannelConfirms, int]]) -> None:
        self._waiters = waiters

    @classmethod
    def of(cls, waiters: Sequence[tuple[ChannelConfirms, int]]) -> ScatteredConfirms | None:
        """The waiter for these; None if there are none."""
        return cls(waiters) if waiters else None

    def settle(self, publish_seq: int) -> None:
        confirms, number = self._waiters[publish_seq]
        confirms.settle(number)

    def settle_many(self, first_seq: int, count: int) -> None:
        chosen = self._waiters[first_seq : first_seq + count]
        for confirms, group in groupby(chosen, itemgetter(0)):
            confirms.settle_each([number for _, number in group])

    def refuse(self, publish_seq: int) -> None:
        confirms, number = self._waiters[publish_seq]
        confirms.refuse(number)


def _no_news() -> None:
    """Stands in for `on_news` of a channel that is gone."""
