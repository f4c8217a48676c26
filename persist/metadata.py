"""Definitions on disk: the metadata store of a single node, on LMDB.

Answerable for the durability of definitions. All reads and all decisions are made in memory
(`core/definitions/definition_table.py`); LMDB holds a copy that is read once, when the store is
opened.

Guarantees. A commit completes when its transaction was committed by LMDB with a real sync. The
transactions of a batch go into one LMDB transaction, in order, so what is found after a crash is
a prefix of the history: whole transactions, none missing in the middle. A failing disk completes
nothing; the environment is opened anew and the batch written again until that works.

Format. The environment is the directory `metadata` of the data directory.

- Key: the path of the definition (`core/definitions/record_format.py`). One longer than 510 bytes
  is its first 479 and the BLAKE2b-256 digest of the whole: exactly 511 bytes, LMDB's limit, which
  no shorter key has.
- Value: with a checksum (`sealing.py`), MessagePack of [parts of the key, version, escaped,
  record]. The parts are there because a digest cannot be read back. Earlier versions wrote
  MessagePack of [1, and the same], without a checksum.
- Beside them, the notes of deleted queues (`deleted_queues.py`).
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import lmdb

from warren.core.definitions.definition_table import Change, DefinitionTable
from warren.core.definitions.record_format import (
    UNREADABLE,
    decode_part,
    decode_path,
    encode_part,
    encode_path,
    encode_with_record,
    record_from,
    unpacked,
)
from warren.core.log_line import log_event
from warren.core.ports import Commit, Key, Stored, Unreadable
from warren.persist.data_directory import (
    DataDirectory,
    DataDirectoryRefused,
    NewerFormat,
    sync_directory,
)
from warren.persist.deleted_queues import (
    NOTED,
    QUEUE_PREFIX,
    DeletedQueues,
    Puts,
    note_key,
    noted_queue,
    storage_ids,
)
from warren.persist.group_commit import (
    CallLater,
    GroupCommit,
    OnFault,
    PendingCommit,
    SyncThread,
    log_callback_fault,
)
from warren.persist.lmdb_file import DamagedLmdb, check_lmdb
from warren.persist.sealing import SEALED, sealed, unsealed

logger = logging.getLogger("warren.storage")

VALUE_FORMAT = SEALED
UNSEALED_FORMAT = 1
DIRECTORY = "metadata"
# LMDB's names.
DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
KEY_BYTES_MAX = 511
DIGEST_BYTES = 32
# Address space, not memory or disk: LMDB's file is as long as what was written.
MAP_BYTES_FIRST = 64 << 20
# What x86-64 gives a process; a store that needs more is beyond help.
MAP_BYTES_MAX = 1 << 46

EXPECTED = (OSError, lmdb.Error)
"""What a disk that fails, or is full, makes of a write."""

OpenEnvironment: TypeAlias = Callable[[Path, int], "lmdb.Environment"]


class DamagedMetadata(DataDirectoryRefused):
    """What is on disk is not what this store writes."""


def open_environment(path: Path, map_bytes: int) -> lmdb.Environment:
    """LMDB as this store wants it: synced at each commit, one unnamed database."""
    return lmdb.open(str(path), map_size=map_bytes, max_dbs=0, mode=0o600, readahead=False)


class LmdbMetadataStore(DefinitionTable):
    """Definitions that survive a crash; implements `core.ports.MetadataStore`.

    `call_on_loop` is the loop's `call_soon_threadsafe`, `call_later` that of the node's clock.
    Without a `sync_thread` the batches are written where `call_on_loop` and the caller run: for
    simulations. The store closes the thread it was given, not the directory.
    """

    def __init__(
        self,
        directory: DataDirectory,
        *,
        call_on_loop: Callable[[Callable[[], None]], object],
        call_later: CallLater,
        sync_thread: SyncThread | None,
        on_fault: OnFault = log_callback_fault,
        open_environment: OpenEnvironment = open_environment,
        map_bytes_first: int = MAP_BYTES_FIRST,
    ) -> None:
        super().__init__()
        self._sync_thread = sync_thread
        self._database = Database(
            directory.subdirectory(DIRECTORY), open_environment, map_bytes_first, _storage_ids_in
        )
        self.deleted_queues = DeletedQueues(self._submit)
        try:
            self._load(self._definitions())
        except DamagedMetadata as error:
            self._database.close()
            raise DamagedMetadata(
                f"{error}; `warren store repair {directory.path}` makes a new file of what can be"
                " read, and puts the damaged one aside"
            ) from None
        except BaseException:
            self._database.close()
            raise
        self._group: GroupCommit[Puts] = GroupCommit(
            self._database.write,
            run=sync_thread.run if sync_thread is not None else run_here,
            call_on_loop=call_on_loop,
            call_later=call_later,
            on_failure=self._report_failure,
            on_recovery=self._report_recovery,
            on_fault=on_fault,
            expected=EXPECTED,
        )
        self._closed = False

    def uncommitted(self) -> PendingCommit | None:
        return self._group.uncommitted()

    def close(self) -> None:
        """Commit what is pending and release the store.

        If the disk refuses to the last, says in the log how many transactions were lost.
        """
        if self._closed:
            return
        self._closed = True
        if self._sync_thread is not None:
            self._sync_thread.close()
        lost = self._group.close()
        if lost:
            logger.error("metadata_lost transactions=%d path=%s", lost, self._database.path)
        self._database.close()

    def _definitions(self) -> Iterator[Stored]:
        for key, value in self._database.entries():
            queue_id = noted_queue(key)
            if queue_id is not None:
                self.deleted_queues.noted.add(queue_id)
                continue
            try:
                yield decode_definition(key, value)
            except DamagedMetadata as error:
                self.unreadable[key] = Unreadable(shown_key(key), str(error))
                log_event(
                    logger,
                    logging.ERROR,
                    "definition_unreadable",
                    key=shown_key(key),
                    reason=error,
                    action="skipped, and left where it is until somebody defines it anew",
                )

    def _persist(self, changes: Sequence[Change]) -> Commit:
        puts = [_put(change) for change in changes]
        if self.unreadable:
            for key, _ in puts:
                self.unreadable.pop(key, None)
        return self._submit(puts)

    def _submit(self, puts: Puts) -> Commit:
        return self._group.submit(puts)

    def _report_failure(self, error: Exception) -> None:
        logger.error(
            "metadata_write_failed path=%s error=%r action=retrying", self._database.path, error
        )

    def _report_recovery(self) -> None:
        logger.info("metadata_write_recovered path=%s", self._database.path)


class Database:
    """The LMDB environment: written by one thread at a time, opened anew after an error.

    A transaction that takes a queue's storage from the definitions also notes that it was deleted
    (`deleted_queues.py`). `storage_ids_in` reads the storages out of the value of a definition.
    """

    def __init__(
        self,
        path: Path,
        open_environment: OpenEnvironment,
        map_bytes: int,
        storage_ids_in: Callable[[bytes, bytes], set[int]],
    ) -> None:
        self.path = path
        self._storage_ids_in = storage_ids_in
        self._open_environment = open_environment
        self._map_bytes = max(map_bytes, 2 * _file_bytes(path))
        self._environment: lmdb.Environment | None = None

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Everything in it. Raises `DamagedMetadata`.

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
        """Begin anew, whatever is there; after a crash it may be there still."""
        self.close()
        (self.path / DATA_FILE).unlink(missing_ok=True)
        (self.path / LOCK_FILE).unlink(missing_ok=True)

    def close(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()

    def _opened(self) -> lmdb.Environment:
        if self._environment is None:
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
        had = self._storage_ids_in(key, bytes(before)) if before is not None else set()
        has = self._storage_ids_in(key, value) if value is not None else set()
        for queue_id in had - has:
            transaction.put(note_key(queue_id), NOTED)
        for queue_id in has - had:
            transaction.delete(note_key(queue_id))

    def _enlarge(self) -> None:
        if self._map_bytes >= MAP_BYTES_MAX:
            raise OSError(f"metadata in {self.path} would need more than {MAP_BYTES_MAX} bytes")
        self._map_bytes *= 2
        self._opened().set_mapsize(self._map_bytes)


def expect_whole(path: Path) -> None:
    """Look whether LMDB can open a file, if it is there. Raises `DamagedMetadata`, OSError."""
    try:
        if path.stat().st_size:
            check_lmdb(path)
    except FileNotFoundError:
        return
    except DamagedLmdb as damage:
        raise DamagedMetadata(f"{path} is damaged: {damage}") from None


def run_here(job: Callable[[], None]) -> None:
    job()


def _file_bytes(path: Path) -> int:
    try:
        return (path / DATA_FILE).stat().st_size
    except FileNotFoundError:
        return 0


def _storage_ids_in(key: bytes, value: bytes) -> set[int]:
    """The storage of a queue, from its definition; none when that cannot be read."""
    try:
        return storage_ids(decode_definition(key, value).record)
    except DataDirectoryRefused:
        return set()


def _put(change: Change) -> tuple[bytes, bytes | None]:
    path, stored, _ = change
    return (encode_key(path), None) if stored is None else encode_definition(stored)


def encode_key(key: Key) -> bytes:
    """The LMDB key of a definition."""
    whole = encode_path(key)
    if len(whole) < KEY_BYTES_MAX:
        return whole
    digest = blake2b(whole, digest_size=DIGEST_BYTES).digest()
    return whole[: KEY_BYTES_MAX - DIGEST_BYTES] + digest


def encode_definition(stored: Stored) -> tuple[bytes, bytes]:
    """A definition's key and value in LMDB."""
    key = encode_key(stored.key)
    parts = [encode_part(part) for part in stored.key]
    return key, sealed(key, encode_with_record((parts, stored.version), stored.record))


def decode_definition(key: bytes, value: bytes) -> Stored:
    """One definition. Raises `NewerFormat` or `DamagedMetadata`."""
    try:
        unpacked_value = unpacked(value)
        value_format = unpacked_value[0]
        if value_format == SEALED:
            parts, version, escaped, plain = unsealed(key, unpacked_value)
        elif value_format == UNSEALED_FORMAT:
            _, parts, version, escaped, plain = unpacked_value
        elif value_format > VALUE_FORMAT and not _is_sealed(key, unpacked_value):
            raise NewerFormat(
                f"a definition has format {value_format}, this version of Warren reads up to"
                f" {VALUE_FORMAT}; start it with the version that wrote it"
            )
        else:
            raise ValueError(f"its format is {value_format}")
        path = tuple(decode_part(part) for part in parts)
        record = record_from(path[0], escaped, plain)
    except UNREADABLE as error:
        raise DamagedMetadata(f"definition {shown_key(key)} cannot be read: {error}") from None
    if encode_key(path) != key:
        raise DamagedMetadata(f"definition {shown_key(key)} says it is {path!r}")
    return Stored(path, record, version)


def _is_sealed(key: bytes, value: Any) -> bool:
    """Whether only the number of the format is wrong."""
    try:
        unsealed(key, value)
    except UNREADABLE:
        return False
    return True


def shown_key(key: bytes) -> str:
    """A key for people, as far as it can be read."""
    try:
        return "/".join(decode_path(key))
    except UNREADABLE:
        return repr(key)
