"""Reads the definitions of a node beside it, without a trace in its directory.

Beside a member of a cluster, the definitions of the cluster are read, as the member last knew them.

LMDB's own way, a reader with a lock, writes into the lock file; a reader without one may find
pages written anew under it. So the file is copied and the copy is read. LMDB never changes a page
that belongs to the last two states; its first pages say which those are. If they are the same
after copying as before, then a state was copied whole.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import lmdb

from warren.core.definitions.record_format import encode_path
from warren.core.ports import Stored
from warren.persist.definitions.database import DamagedMetadata
from warren.persist.definitions.deleted_queues import PREFIX, noted_queue
from warren.persist.definitions.lmdb_file import DamagedLmdb, check_lmdb
from warren.persist.definitions.metadata import DIRECTORY, decode_definition
from warren.persist.definitions.metadata_replica import DIRECTORY as CLUSTER_DIRECTORY
from warren.persist.definitions.metadata_replica import decode_replicated

FILE = "data.mdb"

HEAD_BYTES = 1 << 16
"""So many octets hold the two pages that name the last states, whatever the size of a page is."""

TRIES_MAX = 100
RETRY_S = 0.01


def definitions_directory(data_directory: Path) -> Path:
    """Where a node has its definitions; a member of a cluster does not use its own."""
    cluster = data_directory / CLUSTER_DIRECTORY
    return cluster if (cluster / FILE).exists() else data_directory / DIRECTORY


Decode: TypeAlias = Callable[[bytes, bytes], Stored]


def read_definitions(
    data_directory: Path,
    kind: str,
    *,
    pause: Callable[[float], None],
    damaged: Callable[[DamagedMetadata], None] | None = None,
) -> Iterator[Stored]:
    """The definitions of one kind. Raises `DamagedMetadata`, `NewerFormat`, OSError.

    `damaged` is called with the error of each definition that cannot be read, and these are passed
    over. Without it, the first error is raised.
    """
    directory = definitions_directory(data_directory)
    decode = decode_replicated if directory.name == CLUSTER_DIRECTORY else decode_definition
    for key, value in _read(directory, encode_path((kind,)), pause):
        try:
            yield decode(key, value)
        except DamagedMetadata as error:
            if damaged is None:
                raise
            damaged(error)


def read_deleted_queues(data_directory: Path, *, pause: Callable[[float], None]) -> set[int]:
    """The queues that a note says were deleted. Raises as `read_definitions` does."""
    directory = definitions_directory(data_directory)
    found = (noted_queue(key) for key, _ in _read(directory, PREFIX, pause))
    return {queue_id for queue_id in found if queue_id is not None}


def _read(
    directory: Path, prefix: bytes, pause: Callable[[float], None]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries whose keys begin with `prefix`, in the order of keys."""
    with copied_lmdb(directory / FILE, pause) as copy:
        _expect_whole(copy, directory)
        try:
            environment = lmdb.open(
                os.fsencode(copy),
                subdir=False,
                readonly=True,
                lock=False,
                map_size=max(2 * copy.stat().st_size, 1 << 20),
                max_dbs=0,
            )
        except lmdb.Error as error:
            raise _unreadable(directory, error) from None
        try:
            with environment.begin() as transaction:
                cursor = transaction.cursor()
                found = cursor.set_range(prefix)
                while found and cursor.key().startswith(prefix):
                    yield cursor.key(), cursor.value()
                    found = cursor.next()
        except lmdb.Error as error:
            raise _unreadable(directory, error) from None
        finally:
            environment.close()


def _expect_whole(copy: Path, directory: Path) -> None:
    """Raises `DamagedMetadata`, about the file that was copied."""
    try:
        check_lmdb(copy)
    except DamagedLmdb as damage:
        raise DamagedMetadata(f"{directory / FILE} is damaged: {damage}") from None


def _unreadable(directory: Path, error: lmdb.Error) -> DamagedMetadata:
    """Return an error without the text of `error`, which names the copy and not the file."""
    return DamagedMetadata(f"{directory / FILE} cannot be read: {type(error).__name__}")


@contextmanager
def copied_lmdb(source: Path, pause: Callable[[float], None]) -> Iterator[Path]:
    """A copy of an LMDB file that may be in use, which goes afterwards: one of its states, whole.

    Raises OSError.
    """
    with tempfile.TemporaryDirectory(prefix="warren-") as scratch:
        copy = Path(scratch) / FILE
        for _ in range(TRIES_MAX):
            before = _head(source)
            shutil.copyfile(source, copy)
            if _head(source) == before == _head(copy):
                yield copy
                return
            pause(RETRY_S)
    raise OSError(f"{source} was written to all the time; try again when it is quieter")


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(HEAD_BYTES)
