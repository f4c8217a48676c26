"""`spark.read.format("warren")`: the queues of a data directory as a DataFrame.

A snapshot is taken once for each `load()`, and every action of that DataFrame reads it; so they all
see the same messages. Spark calls `schema()` once for each `load()`, and the source keeps the
snapshot from that call. If the user gives a schema, Spark does not call `schema()`, and `reader()`
takes the snapshot; it is called once for each DataFrame too, unless filters are pushed down: then
each action plans anew and has a snapshot of its own. Name a snapshot (option `snapshot`) where that
matters.

A snapshot taken here lasts for `snapshot.LEASE_S` (option `leaseSeconds`), and no longer than the
Spark application; later reads of the DataFrame fail with `SnapshotGone`. It is removed by the node,
or by the next snapshot, when its lease has run out or the application has ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from warren.persist.snapshots.pin_owner import Owner, owner_of
from warren.spark_export.decode.schema import (
    Column,
    arrow_schema,
    columns,
    columns_of,
    spark_schema,
)
from warren.spark_export.errors import OptionRefused, SnapshotGone
from warren.spark_export.snapshot.filters import EVERYTHING, Interval, Pushed, understand
from warren.spark_export.snapshot.options import IN_QUEUE, ReadOptions, parse_options
from warren.spark_export.source.partition import partitions_of, read_partition

FORMAT_NAME = "warren"

WORKERS = "pyspark.sql.worker."
"""The prefix of modules that are loaded in workers of the driver only."""

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from warren.spark_export.sink.sink import MessageStreamWriter, MessageWriter
    from warren.spark_export.snapshot.plan import QueueSelector
    from warren.spark_export.snapshot.snapshot_file import PinnedQueue, PinnedStore
    from warren.spark_export.snapshot.unit import Unit
    from warren.spark_export.source.stores import SnapshotPlace
    from warren.spark_export.source.stream import StreamReader


class MessageStoreSource(DataSource):
    """The data source; registered by `register`, or found by Spark itself (`pyspark_warren`)."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._place: SnapshotPlace | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        options = parse_options(self.options)
        schema = spark_schema(columns(options))
        # A batch that names a cursor is refused later; a stream has snapshots of its own.
        if options.cursor is None:
            self._place = find_place(options)
        return schema

    def reader(self, schema: StructType) -> BatchReader:
        options = parse_options(self.options)
        _check_batch(options)
        chosen = columns_of(schema, options)
        if self._place is None:
            self._place = find_place(options)
        kind = PushdownBatchReader if options.filter_pushdown else BatchReader
        return kind(options.without_login(), chosen, self._place)

    def streamReader(self, schema: StructType) -> StreamReader:
        from warren.spark_export.source.stream import StreamReader

        options = parse_options(self.options)
        if self._place is not None and options.snapshot is None:
            # This snapshot was for a batch: `schema()` does not know whether it is called for a
            # stream.
            with suppress(SnapshotGone):
                self._place.open().release()
        if "endingOffsets" in self.options:
            raise OptionRefused("option endingOffsets is for batches; a stream has no end")
        return StreamReader(options, columns_of(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> MessageWriter:
        from warren.spark_export.sink.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MessageStreamWriter:
        from warren.spark_export.sink.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


class BatchReader(DataSourceReader):
    """Reads the snapshot at this place."""

    def __init__(
        self, options: ReadOptions, chosen: Iterable[Column], place: SnapshotPlace
    ) -> None:
        self._options = options
        self._schema: pa.Schema = arrow_schema(chosen)
        self._place = place
        self._pushed = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        snapshot = self._place.open()
        units = plan(snapshot, self._options, self._pushed)
        return partitions_of(snapshot, units, self._options)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        keep = self._pushed.row_filter(self._options)
        yield from read_partition(partition, self._schema, self._options, keep)


class PushdownBatchReader(BatchReader):
    """A `BatchReader` whose filters reduce what is read.

    Only where a user asks for it: Spark (4.3) keeps one reader for all scans of what a `load()`
    returned, the one to which it handed filters last. So two branches of a query with different
    filters, or a later query without one, get rows for one and the same filter.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Returns all filters, so that Spark applies them: more may be read than they ask for."""
        self._pushed = understand(filters)
        return filters


def find_place(options: ReadOptions) -> SnapshotPlace:
    """The place of the snapshot that the options name, or of a new one of the selected queues.

    Raises `OptionRefused`, `QueueUnknown`, `SnapshotGone`, `StoreRefused`, OSError.
    """
    from warren.spark_export.snapshot.snapshot import LEASE_S, tell_unasked
    from warren.spark_export.source.stores import store_of

    store = store_of(options)
    if options.snapshot is not None:
        return store.place_of(store.named(options.snapshot))
    snapshot = store.create(
        _selector(options),
        needs_state=options.needs_state,
        lease_s=LEASE_S if options.lease_seconds is None else options.lease_seconds,
        owner=session_process(),
    )
    if options.columns is None:
        tell_unasked(snapshot)
    return store.place_of(snapshot)


def _selector(options: ReadOptions) -> QueueSelector:
    from warren.spark_export.snapshot.plan import QueueSelector

    return QueueSelector(
        options.vhost, options.queues, options.queue_pattern, options.wants_retained
    )


def session_process() -> Owner | None:
    """A process that lives as long as the Spark application: the parent of this one.

    Spark calls a source in a worker of its driver. Such workers are started by a daemon that ends
    with the application (`SparkEnv`), or by the driver's Java. None outside of a worker, where the
    application's process is unknown.
    """
    in_worker = any(name.startswith(WORKERS) for name in sys.modules)
    return owner_of(os.getppid()) if in_worker else None


def plan(snapshot: PinnedStore, options: ReadOptions, pushed: Pushed) -> list[Unit]:
    """The units of a batch. Raises `QueueUnknown`, `RecordDamaged`, OSError."""
    from warren.spark_export.snapshot.plan import check_named, plan_units, select_queues
    from warren.spark_export.snapshot.unreadable import check_unreadable

    selected = select_queues(snapshot, _selector(options), taken_for_it=options.snapshot is None)
    if not options.include & IN_QUEUE:
        selected = [queue for queue in selected if queue.retained]
    check_named("startingOffsets", options.starting_offsets, selected)
    check_named("endingOffsets", options.ending_offsets, selected)
    read = [queue for queue in selected if pushed.has_queue(queue.vhost, queue.name)]
    check_unreadable(snapshot, read, options.mode)
    return plan_units(
        snapshot,
        ((queue, _asked(queue, options) & pushed.seq) for queue in read),
        max_bytes=options.max_partition_bytes,
        min_units=options.min_partitions,
    )


def _asked(queue: PinnedQueue, options: ReadOptions) -> Interval:
    """The positions that the options ask for."""
    start = options.starting_offsets.of(queue.vhost, queue.name)
    end = options.ending_offsets.of(queue.vhost, queue.name)
    return Interval(
        None if isinstance(start, str) else start, None if isinstance(end, str) else end
    )


def _check_batch(options: ReadOptions) -> None:
    if "latest" in options.starting_offsets.bounds():
        raise OptionRefused("option startingOffsets may not be latest in a batch")
    if "earliest" in options.ending_offsets.bounds():
        raise OptionRefused("option endingOffsets may not be earliest in a batch")
    streaming: dict[str, Any] = {
        "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
        "maxBytesPerTrigger": options.max_bytes_per_trigger,
        "cursor": options.cursor,
    }
    for name, value in streaming.items():
        if value is not None:
            raise OptionRefused(f"option {name} is for streams")
