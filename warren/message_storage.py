"""Builds the message storage of a node with a data directory, and its threads.

Recovery runs in a thread of its own, so that the loop can tell clients its progress meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from warren.core.backing.backing_queue import BackingQueue, BackingSpec
from warren.core.backing.paging import Pager
from warren.core.backing.variable_queue import VariableQueue
from warren.core.definitions.definition_table import CompletedCommit
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.core.ports import Clock, Commit, MetadataStore
from warren.core.scheduling.waiting import at_risk
from warren.persist.definitions.deleted_queues import DeletedQueues, led_storages
from warren.persist.disk.data_directory import DataDirectory, DataDirectoryRefused
from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.disk.group_commit import OnFault, SyncThread
from warren.persist.layout.format import NewerStorage
from warren.persist.log.store_context import StorageSizes, StoreContext
from warren.persist.recovery.recovery import (
    STORE_DIRECTORY,
    Recovery,
    RecoveryCounts,
    StorageRefused,
)
from warren.persist.storage.storage import NodeCalls, Storage, empty_transient

if TYPE_CHECKING:
    from warren.cluster import Cluster

log = logging.getLogger("warren.storage")

LOG_PROGRESS_S = 2.0
"""The time between two log lines about a long recovery."""


class RecoveryProgress:
    """The progress of recovery: reported by its thread, read on the loop, and logged now and
    then."""

    def __init__(self) -> None:
        self._progress: RecoveryCounts | None = None
        self._logged_at = time.monotonic()

    def report(self, progress: RecoveryCounts) -> None:
        self._progress = progress
        now = time.monotonic()
        if now - self._logged_at >= LOG_PROGRESS_S:
            self._logged_at = now
            log_event(log, logging.INFO, "recovery_progress", percent=progress.percent())

    def describe(self) -> str:
        progress = self._progress
        if progress is None:
            return "node is starting"
        return f"node is starting, {progress.percent()} % of its messages are recovered"


class MessageStorage:
    """A `Storage` on the real disk, with its three threads."""

    def __init__(self, storage: Storage, threads: list[SyncThread]) -> None:
        self.storage = storage
        self._threads = threads

    @classmethod
    async def recover(
        cls, directory: DataDirectory, report: Callable[[RecoveryCounts], None]
    ) -> Recovery:
        """Recover the messages on disk. `report` is called in another thread.

        Raises `DataDirectoryRefused`, OSError.
        """
        filesystem = RealFileSystem()
        path = directory.path / STORE_DIRECTORY
        recovery = Recovery(filesystem, path, bytes.fromhex(directory.node_id), report=report)

        def run() -> None:
            recovery.run()
            # After recovery, which raises for a directory that it refuses: that stays as it is.
            empty_transient(filesystem, path)

        try:
            await asyncio.to_thread(run)
        except (StorageRefused, NewerStorage) as refusal:
            raise DataDirectoryRefused(str(refusal)) from refusal
        return recovery

    @classmethod
    def start(
        cls,
        directory: DataDirectory,
        recovery: Recovery,
        *,
        clock: Clock,
        call_on_loop: Callable[[Callable[[], None]], object],
        metadata: MetadataStore,
        deleted_queues: DeletedQueues,
        on_flow: Callable[[bool], None],
        on_trouble: Callable[[Exception | None], None],
        on_fault: OnFault,
        limits: StorageSizes,
        pinned_max: Callable[[], int],
    ) -> MessageStorage:
        names = ("journal", "paging", "tidying")
        threads = [SyncThread(f"storage-{name}", on_fault) for name in names]
        context = StoreContext(
            filesystem=RealFileSystem(),
            directory=directory.path / STORE_DIRECTORY,
            node_id=bytes.fromhex(directory.node_id),
            clock=clock,
            run_journal=threads[0].run,
            run_transient=threads[1].run,
            run_background=threads[2].run,
            call_on_loop=call_on_loop,
            on_fault=on_fault,
            limits=limits,
        )
        node = NodeCalls(lambda: at_risk(metadata), on_flow, on_trouble, pinned_max)
        return cls(Storage.start(context, recovery, node, deleted_queues), threads)

    def backing_queues(self, pager: Pager) -> Callable[[BackingSpec], BackingQueue]:
        """A function that makes the backing queues of the node."""

        def new(spec: BackingSpec) -> BackingQueue:
            store = self.storage.open(
                spec.queue_id, durable=spec.durable, beside=spec.beside, retained=spec.retained
            )
            return VariableQueue(store, pager, mode=spec.mode)

        return new

    def settle_unclaimed(
        self,
        node: Node,
        metadata: MetadataStore,
        deleted_queues: DeletedQueues,
        cluster: Cluster | None,
    ) -> None:
        """Keep, drop or take as a mirror's copy the messages on disk that no open queue has
        claimed. From now on the cluster is told of messages that the storage loses."""
        storage, is_deleted = self.storage, None
        noted: Commit = CompletedCommit()
        if cluster is not None:
            storage.on_lost = cluster.mirroring.has_lost
            of_disk = (node, storage.card_files, deleted_queues)
            found = cluster.find_former_copies(*of_disk, is_damaged=storage.damaged > 0)
            is_deleted, noted = found
        records = metadata.records(("queue",))
        defined = led_storages(records, node.name, alone=cluster is None)
        storage.settle_unclaimed(defined, is_deleted)
        if storage.damaged:
            # What is damaged in the journal is not found again by the next start.
            noted.then(storage.checkpointer.request)

    async def settle(self, patience_s: float, all_buried: Callable[[], bool]) -> None:
        """Return when all messages published so far are confirmed, dead letters included, or after
        `patience_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while not (self.storage.journal.idle and all_buried()) and loop.time() < deadline:
            await asyncio.sleep(0.005)

    def stop(self) -> int:
        """Write everything and close; returns the number of batches that could not be written.

        The node's queues must have been stopped before.
        """
        self.storage.stop()
        for thread in self._threads:
            thread.close()
        return self.storage.close()

    def give_up(self) -> None:
        """End the threads and close the files after a fault, at which the storage was abandoned."""
        for thread in self._threads:
            thread.close()
        self.storage.release()
