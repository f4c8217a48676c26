"""The rows to read: index entries of a queue, and the units of work they are cut into.

A snapshot has, for each queue, a file `queues/QQQQQQQQQQQQQQQQ.npy` (queue id as 16 hex digits): an
array of `ENTRY`, ordered by position. A unit names some of its rows.

`SnapshotFiles` reads these files: from a directory of this machine (`LocalFiles`), or from the node
that made the snapshot (`remote_files.py`). Units cross process boundaries, and so do
`SnapshotFiles`: they hold numbers and text only.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from warren.spark_export.errors import SnapshotGone, StoreRefused

ENTRY = np.dtype(
    [
        ("position", "<u8"),
        ("place", "<u8"),
        ("expires_us", "<u8"),
        ("length", "<u4"),
        ("body_bytes", "<u4"),
    ]
)
"""An index entry as in docs/storage-format.md, section 4. Bit 0 of the place says that the record
is shared by queues. Times are microseconds since 1970; 0 is never."""

Entries: TypeAlias = NDArray[np.void]
"""Entries of dtype `ENTRY`, ordered by position."""

NPY_1_0 = b"\x93NUMPY\x01\x00"
DESCRIBED = f"{{'descr': {ENTRY.descr!r}, 'fortran_order': False, 'shape': (".encode("ascii")
HEAD_BYTES = 512
"""Octets to read for the head of such a file; it is shorter."""

READ_ENTRIES_MAX = 4096
"""Entries that are read instead of mapped: mapping a file costs as much as reading this many."""

LOG_DIRECTORY = "log"
QUEUES_DIRECTORY = "queues"


def entries_path(snapshot: Path, queue_id: int) -> Path:
    return snapshot / QUEUES_DIRECTORY / f"{queue_id:016x}.npy"


class EntriesHead(NamedTuple):
    """The offset of the entries in their file, and their number."""

    start: int
    rows: int


def parse_entries_head(head: bytes, path: str) -> EntriesHead:
    """The head in the first `HEAD_BYTES` of the file. Raises OSError."""
    if head[:8] != NPY_1_0 or head[10 : 10 + len(DESCRIBED)] != DESCRIBED:
        raise OSError(f"{path} has no entries as this version knows them")
    count = int(head[10 + len(DESCRIBED) :].partition(b",")[0])
    return EntriesHead(10 + int.from_bytes(head[8:10], "little"), count)


def load_entries(snapshot: Path, queue_id: int) -> Entries:
    """All entries of a queue; many are mapped and not read. Raises `SnapshotGone`, OSError.

    This is `numpy.load` without its millisecond of parsing a head that is the same in all these
    files.
    """
    path = entries_path(snapshot, queue_id)
    try:
        opened = path.open("rb")
    except FileNotFoundError:
        raise SnapshotGone.at(snapshot) from None
    except PermissionError as error:
        raise StoreRefused(
            f"{error}: tasks run as a user who may not read the snapshot; read through the node"
            " instead (load warren://node:15672)"
        ) from error
    with opened as file:
        start, count = parse_entries_head(file.read(HEAD_BYTES), str(path))
        if os.fstat(file.fileno()).st_size < start + count * ENTRY.itemsize:
            raise OSError(f"{path} is not whole")
        if count > READ_ENTRIES_MAX:
            return np.memmap(file, ENTRY, "r", start, (count,))
        file.seek(start)
        entries: Entries = np.fromfile(file, ENTRY, count)
        return entries


class LogOctets(Protocol):
    """A log file of a snapshot, open for reading.

    `key` identifies the contents, for callers that remember facts about them. `whole` is False if
    octets outside the snapshot's messages read as zero: then the checksum of the whole file means
    nothing, but those of its records do.
    """

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def key(self) -> Hashable: ...

    @property
    def whole(self) -> bool: ...

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` octets; fewer at the end of the file. Raises OSError."""
        ...

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill the beginning of `view`, which is not empty; returns the number of octets, 0 at the
        end of the file. Raises OSError."""
        ...

    def close(self) -> None: ...


class SnapshotFiles(Protocol):
    """The files of a snapshot. Can be pickled, and compared.

    `gap_bytes_max`: octets between two records are read with them if they are not more than this,
    because a read of its own costs as much.
    """

    @property
    def gap_bytes_max(self) -> int: ...

    def load_entries(self, queue_id: int) -> Entries:
        """All entries of a queue. Raises `SnapshotGone`, OSError."""
        ...

    def entries(self, queue_id: int, first: int, end: int) -> Entries:
        """Rows [`first`, `end`) of a queue's entries, for callers that read no others. Raises what
        `load_entries` does."""
        ...

    def log_names(self) -> list[str]:
        """The names of the log files. Raises `SnapshotGone`, OSError."""
        ...

    def open_log(self, name: str) -> LogOctets:
        """Open a log file. Raises FileNotFoundError if it is gone, `SnapshotGone` if all are,
        OSError."""
        ...


@dataclass(frozen=True)
class LocalFiles:
    """The files in the directory of a snapshot."""

    directory: Path

    gap_bytes_max = 4096

    @property
    def log_directory(self) -> Path:
        return self.directory / LOG_DIRECTORY

    def load_entries(self, queue_id: int) -> Entries:
        return load_entries(self.directory, queue_id)

    def entries(self, queue_id: int, first: int, end: int) -> Entries:
        return np.array(load_entries(self.directory, queue_id)[first:end])

    def log_names(self) -> list[str]:
        try:
            return os.listdir(self.log_directory)
        except FileNotFoundError:
            raise SnapshotGone.at(self.directory) from None

    def open_log(self, name: str) -> LogOctets:
        try:
            return LocalLogOctets(self.log_directory / name)
        except FileNotFoundError:
            # A snapshot is renamed before the first of its files is removed.
            if not self.log_directory.exists():
                raise SnapshotGone.at(self.directory) from None
            raise


class LocalLogOctets:
    """Reads a file instead of mapping it: a mapped file that is truncated would kill this process.
    Raises OSError."""

    whole = True

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        self.size = status.st_size
        self.key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def read_into(self, view: memoryview, offset: int) -> int:
        return os.preadv(self._fd, [view], offset)

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True)
class Unit:
    """Rows [`first`, `end`) of the entries of one queue, in the snapshot with these files.

    `octets` is the size of their records, for balancing work. `retained`: they were acknowledged.
    """

    files: SnapshotFiles
    vhost: str
    queue: str
    queue_id: int
    first: int
    end: int
    octets: int
    retained: bool = False

    @property
    def rows(self) -> int:
        return self.end - self.first

    def entries(self) -> Entries:
        """The entries of its rows. Raises `SnapshotGone`, OSError."""
        return self.files.entries(self.queue_id, self.first, self.end)
