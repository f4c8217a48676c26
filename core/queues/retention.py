"""Retention: a queue keeps acknowledged messages for as long as its policy `retention` says.

Answerable for moving messages from the queue to its log of acknowledged messages, and for trimming
that log. The messages are in `core/backing/retained_log.py`.

A persistent message is retained if a client acknowledged it, or was sent it without having to
acknowledge. It is not retained if it was purged, expired, dropped, dead-lettered or moved by an
operator. The queue hands acknowledged messages over to this object; its backing queue removes them
later. Until then they are pending there, so a crash brings them back, as if the acknowledgement had
not come.

A queue that retains nothing has no active `Retention`, and checks that once for each batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import Final, Protocol, TypeAlias

from warren.core.backing.backing_queue import BackingQueue
from warren.core.backing.handing_over import hand_over
from warren.core.backing.queue_store import NOT_HANDED
from warren.core.backing.retained_log import RetainedLog
from warren.core.backing.stream_limits import KEEP_ALL, StreamLimits
from warren.core.messages.message import Message
from warren.core.ports import Clock, Key
from warren.core.queues.seeking import offset_at
from warren.core.scheduling.deadline import Deadline
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import Event

SLICE: Final = 256
SLICE_BYTES: Final = 1 << 20
"""Messages, and octets of bodies, that are retained in one go."""

WAITING_MAX: Final = 20_000
"""Acknowledged messages that may wait to be retained; above that the queue stops delivering for a
moment."""

KEEP_US: Final = 4
TRIM_US: Final = 200
"""The costs of retaining a message and of one step of trimming, in the microseconds of
`core/scheduling/turns.py`."""

LOOK_AGAIN_S: Final = 3600.0
"""The longest time between two checks of the age of the oldest message, as clocks may be set."""

Done: TypeAlias = Callable[[], None]


class RetainingQueue(Protocol):
    """The part of a queue that its retention uses."""

    name: str
    backing: BackingQueue

    @property
    def vhost_name(self) -> str: ...

    @property
    def key(self) -> Key: ...


class Retention:
    """The retained messages of a queue, in `log`. Only an `active` one retains further messages."""

    __slots__ = (
        "_clock",
        "_full",
        "_going_on",
        "_limits",
        "_more",
        "_on_full",
        "_queue",
        "_taken",
        "_trim_deadline",
        "_trimming",
        "_turns",
        "_waiting",
        "active",
        "ended",
        "log",
    )

    def __init__(
        self,
        queue: RetainingQueue,
        log: RetainedLog,
        clock: Clock,
        turns: Turns,
        on_full: Callable[[bool], None] = lambda full: None,
    ) -> None:
        """`on_full(True)` is called when too many messages wait, so that the queue should stop
        delivering, and `on_full(False)` when few wait again."""
        self.log = log
        self.active = False
        self.ended = False
        self._queue = queue
        self._clock = clock
        self._turns = turns
        self._limits = KEEP_ALL
        self._on_full = on_full
        self._full = False
        # Happens when further messages have been written.
        self._more: Event | None = None
        # The acknowledged messages that are not in the log yet.
        self._waiting: deque[Message] = deque()
        # The number of messages that had to wait and were retained then.
        self._taken = 0
        self._going_on = False
        self._trimming = False
        self._trim_deadline = Deadline(clock, self._trim_soon)
        log.on_committed = self._more_is_committed

    # The limits

    def keep_within(self, limits: StreamLimits) -> None:
        """Retain messages from now on, within these limits."""
        self.active = True
        self._limits = limits
        self._trim_soon()

    def cease(self) -> None:
        """Retain nothing from now on, and drop what is retained, in turns."""
        if self.active:
            self.active = False
            self._trim_deadline.cancel()
            self.log.clear()
            if self._waiting:
                self._go_on_soon()
            self._tell_of_more()

    # Acknowledgements

    def ack(self, messages: Collection[Message]) -> None:
        """Pending messages of the queue were acknowledged, or sent without that: retain the
        persistent ones, and remove all of them from the backing queue."""
        if self.ended:
            return
        if self._waiting or self.log.is_behind or not self._fits(messages):
            self._waiting.extend(messages)
            self._go_on_soon()
            if len(self._waiting) >= WAITING_MAX and not self._full:
                self._full = True
                self._on_full(True)
            return
        self._keep(messages)

    def _fits(self, messages: Collection[Message]) -> bool:
        """Whether these messages are few enough to be retained in one go."""
        if len(messages) > SLICE:
            return False
        return sum([message.body_bytes for message in messages]) <= SLICE_BYTES

    def _keep(self, messages: Collection[Message]) -> None:
        backing = self._queue.backing
        if self.active:
            self.keep(backing, messages)
        backing.ack(messages)

    def keep(self, backing: BackingQueue, messages: Collection[Message]) -> None:
        """Retain the persistent ones of these pending messages; the caller then removes all of them
        from `backing`."""
        kept = backing.load([one for one in messages if one.envelope.persistent])
        if kept:
            handed = hand_over(backing, kept, self.log.next_position)
            self.log.keep(kept, handed, self._clock.wall_time())
        self._turns.spend(KEEP_US * len(messages))

    # Mirrors: following the leader of the queue

    def follow(self, backing: BackingQueue, messages: Mapping[int, Message]) -> None:
        """Retain the pending messages that the leader retains at these positions, unless the log
        has messages there already."""
        log = self.log
        wanted = {one.position: at for at, one in messages.items() if not log.has(at)}
        kept = backing.load([one for one in messages.values() if one.position in wanted])
        by_run = groupby(enumerate(kept), lambda one: wanted[one[1].position] - one[0])
        for _, run in by_run:
            some = [message for _, message in run]
            first = wanted[some[0].position]
            log.skip_to(first)
            handed = hand_over(backing, some, first)
            now = self._clock.wall_time()
            if first == log.next_position:
                log.keep(some, handed, now)
            else:
                placed = [
                    Message(message.envelope, message.body, position)
                    for position, message in enumerate(some, first)
                ]
                log.fill(placed, handed, [now] * len(some), _nothing)
        self._turns.spend(KEEP_US * len(messages))

    def fill(self, messages: Sequence[Message], ages_s: Sequence[float], done: Done) -> bool:
        """Keep messages that another node has retained, at their positions, except those that are
        here already or too old. Call `done` when they are safe. Returns False if there are none."""
        oldest_s = self._limits.age_max_s
        log, now = self.log, self._clock.wall_time()
        wanted = [
            (message, now - age_s)
            for message, age_s in zip(messages, ages_s, strict=True)
            if message.position >= log.trimmed_below
            and (oldest_s is None or age_s < oldest_s)
            and not log.has(message.position)
        ]
        if not wanted or self.deleted:
            return False
        chosen, times = zip(*wanted, strict=True)
        log.fill(chosen, [NOT_HANDED] * len(chosen), times, done)
        self._turns.spend(KEEP_US * len(chosen))
        return True

    def all_filled(self) -> None:
        """All messages are filled in: count them, and trim the log."""
        self.log.count_anew()
        if self.active:
            self._trim_soon()

    def _go_on_soon(self) -> None:
        if not self._going_on:
            self._going_on = True
            self._turns.soon(self._go_on)

    def _go_on(self) -> None:
        """Retain waiting messages until the turn is over."""
        self._going_on = False
        while self._waiting and not (self.active and self.log.is_behind):
            self._keep(self._next())
            self._tell_of_more()
            if self._turns.over and self._waiting:
                self._go_on_soon()
                break
        if self._full and len(self._waiting) <= WAITING_MAX // 2:
            self._full = False
            self._on_full(False)

    def _next(self) -> list[Message]:
        """The next messages to retain; at least one."""
        waiting, octets = self._waiting, 0
        messages: list[Message] = []
        while waiting and len(messages) < SLICE:
            octets += waiting[0].body_bytes
            if messages and octets > SLICE_BYTES:
                break
            messages.append(waiting.popleft())
        self._taken += len(messages)
        return messages

    def catch_up(self) -> None:
        """Retain all waiting messages now."""
        while self._waiting:
            self._keep(self._next())

    # Trimming

    async def written(self) -> None:
        """Wait until all messages acknowledged so far are in the log and on disk."""
        until_taken = self._taken + len(self._waiting)
        while self._taken < until_taken and not self.deleted:
            await self._more_to_come()
        end = self.log.next_position
        while self.log.committed < end and not self.deleted:
            await self._more_to_come()

    def _more_to_come(self) -> Event:
        self._more = self._more or Event()
        return self._more

    def _tell_of_more(self) -> None:
        more, self._more = self._more, None
        if more is not None:
            more.happen()

    def _more_is_committed(self) -> None:
        self._tell_of_more()
        if self._waiting:
            self._go_on_soon()
        if self.active:
            self._trim_soon()

    def _trim_soon(self) -> None:
        if not self._trimming:
            self._trimming = True
            self._turns.soon(self._trim)

    def _trim(self) -> None:
        self._trimming = False
        if not self.active or self.ended:
            return
        self._trim_deadline.cancel()
        trimmed = self.log.trim(self._limits, self._clock.wall_time())
        self._turns.spend(TRIM_US)
        if trimmed.more:
            self._trim_soon()
        elif trimmed.due_s is not None:
            self._trim_deadline.restart(min(trimmed.due_s, LOOK_AGAIN_S))

    # For operators. A replay reads this object like a queue without unacknowledged messages.

    unacked = 0
    waiting = 0

    @property
    def name(self) -> str:
        return self._queue.name

    @property
    def vhost_name(self) -> str:
        return self._queue.vhost_name

    @property
    def key(self) -> Key:
        """The key of the definition of the queue."""
        return self._queue.key

    @property
    def deleted(self) -> bool:
        """Whether it has no messages that could be read."""
        return self.ended or not self.active

    @property
    def backing(self) -> RetainedLog:
        return self.log

    @property
    def levels(self) -> list[RetainedLog]:
        return [self.log]

    async def offset_at(self, since: float) -> int:
        """The position of the first message that was acknowledged at this time (seconds since 1970)
        or later; if there is none, the position that the next message will have."""
        return await offset_at(self.log, self._turns, since, lambda: self.deleted)

    @property
    def oldest(self) -> float | None:
        """The time at which the oldest message was acknowledged, in seconds since 1970."""
        log = self.log
        return log.arrived_at(log.first) if log.first < log.committed else None

    # The end

    def delete(self) -> None:
        """Delete the log: the queue is gone, or another object has taken its place."""
        if not self.ended:
            self._end()
            self.log.delete()

    def stop(self) -> None:
        """The node stops: retain waiting messages, and leave the log for the next start."""
        if not self.ended:
            self.catch_up()
            self._end()
            self.log.stop()

    def let_go(self) -> RetainedLog:
        """Give the log to another object. The queue may have another leader, for which the messages
        that wait here are not acknowledged."""
        self._end()
        return self.log

    def _end(self) -> None:
        self.ended = True
        self._trim_deadline.cancel()
        self._waiting.clear()
        self.log.on_committed = _nothing
        self._tell_of_more()


def _nothing() -> None:
    """The callback of a log that no consumer waits for."""
