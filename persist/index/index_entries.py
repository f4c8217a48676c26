"""The entries of one queue's index: where each of its messages is on disk.

Entries stand in segments of 16384 positions (`segment.py`). A segment that is not used leaves
memory, and comes back when one of its entries is asked for. An entry that is removed gives its
place in the log back; a segment goes with its last entry. Segments whose files are behind are noted
in the context of the store, where `checkpoint.py` finds them.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from warren.core.backing.backing_queue import Listed
from warren.core.log_line import log_event
from warren.persist.index.index_context import IndexContext
from warren.persist.index.wall_offsets import WallOffsets
from warren.persist.layout.format import OFFSET_MASK, SEGMENT_ENTRIES, TRANSIENT, Damaged
from warren.persist.layout.segment import Columns, IndexEntry, IndexRow, Segment, read_segment

log = logging.getLogger("warren.storage")

SHIFT = 14
assert 1 << SHIFT == SEGMENT_ENTRIES
SEGMENT_MASK = SEGMENT_ENTRIES - 1
"""The number of a segment is a position shifted; the rest is the relative position in it."""

PIECE = 2048
"""So many entries are removed before others have their turn: two milliseconds at most."""

NOWHERE = 1 << 62
"""A position behind every other one."""

LOADED_MAX = 32
"""Segments that were brought back to memory, of some 400 KB each, and are kept there for readers of
a stream, or for those that look through a queue."""


class IndexEntries:
    """The segments of one queue by their numbers, in `directory`.

    `numbers` are those of `segments`, ascending. `end_at_start` is the position behind the last
    entry that was found at start, whether it was live or not. `hidden` are the positions of
    messages that could not be read: readers pass over them, but they stay on the disk, and the next
    start finds them unless their range is removed. `cursor` is the segment that is read from, and
    `any_order` says that messages are read in another order than that of their positions: both
    decide which segments stay in memory.
    """

    def __init__(
        self, queue_id: int, directory: Path, *, durable: bool, context: IndexContext
    ) -> None:
        self.queue_id = queue_id
        self.directory = directory
        self.durable = durable
        self.segments: dict[int, Segment] = {}
        self.numbers: list[int] = []
        self.end_at_start = 0
        self.hidden: set[int] = set()
        self.cursor = 0
        self.any_order = False
        self.offsets = WallOffsets(context)
        self._context = context
        self._had_files = False
        # Messages lost with damaged segments, and their octets, that no reader was told of yet.
        self._lost = (0, 0)
        # Segments that readers brought back to memory, the one used last at the end.
        self._loaded: dict[int, None] = {}

    @property
    def live(self) -> int:
        return sum([segment.live for segment in self.segments.values()])

    @property
    def live_bytes(self) -> int:
        return sum([segment.live_bytes for segment in self.segments.values()])

    @property
    def transient(self) -> tuple[int, int]:
        """The number of messages that are not persistent, and their octets."""
        segments = self.segments.values()
        count = sum([segment.transient for segment in segments])
        return count, sum([segment.transient_bytes for segment in segments])

    @property
    def has_expiring(self) -> bool:
        return any(segment.has_expiring for segment in self.segments.values())

    @property
    def start(self) -> int:
        """The position with which the first segment begins, of which there is one at least."""
        return self.numbers[0] << SHIFT

    def start_from(self, position: int) -> int:
        """Return the position with which the first segment begins that does so at `position` or
        later; `NOWHERE` if there is none."""
        at = bisect_left(self.numbers, (position + SEGMENT_MASK) >> SHIFT)
        return self.numbers[at] << SHIFT if at < len(self.numbers) else NOWHERE

    # Recovery

    def adopt_directory(self) -> None:
        """Note that a directory of the queue was found at start, with segments or empty."""
        self._had_files = True

    def adopt(self, segment: Segment) -> None:
        """Take in a segment that was found at start; they come in ascending order.

        Of those of which nothing is left only the last one stays: it says which positions were
        used.
        """
        segment.owner = self
        self._discard_empty_tail()
        self.segments[segment.number] = segment
        self.numbers.append(segment.number)
        self.end_at_start = max(self.end_at_start, segment.start + segment.written)
        if segment.file_end:
            # Files of older generations may have outlived a crash.
            older = segment.older_paths(self.directory)
            self._context.discarded.update(dict.fromkeys(older))
        if segment.dirty:
            self._context.dirty[segment] = None
        elif not segment.live and segment.columns is not None:
            segment.unload()

    # Finding

    def find(self, position: int) -> IndexEntry | None:
        segment = self.segments.get(position >> SHIFT)
        if segment is None:
            return None
        columns = self.columns(segment)
        at = position & SEGMENT_MASK
        if at >= len(columns.places) or not columns.places[at] or position in self.hidden:
            return None
        return IndexEntry(
            position,
            columns.places[at],
            columns.expires[at],
            columns.lengths[at],
            columns.sizes[at],
        )

    def between(
        self, start: int, end: int, count_max: int, bytes_max: int
    ) -> tuple[list[IndexEntry], bool]:
        """The first entries in [start, end), and whether these are all."""
        entries: list[IndexEntry] = []
        octets = 0
        hidden = self.hidden
        at = bisect_left(self.numbers, start >> SHIFT)
        for number in self.numbers[at:]:
            segment = self.segments[number]
            base = segment.start
            if base >= end:
                break
            columns = self.columns(segment)
            lengths, places, expires, sizes = (
                columns.lengths,
                columns.places,
                columns.expires,
                columns.sizes,
            )
            for relative in columns.live(max(0, start - base), end - base):
                if hidden and base + relative in hidden:
                    continue
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

    def listed(self, start: int, end: int, count_max: int) -> Listed:
        positions: list[int] = []
        safe = self.durable
        at = bisect_left(self.numbers, start >> SHIFT)
        for number in self.numbers[at:]:
            segment = self.segments[number]
            base = segment.start
            if base >= end:
                break
            columns = self.columns(segment)
            places = columns.places
            for relative in columns.live(max(0, start - base), end - base):
                if base + relative in self.hidden:
                    continue
                if len(positions) >= count_max:
                    return Listed(positions, base + relative, safe)
                positions.append(base + relative)
                safe = safe and places[relative] < TRANSIENT
        return Listed(positions, end, safe)

    def expiries(self) -> Iterator[tuple[int, float | None]]:
        self.any_order = True
        node_time = self.offsets.node_time
        for segment in list(self.segments.values()):
            columns = self.columns(segment)
            base = segment.start
            for at in columns.live(0, SEGMENT_ENTRIES):
                position = base + at
                yield position, node_time(position, columns.places[at], columns.expires[at])

    def nothing_expires(self, number: int) -> bool:
        """Whether nothing in the segment expires, if that is known without bringing it to
        memory."""
        segment = self.segments.get(number)
        return segment is not None and segment.columns is None and not segment.has_expiring

    # Adding

    def make(self, number: int) -> Segment:
        """The segment with this number, made if there is none, and in memory."""
        segment = self.segments.get(number)
        if segment is None:
            if self.numbers and number > self.numbers[-1]:
                self._discard_empty_tail()
            segment = self.segments[number] = Segment(self.queue_id, number)
            segment.owner = self
            while segment.path(self.directory) in self._context.discarded:
                # A file of that name is still to be removed.
                segment.generation += 1
            insort(self.numbers, number)
        elif segment.columns is None:
            self._load(segment)
        return segment

    def add(self, rows: list[IndexRow]) -> list[Segment]:
        """Make an entry of each row. Returns the segments in which they are."""
        positions = [row[0] for row in rows]
        if not positions:
            return []
        number = min(positions) >> SHIFT
        if max(positions) >> SHIFT == number:
            return [self._add_to(number, rows)]
        parted = groupby(rows, lambda row: row[0] >> SHIFT)
        return [self._add_to(number, list(some)) for number, some in parted]

    def _add_to(self, number: int, rows: list[IndexRow]) -> Segment:
        segment = self.make(number)
        self.touch(segment)
        assert segment.columns is not None
        segment.columns.put(rows, segment.start)
        segment.written = rows[-1][0] - segment.start + 1
        segment.live += len(rows)
        segment.live_bytes += sum([row[-1] for row in rows])
        return segment

    def touch(self, segment: Segment) -> None:
        if not segment.dirty:
            segment.dirty = True
            self._context.dirty[segment] = None

    # Removing

    def remove(self, start: int, end: int) -> bool:
        """Remove the entries in [start, end). Return whether one of them is in the journal."""
        written = False
        at = bisect_left(self.numbers, start >> SHIFT)
        for number in self.numbers[at : bisect_left(self.numbers, (end - 1 >> SHIFT) + 1)]:
            segment = self.segments[number]
            first = max(0, start - segment.start)
            beyond = min(SEGMENT_ENTRIES, end - segment.start)
            if segment.columns is None and first == 0 and beyond == SEGMENT_ENTRIES:
                written |= self._drop_unloaded(segment)
            else:
                written |= self._clear(segment, first, beyond)
        return written

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges in [start, end) to remove in one turn each, some of which may reach beyond it.

        A segment that is not in memory is one range: removing all of it reads nothing.
        """
        at = bisect_left(self.numbers, start >> SHIFT)
        for number in self.numbers[at : bisect_left(self.numbers, (end - 1 >> SHIFT) + 1)]:
            base = number << SHIFT
            segment = self.segments.get(number)
            if segment is None or (segment.columns is None and not segment.has_shared):
                yield base, base + SEGMENT_ENTRIES
                continue
            for at in range(0, len(self.columns(segment).places), PIECE):
                yield base + at, base + at + PIECE

    def _clear(self, segment: Segment, start: int, end: int) -> bool:
        """Take entries out of a segment. Return whether any was of a record in the journal."""
        columns = self.columns(segment)
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
            if first >= TRANSIENT:
                segment.transient -= 1
                segment.transient_bytes -= size
            self._context.store_of(first).release(first, columns.lengths[start])
        elif self._alike(places, first, last):
            end = start + count
            columns.places[start:end] = array("Q", bytes(8 * count))
            size = sum(columns.sizes[start:end])
            store = self._context.persistent
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
            if place >= TRANSIENT:
                segment.transient -= 1
                segment.transient_bytes -= columns.sizes[at]
            self._context.store_of(place).release(place, columns.lengths[at])
            written |= place < TRANSIENT
            cleared = True
        if cleared:
            self._cleared(segment, start, end)
        return written

    def _cleared(self, segment: Segment, start: int, end: int) -> None:
        if not segment.live and segment.number != self.numbers[-1]:
            self._discard(segment)
            return
        segment.note_removed(start, end)
        self.touch(segment)

    def _drop_unloaded(self, segment: Segment) -> bool:
        """Remove all entries of a segment that is not in memory."""
        if segment.has_shared or segment.number == self.numbers[-1]:
            return self._clear(segment, 0, SEGMENT_ENTRIES)
        written = False
        for file_id, (count, octets) in segment.by_file.items():
            store = self._context.store_of(file_id << 32)
            file = store.files.get(file_id)
            if file is not None:
                store.drop(file, count, octets)
            written |= file_id << 32 < TRANSIENT
        segment.live = segment.live_bytes = segment.transient = segment.transient_bytes = 0
        self._discard(segment)
        return written

    def _discard_empty_tail(self) -> None:
        """Discard the last segment, behind which another one follows, if nothing is left of it."""
        tail = self.segments[self.numbers[-1]] if self.numbers else None
        if tail is not None and not tail.live:
            self._discard(tail)

    def _discard(self, segment: Segment) -> None:
        """Drop a segment of which nothing is left, and its file once that is safe."""
        del self.segments[segment.number]
        del self.numbers[bisect_left(self.numbers, segment.number)]
        context = self._context
        context.dirty.pop(segment, None)
        segment.dirty = False
        self._had_files |= segment.file_end > 0 or segment.generation > 0
        if segment.file_end:
            context.discarded[segment.path(self.directory)] = None
        context.discarded.update(dict.fromkeys(segment.older_paths(self.directory)))

    def release(self) -> Iterator[None]:
        """Forget all entries: the queue is gone from the definitions on disk, and needs no messages
        any more.

        Going through the iterator that is returned gives the places of the messages back.
        """
        segments = list(self.segments.values())
        self.segments.clear()
        self.numbers.clear()
        for segment in segments:
            self._context.dirty.pop(segment, None)
            segment.dirty = False
            self._had_files |= segment.file_end > 0 or segment.generation > 0
        return self._release(segments)

    def _release(self, segments: list[Segment]) -> Iterator[None]:
        for segment in segments:
            if segment.columns is None and not segment.has_shared:
                self._settle_usage(segment.by_file, {})
                continue
            columns = self.columns(segment)
            for start in range(0, len(columns.places), PIECE):
                if start:
                    yield
                for at in columns.live(start, start + PIECE):
                    place = columns.places[at]
                    self._context.store_of(place).release(place, columns.lengths[at])

    # Segments in memory and on disk

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
        columns = self.columns(segment)
        found = {
            place & OFFSET_MASK: length
            for place, length in zip(columns.places, columns.lengths, strict=True)
            if place >> 32 == file_id
        }
        if was_unloaded and not segment.dirty:
            segment.unload()
        return found

    def columns(self, segment: Segment) -> Columns:
        if segment.columns is None:
            self._load(segment)
        assert segment.columns is not None
        return segment.columns

    def _load(self, segment: Segment) -> None:
        """Read the entries of a segment back into memory; lost ones are reported."""
        path = segment.path(self.directory)
        columns = Columns()
        reason = "entries of a damaged index"
        is_fault = False
        try:
            file = self._context.filesystem.open(path, writable=False)
            try:
                data = file.read(0, segment.file_end)
            finally:
                file.close()
            columns = read_segment(data, start_number=self._context.start).columns
        except (Damaged, OSError) as error:
            reason = f"{path}: {error}"
            is_fault = isinstance(error, OSError) and not self._is_missing(error)
            if is_fault:
                # The segment may be whole, but the queue cannot go on without it. From the fault
                # on nothing is written, so the next start finds it as it is.
                self._context.on_fault(error)
        segment.columns = columns
        usage, live, live_bytes = segment.by_file, segment.live, segment.live_bytes
        segment.sum_up()
        self.keep_few(segment.number)
        if is_fault:
            self._lose(live - segment.live, live_bytes - segment.live_bytes)
        elif segment.live != live:
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
            self.touch(segment)
            self._lost_with_segment(live - segment.live, live_bytes - segment.live_bytes, reason)

    def _is_missing(self, error: OSError) -> bool:
        """Whether the file is missing, and the directory of the queue is there."""
        names = self._context.filesystem.names
        return isinstance(error, FileNotFoundError) and bool(names(self.directory.parent))

    def _settle_usage(
        self, before: dict[int, tuple[int, int]], now: dict[int, tuple[int, int]]
    ) -> None:
        """Count as garbage the records of entries that were lost with a segment file."""
        for file_id, (count, octets) in before.items():
            store = self._context.store_of(file_id << 32)
            file = store.files.get(file_id)
            left, left_octets = now.get(file_id, (0, 0))
            if file is not None:
                store.drop(file, count - left, octets - left_octets)

    def _lost_with_segment(self, count: int, body_bytes: int, reason: str) -> None:
        """Report messages whose positions are not known any more."""
        for _ in range(count):
            self._context.report_lost(self.queue_id, -1, reason, b"")
        self._lose(count, body_bytes)

    def _lose(self, count: int, body_bytes: int) -> None:
        known, known_bytes = self._lost
        self._lost = (known + count, known_bytes + body_bytes)

    def take_lost(self) -> tuple[int, int]:
        """How many messages were lost with segments since the last call, and their octets."""
        lost, self._lost = self._lost, (0, 0)
        return lost

    def unload_cold(self, segment: Segment) -> None:
        """Take a flushed segment out of memory unless messages are read from or added to it.

        Behind the segment that is read there may be any number of others, each with a message that
        stays unsettled.
        """
        if (
            not segment.dirty
            and segment.columns is not None
            and self.has(segment)
            and not self.any_order
            and abs(segment.number - self.cursor) > 1
            and segment.number < self.numbers[-1]
        ):
            segment.unload()

    def keep_few(self, number: int) -> None:
        """Note that a segment is used, and let another one leave memory if there are many. Segments
        that are changed stay until they are flushed."""
        if self.any_order:
            return
        loaded = self._loaded
        loaded.pop(number, None)
        loaded[number] = None
        if len(loaded) <= LOADED_MAX:
            return
        oldest = next(iter(loaded))
        del loaded[oldest]
        other = self.segments.get(oldest)
        if other is not None and other.columns is not None and not other.dirty:
            if oldest < self.numbers[-1]:
                other.unload()
