"""Messages that come back to a classic queue: how often they may, and how long they wait then.

`x-delivery-limit` says how often a message may be returned, `x-redelivery-delay` for how long its
n-th return keeps it from being ready: a list of times, of which the last one is for all further
returns. Counts are kept by the backing queue, as durably as acknowledgements, and go to mirrors.
What waits is pending in the backing queue: it is ready at once where the node ends, or another one
leads, and its count is what it was.

A queue with neither setting has no `Redelivery`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, Protocol, cast

from msgspec.structs import replace

from warren.core.backing.backing_queue import BackingQueue, MirroredLevel
from warren.core.backing.priority_queue import PriorityQueue, level_number
from warren.core.field import long
from warren.core.messages.message import Envelope, Message
from warren.core.ports import Clock, ContentCodec
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.scheduling.deadline import Deadline

DELIVERY_COUNT: Final = "x-delivery-count"


class CountingQueue(MirroredLevel, Protocol):
    """A backing queue whose store can keep how often messages were returned."""

    @property
    def delivery_counts(self) -> dict[int, int]:
        """The counts by position: as they were found at the start, with the callers' changes
        since."""
        ...

    @property
    def dead_marks(self) -> dict[int, int]:
        """Why messages are dead, by position: as found at the start, with the callers' changes
        since."""
        ...

    def counts_changed(self, positions: Collection[int]) -> None:
        """Keep the counts and marks of these messages, which have changed."""
        ...


class CountedEnvelopes:
    """Makes envelopes whose header says how often a message was returned.

    It remembers the last one: many messages have the same.
    """

    __slots__ = ("_codec", "_last")

    def __init__(self, codec: ContentCodec) -> None:
        self._codec = codec
        self._last: tuple[Envelope, int, Envelope] | None = None

    def of(self, envelope: Envelope, count: int) -> Envelope:
        last = self._last
        if last is not None and last[0] is envelope and last[1] == count:
            return last[2]
        headers = {**self._codec.headers(envelope.header), DELIVERY_COUNT: long(count)}
        header = self._codec.with_headers(envelope.header, headers)
        counted = replace(envelope, header=header, stored=None)
        self._last = (envelope, count, counted)
        return counted


class TakenBack(NamedTuple):
    """Messages that came back: ready at once, or returned too often."""

    ready: list[Message]
    dead: list[Message]


class Redelivery:
    """The returns of one classic queue. `len` is how many messages wait.

    `ends`: no return is to be counted any more, and what waits is ready, a slice at a time.
    `on_due` is called when messages wait no longer; it takes them by `due`.
    """

    def __init__(self, codec: ContentCodec, clock: Clock, on_due: Callable[[], None]) -> None:
        self._envelopes = CountedEnvelopes(codec)
        self._clock = clock
        self._deadline = Deadline(clock, on_due)
        # When each is ready again, and the number of its return, which tells equal times apart.
        self._waiting: list[tuple[float, int, Message]] = []
        self._returns = 0
        self.waiting_bytes = 0
        self.ends = False

    def __len__(self) -> int:
        return len(self._waiting)

    def shown(self, backing: BackingQueue, message: Message) -> Envelope:
        """The envelope that a client is shown."""
        return self._envelopes.of(message.envelope, self.count(backing, message))

    def count(self, backing: BackingQueue, message: Message) -> int:
        """How often the message was returned."""
        return _level_of(backing, message).delivery_counts.get(message.position, 0)

    def take_back(
        self,
        backing: BackingQueue,
        messages: Collection[Message],
        settings: QueueSettings,
    ) -> TakenBack:
        """Count a return of each message. Those that have to wait are kept until they are `due`."""
        limit = settings.delivery_limit
        now = self._clock.now()
        taken = TakenBack([], [])
        for message in messages:
            level = _level_of(backing, message)
            times = level.delivery_counts.get(message.position, 0) + 1
            if limit is not None and times > limit:
                taken.dead.append(message)
                continue
            level.delivery_counts[message.position] = times
            level.counts_changed((message.position,))
            delay_ms = delay_of(settings.redelivery_delay_ms, times)
            if delay_ms:
                self._wait(message, now + delay_ms / 1000)
            else:
                taken.ready.append(message)
        self.set_timer()
        return taken

    def _wait(self, message: Message, until: float) -> None:
        self._returns += 1
        heappush(self._waiting, (until, self._returns, message))
        self.waiting_bytes += message.body_bytes

    @property
    def is_over(self) -> bool:
        """Whether no return is counted any more, and no message waits."""
        return self.ends and not self._waiting

    def set_timer(self) -> None:
        """Have `on_due` called when the first message waits no longer."""
        if self._waiting:
            self._deadline.no_later_than(0.0 if self.ends else self._waiting[0][0])

    def stop(self) -> None:
        """Do not call `on_due` any more."""
        self._deadline.cancel()

    def due(self, limit: int) -> list[Message]:
        """Take up to `limit` messages that wait no longer, and are to be ready again."""
        found: list[Message] = []
        waiting = self._waiting
        now = self._clock.now()
        while waiting and len(found) < limit and (self.ends or waiting[0][0] <= now):
            found.append(heappop(waiting)[2])
        self.waiting_bytes -= sum([message.body_bytes for message in found])
        self.set_timer()
        return found

    def take_out(
        self, backing: BackingQueue, level: int, positions: Collection[int]
    ) -> list[Message]:
        """Take messages of a level that wait: they stay pending, and do not become ready.

        None are taken once waiting `ends`: those are about to be ready.
        """
        if self.ends:
            return []
        wanted = frozenset(positions)
        taken: list[Message] = []
        left: list[tuple[float, int, Message]] = []
        for one in self._waiting:
            message = one[2]
            is_wanted = message.position in wanted and level == level_number(
                backing, message.envelope
            )
            if is_wanted:
                taken.append(message)
            else:
                left.append(one)
        if taken:
            heapify(left)
            self._waiting = left
            self.waiting_bytes -= sum([message.body_bytes for message in taken])
        return taken

    def waiting(self) -> dict[Message, float]:
        """The messages that wait, in no order, and when they are ready again, by the clock."""
        return {message: until for until, _, message in self._waiting}


def delay_of(delays_ms: Sequence[int] | None, times: int) -> int:
    """How many milliseconds a message waits that was returned so often."""
    return delays_ms[min(times, len(delays_ms)) - 1] if delays_ms else 0


def _level_of(backing: BackingQueue, message: Message) -> CountingQueue:
    """The level that has the message, and keeps its count."""
    if isinstance(backing, PriorityQueue):
        backing = backing.level_of(message.envelope)
    # All that keep messages can keep counts.
    return cast(CountingQueue, backing)
