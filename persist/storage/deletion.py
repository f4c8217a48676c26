"""Removes from disk what deleted queues had there.

A queue that was deleted keeps its messages until its definition is gone from the disk: after a
crash before that the queue is back, and wants them. Then its places in the log are given back and
its files removed. The note that it was deleted (`deleted_queues.py`) goes last, when neither files
nor the journal from the last checkpoint on have anything of the queue: until then a recovery may
find messages, and has to know that they are not missed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from warren.core.log_line import log_event
from warren.core.ports import Commit
from warren.persist.definitions.deleted_queues import DeletedQueues, first_level
from warren.persist.index.queue_index import QueueIndex
from warren.persist.log.journal import Journal
from warren.persist.log.message_store import MessageStore
from warren.persist.log.store_context import StoreContext
from warren.persist.recovery.recovery import QUEUES_DIRECTORY
from warren.persist.storage.checkpoint import Checkpointer
from warren.persist.storage.work_in_turns import WorkInTurns

log = logging.getLogger("warren.storage")

LET_GO_MAX = 1000
"""Deleted queues that wait for a checkpoint; more of them bring it about."""

QUEUES_AT_ONCE = 100
"""Deleted queues whose places are given back before others have their turn."""


class Deletion:
    """`notes` say which queues were deleted. `definitions` returns the youngest commit of
    definitions that a crash could still undo."""

    def __init__(
        self,
        context: StoreContext,
        persistent: MessageStore,
        journal: Journal,
        checkpointer: Checkpointer,
        work: WorkInTurns,
        *,
        notes: DeletedQueues,
        definitions: Callable[[], Commit | None],
    ) -> None:
        self._context = context
        self._persistent = persistent
        self._journal = journal
        self._checkpointer = checkpointer
        self._work = work
        self._notes = notes
        self._definitions = definitions
        # Queues that were deleted since the last batch was closed, and those before.
        self._deleted: list[QueueIndex] = []
        self._doomed: list[QueueIndex] = []
        # Deleted queues without files; records of them are in the journal before the place.
        self._leaving: deque[tuple[int, set[int]]] = deque()
        self._stopped = False

    def stop(self) -> None:
        """Remove and forget nothing more."""
        self._stopped = True

    def note(self, index: QueueIndex) -> None:
        """Note that the queue was deleted."""
        self._deleted.append(index)
        self._journal.note_deletion()

    def batch_closed(self) -> None:
        """Note that the batch has all that was noted of the queues deleted so far."""
        self._doomed += self._deleted
        self._deleted = []

    def batch_synced(self) -> list[QueueIndex]:
        """Go on with the queues that were deleted before the batch; they are returned."""
        doomed, self._doomed = self._doomed, []
        if doomed:
            definitions = self._definitions()
            if definitions is None:
                self._remove(doomed)
            else:
                definitions.then(lambda: self._remove(doomed))
        return doomed

    def _remove(self, doomed: list[QueueIndex]) -> None:
        """Remove what these queues held: their definitions are gone from the disk."""
        if self._stopped:
            return
        self._work.add(self._released(deque(doomed)))

    def _released(self, doomed: deque[QueueIndex]) -> Iterator[None]:
        """Give places back, for which segments may have to be read, and then remove the files.

        A queue is let go before the next one: to free thousands at once takes long.
        """
        queue_ids: set[int] = set()
        directories: list[Path] = []
        while doomed:
            index = doomed.popleft()
            yield from index.entries.release()
            if index.durable:
                queue_ids.add(first_level(index.queue_id))
            if index.entries.has_files:
                directories.append(index.entries.directory)
            if len(doomed) % QUEUES_AT_ONCE == 1:
                yield
        self._checkpointer.watch_idleness()
        if not directories:
            self._without_files(queue_ids)
            return

        def job() -> None:
            if self._remove_directories(directories):
                self._context.tell_loop(lambda: self._without_files(queue_ids))

        self._context.run_background(job)

    def _remove_directories(self, directories: list[Path]) -> bool:
        """Remove the directories, in the background. Return whether they are gone for good."""
        gone = True
        for directory in directories:
            try:
                self._context.filesystem.remove_directory(directory)
            except OSError as error:
                log_event(log, logging.WARNING, "leftover_remains", path=directory, error=error)
                gone = False
        return self._sync_parents({directory.parent for directory in directories}) and gone

    def _sync_parents(self, parents: Collection[Path]) -> bool:
        """Sync these directories. Return whether what was removed from them cannot come back."""
        synced = True
        for parent in parents:
            try:
                self._context.filesystem.sync_directory(parent)
            except OSError as error:
                log_event(log, logging.WARNING, "leftover_may_remain", path=parent, error=error)
                synced = False
        return synced

    def _without_files(self, queue_ids: set[int]) -> None:
        """Note that only the journal knows of these queues, up to where it is now."""
        if self._stopped or not queue_ids:
            return
        self._leaving.append((self._persistent.end, queue_ids))
        if len(self._leaving) >= LET_GO_MAX:
            self._checkpointer.request()

    def checkpoint_taken(self) -> None:
        """Forget the queues of which recovery would find nothing from the checkpoint on."""
        queue_ids: set[int] = set()
        while self._leaving and self._leaving[0][0] <= self._checkpointer.place:
            queue_ids |= self._leaving.popleft()[1]
        if queue_ids:
            self._work.add(self._forgotten(list(queue_ids)))

    def _forgotten(self, queue_ids: list[int]) -> Iterator[None]:
        while queue_ids:
            self._notes.forget(queue_ids[-QUEUES_AT_ONCE:])
            del queue_ids[-QUEUES_AT_ONCE:]
            yield

    def forget_when_synced(self, queue_ids: set[int]) -> None:
        """Forget queues of which no files were found at start.

        If a sync failed before, a power failure may bring their files back: sync once more.
        """

        def job() -> None:
            if self._sync_parents([self._context.directory / QUEUES_DIRECTORY]):
                self._context.tell_loop(lambda: self._forget(queue_ids))

        if queue_ids:
            self._context.run_background(job)

    def _forget(self, queue_ids: set[int]) -> None:
        if not self._stopped:
            self._work.add(self._forgotten(list(queue_ids)))
