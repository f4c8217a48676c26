"""An LMDB file: batches of keys and values that are on disk when a write returns.

Answerable for reading only what LMDB can follow, for enlarging the map, and for opening the file
anew after an error. `database_writer.py` writes to it on a thread, again and again while the disk
fails; what keys and values mean is for its users to know (`metadata.py`,
`metadata_replica.py`, `key_file.py`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import lmdb

from warren.persist.definitions.deleted_queues import (
    NO_STORAGES,
    NOTED,
    QUEUE_PREFIX,
    Puts,
    Storages,
    note_key,
)
from warren.persist.definitions.lmdb_file import DamagedLmdb, check_lmdb
from warren.persist.disk.data_directory import DataDirectoryRefused, sync_directory

# LMDB's names.
DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
LOCK_FILE_BYTES = 8192
"""The size that LMDB gives the file for its 126 readers."""
# Address space, not memory or disk: LMDB's file is as long as what was written.
MAP_BYTES_FIRST = 64 << 20
# The address space that x86-64 gives a process; a store that needs more is beyond help.
MAP_BYTES_MAX = 1 << 46

EXPECTED = (OSError, lmdb.Error)
"""The errors of a write to a disk that fails or is full."""

OpenEnvironment: TypeAlias = Callable[[Path, int], "lmdb.Environment"]


class DamagedMetadata(DataDirectoryRefused):
    """The file is damaged, or not one of this store."""


def open_environment(path: Path, map_bytes: int) -> lmdb.Environment:
    """LMDB as this store wants it: synced at each commit, one unnamed database."""
    # As octets: a path may have letters that the locale lacks, or be no text at all.
    octets = os.fsencode(path)
    return lmdb.open(octets, map_size=map_bytes, max_dbs=0, mode=0o600, readahead=False)


class Database:
    """The LMDB environment: written by one thread at a time, opened anew after an error.

    A transaction that takes a queue's storage from the definitions also notes that it was deleted
    (`deleted_queues.py`). `storages_in` reads the storages out of the value of a definition.
    """

    def __init__(
        self,
        path: Path,
        open_environment: OpenEnvironment,
        map_bytes: int,
        storages_in: Callable[[bytes, bytes], Storages],
    ) -> None:
        self.path = path
        self._storages_in = storages_in
        self._open_environment = open_environment
        self._map_bytes = max(map_bytes, 2 * _file_bytes(path))
        self._environment: lmdb.Environment | None = None

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys and values. Raises `DamagedMetadata`.

        LMDB only sees a file that it can follow: others would end the process.
        """
        expect_whole(self.path / DATA_FILE)
        try:
            with self._opened().begin() as transaction:
                yield from transaction.cursor()
        except lmdb.Error as error:
            if os.strerror(errno.ENOSPC) in str(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path)) from error
            raise DamagedMetadata(f"metadata in {self.path} cannot be read: {error!r}") from None

    def write(self, batch: Sequence[Puts]) -> None:
        """Commit a batch; on return it is on disk, after an error none of it counts."""
        while True:
            try:
                self._write_once(batch)
                return
            except lmdb.MapFullError:
                self._enlarge()
            except BaseException:
                # After a failed sync LMDB refuses all use of the environment.
                self.close()
                raise

    def clear(self) -> None:
        """Remove the file, whatever is in it; after a crash it may be there still."""
        self.close()
        (self.path / DATA_FILE).unlink(missing_ok=True)
        (self.path / LOCK_FILE).unlink(missing_ok=True)

    def close(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()

    def _opened(self) -> lmdb.Environment:
        if self._environment is None:
            _make_room_for_locks(self.path / LOCK_FILE)
            self._environment = self._open_environment(self.path, self._map_bytes)
            # LMDB syncs its file, not the entry of the file in the directory.
            sync_directory(self.path)
        return self._environment

    def _write_once(self, batch: Sequence[Puts]) -> None:
        with self._opened().begin(write=True) as transaction:
            for puts in batch:
                for key, value in puts:
                    if key.startswith(QUEUE_PREFIX):
                        self._note_deleted(transaction, key, value)
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, value)

    def _note_deleted(self, transaction: lmdb.Transaction, key: bytes, value: bytes | None) -> None:
        before = transaction.get(key)
        had = self._storages_in(key, bytes(before)) if before is not None else NO_STORAGES
        has = self._storages_in(key, value) if value is not None else NO_STORAGES
        for queue_id in (had.named - has.named) | (had.kept - has.kept):
            transaction.put(note_key(queue_id), NOTED)
        for queue_id in (has.named - had.named) | (has.kept - had.kept):
            transaction.delete(note_key(queue_id))

    def _enlarge(self) -> None:
        if self._map_bytes >= MAP_BYTES_MAX:
            raise OSError(f"metadata in {self.path} would need more than {MAP_BYTES_MAX} bytes")
        self._map_bytes *= 2
        self._opened().set_mapsize(self._map_bytes)


def _make_room_for_locks(path: Path) -> None:
    """Have the file on disk whole, or raise OSError where that is full: LMDB maps the file, and the
    system ends a process that writes to a page of it for which there is no room."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, LOCK_FILE_BYTES)
    except OSError as error:
        # Not every file system can do it, and LMDB does not need it.
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
    finally:
        os.close(fd)


def expect_whole(path: Path) -> None:
    """Look whether LMDB can open a file, if it is there. Raises `DamagedMetadata`, OSError."""
    try:
        if path.stat().st_size:
            check_lmdb(path)
    except FileNotFoundError:
        return
    except DamagedLmdb as damage:
        raise DamagedMetadata(f"{path} is damaged: {damage}") from None


def _file_bytes(path: Path) -> int:
    try:
        return (path / DATA_FILE).stat().st_size
    except FileNotFoundError:
        return 0
