"""DataFrames as messages: the classes that Spark calls to publish a DataFrame to an exchange.

A task publishes its rows in order over a connection of its own, and returns when the broker has
confirmed all of them; if a message is not confirmed, the task fails. Spark then runs the task
again, and the messages that had arrived arrive once more: at least once. Each message has an id
that is the same then,

    <job>-<batch>-<partition>-<row>

In a stream, the job is the id of its query, which its checkpoint keeps, and the batch is the
micro-batch. For a DataFrame that is written once, the job is the option `jobId`, or drawn anew for
each write, and the batch is 0. Publishes cannot be undone, so commit and abort do nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from warren.spark_export.errors import OptionRefused, PublishFailed
from warren.spark_export.sink.amqp_publisher import AmqpPublisher
from warren.spark_export.sink.publish_frames import FrameEncoder
from warren.spark_export.sink.sink_columns import SinkColumns
from warren.spark_export.sink.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""The local properties that Spark sets for the tasks of a stream."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> MessageWriter:
    """The writer for `df.write`. Raises `OptionRefused` for what cannot be published."""
    if overwrite:
        raise OptionRefused('what is published stays: write with mode("append")')
    parsed = SinkOptions.parse(options)
    columns = SinkColumns.of(schema, parsed)
    # Drawn on the driver, so that a task that runs again has the same id.
    return MessageWriter(replace(parsed, job_id=parsed.job_id or uuid4().hex), columns)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> MessageStreamWriter:
    """The writer for `df.writeStream`. Raises `OptionRefused` for what cannot be published."""
    if overwrite:
        raise OptionRefused('what is published stays: write with outputMode("append")')
    parsed = SinkOptions.parse(options)
    return MessageStreamWriter(parsed, SinkColumns.of(schema, parsed))


@dataclass
class PublishedRows(WriterCommitMessage):
    """The report of a task: how many rows it has published."""

    rows: int


@dataclass(frozen=True)
class MessageWriter(DataSourceArrowWriter):
    """Pickled on the driver and sent to the tasks."""

    options: SinkOptions
    columns: SinkColumns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        return publish(iterator, self.options, self.columns)


@dataclass(frozen=True)
class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Pickled on the driver and sent to the tasks."""

    options: SinkOptions
    columns: SinkColumns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedRows:
        return publish(iterator, self.options, self.columns)


def publish(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, columns: SinkColumns
) -> PublishedRows:
    """Publish the rows of a task; on return all are confirmed. Raises `PublishFailed`."""
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    query = context.getLocalProperty(QUERY_ID)
    job = options.job_id or query or ""
    batch_number = context.getLocalProperty(BATCH_ID) or "0"
    partition = context.partitionId()
    try:
        rows = publish_batches(
            batches,
            options,
            columns,
            id_prefix=f"{job}-{batch_number}-{partition}-",
            purpose=f"Spark on {socket.gethostname()}: {job}, partition {partition}",
        )
    except PublishFailed as error:
        raise PublishFailed(f"partition {partition}, {error}") from error
    return PublishedRows(rows)


def publish_batches(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    columns: SinkColumns,
    *,
    id_prefix: str,
    purpose: str,
) -> int:
    """Publish all rows over a connection of their own; without rows, no connection is made.

    Returns the number of rows, after all were confirmed. Raises `PublishFailed`.
    """
    first = next(batches, None)
    while first is not None and not first.num_rows:
        first = next(batches, None)
    if first is None:
        return 0
    rows = 0
    with AmqpPublisher(options, purpose=purpose) as publisher:
        encoder = FrameEncoder(columns, options, id_prefix=id_prefix, frame_max=publisher.frame_max)
        batch: pa.RecordBatch | None = first
        while batch is not None:
            for portion in encoder.encode(batch, rows):
                publisher.publish(portion)
            rows += batch.num_rows
            batch = next(batches, None)
        publisher.finish()
    return rows
