"""Micro-batches of a stream, appended to a table of a lakehouse: functions for `foreachBatch`.

Tasks write the rows of a batch as Parquet files beside those of the table; the driver appends them
to the table, with the id of the query and the number of the batch. Spark runs a batch again if it
does not know that it was finished. If the table has the batch by then, nothing is written.

A file that a task wrote and no transaction named, because a process was killed, is not part of the
table; vacuuming removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from warren.spark_export.errors import OptionRefused
from warren.spark_export.export.export import absolute
from warren.spark_export.export.lake_table import (
    DELTA,
    ICEBERG,
    TableBatch,
    TableChoice,
    TableFile,
    check_columns,
)
from warren.spark_export.export.lake_tables import open_table
from warren.spark_export.export.manifest import Where, partition_directory, shelf_of
from warren.spark_export.export.parquet import ParquetFile, by_day
from warren.spark_export.export.spark_job import context_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CODEC = "zstd"

CORRUPT_COLUMN = "_corrupt_record"

QUERY_ID = "sql.streaming.queryId"
"""The local property in which Spark tells tasks the id of their query."""

WRITTEN = (
    "path string, vhost string, queue string, date string, rows bigint, bytes bigint,"
    " first_seq bigint, last_seq bigint, min_enqueued_us bigint, max_enqueued_us bigint"
)
"""The fields of `TableFile`, as tasks report them."""


class Partition(NamedTuple):
    """A partition of a table; rows of unknown age have no date."""

    vhost: str
    queue: str
    date: str | None


def append_to_delta(place: Where) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: append each batch to the Delta table in this directory or at this URL."""
    return _appending(TableChoice(DELTA), place)


def append_to_iceberg(table: str, place: Where) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: append each batch to the Iceberg table CATALOG.NAMESPACE.TABLE, whose new
    files are written to this directory or URL."""
    return _appending(TableChoice(ICEBERG, table), place)


def _appending(choice: TableChoice, place: Where) -> Callable[[DataFrame, int], None]:
    destination = absolute(place)

    def append(frame: DataFrame, batch: int) -> None:
        append_batch(frame, choice, destination, _job(frame), batch)

    return append


def append_batch(
    frame: DataFrame, choice: TableChoice, destination: str, job: str, batch: int
) -> None:
    """Append the rows as this batch of the job, unless the table has it.

    Raises `OptionRefused`, `TableRefused`, and Spark's errors when a task fails.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema, timezone="UTC")
    check_columns(schema)
    table = open_table(choice, destination)
    table.check(schema)
    wanted = TableBatch(job, batch)
    if table.has(wanted):
        return

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = write_files(batches, schema, destination)
        yield pa.RecordBatch.from_pylist([asdict(file) for file in files], schema=_written())

    rows = frame.mapInArrow(write, WRITTEN).collect()
    table.append(wanted, [TableFile(**row.asDict()) for row in rows], schema)


def write_files(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, destination: str
) -> list[TableFile]:
    """The work of a task: write its rows as files, one for each queue and day. Raises OSError."""
    pa.set_cpu_count(1)
    shelf = shelf_of(destination)
    found = []
    with ExitStack() as stack:
        files: dict[Partition, ParquetFile] = {}
        for batch in batches:
            rows = pa.Table.from_batches([batch]).cast(schema).combine_chunks().to_batches()
            for partition, part in _by_partition(rows):
                if partition not in files:
                    draft = shelf.draft(partition_directory(*partition))
                    stack.callback(draft.discard)
                    files[partition] = ParquetFile(draft, schema, CODEC, CORRUPT_COLUMN)
                files[partition].write(part)
        for partition, file in files.items():
            written = file.close()._asdict()
            path = f"{partition_directory(*partition)}/part-{token_hex(16)}.parquet"
            file.draft.keep(path)
            del written["sha256"], written["corrupt"]
            found.append(TableFile(path, *partition, **written))
    return found


def _by_partition(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    for batch in batches:
        for day, of_day in by_day(batch):
            names = pa.Table.from_batches([of_day]).select(["vhost", "queue"])
            for key in names.group_by(["vhost", "queue"]).aggregate([]).to_pylist():
                vhost, queue = key["vhost"], key["queue"]
                if vhost is None or queue is None:
                    raise OptionRefused("a row of a table needs a vhost and a queue")
                chosen = pc.and_(
                    pc.equal(of_day.column("vhost"), vhost), pc.equal(of_day.column("queue"), queue)
                )
                yield Partition(vhost, queue, day), of_day.filter(chosen)


def _written() -> pa.Schema:
    texts = {"path", "vhost", "queue", "date"}
    return pa.schema(
        [(name, pa.string() if name in texts else pa.int64()) for name in TableFile.__annotations__]
    )


def _job(frame: DataFrame) -> str:
    query = context_of(frame.sparkSession).getLocalProperty(QUERY_ID)
    if query is None:
        raise OptionRefused("this is for foreachBatch: there is no streaming query here")
    return f"warren-stream/{query}"
