"""The further abilities that the index of a queue has when the queue is a stream.

Implements `core.backing.stream_store.StreamStore` with what every index has. Readers are all over a
stream, so a segment that was read from leaves memory again when many others were since then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import accumulate

from msgspec.structs import replace

from warren.core.backing.queue_store import Batch
from warren.core.backing.stream_store import Walked
from warren.core.messages.message import Message
from warren.persist.index.entry_reading import EntryReader
from warren.persist.index.index_entries import IndexEntries
from warren.persist.layout.format import RECORD, RECORD_BYTES, SEGMENT_ENTRIES, Damaged
from warren.persist.layout.segment import IndexEntry


class StreamReading(ABC):
    """The part of a `QueueIndex` that is for streams."""

    entries: IndexEntries
    _reader: EntryReader

    @abstractmethod
    def _read_entries(self, entries: list[IndexEntry]) -> tuple[list[Message], int, int]: ...

    def read_stored(self, start: int, end: int, count_max: int, bytes_max: int) -> Batch:
        """`read`, but only messages that are on disk already."""
        self.entries.cursor = start // SEGMENT_ENTRIES
        self.entries.keep_few(self.entries.cursor)
        entries, complete = self.entries.between(start, end, count_max, bytes_max)
        messages, lost, lost_bytes = self._read_entries(entries)
        with_index, with_index_bytes = self.entries.take_lost()
        beyond = end if complete else entries[-1].position + 1
        return Batch(messages, beyond, lost + with_index, lost_bytes + with_index_bytes)

    def end_of_sequence(self) -> int:
        if not self.entries.numbers:
            return 0
        last = self.entries.segments[self.entries.numbers[-1]]
        return last.start + last.written

    def walk(self, start: int, end: int, enough: int) -> Walked:
        """Walk through one segment at most. If all of it counts, its totals are enough, and it need
        not be in memory."""
        number, first = divmod(start, SEGMENT_ENTRIES)
        segment = self.entries.segments.get(number)
        base = start - first
        beyond = min(end, base + SEGMENT_ENTRIES)
        if segment is None:
            return Walked(min(end, self.entries.start_from(start)), 0, 0, 0)
        is_whole = start == base and beyond == base + SEGMENT_ENTRIES
        if is_whole and segment.columns is None and not segment.has_shared:
            octets = sum([octets for _, octets in segment.by_file.values()])
            if octets <= enough:
                return Walked(beyond, octets, segment.live, segment.live_bytes)
        columns = self.entries.columns(segment)
        last = beyond - base
        lengths = columns.lengths[first:last]
        octets = sum(lengths)
        if octets > enough:
            totals = accumulate(lengths)
            count, octets = next((n, one) for n, one in enumerate(totals, 1) if one >= enough)
            last = first + count
        places = columns.places[first:last]
        live = len(places) - places.count(0)
        return Walked(base + last, octets, live, sum(columns.sizes[first:last]))

    def arrived_at(self, position: int) -> float | None:
        entry = self.entries.find(position)
        if entry is None:
            return None
        head = self._reader.read_run([replace(entry, length=RECORD_BYTES)])
        if isinstance(head, (Damaged, OSError)) or len(head) < RECORD_BYTES:
            # The loss is reported when the message is read.
            return None
        arrived_us: int = RECORD.unpack_from(head)[-1]
        return arrived_us / 1e6
