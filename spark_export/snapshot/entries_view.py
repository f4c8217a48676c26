"""Reads the index of a store once, with entries as arrays; never writes.

It reports damage, and copes with changes by a running node, like
`persist/inspection/store_view.py`, but makes no Python value of any entry or journal record.
Segments are read after the journal, when the entries of their queue are asked for; each segment
says which part of the journal it contains.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warren.persist.disk.filesystem import File, FileSystem
from warren.persist.inspection.store_view import Harmed, StoreView
from warren.persist.layout.format import SEGMENT_ENTRIES, SegmentChange
from warren.persist.layout.segment import Columns, Segment
from warren.persist.log.log_reader import Scan
from warren.spark_export.snapshot.journal_entries import (
    WHOLE_BYTES_MAX,
    JournalEntries,
    Odd,
    last_removals,
    read_journal_file,
    scan_journal_file,
)
from warren.spark_export.snapshot.unit import ENTRY, Entries


class ArrayColumns(Columns):
    """Columns that take several entries at once, also with gaps between them."""

    __slots__ = ()

    def set_each(self, frame: SegmentChange) -> None:
        relative = np.frombuffer(frame.relative, np.uint16)
        if not len(relative):
            return
        self.reach(int(relative.max()) + 1)
        np.frombuffer(self.places, np.uint64)[relative] = frame.places
        np.frombuffer(self.expires, np.uint64)[relative] = frame.expires
        np.frombuffer(self.lengths, np.uint32)[relative] = frame.lengths
        np.frombuffer(self.sizes, np.uint32)[relative] = frame.sizes


class EntriesView(StoreView):
    """The present index in the storage's `directory`, for the queues that `only` accepts."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: Path,
        node_id: bytes,
        harmed: Harmed,
        only: Callable[[int], bool],
    ) -> None:
        """Raises `NewerStorage`, OSError."""
        self._journal = JournalEntries(only)
        self._tell = harmed
        super().__init__(
            filesystem,
            directory,
            node_id,
            harmed,
            only=only,
            totals=False,
            new_columns=ArrayColumns,
        )

    @property
    def queue_ids(self) -> set[int]:
        """The queues, and levels of queues, that may have entries."""
        return self._journal.queue_ids | self.index.queues.keys()

    def replay(self, file: File, file_id: int, offset: int, *, complete: bool) -> None:
        size = file.size()
        try:
            if size > WHOLE_BYTES_MAX:
                raise Odd("more than is to be in memory")
            found = read_journal_file(file.read(0, size), file_id, offset, complete=complete)
        except Odd:
            path = self.log_path(file_id)
            scan = Scan(file, file_id, offset, complete=complete)
            found = scan_journal_file(scan, lambda harm: self._tell(path, harm))
        self._journal.add(found)

    def entries(self, queue_id: int) -> Entries:
        """The entries of a queue, or of one level of it. May raise OSError."""
        entered, removed = self._journal.entered(queue_id), self._journal.removed(queue_id)
        parts = []
        known: dict[int, int] = {}
        for number, segment in sorted(self.index.queues.get(queue_id, {}).items()):
            part = self._stored(segment)
            known[number] = segment.flushed_place
            if removed is not None and len(part):
                left = last_removals(part["position"], removed)
                part = part[(left == 0) | (left < segment.flushed_place)]
            parts.append(part)
        if entered is not None:
            # Journal entries that a segment already contains are not entered again.
            new = np.ones(len(entered.at), np.bool_)
            if known:
                new = entered.at >= _known(entered.entry["position"], known)
            if removed is not None:
                new &= last_removals(entered.entry["position"], removed) < entered.at
            parts.append(entered.entry[new])
        return _ordered(np.concatenate(parts)) if parts else np.empty(0, ENTRY)

    def _stored(self, segment: Segment) -> Entries:
        """The entries in the file of a segment; they are not kept in memory."""
        self.index.load(segment)
        columns = segment.columns
        assert columns is not None
        segment.columns = None
        if not columns.places:
            return np.empty(0, ENTRY)
        places = np.frombuffer(columns.places, np.uint64)
        live = np.flatnonzero(places)
        part = np.empty(len(live), ENTRY)
        part["position"] = live.astype(np.uint64) + np.uint64(segment.start)
        part["place"] = places[live]
        part["expires_us"] = np.frombuffer(columns.expires, np.uint64)[live]
        part["length"] = np.frombuffer(columns.lengths, np.uint32)[live]
        part["body_bytes"] = np.frombuffer(columns.sizes, np.uint32)[live]
        return part


def _known(positions: NDArray[np.uint64], known: dict[int, int]) -> NDArray[np.uint64]:
    """For each position, the place in the journal up to which its segment contains it."""
    numbers, which = np.unique(positions // np.uint64(SEGMENT_ENTRIES), return_inverse=True)
    places = np.array([known.get(number, 0) for number in numbers.tolist()], np.uint64)
    return places[which]


def _ordered(entries: Entries) -> Entries:
    """The entries by position; of several with one position, the last."""
    positions = entries["position"]
    if (positions[1:] > positions[:-1]).all():
        return entries
    order = np.argsort(positions, kind="stable")
    positions = positions[order]
    last = np.append(positions[1:] != positions[:-1], True)
    chosen: Entries = entries[order[last]]
    return chosen
