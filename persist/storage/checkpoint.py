"""Checkpoints: bring the files of the queue indexes up to date, so that the journal can be shorter.

A checkpoint is taken while the node works, some segments at a time. When a batch of the journal is
closed, the entries of some segments that are not on disk yet are put into frames. When the batch is
synced, the background thread writes and syncs these frames. When this was done for all segments
that were behind at the beginning, the checkpoint is written: recovery begins at the batch at which
the checkpoint began. Each frame says up to which place of the journal it is, so newer frames do no
harm.

Delivery counts and dead marks are in the journal only. Before the checkpoint is written, all of
them go to a small file. Its counts may be newer than the checkpoint, which does no harm: they only
grow.

Then files are removed: log files before the checkpoint that have no live record. Log files with few
live records are written anew (`combine.py`). Files of segments that have become empty are removed
before the checkpoint, as recovery would not know any more that they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from warren.core.log_line import log_event
from warren.core.ports import Timer
from warren.persist.disk.filesystem import FileSystem, write_whole
from warren.persist.index.delivery_counts import DeliveryCounts
from warren.persist.index.index_context import IndexContext
from warren.persist.layout.format import (
    Checkpoint,
    DeliveryCount,
    encode_checkpoint,
    encode_counts,
    file_of,
)
from warren.persist.layout.segment import Segment
from warren.persist.log.journal import Journal
from warren.persist.log.message_store import StoreFile
from warren.persist.log.store_context import StoreContext
from warren.persist.recovery.recovery import CHECKPOINT_FILE, COUNTS_FILE

log = logging.getLogger("warren.storage")

SEGMENTS_A_SLICE = 64
ENTRIES_A_SLICE = 16384
"""Segments, and entries in them, put into frames in one turn of the loop; this takes some
milliseconds."""

ALL_FILES = 1 << 32
"""Above the number of any file."""

RETRY_S = 1.0
IDLE_S = 1.0
"""A node that has written nothing for this time takes a checkpoint and removes files."""

Write: TypeAlias = tuple[Segment, Path, int, bytes]


class JobOutcome:
    """The result of a background job; its thread sets it, the loop reads it."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: OSError | None = None


class Checkpointer:
    """Takes checkpoints. `place` is that of the last one; `wanted`: one has to be taken.

    `journal_bytes` are the octets behind the last checkpoint when the node started.
    """

    def __init__(
        self,
        store: StoreContext,
        indexes: IndexContext,
        journal: Journal,
        *,
        place: int,
        journal_bytes: int,
        on_done: Callable[[], None],
    ) -> None:
        self.place = place
        self.taken = 0
        self.wanted = False
        self._store = store
        self._indexes = indexes
        self._journal = journal
        self._persistent = indexes.persistent
        self._transient = indexes.transient
        self._on_done = on_done
        self._todo: list[Segment] = []
        self._next_place = 0
        self._last_place = 0
        self._running = False
        self._writes: list[Write] = []
        # A job is running, or failed just now.
        self._busy = False
        self._removing: list[Path] = []
        # Files without live records when the last batch was closed; `_dead`: that is on disk, too.
        self._dying: list[StoreFile] = []
        # Queues that had no delivery counts when the checkpoint was begun.
        self._uncounted: list[DeliveryCounts] = []
        self._dead: set[StoreFile] = set()
        self._written_since = journal_bytes
        self._written_seen = 0
        self._written_bytes = 0
        self._idle_timer: Timer | None = None
        self._closed = False
        # Some of the files found at the start may be needless.
        self.watch_idleness()

    # Calls for the journal's batches

    def batch_closed(self, end: int, octets: int) -> None:
        """Note that a batch was closed, which ends before `end` and has everything noted so far."""
        self._written_since += octets
        self._written_bytes += octets
        if self._written_since >= self._store.limits.checkpoint_bytes:
            self.wanted = True
        self._removing = list(self._indexes.discarded)
        self._dying = self._persistent.dead_before(ALL_FILES)
        if self._busy:
            return
        if self.wanted and not self._running and end <= self._last_place:
            # By its place a frame is known to belong to a checkpoint that was taken.
            self._journal.mark()
        elif self.wanted and not self._running:
            self._running = True
            self.wanted = False
            self._written_since = 0
            self._next_place = end
            self._todo = list(self._indexes.dirty)
        if self._running:
            self._prepare(end)

    def paged_out(self, octets: int) -> None:
        """Note octets written to the transient store; its indexes grow in memory, too."""
        self._written_since += octets
        if self._written_since >= self._store.limits.checkpoint_bytes and not self._running:
            self.request()

    def batch_synced(self) -> None:
        """The batch that was closed last is on disk: go on."""
        self._dead = set(self._dying)
        if self._removing:
            self._remove_segments()
        if self._running and not self._busy:
            if self._writes:
                self._write_frames()
            elif not self._todo:
                self._write_checkpoint()
            else:
                self._journal.flush()
        self._remove_dead()
        self.watch_idleness()

    def request(self) -> None:
        """Take a checkpoint as soon as possible."""
        self.wanted = True
        self._journal.flush()

    # Frames

    def _prepare(self, end: int) -> None:
        """Put some segments into frames."""
        self._last_place = end
        entries = 0
        while self._todo and len(self._writes) < SEGMENTS_A_SLICE and entries < ENTRIES_A_SLICE:
            segment = self._todo.pop()
            if not segment.dirty:
                continue
            # All entries count, not only the new ones: a segment that leaves memory is summed up.
            entries += 0 if segment.columns is None else len(segment.columns.places)
            self._indexes.dirty.pop(segment, None)
            offset, data = segment.flush(end, self._indexes.start)
            path = segment.path(segment.owner.directory)
            self._writes.append((segment, path, offset, data))

    def _write_frames(self) -> None:
        # A discarded segment may have lost its file already, and must not get another one.
        writes = [write for write in self._writes if write[0].owner.has(write[0])]
        self._writes = []
        self._in_background(
            lambda: write_frames(self._store.filesystem, writes),
            lambda error: self._frames_written(writes, error),
        )

    def _frames_written(self, writes: list[Write], error: OSError | None) -> None:
        if error is not None:
            _log_failure("index_write_failed", error, "writing_anew")
            for segment, _, _, _ in writes:
                if segment.owner.has(segment):
                    segment.begin_anew()
                    self._indexes.dirty[segment] = None
                    self._todo.append(segment)
            return
        for segment, _, offset, _ in writes:
            if not offset:
                older = segment.older_paths(segment.owner.directory)
                self._indexes.discarded.update(dict.fromkeys(older))
            segment.owner.unload_cold(segment)

    # The checkpoint

    def _write_checkpoint(self) -> None:
        place = self._next_place
        data = encode_checkpoint(Checkpoint(self._store.node_id, place, self._indexes.start))
        counts = self._delivery_counts()

        store = self._store

        def job() -> None:
            if counts is not None:
                write_counts(store.filesystem, store.directory, store.node_id, counts)
            write_whole(store.filesystem, store.directory / CHECKPOINT_FILE, data)

        self._in_background(job, lambda error: self._checkpoint_written(place, error))

    def _delivery_counts(self) -> list[tuple[int, list[tuple[int, int]]]] | None:
        """All counts by queue; None if there have been none since the node started."""
        counted = self._indexes.counted
        if not counted:
            return None
        there = [(counts.queue_id, counts.all()) for counts in counted if counts]
        # A queue without counts goes when the file of the counts knows that it has none.
        self._uncounted = [counts for counts in counted if not counts]
        return there

    def _checkpoint_written(self, place: int, error: OSError | None) -> None:
        if error is not None:
            _log_failure("checkpoint_failed", error, "trying_again")
            return
        self._running = False
        for counts in self._uncounted:
            if not counts:
                self._indexes.counted.pop(counts, None)
        self._uncounted = []
        self.place = place
        self.taken += 1
        self._remove_dead()
        self._on_done()

    # Removing files

    def _remove_segments(self) -> None:
        if self._busy:
            return
        paths, self._removing = self._removing, []
        filesystem = self._store.filesystem

        def job() -> None:
            directories = set()
            for path in paths:
                filesystem.remove(path)
                directories.add(path.parent)
            for directory in directories:
                try:
                    filesystem.sync_directory(directory)
                except FileNotFoundError:
                    # The queue was deleted since, and its directory with it.
                    continue

        self._in_background(job, lambda error: self._segments_removed(paths, error))

    def _segments_removed(self, paths: list[Path], error: OSError | None) -> None:
        if error is not None:
            _log_failure("index_remove_failed", error, "trying_again")
            return
        for path in paths:
            self._indexes.discarded.pop(path, None)

    def _remove_dead(self) -> None:
        """Remove the log files without live records, once that state is on disk."""
        doomed = [
            self._persistent.forget(file)
            for file in self._persistent.dead_before(file_of(self.place))
            if file in self._dead
        ]
        doomed += [self._transient.forget(file) for file in self._transient.dead_before(ALL_FILES)]
        doomed += self._persistent.superseded
        self._persistent.superseded = []
        if doomed:
            self.remove_files(doomed)

    def remove_files(self, paths: list[Path]) -> None:
        """Remove log files. If a crash brings a file back, the next start removes it."""
        filesystem = self._store.filesystem

        def job() -> None:
            for path in paths:
                try:
                    filesystem.remove(path)
                except OSError as error:
                    log_event(
                        log, logging.WARNING, "log_file_remove_failed", path=path, error=error
                    )

        self._store.run_background(job)

    def watch_idleness(self) -> None:
        """Watch for idle times, in which a checkpoint is taken and files are removed."""
        if self._idle_timer is None and not self._closed:
            self._written_seen = self._written_bytes
            self._idle_timer = self._store.clock.call_later(IDLE_S, self._look_idle)

    def _look_idle(self) -> None:
        self._idle_timer = None
        if self._written_bytes != self._written_seen:
            self.watch_idleness()
            return
        current = self._persistent.current
        if current is not None and not current.live_count:
            if current.size > self._store.limits.tidy_bytes:
                self._persistent.seal()
        if self._persistent.dead_before(ALL_FILES):
            if self._running:
                self.watch_idleness()
            else:
                self.request()

    def close(self) -> None:
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    # The background thread

    def _in_background(
        self, job: Callable[[], None], done: Callable[[OSError | None], None]
    ) -> None:
        """Run a job in the background thread, then `done` on the loop.

        What is still to be done goes on with the next batch; after an error a little later,
        whatever batches come meanwhile.
        """
        self._busy = True
        outcome = JobOutcome()

        def finish() -> None:
            if self._closed:
                return
            done(outcome.error)
            if outcome.error is not None:
                self._store.clock.call_later(RETRY_S, self._try_again)
                return
            self._busy = False
            if self._running or self.wanted:
                self._journal.flush()

        def attempt() -> None:
            try:
                job()
            except OSError as error:
                outcome.error = error
            self._store.tell_loop(finish)

        self._store.run_background(attempt)

    def _try_again(self) -> None:
        self._busy = False
        if not self._closed:
            self._journal.flush()


def write_frames(filesystem: FileSystem, writes: list[Write]) -> None:
    """Write frames, durably for durable queues. Raises OSError; then none of them counts."""
    try:
        for _, path, offset, data in writes:
            if not offset:
                filesystem.make_directory(path.parent)
            file = filesystem.open(path) if offset else filesystem.create(path)
            try:
                file.write(offset, data)
            finally:
                file.close()
        synced = [path for segment, path, _, _ in writes if segment.owner.durable]
        if synced:
            filesystem.sync_files(synced)
    except OSError:
        # Octets that a failed sync left in the cache may never reach the disk: no reader may find
        # them.
        for _, path, offset, _ in writes:
            cut_off(filesystem, path, offset)
        raise


def write_counts(
    filesystem: FileSystem,
    directory: Path,
    node_id: bytes,
    counts: list[tuple[int, list[tuple[int, int]]]],
) -> None:
    """Replace the file of delivery counts. Raises OSError."""
    each = [
        DeliveryCount(queue_id, position, count)
        for queue_id, of_queue in counts
        for position, count in of_queue
    ]
    write_whole(filesystem, directory / COUNTS_FILE, encode_counts(node_id, each))


def cut_off(filesystem: FileSystem, path: Path, size: int) -> None:
    """Shorten a file to what is known to be good, as far as the disk lets us."""
    try:
        file = filesystem.open(path)
    except OSError:
        return
    try:
        if file.size() > size:
            file.truncate(size)
    except OSError as error:
        log_event(log, logging.WARNING, "segment_not_cut", path=path, error=error)
    finally:
        file.close()


def _log_failure(event: str, error: OSError, action: str) -> None:
    log_event(log, logging.ERROR, event, error=error, action=action)
