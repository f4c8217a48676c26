"""The log files of a snapshot: hard links to those of the store, or copies.

Answerable for each file being there once, in a generation that has what entries lead to, and for
saying which entries lead nowhere.
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
"""What linking fails with where it is impossible, and reading may not be."""

LOOKS_MAX = 10
"""For a file that is written anew whenever it is to be linked."""

RUNS_MAX = 4096
"""Entries that change between files more often than that are sorted by file first."""


class Linker:
    """Puts a file into the snapshot. Raises FileNotFoundError, OSError."""

    def put(self, source: Path, target: Path) -> None:
        os.link(source, target)


class Copier(Linker):
    """The same where no links can be made."""

    def put(self, source: Path, target: Path) -> None:
        try:
            shutil.copyfile(source, target)
        except BaseException:
            target.unlink(missing_ok=True)
            raise


Rows: TypeAlias = slice | NDArray[np.intp]


class LinkedFile(NamedTuple):
    """`survivors` are the offsets a combined file has; otherwise it has everything below `size`."""

    path: Path
    size: int
    survivors: NDArray[np.uint64] | None

    def has(self, offsets: NDArray[np.uint64], lengths: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which of the records, by offset in generation 0, are there."""
        if self.survivors is None:
            below: NDArray[np.bool_] = offsets + lengths <= np.uint64(self.size)
            return below
        return np.isin(offsets, self.survivors)


class LogLinks:
    """The files in `directory`, from the store's `source`."""

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
        """Of all files."""
        return sum(linked.size for linked in self._links.values())

    def pin(self, entries: NDArray[np.void]) -> NDArray[np.bool_]:
        """Have the files the entries lead to; which of the entries lead somewhere.

        All entries must have been found before the first file is: a file has what they lead to from
        then on, and may be given up for what they do not. Raises OSError.
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
        """The file, in the snapshot; None when it is gone."""
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
        """False when there is no such file any more."""
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
        """What a file of the snapshot has."""
        file = RealFileSystem().open(path, writable=False)
        try:
            size = file.size()
            try:
                combined = decode_file_header(file.read(0, FILE_HEADER_BYTES)).combined
            except Damaged:
                # Its records may be whole all the same.
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
    """The rows of each file: a slice where they stand together, which is so nearly always."""
    if not len(file_ids):
        return
    starts = np.concatenate([[0], np.flatnonzero(np.diff(file_ids)) + 1])
    if len(starts) <= RUNS_MAX:
        ends = [*starts[1:].tolist(), len(file_ids)]
        for first, end in zip(starts.tolist(), ends, strict=True):
            yield int(file_ids[first]), slice(first, end)
        return
    yield from grouped(file_ids)
