"""Writes one unit as Parquet: the work of a Spark task in an export.

A file is written in the staging folder, or as a temporary file if the export is remote. When it is
complete, it gets a name that follows from its contents. Then a note of the written files is made; a
task that is run again finds the note and does nothing. If a task runs twice at once, perhaps on two
machines, it writes the same files twice, each as a draft of its own until the rename.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from warren.backup.shelf import Draft
from warren.spark_export.decode.decode import decode_unit
from warren.spark_export.decode.schema import arrow_schema, columns
from warren.spark_export.export.manifest import (
    ExportedFile,
    file_name,
    partition_directory,
    shelf_of,
    staging_folder,
)
from warren.spark_export.snapshot.deliveries import Deliveries
from warren.spark_export.snapshot.filters import EVERYTHING
from warren.spark_export.snapshot.options import ReadOptions
from warren.spark_export.snapshot.unit import Unit

ROW_GROUP_BYTES = 64 << 20
"""Octets of decoded columns in a row group; that much of each unfinished file is in memory."""

ROW_GROUP_ROWS = 1 << 20

EPOCH = date(1970, 1, 1)

WORDS = frozenset(
    {
        "vhost", "queue", "exchange", "routing_key", "redelivered", "state", "delivery_mode",
        "content_type", "content_encoding", "priority", "reply_to", "expiration", "type",
        "user_id", "app_id", "cluster_id", "store_uuid", "segment", "generation",
    }
)  # fmt: skip
"""Columns whose values repeat; in others a dictionary would be given up."""

STEPS = ("seq", "enqueued_at", "timestamp")
"""Columns whose values are close to the value before."""


@dataclass(frozen=True)
class ExportTask:
    """A unit, what is known about deliveries, and how to write it; picklable."""

    unit: Unit
    deliveries: Deliveries
    options: ReadOptions
    destination: str
    export: str
    node_id: str
    snapshot: str
    codec: str

    @property
    def name(self) -> str:
        unit = self.unit
        return f"{unit.queue_id:016x}-{unit.first:012}-{unit.end:012}"


def export_unit(task: ExportTask) -> list[ExportedFile]:
    """Write the unit; returns its files, which are complete.

    Raises `RecordDamaged`, `DataLost`, `SnapshotGone`, OSError.
    """
    done = finished_files(task)
    if done is not None:
        return done
    pa.set_cpu_count(1)
    shelf = shelf_of(task.destination)
    schema = arrow_schema(columns(task.options))
    with ExitStack() as stack:
        by_date: dict[str | None, ParquetFile] = {}
        batches = decode_unit(
            task.unit,
            schema,
            task.options,
            deliveries=task.deliveries,
            keep=EVERYTHING.row_filter(task.options),
        )
        for batch in batches:
            for day, part in by_day(batch):
                file = by_date.get(day)
                if file is None:
                    draft = shelf.draft(staging_folder(task.export))
                    stack.callback(draft.discard)
                    file = ParquetFile(draft, schema, task.codec, task.options.corrupt_column)
                    by_date[day] = file
                file.write(part)
        files = [_finish(task, by_date[day], day) for day in sorted(by_date, key=str)]
    note = json.dumps([asdict(file) for file in files]).encode()
    shelf.write(_note_name(task), note)
    return files


def finished_files(task: ExportTask) -> list[ExportedFile] | None:
    """The files of the unit from an earlier run; None if that did not finish."""
    shelf = shelf_of(task.destination)
    try:
        files = [ExportedFile(**fields) for fields in json.loads(shelf.read(_note_name(task)))]
    except FileNotFoundError:
        return None
    whole = all(shelf.size(file.path) == file.bytes for file in files)
    return files if whole else None


def _finish(task: ExportTask, file: ParquetFile, day: str | None) -> ExportedFile:
    """Finish the file and give it, durably, its final name."""
    written, unit = file.close(), task.unit
    directory = partition_directory(unit.vhost, unit.queue, day)
    name = file_name(
        unit.queue_id,
        written.first_seq,
        written.last_seq,
        task.node_id,
        task.export,
        task.snapshot,
    )
    file.draft.keep(f"{directory}/{name}")
    return ExportedFile(
        path=f"{directory}/{name}",
        vhost=unit.vhost,
        queue=unit.queue,
        queue_id=f"{unit.queue_id:016x}",
        date=day,
        **written._asdict(),
    )


def _note_name(task: ExportTask) -> str:
    return f"{staging_folder(task.export)}/{task.snapshot}/{task.name}.json"


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """The batch, divided by the days on which messages were enqueued, in UTC."""
    times = batch.column("enqueued_at")
    if not batch.num_rows:
        return
    if not times.null_count:
        # Nearly all batches are of one day, and this is quicker than looking at each row.
        first, last = (_day(at) for at in _least_and_most(times.view(pa.int64())))
        if first == last:
            yield first.isoformat(), batch
            return
    days = pc.cast(times, pa.date32(), safe=False)
    for day in pc.unique(days).to_pylist():
        chosen = pc.is_null(days) if day is None else pc.equal(days, pa.scalar(day, pa.date32()))
        part = batch.filter(pc.fill_null(chosen, False))
        yield (day.isoformat() if isinstance(day, date) else None), part


def _day(us: int) -> date:
    return EPOCH + timedelta(microseconds=us)


def _least_and_most(column: pa.Array) -> tuple[Any, Any]:
    """The least and the largest value; None if there is none."""
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


class Written(NamedTuple):
    """The contents of a file. Times are microseconds since 1970, None if no message has one."""

    rows: int
    bytes: int
    sha256: str
    first_seq: int
    last_seq: int
    min_enqueued_us: int | None
    max_enqueued_us: int | None
    corrupt: int


class ParquetFile:
    """A file of messages, written as a draft. It must have the columns `seq` and `enqueued_at`;
    `corrupt_column` may be missing."""

    def __init__(self, draft: Draft, schema: pa.Schema, codec: str, corrupt_column: str) -> None:
        self.draft = draft
        self._schema = schema
        self._corrupt_column = corrupt_column
        self._hashed = HashedFile(draft.file)
        self._sink = pa.PythonFile(self._hashed, mode="w")
        steps = [name for name in schema.names if name in STEPS and _is_number(schema, name)]
        words = [name for name in schema.names if name in WORDS]
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=codec,
            use_dictionary=words,
            column_encoding=dict.fromkeys(steps, "DELTA_BINARY_PACKED"),
            write_statistics=words + steps,
        )
        self._batches: list[pa.RecordBatch] = []
        self._waiting_bytes = self._waiting_rows = 0
        self._rows = self._corrupt = 0
        self._seqs: list[tuple[int, int]] = []
        self._times: list[tuple[int, int]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._count(batch)
        self._batches.append(batch)
        self._waiting_bytes += batch.nbytes
        self._waiting_rows += batch.num_rows
        if self._waiting_bytes >= ROW_GROUP_BYTES or self._waiting_rows >= ROW_GROUP_ROWS:
            self._write_group()

    def close(self) -> Written:
        """Complete the file; at least one row must have been written. Raises OSError."""
        self._write_group()
        self._writer.close()
        return Written(
            rows=self._rows,
            bytes=self._hashed.size,
            sha256=self._hashed.digest.hexdigest(),
            first_seq=min(at for at, _ in self._seqs),
            last_seq=max(at for _, at in self._seqs),
            min_enqueued_us=min((at for at, _ in self._times), default=None),
            max_enqueued_us=max((at for _, at in self._times), default=None),
            corrupt=self._corrupt,
        )

    def _count(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._seqs.append(_least_and_most(batch.column("seq")))
        times = _least_and_most(batch.column("enqueued_at").view(pa.int64()))
        if times[0] is not None:
            self._times.append(times)
        if self._corrupt_column in batch.schema.names:
            corrupt = batch.column(self._corrupt_column)
            self._corrupt += batch.num_rows - corrupt.null_count

    def _write_group(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches, self._schema)
            self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            self._batches = []
            self._waiting_bytes = self._waiting_rows = 0


def _is_number(schema: pa.Schema, name: str) -> bool:
    kind = schema.field(name).type
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


class HashedFile:
    """A file that is only written to, with its SHA-256."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.digest = sha256()
        self.size = 0
        self._file = file

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self._file.write(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self.size

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Does nothing: the draft closes the file."""
