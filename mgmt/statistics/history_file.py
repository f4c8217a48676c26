"""The file that keeps histories over a restart of the node.

A new file is written beside the old one and renamed when it is whole, so that one of the two is
always there. A record is a MessagePack array: the kind of object, its key, and its rings as
`History.stored` gives them. docs/storage-format.md, section 11, has every octet.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path
from struct import Struct
from zlib import crc32

import msgspec

from warren.persist.disk.filesystem import File, FileSystem

FILE = "statistics.history"
NEW = ".new"
MAGIC = b"WARRENHS"
FORMAT = 1
RECORD_OCTETS_MAX = 1 << 24

HEADER = Struct("<8sHxxdI")
"""Magic, format, the offset from the node's clock to seconds since 1970, and the checksum of
these."""

HEAD = Struct("<II")
"""The head of each record: its length and its checksum."""

END = bytes(HEAD.size)
"""Follows the last record."""

_CRC_OCTETS = 4


class HistoryFileDamaged(Exception):
    """The file cannot be used."""


class StoredHistory(msgspec.Struct, array_like=True, frozen=True):
    """A record; `rings` are as `Ring.stored` gives them."""

    kind: str
    key: tuple[str | int, ...]
    rings: list[bytes]


class HistoryWriter:
    """Writes a file, in pieces. Its methods may wait for the disk, and raise OSError."""

    def __init__(self, filesystem: FileSystem, directory: Path, wall_offset_s: float) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._new = directory / (FILE + NEW)
        # An earlier writer may have left an unfinished file of this name.
        filesystem.remove(self._new)
        self._file = filesystem.create(self._new)
        self._size = 0
        self.write(_header(wall_offset_s))

    def write(self, records: bytes) -> None:
        self._file.write(self._size, records)
        self._size += len(records)

    def finish(self) -> None:
        """Make the file durable and put it in the place of the old one."""
        try:
            self.write(END)
            self._file.sync()
        finally:
            self._file.close()
        self._filesystem.rename(self._new, self._directory / FILE)
        self._filesystem.sync_directory(self._directory)

    def give_up(self) -> None:
        self._file.close()


def _header(wall_offset_s: float) -> bytes:
    header = HEADER.pack(MAGIC, FORMAT, wall_offset_s, 0)
    checksum = crc32(header[:-_CRC_OCTETS])
    return header[:-_CRC_OCTETS] + checksum.to_bytes(_CRC_OCTETS, "little")


def encoded(kind: str, key: Hashable, rings: list[bytes]) -> bytes:
    """A record as it is in the file."""
    record = msgspec.msgpack.encode((kind, key, rings))
    return HEAD.pack(len(record), crc32(record)) + record


def read(filesystem: FileSystem, directory: Path) -> tuple[float, Iterator[StoredHistory]] | None:
    """The offset to the time of day, and the records; None if there is no file.

    Raises OSError and `HistoryFileDamaged`; so does the iterator.
    """
    try:
        file = filesystem.open(directory / FILE, writable=False)
    except FileNotFoundError:
        return None
    header = file.read(0, HEADER.size)
    if len(header) == HEADER.size:
        wall_offset_s: float = HEADER.unpack(header)[2]
        if header == _header(wall_offset_s):
            return wall_offset_s, _records(file)
    file.close()
    raise HistoryFileDamaged(f"it begins with {header!r}")


def _records(file: File) -> Iterator[StoredHistory]:
    decode = msgspec.msgpack.Decoder(StoredHistory).decode
    place = HEADER.size
    try:
        while True:
            head = file.read(place, HEAD.size)
            if len(head) < HEAD.size:
                raise HistoryFileDamaged("it ends too early")
            length, checksum = HEAD.unpack(head)
            if head == END:
                return
            record = file.read(place + HEAD.size, min(length, RECORD_OCTETS_MAX))
            if len(record) != length or crc32(record) != checksum:
                raise HistoryFileDamaged(f"the record at octet {place} is damaged")
            try:
                yield decode(record)
            except msgspec.DecodeError as problem:
                raise HistoryFileDamaged(f"{problem}, at octet {place}") from None
            place += HEAD.size + length
    finally:
        file.close()
