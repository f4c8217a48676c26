"""The index of the messages that a queue keeps after their acknowledgement.

Implements `core.backing.retained_log.RetainedStore`. The messages come from the index of the queue,
which forgets them in the same turn of the loop.

Guarantee: no batch of the journal has the removal of a message from the queue without having, in
itself or in an earlier batch, the message here. For a batch has all removals that were noted before
it, and of this index all messages: it is not cut as others are. The writer bounds how much
that is (`RetainedLog.is_behind`).

A large message is not written again: its entry leads to the record that the queue's entry led to,
which counts one reference more from `write_retained` on.

The field of an entry that says when a message expires says here when it was acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warren.core.backing.queue_store import StoredBody
from warren.core.messages.message import Message
from warren.core.messages.settlement import PublishConfirms
from warren.persist.index.index_entries import PIECE, SEGMENT_MASK, SHIFT
from warren.persist.index.queue_index import QueueIndex
from warren.persist.layout.format import (
    RECORD_BYTES,
    SHARED,
    Reference,
    file_of,
)
from warren.persist.log.journal import ENQUEUE_BYTES, MARK_BYTES_MIN, OpenBatch

UNCUT = 1 << 62
"""A mark beyond every other one."""


class RetainedIndex(QueueIndex):
    """An index of retained messages. `_elsewhere` are messages to be written that stand in the log
    already, by position; `_late` those below others that came before them, up to `_next`.
    `_referred` are the numbers of the files that they stand in and of their segments, in a batch.
    """

    _elsewhere: dict[int, StoredBody] | None = None
    _next: int | None = None

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._late: list[int] = []
        self._referred: set[tuple[int, int]] = set()

    def write_retained(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms,
        stored: Sequence[StoredBody | None],
        acknowledged_at: Sequence[float],
        *,
        awaited: bool,
    ) -> None:
        unwritten, elsewhere = self._unwritten, self._places()
        mark = self._journal.noted_bytes
        node_time = self._context.node_time
        total = 0
        last = messages[-1].position
        self._note_late(messages)
        for message, where, at in zip(messages, stored, acknowledged_at, strict=True):
            body = message.body
            octets = RECORD_BYTES + len(body) + len(message.envelope.header)
            if where is not None:
                octets = ENQUEUE_BYTES
                elsewhere[message.position] = where
                self._context.persistent.refer(where.place, where.length)
            message.expires_at = node_time(int(at * 1e6))
            position = message.position
            told = confirms if position == last else None
            unwritten[position] = (message, body, told, position, mark, octets)
            mark += max(octets, MARK_BYTES_MIN)
            total += octets
        self._journal.note_many(self, mark, total, confirms if awaited else None)

    def _places(self) -> dict[int, StoredBody]:
        if self._elsewhere is None:
            self._elsewhere = {}
        return self._elsewhere

    def _note_late(self, messages: Sequence[Message]) -> None:
        """Note the messages that come into the journal behind others with higher positions."""
        first = messages[0].position
        if self._next is None:
            self._next = self.end_of_sequence()
        if first < self._next:
            self._late += [one.position for one in messages if one.position < self._next]
        self._next = max(self._next, messages[-1].position + 1)

    def emit(self, batch: OpenBatch, cut: int) -> bool:
        is_all = self._emit_with_late(batch)
        # The segments are there when all entries are made.
        for file_id, number in self._referred:
            segment = self.entries.segments[number]
            self._context.persistent.files[file_id].segments.add(segment)
        self._referred.clear()
        return is_all

    def _emit_with_late(self, batch: OpenBatch) -> bool:
        late = [position for position in self._late if position in self._unwritten]
        self._late = []
        if not late:
            return super().emit(batch, UNCUT)
        segments = self.entries.segments
        ends = {at >> SHIFT: 0 for at in late}
        for number in ends.keys() & segments.keys():
            ends[number] = segments[number].written
        for position in self._unwritten:
            number = position >> SHIFT
            if number in ends:
                ends[number] = max(ends[number], (position & SEGMENT_MASK) + 1)
        is_all = super().emit(batch, UNCUT)
        for number, end in ends.items():
            segments[number].written = end
        for position in late:
            segments[position >> SHIFT].came_late(position & SEGMENT_MASK)
        return is_all

    def _offset_s(self, position: int) -> float:
        # `write_retained` takes this offset from times on the wall.
        return self._context.epoch_s

    def _emit_shared(
        self, batch: OpenBatch, message: Message, body: bytes, expires_us: int, now_us: int
    ) -> tuple[int, int]:
        position = message.position
        where = self._places().pop(position, None)
        if where is None:
            return super()._emit_shared(batch, message, body, expires_us, now_us)
        self._add_reference(batch, Reference(*where), position, expires_us)
        file_id = file_of(where.place)
        self._referred.add((file_id, position >> SHIFT))
        # The file may be full, and be written anew at this moment.
        self._context.persistent.files[file_id].refer_late(where.place, where.length)
        return where.place | SHARED, where.length

    def _cancel(self, position: int) -> bool:
        where = self._places().pop(position, None)
        if where is not None:
            self._context.persistent.release(where.place | SHARED, where.length)
        return super()._cancel(position)

    # Reading

    def arrived_at(self, position: int) -> float | None:
        """Return when the message was acknowledged."""
        noted = self._unwritten.get(position)
        if noted is not None:
            return self._context.wall_us(noted[0].expires_at) / 1e6
        entry = self.entries.find(position)
        return None if entry is None else entry.expires_us / 1e6

    def end_of_old(self, start: int, end: int, since: float) -> int:
        """Return the end of the first messages in [start, end) that were acknowledged before
        `since`; where they are many, of some of them."""
        # A message that is filled in may be below others that are written already.
        end = min((at for at in self._unwritten if start <= at < end), default=end)
        if end == start:
            return start
        number, first = divmod(start, SEGMENT_MASK + 1)
        segment = self.entries.segments.get(number)
        base = start - first
        beyond = min(end, base + SEGMENT_MASK + 1)
        if segment is None:
            return min(end, self.entries.start_from(start))
        last = min(beyond - base, first + PIECE)
        columns = self.entries.columns(segment)
        since_us = int(since * 1e6)
        old = first
        for at in range(first, min(last, len(columns.places))):
            if columns.places[at] and columns.expires[at] >= since_us:
                return base + old
            old = at + 1
        return base + last
