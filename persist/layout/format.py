"""Every byte of every file of the message storage; `docs/storage-format.md` is the same in prose.

All integers are little-endian. A *place* is the address of a record for ever: the number of its
file in the upper 32 bits (the highest bit set in the transient store), the offset of the record in
the first generation of that file in the lower ones. Records start at multiples of eight, so the
lowest bit of a place is free: in an index entry it says that the record is shared by queues.

A file of the log is a header, then batches, then, once it is full, a footer. A batch is what was
written and synced at once: a header, records, and the lengths of the records, by which records
are found even when one between them is damaged. A batch is begun when the one before is synced:
where a batch stands, everything before it was whole.

A segment file of a queue index is a header and frames; each adds entries and takes away others.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from msgspec import Struct

FORMAT_VERSION = 1

TRANSIENT = 1 << 63
"""The bit of a place that means: in the transient store, which is emptied at start."""
SHARED = 1
"""The bit of a place in an index entry that means: counted by references."""
OFFSET_MASK = 0xFFFFFFFE
SEGMENT_ENTRIES = 16384
"""Positions a segment of a queue index covers (storage_internals.md section 0)."""

FILE_MAGIC = b"WARRENLG"
BATCH_MAGIC = b"BTCH"
FOOTER_MAGIC = b"FOOT"
SURVIVORS_MAGIC = b"MOVD"
SEGMENT_MAGIC = b"WARRENIX"
FRAME_MAGIC = b"FRAM"
CHECKPOINT_MAGIC = b"WARRENCP"
CLEAN_MAGIC = b"WARRENCL"
COUNTS_MAGIC = b"WARRENDC"

PUBLISH = 1
"""A message of one queue: envelope and body."""
SHARED_MESSAGE = 2
"""A message several queues refer to: envelope and body."""
ENQUEUE = 3
"""A queue's reference to a shared message."""
REMOVE = 4
"""Ranges of positions that left a queue."""
RETURNED = 5
"""How often messages of a queue were returned, and which of them are dead."""
MARK_SHIFT = 32
"""Bits of the count in such a number; above is why the message is dead, 0 while it lives."""
COUNT_MAX = (1 << MARK_SHIFT) - 1

PERSISTENT = 1
"""Flag of a record: the message was published with delivery mode 2."""

_FILE = struct.Struct("<8sHHI16sIIQ12xI")
FILE_HEADER_BYTES = 64
_BATCH = struct.Struct("<4sIIIQ4xI")
BATCH_HEADER_BYTES = _BATCH.size
_FOOTER = struct.Struct("<4sIQII")
FOOTER_BYTES = _FOOTER.size
RECORD = struct.Struct("<IIBBHIQQQQ")
RECORD_BYTES = RECORD.size
_RECORD_TAIL = struct.Struct("<BBHIQQQQ")
_SURVIVORS = struct.Struct("<4sIII")
_REFERENCE = struct.Struct("<QII")
_SEGMENT = struct.Struct("<8sHHIQQ4x")
SEGMENT_HEADER_BYTES = _SEGMENT.size + 4
_FRAME = struct.Struct("<4sIIIQII")
FRAME_HEADER_BYTES = _FRAME.size
_CHECKPOINT = struct.Struct("<8sH2xI16sQ")
_CLEAN = struct.Struct("<8sHHI16sQ")
_COUNTS = struct.Struct("<8sHHI16s")
_COUNT = struct.Struct("<QQQ")
_CRC = struct.Struct("<I")

_pack_tail = _RECORD_TAIL.pack


class Damaged(Exception):
    """Octets on disk are not what was written; the text says which."""


class NewerStorage(Exception):
    """A file of a later format."""


class Harm(NamedTuple):
    """Octets of a file that are not what was written."""

    offset: int
    size: int
    reason: str


def aligned(size: int) -> int:
    return size + 7 & ~7


# Places


def place_of(file_id: int, offset: int) -> int:
    return file_id << 32 | offset


def file_of(place: int) -> int:
    """The number of the file; for the transient store with its highest bit set."""
    return place >> 32


# The header of a file


class FileHeader(NamedTuple):
    """`start` counts the starts of the node; positions given out since begin with it.

    `combined`: the file was written anew without what was dead, and has no batches.
    """

    node_id: bytes
    file_id: int
    generation: int
    start: int
    created_us: int
    combined: bool = False


def encode_file_header(header: FileHeader) -> bytes:
    node_id, file_id, generation, start, created_us, combined = header
    whole = _FILE.pack(
        FILE_MAGIC, FORMAT_VERSION, combined, file_id, node_id, generation, start, created_us, 0
    )
    return whole[:-4] + _CRC.pack(crc32(whole[:-4]))


def decode_file_header(data: bytes) -> FileHeader:
    """Raises `Damaged` or `NewerStorage`."""
    if len(data) < FILE_HEADER_BYTES or data[:8] != FILE_MAGIC:
        raise Damaged("no header of a log file")
    _, version, combined, file_id, node_id, generation, start, created_us, crc = _FILE.unpack_from(
        data
    )
    if crc32(data[: FILE_HEADER_BYTES - 4]) != crc:
        raise Damaged("checksum of the file header")
    if version > FORMAT_VERSION:
        raise NewerStorage(f"log file of format {version}, this version reads {FORMAT_VERSION}")
    return FileHeader(node_id, file_id, generation, start, created_us, bool(combined))


# Batches and footers


class BatchHeader(NamedTuple):
    """`records_bytes` follow, then the lengths of so many `records`."""

    records_bytes: int
    records: int
    lengths_crc: int
    place: int


def encode_batch(
    place: int, records_bytes: int, parts: Iterable[bytes], lengths: array[int]
) -> bytes:
    """A batch of records.

    `parts` are their octets, padded, and `records_bytes` how many; `lengths` are those of the
    records. They are joined once: a batch may be of some megabytes.
    """
    table = lengths.tobytes()
    head = _BATCH.pack(BATCH_MAGIC, records_bytes, len(lengths), crc32(table), place, 0)[:-4]
    padding = bytes(-len(table) & 7)
    return b"".join((head, _CRC.pack(crc32(head)), *parts, table, padding))


def batch_bytes(records_bytes: int, count: int) -> int:
    """How many octets a batch takes on disk."""
    return BATCH_HEADER_BYTES + records_bytes + aligned(4 * count)


def decode_batch_header(data: bytes, place: int) -> BatchHeader | None:
    """The header of the batch that should stand at `place`; None when there is none."""
    if len(data) < BATCH_HEADER_BYTES or data[:4] != BATCH_MAGIC:
        return None
    _, records_bytes, count, lengths_crc, where, crc = _BATCH.unpack_from(data)
    if crc32(data[: BATCH_HEADER_BYTES - 4]) != crc or where != place:
        return None
    return BatchHeader(records_bytes, count, lengths_crc, where)


class Footer(NamedTuple):
    """`crc` is that of every octet of the file before the footer, `size` how many there are."""

    batches: int
    size: int
    crc: int


def encode_footer(footer: Footer) -> bytes:
    head = _FOOTER.pack(FOOTER_MAGIC, footer.batches, footer.size, footer.crc, 0)[:-4]
    return head + _CRC.pack(crc32(head))


def decode_footer(data: bytes) -> Footer | None:
    if len(data) < FOOTER_BYTES or data[:4] != FOOTER_MAGIC:
        return None
    _, batches, size, crc, own_crc = _FOOTER.unpack_from(data)
    if crc32(data[: FOOTER_BYTES - 4]) != own_crc:
        return None
    return Footer(batches, size, crc)


# Files written anew


class Survivors(NamedTuple):
    """The records of a combined file: where they were, where they are, how long they are."""

    before: array[int]
    after: array[int]
    lengths: array[int]


def encode_survivors(survivors: Survivors) -> bytes:
    """The end of a combined file, after its records."""
    table = b"".join(column.tobytes() for column in survivors)
    tail = _SURVIVORS.pack(SURVIVORS_MAGIC, len(survivors.before), crc32(table), 0)[:-4]
    return table + tail + _CRC.pack(crc32(tail))


def survivors_bytes(count: int) -> int:
    """Octets of the table of `count` records, at the end of a combined file."""
    return 12 * count + _SURVIVORS.size


def decode_survivors(data: bytes) -> Survivors:
    """Decode the table from the octets at the end of a combined file. Raises `Damaged`."""
    tail = data[-_SURVIVORS.size :]
    if len(tail) < _SURVIVORS.size or tail[:4] != SURVIVORS_MAGIC:
        raise Damaged("no end of a combined file")
    _, count, table_crc, crc = _SURVIVORS.unpack(tail)
    table = data[: -_SURVIVORS.size][-12 * count :] if count else b""
    if crc32(tail[:-4]) != crc or len(table) != 12 * count or crc32(table) != table_crc:
        raise Damaged("checksum of the table of a combined file")
    return Survivors(*(array("I", table[at * 4 * count : (at + 1) * 4 * count]) for at in range(3)))


# Records


class Record(Struct, frozen=True, gc=False):
    """A record as it was read.

    For REMOVE, `position` is the number of ranges in `payload`, for RETURNED that of pairs.
    """

    type: int
    flags: int
    queue: int
    position: int
    expires_us: int
    enqueued_us: int
    envelope: bytes
    payload: bytes


def record_head(
    kind: int,
    flags: int,
    queue: int,
    position: int,
    expires_us: int,
    enqueued_us: int,
    envelope: bytes,
    envelope_crc: int,
    payload: bytes,
) -> bytes:
    """The fixed part of a record; envelope and payload follow it.

    The checksum is over envelope, payload and the fixed part, in that order: that of an envelope
    which is used again and again is computed once.
    """
    tail = _pack_tail(kind, flags, 0, len(envelope), queue, position, expires_us, enqueued_us)
    length = RECORD_BYTES + len(envelope) + len(payload)
    crc = crc32(tail, crc32(payload, envelope_crc))
    return (length | crc << 32).to_bytes(8, "little") + tail


def decode_record(data: bytes, at: int, length: int) -> Record:
    """The record of that length. Raises `Damaged`."""
    if length < RECORD_BYTES or at + length > len(data):
        raise Damaged(f"a record of {length} octets, {len(data) - at} are there")
    said, crc, kind, flags, _, envelope_length, queue, position, expires_us, enqueued_us = (
        RECORD.unpack_from(data, at)
    )
    body_at = at + RECORD_BYTES + envelope_length
    end = at + length
    if said != length or body_at > end:
        raise Damaged(f"a record of {said} octets where one of {length} was written")
    envelope = data[at + RECORD_BYTES : body_at]
    payload = data[body_at:end]
    if crc32(data[at + 8 : at + RECORD_BYTES], crc32(payload, crc32(envelope))) != crc:
        raise Damaged("checksum of the record")
    return Record(kind, flags, queue, position, expires_us, enqueued_us, envelope, payload)


class Reference(NamedTuple):
    """The record of the shared message that an ENQUEUE refers to, and the size of its body."""

    place: int
    length: int
    body_bytes: int


def encode_reference(reference: Reference) -> bytes:
    return _REFERENCE.pack(*reference)


def decode_reference(payload: bytes) -> Reference:
    """Raises `Damaged`."""
    if len(payload) != _REFERENCE.size:
        raise Damaged(f"a reference of {len(payload)} octets")
    return Reference(*_REFERENCE.unpack(payload))


def encode_ranges(ranges: Sequence[tuple[int, int]]) -> bytes:
    flat = array("Q")
    for span in ranges:
        flat.extend(span)
    return flat.tobytes()


def decode_ranges(payload: bytes) -> list[tuple[int, int]]:
    """Raises `Damaged`."""
    if len(payload) % 16:
        raise Damaged(f"ranges of {len(payload)} octets")
    flat = array("Q", payload)
    return list(zip(flat[::2], flat[1::2], strict=True))


# Segments of a queue index


class SegmentHeader(NamedTuple):
    queue: int
    number: int
    generation: int


def encode_segment_header(header: SegmentHeader) -> bytes:
    head = _SEGMENT.pack(
        SEGMENT_MAGIC, FORMAT_VERSION, 0, header.generation, header.queue, header.number
    )
    return head + _CRC.pack(crc32(head))


def decode_segment_header(data: bytes) -> SegmentHeader:
    """Raises `Damaged` or `NewerStorage`."""
    if len(data) < SEGMENT_HEADER_BYTES or data[:8] != SEGMENT_MAGIC:
        raise Damaged("no header of a segment")
    _, version, _, generation, queue, number = _SEGMENT.unpack_from(data)
    if _CRC.unpack_from(data, _SEGMENT.size)[0] != crc32(data[: _SEGMENT.size]):
        raise Damaged("checksum of the segment header")
    if version > FORMAT_VERSION:
        raise NewerStorage(f"segment of format {version}, this version reads {FORMAT_VERSION}")
    return SegmentHeader(queue, number, generation)


class SegmentChange(NamedTuple):
    """The changes of a segment: entries in columns, and the positions that left it, as ranges.

    `place`: every record of the journal before it is taken into account. `relative` are the
    positions of the entries, and the ends of the ranges in `removed`, counted from the start of
    the segment. `transient` is 0, or the start of the node (see `FileHeader`) with which the
    entries of the frame end: they lead into the transient store.
    """

    transient: int
    place: int
    relative: array[int]
    places: array[int]
    expires: array[int]
    lengths: array[int]
    sizes: array[int]
    removed: array[int]


def encode_frame(frame: SegmentChange) -> bytes:
    count, removed = len(frame.relative), len(frame.removed)
    payload = b"".join(
        (
            frame.places.tobytes(),
            frame.expires.tobytes(),
            frame.lengths.tobytes(),
            frame.sizes.tobytes(),
            frame.relative.tobytes(),
            frame.removed.tobytes(),
            bytes(-2 * (count + removed) & 7),
        )
    )
    head = _FRAME.pack(FRAME_MAGIC, frame.transient, count, removed, frame.place, len(payload), 0)
    return head[:-4] + _CRC.pack(crc32(payload, crc32(head[:-4]))) + payload


def decode_frame(data: bytes, at: int) -> tuple[SegmentChange, int] | None:
    """The frame there and where it ends; None when there is no whole one."""
    if at + FRAME_HEADER_BYTES > len(data) or data[at : at + 4] != FRAME_MAGIC:
        return None
    _, transient, count, removed, place, payload_bytes, crc = _FRAME.unpack_from(data, at)
    start = at + FRAME_HEADER_BYTES
    end = start + payload_bytes
    if end > len(data) or payload_bytes != _frame_payload_bytes(count, removed):
        return None
    if crc32(data[start:end], crc32(data[at : start - 4])) != crc:
        return None
    columns = []
    for kind, items in (("Q", count), ("Q", count), ("I", count), ("I", count)):
        column = array(kind)
        size = column.itemsize * items
        column.frombytes(data[start : start + size])
        columns.append(column)
        start += size
    places, expires, lengths, sizes = columns
    relative = array("H", data[start : start + 2 * count])
    gone = array("H", data[start + 2 * count : start + 2 * (count + removed)])
    return SegmentChange(transient, place, relative, places, expires, lengths, sizes, gone), end


def frame_size(data: bytes, at: int) -> int | None:
    """The size of the frame there, as it says itself; None when it does not look like a frame."""
    if at + FRAME_HEADER_BYTES > len(data) or data[at : at + 4] != FRAME_MAGIC:
        return None
    payload_bytes: int = _FRAME.unpack_from(data, at)[5]
    size = FRAME_HEADER_BYTES + payload_bytes
    return size if at + size <= len(data) else None


class FrameHead(NamedTuple):
    """The head of a frame, whether the frame is whole or not; see `SegmentChange`."""

    transient: int
    entries: int
    removed: int
    place: int


def frame_head(data: bytes, at: int) -> FrameHead | None:
    """The head of the frame there; None when there is none, or not all of it was written."""
    if at + FRAME_HEADER_BYTES > len(data) or data[at : at + 4] != FRAME_MAGIC:
        return None
    _, transient, entries, removed, place, payload_bytes, _ = _FRAME.unpack_from(data, at)
    if payload_bytes != _frame_payload_bytes(entries, removed):
        return None
    return FrameHead(transient, entries, removed, place)


def _frame_payload_bytes(entries: int, removed: int) -> int:
    return 24 * entries + aligned(2 * (entries + removed))


# Checkpoint and clean stop


class Checkpoint(NamedTuple):
    """Everything in the journal before `place` is in the queue indexes. `start`: see FileHeader."""

    node_id: bytes
    place: int
    start: int


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    node_id, place, start = checkpoint
    head = _CHECKPOINT.pack(CHECKPOINT_MAGIC, FORMAT_VERSION, start, node_id, place)
    return head + _CRC.pack(crc32(head))


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Raises `Damaged` or `NewerStorage`."""
    if len(data) != _CHECKPOINT.size + 4 or data[:8] != CHECKPOINT_MAGIC:
        raise Damaged("no checkpoint")
    _, version, start, node_id, place = _CHECKPOINT.unpack_from(data)
    if _CRC.unpack_from(data, _CHECKPOINT.size)[0] != crc32(data[: _CHECKPOINT.size]):
        raise Damaged("checksum of the checkpoint")
    if version > FORMAT_VERSION:
        raise NewerStorage(f"storage of format {version}, this version reads {FORMAT_VERSION}")
    return Checkpoint(node_id, place, start)


def encode_clean(node_id: bytes, end: int, delivered_below: Sequence[tuple[int, int]]) -> bytes:
    """The node stopped with its journal ending at `end`.

    `delivered_below`: queues, and the position from which nothing of them was ever delivered.
    """
    head = _CLEAN.pack(CLEAN_MAGIC, FORMAT_VERSION, 0, len(delivered_below), node_id, end)
    body = head + encode_ranges(delivered_below)
    return body + _CRC.pack(crc32(body))


def decode_clean(data: bytes) -> tuple[bytes, int, dict[int, int]]:
    """The node's id, the end of the journal, the positions by queue. Raises `Damaged`."""
    if len(data) < _CLEAN.size + 4 or data[:8] != CLEAN_MAGIC:
        raise Damaged("no note of a clean stop")
    if _CRC.unpack_from(data, len(data) - 4)[0] != crc32(data[:-4]):
        raise Damaged("checksum of the note of a clean stop")
    _, _, _, count, node_id, end = _CLEAN.unpack_from(data)
    delivered_below = decode_ranges(data[_CLEAN.size : -4])
    if len(delivered_below) != count:
        raise Damaged(f"{len(delivered_below)} queues where {count} were written")
    return node_id, end, dict(delivered_below)


# Delivery counts


class DeliveryCount(NamedTuple):
    """How often the message of that position in that queue was returned, and its dead mark above
    `MARK_SHIFT`."""

    queue: int
    position: int
    times: int


def encode_counts(node_id: bytes, counts: Sequence[DeliveryCount]) -> bytes:
    """Encode the counts in the journal before a checkpoint, which the checkpoint keeps."""
    head = _COUNTS.pack(COUNTS_MAGIC, FORMAT_VERSION, 0, len(counts), node_id)
    body = head + b"".join([_COUNT.pack(*count) for count in counts])
    return body + _CRC.pack(crc32(body))


def decode_counts(data: bytes) -> tuple[bytes, list[DeliveryCount]]:
    """The node's id and the counts. Raises `Damaged` or `NewerStorage`."""
    if len(data) < _COUNTS.size + 4 or data[:8] != COUNTS_MAGIC:
        raise Damaged("no delivery counts")
    _, version, _, count, node_id = _COUNTS.unpack_from(data)
    if _CRC.unpack_from(data, len(data) - 4)[0] != crc32(data[:-4]):
        raise Damaged("checksum of the delivery counts")
    if version > FORMAT_VERSION:
        raise NewerStorage(f"storage of format {version}, this version reads {FORMAT_VERSION}")
    body = data[_COUNTS.size : -4]
    if len(body) != count * _COUNT.size:
        raise Damaged(f"{len(body)} octets where {count} delivery counts were written")
    return node_id, [DeliveryCount(*entry) for entry in _COUNT.iter_unpack(body)]
