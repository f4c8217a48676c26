"""`spark.readStream.format("warren")`: the queues of a data directory, followed while they grow.

A batch is read from one snapshot, the one that its end offset names. So it has the same rows
whenever Spark reads it, also after the driver was killed, and whatever happened to the messages and
files in the meantime. A snapshot is read to its end before the next is taken. Spark asks for a
later offset (`latestOffset`) when the batch before is finished for good; so a snapshot of which
nothing is left is released then.

A snapshot is kept for `STREAM_LEASE_S` after its last use (option `leaseSeconds`), or, with a
cursor, as long as the cursor exists (`cursor.py`). The reader knows which of a cursor's snapshots
is needed when Spark has named an offset, either the end of the batch to run again or the start of
the next: it needs the snapshot of that offset, and those taken since the reader began. Others were
left by a driver that was killed before it had recorded the offset, and are released.

Messages consumed between two snapshots are in neither, and never read: the reader cannot notice
that, and does not count it as a loss. Nor is it one that a queue is deleted: a queue that the
options name has to exist when the stream begins, and later counts as empty while it does not. A
snapshot that is gone before it was read to its end is a `DataLost`, unless `failOnDataLoss` is
false; then the messages that still exist are read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
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

from warren.spark_export.decode.schema import Column, arrow_schema
from warren.spark_export.errors import DataLost, OptionRefused, SnapshotGone
from warren.spark_export.snapshot.filters import EVERYTHING, Interval
from warren.spark_export.snapshot.options import IN_QUEUE, ReadOptions
from warren.spark_export.snapshot.plan import QueueSelector, check_named, find_rows, plan_units
from warren.spark_export.snapshot.snapshot import LEASE_S
from warren.spark_export.snapshot.snapshot_file import PinnedQueue, PinnedStore, tell_unasked
from warren.spark_export.snapshot.unreadable import check_unreadable
from warren.spark_export.source.partition import partitions_of, read_partition
from warren.spark_export.source.stores import Store, StreamCursor, store_of
from warren.spark_export.source.stream_offsets import (
    StreamOffset,
    StreamQueue,
    Waiting,
    advance,
    lag_after,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("warren.spark_export")

STREAM_LEASE_S: Final = 24 * 3600.0
"""The time for which a driver may be away and still find the snapshot of its unfinished batch; it
begins again with each use."""


NO_LAG: Final[dict[str, Any]] = {"rows": 0, "octets": 0, "queues": {}}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query; lives in a process of its own beside the driver, as long as the
    query."""

    def __init__(self, options: ReadOptions, chosen: Iterable[Column]) -> None:
        check_stream(options)
        self._options = options
        self._store: Store = store_of(options)
        self._lease_s = STREAM_LEASE_S if options.lease_seconds is None else options.lease_seconds
        self._schema: pa.Schema = arrow_schema(chosen)
        self._held: set[str] = set()
        """The names of snapshots that have to be released later."""
        self._cursor: StreamCursor | None = None
        self._cursor_settled = False
        self._available_now = False
        self._target: str | None = None
        """With `Trigger.AvailableNow`, the snapshot to read, until its first batch is done."""
        self._begun = False
        """Whether a snapshot was taken, by this reader or an earlier one of the query: the queues
        that the options name existed then."""
        self._away: frozenset[str] = frozenset()
        self._told_lost: set[str] = set()
        self._told_unasked = False
        self._newest: StreamOffset | None = None
        self._lag = NO_LAG
        self._taken_at = -self._store.snapshot_every_s

    def __getstate__(self) -> dict[str, Any]:
        """The state that tasks need: they read with the token of a snapshot, not with a login."""
        tasks = {"_options": self._options.without_login(), "_schema": self._schema}
        return {**tasks, "_cursor": None}

    def initialOffset(self) -> dict[str, Any]:
        self._take_cursor()
        starting = self._options.starting_offsets
        if starting.bounds() == {"earliest"}:
            return StreamOffset("", {}).to_json()
        snapshot = self._create(LEASE_S, cursor=None)
        try:
            check_named("startingOffsets", starting, snapshot.queues)
            following: dict[StreamQueue, int] = {}
            for queue in snapshot.queues:
                bound = starting.of(queue.vhost, queue.name)
                if isinstance(bound, int):
                    following[_key(queue)] = bound
                elif bound == "latest" and queue.last_position is not None:
                    following[_key(queue)] = queue.last_position + 1
        finally:
            snapshot.release()
        return StreamOffset("", following).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._take_cursor()
        self._available_now = True
        self._target = self._take()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._take_cursor()
        at = StreamOffset.from_json(start)
        self._named(at)
        if at.snapshot == self._target:
            self._target = None
        following = self._rest(at, limit) if at.snapshot else None
        if following is None:
            self._release_all_but(self._target)
            if self._target is not None or not self._available_now:
                following = self._begin(at, limit)
        return start if following is None else following.to_json()

    def _rest(self, at: StreamOffset, limit: ReadLimit) -> StreamOffset | None:
        """The next batch from the same snapshot, whatever kind the limit is: its messages may be
        gone from the queues. None if nothing is left in it."""
        try:
            return self._advance(at, self._store.open(at.snapshot), limit)
        except SnapshotGone as error:
            if at.left:
                self._lose(
                    f"{at.left} messages of a snapshot had not been read", at.snapshot, error
                )
            return None

    def _begin(self, at: StreamOffset, limit: ReadLimit) -> StreamOffset | None:
        """The first batch from the next snapshot. None if it has nothing new."""
        name = self._target or self._take()
        try:
            following = self._advance(at, self._store.open(name), limit)
        except SnapshotGone as error:
            self._lose("a snapshot had not been read", name, error)
            self._held.discard(name)
            name = self._take()
            following = self._advance(at, self._store.open(name), limit)
        if self._available_now:
            self._target = None if following is None else name
        if following is None:
            self._release(name)
        return following

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The newest known offset. Its `lag` (`lag_after`) is of the batch that was begun last."""
        if self._newest is None:
            return None
        return {**self._newest.to_json(), "lag": self._lag}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if begin.next == last.next:
            return []
        self._take_cursor()
        self._named(last)
        following = begin.next if last.first is None else last.first
        snapshot = self._snapshot_of(last)
        check_unreadable(snapshot, snapshot.queues, self._options.mode)
        units = plan_units(
            snapshot,
            (
                (queue, Interval(following.get(_key(queue)), last.next[_key(queue)]))
                for queue in snapshot.queues
                if _key(queue) in last.next
            ),
            max_bytes=self._options.max_partition_bytes,
            min_units=self._options.min_partitions,
        )
        return partitions_of(snapshot, units, self._options)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        keep = EVERYTHING.row_filter(self._options)
        yield from read_partition(partition, self._schema, self._options, keep)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: `latestOffset` shows that a batch is finished, and is called earlier."""

    def stop(self) -> None:
        """Called when the query has ended, unless Spark kills the process of this reader first, as
        Spark (4.3) mostly does: then the lock of a cursor ends with it, or its keeper leaves it
        (`cursor_keeper.py`)."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _advance(
        self, start: StreamOffset, snapshot: PinnedStore, limit: ReadLimit
    ) -> StreamOffset | None:
        """The next batch from this snapshot, None if nothing is left in it.

        Raises `SnapshotGone`, OSError.
        """
        snapshot.extend(self._lease_s)
        waiting = [_waiting(snapshot, queue, start.next) for queue in snapshot.queues]
        self._newest = StreamOffset(
            snapshot.name,
            {
                **start.next,
                **{at.queue: int(at.positions[-1]) + 1 for at in waiting if len(at.positions)},
            },
        )
        if not any(len(at.positions) for at in waiting):
            self._lag = NO_LAG
            return None
        following = advance(
            start,
            snapshot.name,
            waiting,
            max_rows=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            max_octets=self._octets_max(limit),
        )
        self._lag = lag_after(following, waiting)
        return following

    def _octets_max(self, limit: ReadLimit) -> int | None:
        """The limit in octets. Spark names one limit only; if both options are set, the other is
        kept as well."""
        if isinstance(limit, ReadMaxBytes):
            return int(limit.max_bytes)
        return None if isinstance(limit, ReadAllAvailable) else self._options.max_bytes_per_trigger

    def _snapshot_of(self, end: StreamOffset) -> PinnedStore:
        """The snapshot of a batch; if it is gone and that is allowed, a new one."""
        try:
            return self._store.open(end.snapshot)
        except SnapshotGone as error:
            self._lose("a batch was not finished", end.snapshot, error)
            return self._store.open(self._take())

    def _lose(self, what: str, name: str, error: SnapshotGone) -> None:
        """Go on without a snapshot, if that is allowed. Raises `DataLost`."""
        why = None
        if self._cursor is not None:
            why = self._cursor.why_gone(name)
        text = f"{what}, and messages of it may be gone: {why or error}"
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{text}; with failOnDataLoss=false the stream goes on with what is there"
            ) from error
        if name not in self._told_lost:
            self._told_lost.add(name)
            log.warning("messages_lost reason=%r", text)

    def _take_cursor(self) -> None:
        """Take the cursor at Spark's first call of the reader that lives with the query; readers
        that plan and read its batches do not need it. Raises `CursorInUse`."""
        options = self._options
        if options.cursor is not None and self._cursor is None:
            self._cursor = self._store.take_cursor(options.cursor, options.cursor_max_bytes)

    def _named(self, offset: StreamOffset) -> None:
        """Note an offset that Spark has named: its snapshot is held. If it is the first offset,
        other snapshots of an earlier run of the query are not needed."""
        if offset.snapshot:
            self._held.add(offset.snapshot)
            self._begun = True
        if self._cursor is not None and not self._cursor_settled:
            self._cursor.release_others(self._held)
            self._cursor_settled = True

    def _take(self) -> str:
        """Take a new snapshot and hold it; not too soon after the last one."""
        pause_s = self._taken_at + self._store.snapshot_every_s - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)
        name = self._create(self._lease_s, self._options.cursor).name
        self._taken_at = time.monotonic()
        self._held.add(name)
        return name

    def _create(self, lease_s: float, cursor: str | None) -> PinnedStore:
        options = self._options
        snapshot = self._store.create(
            QueueSelector(
                options.vhost, options.queues, options.queue_pattern, missing_ok=self._begun
            ),
            lease_s=lease_s,
            needs_state=options.needs_state,
            cursor=cursor,
        )
        self._begun = True
        self._tell_away(snapshot)
        if options.columns is None and not self._told_unasked:
            self._told_unasked = snapshot.unasked is not None
            tell_unasked(snapshot)
        return snapshot

    def _tell_away(self, snapshot: PinnedStore) -> None:
        """Log a queue that the options name and that does not exist, once until it is there."""
        away = frozenset(self._options.queues or ()) - {queue.name for queue in snapshot.queues}
        for name in sorted(away - self._away):
            log.warning("queue_away queue=%r: it counts as empty until it is declared", name)
        self._away = away

    def _release_all_but(self, needed: str | None) -> None:
        for name in sorted(self._held):
            if name != needed:
                self._release(name)

    def _release(self, name: str) -> None:
        self._held.discard(name)
        self._store.release(name)


def check_stream(options: ReadOptions) -> None:
    """Raise `OptionRefused` for options that are for batches only."""
    batch: dict[str, bool] = {
        "endingOffsets": options.ending_offsets.default != "latest"
        or bool(options.ending_offsets.queues),
        "endingTimestamp": options.ending_timestamp_us is not None,
        "snapshot": options.snapshot is not None,
    }
    for name, given in batch.items():
        if given:
            raise OptionRefused(f"option {name} is for batches; a stream has no end")
    if options.include != IN_QUEUE:
        raise OptionRefused(
            "option include is for batches; a stream passes each message once, and would never come"
            " back to what was left out"
        )


def _key(queue: PinnedQueue) -> StreamQueue:
    return StreamQueue(queue.vhost, queue.name, queue.stream_id)


def _waiting(
    snapshot: PinnedStore, queue: PinnedQueue, following: Mapping[StreamQueue, int]
) -> Waiting:
    """The messages of the queue that have not been read."""
    if not queue.rows:
        return Waiting(_key(queue), np.empty(0, np.uint64), np.empty(0, np.uint32))
    files = snapshot.files_of(queue)
    rows = find_rows(files, queue, Interval(following.get(_key(queue))))
    entries = files.load_entries(queue.queue_id)[rows.first : rows.end]
    return Waiting(_key(queue), entries["position"], entries["length"])
