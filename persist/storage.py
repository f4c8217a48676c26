"""The message storage of a node: its parts put together, and the little they have in common.

    Recovery(...).run()                 what is on disk; may take long, belongs in a thread
    storage = Storage(..., recovery)
    storage.open(queue_id, ...)         for every queue there is
    storage.settle_unclaimed(...)       what belongs to no queue: dropped, or kept
    ...
    storage.stop()

Directory `store` of the data directory: `checkpoint`, `clean`, `log/` (the persistent store),
`queues/` (its indexes), `transient/` (both again, emptied at start), `quarantine/`, `pins/`
(snapshots, `pins.py`). See `docs/storage-format.md`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from warren.core.log_line import log_event
from warren.core.ports import Clock, Commit
from warren.persist.card_files import CardFiles
from warren.persist.checkpoint import Checkpointer, write_small_file
from warren.persist.combine import Combiner
from warren.persist.deleted_queues import DeletedQueues, first_level, no_notes
from warren.persist.filesystem import FileSystem
from warren.persist.format import (
    Checkpoint,
    encode_checkpoint,
    encode_clean,
    file_of,
    place_of,
)
from warren.persist.group_commit import GroupCommit, Job, OnFault, log_callback_fault
from warren.persist.index_beside import IndexBeside
from warren.persist.journal import CONGESTED_BYTES, RELIEVED_BYTES, Journal
from warren.persist.log_writer import LogWriter, Piece
from warren.persist.message_store import OPEN_FILES_MAX, MessageStore
from warren.persist.pins import NO_LIMIT, PINS_DIRECTORY, Pins
from warren.persist.queue_index import QueueIndex, Surroundings
from warren.persist.recovery import (
    CHECKPOINT_FILE,
    CLEAN_FILE,
    LOG_DIRECTORY,
    QUARANTINE_DIRECTORY,
    QUEUES_DIRECTORY,
    Recovery,
)
from warren.persist.unclaimed import UnclaimedMessages

log = logging.getLogger("warren.storage")

DONE = object()
"""What comes after the last step of work."""

TRANSIENT_DIRECTORY = "transient"

START_SHIFT = 40
"""Positions of a start of the node begin at its number times 2 to this power: none comes twice."""

LET_GO_MAX = 1000
"""Deleted queues that wait for a checkpoint; more of them bring it about."""

QUARANTINED_MAX = 1000
"""Damaged records kept for people to look at."""


class StorageSizes(NamedTuple):
    """Sizes people and tests may choose.

    `file_bytes_max`: log files are full at that size. `embed_below`: smaller messages stand in
    the journal once for each queue, others once for all. `checkpoint_bytes`: what is written
    between two checkpoints, and so what recovery may have to replay; a second or two of work.
    `combine_bytes_min`: smaller log files are not worth writing anew. `tidy_bytes`: nor worth
    giving back when all that is in them is dead and nothing happens. `open_files_max`: log files
    that each store keeps open to read from.
    """

    file_bytes_max: int = 16 << 20
    embed_below: int = 4096
    checkpoint_bytes: int = 64 << 20
    combine_bytes_min: int = 64 << 10
    tidy_bytes: int = 1 << 20
    open_files_max: int = OPEN_FILES_MAX


DEFAULT_LIMITS = StorageSizes()


class Storage:
    """Everything on disk but the definitions.

    `run_journal`, `run_transient` and `run_background` each hand a job to a thread that runs its
    jobs in order; `call_on_loop` brings outcomes back. `definitions` is the youngest commit of
    definitions that a crash could still undo. `on_flow` is told when publishers are to wait, and
    when not any more; `on_trouble` with an error when the disk fails, with None when it works
    again; `on_fault` of an exception nobody expected, after which `abandon` is to be called.
    `pinned_max` is how many octets all snapshots together may keep.
    `deleted_queues` knows which queues were deleted, and is told of those of which nothing can be
    found on disk any more.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        node_id: bytes,
        recovery: Recovery,
        *,
        clock: Clock,
        run_journal: Callable[[Job], None],
        run_transient: Callable[[Job], None],
        run_background: Callable[[Job], None],
        call_on_loop: Callable[[Callable[[], None]], object],
        definitions: Callable[[], Commit | None],
        on_flow: Callable[[bool], None] = lambda wait: None,
        on_trouble: Callable[[Exception | None], None] = lambda error: None,
        on_fault: OnFault = log_callback_fault,
        deleted_queues: DeletedQueues | None = None,
        limits: StorageSizes = DEFAULT_LIMITS,
        pinned_max: Callable[[], int] = lambda: NO_LIMIT,
    ) -> None:
        self.unclaimed = UnclaimedMessages()
        # Their queues have definitions, and could not be brought back.
        self._unreachable = UnclaimedMessages()
        self.directory = directory
        self.damaged = recovery.damaged
        self.lost = 0
        self._filesystem = filesystem
        self._node_id = node_id
        self._recovered = recovery.queues
        self._recovered_counts = recovery.delivery_counts
        self._undelivered = recovery.undelivered
        self._first_position = recovery.start << START_SHIFT
        self._definitions = definitions
        self._on_flow = on_flow
        self._on_trouble = on_trouble
        self._deleted_queues = deleted_queues or no_notes()
        self._run_background = run_background
        self._call_on_loop = call_on_loop
        self._open: dict[int, QueueIndex] = {}
        self._doomed: list[QueueIndex] = []
        # What is done in turns.
        self._work: deque[Iterator[None]] = deque()
        self._call_soon = clock.call_soon
        # Deleted queues without files; records of them are in the journal before the place.
        self._leaving: deque[tuple[int, set[int]]] = deque()
        self._transient_owed = 0
        self._transient_congested = False
        self._trouble = False
        self._flowing = False
        self._stopping = False
        self._abandoned = False

        def now_us() -> int:
            return int(clock.wall_time() * 1e6)

        def store(path: Path, *, transient: bool) -> MessageStore:
            return MessageStore(
                filesystem,
                path,
                node_id=node_id,
                start=recovery.start,
                transient=transient,
                file_bytes_max=limits.file_bytes_max,
                open_files_max=limits.open_files_max,
                now_us=now_us,
            )

        def group(writer: LogWriter, run: Callable[[Job], None]) -> GroupCommit[Piece]:
            return GroupCommit(
                writer.write,
                run=run,
                call_on_loop=call_on_loop,
                call_later=clock.call_later,
                on_failure=self._disk_failed,
                on_recovery=self._disk_works,
                on_fault=on_fault,
            )

        self.persistent = store(directory / LOG_DIRECTORY, transient=False)
        self.transient = store(directory / TRANSIENT_DIRECTORY / LOG_DIRECTORY, transient=True)
        self.persistent.take_over(recovery.files.values(), recovery.last_file_id)
        self._writer = LogWriter(filesystem, self.persistent.directory, durable=True)
        self._transient_writer = LogWriter(filesystem, self.transient.directory, durable=False)
        self._group = group(self._writer, run_journal)
        self._transient_group = group(self._transient_writer, run_transient)
        self.surroundings = Surroundings(
            filesystem=filesystem,
            persistent=self.persistent,
            transient=self.transient,
            embed_below=limits.embed_below,
            start=recovery.start,
            epoch_s=clock.wall_time() - clock.now(),
            page_out=self._page_out,
            in_turns=self._in_turns,
            report_lost=self._report_lost,
        )
        self.journal = Journal(
            self.persistent,
            self._writer,
            self._group,
            call_soon=clock.call_soon,
            call_later=clock.call_later,
            now_us=now_us,
            on_batch=self._batch_closed,
            on_synced=self._batch_synced,
            on_congestion=lambda congested: self._watch_flow(),
        )
        self.checkpointer = Checkpointer(
            filesystem=filesystem,
            directory=directory,
            node_id=node_id,
            start=recovery.start,
            place=recovery.place,
            persistent=self.persistent,
            transient=self.transient,
            surroundings=self.surroundings,
            run=run_background,
            call_on_loop=call_on_loop,
            call_later=clock.call_later,
            checkpoint_bytes=limits.checkpoint_bytes,
            tidy_bytes=limits.tidy_bytes,
            journal_bytes=recovery.journal_bytes,
            flush_journal=self.journal.flush,
            mark_journal=self.journal.mark,
            on_done=self._checkpoint_taken,
        )
        self.combiners = [
            Combiner(
                filesystem,
                combined,
                node_id=node_id,
                start=recovery.start,
                bytes_min=limits.combine_bytes_min,
                run=run_background,
                call_on_loop=call_on_loop,
                call_soon=clock.call_soon,
                call_later=clock.call_later,
                flush_journal=self.journal.flush,
                remove_files=self.checkpointer.remove_files,
                now_us=now_us,
            )
            for combined in (self.persistent, self.transient)
        ]
        # They count for what is confirmed, as the journal does, and wait for no tidying.
        self.card_files = CardFiles(
            filesystem,
            directory,
            run=run_journal,
            call_on_loop=call_on_loop,
            call_later=clock.call_later,
            on_fault=on_fault,
        )
        self.pins = Pins(directory / PINS_DIRECTORY, run_background, clock.wall_time, pinned_max)
        filesystem.make_directory(self.transient.directory)
        filesystem.make_directory(directory / TRANSIENT_DIRECTORY / QUEUES_DIRECTORY)
        # No later start may take itself for this one, whatever becomes of what it writes.
        checkpoint = Checkpoint(node_id, recovery.place, recovery.start)
        write_small_file(filesystem, directory / CHECKPOINT_FILE, encode_checkpoint(checkpoint))
        # What it says was true of the start before only.
        filesystem.remove(directory / CLEAN_FILE)
        filesystem.sync_directory(directory)

    # Queues

    def open(self, queue_id: int, *, durable: bool, beside: bool = False) -> QueueIndex:
        """The index of a queue, with what was recovered of it if it is durable (`BackingSpec`).

        To be called when the definition of the queue has been handed to the store of definitions.
        """
        if durable:
            kept = self.unclaimed.take(queue_id) or self._unreachable.take(queue_id)
            if kept is not None:
                kept.definition = self._definitions()
                return kept
        parent = self.directory if durable else self.directory / TRANSIENT_DIRECTORY
        index = (IndexBeside if beside else QueueIndex)(
            queue_id,
            parent / QUEUES_DIRECTORY / f"{queue_id:016x}",
            durable=durable,
            first_position=self._first_position,
            journal=self.journal,
            surroundings=self.surroundings,
        )
        index.definition = self._definitions()
        if durable:
            self._open[queue_id] = index
            self._adopt(index)
        return index

    def _adopt(self, index: QueueIndex) -> None:
        recovered = self._recovered.pop(index.queue_id, None)
        if recovered is not None:
            index.adopt_directory()
            for _, segment in sorted(recovered.items()):
                index.adopt(segment)
            index.go_on_behind(START_SHIFT)
            counts = self._recovered_counts.pop(index.queue_id, None)
            if counts:
                index.adopt_returns(counts)
        if self._undelivered is None:
            index.redelivered_below = index.first_position()
        else:
            index.redelivered_below = self._undelivered.get(index.queue_id, 0)

    def settle_unclaimed(
        self,
        defined: Collection[int] = (),
        is_deleted: Callable[[int], bool] | None = None,
    ) -> None:
        """See to what nobody has opened: drop what is of deleted queues, and keep the rest.

        `defined` are queues that could not be brought back this time. `is_deleted` says of the id
        of a queue that it was deleted; without it that is so where a note says it.
        """
        deleted_queues = self._deleted_queues
        is_deleted = is_deleted or deleted_queues.__contains__
        dropped = set()
        for storage_id in list(self._recovered):
            index = self.open(storage_id, durable=True)
            count = index.recovered().count
            queue_id = first_level(storage_id)
            if queue_id in defined:
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
        self._undelivered = None
        self._recovered_counts = {}
        # Of the others there is nothing, or a definition has them again.
        self._forget_when_synced(deleted_queues.noted - dropped)

    def _forget_when_synced(self, queue_ids: set[int]) -> None:
        """What a sync that failed has not removed for good may come back with a power failure."""

        def job() -> None:
            if self._sync_parents([self.directory / QUEUES_DIRECTORY]):
                self._tell_loop(lambda: self._forget(queue_ids))

        if queue_ids:
            self._run_background(job)

    def _forget(self, queue_ids: set[int]) -> None:
        if not self._stopping:
            self._deleted_queues.forget(queue_ids)

    def drop_unclaimed(self, queue_id: int) -> Commit:
        """Drop unclaimed messages; the commit is done when no restart brings them back."""
        indexes = self.unclaimed.levels(queue_id)
        for index in indexes:
            self.unclaimed.take(index.queue_id)
        commit = self._deleted_queues.note([queue_id])
        for index in indexes:
            commit.then(index.delete)
        return commit

    # Batches

    def _batch_closed(self, end: int, octets: int) -> None:
        self._doomed += self.journal.take_deleted()
        for combiner in self.combiners:
            combiner.batch_closed()
        self.checkpointer.batch_closed(end, octets)

    def _batch_synced(self) -> None:
        if self._stopping:
            return
        if self._doomed:
            doomed, self._doomed = self._doomed, []
            self._queues_deleted(doomed)
        for combiner in self.combiners:
            combiner.batch_synced()
        self.checkpointer.batch_synced()

    def _queues_deleted(self, doomed: list[QueueIndex]) -> None:
        for index in doomed:
            if self._open.get(index.queue_id) is index:
                del self._open[index.queue_id]
        definitions = self._definitions()
        if definitions is None:
            self._remove_queues(doomed)
        else:
            definitions.then(lambda: self._remove_queues(doomed))

    def _remove_queues(self, doomed: list[QueueIndex]) -> None:
        """The definitions of these queues are gone from the disk: so may go what they held."""
        if self._stopping:
            return
        releases = [index.release() for index in doomed]
        queue_ids = {first_level(index.queue_id) for index in doomed if index.durable}
        directories = [index.directory for index in doomed if index.has_files]
        self._in_turns(self._released(releases, directories, queue_ids))

    def _released(
        self, releases: list[Iterator[None]], directories: list[Path], queue_ids: set[int]
    ) -> Iterator[None]:
        """Give places back, for which segments may have to be read, and then remove the files."""
        yield from chain.from_iterable(releases)
        self.checkpointer.watch_idleness()
        if not directories:
            self._without_files(queue_ids)
            return

        def job() -> None:
            if self._remove_directories(directories):
                self._tell_loop(lambda: self._without_files(queue_ids))

        self._run_background(job)

    def _tell_loop(self, callback: Callable[[], None]) -> None:
        """From the thread that tidies."""
        try:
            self._call_on_loop(callback)
        except RuntimeError:
            # The loop is closed: the node has stopped.
            return

    def _remove_directories(self, directories: list[Path]) -> bool:
        """Whether they are gone for good; runs in the background."""
        gone = True
        for directory in directories:
            try:
                self._filesystem.remove_directory(directory)
            except OSError as error:
                log_event(log, logging.WARNING, "leftover_remains", path=directory, error=error)
                gone = False
        return self._sync_parents({directory.parent for directory in directories}) and gone

    def _sync_parents(self, parents: Collection[Path]) -> bool:
        """Whether what was removed from these directories cannot come back."""
        synced = True
        for parent in parents:
            try:
                self._filesystem.sync_directory(parent)
            except OSError as error:
                log_event(log, logging.WARNING, "leftover_may_remain", path=parent, error=error)
                synced = False
        return synced

    def _without_files(self, queue_ids: set[int]) -> None:
        """Only the journal knows of these queues, up to where it is now."""
        if self._stopping or not queue_ids:
            return
        self._leaving.append((self.persistent.end, queue_ids))
        if len(self._leaving) >= LET_GO_MAX:
            self.checkpointer.request()

    def _let_go(self) -> None:
        """Report the queues of which recovery would find nothing from the checkpoint on."""
        queue_ids: set[int] = set()
        while self._leaving and self._leaving[0][0] <= self.checkpointer.place:
            queue_ids |= self._leaving.popleft()[1]
        if queue_ids:
            self._deleted_queues.forget(queue_ids)

    def _checkpoint_taken(self) -> None:
        self._let_go()
        self.combine()

    def combine(self) -> None:
        """Look for log files that are worth writing anew."""
        persistent, transient = self.combiners
        persistent.look(file_of(self.checkpointer.place))
        transient.look(1 << 32)

    def _in_turns(self, work: Iterator[None]) -> None:
        """Take a step now, and the others one a turn, each work after the one before."""
        if self._work:
            self._work.append(work)
        elif next(work, DONE) is not DONE:
            self._work.append(work)
            self._call_soon(self._go_on_working)

    def _go_on_working(self) -> None:
        if self._stopping or not self._work:
            return
        if next(self._work[0], DONE) is DONE:
            self._work.popleft()
        if self._work:
            self._call_soon(self._go_on_working)

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

    def _paged_out(self, piece: Piece) -> None:
        self.transient.written(piece, 0)
        self._transient_owed -= len(piece.data)
        self._watch_flow()

    # When the disk cannot keep up, or fails

    def _watch_flow(self) -> None:
        if self._transient_owed >= CONGESTED_BYTES:
            self._transient_congested = True
        elif self._transient_owed <= RELIEVED_BYTES:
            self._transient_congested = False
        wait = self.journal.congested or self._transient_congested or self._trouble
        if wait is not self._flowing:
            self._flowing = wait
            self._on_flow(wait)

    def _disk_failed(self, error: Exception) -> None:
        log_event(
            log,
            logging.ERROR,
            "storage_write_failed",
            path=self.directory,
            error=error,
            action="retrying",
        )
        self._trouble = True
        self._on_trouble(error)
        self._watch_flow()

    def _disk_works(self) -> None:
        log_event(log, logging.INFO, "storage_write_recovered", path=self.directory)
        self._trouble = False
        self._on_trouble(None)
        self._watch_flow()

    def _report_lost(self, queue_id: int, position: int, reason: str, octets: bytes) -> None:
        """A message is damaged: count it, say so, and keep what there is of it."""
        self.lost += 1
        log_event(
            log,
            logging.ERROR,
            "message_lost",
            queue=f"{queue_id:016x}",
            position=position,
            reason=reason,
        )
        if not octets or self.lost > QUARANTINED_MAX:
            return
        path = self.directory / QUARANTINE_DIRECTORY / f"{queue_id:016x}.{position}.octets"

        def job() -> None:
            try:
                file = self._filesystem.create(path)
                try:
                    file.write(0, octets)
                finally:
                    file.close()
            except OSError as error:
                log_event(log, logging.WARNING, "quarantine_failed", path=path, error=error)

        self._run_background(job)

    # The end

    def open_queues(self) -> list[QueueIndex]:
        """The indexes of all queues there are."""
        return list(self._open.values())

    def stop(self) -> None:
        """Hand over everything that is noted; to be followed by the ends of the threads."""
        self.checkpointer.close()
        for combiner in self.combiners:
            combiner.close()
        if not self._abandoned:
            while self._work:
                for _ in self._work.popleft():
                    pass
            self.journal.stop()
        self._stopping = True

    def abandon(self) -> None:
        """Write and confirm nothing more: what is on disk stays as a crash would leave it."""
        self._stopping = self._abandoned = True
        self.checkpointer.close()
        for combiner in self.combiners:
            combiner.close()
        self.journal.abandon()
        self._group.abandon()
        self._transient_group.abandon()
        self.card_files.abandon()

    def release(self) -> None:
        """Close the files, after the ends of the threads."""
        self._writer.close()
        self._transient_writer.close()
        self.persistent.close()
        self.transient.close()

    def close(self) -> None:
        """Write, in this thread, what the threads did not, and say that the node stopped clean.

        To be called when the threads behind `run_journal` and the others have ended.
        """
        lost = self._group.close()
        self._transient_group.close()
        self.card_files.close()
        if lost:
            log_event(log, logging.ERROR, "messages_unwritten", batches=lost, path=self.directory)
        elif not self._abandoned:
            self._write_clean()
        self.release()

    def _write_clean(self) -> None:
        undelivered = [
            (index.queue_id, index.undelivered_from)
            for index in self._open.values()
            if index.undelivered_from is not None and index.segments
        ]
        data = encode_clean(self._node_id, self.persistent.next_file_place, undelivered)
        try:
            write_small_file(self._filesystem, self.directory / CLEAN_FILE, data)
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
    """Remove what was paged out before the node started. `directory` is that of the storage."""
    transient = directory / TRANSIENT_DIRECTORY
    queues = transient / QUEUES_DIRECTORY
    for name in filesystem.names(queues):
        filesystem.remove_directory(queues / name)
    filesystem.remove_directory(queues)
    filesystem.remove_directory(transient / LOG_DIRECTORY)
