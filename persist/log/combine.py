"""Writes log files anew when most of what is in them is dead.

Copy-forward: the records that are alive are copied into the next generation of the file, which
takes its place when it is whole and synced; the old one is removed. Nothing is changed in place,
and a crash leaves one of the two. Places stay what they are: the new file ends with a table that
says where each record was and where it is.

The queue indexes know which records are alive. They are asked a few segments at a time, since a
file may have messages of a thousand queues. Nothing is ever added to a full file, so what is
found can only be too much, never too little.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

from warren.core.log_line import log_event
from warren.persist.layout.format import FileHeader
from warren.persist.layout.segment import Segment
from warren.persist.log.copy_records import copy_records
from warren.persist.log.log_writer import file_name
from warren.persist.log.message_store import MessageStore, StoreFile
from warren.persist.log.store_context import StoreContext

log = logging.getLogger("warren.storage")

GARBAGE_FRACTION = 0.5
"""A file with more than this dead is written anew (storage_internals.md section 0)."""

SEGMENTS_A_TURN = 8
ENTRIES_A_TURN = 16384
"""Segments, and entries in them, asked in one turn of the loop; some milliseconds when they have
to be read."""

RETRY_S = 5.0


class Stage(Enum):
    """The steps between asking for removals and copying: a removal must be on disk before its
    record is left out."""

    IDLE = auto()
    ASKED = auto()
    IN_BATCH = auto()


class Combiner:
    """Writes files of one store anew, one at a time."""

    def __init__(
        self,
        context: StoreContext,
        store: MessageStore,
        *,
        start: int,
        flush_journal: Callable[[], None],
        remove_files: Callable[[list[Path]], None],
    ) -> None:
        self.combined = 0
        self._context = context
        self._store = store
        self._start = start
        self._flush_journal = flush_journal
        self._remove_files = remove_files
        self._file: StoreFile | None = None
        self._segments: list[Segment] = []
        self._alive: dict[int, int] = {}
        self._below = 0
        self._waiting = False
        self._closed = False
        self._stage = Stage.IDLE

    def look(self, below: int) -> None:
        """Begin with the file below this number that has most to give, if one has enough."""
        if self._file is not None or self._waiting or self._closed:
            return
        candidates = [file for file in self._store.files.values() if self._worth(file, below)]
        if not candidates:
            return
        file = max(candidates, key=lambda file: file.size - file.live_bytes)
        self._file = file
        self._segments = list(file.segments)
        self._alive = {}
        # Segments that share a record of the file from now on are not asked: `late` has these
        # records.
        file.late = {}
        self._below = below
        self._context.clock.call_soon(self._ask_segments)

    def close(self) -> None:
        self._closed = True

    def _worth(self, file: StoreFile, below: int) -> bool:
        """Whether writing the file anew gives back more than it costs."""
        return (
            file.sealed
            and file.file_id < below
            and file.size >= self._context.limits.combine_bytes_min
            and file.live_count > 0
            and not file.unwritten
            and file.size - file.live_bytes > GARBAGE_FRACTION * file.size
        )

    def _ask_segments(self) -> None:
        file = self._file
        if file is None or self._closed:
            return
        asked = entries = 0
        for segment in self._segments[:SEGMENTS_A_TURN]:
            if entries >= ENTRIES_A_TURN:
                break
            self._ask(segment, file)
            asked += 1
            entries += segment.written
        del self._segments[:asked]
        if self._segments:
            self._context.clock.call_soon(self._ask_segments)
        elif self._is_gone(file) or not file.live_count:
            self._file = None
            self.look(self._below)
        else:
            self._stage = Stage.ASKED
            self._flush_journal()

    def _is_gone(self, file: StoreFile) -> bool:
        """Whether the last message of the file went meanwhile, and the file with it."""
        return self._store.files.get(file.file_id) is not file

    def batch_closed(self) -> None:
        """Note that everything that was removed so far is in the batch."""
        if self._stage is Stage.ASKED:
            self._stage = Stage.IN_BATCH

    def batch_synced(self) -> None:
        """Begin to copy: the removal of all records that are not copied is on disk."""
        if self._stage is Stage.IN_BATCH:
            self._stage = Stage.IDLE
            file = self._file
            if file is None or self._closed:
                return
            if self._is_gone(file):
                self._file = None
                self.look(self._below)
            else:
                self._copy(file)

    def _ask(self, segment: Segment, file: StoreFile) -> None:
        alive = segment.owner.lengths_in(segment, file.file_id)
        if alive:
            self._alive.update(alive)
        else:
            file.segments.discard(segment)

    def _copy(self, file: StoreFile) -> None:
        filesystem = self._context.filesystem
        self._alive.update(file.late or {})
        file.late = None
        old = self._store.path(file)
        new = self._store.directory / file_name(file.file_id, file.generation + 1)
        context, generation = self._context, file.generation + 1
        header = FileHeader(
            context.node_id, file.file_id, generation, self._start, context.now_us(), True
        )
        before = array("I", sorted(self._alive))
        lengths = array("I", [self._alive[offset] for offset in before])
        located = array("I", [self._store.offset_in(file, offset) for offset in before])
        outcome = CopyOutcome()

        def job() -> None:
            try:
                after = copy_records(filesystem, old, new, header, before, located, lengths)
                outcome.moved = (before, after[0])
                outcome.size = after[1]
            except OSError as error:
                outcome.error = error
            self._context.tell_loop(lambda: self._copied(file, outcome))

        self._context.run_background(job)

    def _copied(self, file: StoreFile, outcome: CopyOutcome) -> None:
        if self._closed:
            return
        self._file = None
        if self._is_gone(file):
            if outcome.error is None:
                path = self._store.directory / file_name(file.file_id, file.generation + 1)
                self._remove_files([path])
            self.look(self._below)
            return
        if outcome.error is not None:
            log_event(log, logging.ERROR, "combine_failed", file=file.name, error=outcome.error)
            self._waiting = True
            self._context.clock.call_later(RETRY_S, self._stop_waiting)
            return
        assert outcome.moved is not None
        self._remove_files([self._store.replace(file, outcome.moved, outcome.size)])
        self.combined += 1
        self.look(self._below)

    def _stop_waiting(self) -> None:
        self._waiting = False


class CopyOutcome:
    """How a copy went; set by the background thread, read on the loop."""

    __slots__ = ("error", "moved", "size")

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.moved: tuple[array[int], array[int]] | None = None
        self.size = 0
