"""Reads a file of the log batch by batch, and says what is wrong with it.

Answerable for telling a torn end from damage. A batch is written when the one before it is
synced. So a batch that is not whole is torn when nothing stands behind it, and damaged when
something does: the caller says whether a later file does, a later batch in the same file is seen
here. Of a damaged batch every record that its own checksum vouches for is used.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from warren.persist.disk.filesystem import File
from warren.persist.layout.format import (
    BATCH_HEADER_BYTES,
    FOOTER_BYTES,
    BatchHeader,
    Damaged,
    Harm,
    Record,
    aligned,
    batch_bytes,
    decode_batch_header,
    decode_footer,
    decode_record,
    place_of,
)

ROOM_BYTES = 256 << 10
"""So many zeros may follow what was written last in a file of the log."""


def is_room(file: File, offset: int, size: int) -> bool:
    """Whether these octets, if any, are no more than room for what was to come.

    May raise OSError.
    """
    return size <= 0 or (size <= ROOM_BYTES and file.read(offset, size).count(0) == size)


class FoundRecord(NamedTuple):
    """A whole record, its place and length."""

    place: int
    length: int
    record: Record


class Scan:
    """One pass over the batches of a file from an offset on.

    After `records` is exhausted, `end` is where the last batch ends, `harm` what was passed over,
    `torn` how many octets behind `end` belong to a batch that was never finished, `sealed` whether
    a footer follows, and `room` how many zeros there are instead, for batches to come. `complete`
    (given): a later file has a batch, so nothing here can be torn.
    """

    def __init__(self, file: File, file_id: int, offset: int, *, complete: bool) -> None:
        self._file = file
        self._file_id = file_id
        self._complete = complete
        self.end = offset
        self.harm: list[Harm] = []
        self.torn = 0
        self.room = 0
        self.sealed = False
        self.batches = 0

    def records(self) -> Iterator[FoundRecord]:
        """Every whole record, in order. May raise OSError."""
        while True:
            head = self._file.read(self.end, BATCH_HEADER_BYTES)
            header = decode_batch_header(head, place_of(self._file_id, self.end))
            if header is None:
                self._finish(head)
                return
            size = batch_bytes(header.records_bytes, header.records)
            found, harm = self._read_batch(header, size)
            if harm:
                if not self._followed(self.end + size):
                    self.torn = self._unfinished(self._file.size())
                    return
                # Beside a node that runs, the batch may have been finished since it was read.
                found, harm = self._read_batch(header, size)
            self.harm += harm
            self.end += size
            self.batches += 1
            yield from found

    def _finish(self, head: bytes) -> None:
        size = self._file.size()
        rest = size - self.end
        if rest <= 0:
            if rest and not self.harm:
                self.harm.append(Harm(size, -rest, "the file ends before what was written"))
            return
        footer = decode_footer(head[:FOOTER_BYTES])
        if footer is not None and footer.size == self.end:
            self.sealed = True
        elif is_room(self._file, self.end, rest):
            self.room = rest
        elif not self._complete:
            self.torn = self._unfinished(size)
        elif not is_room(self._file, self.end + FOOTER_BYTES, rest - FOOTER_BYTES):
            # Neither a footer nor the room that ended with it is synced: part of it is none.
            self.harm.append(Harm(self.end, rest, "no batch where one should start"))

    def _unfinished(self, size: int) -> int:
        """How many octets there are behind `end`, but for room at the end of the file."""
        room_at = max(self.end, size - ROOM_BYTES)
        tail = self._file.read(room_at, size - room_at)
        return room_at - self.end + len(tail.rstrip(b"\0"))

    def _read_batch(self, header: BatchHeader, size: int) -> tuple[list[FoundRecord], list[Harm]]:
        data = self._file.read(self.end + BATCH_HEADER_BYTES, size - BATCH_HEADER_BYTES)
        found, harm = self._parse(header, data)
        missing = size - BATCH_HEADER_BYTES - len(data)
        if missing and not harm:
            harm.append(Harm(self.end + size - missing, missing, "the end of a batch is missing"))
        return found, harm

    def _followed(self, at: int) -> bool:
        """Whether something proves that the batch which ends there was synced."""
        if self._complete:
            return True
        head = self._file.read(at, BATCH_HEADER_BYTES)
        if decode_batch_header(head, place_of(self._file_id, at)) is not None:
            return True
        footer = decode_footer(head[:FOOTER_BYTES])
        return footer is not None and footer.size == at

    def _parse(self, header: BatchHeader, data: bytes) -> tuple[list[FoundRecord], list[Harm]]:
        found: list[FoundRecord] = []
        harm: list[Harm] = []
        base = self.end + BATCH_HEADER_BYTES
        at = 0
        for length in self._lengths(header, data, harm):
            try:
                record = decode_record(data, at, length)
            except Damaged as damage:
                harm.append(Harm(base + at, length, str(damage)))
            else:
                found.append(FoundRecord(place_of(self._file_id, base + at), length, record))
            at += aligned(length)
        return found, harm

    def _lengths(self, header: BatchHeader, data: bytes, harm: list[Harm]) -> Iterator[int]:
        """The lengths of the records, from the table or, when that is damaged, from themselves."""
        table = data[header.records_bytes : header.records_bytes + 4 * header.records]
        if len(table) == 4 * header.records and crc32(table) == header.lengths_crc:
            yield from array("I", table)
            return
        base = self.end + BATCH_HEADER_BYTES
        harm.append(Harm(base + header.records_bytes, 4 * header.records, "table of lengths"))
        at = 0
        for _ in range(header.records):
            length = int.from_bytes(data[at : at + 4], "little")
            if not length or at + length > header.records_bytes:
                harm.append(Harm(base + at, header.records_bytes - at, "lengths of the records"))
                return
            yield length
            at += aligned(length)
