"""The index of one queue: which of its messages are on disk, and where.

Implements `core.backing.queue_store.QueueStore`. A message that a variable queue hands over is at
first only noted (`_unwritten`); the journal asks for it when it writes its next batch. A message
that is removed before that never touches the disk, and its publisher gets the confirm all the same.

Once a message is in a batch, it has an entry in a segment (`index_entries.py`) until it is removed.
Removals are noted too (`_removed`), for the next batch. So the journal has everything, and the
files of the segments may be behind; `checkpoint.py` brings them up to date now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeAlias
from zlib import crc32

from warren.core.backing.backing_queue import Listed
from warren.core.backing.queue_store import (
    NOT_HANDED,
    Batch,
    Handed,
    Purged,
    Recovered,
    StoredBody,
)
from warren.core.messages.message import Message
from warren.core.messages.settlement import PublishConfirms, WaitingRow, in_rows
from warren.core.ports import Commit
from warren.persist.index.delivery_counts import DeliveryCounts
from warren.persist.index.entry_reading import EntryReader
from warren.persist.index.index_context import IndexContext
from warren.persist.index.index_entries import PIECE, SEGMENT_MASK, SHIFT, IndexEntries
from warren.persist.index.stream_reading import StreamReading
from warren.persist.layout.format import (
    ENQUEUE,
    PERSISTENT,
    PUBLISH,
    RECORD_BYTES,
    REMOVE,
    RETURNED,
    SHARED,
    SHARED_MESSAGE,
    TRANSIENT,
    Reference,
    encode_ranges,
    encode_reference,
    record_head,
)
from warren.persist.layout.segment import IndexEntry, IndexRow, Segment, merged
from warren.persist.log.journal import MARK_BYTES_MIN, Journal, OpenBatch

_PADDING = tuple(bytes(-size & 7) for size in range(8))


PURGED_AT_ONCE = 2000
"""Returned messages that are removed in one turn when a queue is purged."""

Noted: TypeAlias = tuple[Message, bytes, PublishConfirms | None, int, int, int]
"""A message, its body, its waiter, and the number under which that knows it; its mark (see the
journal) and octets."""


class QueueIndex(StreamReading):
    """The messages of one queue on disk. `directory` is where its segments are.

    `definition` is the commit of the queue's definition, None when that is durable. `is_noted`
    belongs to the journal. `on_deleted` is called when the queue is deleted; its files may be
    removed when the deletion is on disk.
    """

    def __init__(
        self,
        queue_id: int,
        directory: Path,
        *,
        durable: bool,
        first_position: int,
        journal: Journal,
        context: IndexContext,
        on_deleted: Callable[[QueueIndex], None],
    ) -> None:
        self.queue_id = queue_id
        self.durable = durable
        self.entries = IndexEntries(queue_id, directory, durable=durable, context=context)
        self.definition: Commit | None = None
        self.redelivered_below = 0
        # Set when the queue is closed.
        self.delivered_below: int | None = None
        self.read_count = 0
        self.written_count = 0
        self.returns = DeliveryCounts(queue_id)
        self.delivery_counts = self.returns.counts
        self.dead_marks = self.returns.marks
        self.is_noted = False
        self._reader = EntryReader(queue_id, context, self.entries.offsets)
        self._first_position = first_position
        self._journal = journal
        self._context = context
        self._on_deleted = on_deleted
        self._unwritten: dict[int, Noted] = {}
        # Messages that arrived at another node before they came here: microseconds since 1970.
        self._arrivals: dict[int, int] = {}
        self._removed: list[tuple[int, int]] = []
        self._ended = False

    # Recovery

    def recovered(self) -> Recovered:
        entries = self.entries
        count = entries.live
        if not count:
            return Recovered(0, 0, self._first_position, self._first_position)
        return Recovered(
            count, entries.live_bytes, entries.start, self._first_position, entries.has_expiring
        )

    @property
    def count(self) -> int:
        """Messages it has, ready and pending."""
        return self.entries.live + len(self._unwritten)

    @property
    def persistent(self) -> tuple[int, int]:
        entries = self.entries
        transient, transient_bytes = entries.transient
        unwritten = [len(noted[1]) for noted in self._unwritten.values()]
        count = entries.live - transient + len(unwritten)
        return count, entries.live_bytes - transient_bytes + sum(unwritten)

    @property
    def end_at_start(self) -> int:
        return self.entries.end_at_start

    def first_position(self) -> int:
        return self._first_position

    def go_on_behind(self, start_shift: int) -> None:
        """Let new positions begin after all existing ones.

        A copy has the positions of its leader, which may be ahead of those that this start begins
        with.
        """
        if self.entries.numbers:
            last_start = self.entries.numbers[-1] << SHIFT >> start_shift
            self._first_position = max(self._first_position, (last_start + 1) << start_shift)

    def adopt_returns(self, found: dict[int, int]) -> None:
        """Keep the counts and marks found at start, except those of messages that are gone."""
        for at, value in found.items():
            if self.entries.find(at) is not None:
                self.returns.adopt(at, value)
        if self.returns:
            self._context.counted[self.returns] = None

    # Writing

    def write(self, message: Message, confirms: PublishConfirms | None, publish_seq: int) -> None:
        body = message.body
        mark, octets = self._journal.note(self, message.envelope, body, confirms)
        self._unwritten[message.position] = (message, body, confirms, publish_seq, mark, octets)

    def write_many(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms | None,
        publish_seqs: Iterable[int],
        arrived_at: float | None = None,
    ) -> None:
        """`write` many messages. Large ones that are for other queues, too, are on disk once only
        if they are written one by one, for one queue after the other."""
        unwritten = self._unwritten
        if arrived_at is not None:
            arrived_us = int(arrived_at * 1e6)
            self._arrivals.update({message.position: arrived_us for message in messages})
        mark = self._journal.noted_bytes
        total = 0
        for message, publish_seq in zip(messages, publish_seqs, strict=True):
            body = message.body
            octets = RECORD_BYTES + len(body) + len(message.envelope.header)
            unwritten[message.position] = (message, body, confirms, publish_seq, mark, octets)
            mark += octets if octets > MARK_BYTES_MIN else MARK_BYTES_MIN
            total += octets
        self._journal.note_many(self, mark, total, confirms)

    def first_mark(self) -> int | None:
        """The mark of the first noted message; None if there is none."""
        for noted in self._unwritten.values():
            return noted[4]
        return None

    def emit(self, batch: OpenBatch, cut: int) -> bool:
        """Put the noted messages below this mark into the batch. False: some are left."""
        if not self._unwritten:
            return True
        embed_below, encode = self._context.embed_below, self._context.encode_envelope
        offset_s: float | None = None
        queue_id, arrivals = self.queue_id, self._arrivals
        parts, lengths, base = batch.parts, batch.lengths, batch.base
        rows: list[IndexRow] = []
        awaited: list[tuple[PublishConfirms | None, int]] = []
        count = octets = taken = 0
        for position, noted in self._unwritten.items():
            message, body, confirms, publish_seq, mark, noted_octets = noted
            if mark >= cut:
                break
            taken += noted_octets
            envelope = message.envelope
            stored = envelope.stored
            if stored is None:
                data = encode(envelope)
                stored = envelope.stored = (data, crc32(data))
            data, crc = stored
            expires_at = message.expires_at
            if expires_at is None:
                expires_us = 0
            else:
                if offset_s is None:
                    offset_s = self._offset_s(position)
                expires_us = int((expires_at + offset_s) * 1e6)
            size = len(body)
            now_us = arrivals.pop(position, batch.now_us) if arrivals else batch.now_us
            if len(data) + size < embed_below:
                head = record_head(
                    PUBLISH, PERSISTENT, queue_id, position, expires_us, now_us, data, crc, body
                )
                length = RECORD_BYTES + len(data) + size
                place = base + batch.offset
                parts += (head, data, body, _PADDING[length & 7])
                lengths.append(length)
                batch.offset += length + 7 & ~7
                count += 1
                octets += length
            else:
                place, length = self._emit_shared(batch, message, body, expires_us, now_us)
            rows.append((position, place, expires_us, length, size))
            awaited.append((confirms, publish_seq))
        batch.file.segments.update(self.entries.add(rows))
        emitted = len(rows)
        self._waiting_in(batch).extend(in_rows(awaited))
        self.written_count += emitted
        self._context.messages_written += emitted
        batch.taken += taken
        if count:
            self._context.persistent.keep(batch.file, count, octets)
        if emitted == len(self._unwritten):
            self._unwritten.clear()
            return True
        for position in list(self._unwritten)[:emitted]:
            del self._unwritten[position]
        return False

    def _offset_s(self, position: int) -> float:
        """The offset of the wall clock from the node's clock, for entries from this position on."""
        return self.entries.offsets.begin(position)

    def _waiting_in(self, batch: OpenBatch) -> list[WaitingRow]:
        """The batch's list for publishers; they wait for the definition of the queue too, as a
        message is never safer than its queue."""
        definition = self.definition
        if definition is None:
            return batch.waiting
        if definition.done:
            self.definition = None
            return batch.waiting
        return batch.waiting_for(definition)

    def _emit_shared(
        self, batch: OpenBatch, message: Message, body: bytes, expires_us: int, now_us: int
    ) -> tuple[int, int]:
        """Put a reference into the batch, after the shared record if no queue refers to it yet.
        Return the place and the length of the record."""
        envelope = message.envelope
        assert envelope.stored is not None
        data, crc = envelope.stored
        key = (id(envelope), id(body))
        shared = batch.shared.get(key)
        if shared is None:
            head = record_head(SHARED_MESSAGE, PERSISTENT, 0, 0, 0, now_us, data, crc, body)
            shared = batch.add((head, data, body), RECORD_BYTES + len(data) + len(body))
            batch.shared[key] = shared
        place, length = shared
        reference = Reference(place, length, len(body))
        self._add_reference(batch, reference, message.position, expires_us)
        self._context.persistent.refer(place, length)
        return place | SHARED, length

    def _add_reference(
        self, batch: OpenBatch, reference: Reference, position: int, expires_us: int
    ) -> None:
        """Put the reference to a record into the batch; the record is there already."""
        payload = encode_reference(reference)
        head = record_head(
            ENQUEUE,
            PERSISTENT,
            self.queue_id,
            position,
            expires_us,
            batch.now_us,
            b"",
            0,
            payload,
        )
        batch.add((head, payload), RECORD_BYTES + len(payload))

    def emit_removed(self, batch: OpenBatch) -> None:
        """Put removals and counts of returns into the batch."""
        self._emit_returned(batch)
        if not self._removed:
            return
        ranges = merged(self._removed)
        self._removed = []
        payload = encode_ranges(ranges)
        head = record_head(REMOVE, 0, self.queue_id, len(ranges), 0, batch.now_us, b"", 0, payload)
        batch.add((head, payload), RECORD_BYTES + len(payload))

    def _emit_returned(self, batch: OpenBatch) -> None:
        pairs = self.returns.take_changed()
        if pairs:
            payload = encode_ranges(pairs)
            head = record_head(
                RETURNED, 0, self.queue_id, len(pairs), 0, batch.now_us, b"", 0, payload
            )
            batch.add((head, payload), RECORD_BYTES + len(payload))

    def counts_changed(self, positions: Iterable[int]) -> None:
        self.returns.changed(positions)
        self._context.counted[self.returns] = None
        self._journal.note_change(self)

    def page(self, messages: Sequence[Message]) -> None:
        context = self._context
        encode = context.encode_envelope
        parts: list[bytes] = []
        written: list[tuple[Message, int, int, int]] = []
        offset = 0
        for message in messages:
            if (
                message.position in self._unwritten
                or self.entries.find(message.position) is not None
            ):
                continue
            envelope = message.envelope
            if envelope.stored is None:
                data = encode(envelope)
                envelope.stored = (data, crc32(data))
            data, crc = envelope.stored
            expires_us = context.wall_us(message.expires_at)
            flags = PERSISTENT if envelope.persistent else 0
            head = record_head(
                PUBLISH,
                flags,
                self.queue_id,
                message.position,
                expires_us,
                0,
                data,
                crc,
                message.body,
            )
            length = len(head) + len(data) + len(message.body)
            parts += (head, data, message.body, _PADDING[length & 7])
            written.append((message, offset, length, expires_us))
            offset += length + 7 & ~7
        if not written:
            return
        self.written_count += len(written)
        self._context.messages_written += len(written)
        place = context.page_out(b"".join(parts))
        store = context.transient
        file = store.files[place >> 32]
        segments: set[Segment] = set()
        for message, offset, length, expires_us in written:
            segment = self.entries.make(message.position >> SHIFT)
            columns = self.entries.columns(segment)
            relative = message.position & SEGMENT_MASK
            columns.set(relative, place + offset, expires_us, length, len(message.body))
            segment.paged.append(relative)
            segment.live += 1
            segment.live_bytes += len(message.body)
            segment.transient += 1
            segment.transient_bytes += len(message.body)
            segments.add(segment)
            self.entries.touch(segment)
            store.keep(file, 1, length)
        file.segments.update(segments)

    # Removing

    def remove(self, messages: Iterable[Message]) -> None:
        if type(messages) is Purged:
            self._context.in_turns(self._remove_purged(iter(messages)))
            return
        positions = [message.position for message in messages]
        if self.entries.hidden:
            # Without their bodies these messages did not go where they should.
            positions = [at for at in positions if at not in self.entries.hidden]
        if not positions:
            return
        if self._unwritten:
            positions = [at for at in positions if not self._cancel(at)]
            if not positions:
                return
        first, last = positions[0], positions[-1]
        if last - first + 1 == len(positions) and positions == list(range(first, last + 1)):
            self._remove_span(first, last + 1)
            return
        positions.sort()
        start = end = positions[0]
        for position in positions:
            if position != end:
                self._remove_span(start, end)
                start = position
            end = position + 1
        self._remove_span(start, end)

    def remove_range(self, start: int, end: int) -> None:
        for position in [at for at in self._unwritten if start <= at < end]:
            self._cancel(position)
        self._context.in_turns(self._remove_pieces(start, end))

    def remove_all(self) -> None:
        """Forget everything at once that was found at start."""
        self._remove_span(0, self._first_position)
        self.entries.take_lost()

    def _remove_pieces(self, start: int, end: int) -> Iterator[None]:
        for piece_start, piece_end in self.entries.pieces(start, end):
            if self._ended:
                return
            first, beyond = max(start, piece_start), min(end, piece_end)
            if first < beyond:
                self._remove_span(first, beyond)
                if beyond < end and piece_end - piece_start == PIECE:
                    yield
        # Messages that were lost on the way were to be removed anyway.
        self.entries.take_lost()

    def _remove_purged(self, messages: Iterator[Message]) -> Iterator[None]:
        while few := list(islice(messages, PURGED_AT_ONCE)):
            if not self._ended:
                self.remove(few)
            few.clear()
            yield

    def _cancel(self, position: int) -> bool:
        """Forget a message that is not in the journal yet."""
        noted = self._unwritten.pop(position, None)
        if noted is None:
            return False
        if self._arrivals:
            self._arrivals.pop(position, None)
        _, _, confirms, publish_seq, _, octets = noted
        self._journal.cancelled(octets, confirms, publish_seq)
        return True

    def hand_over(self, message: Message) -> Handed:
        position = message.position
        noted = self._unwritten.get(position)
        if noted is not None:
            _, body, confirms, publish_seq, mark, octets = noted
            self._unwritten[position] = (message, body, None, 0, mark, octets)
            return Handed(confirms, publish_seq, None)
        entry = self.entries.find(position)
        if entry is None or not entry.place & SHARED or entry.place >= TRANSIENT:
            return NOT_HANDED
        return Handed(None, 0, StoredBody(entry.place & ~SHARED, entry.length, entry.size))

    def _remove_span(self, start: int, end: int) -> None:
        """Remove the entries in [start, end)."""
        if not self.entries.remove(start, end):
            return
        removed = self._removed
        if removed and removed[-1][1] == start:
            removed[-1] = (removed[-1][0], end)
        else:
            removed.append((start, end))
        self._journal.note_change(self)

    # Reading

    def read(self, start: int, end: int, count_max: int, bytes_max: int) -> Batch:
        self.entries.cursor = start >> SHIFT
        batch = self._read(start, end, count_max, bytes_max)
        lost, lost_bytes = self.entries.take_lost()
        return batch._replace(lost=batch.lost + lost, lost_bytes=batch.lost_bytes + lost_bytes)

    def _read(self, start: int, end: int, count_max: int, bytes_max: int) -> Batch:
        entries, complete = self.entries.between(start, end, count_max, bytes_max)
        beyond = end if complete else entries[-1].position + 1
        unwritten = [at for at in self._unwritten if start <= at < beyond]
        if unwritten:
            chosen = sorted([entry.position for entry in entries] + unwritten)[:count_max]
            beyond = chosen[-1] + 1
            entries = [entry for entry in entries if entry.position < beyond]
        messages, lost, lost_bytes = self._read_entries(entries)
        if unwritten:
            messages += [self._unwritten[at][0] for at in unwritten if at < beyond]
            messages.sort(key=lambda message: message.position)
        return Batch(messages, beyond, lost, lost_bytes)

    def read_body(self, message: Message) -> bytes | None:
        noted = self._unwritten.get(message.position)
        if noted is not None:
            return noted[1]
        entry = self.entries.find(message.position)
        if entry is None:
            return None
        messages, _, _ = self._read_entries([entry])
        return messages[0].body if messages else None

    def has_written(self, message: Message) -> bool:
        position = message.position
        return position not in self._unwritten and self.entries.find(position) is not None

    def next_expiry(self, start: int, end: int) -> float | None:
        if self.entries.nothing_expires(start >> SHIFT):
            return None
        entries, _ = self.entries.between(start, end, 1, 1)
        first = min((at for at in self._unwritten if start <= at < end), default=None)
        if first is not None and (not entries or first < entries[0].position):
            return self._unwritten[first][0].expires_at
        if not entries:
            return None
        entry = entries[0]
        return self.entries.offsets.node_time(entry.position, entry.place, entry.expires_us)

    def expiries(self) -> Iterator[tuple[int, float | None]]:
        return self.entries.expiries()

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        positions, beyond, safe = self.entries.listed(start, end, count_max)
        unwritten = [at for at in self._unwritten if start <= at < beyond]
        if unwritten:
            positions = sorted(positions + unwritten)
            if len(positions) > count_max:
                beyond = positions[count_max]
                del positions[count_max:]
        return Listed(positions, beyond, safe)

    def _read_entries(self, entries: list[IndexEntry]) -> tuple[list[Message], int, int]:
        """The messages of these entries; how many were lost, and the octets of their bodies.

        Lost messages leave the index. Unreadable ones are hidden, and count as lost here.
        """
        self.read_count += len(entries)
        messages, lost, unreadable = self._reader.read(entries, self.redelivered_below)
        for entry in lost:
            self._remove_span(entry.position, entry.position + 1)
        if unreadable:
            self.entries.hidden.update([entry.position for entry in unreadable])
            lost += unreadable
        return messages, len(lost), sum(entry.size for entry in lost)

    # The end

    def close(self, delivered_below: int) -> None:
        self.delivered_below = delivered_below

    def delete(self) -> None:
        """End the queue, but keep its messages: until the disk knows, the queue may come back."""
        self._ended = True
        for position in list(self._unwritten):
            self._cancel(position)
        self._on_deleted(self)
