"""The journal since the checkpoint as arrays: what `StoredIndex.apply` would enter, all at once.

A file is read like this if all of it is as it was written: each batch is checked by its table of
lengths, the records by the checksum of the whole file or by their own. An unfinished end of the
last file is ignored. For anything else that is odd, `read_journal_file` raises `Odd` and has no
effect; then `persist/log/log_reader.py` reads the file.

Entries and removed ranges of positions are compared by their places in the journal: a removal
concerns entries made before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from warren.persist.layout.format import (
    BATCH_HEADER_BYTES,
    ENQUEUE,
    FOOTER_BYTES,
    PUBLISH,
    RECORD_BYTES,
    REMOVE,
    RETURNED,
    SHARED_MESSAGE,
    Damaged,
    Harm,
    batch_bytes,
    decode_batch_header,
    decode_footer,
    decode_ranges,
    decode_reference,
    place_of,
)
from warren.persist.log.log_reader import Scan
from warren.spark_export.snapshot.layout import (
    OFFSET_MASK,
    RECORD_HEAD,
    SHARED,
    gather,
    grouped,
    sums_wrong,
)
from warren.spark_export.snapshot.unit import ENTRY

WHOLE_BYTES_MAX = 256 << 20
"""The largest journal file read in one piece; larger ones are read batch by batch (`Scan`)."""

REFERENCE = np.dtype([("place", "<u8"), ("length", "<u4"), ("body_bytes", "<u4")])
RANGE = np.dtype([("start", "<u8"), ("end", "<u8")])

Octets = NDArray[np.uint8]
Offsets = NDArray[np.int64]


class Odd(Exception):
    """The file cannot be read in one piece; the text says why."""


class Entered(NamedTuple):
    """Entries of queues, in the order of the journal; `at` is the place at which each was made."""

    queue: NDArray[np.uint64]
    at: NDArray[np.uint64]
    entry: NDArray[np.void]

    def only(self, rows: NDArray[np.intp]) -> Entered:
        return Entered(self.queue[rows], self.at[rows], self.entry[rows])


class Removed(NamedTuple):
    """Ranges of positions that left queues, in the order of the journal."""

    queue: NDArray[np.uint64]
    at: NDArray[np.uint64]
    span: NDArray[np.void]

    def only(self, rows: NDArray[np.intp]) -> Removed:
        return Removed(self.queue[rows], self.at[rows], self.span[rows])


class JournalFile(NamedTuple):
    entered: Entered
    removed: Removed


def read_journal_file(data: bytes, file_id: int, offset: int, *, complete: bool) -> JournalFile:
    """The entries and removals in the batches of a log file, from `offset` on.

    `complete` has the meaning that it has for `Scan`. Raises `Odd`.
    """
    octets = np.frombuffer(data, np.uint8)
    footer = decode_footer(data[-FOOTER_BYTES:])
    sealed = footer is not None and footer.size == len(data) - FOOTER_BYTES
    end = len(data) - FOOTER_BYTES if sealed else len(data)
    trusted = sealed and footer is not None and crc32(memoryview(data)[:end]) == footer.crc
    at, lengths = _records(data, octets, file_id, offset, end, torn=not sealed and not complete)
    head = gather(RECORD_HEAD, octets, at)
    envelope = head["envelope"].astype(np.int64)
    if (head["length"] != lengths).any() or (envelope > lengths - RECORD_BYTES).any():
        raise Odd("a record of another length than its batch says")
    if not trusted and sums_wrong(octets, at, lengths, head["crc"]):
        raise Odd("checksum of the record")
    places = at.astype(np.uint64) | np.uint64(file_id << 32)
    kind = head["type"]
    if not np.isin(kind, (PUBLISH, SHARED_MESSAGE, ENQUEUE, REMOVE, RETURNED)).all():
        raise Odd("a record of another type")
    return JournalFile(
        _entered(octets, at, head, places), _removed(octets, at, lengths, head, places)
    )


def _records(
    data: bytes, octets: Octets, file_id: int, offset: int, end: int, *, torn: bool
) -> tuple[Offsets, Offsets]:
    """The offsets and lengths of the records of all batches."""
    starts, counts, sizes = [], [], []
    if offset > end:
        raise Odd("the file ends before what was written")
    while offset < end:
        header = decode_batch_header(
            data[offset : offset + BATCH_HEADER_BYTES], place_of(file_id, offset)
        )
        if header is None:
            if torn:
                break
            raise Odd("no batch where one should start")
        table = offset + BATCH_HEADER_BYTES + header.records_bytes
        following = offset + batch_bytes(header.records_bytes, header.records)
        if following > end:
            if torn:
                break
            raise Odd("the end of a batch is missing")
        if crc32(data[table : table + 4 * header.records]) != header.lengths_crc:
            raise Odd("table of lengths")
        starts.append(offset + BATCH_HEADER_BYTES)
        counts.append(header.records)
        sizes.append(header.records_bytes)
        offset = following
    columns = (np.array(column, np.int64) for column in (starts, counts, sizes))
    return _cut(octets, *columns)


def _cut(
    octets: Octets, starts: Offsets, counts: Offsets, sizes: Offsets
) -> tuple[Offsets, Offsets]:
    """The records of batches, from their tables of lengths."""
    batch = np.repeat(np.arange(len(starts)), counts)
    first = np.cumsum(counts) - counts
    number = np.arange(len(batch)) - first[batch]
    lengths = gather(np.dtype([("length", "<u4")]), octets, (starts + sizes)[batch] + 4 * number)
    length = lengths["length"].astype(np.int64)
    padded = length + 7 & ~7
    ends = np.cumsum(padded)
    filled = np.diff(np.concatenate([[0], ends])[np.append(first, len(batch))])
    if len(length) and (int(length.min()) < RECORD_BYTES or (filled != sizes).any()):
        raise Odd("lengths of the records")
    before = ends - padded
    return starts[batch] + before - before[first][batch], length


def _entered(
    octets: Octets, at: Offsets, head: NDArray[np.void], places: NDArray[np.uint64]
) -> Entered:
    rows = np.flatnonzero((head["type"] == PUBLISH) | (head["type"] == ENQUEUE))
    chosen = head[rows]
    entry = np.empty(len(rows), ENTRY)
    entry["position"] = chosen["position"]
    entry["expires_us"] = chosen["expires_us"]
    entry["place"] = places[rows]
    entry["length"] = chosen["length"]
    entry["body_bytes"] = chosen["length"] - np.uint32(RECORD_BYTES) - chosen["envelope"]
    shared = np.flatnonzero(chosen["type"] == ENQUEUE)
    if len(shared):
        if (entry["body_bytes"][shared] != REFERENCE.itemsize).any():
            raise Odd("a reference of another size")
        payload = at[rows[shared]] + RECORD_BYTES + chosen["envelope"][shared].astype(np.int64)
        reference = gather(REFERENCE, octets, payload)
        entry["place"][shared] = reference["place"] | SHARED
        entry["length"][shared] = reference["length"]
        entry["body_bytes"][shared] = reference["body_bytes"]
    return Entered(chosen["queue"].copy(), places[rows], entry)


def _removed(
    octets: Octets,
    at: Offsets,
    lengths: Offsets,
    head: NDArray[np.void],
    places: NDArray[np.uint64],
) -> Removed:
    rows = np.flatnonzero(head["type"] == REMOVE)
    payload = RECORD_BYTES + head["envelope"][rows].astype(np.int64)
    sizes = lengths[rows] - payload
    if (sizes % RANGE.itemsize).any():
        raise Odd("ranges of another size")
    counts = sizes // RANGE.itemsize
    record = np.repeat(np.arange(len(rows)), counts)
    number = np.arange(len(record)) - (np.cumsum(counts) - counts)[record]
    spans = gather(RANGE, octets, (at[rows] + payload)[record] + RANGE.itemsize * number)
    return Removed(head["queue"][rows][record], places[rows][record], spans)


def scan_journal_file(scan: Scan, harmed: Callable[[Harm], None]) -> JournalFile:
    """Read a journal file record by record; damaged records are left out and reported."""
    queues, ats, entries = [], [], []
    gone_queues, gone_ats, spans = [], [], []
    for place, length, record in scan.records():
        try:
            if record.type == PUBLISH:
                told = (place, length, len(record.payload))
            elif record.type == ENQUEUE:
                there, octets, body = decode_reference(record.payload)
                told = (there | int(SHARED), octets, body)
            elif record.type == REMOVE:
                ranges = decode_ranges(record.payload)
                gone_queues += [record.queue] * len(ranges)
                gone_ats += [place] * len(ranges)
                spans += ranges
                continue
            else:
                continue
        except Damaged as damage:
            harmed(Harm(place & int(OFFSET_MASK), length, str(damage)))
            continue
        queues.append(record.queue)
        ats.append(place)
        entries.append((record.position, told[0], record.expires_us, told[1], told[2]))
    for harm in scan.harm:
        harmed(harm)
    return JournalFile(
        Entered(np.array(queues, np.uint64), np.array(ats, np.uint64), np.array(entries, ENTRY)),
        Removed(
            np.array(gone_queues, np.uint64), np.array(gone_ats, np.uint64), np.array(spans, RANGE)
        ),
    )


class JournalEntries:
    """The entries and removals of the wanted queues in the files of a journal, in order."""

    def __init__(self, only: Callable[[int], bool]) -> None:
        self._only = only
        self._entered: dict[int, list[Entered]] = {}
        self._removed: dict[int, list[Removed]] = {}

    @property
    def queue_ids(self) -> set[int]:
        """The queues for which entries were made."""
        return set(self._entered)

    def add(self, file: JournalFile) -> None:
        """Add the contents of the next file."""
        for queue_id, rows in grouped(file.entered.queue):
            if self._only(queue_id):
                self._entered.setdefault(queue_id, []).append(file.entered.only(rows))
        for queue_id, rows in grouped(file.removed.queue):
            if self._only(queue_id):
                self._removed.setdefault(queue_id, []).append(file.removed.only(rows))

    def entered(self, queue_id: int) -> Entered | None:
        parts = self._entered.get(queue_id)
        return None if parts is None else Entered(*map(np.concatenate, zip(*parts, strict=True)))

    def removed(self, queue_id: int) -> Removed | None:
        parts = self._removed.get(queue_id)
        return None if parts is None else Removed(*map(np.concatenate, zip(*parts, strict=True)))


def last_removals(positions: NDArray[np.uint64], removed: Removed) -> NDArray[np.uint64]:
    """The place of the last removal of each position; 0 if it was not removed."""
    left = np.zeros(len(positions), np.uint64)
    if not len(removed.at):
        return left
    start, end = removed.span["start"], removed.span["end"]
    order = np.argsort(start, kind="stable")
    ordered_start, ordered_end = start[order], end[order]
    if (ordered_start[1:] >= ordered_end[:-1]).all():
        found = np.searchsorted(ordered_start, positions, side="right").astype(np.int64) - 1
        inside = (found >= 0) & (positions < ordered_end[found])
        left[inside] = removed.at[order][found[inside]]
        return left
    # Some ranges overlap, so some positions were removed twice. The later removal counts.
    by_position = np.argsort(positions, kind="stable")
    ordered = positions[by_position]
    first = np.searchsorted(ordered, start)
    beyond = np.searchsorted(ordered, end)
    for at, low, high in zip(removed.at, first.tolist(), beyond.tolist(), strict=True):
        left[by_position[low:high]] = at
    return left
