"""The messages that a queue keeps after their acknowledgement: appended at the end, removed at the
front when they are too old or too many, and read from any position in between.

A message comes from the store of its queue and is appended in the call before it is removed there.
Both stores are on one disk, where the removal is never without the message here
(`persist/index/retained_index.py`). Who waited until the message was safe in the queue waits until
it is safe here.

Positions are given in the order of the acknowledgements, and never twice. A message has the moment
at which it was acknowledged in the place of that at which it expires: it does not expire here.

Unlike a stream, a log of this kind is trimmed message by message, and may become empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from warren.core.backing.backing_queue import BackingQueue
from warren.core.backing.memory_retained_store import MemoryRetainedStore
from warren.core.backing.queue_store import Handed, StoredBody
from warren.core.backing.stream_limits import StreamLimits
from warren.core.backing.stream_log import NOTHING, StreamLog, Trim
from warren.core.backing.stream_store import StreamStore, Walked
from warren.core.backing.variable_queue import VariableQueue
from warren.core.messages.message import Message
from warren.core.messages.settlement import PublishConfirms

UNCOMMITTED_MAX: Final = 4096
UNCOMMITTED_BYTES: Final = 1 << 20
"""Messages, and octets, that may be on their way to the disk: they are in one batch of the journal,
however many they are."""


ALL: Final = 1 << 62
"""More octets than there are."""


class RetainedStore(StreamStore, Protocol):
    """The store of such a log; an index on disk is one."""

    def first_position(self) -> int:
        """A position that is above those of all starts of the node before this one."""
        ...

    def write_retained(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms,
        stored: Sequence[StoredBody | None],
        acknowledged_at: float,
        *,
        awaited: bool,
    ) -> None:
        """Keep these messages, some of which stand on the disk already, and tell `confirms` the
        position of the last one when all are safe; it may be told the others, too, in order.
        `awaited`: somebody waits for that."""
        ...

    def end_of_old(self, start: int, end: int, since: float) -> int:
        """Behind the first messages in [start, end) that were acknowledged before then, in seconds
        since 1970; some of them, where they are many."""
        ...


class RetainedLog(StreamLog):
    """`retained` counts what was appended since the log is here."""

    __slots__ = ("_retained", "_uncommitted_bytes")

    def __init__(self, store: RetainedStore) -> None:
        super().__init__(store)
        self._retained = store
        if not self.length:
            self.next_position = max(self.next_position, store.first_position())
        self.committed = self.next_position
        # Octets of the bodies that were appended since all was committed.
        self._uncommitted_bytes = 0

    @property
    def octets(self) -> int:
        """How many octets of the store the messages take, as far as they were counted."""
        return 0 if self._counted is None else self._counted.octets

    @property
    def is_behind(self) -> bool:
        """Whether nothing is to be appended before more is committed."""
        uncommitted = self.next_position - self.committed
        return uncommitted >= UNCOMMITTED_MAX or self._uncommitted_bytes >= UNCOMMITTED_BYTES

    def keep(self, messages: Sequence[Message], handed: Sequence[Handed], now: float) -> None:
        """Append messages that are acknowledged now, in seconds since 1970."""
        first = self.next_position
        kept = [
            Message(message.envelope, message.body, position)
            for position, message in enumerate(messages, first)
        ]
        awaited = False
        for position, (confirms, publish_seq, _) in enumerate(handed, first):
            if confirms is not None:
                self._waiting[position] = (confirms, publish_seq)
                awaited = True
        stored = [one.stored for one in handed]
        octets = sum([len(message.body) for message in messages])
        self.next_position = first + len(kept)
        self._published += len(kept)
        self.length += len(kept)
        self.ready_bytes += octets
        whole = zip(messages, stored, strict=True)
        self._uncommitted_bytes += sum([len(one.body) for one, at in whole if at is None])
        # More waits behind what is uncommitted, where that is much.
        awaited = awaited or self.is_behind
        self._retained.write_retained(kept, self, stored, now, awaited=awaited)

    def settle(self, publish_seq: int) -> None:
        """`PublishConfirms`: the messages up to this position are on disk."""
        if publish_seq + 1 >= self.next_position:
            self._uncommitted_bytes = 0
        waiting = self._waiting
        while waiting and (first := next(iter(waiting))) < publish_seq:
            confirms, number = waiting.pop(first)
            confirms.settle(number)
        super().settle(publish_seq)

    # What is too much

    def trim(self, limits: StreamLimits, wall_time: float) -> Trim:
        """Do a bit of what the limits ask for: count, or remove messages from the front."""
        counted = self._counted or NOTHING._replace(position=self.first)
        if counted.position < self.committed:
            self._counted = counted = self._further_to(counted, self.committed)
            if counted.position < self.committed:
                return Trim(more=True)
        octets_max = limits.octets_max
        if octets_max is not None and counted.octets > octets_max:
            excess = counted.octets - octets_max
            self._drop(self._store.walk(self.first, self.committed, excess))
            return Trim(more=True)
        if limits.age_max_s is None or self.first >= self.committed:
            return Trim(more=False)
        return self._trim_by_age(limits.age_max_s, wall_time)

    def _trim_by_age(self, age_max_s: int, wall_time: float) -> Trim:
        old = self._retained.end_of_old(self.first, self.committed, wall_time - age_max_s)
        if old > self.first:
            self._drop(self._walked(old))
            return Trim(more=True)
        arrived_at = self._store.arrived_at(self.first)
        if arrived_at is None:
            # It is lost, and another one is the first now.
            self._first = None
            return Trim(more=self.first < self.committed)
        return Trim(more=False, due_s=max(0.001, arrived_at + age_max_s - wall_time))

    def _walked(self, end: int) -> Walked:
        """Through all messages below this position."""
        walked = NOTHING._replace(position=self.first)
        while walked.position < end:
            walked = self._further_to(walked, end)
        return walked

    def _further_to(self, walked: Walked, end: int) -> Walked:
        step = self._store.walk(walked.position, end, ALL)
        return Walked(
            step.position,
            walked.octets + step.octets,
            walked.messages + step.messages,
            walked.body_bytes + step.body_bytes,
        )

    def _drop(self, walked: Walked) -> None:
        self._remove(walked)
        self.forget_chunks()

    def clear(self) -> None:
        """Remove all there is, in turns: the queue retains nothing any more."""
        self._store.remove_range(self.first, self.next_position)
        self._first = self.next_position
        self._counted = self._front = None
        self.length = self.ready_bytes = 0
        self.forget_chunks()


def retained_log(
    backing: BackingQueue,
    call_soon: Callable[[Callable[[], None]], object],
    wall_time: Callable[[], float],
) -> RetainedLog:
    """Takes the place of a new backing queue with all that is in its store, unless that is one."""
    if isinstance(backing, RetainedLog):
        return backing
    if isinstance(backing, VariableQueue):
        return RetainedLog(cast(RetainedStore, backing.store))
    return RetainedLog(MemoryRetainedStore(call_soon, wall_time))
