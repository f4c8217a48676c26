"""The octets of a snapshot's log files that remote readers may have: the snapshot's messages.

A log file has messages of all queues. A node that serves a snapshot's file to a user who may read
only some queues sends zeroes for everything else (`warren/mgmt/snapshot_service.py`). The file
`extents/<name of the log file>` in the snapshot lists the octets to send: pairs of offsets, begin
and end (exclusive), each 64 bits, little-endian, ascending and with gaps between them. The head of
a file is among them, and so is the table at the end of a file that was rewritten: they say where
records are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from warren.persist.layout.format import FILE_HEADER_BYTES
from warren.persist.log.log_writer import file_name
from warren.spark_export.snapshot.layout import FILE_SHIFT, OFFSET_MASK
from warren.spark_export.snapshot.pinned_log import LogFile, PinnedLog
from warren.spark_export.snapshot.snapshot_file import Snapshot
from warren.spark_export.snapshot.unit import ENTRY

EXTENTS_DIRECTORY = "extents"


def write_extents(snapshot: Snapshot) -> None:
    """Write the extents of every log file of the snapshot. Raises `SnapshotGone`, `StoreRefused`,
    OSError."""
    directory = snapshot.directory / EXTENTS_DIRECTORY
    directory.mkdir(mode=0o700)
    queues = [queue for queue in snapshot.queues if queue.rows]
    columns = [snapshot.files_of(queue).load_entries(queue.queue_id) for queue in queues]
    entries = np.concatenate(columns) if columns else np.empty(0, ENTRY)
    files = (entries["place"] >> FILE_SHIFT).astype(np.int64)
    order = np.argsort(files, kind="stable")
    entries, files = entries[order], files[order]
    log = PinnedLog(snapshot.files_of(queues[0]), entries) if queues else None
    if log is None:
        return
    try:
        for file_id in np.unique(files).tolist():
            file = log.file(file_id)
            generation = log.generation(file_id)
            if file is None or generation is None:
                continue
            first, end = np.searchsorted(files, [file_id, file_id + 1])
            extents = _extents(file, entries[first:end])
            (directory / file_name(file_id, generation)).write_bytes(extents.tobytes())
    finally:
        log.close()


def _extents(file: LogFile, entries: NDArray[np.void]) -> NDArray[np.uint64]:
    offsets = file.resolve((entries["place"] & OFFSET_MASK).astype(np.int64))
    lengths = entries["length"].astype(np.int64)
    there = offsets >= 0
    starts = [np.array([0]), offsets[there]]
    ends = [np.array([FILE_HEADER_BYTES]), (offsets + lengths)[there]]
    if file.header is not None and file.header.combined:
        starts.append(np.array([file.table_at]))
        ends.append(np.array([file.size]))
    start = np.concatenate(starts)
    end = np.minimum(np.concatenate(ends), file.size)
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    # Records are padded to 8 octets: neighbouring records make one extent.
    begins = np.concatenate(([True], start[1:] - end[:-1] >= 8))
    first = np.flatnonzero(begins)
    last = np.append(first[1:] - 1, len(end) - 1)
    pairs: NDArray[np.uint64] = np.stack([start[first], end[last]], axis=1).astype("<u8")
    return pairs
