"""What a snapshot has, read one record at a time: as slow and as plain as can be."""

from __future__ import annotations

from handmade_snapshot import snapshot_directory

from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.inspection.store_view import RecordReader
from warren.persist.layout.format import Record
from warren.persist.layout.segment import IndexEntry
from warren.spark_export.snapshot.filters import Interval
from warren.spark_export.snapshot.plan import plan_units
from warren.spark_export.snapshot.snapshot import Snapshot
from warren.spark_export.snapshot.unit import Unit

WHOLE = Interval()


def units_of(
    snapshot: Snapshot, max_bytes: int = 1 << 30, min_units: int = 1, span: Interval = WHOLE
) -> list[Unit]:
    """Of each queue what is in the span."""
    spans = [(queue, span) for queue in snapshot.queues]
    return plan_units(snapshot, spans, max_bytes=max_bytes, min_units=min_units)


def records_of(units: list[Unit]) -> dict[tuple[str, str], dict[int, Record]]:
    """By queue and position. Raises `Damaged` for a record that is not what was written."""
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for unit in units:
        reader = RecordReader(RealFileSystem(), snapshot_directory(unit))
        try:
            messages = found.setdefault((unit.vhost, unit.queue), {})
            for row in unit.entries().tolist():
                assert row[0] not in messages, "a position twice"
                messages[row[0]] = reader.read(unit.queue_id, IndexEntry(*row))
        finally:
            reader.close()
    return found


def bodies_of(snapshot: Snapshot, vhost: str, queue: str) -> dict[int, bytes]:
    records = records_of(units_of(snapshot)).get((vhost, queue), {})
    return {position: record.payload for position, record in records.items()}
