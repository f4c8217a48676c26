"""One segment of a queue index: 16384 positions in columns, in memory or on disk.

A segment in memory has four columns by relative position: place, expiry, length of the record and
size of the body; a place of 0 is no entry. Its file holds the same as frames. A segment whose
file says all there is to say can leave memory (`unload`); it then keeps only totals, and what it
has in each file of the log.

`by_file` says, while the segment is not in memory, how many records of this queue alone it has in
each file of the log, and their octets; `has_shared` whether it has shared ones too,
`has_expiring` whether a message in it may expire.

Entries of records in the journal come in order: they are below `written`, and in the file below
`flushed`. Those of paged messages come in any order, and are listed in `paged` until they are in
the file; so do those that came late, when entries behind them were in the file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import groupby, islice
from operator import itemgetter, lt
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import Struct

from warren.persist.layout.format import (
    SEGMENT_ENTRIES,
    SEGMENT_HEADER_BYTES,
    TRANSIENT,
    Damaged,
    Harm,
    SegmentChange,
    SegmentHeader,
    decode_frame,
    decode_segment_header,
    encode_frame,
    encode_segment_header,
    frame_size,
)

_EVEN = bytes(range(0, 256, 2))


class IndexEntry(Struct, frozen=True, gc=False):
    """An index entry: where the message is."""

    position: int
    place: int
    expires_us: int
    length: int
    size: int


IndexRow = tuple[int, int, int, int, int]
"""The same as a tuple, for those that are being written: there are many at a time."""


class Columns:
    """The entries of a segment in memory; all four have the same length, and grow at the end."""

    __slots__ = ("expires", "lengths", "places", "sizes")

    def __init__(self) -> None:
        self.places = array("Q")
        self.expires = array("Q")
        self.lengths = array("I")
        self.sizes = array("I")

    def reach(self, relative: int) -> None:
        """Have room for entries below this one, with gaps where there are none."""
        missing = relative - len(self.places)
        if missing > 0:
            self.places.frombytes(bytes(8 * missing))
            self.expires.frombytes(bytes(8 * missing))
            self.lengths.frombytes(bytes(4 * missing))
            self.sizes.frombytes(bytes(4 * missing))

    def set(self, relative: int, place: int, expires_us: int, length: int, size: int) -> None:
        self.reach(relative + 1)
        self.places[relative] = place
        self.expires[relative] = expires_us
        self.lengths[relative] = length
        self.sizes[relative] = size

    def put(self, rows: list[IndexRow], start: int) -> None:
        """Set the entries of these rows; position `start` is the first of the segment."""
        positions, places, expires, lengths, sizes = zip(*rows, strict=True)
        first = positions[0]
        follow = positions == tuple(range(first, first + len(rows)))
        if follow and first - start == len(self.places):
            self.places.extend(places)
            self.expires.extend(expires)
            self.lengths.extend(lengths)
            self.sizes.extend(sizes)
            return
        for position, place, expires_us, length, size in rows:
            self.set(position - start, place, expires_us, length, size)

    def apply(self, frame: SegmentChange) -> None:
        relative = frame.relative
        if relative and relative[-1] - relative[0] + 1 == len(relative):
            self.reach(relative[0])
            if relative[0] == len(self.places):
                self.places.extend(frame.places)
                self.expires.extend(frame.expires)
                self.lengths.extend(frame.lengths)
                self.sizes.extend(frame.sizes)
                self._clear_ranges(frame)
                return
        self.set_each(frame)
        self._clear_ranges(frame)

    def set_each(self, frame: SegmentChange) -> None:
        for relative, place, expires_us, length, size in zip(
            frame.relative, frame.places, frame.expires, frame.lengths, frame.sizes, strict=True
        ):
            self.set(relative, place, expires_us, length, size)

    def _clear_ranges(self, frame: SegmentChange) -> None:
        for start, end in zip(frame.removed[::2], frame.removed[1::2], strict=True):
            self.clear(start, end)

    def clear(self, start: int, end: int) -> None:
        end = min(end, len(self.places))
        if start < end:
            self.places[start:end] = array("Q", bytes(8 * (end - start)))

    def live(self, start: int, end: int) -> Iterator[int]:
        """The relative positions of the entries in [start, end)."""
        places = self.places
        return (at for at in range(start, min(end, len(places))) if places[at])


class SegmentOwner(Protocol):
    """The entries of a queue, as far as the work on one of its segments needs them."""

    directory: Path
    durable: bool

    def has(self, segment: Segment) -> bool: ...

    def lengths_in(self, segment: Segment, file_id: int) -> dict[int, int]: ...

    def unload_cold(self, segment: Segment) -> None: ...


class Segment:
    """One segment of one queue."""

    __slots__ = (
        "__weakref__",
        "by_file",
        "columns",
        "dirty",
        "file_end",
        "flushed",
        "flushed_place",
        "generation",
        "has_expiring",
        "has_shared",
        "live",
        "live_bytes",
        "number",
        "owner",
        "paged",
        "queue_id",
        "removed",
        "transient",
        "transient_bytes",
        "written",
    )

    owner: SegmentOwner

    def __init__(self, queue_id: int, number: int) -> None:
        self.queue_id = queue_id
        self.number = number
        self.columns: Columns | None = Columns()
        self.live = 0
        self.live_bytes = 0
        # The live entries of messages that are not persistent.
        self.transient = 0
        self.transient_bytes = 0
        self.dirty = False
        self.written = 0
        self.flushed = 0
        self.flushed_place = 0
        self.paged: list[int] = []
        # Ranges of removed entries, as few as possible, ascending.
        self.removed: list[tuple[int, int]] = []
        self.generation = 0
        self.file_end = 0
        self.by_file: dict[int, tuple[int, int]] = {}
        self.has_shared = False
        self.has_expiring = False

    @property
    def start(self) -> int:
        return self.number * SEGMENT_ENTRIES

    def path(self, directory: Path) -> Path:
        return directory / segment_name(self.number, self.generation)

    def older_paths(self, directory: Path) -> list[Path]:
        """Return the paths of the files in whose place this one came."""
        names = [segment_name(self.number, generation) for generation in range(self.generation)]
        return [directory / name for name in names]

    def came_late(self, relative: int) -> None:
        """Note that an entry of a record in the journal was made below others, where one may have
        been removed."""
        if relative < self.flushed:
            self.paged.append(relative)
        # A frame may name removals of entries that were there before, but not of its own entries.
        removed = self.removed
        at = bisect_right(removed, relative, key=itemgetter(1))
        if at < len(removed) and removed[at][0] <= relative:
            start, end = removed[at]
            pieces = ((start, relative), (relative + 1, end))
            removed[at : at + 1] = [piece for piece in pieces if piece[0] < piece[1]]

    def note_removed(self, start: int, end: int) -> None:
        """Note that the entries in [start, end) were removed."""
        removed = self.removed
        at = bisect_left(removed, start, key=itemgetter(1))
        beyond = bisect_right(removed, end, at, key=itemgetter(0))
        if at < beyond:
            start = min(start, removed[at][0])
            end = max(end, removed[beyond - 1][1])
        removed[at:beyond] = [(start, end)]

    def flush(self, place: int, start_number: int) -> tuple[int, bytes]:
        """Return where to write at the end of the file, and what.

        Afterwards the segment is clean, and the file will say all there is to say, once it is
        written; every record of the segment's queue must be in the journal before `place`.
        `start_number` counts the starts of the node.
        """
        columns = self.columns
        assert columns is not None
        start = self.file_end
        parts = []
        if not start:
            header = SegmentHeader(self.queue_id, self.number, self.generation)
            parts.append(encode_segment_header(header))
        written = [
            at for at in columns.live(self.flushed, self.written) if columns.places[at] < TRANSIENT
        ]
        if self.paged:
            late = sorted({at for at in self.paged if at < self.flushed})
            written = [at for at in late if 0 < columns.places[at] < TRANSIENT] + written
        parts.append(encode_frame(self._frame(0, place, written, self._removed_ranges())))
        paged = [at for at in sorted(set(self.paged)) if columns.places[at] >= TRANSIENT]
        if paged:
            parts.append(encode_frame(self._frame(start_number, place, paged, array("H"))))
        data = b"".join(parts)
        self.file_end = start + len(data)
        self.flushed = self.written
        self.flushed_place = place
        self.paged = []
        self.removed = []
        self.dirty = False
        return start, data

    def begin_anew(self) -> None:
        """Have the next flush write everything, under a new name: the file is not to be trusted."""
        columns = self.columns
        assert columns is not None
        self.generation += 1
        self.file_end = 0
        self.flushed = 0
        self.removed = []
        self.paged = [at for at, place in enumerate(columns.places) if place >= TRANSIENT]
        self.dirty = True

    def unload(self) -> None:
        """Leave memory; the file has everything."""
        assert not self.dirty and self.columns is not None
        self.sum_up()
        self.columns = None

    def sum_up(self) -> None:
        """Find the totals the segment is known by while it is not in memory."""
        columns = self.columns
        assert columns is not None
        self.has_expiring = any(columns.expires)
        if not self._sum_up_whole(columns):
            self._sum_up_each(columns)

    def _sum_up_whole(self, columns: Columns) -> bool:
        """Find the totals in a fifth of the time, if nothing has left and all records are of this
        queue alone, in order. Return whether that is so."""
        places = columns.places
        if 0 in places or not all(map(lt, places, islice(places, 1, None))):
            return False
        if places.tobytes()[::8].translate(None, _EVEN):
            # One of the places has the lowest bit set, which marks shared records.
            return False
        self.live = len(places)
        self.live_bytes = sum(columns.sizes)
        first_transient = bisect_left(places, TRANSIENT)
        self.transient = len(places) - first_transient
        self.transient_bytes = sum(columns.sizes[first_transient:])
        self.has_shared = False
        self.by_file = {}
        start = 0
        while start < len(places):
            file_id = places[start] >> 32
            end = bisect_left(places, file_id + 1 << 32, start)
            self.by_file[file_id] = (end - start, sum(columns.lengths[start:end]))
            start = end
        return True

    def _sum_up_each(self, columns: Columns) -> None:
        live = [at for at, place in enumerate(columns.places) if place]
        self.live = len(live)
        self.live_bytes = sum([columns.sizes[at] for at in live])
        transient = [at for at in live if columns.places[at] >= TRANSIENT]
        self.transient = len(transient)
        self.transient_bytes = sum([columns.sizes[at] for at in transient])
        own = [(columns.places[at] >> 32, at) for at in live if not columns.places[at] & 1]
        self.has_shared = len(own) < len(live)
        self.by_file = {}
        for file_id, group in groupby(own, itemgetter(0)):
            lengths = [columns.lengths[at] for _, at in group]
            count, octets = self.by_file.get(file_id, (0, 0))
            self.by_file[file_id] = (count + len(lengths), octets + sum(lengths))

    def _frame(
        self, transient: int, place: int, relative: list[int], removed: array[int]
    ) -> SegmentChange:
        columns = self.columns
        assert columns is not None
        return SegmentChange(
            transient,
            place,
            array("H", relative),
            array("Q", [columns.places[at] for at in relative]),
            array("Q", [columns.expires[at] for at in relative]),
            array("I", [columns.lengths[at] for at in relative]),
            array("I", [columns.sizes[at] for at in relative]),
            removed,
        )

    def _removed_ranges(self) -> array[int]:
        ranges = array("H")
        for start, end in self.removed:
            ranges.extend((start, end))
        return ranges


def segment_name(number: int, generation: int) -> str:
    return f"{number:012x}.{generation}.idx"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Number and generation of a segment file; None for another file."""
    number, _, rest = name.partition(".")
    generation, _, suffix = rest.partition(".")
    if suffix != "idx" or len(number) != 12 or not generation.isdecimal():
        return None
    try:
        return int(number, 16), int(generation)
    except ValueError:
        return None


class SegmentContents(NamedTuple):
    """The contents of a segment file.

    `place` is that of the last whole frame that is not transient, `end` where it ends. `harm` are
    frames before it that were passed over, `unfinished` those that are not whole behind it.
    `removed` are all ranges of entries that left it.
    """

    header: SegmentHeader
    columns: Columns
    place: int
    end: int
    harm: list[Harm]
    unfinished: list[Harm]
    removed: list[tuple[int, int]]


def read_segment(
    data: bytes, *, start_number: int, new_columns: Callable[[], Columns] = Columns
) -> SegmentContents:
    """Read a segment file; entries of transient frames count if they are of this start, not 0.

    A frame is written when the one before is synced, but for a transient one, which is written
    with the one before it. So one that is not whole and has a whole one behind it that is not
    transient was damaged on the disk; others were not finished. Raises `Damaged`, `NewerStorage`.
    """
    header = decode_segment_header(data)
    columns = new_columns()
    at = end = SEGMENT_HEADER_BYTES
    place = 0
    harm: list[Harm] = []
    unfinished: list[Harm] = []
    removed: list[tuple[int, int]] = []
    while at < len(data):
        decoded = decode_frame(data, at)
        if decoded is None:
            size = frame_size(data, at)
            unfinished.append(Harm(at, size or len(data) - at, "checksum of a frame"))
            if size is None:
                break
            at += size
            continue
        frame, at = decoded
        if not frame.transient:
            end, place = at, frame.place
            harm += unfinished
            unfinished = []
        if frame.transient in (0, start_number):
            columns.apply(frame)
            removed += zip(frame.removed[::2], frame.removed[1::2], strict=True)
    if not place:
        raise Damaged("a segment without a whole frame")
    return SegmentContents(header, columns, place, end, harm, unfinished, removed)


def merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """These positions in as few ranges as possible, ascending."""
    whole: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if whole and start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
        else:
            whole.append((start, end))
    return whole
