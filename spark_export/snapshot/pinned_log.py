"""Reads records from the log files of a snapshot, many at once.

A file of which most is wanted is read in one piece. If it was sealed, its checksum is compared,
once in a process, since files of a snapshot never change. From other files, records that are near
each other are read together. `unit.SnapshotFiles` gives access to the files.

Records are returned as one array of octets and their offsets in it, ascending, so that Arrow can
take strings from it without a copy in between.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from warren.persist.layout.format import (
    FILE_HEADER_BYTES,
    FOOTER_BYTES,
    Damaged,
    FileHeader,
    NewerStorage,
    Survivors,
    decode_file_header,
    decode_footer,
    decode_survivors,
    survivors_bytes,
)
from warren.persist.log.log_files import SURVIVORS_READ_BYTES, find_log_files
from warren.persist.log.log_writer import file_name
from warren.spark_export.errors import StoreRefused
from warren.spark_export.snapshot.layout import FILE_SHIFT, HEAD_BYTES, OFFSET_MASK
from warren.spark_export.snapshot.unit import LogOctets, SnapshotFiles

WHOLE_BYTES_MAX = 64 << 20
"""The largest file read in one piece; a node fills files up to 16 MiB, except for large
messages."""

WHOLE_FILES_KEPT = 2
"""Whole files kept in memory: a batch of messages is usually in one file, or at the border of
two."""

PADDING = HEAD_BYTES
"""Octets after the last record, so that fixed parts can be read before they are checked."""

OPEN_FILES_MAX = 64

VERDICTS_KEPT = 4096


class _Verdicts:
    """Whether files that were read whole are sound, by their keys (`LogOctets.key`)."""

    def __init__(self) -> None:
        self._sound: OrderedDict[Hashable, bool] = OrderedDict()

    def __getitem__(self, key: Hashable) -> bool | None:
        return self._sound.get(key)

    def __setitem__(self, key: Hashable, sound: bool) -> None:
        self._sound[key] = sound
        if len(self._sound) > VERDICTS_KEPT:
            self._sound.popitem(last=False)


# Shared by the whole process: Spark gives one worker many units, and their ends share files.
_verdicts = _Verdicts()


class Trouble(NamedTuple):
    """Why a record cannot be read. `octets` are those found in its place, if any; `lost`: its file
    is gone."""

    file: str
    offset: int
    reason: str
    octets: bytes | None = None
    lost: bool = False


class FetchedRecords(NamedTuple):
    """Records side by side. `rows` are the rows that were found, `at` their offsets in `data`.

    `trusted` says of each whether its octets were verified. `files` and `offsets` are their places
    on the disk. `troubles` has all other rows.
    """

    data: NDArray[np.uint8]
    rows: NDArray[np.int64]
    at: NDArray[np.int64]
    trusted: NDArray[np.bool_]
    files: NDArray[np.int64]
    offsets: NDArray[np.int64]
    troubles: dict[int, Trouble]


class _Piece(NamedTuple):
    data: NDArray[np.uint8]
    at: NDArray[np.int64]
    trusted: bool


class LogFile:
    """One log file, open until `close`. Raises OSError, `StoreRefused`."""

    def __init__(self, octets: LogOctets) -> None:
        self._octets = octets
        self.name = octets.name
        self.size = octets.size
        self._key = octets.key
        try:
            self.header = self._read_header()
            self.broken_table = ""
            self._before: NDArray[np.int64] | None = None
            self._after = np.empty(0, np.int64)
            if self.header is not None and self.header.combined:
                self._read_table()
            self._crc = self._footer_crc() if octets.whole else None
        except BaseException:
            octets.close()
            raise

    def close(self) -> None:
        self._octets.close()

    @property
    def table_at(self) -> int:
        """The offset of the table in a rewritten file; the end of a file without a table."""
        return self.size if self._before is None else self.size - survivors_bytes(len(self._after))

    @property
    def sound(self) -> bool:
        """Whether the whole file was read in this process and its checksum was right."""
        return _verdicts[self._key] is True

    @property
    def worth_verifying(self) -> bool:
        return self._crc is not None and _verdicts[self._key] is not False

    def read(self, offset: int, size: int) -> bytes:
        return self._octets.read(offset, size)

    def read_into(self, data: NDArray[np.uint8], offset: int) -> None:
        """Fill `data` with the octets from `offset` on. Raises OSError if the file has become
        shorter."""
        view = data.data
        while view:
            count = self._octets.read_into(view, offset)
            if not count:
                raise OSError(f"log file {self.name} ends before octet {offset}")
            view = view[count:]
            offset += count

    def resolve(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """The present offsets of records that had these offsets in generation 0; -1: unknown."""
        before = self._before
        if before is None:
            return np.full_like(offsets, -1) if self.broken_table else offsets
        if not len(before):
            return np.full_like(offsets, -1)
        found = np.minimum(np.searchsorted(before, offsets), len(before) - 1)
        return np.where(before[found] == offsets, self._after[found], -1)

    def read_whole(self, data: NDArray[np.uint8]) -> None:
        """Read the whole file, and compare the checksum if that was not done yet."""
        self.read_into(data[: self.size], 0)
        if self._crc is not None and _verdicts[self._key] is None:
            _verdicts[self._key] = crc32(data.data[: self.size - FOOTER_BYTES]) == self._crc

    def _footer_crc(self) -> int | None:
        """The checksum of everything before the footer; None for a file that was not sealed."""
        footer = decode_footer(self.read(max(0, self.size - FOOTER_BYTES), FOOTER_BYTES))
        sealed = footer is not None and footer.size == self.size - FOOTER_BYTES
        return footer.crc if footer is not None and sealed else None

    def _read_header(self) -> FileHeader | None:
        """The header. It may be None if damaged: records can be read nevertheless, by their own
        checksums."""
        try:
            return decode_file_header(self.read(0, FILE_HEADER_BYTES))
        except Damaged:
            return None
        except NewerStorage as error:
            raise StoreRefused(f"{self.name}: {error}") from error

    def _read_table(self) -> None:
        try:
            survivors = self._survivors()
        except Damaged as damage:
            self.broken_table = str(damage)
            return
        self._before = np.array(survivors.before, np.int64)
        self._after = np.array(survivors.after, np.int64)

    def _survivors(self) -> Survivors:
        start = max(0, self.size - SURVIVORS_READ_BYTES)
        try:
            return decode_survivors(self.read(start, self.size - start))
        except Damaged:
            if not start:
                raise
        return decode_survivors(self.read(0, self.size))


class PinnedLog:
    """The log files of a snapshot, of which the `wanted` records will be read.

    `wanted` are index entries (`unit.ENTRY`): all entries of a unit, from which it follows which
    files to read in one piece.
    """

    def __init__(self, files: SnapshotFiles, wanted: NDArray[np.void]) -> None:
        """Raises `SnapshotGone`, OSError."""
        self._files = files
        self._newest = find_log_files(files.log_names()).newest
        self._wanted_bytes = _octets_by_file(wanted)
        self._open: OrderedDict[int, LogFile | None] = OrderedDict()
        self._whole: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()

    def close(self) -> None:
        for file in self._open.values():
            if file is not None:
                file.close()
        self._open.clear()
        self._whole.clear()

    def file(self, file_id: int) -> LogFile | None:
        """The log file, or None if it is missing. Raises OSError, `SnapshotGone`,
        `StoreRefused`."""
        if file_id not in self._open:
            self._open[file_id] = self._try_open(file_id)
            if len(self._open) > OPEN_FILES_MAX:
                _, oldest = self._open.popitem(last=False)
                if oldest is not None:
                    oldest.close()
        return self._open[file_id]

    def generation(self, file_id: int) -> int | None:
        return self._newest.get(file_id)

    def fetch(self, entries: NDArray[np.void]) -> FetchedRecords:
        """The records of these entries. The arrays of an earlier call may be overwritten. Raises
        OSError."""
        places = entries["place"]
        files = (places >> FILE_SHIFT).astype(np.int64)
        offsets = (places & OFFSET_MASK).astype(np.int64)
        lengths = entries["length"].astype(np.int64)
        troubles: dict[int, Trouble] = {}
        pieces = []
        parts = []
        groups = list(_by_file(files))
        for file_id, rows in groups:
            file = self.file(file_id)
            if file is None:
                _all_lost(troubles, rows, file_id, offsets)
                continue
            found = file.resolve(offsets[rows])
            offsets[rows] = found
            rows = self._present(file, rows, offsets, lengths, troubles)
            if len(rows):
                whole = len(groups) <= WHOLE_FILES_KEPT and self._worth_whole(file_id, file)
                pieces.append(self._read(file_id, file, offsets[rows], lengths[rows], whole=whole))
                parts.append(rows)
        return _join(pieces, parts, lengths, files, offsets, troubles)

    def _try_open(self, file_id: int) -> LogFile | None:
        generation = self._newest.get(file_id)
        if generation is not None:
            with suppress(FileNotFoundError):
                return LogFile(self._files.open_log(file_name(file_id, generation)))
        else:
            # The list may have been made while the snapshot was being removed; then this call
            # raises.
            self._files.log_names()
        return None

    @staticmethod
    def _present(
        file: LogFile,
        rows: NDArray[np.int64],
        offsets: NDArray[np.int64],
        lengths: NDArray[np.int64],
        troubles: dict[int, Trouble],
    ) -> NDArray[np.int64]:
        """Those of the rows whose records are within the file, and long enough for a message."""
        at, length = offsets[rows], lengths[rows]
        good = (at >= 0) & (at + length <= file.size) & (length >= HEAD_BYTES)
        if good.all():
            return rows
        for row in rows[~good].tolist():
            troubles[row] = _absent(file, int(offsets[row]), int(lengths[row]))
        return rows[good]

    def _worth_whole(self, file_id: int, file: LogFile) -> bool:
        most = 2 * self._wanted_bytes.get(file_id, 0) >= file.size
        return most and file.size <= WHOLE_BYTES_MAX and file.worth_verifying

    def _read(
        self,
        file_id: int,
        file: LogFile,
        offsets: NDArray[np.int64],
        lengths: NDArray[np.int64],
        *,
        whole: bool,
    ) -> _Piece:
        if whole:
            data = self._whole_file(file_id, file)
            if file.sound:
                return _Piece(data, offsets, True)
        return _read_spans(file, offsets, lengths, self._files.gap_bytes_max)

    def _whole_file(self, file_id: int, file: LogFile) -> NDArray[np.uint8]:
        data = self._whole.get(file_id)
        if data is not None:
            # The batch's other file must not be read into this memory.
            self._whole.move_to_end(file_id)
        else:
            size = file.size + PADDING
            if len(self._whole) == WHOLE_FILES_KEPT:
                # Memory that was used before is faster than new memory.
                _, data = self._whole.popitem(last=False)
            if data is None or len(data) < size:
                data = np.empty(size, np.uint8)
            file.read_whole(data)
            self._whole[file_id] = data
        return data


def _octets_by_file(entries: NDArray[np.void]) -> dict[int, int]:
    if not len(entries):
        return {}
    files = (entries["place"] >> FILE_SHIFT).astype(np.int64)
    starts = np.flatnonzero(np.concatenate(([True], files[1:] != files[:-1])))
    octets = np.add.reduceat(entries["length"].astype(np.int64), starts)
    unique, inverse = np.unique(files[starts], return_inverse=True)
    totals = np.bincount(inverse, weights=octets)
    return {int(file): int(total) for file, total in zip(unique, totals, strict=True)}


def _by_file(files: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each file and its rows, in the order of their first rows."""
    changes = np.flatnonzero(files[1:] != files[:-1])
    if not len(changes):
        yield int(files[0]), np.arange(len(files))
        return
    for file_id in dict.fromkeys(files[np.concatenate(([0], changes + 1))].tolist()):
        yield file_id, np.flatnonzero(files == file_id)


def _all_lost(
    troubles: dict[int, Trouble],
    rows: NDArray[np.int64],
    file_id: int,
    offsets: NDArray[np.int64],
) -> None:
    name = f"{file_id & 0x7FFFFFFF:08x}"
    for row in rows.tolist():
        troubles[row] = Trouble(name, int(offsets[row]), f"log file {name} is gone", lost=True)


def _absent(file: LogFile, offset: int, length: int) -> Trouble:
    if offset < 0:
        reason = file.broken_table or "the file was written anew without the record"
        return Trouble(file.name, -1, reason)
    octets = file.read(offset, length)
    if len(octets) < length:
        reason = f"a record of {length} octets, {len(octets)} are there"
    else:
        reason = f"a record of {length} octets, too short for a message"
    return Trouble(file.name, offset, reason, octets)


def _read_spans(
    file: LogFile,
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int64],
    gap_bytes_max: int,
) -> _Piece:
    """Read records, together with the octets between records that are near each other."""
    order: NDArray[np.int64] | None = None
    if (offsets[1:] < offsets[:-1]).any():
        order = np.argsort(offsets, kind="stable")
        offsets, lengths = offsets[order], lengths[order]
    ends = np.maximum.accumulate(offsets + lengths)
    begins = np.concatenate(([True], offsets[1:] - ends[:-1] > gap_bytes_max))
    first = np.flatnonzero(begins)
    span_starts = offsets[first]
    span_sizes = ends[np.append(first[1:] - 1, len(ends) - 1)] - span_starts
    bases = np.concatenate(([0], np.cumsum(span_sizes)))
    data = np.empty(int(bases[-1]) + PADDING, np.uint8)
    for base, start, size in zip(
        bases.tolist(), span_starts.tolist(), span_sizes.tolist(), strict=False
    ):
        file.read_into(data[base : base + size], start)
    span = np.cumsum(begins) - 1
    at = bases[span] + offsets - span_starts[span]
    if order is not None:
        back = np.empty_like(at)
        back[order] = at
        at = back
    return _Piece(data, at, file.sound)


def _join(
    pieces: list[_Piece],
    parts: list[NDArray[np.int64]],
    lengths: NDArray[np.int64],
    files: NDArray[np.int64],
    offsets: NDArray[np.int64],
    troubles: dict[int, Trouble],
) -> FetchedRecords:
    if len(pieces) == 1:
        rows, (data, at, sound) = parts[0], pieces[0]
        trusted = np.full(len(rows), sound)
    elif pieces:
        data, rows, at, trusted = _side_by_side(pieces, parts, lengths)
    else:
        data, rows, at = np.zeros(PADDING, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
        trusted = np.empty(0, np.bool_)
    if (at[1:] < (at + lengths[rows])[:-1]).any():
        data, at = _in_order(data, at, lengths[rows])
    return FetchedRecords(data, rows, at, trusted, files[rows], offsets[rows], troubles)


def _side_by_side(
    pieces: list[_Piece], parts: list[NDArray[np.int64]], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    cut = []
    base = 0
    for piece, rows in zip(pieces, parts, strict=True):
        start = int(piece.at.min())
        end = int((piece.at + lengths[rows]).max())
        cut.append((piece.data[start:end], piece.at - start + base))
        base += end - start
    data = np.concatenate([octets for octets, _ in cut] + [np.zeros(PADDING, np.uint8)])
    rows = np.concatenate(parts)
    at = np.concatenate([where for _, where in cut])
    trusted = np.concatenate(
        [np.full(len(part), piece.trusted) for piece, part in zip(pieces, parts, strict=True)]
    )
    order = np.argsort(rows)
    return data, rows[order], at[order], trusted[order]


def _in_order(
    data: NDArray[np.uint8], at: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Copy the records into the order in which they are to be read."""
    view = data.data
    parts: list[memoryview | bytes] = [
        view[start:end] for start, end in zip(at.tolist(), (at + lengths).tolist(), strict=True)
    ]
    parts.append(bytes(PADDING))
    ends = np.cumsum(lengths)
    return np.frombuffer(b"".join(parts), np.uint8), ends - lengths
