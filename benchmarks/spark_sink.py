"""Publishing DataFrames: the sink beside one that publishes row by row over the same publisher.

    python benchmarks/spark_sink.py --port 5672 [-n 300000] [--body 200] [--rounds 3]

First frames only, in this process: record batches to frames, by columns and by rows. Then Spark
(local[2]) publishes to a queue of a running broker, with confirms, by the sink and by rows. The
writers take turns; the best round counts. CPU is not that of the broker (`local_spark.py`). Prints
JSON lines, the last of them with the ratios.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from amqp_socket import AmqpSocket
from local_spark import Cost, cost_of, least, new_spark

warnings.simplefilter("ignore")

from pyspark import TaskContext  # noqa: E402
from pyspark.sql import types  # noqa: E402
from pyspark.sql.datasource import (  # noqa: E402
    DataSource,
    DataSourceWriter,
    WriterCommitMessage,
)

from warren.spark_export.sink.amqp_publisher import AmqpPublisher  # noqa: E402
from warren.spark_export.sink.encoded_rows import EncodedRows  # noqa: E402
from warren.spark_export.sink.publish_frames import FrameEncoder  # noqa: E402
from warren.spark_export.sink.sink import MessageWriter, PublishedRows, batch_writer  # noqa: E402
from warren.spark_export.sink.sink_columns import SinkColumns  # noqa: E402
from warren.spark_export.sink.sink_options import SinkOptions  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE = "spark-sink"
BATCH_ROWS = 10_000
"""Spark's own number of rows in a record batch."""

SCHEMA = types.StructType(
    [
        types.StructField("routing_key", types.StringType()),
        types.StructField("content_type", types.StringType()),
        types.StructField("headers", types.MapType(types.StringType(), types.StringType())),
        types.StructField("correlation_id", types.StringType()),
        types.StructField("body", types.BinaryType()),
    ]
)


# The writer to compare with

_FLAGS = 0x8000 | 0x2000 | 0x1000 | 0x0400 | 0x0080


def short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def frames_of_row(row: Sequence[Any], message_id: str) -> bytes:
    """The frames of a row of `SCHEMA`, which fits into a frame, as one would write them by hand."""
    key, content_type, headers, correlation_id, body = row
    table = b"".join(
        short(name) + b"S" + struct.pack(">I", len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    properties = (
        short(content_type)
        + struct.pack(">I", len(table))
        + table
        + b"\x02"
        + short(correlation_id)
        + short(message_id)
    )
    names = b"\0" + short(key) + b"\x01"
    return b"".join(
        (
            struct.pack(">BHIHHH", 1, 1, 6 + len(names), 60, 40, 0),
            names,
            b"\xce",
            struct.pack(">BHIHHQH", 2, 1, 14 + len(properties), 60, 0, len(body), _FLAGS),
            properties,
            b"\xce",
            struct.pack(">BHI", 3, 1, len(body)),
            body,
            b"\xce",
        )
    )


class RowWriter(DataSourceWriter):
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        prefix = f"job-0-{context.partitionId()}-"
        rows = 0
        with AmqpPublisher(self.options) as publisher:
            for row in iterator:
                frames = frames_of_row(row, f"{prefix}{rows}")
                publisher.publish(EncodedRows(memoryview(frames), (0, len(frames)), rows))
                rows += 1
            publisher.finish()
        return PublishedRows(rows)


class CollectingRowWriter(RowWriter):
    """Hands its rows to the publisher by the hundreds."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        prefix = f"job-0-{context.partitionId()}-"
        rows = 0
        with AmqpPublisher(self.options) as publisher:
            frames: list[bytes] = []
            for row in iterator:
                frames.append(frames_of_row(row, f"{prefix}{rows}"))
                rows += 1
                if len(frames) == 500:
                    publisher.publish(collected(frames, rows - 500))
                    frames = []
            publisher.publish(collected(frames, rows - len(frames)))
            publisher.finish()
        return PublishedRows(rows)


def collected(frames: list[bytes], first_row: int) -> EncodedRows:
    offsets = [0]
    for one in frames:
        offsets.append(offsets[-1] + len(one))
    return EncodedRows(memoryview(b"".join(frames)), offsets, first_row)


class ArrowSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "arrow"

    def writer(self, schema: types.StructType, overwrite: bool) -> MessageWriter:
        return batch_writer(self.options, schema, overwrite)


class RowSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "rows"

    def writer(self, schema: types.StructType, overwrite: bool) -> DataSourceWriter:
        return RowWriter(SinkOptions.parse(self.options))


class CollectingRowSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "rows_collected"

    def writer(self, schema: types.StructType, overwrite: bool) -> DataSourceWriter:
        return CollectingRowWriter(SinkOptions.parse(self.options))


SINKS: tuple[type[DataSource], ...] = (ArrowSink, RowSink, CollectingRowSink)


# Measuring


def report(name: str, rows: int, rounds: Iterable[Cost]) -> Cost:
    """Print the best of each figure, in microseconds a row."""
    best = least(rounds)
    found = {
        "writer": name,
        "rows_per_s": round(rows / best.wall_s),
        "cpu_us_per_row": round(best.cpu_s / rows * 1e6, 2),
    }
    print(json.dumps(found), flush=True)
    return best


# What is measured


def batch(first: int, body_bytes: int) -> pa.RecordBatch:
    """Ten thousand rows as Spark would give them."""
    numbers = range(first, first + BATCH_ROWS)
    bodies = [str(number).encode().ljust(body_bytes, b"x") for number in numbers]
    return pa.record_batch(
        {
            "routing_key": pa.array([QUEUE] * BATCH_ROWS),
            "content_type": pa.array(["text/plain"] * BATCH_ROWS),
            "headers": pa.array(
                [[("number", str(number))] for number in numbers],
                pa.map_(pa.string(), pa.string()),
            ),
            "correlation_id": pa.array([f"c{number}" for number in numbers]),
            "body": pa.array(bodies, pa.binary()),
        }
    )


def frames_only(rows: int, body_bytes: int, rounds: int) -> float:
    """CPU of the rows' frames, times that of the columns'."""
    batches = [batch(first, body_bytes) for first in range(0, rows, BATCH_ROWS)]
    options = SinkOptions.parse({"host": "localhost", "exchange": ""})
    encoder = FrameEncoder(
        SinkColumns.of(SCHEMA, options), options, id_prefix="job-0-0-", frame_max=131_072
    )

    def by_columns() -> None:
        for number, one in enumerate(batches):
            for _ in encoder.encode(one, number * BATCH_ROWS):
                pass

    def by_rows() -> None:
        for number, one in enumerate(batches):
            columns = [column.to_pylist() for column in one.columns]
            columns[2] = [dict(pairs) for pairs in columns[2]]
            for at, row in enumerate(zip(*columns, strict=True), number * BATCH_ROWS):
                frames_of_row(row, f"job-0-0-{at}")

    found: dict[str, list[Cost]] = {"columns": [], "rows": []}
    for _ in range(rounds):
        found["columns"].append(cost_of(by_columns))
        found["rows"].append(cost_of(by_rows))
    best = {name: report(f"frames only, {name}", rows, each) for name, each in found.items()}
    return best["rows"].cpu_s / best["columns"].cpu_s


def messages(spark: SparkSession, rows: int, body_bytes: int) -> DataFrame:
    return spark.range(0, rows, numPartitions=2).selectExpr(
        f"'{QUEUE}' routing_key",
        "'text/plain' content_type",
        "map('number', string(id)) headers",
        "concat('c', string(id)) correlation_id",
        f"binary(rpad(string(id), {body_bytes}, 'x')) body",
    )


def with_spark(
    directory: Path, port: int, rows: int, body_bytes: int, rounds: int
) -> dict[str, float]:
    """Wall time and CPU of the row writers, times those of the sink."""
    peer = AmqpSocket("127.0.0.1", port)
    peer.declare(QUEUE, {})
    spark = new_spark(directory)
    for sink in SINKS:
        spark.dataSource.register(sink)
    data = messages(spark, rows, body_bytes)
    found: dict[str, list[Cost]] = {sink.name(): [] for sink in SINKS}
    # One more: what is compiled and started in the first is not counted.
    for turn in range(rounds + 1):
        for sink in SINKS:
            writer = data.write.format(sink.name()).mode("append")
            writer = writer.options(url=f"amqp://127.0.0.1:{port}", exchange="")
            measured = cost_of(writer.save)
            print(f"{sink.name()}: {measured.wall_s:.1f} s", file=sys.stderr, flush=True)
            stored = peer.declare(QUEUE, {})
            assert stored == rows, f"{stored} of {rows} are there"
            peer.delete(QUEUE)
            peer.declare(QUEUE, {})
            if turn:
                found[sink.name()].append(measured)
    spark.stop()
    peer.delete(QUEUE)
    peer.close()
    best = {name: report(f"Spark, {name}", rows, each) for name, each in found.items()}
    return {
        f"{what} of {name}": getattr(best[name], what) / getattr(best["arrow"], what)
        for name in ("rows", "rows_collected")
        for what in ("wall_s", "cpu_s")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("-n", "--rows", type=int, default=300_000)
    parser.add_argument("--body", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = options.rows // BATCH_ROWS * BATCH_ROWS
    ratios = {"cpu_s of frames by rows": frames_only(rows, options.body, options.rounds)}
    with tempfile.TemporaryDirectory(prefix="spark-sink-") as path:
        ratios |= with_spark(Path(path), options.port, rows, options.body, options.rounds)
    print(json.dumps({name: round(ratio, 2) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
