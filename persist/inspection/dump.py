"""The entries of one queue in a data directory, in order, for people to look at. Never writes.

Of a queue with priorities, the highest level comes first. What was acknowledged, and is retained,
comes last.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from warren.persist.disk.filesystem import FileSystem
from warren.persist.inspection.check import open_store, segment_entries
from warren.persist.inspection.queue_levels import QueueLevels, definition_id
from warren.persist.inspection.store_view import RecordReader, StoreView
from warren.persist.layout.envelopes import decode_envelope
from warren.persist.layout.format import (
    OFFSET_MASK,
    PERSISTENT,
    SHARED,
    Damaged,
    Harm,
    Record,
    file_of,
)
from warren.persist.layout.segment import IndexEntry
from warren.persist.recovery.recovery import STORE_DIRECTORY

NOTHING_KNOWN = QueueLevels()


class Dumped(NamedTuple):
    """An entry, and what its record says; `damage` instead of that when it cannot be read.

    `file` and `offset` are its place: where the record was written first. `length` is that of the
    record. Times are on the wall, in microseconds; `expires_us` is 0 when it does not expire,
    `acknowledged_us` when it was not acknowledged. Each `level` of a queue with priorities has
    positions of its own; what was acknowledged and is retained has one, too.
    """

    position: int
    file: int
    offset: int
    length: int
    body_bytes: int
    shared: bool
    expires_us: int
    persistent: bool = False
    enqueued_us: int = 0
    exchange: str = ""
    routing_key: str = ""
    body: bytes = b""
    damage: str = ""
    level: int = 0
    acknowledged_us: int = 0


def dump(
    filesystem: FileSystem, data_directory: Path, queue_id: int, known: QueueLevels = NOTHING_KNOWN
) -> Iterator[Dumped]:
    """The messages of the queue that this storage knows by this id (`queue_names`), of all levels.

    `known` is what definitions say of levels.

    Raises `DataDirectoryRefused`, `NewerStorage`, OSError.
    """
    node_id = open_store(data_directory)
    store = data_directory / STORE_DIRECTORY
    view = StoreView(
        filesystem, store, node_id, _pass_over, only=lambda at: known.queue_of(at) == queue_id
    )
    reader = RecordReader(filesystem, store)
    retained = {at for at in view.index.queues if known.is_retained(at)}
    levels = sorted(view.index.queues.keys() - retained, reverse=True)
    try:
        for level_id in (*levels, *retained):
            for dumped in _dump_level(view, reader, level_id):
                if level_id in retained:
                    dumped = dumped._replace(acknowledged_us=dumped.expires_us, expires_us=0)
                yield dumped._replace(level=level_id - definition_id(level_id))
    finally:
        reader.close()


def _dump_level(view: StoreView, reader: RecordReader, queue_id: int) -> Iterator[Dumped]:
    for _, segment in sorted(view.index.queues[queue_id].items()):
        unloaded = segment.columns is None
        if view.index.load(segment):
            for entry in segment_entries(segment):
                yield _dumped(queue_id, entry, reader)
            if unloaded:
                segment.unload()


def _pass_over(path: Path, harm: Harm) -> None:
    """Does nothing: `check` tells about damage elsewhere."""


def _dumped(queue_id: int, entry: IndexEntry, reader: RecordReader) -> Dumped:
    place = entry.place
    known = Dumped(
        entry.position,
        file_of(place),
        place & OFFSET_MASK,
        entry.length,
        entry.size,
        bool(place & SHARED),
        entry.expires_us,
    )
    try:
        return _told(known, reader.read(queue_id, entry))
    except Damaged as damage:
        return known._replace(damage=str(damage))


def _told(known: Dumped, record: Record) -> Dumped:
    persistent = bool(record.flags & PERSISTENT)
    envelope = decode_envelope(record.envelope, persistent)
    return known._replace(
        persistent=persistent,
        enqueued_us=record.enqueued_us,
        exchange=envelope.exchange,
        routing_key=envelope.routing_key,
        body=record.payload,
    )
