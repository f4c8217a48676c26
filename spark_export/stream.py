"""`spark.readStream.format("warren")`: the queues of a data directory, followed while they grow.

A batch is read from one snapshot, the one its end offset names. So it is the same rows whenever
Spark reads it, also after the driver was killed, and whatever became of the messages and files in
the meantime. A snapshot is read to its end before the next is taken; when a batch is done with for
good (`commit`), the snapshots before its own are released.

What is consumed between two snapshots is in neither, and never read: that is no loss that could be
noticed. What can be is a snapshot that is gone before its batch was read (a driver that was away
for longer than `STREAM_LEASE_S`): that is a `DataLost`, unless `failOnDataLoss` is false; then what
is there still of the batch is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from warren.spark_export.errors import DataLost, OptionRefused, SnapshotGone
from warren.spark_export.filters import EVERYTHING
from warren.spark_export.options import ReadOptions
from warren.spark_export.partition import partitions_of, read_partition
from warren.spark_export.plan import QueueSelector, Range, Rows, cut_rows, find_rows
from warren.spark_export.schema import Column, arrow_schema
from warren.spark_export.snapshot import (
    PinnedQueue,
    Snapshot,
    create,
    load_snapshot,
    open_snapshot,
)
from warren.spark_export.stream_offsets import StreamOffset, StreamQueue, Waiting, advance
from warren.spark_export.unit import load_entries
from warren.spark_export.unreadable import check_unreadable

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("warren.spark_export")

STREAM_LEASE_S: Final = 24 * 3600.0
"""How long a driver may be away and find the snapshot of its unfinished batch; each use begins
it anew."""

SNAPSHOT_EVERY_S: Final = 0.5
"""Spark asks for news every few milliseconds; no batch of its own takes less than this."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of its own beside the driver, as long as the query."""

    def __init__(self, options: ReadOptions, chosen: Iterable[Column]) -> None:
        check_stream(options)
        self._options = options
        self._schema: pa.Schema = arrow_schema(chosen)
        self._held: list[str] = []
        """Directories of the snapshots that are to be released some day, the oldest first."""
        self._target: str | None = None
        self._newest: StreamOffset | None = None
        self._taken_at = -SNAPSHOT_EVERY_S

    def initialOffset(self) -> dict[str, Any]:
        with self._create() as snapshot:
            starting = self._options.starting_offsets
            following: dict[StreamQueue, int] = {}
            for queue in snapshot.queues:
                bound = starting.of(queue.vhost, queue.name)
                if isinstance(bound, int):
                    following[_key(queue)] = bound
                elif bound == "latest" and queue.last_position is not None:
                    following[_key(queue)] = queue.last_position + 1
        return StreamOffset("", following).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._take()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        at = StreamOffset.from_json(start)
        if at.snapshot and at.snapshot not in self._held:
            # Of an earlier life of the query.
            self._held.insert(0, at.snapshot)
        following = None
        if at.snapshot:
            # To its end, whatever the limit is: what it has may be gone from the queues.
            with suppress(SnapshotGone):
                following = self._advance(at, open_snapshot(Path(at.snapshot)), limit)
        if following is None and self._target != at.snapshot:
            directory = self._target or self._take()
            following = self._advance(at, load_snapshot(Path(directory)), limit)
            if following is None and directory != self._target:
                self._release(directory)
        return start if following is None else following.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._newest is None else self._newest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if first.next == last.next:
            return []
        snapshot = self._snapshot_of(last)
        check_unreadable(snapshot, snapshot.queues, self._options.mode)
        chosen = []
        for queue in snapshot.queues:
            end_seq = last.next.get(_key(queue))
            if end_seq is not None:
                span = Range(first.next.get(_key(queue)), end_seq)
                rows = find_rows(snapshot.directory, queue, span)
                if rows.end > rows.first:
                    chosen.append(rows)
        units = cut_rows(
            snapshot,
            chosen,
            max_bytes=self._options.max_partition_bytes,
            min_units=self._options.min_partitions,
        )
        return partitions_of(snapshot, units, self._options)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        keep = EVERYTHING.row_filter(self._options)
        yield from read_partition(partition, self._schema, self._options, keep)

    def commit(self, end: dict[str, Any]) -> None:
        """Release what is older than the snapshot of this offset; the snapshot itself may be read
        on from there."""
        directory = StreamOffset.from_json(end).snapshot
        if directory in self._held:
            for older in self._held[: self._held.index(directory)]:
                self._release(older)

    def _advance(
        self, start: StreamOffset, snapshot: Snapshot, limit: ReadLimit
    ) -> StreamOffset | None:
        """The next batch out of this snapshot, None when it has nothing more."""
        snapshot.extend(STREAM_LEASE_S)
        waiting = [_waiting(snapshot, queue, start.next) for queue in snapshot.queues]
        self._newest = StreamOffset(
            str(snapshot.directory),
            {
                **start.next,
                **{at.queue: int(at.positions[-1]) + 1 for at in waiting if len(at.positions)},
            },
        )
        if not any(len(at.positions) for at in waiting):
            return None
        return advance(
            start,
            str(snapshot.directory),
            waiting,
            max_rows=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            max_octets=self._octets_max(limit),
        )

    def _octets_max(self, limit: ReadLimit) -> int | None:
        """Spark names one limit only; where both are options the other is kept as well."""
        if isinstance(limit, ReadMaxBytes):
            return int(limit.max_bytes)
        return None if isinstance(limit, ReadAllAvailable) else self._options.max_bytes_per_trigger

    def _snapshot_of(self, end: StreamOffset) -> Snapshot:
        """That of a batch; where it is gone, and that is allowed, one of now."""
        try:
            return open_snapshot(Path(end.snapshot))
        except SnapshotGone as error:
            if self._options.fail_on_data_loss:
                raise DataLost(
                    f"a batch was not finished, and messages of it may be gone: {error}; with"
                    " failOnDataLoss=false the stream goes on with what is there"
                ) from error
            log.warning("batch_incomplete snapshot=%s", end.snapshot)
            return load_snapshot(Path(self._take()))

    def _take(self) -> str:
        """A new snapshot, held; not too soon after the last one."""
        pause_s = self._taken_at + SNAPSHOT_EVERY_S - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)
        directory = str(self._create().directory)
        self._taken_at = time.monotonic()
        self._held.append(directory)
        return directory

    def _create(self) -> Snapshot:
        options = self._options
        elsewhere = options.snapshot_directory
        return create(
            options.data_directory,
            QueueSelector(options.vhost, options.queues, options.queue_pattern),
            lease_s=STREAM_LEASE_S,
            directory=None if elsewhere is None else Path(elsewhere),
            with_state=options.wants_state,
        )

    def _release(self, directory: str) -> None:
        self._held.remove(directory)
        with suppress(SnapshotGone):
            load_snapshot(Path(directory)).release()


def check_stream(options: ReadOptions) -> None:
    """Raises `OptionRefused` for what is for batches only."""
    batch: dict[str, bool] = {
        "endingOffsets": options.ending_offsets.default != "latest"
        or bool(options.ending_offsets.queues),
        "endingTimestamp": options.ending_timestamp_us is not None,
        "snapshot": options.snapshot is not None,
    }
    for name, given in batch.items():
        if given:
            raise OptionRefused(f"option {name} is for batches; a stream has no end")


def _key(queue: PinnedQueue) -> StreamQueue:
    return StreamQueue(queue.vhost, queue.name, queue.queue_id)


def _waiting(
    snapshot: Snapshot, queue: PinnedQueue, following: Mapping[StreamQueue, int]
) -> Waiting:
    """What of the queue has not been read."""
    if not queue.rows:
        return Waiting(_key(queue), np.empty(0, np.uint64), np.empty(0, np.uint32))
    rows: Rows = find_rows(snapshot.directory, queue, Range(following.get(_key(queue))))
    entries = load_entries(snapshot.directory, queue.queue_id)[rows.first : rows.end]
    return Waiting(_key(queue), entries["position"], entries["length"])
