"""What is read: index entries of a queue, and the pieces of work they are cut into.

A snapshot has, for each queue, a file `queues/QQQQQQQQQQQQQQQQ.npy` (queue id as 16 hex digits):
an array of `ENTRY`, ordered by position. A unit names some of its rows. Units cross process
boundaries, so they hold nothing but numbers and text.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from warren.spark_export.errors import SnapshotGone

ENTRY = np.dtype(
    [
        ("position", "<u8"),
        ("place", "<u8"),
        ("expires_us", "<u8"),
        ("length", "<u4"),
        ("body_bytes", "<u4"),
    ]
)
"""An index entry as docs/storage-format.md has it in section 4; bit 0 of the place says that the
record is shared by queues. Times are microseconds since 1970, 0 is never."""

Entries: TypeAlias = NDArray[np.void]
"""Of dtype `ENTRY`, ordered by position."""

NPY_1_0 = b"\x93NUMPY\x01\x00"
DESCRIBED = f"{{'descr': {ENTRY.descr!r}, 'fortran_order': False, 'shape': (".encode("ascii")
HEAD_BYTES = 512
"""More than the head of such a file has."""

READ_ENTRIES_MAX = 4096
"""To map a file costs as much as to read so many."""

LOG_DIRECTORY = "log"
QUEUES_DIRECTORY = "queues"


def entries_path(snapshot: Path, queue_id: int) -> Path:
    return snapshot / QUEUES_DIRECTORY / f"{queue_id:016x}.npy"


def load_entries(snapshot: Path, queue_id: int) -> Entries:
    """All entries of a queue; many are mapped and not read. Raises `SnapshotGone`, OSError.

    As `numpy.load`, which takes a millisecond to understand what is the same in all these files.
    """
    path = entries_path(snapshot, queue_id)
    try:
        opened = path.open("rb")
    except FileNotFoundError:
        raise SnapshotGone.at(snapshot) from None
    with opened as file:
        head = file.read(HEAD_BYTES)
        start = 10 + int.from_bytes(head[8:10], "little")
        if head[:8] != NPY_1_0 or head[10 : 10 + len(DESCRIBED)] != DESCRIBED:
            raise OSError(f"{path} has no entries as this version knows them")
        count = int(head[10 + len(DESCRIBED) :].partition(b",")[0])
        if os.fstat(file.fileno()).st_size < start + count * ENTRY.itemsize:
            raise OSError(f"{path} is not whole")
        if count > READ_ENTRIES_MAX:
            return np.memmap(file, ENTRY, "r", start, (count,))
        file.seek(start)
        entries: Entries = np.fromfile(file, ENTRY, count)
        return entries


@dataclass(frozen=True)
class Unit:
    """Rows [`first`, `end`) of the entries of one queue, in the snapshot at this directory.

    `octets`: of their records, for those who balance work.
    """

    snapshot: str
    vhost: str
    queue: str
    queue_id: int
    first: int
    end: int
    octets: int

    @property
    def rows(self) -> int:
        return self.end - self.first

    @property
    def log_directory(self) -> Path:
        return Path(self.snapshot) / LOG_DIRECTORY

    def entries(self) -> Entries:
        """Its rows. Raises `SnapshotGone`, OSError."""
        return np.array(load_entries(Path(self.snapshot), self.queue_id)[self.first : self.end])
