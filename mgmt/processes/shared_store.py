"""The definitions that the processes of a broker share, and which processes are members."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from warren.clock import LoopClock
from warren.core.definitions.records import QueueRecord
from warren.core.log_line import log_event
from warren.mgmt.processes.plan import STORE_PREFIX
from warren.mirror.definitions.codec import Keys, UnreadableDefinition, decode_definition
from warren.mirror.definitions.etcd_messages import Range, Txn, delete, end_of
from warren.mirror.definitions.key_gateway import KeyGateway
from warren.mirror.members.directory import member_key, presence_key
from warren.persist.definitions.database import DATA_FILE, DamagedMetadata
from warren.persist.definitions.key_file import KeyFile
from warren.persist.disk.group_commit import OnFault, SyncThread

log = logging.getLogger("warren.node")


class SharedStore:
    """The store, open from construction to `close`."""

    def __init__(self, path: Path, on_fault: OnFault) -> None:
        """Open the store. Raises `DamagedMetadata`, OSError."""
        loop = asyncio.get_running_loop()
        clock = LoopClock(loop)
        self.file = path / DATA_FILE
        self._file = KeyFile(
            path,
            call_on_loop=loop.call_soon_threadsafe,
            call_later=clock.call_later,
            sync_thread=SyncThread("shared-definitions-sync", on_fault),
            on_fault=on_fault,
        )
        try:
            self.gateway = KeyGateway(self._file, clock)
        except (DamagedMetadata, msgspec.MsgspecError) as error:
            self._file.close()
            raise DamagedMetadata(
                f"the definitions that the processes share cannot be read: {error}; remove"
                f" {self.file}, and the next start has them from the first process's copy"
            ) from None
        except BaseException:
            self._file.close()
            raise
        self.gateway.start()

    def close(self) -> None:
        """Write what is pending, and close."""
        self.gateway.stop()
        self._file.close()

    def is_empty(self) -> bool:
        """Whether nothing was ever written to it."""
        return self.gateway.store.revision == 1

    def members(self) -> list[str]:
        """The names of all processes that ever started, without those that were forgotten."""
        prefix = member_key(STORE_PREFIX, "")
        found = self.gateway.store.range(Range(prefix, end_of(prefix)))
        return [value.key[len(prefix) :].decode() for value in found.kvs]

    def queues(self) -> Counter[str]:
        """How many durable queues each process leads."""
        keys = Keys(STORE_PREFIX)
        found = self.gateway.store.range(Range(keys.definitions, end_of(keys.definitions)))
        leads: Counter[str] = Counter()
        for value in found.kvs:
            try:
                change = decode_definition(keys.path(value.key), value.value, value.mod_revision)
            except UnreadableDefinition as error:
                # The processes log the same, and ignore the definition.
                log_event(log, logging.WARNING, "definition_unreadable", error=error)
                continue
            record = change.stored.record if change.stored is not None else None
            if isinstance(record, QueueRecord) and record.durable:
                leads[record.leader] += 1
        return leads

    def forget(self, names: Sequence[str]) -> None:
        """Remove these processes from the members, until they are started again."""
        if names:
            self.gateway.change(
                Txn(success=[delete(member_key(STORE_PREFIX, name)) for name in names])
            )

    def end(self, name: str) -> None:
        """Tell the others at once that a process has ended, before its lease expires."""
        self.gateway.end_lease_of(presence_key(STORE_PREFIX, name))
