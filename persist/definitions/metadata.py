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

import logging
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

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
from warren.core.ports import Commit, Key, Stored, UnreadableText
from warren.persist.definitions.database import (
    MAP_BYTES_FIRST,
    DamagedMetadata,
    Database,
    OpenEnvironment,
    open_environment,
)
from warren.persist.definitions.database_writer import DatabaseWriter
from warren.persist.definitions.deleted_queues import (
    NO_STORAGES,
    DeletedQueues,
    Puts,
    Storages,
    noted_queue,
    storage_ids,
)
from warren.persist.definitions.sealing import SEALED, sealed, unsealed
from warren.persist.disk.data_directory import (
    DataDirectory,
    DataDirectoryRefused,
    NewerFormat,
)
from warren.persist.disk.group_commit import (
    CallLater,
    OnFault,
    PendingCommit,
    SyncThread,
    log_callback_fault,
)

logger = logging.getLogger("warren.storage")

VALUE_FORMAT = SEALED
UNSEALED_FORMAT = 1
DIRECTORY = "metadata"
KEY_BYTES_MAX = 511
DIGEST_BYTES = 32


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
        self._database = Database(
            directory.subdirectory(DIRECTORY), open_environment, map_bytes_first, _storages_in
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
        self._writer: DatabaseWriter[Puts] = DatabaseWriter(
            "metadata",
            self._database,
            self._database.write,
            call_on_loop=call_on_loop,
            call_later=call_later,
            sync_thread=sync_thread,
            on_fault=on_fault,
        )
        self._closed = False

    def uncommitted(self) -> PendingCommit | None:
        return self._writer.uncommitted()

    def close(self) -> int:
        """Commit pending transactions and release the store.

        If the disk refuses to the last, returns how many transactions were lost, and logs it.
        """
        if self._closed:
            return 0
        self._closed = True
        lost = self._writer.close()
        if lost:
            path = self._database.path
            log_event(logger, logging.ERROR, "metadata_lost", transactions=lost, path=path)
        return lost

    def _definitions(self) -> Iterator[Stored]:
        for key, value in self._database.entries():
            queue_id = noted_queue(key)
            if queue_id is not None:
                self.deleted_queues.noted.add(queue_id)
                continue
            try:
                yield decode_definition(key, value)
            except DamagedMetadata as error:
                self.unreadable[key] = UnreadableText(shown_key(key), str(error))
                log_event(
                    logger,
                    logging.ERROR,
                    "definition_unreadable",
                    key=shown_key(key),
                    reason=error,
                    action="skipped, and left where it is until it is defined anew",
                )

    def _persist(self, changes: Sequence[Change]) -> Commit:
        puts = [_put(change) for change in changes]
        if self.unreadable:
            for key, _ in puts:
                self.unreadable.pop(key, None)
        return self._submit(puts)

    def _submit(self, puts: Puts) -> Commit:
        return self._writer.submit(puts)


def _storages_in(key: bytes, value: bytes) -> Storages:
    """The storage of a queue, from its definition; none when that cannot be read."""
    try:
        return Storages(storage_ids(decode_definition(key, value).record))
    except DataDirectoryRefused:
        return NO_STORAGES


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
    """Whether the value has its checksum, so that only the number of the format is wrong."""
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
