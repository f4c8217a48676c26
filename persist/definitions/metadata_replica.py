"""The copy of a cluster's definitions on a node's disk, so that it starts warm.

Answerable for being a state the cluster once had: it may lag behind, it is never ahead and never
a mixture (`core/definitions/definition_replica.py`). What cannot be read is discarded and fetched
anew.

Format. The LMDB environment `cluster-metadata` of the data directory.

- Key 00: MessagePack of [cluster id, revision]. Written in the same LMDB transaction as the changes
  it stands for.
- Other keys: as those of `metadata.py`. Value: MessagePack of [parts of the key, version,
  transient, escaped, record].
- Both with a checksum (`sealing.py`). Earlier versions wrote them without, and 1 in front under 00.
- Beside them, the notes of deleted queues (`deleted_queues.py`).

Changes are encoded and written by the sync thread, a batch at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from warren.core.definitions.definition_replica import Replicated
from warren.core.definitions.definition_table import Change
from warren.core.definitions.record_format import (
    UNREADABLE,
    decode_part,
    encode_part,
    encode_with_record,
    record_from,
    unpacked,
)
from warren.core.definitions.records import QueueRecord
from warren.core.log_line import log_event
from warren.core.ports import Commit, Stored
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
    NOTED,
    DeletedQueues,
    Puts,
    Storages,
    note_key,
    noted_queue,
    own_storage,
    storage_ids,
)
from warren.persist.definitions.metadata import UNSEALED_FORMAT, encode_key, shown_key
from warren.persist.definitions.sealing import SEALED, sealed, unsealed
from warren.persist.disk.data_directory import DataDirectory
from warren.persist.disk.group_commit import (
    CallLater,
    OnFault,
    SyncThread,
    log_callback_fault,
)

logger = logging.getLogger("warren.storage")

DIRECTORY = "cluster-metadata"
HEAD = b"\0"
"""Shorter than any key of a definition."""


class Saved(NamedTuple):
    """A call of `save`, or of `reset`, which forgets everything but what `notes` say."""

    cluster_id: str
    revision: int
    changes: Sequence[Change]
    reset: bool
    notes: Puts = ()


class LmdbReplica:
    """Implements `core.definitions.definition_replica.Replica`; most arguments are those of
    `LmdbMetadataStore`.

    `node` is the name of this node: only its own storages are noted when their queues go.
    """

    def __init__(
        self,
        directory: DataDirectory,
        node: str,
        *,
        call_on_loop: Callable[[Callable[[], None]], object],
        call_later: CallLater,
        sync_thread: SyncThread | None,
        on_fault: OnFault = log_callback_fault,
        open_environment: OpenEnvironment = open_environment,
        map_bytes_first: int = MAP_BYTES_FIRST,
    ) -> None:
        self._node = node
        self._path = directory.subdirectory(DIRECTORY)
        self._database = Database(self._path, open_environment, map_bytes_first, self._storages_in)
        self._cluster_id = ""
        self._revision = 0
        self.deleted_queues = DeletedQueues(self._write_notes)
        self._writer: DatabaseWriter[Saved] = DatabaseWriter(
            "cluster_replica",
            self._database,
            self._write,
            call_on_loop=call_on_loop,
            call_later=call_later,
            sync_thread=sync_thread,
            on_fault=on_fault,
        )
        self._closed = False

    def load(self) -> Replicated | None:
        """Read the replica; None when there is none, or none that can be read."""
        try:
            replicated = self._read()
        except (*UNREADABLE, DamagedMetadata) as error:
            log_event(
                logger,
                logging.WARNING,
                "cluster_replica_discarded",
                path=self._path,
                reason=repr(error),
            )
            return None
        if replicated is not None:
            self._cluster_id = replicated.cluster_id
            self._revision = replicated.revision
        return replicated

    def reset(self, cluster_id: str) -> None:
        """Forget everything and belong to that cluster.

        Queues it had in the same cluster and has no more were deleted; about those of another one
        nothing can be said.
        """
        deleted = self.deleted_queues
        if cluster_id != self._cluster_id:
            deleted.noted.clear()
            deleted.former.clear()
        self._cluster_id = cluster_id
        self._revision = 0
        notes = [(note_key(queue_id), NOTED) for queue_id in deleted.noted | deleted.former]
        self._writer.submit(Saved(cluster_id, 0, (), True, notes))

    def save(self, revision: int, changes: Sequence[Change]) -> None:
        """Write, in the background, the changes up to a revision; failed writes are tried again."""
        self._revision = revision
        self._writer.submit(Saved(self._cluster_id, revision, changes, False))

    def _write_notes(self, notes: Puts) -> Commit:
        return self._writer.submit(Saved(self._cluster_id, self._revision, (), False, notes))

    def close(self) -> None:
        """Write all pending changes and release the environment."""
        if self._closed:
            return
        self._closed = True
        self._writer.close()

    def _read(self) -> Replicated | None:
        entries = dict(self._database.entries())
        for key in list(entries):
            queue_id = noted_queue(key)
            if queue_id is not None:
                self.deleted_queues.noted.add(queue_id)
                del entries[key]
        if not entries:
            return None
        cluster_id, revision = _read_head(entries.pop(HEAD))
        if not revision:
            # The replica was emptied and not filled again.
            return None
        definitions = [_change(key, value) for key, value in entries.items()]
        for change in definitions:
            if change.stored is not None:
                self.deleted_queues.former |= storage_ids(change.stored.record)
        return Replicated(cluster_id, revision, definitions)

    def _write(self, batch: Sequence[Saved]) -> None:
        """Runs on the sync thread."""
        if any(saved.reset for saved in batch):
            last = max(place for place, saved in enumerate(batch) if saved.reset)
            batch = batch[last:]
            self._database.clear()
        self._database.write([list(_puts(saved)) for saved in batch])

    def _storages_in(self, key: bytes, value: bytes) -> Storages:
        """The storages that this node has of the queue of a definition."""
        try:
            record = decode_replicated(key, value).record
        except DamagedMetadata:
            return NO_STORAGES
        if not isinstance(record, QueueRecord):
            return NO_STORAGES
        named = own_storage(record, self._node, self.deleted_queues.retaining)
        return Storages(named, self.deleted_queues.copies_of(record.queue_id))


def _puts(saved: Saved) -> Iterator[tuple[bytes, bytes | None]]:
    yield HEAD, sealed(HEAD, msgspec.msgpack.encode((saved.cluster_id, saved.revision)))
    yield from saved.notes
    for path, stored, transient in saved.changes:
        key = encode_key(path)
        yield key, None if stored is None else _encoded(key, stored, transient)


def _encoded(key: bytes, stored: Stored, transient: bool) -> bytes:
    parts = [encode_part(part) for part in stored.key]
    return sealed(key, encode_with_record((parts, stored.version, transient), stored.record))


def decode_replicated(key: bytes, value: bytes) -> Stored:
    """One definition of the cluster. Raises `DamagedMetadata`."""
    try:
        stored = _change(key, value).stored
    except UNREADABLE as error:
        raise DamagedMetadata(f"definition {shown_key(key)} cannot be read: {error}") from None
    assert stored is not None
    return stored


def _read_head(value: bytes) -> tuple[str, int]:
    """The cluster's id and the revision. Raises one of `UNREADABLE`."""
    parts = unpacked(value)
    if parts[0] == UNSEALED_FORMAT:
        _, cluster_id, revision = parts
    elif parts[0] == SEALED:
        cluster_id, revision = unsealed(HEAD, parts)
    else:
        raise ValueError(f"format {parts[0]}, this version of Warren reads up to {SEALED}")
    return cluster_id, revision


def _change(key: bytes, value: bytes) -> Change:
    """Raises one of `UNREADABLE`."""
    unpacked_value = unpacked(value)
    if unpacked_value[0] == SEALED:
        unpacked_value = unsealed(key, unpacked_value)
    parts, version, transient, escaped, plain = unpacked_value
    path = tuple(decode_part(part) for part in parts)
    return Change(path, Stored(path, record_from(path[0], escaped, plain), version), transient)
