"""The indexes of all queues as files have them: the segments, and newer records of the journal.

This module only reads. So it serves recovery, and programs that read a directory while a node works
in it. Segments may grow meanwhile: each says up to which place of the journal it is, and records
before that are not entered again. Segments may also be removed meanwhile, when they are empty or a
higher generation exists. `gone` are those without a higher generation; only records of the journal
are entered for them. `overlong` are files with octets behind their last whole frame, and where that
frame ends. `damaged` are segments that lost entries, with the ranges that are known to be removed.

Memory is bounded by the segments that the journal touches. Other segments are read one after the
other, and only their totals are kept. A caller that needs no totals does not call `read`; then a
segment is read once, when the journal touches it or its entries are asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from warren.core.log_line import log_event
from warren.persist.disk.filesystem import FileSystem
from warren.persist.layout.format import (
    ENQUEUE,
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    PUBLISH,
    REMOVE,
    RETURNED,
    SEGMENT_ENTRIES,
    SEGMENT_HEADER_BYTES,
    SHARED,
    Damaged,
    Harm,
    Record,
    aligned,
    decode_ranges,
    decode_reference,
    file_of,
    frame_head,
    place_of,
)
from warren.persist.layout.segment import (
    Columns,
    Segment,
    SegmentContents,
    parse_segment_name,
    read_segment,
)
from warren.persist.log.log_files import hexadecimal
from warren.persist.log.log_reader import FoundRecord

log = logging.getLogger("warren.storage")

LOOKS_MAX = 10
"""Tries for a segment whose file goes whenever it is to be opened: a new generation takes a failed
write."""


NO_END = 1 << 64
"""Behind any place, for the index of a directory in which a node works."""


def every_queue(queue_id: int) -> bool:
    """The value of `only` that passes over no queue."""
    return True


class StoredIndex:
    """The segments in `directory`, by queue and number, in `queues`.

    `delivery_counts` are those the journal has, by queue and position, also of messages that are
    gone.

    `checkpoint_place` is that of the last checkpoint, `journal_end` the end of the journal.
    `harmed` is told of damaged files; a frame that was not finished is none if it was to be part of
    a later checkpoint. Queues of which `only` says no are passed over.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        checkpoint_place: int,
        harmed: Callable[[Path, Harm], None],
        *,
        journal_end: int = NO_END,
        only: Callable[[int], bool] = every_queue,
        new_columns: Callable[[], Columns] = Columns,
    ) -> None:
        self.queues: dict[int, dict[int, Segment]] = {}
        self.delivery_counts: dict[int, dict[int, int]] = {}
        self.gone: set[tuple[int, int]] = set()
        self.overlong: dict[Path, int] = {}
        self.damaged: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._filesystem = filesystem
        self._directory = directory
        self._checkpoint_place = checkpoint_place
        self._journal_end = journal_end
        self._harmed = harmed
        self._only = only
        self._new_columns = new_columns
        self._unread: dict[Segment, list[int]] = {}

    def find(self) -> int:
        """List the segments; returns how many there are."""
        for name in self._filesystem.names(self._directory):
            queue_id = hexadecimal(name)
            if queue_id is None or not self._only(queue_id):
                continue
            segments = self.queues[queue_id] = {}
            generations: dict[int, list[int]] = {}
            for file_name in self._filesystem.names(self._directory / name):
                parsed = parse_segment_name(file_name)
                if parsed is not None:
                    generations.setdefault(parsed[0], []).append(parsed[1])
            for number in sorted(generations):
                segment = segments[number] = Segment(queue_id, number)
                segment.columns = None
                self._unread[segment] = sorted(generations[number])
        return len(self._unread)

    def read(self, tell: Callable[[], None] = lambda: None) -> None:
        """Read what was found; `tell` is called after each segment. May raise OSError."""
        for segment in list(self._unread):
            if not self.load(segment):
                del self.queues[segment.queue_id][segment.number]
            elif not segment.dirty:
                segment.unload()
            tell()

    def entries(self, queue_id: int) -> Iterator[tuple[int, Columns]]:
        """The segments of a queue in order, each as its first position and its entries.

        They leave memory again where the journal did not touch them.
        """
        for _, segment in sorted(self.queues.get(queue_id, {}).items()):
            unloaded = segment.columns is None
            self.load(segment)
            assert segment.columns is not None
            yield segment.start, segment.columns
            if unloaded:
                segment.columns = None

    def path(self, segment: Segment) -> Path:
        return segment.path(self._queue_directory(segment.queue_id))

    def load(self, segment: Segment) -> bool:
        """Bring the entries of a segment to memory. False when its file is gone, and it has no
        entries.

        May raise OSError.
        """
        if segment.columns is not None:
            return True
        candidates = self._unread.pop(segment, None)
        report = candidates is not None
        if candidates is None:
            candidates = [segment.generation]
        for _ in range(LOOKS_MAX):
            if self._load_newest(segment, candidates, report=report):
                return True
            # A higher generation may have taken its place.
            again = self._generations(segment)
            if not again or again[-1] < candidates[-1]:
                break
            candidates = again
        self.gone.add((segment.queue_id, segment.number))
        _clear(segment)
        return False

    def _generations(self, segment: Segment) -> list[int]:
        """The generations of a segment that are there now, ascending."""
        names = self._filesystem.names(self._queue_directory(segment.queue_id))
        found = [parse_segment_name(name) for name in names]
        return sorted(at[1] for at in found if at is not None and at[0] == segment.number)

    def _queue_directory(self, queue_id: int) -> Path:
        return self._directory / f"{queue_id:016x}"

    def _load_newest(self, segment: Segment, generations: list[int], *, report: bool) -> bool:
        """Read the newest generation that was begun. False when the file is gone.

        An older generation is as good as the beginning of that one.
        """
        for generation in reversed(generations):
            segment.generation = generation
            try:
                if self._load(segment, report=report):
                    return True
            except FileNotFoundError:
                return False
        segment.generation = generations[-1]
        segment.columns = Columns()
        segment.begin_anew()
        return True

    def _load(self, segment: Segment, *, report: bool = True) -> bool:
        """Read the file of a segment. False when nothing can be made of it."""
        path = self.path(segment)
        file = self._filesystem.open(path, writable=False)
        try:
            data = file.read(0, file.size())
        finally:
            file.close()
        try:
            contents = read_segment(data, start_number=0, new_columns=self._new_columns)
        except Damaged as damage:
            if self._report_unreadable(path, data, damage):
                self.damaged.setdefault((segment.queue_id, segment.number), [])
            elif data:
                self.overlong[path] = 0
            return False
        if contents.header.queue != segment.queue_id or contents.header.number != segment.number:
            self._harmed(path, Harm(0, len(data), f"it says it is {contents.header}"))
            return False
        if report and self._report_harm(path, data, contents):
            self.damaged[segment.queue_id, segment.number] = contents.removed
        if len(data) > contents.end:
            self.overlong[path] = contents.end
        segment.columns = contents.columns
        segment.file_end = contents.end
        # Entries that had left before they were in a frame are known by the ranges that left.
        ends = [len(contents.columns.places), *[end for _, end in contents.removed]]
        segment.written = segment.flushed = max(ends)
        segment.flushed_place = contents.place
        return True

    def _report_unreadable(self, path: Path, data: bytes, damage: Damaged) -> bool:
        """Report a file that cannot be read, unless it was only unfinished when the power went.
        Return whether it was damaged."""
        if not self._was_synced(data, SEGMENT_HEADER_BYTES):
            log_event(log, logging.INFO, "segment_unfinished", path=path, reason=damage)
            return False
        self._harmed(path, Harm(0, len(data), str(damage)))
        return True

    def _report_harm(self, path: Path, data: bytes, contents: SegmentContents) -> bool:
        """Report the damage in a segment file. Return whether there was any."""
        harms = contents.harm + [
            harm for harm in contents.unfinished if self._was_synced(data, harm.offset)
        ]
        for harm in harms:
            self._harmed(path, harm)
        return bool(harms)

    def _was_synced(self, data: bytes, at: int) -> bool:
        """Whether the frame there is part of the last checkpoint, and says anything.

        A head that makes no sense is damaged if its first and its last octets were written.
        """
        head = frame_head(data, at)
        if head is None:
            octets = data[at : at + FRAME_HEADER_BYTES]
            is_written = len(octets) == FRAME_HEADER_BYTES
            return is_written and any(octets[:4]) and any(octets[-4:])
        # The first frame of a file is not transient.
        return (
            (not head.transient or at == SEGMENT_HEADER_BYTES)
            and (head.entries > 0 or head.removed > 0)
            and not self._may_be_unfinished(head.place)
        )

    def _may_be_unfinished(self, place: int) -> bool:
        """Whether a frame may be of this place and not be whole: it was not synced yet."""
        end = self._journal_end
        is_next_file = place == place_of(file_of(end) + 1, FILE_HEADER_BYTES)
        is_later = self._checkpoint_place < place <= end and place == aligned(place)
        return is_later or is_next_file

    def restore(self, found: FoundRecord) -> bool:
        """Enter a record of a damaged segment again, unless its message is known to be gone.

        Records are to come in the order of their places. Whether an entry was made. Raises
        `Damaged`.
        """
        record = found.record
        if record.type == REMOVE:
            self._restore_removals(record)
            return False
        if record.type not in (PUBLISH, ENQUEUE):
            return False
        number, relative = divmod(record.position, SEGMENT_ENTRIES)
        removed = self.damaged.get((record.queue, number))
        if removed is None or any(start <= relative < end for start, end in removed):
            return False
        place, length, size = found.place, found.length, len(record.payload)
        if record.type == ENQUEUE:
            place, length, size = decode_reference(record.payload)
            place |= SHARED
        columns = self._columns_to_restore(record.queue, number)
        if relative < len(columns.places) and columns.places[relative]:
            return False
        columns.set(relative, place, record.expires_us, length, size)
        segment = self.queues[record.queue][number]
        segment.written = max(segment.written, relative + 1)
        return True

    def _restore_removals(self, record: Record) -> None:
        """Apply once more what the journal says of a damaged segment."""
        for queue_id, number in self.damaged:
            if queue_id != record.queue:
                continue
            base = number * SEGMENT_ENTRIES
            for start, end in decode_ranges(record.payload):
                first, beyond = max(0, start - base), min(SEGMENT_ENTRIES, end - base)
                if first < beyond:
                    self._columns_to_restore(queue_id, number).clear(first, beyond)

    def _columns_to_restore(self, queue_id: int, number: int) -> Columns:
        """The entries of a damaged segment, which is to be written anew."""
        segment = self.queues[queue_id][number]
        if segment.columns is None:
            self.load(segment)
            segment.begin_anew()
        assert segment.columns is not None
        return segment.columns

    # The journal

    def apply(self, found: FoundRecord) -> None:
        """Take a record of the journal into account. Raises `Damaged`."""
        record = found.record
        if not self._only(record.queue):
            return
        if record.type == PUBLISH:
            self._enter(found.place, record, found.place, found.length, len(record.payload))
        elif record.type == ENQUEUE:
            place, length, size = decode_reference(record.payload)
            self._enter(found.place, record, place | SHARED, length, size)
        elif record.type == REMOVE:
            self._remove(found.place, record.queue, decode_ranges(record.payload))
        elif record.type == RETURNED:
            self.count_returns(record.queue, decode_ranges(record.payload))

    def count_returns(self, queue_id: int, pairs: Iterable[tuple[int, int]]) -> None:
        """Take in delivery counts and marks of positions of the queue; they only grow."""
        counts = self.delivery_counts.setdefault(queue_id, {})
        for position, count in pairs:
            counts[position] = max(count, counts.get(position, 0))

    def _enter(self, at: int, record: Record, place: int, length: int, size: int) -> None:
        number, relative = divmod(record.position, SEGMENT_ENTRIES)
        segments = self.queues.setdefault(record.queue, {})
        segment = segments.get(number)
        if segment is None:
            segment = segments[number] = Segment(record.queue, number)
        if not self._behind(segment, at):
            return
        assert segment.columns is not None
        segment.columns.set(relative, place, record.expires_us, length, size)
        segment.came_late(relative)
        segment.written = max(segment.written, relative + 1)
        segment.dirty = True

    def _behind(self, segment: Segment, at: int) -> bool:
        """Whether the segment, which is in memory then, does not know the journal up to `at`."""
        if at < segment.flushed_place:
            return False
        self.load(segment)
        # Its file may have grown since it was read first.
        return at >= segment.flushed_place

    def _remove(self, at: int, queue_id: int, ranges: list[tuple[int, int]]) -> None:
        segments = self.queues.get(queue_id)
        if not segments:
            return
        for start, end in ranges:
            span = range(start // SEGMENT_ENTRIES, (end - 1) // SEGMENT_ENTRIES + 1)
            for number in span if len(span) < len(segments) else list(segments):
                segment = segments.get(number)
                if segment is not None and number in span and at >= segment.flushed_place:
                    self._remove_in(segment, at, start, end)

    def _remove_in(self, segment: Segment, at: int, start: int, end: int) -> None:
        first = max(0, start - segment.start)
        beyond = min(SEGMENT_ENTRIES, end - segment.start)
        if beyond - first == SEGMENT_ENTRIES and segment not in self._unread:
            segment.columns = Columns()
        elif not self._behind(segment, at):
            return
        assert segment.columns is not None
        segment.columns.clear(first, beyond)
        segment.note_removed(first, beyond)
        segment.dirty = True


def _clear(segment: Segment) -> None:
    """Empty a segment whose file went, when the journal knew that all its entries had been
    removed."""
    segment.columns = Columns()
    segment.file_end = segment.written = segment.flushed = segment.flushed_place = 0
    segment.sum_up()
