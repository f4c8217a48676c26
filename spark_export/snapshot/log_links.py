"""The log files of a snapshot: hard links to those of the store, or copies.

Answerable for linking each file once, in a generation that contains the records of the entries, and
for finding entries without a record.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from warren.persist.disk.filesystem import FileSystem, RealFileSystem
from warren.persist.layout.format import FILE_HEADER_BYTES, OFFSET_MASK, Damaged, decode_file_header
from warren.persist.log.log_files import parse_file_name, read_survivors
from warren.persist.log.log_writer import file_name
from warren.spark_export.snapshot.layout import grouped

log = logging.getLogger("warren.spark_export")

NO_LINKS = (
    errno.EXDEV,
    errno.EPERM,
    errno.EACCES,
    errno.EROFS,
    errno.EMLINK,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
)
"""The errors of linking where it is impossible and reading may still be possible."""

LOOKS_MAX = 10
"""Attempts to link one file, which may be rewritten at each of them."""

RUNS_MAX = 4096
"""If entries change between files more often than this, they are sorted by file first."""


class Linker:
    """Puts a file into the snapshot. Raises FileNotFoundError, OSError."""

    def put(self, source: Path, target: Path) -> None:
        os.link(source, target)


class Copier(Linker):
    """Copies a file where no links can be made."""

    def put(self, source: Path, target: Path) -> None:
        try:
            shutil.copyfile(source, target)
        except BaseException:
            target.unlink(missing_ok=True)
            raise


Rows: TypeAlias = slice | NDArray[np.intp]


class LinkedFile(NamedTuple):
    """A file of the snapshot. `survivors` are the offsets in a combined file; other files contain
    everything below `size`."""

    path: Path
    size: int
    survivors: NDArray[np.uint64] | None

    def has(self, offsets: NDArray[np.uint64], lengths: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which of the records, by offset in generation 0, the file contains."""
        if self.survivors is None:
            below: NDArray[np.bool_] = offsets + lengths <= np.uint64(self.size)
            return below
        return np.isin(offsets, self.survivors)


class LogLinks:
    """The log files in the snapshot's `directory`, taken from the store's `source`."""

    def __init__(
        self, filesystem: FileSystem, source: Path, directory: Path, linker: Linker
    ) -> None:
        self.copied = isinstance(linker, Copier)
        self._filesystem = filesystem
        self._source = source
        self._directory = directory
        self._linker = linker
        self._links: dict[int, LinkedFile] = {}
        self._generations: dict[int, list[int]] = {}
        self._listed = False

    @property
    def octets(self) -> int:
        """The size of all files together."""
        return sum(linked.size for linked in self._links.values())

    def pin(self, entries: NDArray[np.void]) -> NDArray[np.bool_]:
        """Link the files of the entries; returns which of the entries have a record.

        All entries must have been read from the index before the first file is linked: from then
        on, a file keeps the records of these entries, but may lose others. Raises OSError.
        """
        there = np.zeros(len(entries), np.bool_)
        places = entries["place"]
        offsets = places & np.uint64(OFFSET_MASK)
        lengths = entries["length"]
        for file_id, rows in _by_file(places >> np.uint64(32)):
            file = self._file(file_id)
            if file is not None:
                there[rows] = file.has(offsets[rows], lengths[rows])
        return there

    def _file(self, file_id: int) -> LinkedFile | None:
        """The file in the snapshot; None if it is gone."""
        linked = self._links.get(file_id)
        if linked is None:
            linked = self._put(file_id)
            if linked is not None:
                self._links[file_id] = linked
        return linked

    def _put(self, file_id: int) -> LinkedFile | None:
        for look in range(LOOKS_MAX):
            if look or not self._listed:
                self._list()
            generations = self._generations.get(file_id, [])
            if not generations and look:
                return None
            for generation in reversed(generations):
                path = self._directory / file_name(file_id, generation)
                if self._try_put(path):
                    return self._measure(path)
        raise OSError(f"log file {file_id:08x} changes faster than it can be linked")

    def _try_put(self, path: Path) -> bool:
        """Link or copy one file; False if it no longer exists."""
        source = self._source / path.name
        try:
            self._linker.put(source, path)
        except FileNotFoundError:
            return False
        except OSError as error:
            if self.copied or error.errno not in NO_LINKS:
                raise
            log.warning("snapshot_copies_files directory=%s reason=%r", self._directory, str(error))
            self.copied = True
            self._linker = Copier()
            return self._try_put(path)
        return True

    def _list(self) -> None:
        self._listed = True
        self._generations = {}
        for name in self._filesystem.names(self._source):
            parsed = parse_file_name(name)
            if parsed is not None:
                self._generations.setdefault(parsed[0], []).append(parsed[1])
        for generations in self._generations.values():
            generations.sort()

    def _measure(self, path: Path) -> LinkedFile:
        """Examine a file of the snapshot: its size, and the survivors of a combined file."""
        file = RealFileSystem().open(path, writable=False)
        try:
            size = file.size()
            try:
                combined = decode_file_header(file.read(0, FILE_HEADER_BYTES)).combined
            except Damaged:
                # Its records may be undamaged nevertheless.
                combined = False
            if not combined:
                return LinkedFile(path, size, None)
            try:
                before = np.array(read_survivors(file).before, np.uint64)
            except Damaged as damage:
                log.warning("log_file_damaged path=%s reason=%s", path, damage)
                before = np.empty(0, np.uint64)
            return LinkedFile(path, size, before)
        finally:
            file.close()


def _by_file(file_ids: NDArray[np.uint64]) -> Iterator[tuple[int, Rows]]:
    """The rows of each file: a slice if they are together, as they nearly always are."""
    if not len(file_ids):
        return
    starts = np.concatenate([[0], np.flatnonzero(np.diff(file_ids)) + 1])
    if len(starts) <= RUNS_MAX:
        ends = [*starts[1:].tolist(), len(file_ids)]
        for first, end in zip(starts.tolist(), ends, strict=True):
            yield int(file_ids[first]), slice(first, end)
        return
    yield from grouped(file_ids)
