"""A file of keys and values that survives a crash: a store of shared definitions is kept in it.

Answerable for values that are on disk, whole batch by whole batch and in order, when their commit
is done, and for saying so when they are not what was written. What they mean is the caller's.

Format. An LMDB environment. Key: 1, and the key itself or, where that is too long for LMDB, its
digest. Value: MessagePack of [key, value], with a checksum (`sealing.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from warren.core.definitions.record_format import UNREADABLE, unpacked
from warren.persist.definitions.database import (
    MAP_BYTES_FIRST,
    DamagedMetadata,
    Database,
    open_environment,
)
from warren.persist.definitions.database_writer import DatabaseWriter
from warren.persist.definitions.deleted_queues import NO_STORAGES, Puts, Storages
from warren.persist.definitions.sealing import sealed, unsealed
from warren.persist.disk.data_directory import create_directory
from warren.persist.disk.group_commit import (
    CallLater,
    OnFault,
    PendingCommit,
    SyncThread,
    log_callback_fault,
)

logger = logging.getLogger("warren.storage")

PREFIX = b"\1"
WHOLE_KEY_BYTES_MAX = 400
"""LMDB takes 511 octets."""
DIGEST_BYTES = 32


class KeyFile:
    """Made on the loop it is used on. Without a `sync_thread` batches are written by the caller."""

    def __init__(
        self,
        path: Path,
        *,
        call_on_loop: Callable[[Callable[[], None]], object],
        call_later: CallLater,
        sync_thread: SyncThread | None,
        on_fault: OnFault = log_callback_fault,
    ) -> None:
        """Raises OSError."""
        if not path.exists():
            create_directory(path)
        self._path = path
        self._database = Database(path, open_environment, MAP_BYTES_FIRST, _no_storages)
        self._writer: DatabaseWriter[Puts] = DatabaseWriter(
            "shared_definitions",
            self._database,
            self._database.write,
            call_on_loop=call_on_loop,
            call_later=call_later,
            sync_thread=sync_thread,
            on_fault=on_fault,
        )

    def load(self) -> dict[bytes, bytes]:
        """Everything that was written. Raises `DamagedMetadata`, OSError."""
        try:
            return dict(self._entries())
        except UNREADABLE as error:
            raise DamagedMetadata(f"a value in {self._path} cannot be read: {error}") from None

    def write(self, changes: Sequence[tuple[bytes, bytes | None]]) -> PendingCommit:
        """Put values, and delete where there is none, all or nothing."""
        return self._writer.submit([_put(key, value) for key, value in changes])

    def close(self) -> None:
        """Write all pending changes and release the file."""
        self._writer.close()

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        for place, octets in self._database.entries():
            key, value = unsealed(place, unpacked(octets))
            if _place(key) != place:
                raise ValueError(f"the value of {place!r} says it is that of {key!r}")
            yield key, value


def _put(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
    place = _place(key)
    if value is None:
        return place, None
    return place, sealed(place, msgspec.msgpack.encode((key, value)))


def _place(key: bytes) -> bytes:
    if len(key) <= WHOLE_KEY_BYTES_MAX:
        return PREFIX + key
    return PREFIX + blake2b(key, digest_size=DIGEST_BYTES).digest()


def _no_storages(key: bytes, value: bytes) -> Storages:
    return NO_STORAGES
