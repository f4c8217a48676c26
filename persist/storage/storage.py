"""The message storage of a node: its parts put together, and their common state.

    Recovery(...).run()                 reads the disk; may take long, belongs in a thread
    storage = Storage.start(..., recovery)
    storage.open(queue_id, ...)         for every queue
    storage.settle_unclaimed(...)       drops or keeps the messages of no queue
    ...
    storage.stop()

Directory `store` of the data directory: `checkpoint`, `delivery-counts`, `clean`, `log/` (the
persistent store), `queues/` (its indexes), `transient/` (both again, emptied at start),
`quarantine/`, `copy-cards` (`card_log.py`), `pins/` (snapshots, `pins.py`). See
`docs/storage-format.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import NamedTuple

from warren.core.log_line import log_event
from warren.core.ports import Commit
from warren.persist.definitions.deleted_queues import (
    DeletedQueues,
    first_level,
    is_retained,
    no_notes,
)
from warren.persist.disk.card_log import CardLog
from warren.persist.disk.filesystem import FileSystem, write_whole
from warren.persist.disk.group_commit import GroupCommit, Job
from warren.persist.index.index_beside import IndexBeside
from warren.persist.index.index_context import IndexContext
from warren.persist.index.queue_index import QueueIndex
from warren.persist.index.retained_index import RetainedIndex
from warren.persist.layout.format import (
    Checkpoint,
    encode_checkpoint,
    encode_clean,
    file_of,
    place_of,
)
from warren.persist.log.combine import Combiner
from warren.persist.log.journal import CONGESTED_BYTES, RELIEVED_BYTES, Journal
from warren.persist.log.log_writer import FilePiece, LogWriter
from warren.persist.log.message_store import MessageStore
from warren.persist.log.store_context import StoreContext
from warren.persist.recovery.recovery import (
    CHECKPOINT_FILE,
    CLEAN_FILE,
    LOG_DIRECTORY,
    QUARANTINE_DIRECTORY,
    QUEUES_DIRECTORY,
    Recovery,
)
from warren.persist.snapshots.pins import NO_LIMIT, PINS_DIRECTORY, Pins
from warren.persist.storage.checkpoint import Checkpointer
from warren.persist.storage.deletion import Deletion
from warren.persist.storage.disk_trouble import DiskTrouble
from warren.persist.storage.unclaimed import UnclaimedMessages
from warren.persist.storage.work_in_turns import WorkInTurns

log = logging.getLogger("warren.storage")

TRANSIENT_DIRECTORY = "transient"

START_SHIFT = 40
"""The positions that a start of the node gives begin at its number times 2 to this power, so no
position is given twice."""

QUARANTINED_MAX = 1000
"""The number of damaged records that are kept for people to look at."""


class NodeCalls(NamedTuple):
    """The calls of the storage to its node.

    `definitions` returns the youngest commit of definitions that a crash could still undo.
    `on_flow(True)` is called when publishers must wait, and `on_flow(False)` when they need not;
    `on_trouble` with an error when the disk fails, and with None when it works again. `pinned_max`
    returns the octets that all snapshots together may keep.
    """

    definitions: Callable[[], Commit | None] = lambda: None
    on_flow: Callable[[bool], None] = lambda wait: None
    on_trouble: Callable[[Exception | None], None] = lambda error: None
    pinned_max: Callable[[], int] = lambda: NO_LIMIT


class Storage:
    """Everything on disk except the definitions.

    `deleted_queues` knows the queues that were deleted; it is told when nothing of one is on disk
    any more.
    """

    @classmethod
    def start(
        cls,
        context: StoreContext,
        recovery: Recovery,
        node: NodeCalls,
        deleted_queues: DeletedQueues | None = None,
    ) -> Storage:
        """Make the storage from what recovery found, and note the start on disk. Raises OSError."""
        storage = cls(context, recovery, node, deleted_queues or no_notes())
        storage._make_directories()
        storage._note_start(recovery)
        return storage

    def __init__(
        self,
        context: StoreContext,
        recovery: Recovery,
        node: NodeCalls,
        deleted_queues: DeletedQueues,
    ) -> None:
        self.unclaimed = UnclaimedMessages()
        # The messages of queues that have definitions but could not be made.
        self._unreachable = UnclaimedMessages()
        # The retained messages of queues that retain none any more, by the ids of their levels.
        self._emptied: dict[int, QueueIndex] = {}
        self.directory = context.directory
        self.damaged = recovery.damaged
        self.lost = 0
        # Called with the id of the storage of a queue which a damaged message has left, and the
        # position of the message if that is known.
        self.on_lost: Callable[[int, int | None], None] = lambda queue_id, position: None
        self._context = context
        self._node = node
        self._deleted_queues = deleted_queues
        self._recovered = recovery.queues
        self._recovered_counts = recovery.delivery_counts
        self._delivered_below = recovery.delivered_below
        self._first_position = recovery.start << START_SHIFT
        self._open: dict[int, QueueIndex] = {}
        self._work = WorkInTurns(context.clock.call_soon)
        self._transient_owed = 0
        self._transient_congested = False
        self._trouble = DiskTrouble(context.clock, self.directory, self._trouble_changed)
        self._flowing = False
        self._stopping = False
        self._abandoned = False
        self._make_stores(recovery)
        self._make_journal()
        self._make_tidying(recovery)
        # Confirms wait for cards, so these are written by the thread of the journal.
        self.card_files = CardLog(
            context.filesystem,
            context.directory,
            run=context.run_journal,
            call_on_loop=context.call_on_loop,
            call_later=context.clock.call_later,
            on_fault=context.on_fault,
        )
        self.pins = Pins(
            context.directory / PINS_DIRECTORY,
            context.run_background,
            context.clock.wall_time,
            node.pinned_max,
        )

    # The parts, in the order in which they need each other

    def _make_stores(self, recovery: Recovery) -> None:
        """Make the two stores of message files, and the context that queue indexes share."""
        context, start = self._context, recovery.start
        directory = context.directory
        transient_directory = directory / TRANSIENT_DIRECTORY / LOG_DIRECTORY
        self.persistent = MessageStore(
            context, directory / LOG_DIRECTORY, start=start, transient=False
        )
        self.transient = MessageStore(context, transient_directory, start=start, transient=True)
        self.persistent.take_over(recovery.files.values(), recovery.last_file_id)
        self.indexes = IndexContext(
            context,
            self.persistent,
            self.transient,
            start=start,
            page_out=self._page_out,
            in_turns=self._work.add,
            report_lost=self._report_lost,
            on_unreadable=self._report_unreadable,
        )

    def _make_journal(self) -> None:
        """Make the journal, which writes to the persistent store."""
        context = self._context
        filesystem = context.filesystem
        self._writer = LogWriter(filesystem, self.persistent.directory, durable=True)
        self._transient_writer = LogWriter(filesystem, self.transient.directory, durable=False)
        self._group = self._group_commit("journal", self._writer, context.run_journal)
        self._transient_group = self._group_commit(
            "transient", self._transient_writer, context.run_transient
        )
        self.journal = Journal(
            context,
            self.persistent,
            self._writer,
            self._group,
            on_batch=self._batch_closed,
            on_synced=self._batch_synced,
            on_congestion=lambda congested: self._watch_flow(),
        )

    def _group_commit(
        self, name: str, writer: LogWriter, run: Callable[[Job], None]
    ) -> GroupCommit[FilePiece]:
        return GroupCommit(
            writer.write,
            run=run,
            call_on_loop=self._context.call_on_loop,
            call_later=self._context.clock.call_later,
            on_failure=partial(self._trouble.fails, name),
            on_recovery=partial(self._trouble.works, name),
            on_fault=self._context.on_fault,
        )

    def _make_tidying(self, recovery: Recovery) -> None:
        """Make the parts that remove files, and bring those of the indexes up to date."""
        self.checkpointer = Checkpointer(
            self._context,
            self.indexes,
            self.journal,
            place=recovery.place,
            journal_bytes=recovery.journal_bytes,
            on_done=self._checkpoint_taken,
        )
        self.combiners = [
            Combiner(
                self._context,
                combined,
                start=recovery.start,
                flush_journal=self.journal.flush,
                remove_files=self.checkpointer.remove_files,
            )
            for combined in (self.persistent, self.transient)
        ]
        self._deletion = Deletion(
            self._context,
            self.persistent,
            self.journal,
            self.checkpointer,
            self._work,
            notes=self._deleted_queues,
            definitions=self._node.definitions,
        )

    def _make_directories(self) -> None:
        filesystem = self._context.filesystem
        filesystem.make_directory(self.transient.directory)
        filesystem.make_directory(self.directory / TRANSIENT_DIRECTORY / QUEUES_DIRECTORY)

    def _note_start(self, recovery: Recovery) -> None:
        filesystem = self._context.filesystem
        # The number of the start is on disk first, so that no later start gets the same one.
        checkpoint = Checkpoint(self._context.node_id, recovery.place, recovery.start)
        data = encode_checkpoint(checkpoint)
        write_whole(filesystem, self.directory / CHECKPOINT_FILE, data)
        # That file described the end of the run before.
        filesystem.remove(self.directory / CLEAN_FILE)
        filesystem.sync_directory(self.directory)

    # Queues

    def open(
        self, queue_id: int, *, durable: bool, beside: bool = False, retained: bool = False
    ) -> QueueIndex:
        """The index of a queue (`BackingSpec`), with its recovered messages if it is durable.

        The definition of the queue must have been handed to the store of definitions before.
        """
        if retained:
            self._deleted_queues.retaining.add(first_level(queue_id))
        if durable:
            kept = self.unclaimed.take(queue_id) or self._unreachable.take(queue_id)
            if kept is None and (kept := self._emptied.pop(queue_id, None)) is not None:
                kept.remove_all()
            if kept is not None:
                kept.definition = self._node.definitions()
                return kept
        parent = self.directory if durable else self.directory / TRANSIENT_DIRECTORY
        kind = IndexBeside if beside else RetainedIndex if retained else QueueIndex
        index = kind(
            queue_id,
            parent / QUEUES_DIRECTORY / f"{queue_id:016x}",
            durable=durable,
            first_position=self._first_position,
            journal=self.journal,
            context=self.indexes,
            on_deleted=self._deletion.note,
        )
        index.definition = self._node.definitions()
        if durable:
            self._open[queue_id] = index
            self._adopt(index)
        return index

    def _adopt(self, index: QueueIndex) -> None:
        recovered = self._recovered.pop(index.queue_id, None)
        if recovered is not None:
            index.entries.adopt_directory()
            for _, segment in sorted(recovered.items()):
                index.entries.adopt(segment)
            index.go_on_behind(START_SHIFT)
            counts = self._recovered_counts.pop(index.queue_id, None)
            if counts:
                index.adopt_returns(counts)
        if self._delivered_below is None:
            index.redelivered_below = index.first_position()
        else:
            index.redelivered_below = self._delivered_below.get(index.queue_id, 0)

    def settle_unclaimed(
        self,
        defined: Collection[int] = (),
        is_deleted: Callable[[int], bool] | None = None,
    ) -> None:
        """Drop recovered messages of queues that were deleted; keep those of others not opened.

        `defined` are queues that have definitions but could not be made. `is_deleted` says whether
        the queue with this id was deleted; without it, the notes of deletions say so.
        """
        deleted_queues = self._deleted_queues
        is_deleted = is_deleted or deleted_queues.__contains__
        dropped = set()
        there = set(self._open)
        known = {*deleted_queues.noted, *defined}
        for storage_id in list(self._recovered):
            index = self.open(storage_id, durable=True, retained=is_retained(storage_id))
            count = index.recovered().count
            queue_id = first_level(storage_id)
            lives_on = queue_id in there or (is_deleted(queue_id) and queue_id not in known)
            if is_retained(storage_id) and lives_on:
                # The queue exists, here or at other nodes, but retains nothing here any more.
                self._emptied[storage_id] = index
                index.remove_range(0, index.first_position())
            elif queue_id in defined:
                _log_messages(logging.ERROR, "messages_unreachable", storage_id, count)
                self._unreachable.keep(index)
            elif is_deleted(queue_id):
                _log_messages(logging.INFO, "leftover_dropped", storage_id, count)
                dropped.add(queue_id)
                index.delete()
            elif count:
                self.unclaimed.keep(index)
            else:
                index.delete()
        self.unclaimed.report()
        self._delivered_below = None
        self._recovered_counts = {}
        # The messages leave the disk later; if the node ends before, the next start needs notes.
        if unnoted := dropped - deleted_queues.noted:
            deleted_queues.note(unnoted)
        # The other notes are of no use: nothing of these queues is left, or they exist again.
        self._deletion.forget_when_synced(deleted_queues.noted - dropped)

    def drop_unclaimed(self, queue_id: int) -> Commit:
        """Drop unclaimed messages. The commit is done when no restart can bring them back."""
        indexes = self.unclaimed.levels(queue_id)
        for index in indexes:
            self.unclaimed.take(index.queue_id)
        commit = self._deleted_queues.note([queue_id])
        for index in indexes:
            commit.then(index.delete)
        return commit

    # Batches

    def _batch_closed(self, end: int, octets: int) -> None:
        self._deletion.batch_closed()
        for combiner in self.combiners:
            combiner.batch_closed()
        self.checkpointer.batch_closed(end, octets)

    def _batch_synced(self) -> None:
        if self._stopping:
            return
        for index in self._deletion.batch_synced():
            if self._open.get(index.queue_id) is index:
                del self._open[index.queue_id]
        for combiner in self.combiners:
            combiner.batch_synced()
        self.checkpointer.batch_synced()

    def _checkpoint_taken(self) -> None:
        self._deletion.checkpoint_taken()
        self.combine()

    def combine(self) -> None:
        """Find log files that are worth writing anew."""
        persistent, transient = self.combiners
        persistent.look(file_of(self.checkpointer.place))
        transient.look(1 << 32)

    # Messages that were paged out

    def _page_out(self, data: bytes) -> int:
        """Write records to the transient store; returns the place of the first."""
        file = self.transient.open_file()
        place = place_of(file.file_id, file.size)
        piece = self.transient.appended(file, data)
        self._transient_owed += len(data)
        self._transient_group.submit(piece).then(lambda: self._paged_out(piece))
        self.checkpointer.paged_out(len(data))
        self._watch_flow()
        return place

    def _paged_out(self, piece: FilePiece) -> None:
        self.transient.written(piece, 0)
        self._transient_owed -= len(piece.data)
        self._watch_flow()

    # When the disk cannot keep up, or fails

    def _watch_flow(self) -> None:
        if self._transient_owed >= CONGESTED_BYTES:
            self._transient_congested = True
        elif self._transient_owed <= RELIEVED_BYTES:
            self._transient_congested = False
        wait = self.journal.congested or self._transient_congested or self._trouble.is_on
        if wait is not self._flowing:
            self._flowing = wait
            self._node.on_flow(wait)

    def _trouble_changed(self, error: Exception | None) -> None:
        self._node.on_trouble(error)
        self._watch_flow()

    def _report_lost(self, queue_id: int, position: int, reason: str, octets: bytes) -> None:
        """Count and report a damaged message, and keep its octets for people to look at.

        Of messages that are lost with their index, which have no position, one line of the log has
        said how many they are (`index_damaged`).
        """
        self.lost += 1
        if position >= 0:
            log_event(
                log,
                logging.ERROR,
                "message_lost",
                queue=f"{queue_id:016x}",
                position=position,
                reason=reason,
            )
        self.on_lost(queue_id, position if position >= 0 else None)
        if not octets or self.lost > QUARANTINED_MAX:
            return
        path = self.directory / QUARANTINE_DIRECTORY / f"{queue_id:016x}.{position}.octets"

        def job() -> None:
            try:
                file = self._context.filesystem.create(path)
                try:
                    file.write(0, octets)
                finally:
                    file.close()
            except OSError as error:
                log_event(log, logging.WARNING, "quarantine_failed", path=path, error=error)

        self._context.run_background(job)

    def _report_unreadable(self, queue_id: int, position: int, error: OSError) -> None:
        log_event(
            log,
            logging.ERROR,
            "message_unreadable",
            queue=f"{queue_id:016x}",
            position=position,
            reason=error,
            action="kept_for_next_start",
        )
        # It is not lost for good, so copies that come later need not keep it.
        self.on_lost(queue_id, None)

    # The end

    def open_queues(self) -> list[QueueIndex]:
        """The indexes of all durable queues."""
        return list(self._open.values())

    def stop(self) -> None:
        """Hand everything that is noted to the threads, which the caller then ends."""
        self.checkpointer.close()
        for combiner in self.combiners:
            combiner.close()
        if not self._abandoned:
            self._work.finish()
            self.journal.stop()
        self._end()

    def _end(self) -> None:
        """Stop everything that happens by itself."""
        self._stopping = True
        self._work.stop()
        self._trouble.close()
        self._deletion.stop()

    def abandon(self) -> None:
        """Write and confirm nothing more: the disk stays as a crash would leave it."""
        self._abandoned = True
        self._end()
        self.checkpointer.close()
        for combiner in self.combiners:
            combiner.close()
        self.journal.abandon()
        self._group.abandon()
        self._transient_group.abandon()
        self.card_files.abandon()

    def release(self) -> None:
        """Close the files, after the threads have ended."""
        self._writer.close()
        self._transient_writer.close()
        self.persistent.close()
        self.transient.close()

    def close(self) -> int:
        """Write what the threads have not written, and note that the node stopped clean.

        Call it when the threads behind `run_journal` and the others have ended. Returns how many
        batches could not be written; no message in them was confirmed.
        """
        lost = self._group.close()
        self._transient_group.close()
        self.card_files.close()
        if lost:
            log_event(log, logging.ERROR, "messages_unwritten", batches=lost, path=self.directory)
        elif not self._abandoned:
            self._write_clean()
        self.release()
        return lost

    def _write_clean(self) -> None:
        delivered_below = [
            (index.queue_id, index.delivered_below)
            for index in self._open.values()
            if index.delivered_below is not None and index.entries.segments
        ]
        data = encode_clean(self._context.node_id, self.persistent.next_file_place, delivered_below)
        try:
            write_whole(self._context.filesystem, self.directory / CLEAN_FILE, data)
        except OSError as error:
            log_event(
                log,
                logging.WARNING,
                "clean_stop_not_noted",
                error=error,
                action="as_after_a_crash",
            )


def _log_messages(level: int, event: str, queue_id: int, count: int) -> None:
    log_event(log, level, event, queue=f"{queue_id:016x}", messages=count)


def empty_transient(filesystem: FileSystem, directory: Path) -> None:
    """Remove the messages that an earlier run paged out. `directory` is that of the storage."""
    transient = directory / TRANSIENT_DIRECTORY
    queues = transient / QUEUES_DIRECTORY
    for name in filesystem.names(queues):
        filesystem.remove_directory(queues / name)
    filesystem.remove_directory(queues)
    filesystem.remove_directory(transient / LOG_DIRECTORY)
