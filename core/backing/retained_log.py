"""The messages that a queue keeps after their acknowledgement: appended at the end, removed at the
front when they are too old or too many, and read from any position in between.

A message comes from the store of its queue and is appended in the call before it is removed there.
Both stores are on one disk, where the removal is never without the message here
(`persist/index/retained_index.py`). A publisher that waited until the message was safe in the queue
waits until it is safe here.

Positions are given in the order of the acknowledgements, and never twice. A message has the moment
at which it was acknowledged in the place of that at which it expires: it does not expire here.

The log of a mirrored queue has its messages at the positions that its leader gave them, so a
message has the same position at every node. A leader goes on in another *generation* of positions
than the one before: a multiple of 2 to the power of `GENERATION_SHIFT`. So what only the leader
before had retained keeps positions that no other message gets. Messages that a node lacks are
filled in later, in any order.

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

FAR_FUTURE: Final = 1e12
"""Seconds since 1970 that no clock shows."""

GENERATION_SHIFT: Final = 32
"""No leader retains 2 to this power of messages of which the next one has not heard."""

FILLED_BYTES: Final = 64
"""Octets that a filled-in message is assumed to take beside header and body, until all messages are
counted anew."""


class Filled(PublishConfirms):
    """Tells those who wait for messages that are filled in, and calls `done`, when all are safe."""

    def __init__(self, last: int, handed: Sequence[Handed], done: Callable[[], None]) -> None:
        self._last = last
        self._handed = handed
        self._done = done

    def settle(self, publish_seq: int) -> None:
        if publish_seq == self._last:
            for confirms, number, _ in self._handed:
                if confirms is not None:
                    confirms.settle(number)
            self._done()

    def refuse(self, publish_seq: int) -> None:
        raise AssertionError("a store keeps what it was given")


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
        acknowledged_at: Sequence[float],
        *,
        awaited: bool,
    ) -> None:
        """Keep these messages, some of which stand on the disk already, and tell `confirms` the
        position of the last one when all are safe; it may be told the others, too, in order.
        `awaited`: a client waits for that."""
        ...

    def end_of_old(self, start: int, end: int, since: float) -> int:
        """Return the end of the first messages in [start, end) that were acknowledged before
        `since`, in seconds since 1970; where they are many, of some of them."""
        ...


class RetainedLog(StreamLog):
    """The acknowledged messages of a queue. `trimmed_below`: messages at lower positions were too
    many or too old. `clearings` counts how often all was dropped."""

    __slots__ = (
        "_appended",
        "_counts_anew",
        "_retained",
        "_uncommitted_bytes",
        "clearings",
        "trimmed_below",
    )

    def __init__(self, store: RetainedStore) -> None:
        super().__init__(store)
        self._retained = store
        if not self.length:
            self.next_position = max(self.next_position, store.first_position())
        self.committed = self.next_position
        self.trimmed_below = self.clearings = 0
        self._counts_anew = False
        # The position behind the last message that was appended.
        self._appended = 0
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
        self.next_position = self._appended = first + len(kept)
        self._published += len(kept)
        self.length += len(kept)
        self.ready_bytes += octets
        whole = zip(messages, stored, strict=True)
        self._uncommitted_bytes += sum([len(one.body) for one, at in whole if at is None])
        # More waits behind what is uncommitted, where that is much.
        awaited = awaited or self.is_behind
        times = [now] * len(kept)
        self._retained.write_retained(kept, self, stored, times, awaited=awaited)

    def settle(self, publish_seq: int) -> None:
        """`PublishConfirms`: the messages up to this position are on disk."""
        committed = publish_seq + 1
        if committed >= self._appended:
            self._uncommitted_bytes = 0
            committed = self.next_position
        waiting = self._waiting
        while waiting and (first := next(iter(waiting))) <= publish_seq:
            confirms, number = waiting.pop(first)
            confirms.settle(number)
        if committed > self.committed:
            self.committed = committed
            self.on_committed()

    def settle_many(self, first_seq: int, count: int) -> None:
        self.settle(first_seq + count - 1)

    # Positions that mean the same at other nodes

    def skip_to(self, position: int) -> None:
        """Give the next message this position, or a higher one where there are messages."""
        if position > self.next_position or not self.length:
            super().skip_to(position)

    def begin_generation(self, later: int) -> tuple[int, int]:
        """Go on `later` generations later. Return the range of positions, start and end, that only
        the leader before may have given."""
        tail = self.next_position
        self.skip_to(next_generation(tail, later))
        return tail, self.next_position

    def has(self, position: int) -> bool:
        """Whether there is a message with this position, written or not.

        A message below the first one was trimmed, also while the store removes it in turns.
        """
        if not self.first <= position < self.next_position:
            return False
        return bool(self._store.list_positions(position, position + 1, 1).positions)

    def fill(
        self,
        messages: Sequence[Message],
        handed: Sequence[Handed],
        acknowledged_at: Sequence[float],
        done: Callable[[], None],
    ) -> None:
        """Keep messages at the positions they have, in ascending order, which are free; `done` is
        called when they are on disk."""
        last = messages[-1].position
        if self._first is not None:
            self._first = min(self._first, messages[0].position)
        if self._counted is not None:
            # The others are counted when it is their turn.
            passed = [one for one in messages if one.position < self._counted.position]
            guess = sum([FILLED_BYTES + len(m.envelope.header) + len(m.body) for m in passed])
            self._counted = self._counted._replace(octets=self._counted.octets + guess)
        self.skip_to(max(last + 1, self.next_position))
        self.length += len(messages)
        self.ready_bytes += sum([len(message.body) for message in messages])
        self.forget_chunks()
        stored = [one.stored for one in handed]

        def safe() -> None:
            # Chunks that were read meanwhile lack these messages.
            self.forget_chunks()
            done()

        filled = Filled(last, handed, safe)
        self._retained.write_retained(messages, filled, stored, acknowledged_at, awaited=True)

    def count_anew(self) -> None:
        """Find out once more how many messages there are, and their octets: some may have been
        removed before they were on disk."""
        self._counted = None
        self._counts_anew = True

    def drop(self, start: int, end: int) -> None:
        """Remove the messages in [start, end), of which no leader knows any more."""
        if start >= end or not self._store.list_positions(start, end, 1).positions:
            return
        walked = self._walked(start, end)
        self._store.remove_range(start, end)
        self.length = max(0, self.length - walked.messages)
        self.ready_bytes = max(0, self.ready_bytes - walked.body_bytes)
        self._first = self._counted = None
        self.forget_chunks()

    # Trimming

    def trim(self, limits: StreamLimits, wall_time: float) -> Trim:
        """Do one step of trimming: count messages, or remove some from the front."""
        counted = self._counted or NOTHING._replace(position=self.first)
        if counted.position < self.committed:
            self._counted = counted = self._further_to(counted, self.committed)
            if counted.position < self.committed:
                return Trim(more=True)
        if self._counts_anew and counted.position >= self.next_position:
            self._counts_anew = False
            self.length, self.ready_bytes = counted.messages, counted.body_bytes
        octets_max = limits.octets_max
        if octets_max is not None and counted.octets > octets_max:
            excess = counted.octets - octets_max
            self._drop(self._store.walk(self.first, self.committed, excess))
            return Trim(more=True)
        if limits.age_max_s is None or self.first >= self.committed:
            return Trim(more=False)
        return self._trim_by_age(limits.age_max_s, wall_time)

    def _trim_by_age(self, age_max_s: int, wall_time: float) -> Trim:
        since = wall_time - age_max_s
        old = self._retained.end_of_old(self.first, self.committed, since)
        if old == self.first:
            arrived_at = self._arrived_by(self.first, wall_time)
            if arrived_at is None:
                # The first message is lost, and another one is the first now.
                self._first = None
                return Trim(more=self.first < self.committed)
            end = min(self._ahead[0], self.committed)
            if arrived_at < since and self.first < end:
                # The clock has been set back. All that was there when this was noticed is too old.
                old = self._retained.end_of_old(self.first, end, FAR_FUTURE)
            if old == self.first:
                return Trim(more=False, due_s=max(0.001, arrived_at - since))
        self._drop(self._walked(self.first, old))
        return Trim(more=True)

    def _walked(self, start: int, end: int) -> Walked:
        """Walk through all messages in [start, end)."""
        walked = NOTHING._replace(position=start)
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
        self.trimmed_below = max(self.trimmed_below, self.first)
        self.forget_chunks()

    def clear(self) -> None:
        """Remove all there is, in turns: the queue retains nothing any more."""
        self._store.remove_range(self.first, self.next_position)
        self._first = self.trimmed_below = self.next_position
        self.clearings += 1
        self._counted = self._front = None
        self.length = self.ready_bytes = 0
        self.forget_chunks()


def next_generation(position: int, later: int) -> int:
    """Return the first position of the leader that comes `later` leaders after the one that gave
    `position`."""
    return (position >> GENERATION_SHIFT) + later << GENERATION_SHIFT


def retained_log(
    backing: BackingQueue,
    call_soon: Callable[[Callable[[], None]], object],
) -> RetainedLog:
    """Return a retained log in the place of a new backing queue, with all that is in its store; a
    retained log is returned itself."""
    if isinstance(backing, RetainedLog):
        return backing
    if isinstance(backing, VariableQueue):
        return RetainedLog(cast(RetainedStore, backing.store))
    return RetainedLog(MemoryRetainedStore(call_soon))
