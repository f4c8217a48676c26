"""The index of one queue: which of its messages are on disk, and where.

Implements `core.queue_store.QueueStore`. What a variable queue hands over is first only noted
(`_unwritten`); the journal asks for it when it writes its next batch. A message that is removed
before that never touches the disk, and its publisher has its confirm all the same.

From then on a message is an entry in a segment (`segment.py`), from which it goes when it is
removed. Removals are noted too (`_removed`), for the next batch. So the journal has everything,
and the files of the segments may be behind; `checkpoint.py` brings them up to date now and then.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from warren.core.backing.backing_queue import Listed
from warren.core.backing.queue_store import Batch, Recovered
from warren.core.log_line import log_event
from warren.core.messages.message import Envelope, Message
from warren.core.messages.settlement import PublishConfirms
from warren.core.ports import Commit
from warren.persist.filesystem import FileSystem
from warren.persist.format import (
    COUNT_MAX,
    ENQUEUE,
    MARK_SHIFT,
    OFFSET_MASK,
    PERSISTENT,
    PUBLISH,
    RECORD_BYTES,
    REMOVE,
    RETURNED,
    SEGMENT_ENTRIES,
    SHARED,
    SHARED_MESSAGE,
    TRANSIENT,
    Damaged,
    Reference,
    decode_envelope,
    decode_record,
    encode_envelope,
    encode_ranges,
    encode_reference,
    record_head,
)
from warren.persist.message_store import MessageStore
from warren.persist.segment import Columns, IndexEntry, Segment, merged, read_segment
from warren.persist.stream_reading import StreamReading

if TYPE_CHECKING:
    from warren.persist.journal import Journal, OpenBatch

log = logging.getLogger("warren.storage")

ENVELOPES_MAX = 4096
"""Envelopes kept for messages that are read; those of a queue are mostly alike."""

ENVELOPE_BYTES_MAX = 1024
"""Larger ones are not kept: their headers are seldom alike, and 4096 of them may be much."""

GAP_BYTES_MAX = 4096
"""What is read and thrown away between two records, rather than reading twice."""

READ_BYTES_MAX = 1 << 20
"""What is read from a file at once."""

SHIFT = 14
assert 1 << SHIFT == SEGMENT_ENTRIES
_MASK = SEGMENT_ENTRIES - 1
ENQUEUE_BYTES = RECORD_BYTES + 24
"""What another queue for a shared message costs: a reference, and its entry among the lengths."""

PIECE = 2048
"""Entries that go before others have their turn, where there are many: two milliseconds at most."""

MARK_BYTES_MIN = 1024
"""What a message counts for at least where batches are cut: small ones take their time, too."""

_PADDING = tuple(bytes(-size & 7) for size in range(8))


Noted: TypeAlias = tuple[Message, bytes, PublishConfirms | None, int, int, int]
"""A message, its body, who waits for it and as what; its mark (see the journal) and octets."""


class Surroundings:
    """What all queue indexes of a node share.

    `epoch_s` is the time on the wall when the clock of the node was at 0, `start` counts the starts
    of the node. `dirty` are the segments
    whose files are behind, `discarded` the files of segments that nobody needs any more; `counted`
    are the indexes that may have delivery counts or dead marks.
    `in_turns` goes through work that may take long, a step at once and the others in later turns.
    """

    def __init__(
        self,
        *,
        filesystem: FileSystem,
        persistent: MessageStore,
        transient: MessageStore,
        embed_below: int,
        epoch_s: float,
        start: int,
        page_out: Callable[[bytes], int],
        in_turns: Callable[[Iterator[None]], None],
        report_lost: Callable[[int, int, str, bytes], None],
    ) -> None:
        self.filesystem = filesystem
        self.persistent = persistent
        self.transient = transient
        self.embed_below = embed_below
        self.epoch_s = epoch_s
        self.start = start
        self.page_out = page_out
        self.in_turns = in_turns
        self.report_lost = report_lost
        self.dirty: dict[Segment, None] = {}
        self.discarded: dict[Path, None] = {}
        self.counted: dict[QueueIndex, None] = {}
        self._envelopes: dict[tuple[bytes, bool], Envelope] = {}

    def store_of(self, place: int) -> MessageStore:
        return self.transient if place >= TRANSIENT else self.persistent

    def envelope(self, data: bytes, persistent: bool) -> Envelope:
        envelope = self._envelopes.get((data, persistent))
        if envelope is None:
            envelope = decode_envelope(data, persistent)
            envelope.stored = (data, crc32(data))
            if len(data) > ENVELOPE_BYTES_MAX:
                return envelope
            if len(self._envelopes) >= ENVELOPES_MAX:
                self._envelopes.clear()
            self._envelopes[data, persistent] = envelope
        return envelope

    def wall_us(self, at: float | None) -> int:
        return 0 if at is None else int((at + self.epoch_s) * 1e6)

    def node_time(self, wall_us: int) -> float | None:
        return wall_us / 1e6 - self.epoch_s if wall_us else None


class QueueIndex(StreamReading):
    """The messages of one queue on disk. `directory` is where its segments are.

    `definition` is the commit of the queue's definition, None when that is durable.
    """

    def __init__(
        self,
        queue_id: int,
        directory: Path,
        *,
        durable: bool,
        first_position: int,
        journal: Journal,
        surroundings: Surroundings,
    ) -> None:
        self.queue_id = queue_id
        self.directory = directory
        self.durable = durable
        self.definition: Commit | None = None
        self.redelivered_below = 0
        self.undelivered_from: int | None = None
        self.read_count = 0
        self.written_count = 0
        self.delivery_counts: dict[int, int] = {}
        self.dead_marks: dict[int, int] = {}
        self.segments: dict[int, Segment] = {}
        self._numbers: list[int] = []
        self._first_position = first_position
        self._journal = journal
        self._surroundings = surroundings
        self._unwritten: dict[int, Noted] = {}
        self._removed: list[tuple[int, int]] = []
        # Positions whose delivery counts and dead marks are to be in the next batch.
        self._returned: dict[int, None] = {}
        self._noted = False
        self._cursor = 0
        # Whether messages are read in another order than that of their positions.
        self._any_order = False
        self._had_files = False
        self._lost_with_index = (0, 0)
        self._ended = False

    # What was there at start

    def recovered(self) -> Recovered:
        count = sum(segment.live for segment in self.segments.values())
        body_bytes = sum(segment.live_bytes for segment in self.segments.values())
        if not count:
            return Recovered(0, 0, self._first_position, self._first_position)
        expiring = any(segment.has_expiring for segment in self.segments.values())
        start = self._numbers[0] << SHIFT
        return Recovered(count, body_bytes, start, self._first_position, expiring)

    @property
    def count(self) -> int:
        live = sum([segment.live for segment in self.segments.values()])
        return live + len(self._unwritten)

    def first_position(self) -> int:
        return self._first_position

    def adopt_directory(self) -> None:
        """A directory of the queue was found at start, with segments or empty."""
        self._had_files = True

    def adopt(self, segment: Segment) -> None:
        """A segment found at start, which is discarded if nothing is left of it."""
        segment.index = self
        self.segments[segment.number] = segment
        insort(self._numbers, segment.number)
        if segment.file_end:
            # They may have outlived a crash.
            older = segment.older_paths(self.directory)
            self._surroundings.discarded.update(dict.fromkeys(older))
        if not segment.live:
            self._discard(segment)
        elif segment.dirty:
            self._surroundings.dirty[segment] = None

    def go_on_behind(self, start_shift: int) -> None:
        """Have new positions begin behind all there are.

        Those of a copy follow its leader's, and so may be ahead of the starts of this node.
        """
        if self._numbers:
            last_start = self._numbers[-1] << SHIFT >> start_shift
            self._first_position = max(self._first_position, (last_start + 1) << start_shift)

    # Writing

    def write(self, message: Message, confirms: PublishConfirms | None, publish_seq: int) -> None:
        body = message.body
        envelope = message.envelope
        journal = self._journal
        octets = RECORD_BYTES + len(body) + len(envelope.header)
        if (
            body is journal.last_body
            and envelope is journal.last_envelope
            and octets >= self._surroundings.embed_below
        ):
            # A further queue for the message noted last: a reference, in the same batch.
            octets = ENQUEUE_BYTES
        else:
            journal.last_body = body
            journal.last_envelope = envelope
            journal.last_mark = journal.noted_bytes
        self._unwritten[message.position] = (
            message,
            body,
            confirms,
            publish_seq,
            journal.last_mark,
            octets,
        )
        journal.noted_bytes += octets if octets > MARK_BYTES_MIN else MARK_BYTES_MIN
        journal.unwritten_bytes += octets
        self._noted_in_journal(confirms)

    def _noted_in_journal(self, confirms: PublishConfirms | None) -> None:
        """The journal is to ask for what was noted, the sooner if somebody waits for it."""
        journal = self._journal
        if not self._noted:
            self._noted = True
            journal.noted.append(self)
        if confirms is None:
            if not journal.closing:
                journal.close_later()
        elif not journal.urgent:
            journal.close_soon()
        if journal.unwritten_bytes >= journal.much_bytes:
            journal.much_noted()

    def write_many(
        self,
        messages: Sequence[Message],
        confirms: PublishConfirms | None,
        publish_seqs: Iterable[int],
    ) -> None:
        """No other queue has these messages too: what several queues get comes one by one."""
        journal = self._journal
        unwritten = self._unwritten
        mark = journal.noted_bytes
        total = 0
        for message, publish_seq in zip(messages, publish_seqs, strict=True):
            body = message.body
            octets = RECORD_BYTES + len(body) + len(message.envelope.header)
            unwritten[message.position] = (message, body, confirms, publish_seq, mark, octets)
            mark += octets if octets > MARK_BYTES_MIN else MARK_BYTES_MIN
            total += octets
        journal.last_body = journal.last_envelope = None
        journal.noted_bytes = mark
        journal.unwritten_bytes += total
        self._noted_in_journal(confirms)

    def first_mark(self) -> int | None:
        """The mark of the first message that is to be written."""
        for noted in self._unwritten.values():
            return noted[4]
        return None

    def emit(self, batch: OpenBatch, cut: int) -> bool:
        """Put what was written, up to a mark, into the journal's next batch. False: not all."""
        if not self._unwritten:
            self._noted = False
            return True
        embed_below = self._surroundings.embed_below
        epoch_s = self._surroundings.epoch_s
        queue_id = self.queue_id
        parts, lengths, waiting = batch.parts, batch.lengths, self._waiting_in(batch)
        base = batch.base
        now_us = batch.now_us
        segment: Segment | None = None
        number = -1
        count = octets = 0
        emitted = taken = 0
        for position, noted in self._unwritten.items():
            message, body, confirms, publish_seq, mark, noted_octets = noted
            if mark >= cut:
                break
            emitted += 1
            taken += noted_octets
            envelope = message.envelope
            stored = envelope.stored
            if stored is None:
                data = encode_envelope(envelope)
                stored = envelope.stored = (data, crc32(data))
            data, data_crc = stored
            expires_at = message.expires_at
            expires_us = 0 if expires_at is None else int((expires_at + epoch_s) * 1e6)
            size = len(body)
            if len(data) + size < embed_below:
                head = record_head(
                    PUBLISH,
                    PERSISTENT,
                    queue_id,
                    position,
                    expires_us,
                    now_us,
                    data,
                    data_crc,
                    body,
                )
                length = RECORD_BYTES + len(data) + size
                place = base + batch.offset
                parts += (head, data, body, _PADDING[length & 7])
                lengths.append(length)
                batch.offset += length + 7 & ~7
                count += 1
                octets += length
            else:
                place, length = self._emit_shared(batch, envelope, body, position, expires_us)
            if position >> SHIFT != number:
                number = position >> SHIFT
                segment = self._segment(number)
                self._touch(segment)
                batch.file.segments.add(segment)
            assert segment is not None and segment.columns is not None
            columns = segment.columns
            relative = position & _MASK
            if relative == len(columns.places):
                columns.places.append(place)
                columns.expires.append(expires_us)
                columns.lengths.append(length)
                columns.sizes.append(size)
            else:
                columns.set(relative, place, expires_us, length, size)
            segment.written = relative + 1
            segment.live += 1
            segment.live_bytes += size
            if confirms is not None:
                waiting.append((confirms, publish_seq))
        self.written_count += emitted
        self._journal.messages_written += emitted
        self._journal.unwritten_bytes -= taken
        if count:
            self._surroundings.persistent.keep(batch.file, count, octets)
        if emitted == len(self._unwritten):
            self._unwritten.clear()
            self._noted = False
            return True
        for position in list(self._unwritten)[:emitted]:
            del self._unwritten[position]
        return False

    def _waiting_in(self, batch: OpenBatch) -> list[tuple[PublishConfirms, int]]:
        """Where to note who waits for a message: a message is never safer than its queue."""
        definition = self.definition
        if definition is None:
            return batch.waiting
        if definition.done:
            self.definition = None
            return batch.waiting
        return batch.waiting_for(definition)

    def _emit_shared(
        self, batch: OpenBatch, envelope: Envelope, body: bytes, position: int, expires_us: int
    ) -> tuple[int, int]:
        """A reference, after the shared record if this is the first queue to refer to it."""
        assert envelope.stored is not None
        data, data_crc = envelope.stored
        key = (id(envelope), id(body))
        shared = batch.shared.get(key)
        if shared is None:
            head = record_head(
                SHARED_MESSAGE, PERSISTENT, 0, 0, 0, batch.now_us, data, data_crc, body
            )
            shared = batch.add((head, data, body), RECORD_BYTES + len(data) + len(body))
            batch.shared[key] = shared
        place, length = shared
        payload = encode_reference(Reference(place, length, len(body)))
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
        self._surroundings.persistent.refer(place, length)
        return place | SHARED, length

    def emit_removed(self, batch: OpenBatch) -> None:
        """Put what was removed or returned into the journal's next batch."""
        if self._returned:
            self._emit_returned(batch)
        if not self._removed:
            return
        ranges = merged(self._removed)
        self._removed = []
        payload = encode_ranges(ranges)
        head = record_head(REMOVE, 0, self.queue_id, len(ranges), 0, batch.now_us, b"", 0, payload)
        batch.add((head, payload), RECORD_BYTES + len(payload))

    def _emit_returned(self, batch: OpenBatch) -> None:
        pairs = self.returns(self._returned)
        self._returned.clear()
        if pairs:
            payload = encode_ranges(pairs)
            head = record_head(
                RETURNED, 0, self.queue_id, len(pairs), 0, batch.now_us, b"", 0, payload
            )
            batch.add((head, payload), RECORD_BYTES + len(payload))

    def returns(self, positions: Iterable[int]) -> list[tuple[int, int]]:
        """What is to be kept of these messages: positions, each with its count and dead mark."""
        counts, marks = self.delivery_counts, self.dead_marks
        return [
            (at, counts.get(at, 0) | marks.get(at, 0) << MARK_SHIFT)
            for at in positions
            if at in counts or at in marks
        ]

    @property
    def is_counted(self) -> bool:
        """Whether it has any delivery counts or dead marks."""
        return bool(self.delivery_counts or self.dead_marks)

    def counts_changed(self, positions: Iterable[int]) -> None:
        self._returned.update(dict.fromkeys(positions))
        self._surroundings.counted[self] = None
        self._note_later()

    def adopt_returns(self, found: dict[int, int]) -> None:
        """What was kept of messages, found at start; of those that are gone it is forgotten."""
        for at, value in found.items():
            if self._find(at) is None:
                continue
            count, mark = value & COUNT_MAX, value >> MARK_SHIFT
            if count:
                self.delivery_counts[at] = count
            if mark:
                self.dead_marks[at] = mark
        if self.is_counted:
            self._surroundings.counted[self] = None

    def page(self, messages: Sequence[Message]) -> None:
        surroundings = self._surroundings
        parts: list[bytes] = []
        written: list[tuple[Message, int, int, int]] = []
        offset = 0
        for message in messages:
            if message.position in self._unwritten or self._find(message.position) is not None:
                continue
            envelope = message.envelope
            if envelope.stored is None:
                data = encode_envelope(envelope)
                envelope.stored = (data, crc32(data))
            data, data_crc = envelope.stored
            expires_us = surroundings.wall_us(message.expires_at)
            flags = PERSISTENT if envelope.persistent else 0
            head = record_head(
                PUBLISH,
                flags,
                self.queue_id,
                message.position,
                expires_us,
                0,
                data,
                data_crc,
                message.body,
            )
            length = len(head) + len(data) + len(message.body)
            parts += (head, data, message.body, _PADDING[length & 7])
            written.append((message, offset, length, expires_us))
            offset += length + 7 & ~7
        if not written:
            return
        self.written_count += len(written)
        self._journal.messages_written += len(written)
        place = surroundings.page_out(b"".join(parts))
        store = surroundings.transient
        file = store.files[place >> 32]
        for message, offset, length, expires_us in written:
            segment = self._segment(message.position >> SHIFT)
            columns = self._columns(segment)
            relative = message.position & _MASK
            columns.set(relative, place + offset, expires_us, length, len(message.body))
            segment.paged.append(relative)
            segment.live += 1
            segment.live_bytes += len(message.body)
            file.segments.add(segment)
            self._touch(segment)
            store.keep(file, 1, length)

    # Removing

    def remove(self, messages: Iterable[Message]) -> None:
        positions = [message.position for message in messages]
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
        self._surroundings.in_turns(self._remove_pieces(start, end))

    def _remove_pieces(self, start: int, end: int) -> Iterator[None]:
        at = bisect_left(self._numbers, start >> SHIFT)
        numbers = self._numbers[at : bisect_left(self._numbers, (end - 1 >> SHIFT) + 1)]
        for piece_start, piece_end in self._pieces(numbers):
            if self._ended:
                return
            first, beyond = max(start, piece_start), min(end, piece_end)
            if first < beyond:
                self._remove_span(first, beyond)
                if beyond < end and piece_end - piece_start == PIECE:
                    yield
        # What was lost on the way was to be removed.
        self._lost_with_index = (0, 0)

    def _pieces(self, numbers: list[int]) -> Iterator[tuple[int, int]]:
        """What can be removed at once: a segment that is not in memory goes at a stroke."""
        for number in numbers:
            base = number << SHIFT
            segment = self.segments.get(number)
            if segment is None or (segment.columns is None and not segment.has_shared):
                yield base, base + SEGMENT_ENTRIES
                continue
            for at in range(0, len(self._columns(segment).places), PIECE):
                yield base + at, base + at + PIECE

    def _cancel(self, position: int) -> bool:
        """Forget a message that is not in the journal yet."""
        noted = self._unwritten.pop(position, None)
        if noted is None:
            return False
        _, _, confirms, publish_seq, _, octets = noted
        self._journal.cancelled(octets, confirms, publish_seq)
        return True

    def _remove_span(self, start: int, end: int) -> None:
        """Remove the entries in [start, end)."""
        written = False
        at = bisect_left(self._numbers, start >> SHIFT)
        for number in self._numbers[at : bisect_left(self._numbers, (end - 1 >> SHIFT) + 1)]:
            segment = self.segments[number]
            first = max(0, start - segment.start)
            beyond = min(SEGMENT_ENTRIES, end - segment.start)
            if segment.columns is None and first == 0 and beyond == SEGMENT_ENTRIES:
                written |= self._drop_unloaded(segment)
            else:
                written |= self._clear(segment, first, beyond)
        if written:
            self._note_removed(start, end)

    def _note_removed(self, start: int, end: int) -> None:
        removed = self._removed
        if removed and removed[-1][1] == start:
            removed[-1] = (removed[-1][0], end)
        else:
            removed.append((start, end))
        self._note_later()

    def _note_later(self) -> None:
        """The journal is to ask for what nobody waits for."""
        journal = self._journal
        if not self._noted:
            self._noted = True
            journal.noted.append(self)
        if not journal.closing:
            journal.close_later()

    def _clear(self, segment: Segment, start: int, end: int) -> bool:
        """Take entries out of a segment. Whether any was of a record in the journal."""
        columns = self._columns(segment)
        places = columns.places[start:end]
        if not places:
            return False
        count = len(places)
        first, last = places[0], places[-1]
        if count == 1:
            if not first:
                return False
            columns.places[start] = 0
            size = columns.sizes[start]
            self._surroundings.store_of(first).release(first, columns.lengths[start])
        elif self._alike(places, first, last):
            end = start + count
            columns.places[start:end] = array("Q", bytes(8 * count))
            size = sum(columns.sizes[start:end])
            store = self._surroundings.persistent
            file = store.files.get(first >> 32)
            if file is not None:
                store.drop(file, count, sum(columns.lengths[start:end]))
        else:
            return self._clear_each(segment, columns, start, start + count)
        segment.live -= count
        segment.live_bytes -= size
        written = first < TRANSIENT
        self._cleared(segment, start, start + count)
        return written

    def _alike(self, places: array[int], first: int, last: int) -> bool:
        """Whether these are records of this queue alone, all in one file of the journal.

        Each costs a look; only what is entered in ascending order is recognised.
        """
        if first >> 32 != last >> 32 or first >= TRANSIENT or 0 in places:
            return False
        high = first >> 32
        return all([place >> 32 == high and not place & 1 for place in places])

    def _clear_each(self, segment: Segment, columns: Columns, start: int, end: int) -> bool:
        written = cleared = False
        for at in list(columns.live(start, end)):
            place = columns.places[at]
            columns.places[at] = 0
            segment.live -= 1
            segment.live_bytes -= columns.sizes[at]
            self._surroundings.store_of(place).release(place, columns.lengths[at])
            written |= place < TRANSIENT
            cleared = True
        if cleared:
            self._cleared(segment, start, end)
        return written

    def _cleared(self, segment: Segment, start: int, end: int) -> None:
        if not segment.live and segment.number != self._numbers[-1]:
            self._discard(segment)
            return
        removed = segment.removed
        if removed and removed[-1][1] == start:
            removed[-1] = (removed[-1][0], end)
        else:
            removed.append((start, end))
        self._touch(segment)

    def _drop_unloaded(self, segment: Segment) -> bool:
        """Remove all entries of a segment that is not in memory."""
        if segment.has_shared or segment.number == self._numbers[-1]:
            return self._clear(segment, 0, SEGMENT_ENTRIES)
        written = False
        for file_id, (count, octets) in segment.by_file.items():
            store = self._surroundings.store_of(file_id << 32)
            file = store.files.get(file_id)
            if file is not None:
                store.drop(file, count, octets)
            written |= file_id << 32 < TRANSIENT
        segment.live = segment.live_bytes = 0
        self._discard(segment)
        return written

    def _discard(self, segment: Segment) -> None:
        """Nothing is left of a segment: it goes, and its file once that is safe."""
        del self.segments[segment.number]
        del self._numbers[bisect_left(self._numbers, segment.number)]
        surroundings = self._surroundings
        surroundings.dirty.pop(segment, None)
        segment.dirty = False
        self._had_files |= segment.file_end > 0 or segment.generation > 0
        if segment.file_end:
            surroundings.discarded[segment.path(self.directory)] = None
        surroundings.discarded.update(dict.fromkeys(segment.older_paths(self.directory)))

    # Reading

    def read(self, start: int, end: int, count_max: int, bytes_max: int) -> Batch:
        self._cursor = start >> SHIFT
        batch = self._read(start, end, count_max, bytes_max)
        lost, lost_bytes = self._lost_with_index
        self._lost_with_index = (0, 0)
        return batch._replace(lost=batch.lost + lost, lost_bytes=batch.lost_bytes + lost_bytes)

    def _read(self, start: int, end: int, count_max: int, bytes_max: int) -> Batch:
        entries, complete = self._entries(start, end, count_max, bytes_max)
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
        entry = self._find(message.position)
        if entry is None:
            return None
        messages, _, _ = self._read_entries([entry])
        return messages[0].body if messages else None

    def has_written(self, message: Message) -> bool:
        position = message.position
        return position not in self._unwritten and self._find(position) is not None

    def next_expiry(self, start: int, end: int) -> float | None:
        if self._nothing_expires(start >> SHIFT):
            return None
        entries, _ = self._entries(start, end, 1, 1)
        first = min((at for at in self._unwritten if start <= at < end), default=None)
        if first is not None and (not entries or first < entries[0].position):
            return self._unwritten[first][0].expires_at
        return self._surroundings.node_time(entries[0].expires_us) if entries else None

    def expiries(self) -> Iterator[tuple[int, float | None]]:
        self._any_order = True
        node_time = self._surroundings.node_time
        for segment in list(self.segments.values()):
            columns = self._columns(segment)
            base = segment.start
            for at in columns.live(0, SEGMENT_ENTRIES):
                yield base + at, node_time(columns.expires[at])

    def _nothing_expires(self, number: int) -> bool:
        """Whether that can be said of the segment, without bringing it to memory."""
        segment = self.segments.get(number)
        return segment is not None and segment.columns is None and not segment.has_expiring

    def list_positions(self, start: int, end: int, count_max: int) -> Listed:
        positions, beyond, safe = self._listed(start, end, count_max)
        unwritten = [at for at in self._unwritten if start <= at < beyond]
        if unwritten:
            positions = sorted(positions + unwritten)
            if len(positions) > count_max:
                beyond = positions[count_max]
                del positions[count_max:]
        return Listed(positions, beyond, safe)

    def _listed(self, start: int, end: int, count_max: int) -> Listed:
        positions: list[int] = []
        safe = self.durable
        at = bisect_left(self._numbers, start >> SHIFT)
        for number in self._numbers[at:]:
            segment = self.segments[number]
            base = segment.start
            if base >= end:
                break
            columns = self._columns(segment)
            places = columns.places
            for relative in columns.live(max(0, start - base), end - base):
                if len(positions) >= count_max:
                    return Listed(positions, base + relative, safe)
                positions.append(base + relative)
                safe = safe and places[relative] < TRANSIENT
        return Listed(positions, end, safe)

    def _entries(
        self, start: int, end: int, count_max: int, bytes_max: int
    ) -> tuple[list[IndexEntry], bool]:
        """The first entries in [start, end), and whether these are all."""
        entries: list[IndexEntry] = []
        octets = 0
        at = bisect_left(self._numbers, start >> SHIFT)
        for number in self._numbers[at:]:
            segment = self.segments[number]
            base = segment.start
            if base >= end:
                break
            columns = self._columns(segment)
            lengths, places, expires, sizes = (
                columns.lengths,
                columns.places,
                columns.expires,
                columns.sizes,
            )
            for relative in columns.live(max(0, start - base), end - base):
                length = lengths[relative]
                octets += length
                if entries and octets > bytes_max:
                    return entries, False
                entries.append(
                    IndexEntry(
                        base + relative,
                        places[relative],
                        expires[relative],
                        length,
                        sizes[relative],
                    )
                )
                if len(entries) >= count_max:
                    return entries, False
        return entries, True

    def _find(self, position: int) -> IndexEntry | None:
        segment = self.segments.get(position >> SHIFT)
        if segment is None:
            return None
        columns = self._columns(segment)
        at = position & _MASK
        if at >= len(columns.places) or not columns.places[at]:
            return None
        return IndexEntry(
            position,
            columns.places[at],
            columns.expires[at],
            columns.lengths[at],
            columns.sizes[at],
        )

    def _read_entries(self, entries: list[IndexEntry]) -> tuple[list[Message], int, int]:
        """The messages of these entries; how many were lost, and the octets of their bodies.

        What is lost leaves the index.
        """
        self.read_count += len(entries)
        self._journal.messages_read += len(entries)
        messages: list[Message] = []
        lost: list[IndexEntry] = []
        for run in self._runs(entries):
            data = self._read_run(run)
            base = run[0].place & OFFSET_MASK
            for entry in run:
                try:
                    if isinstance(data, Damaged):
                        raise data
                    at = (entry.place & OFFSET_MASK) - base
                    messages.append(self._message(entry, data, at))
                except Damaged as damage:
                    octets = b"" if isinstance(data, Damaged) else data[at : at + entry.length]
                    self._surroundings.report_lost(
                        self.queue_id, entry.position, str(damage), octets
                    )
                    lost.append(entry)
        for entry in lost:
            self._remove_span(entry.position, entry.position + 1)
        return messages, len(lost), sum(entry.size for entry in lost)

    def _read_run(self, run: list[IndexEntry]) -> bytes | Damaged:
        first, last = run[0], run[-1]
        start = first.place & OFFSET_MASK
        end = (last.place & OFFSET_MASK) + last.length
        try:
            return self._surroundings.store_of(first.place).read(first.place, end - start)
        except Damaged as damage:
            return damage
        except OSError as error:
            return Damaged(f"cannot be read: {error}")

    def _runs(self, entries: list[IndexEntry]) -> Iterator[list[IndexEntry]]:
        """Entries that are read at once, because they stand together."""
        run: list[IndexEntry] = []
        start = end = file_id = 0
        contiguous = False
        for entry in entries:
            place = entry.place
            offset = place & OFFSET_MASK
            if run and not (
                contiguous
                and place >> 32 == file_id
                and end <= offset <= end + GAP_BYTES_MAX
                and offset + entry.length - start <= READ_BYTES_MAX
            ):
                yield run
                run = []
            if not run:
                start = offset
                file_id = place >> 32
                contiguous = self._surroundings.store_of(place).contiguous(file_id)
            end = offset + entry.length
            run.append(entry)
        if run:
            yield run

    def _message(self, entry: IndexEntry, data: bytes, at: int) -> Message:
        """Raises `Damaged`."""
        record = decode_record(data, at, entry.length)
        if record.type == PUBLISH:
            if record.queue != self.queue_id or record.position != entry.position:
                raise Damaged(
                    f"message {record.position} of queue {record.queue:x} where"
                    f" {entry.position} of {self.queue_id:x} should be"
                )
        elif record.type != SHARED_MESSAGE:
            raise Damaged(f"a record of type {record.type} where a message should be")
        envelope = self._surroundings.envelope(record.envelope, bool(record.flags & PERSISTENT))
        expires_at = self._surroundings.node_time(entry.expires_us)
        message = Message(envelope, record.payload, entry.position, expires_at)
        message.redelivered = entry.position < self.redelivered_below
        return message

    # Segments

    @property
    def has_files(self) -> bool:
        """Whether there may be files of segments."""
        return self._had_files

    def has(self, segment: Segment) -> bool:
        """Whether the segment is still one of the queue's."""
        return self.segments.get(segment.number) is segment

    def lengths_in(self, segment: Segment, file_id: int) -> dict[int, int]:
        """The offsets and lengths of the segment's records in a file of the log."""
        if not self.has(segment):
            return {}
        if segment.columns is None and not segment.has_shared and file_id not in segment.by_file:
            return {}
        was_unloaded = segment.columns is None
        columns = self._columns(segment)
        found = {
            place & OFFSET_MASK: length
            for place, length in zip(columns.places, columns.lengths, strict=True)
            if place >> 32 == file_id
        }
        if was_unloaded and not segment.dirty:
            segment.unload()
        return found

    def _segment(self, number: int) -> Segment:
        """The segment with this number, made if there is none, and in memory."""
        segment = self.segments.get(number)
        if segment is None:
            if self._numbers and number > self._numbers[-1]:
                tail = self.segments[self._numbers[-1]]
                if not tail.live:
                    self._discard(tail)
            segment = self.segments[number] = Segment(self.queue_id, number)
            segment.index = self
            while segment.path(self.directory) in self._surroundings.discarded:
                # A file of that name is still to be removed.
                segment.generation += 1
            insort(self._numbers, number)
        elif segment.columns is None:
            self._load(segment)
        return segment

    def _touch(self, segment: Segment) -> None:
        if not segment.dirty:
            segment.dirty = True
            self._surroundings.dirty[segment] = None

    def _columns(self, segment: Segment) -> Columns:
        if segment.columns is None:
            self._load(segment)
        assert segment.columns is not None
        return segment.columns

    def _load(self, segment: Segment) -> None:
        """Bring the entries of a segment back to memory; what is lost is reported."""
        path = segment.path(self.directory)
        columns = Columns()
        reason = "entries of a damaged index"
        try:
            file = self._surroundings.filesystem.open(path, writable=False)
            try:
                data = file.read(0, segment.file_end)
            finally:
                file.close()
            columns = read_segment(data, start_number=self._surroundings.start).columns
        except (Damaged, OSError) as error:
            reason = f"{path}: {error}"
        segment.columns = columns
        usage, live, live_bytes = segment.by_file, segment.live, segment.live_bytes
        segment.sum_up()
        self._keep_few(segment.number)
        if segment.live != live:
            log_event(
                log,
                logging.ERROR,
                "index_damaged",
                queue=f"{self.queue_id:016x}",
                segment=path.name,
                lost=live - segment.live,
                reason=reason,
            )
            self._settle_usage(usage, segment.by_file)
            segment.begin_anew()
            self._touch(segment)
            self.lost_with_index(live - segment.live, live_bytes - segment.live_bytes, reason)

    def _settle_usage(
        self, before: dict[int, tuple[int, int]], now: dict[int, tuple[int, int]]
    ) -> None:
        """Entries were lost with a segment file: the records they led to are garbage."""
        for file_id, (count, octets) in before.items():
            store = self._surroundings.store_of(file_id << 32)
            file = store.files.get(file_id)
            left, left_octets = now.get(file_id, (0, 0))
            if file is not None:
                store.drop(file, count - left, octets - left_octets)

    def lost_with_index(self, count: int, body_bytes: int, reason: str) -> None:
        """Report messages whose positions nobody knows any more."""
        for _ in range(count):
            self._surroundings.report_lost(self.queue_id, -1, reason, b"")
        known, known_bytes = self._lost_with_index
        self._lost_with_index = (known + count, known_bytes + body_bytes)

    def unload_cold(self, segment: Segment) -> None:
        """Take a flushed segment out of memory unless messages are read from or added to it.

        Behind where they are read there may be any number, each with a message nobody settles.
        """
        if (
            not segment.dirty
            and segment.columns is not None
            and self.has(segment)
            and not self._any_order
            and abs(segment.number - self._cursor) > 1
            and segment.number < self._numbers[-1]
        ):
            segment.unload()

    # The end

    def close(self, undelivered_from: int) -> None:
        self.undelivered_from = undelivered_from

    def delete(self) -> None:
        """Until the disk knows, the queue may come back, and its messages are kept for it."""
        self._ended = True
        for position in list(self._unwritten):
            self._cancel(position)
        self._journal.deleted(self)

    def release(self) -> Iterator[None]:
        """The queue is gone from the definitions on disk: its messages are needed no more.

        It has none from now on; going through what is returned gives their places back.
        """
        segments = list(self.segments.values())
        self.segments.clear()
        self._numbers.clear()
        for segment in segments:
            self._surroundings.dirty.pop(segment, None)
            segment.dirty = False
            self._had_files |= segment.file_end > 0 or segment.generation > 0
        return self._release(segments)

    def _release(self, segments: list[Segment]) -> Iterator[None]:
        for segment in segments:
            if segment.columns is None and not segment.has_shared:
                self._settle_usage(segment.by_file, {})
                continue
            columns = self._columns(segment)
            for start in range(0, len(columns.places), PIECE):
                if start:
                    yield
                for at in columns.live(start, start + PIECE):
                    place = columns.places[at]
                    self._surroundings.store_of(place).release(place, columns.lengths[at])
