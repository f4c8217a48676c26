"""How fast queues are read: decoding alone, through Spark, and Spark reading the same as Parquet.

    python -P benchmarks/spark_read.py --messages 1000000 --body 200
    python -P benchmarks/spark_read.py --messages 500000 --body 1000

Writes one queue as a snapshot into a directory for temporary files: sealed log files of 16 MiB, the
octets of a publisher that sets some properties and has fifty different tables of headers. All rows
have all columns, and go nowhere (`noop`). What is wanted is 60 % of the speed at which Spark reads
the same rows as Parquet; only that ratio, of one run, means something on another machine. "Batches
that are there" is the floor of every source in Python: it reads nothing and decodes nothing, so
what it takes is what Spark takes to get Arrow batches from a process of Python.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from array import array
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from local_spark import Cost, cost_of, least, new_spark
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from warren.amqp.properties import encode_properties
from warren.core.field import Field
from warren.core.messages.message import Envelope
from warren.persist.layout.envelopes import encode_envelope
from warren.persist.layout.format import (
    BATCH_HEADER_BYTES,
    PERSISTENT,
    PUBLISH,
    FileHeader,
    Footer,
    batch_bytes,
    encode_batch,
    encode_file_header,
    encode_footer,
    place_of,
    record_head,
)
from warren.persist.log.log_writer import file_name
from warren.spark_export.decode.decode import decode_unit
from warren.spark_export.decode.schema import all_columns, arrow_schema, spark_schema
from warren.spark_export.snapshot.deliveries import Deliveries
from warren.spark_export.snapshot.filters import EVERYTHING
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.unit import (
    ENTRY,
    LOG_DIRECTORY,
    QUEUES_DIRECTORY,
    LocalFiles,
    Unit,
    entries_path,
)
from warren.spark_export.source.partition import UnitPartition, read_partition

FILE_BYTES = 16 << 20
BATCH_RECORDS = 500
QUEUE_ID = 0x700
POSITION = 1 << 40
CREATED_US = 1_767_225_600_000_000
TABLES = 50

OPTIONS = parse_options({"path": "/"})
COLUMNS = all_columns(OPTIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--body", type=int, default=200, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    parser.add_argument("--decoder-only", action="store_true", help="without Spark")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-read-") as name:
        directory = Path(name)
        units = write(directory / "snapshot", arguments.messages, arguments.body)
        octets = sum(unit.octets for unit in units)
        report = Report(arguments.messages, octets, arguments.rounds)
        report.line("decoder alone, 1 core", lambda: decode(units))
        if arguments.decoder_only:
            return
        spark = new_spark(directory)
        spark.dataSource.register(UnitsSource)
        source = spark.read.format("units").option("snapshot", str(directory / "snapshot")).load()
        through = report.line("source, all columns", lambda: drain(source))
        spark.dataSource.register(ReadySource)
        ready = spark.read.format("ready").load(write_batches(units, directory / "ready"))
        report.line("batches that are there", lambda: drain(ready))
        write_parquet(units, directory / "parquet")
        parquet = spark.read.parquet(str(directory / "parquet"))
        assert parquet.count() == arguments.messages
        other = report.line("spark.read.parquet, all columns", lambda: drain(parquet))
        print(
            f"the source has {other.wall_s / through.wall_s:.0%} of the speed of Parquet,", end=" "
        )
        print(f"{other.cpu_s / through.cpu_s:.0%} by CPU")
        spark.stop()


class Report:
    """Measures, and prints a line each."""

    def __init__(self, messages: int, octets: int, rounds: int) -> None:
        self._messages = messages
        self._octets = octets
        self._rounds = rounds
        print(f"{messages} messages, {octets / messages:.0f} bytes each in the log")

    def line(self, what: str, job: Callable[[], None]) -> Cost:
        took = least([cost_of(job) for _ in range(self._rounds)])
        print(
            f"{what:34} {self._messages / took.wall_s:10,.0f} rows/s"
            f" {self._octets / took.wall_s / 1e6:7,.0f} MB/s"
            f" {took.wall_s / self._messages * 1e6:6.2f} us/row"
            f" {took.cpu_s / self._messages * 1e6:6.2f} us CPU/row",
            flush=True,
        )
        return took


def decode(units: list[Unit]) -> None:
    schema = arrow_schema(COLUMNS)
    for unit in units:
        for _ in decode_unit(unit, schema, OPTIONS, unacked=()):
            pass


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def write_batches(units: list[Unit], directory: Path) -> str:
    """A file of Arrow for each unit, with the batches of the source; returns their directory."""
    directory.mkdir()
    schema = arrow_schema(COLUMNS)
    for at, unit in enumerate(units):
        with pa.ipc.new_file(directory / f"{at}.arrow", schema) as writer:
            for batch in decode_unit(unit, schema, OPTIONS, unacked=()):
                writer.write_batch(batch)
    return str(directory)


def write_parquet(units: list[Unit], directory: Path) -> None:
    directory.mkdir()
    schema = arrow_schema(COLUMNS)
    for at, unit in enumerate(units):
        with pq.ParquetWriter(directory / f"{at}.parquet", schema, compression="none") as writer:
            rows = []
            for batch in decode_unit(unit, schema, OPTIONS, unacked=()):
                rows.append(batch)
                if len(rows) == 50:
                    writer.write_table(pa.Table.from_batches(rows))
                    rows = []
            writer.write_table(pa.Table.from_batches(rows, schema))


class UnitsSource(DataSource):
    """The batch source, of a snapshot made by hand."""

    @classmethod
    def name(cls) -> str:
        return "units"

    def schema(self):  # type: ignore[no-untyped-def]
        return spark_schema(COLUMNS)

    def reader(self, schema):  # type: ignore[no-untyped-def]
        return UnitsReader(Path(self.options["snapshot"]))


class UnitsReader(DataSourceReader):
    """Reads units as `BatchReader` does, without a snapshot that pins their files."""

    def __init__(self, snapshot: Path) -> None:
        self._units = units_of(snapshot)
        self._schema = arrow_schema(COLUMNS)

    def partitions(self) -> list[InputPartition]:
        return [UnitPartition([(unit, Deliveries((), 0))]) for unit in self._units]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        keep = EVERYTHING.row_filter(OPTIONS)
        yield from read_partition(partition, self._schema, OPTIONS, keep)


class ReadyPartition(InputPartition):
    """A file of Arrow."""

    def __init__(self, path: Path) -> None:
        self.path = path


class ReadySource(DataSource):
    """Gives Spark the batches of a directory as they are."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self):  # type: ignore[no-untyped-def]
        return spark_schema(COLUMNS)

    def reader(self, schema):  # type: ignore[no-untyped-def]
        return ReadyReader(Path(self.options["path"]))


class ReadyReader(DataSourceReader):
    def __init__(self, directory: Path) -> None:
        self._files = sorted(directory.iterdir())

    def partitions(self) -> list[InputPartition]:
        return [ReadyPartition(path) for path in self._files]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadyPartition)
        with pa.memory_map(str(partition.path)) as file, pa.ipc.open_file(file) as batches:
            for number in range(batches.num_record_batches):
                yield batches.get_batch(number)


# The data


def write(directory: Path, messages: int, body_bytes: int) -> list[Unit]:
    (directory / LOG_DIRECTORY).mkdir(parents=True)
    (directory / QUEUES_DIRECTORY).mkdir()
    entries = np.zeros(messages, ENTRY)
    position = 0
    file_id = 0
    records = _records(messages, body_bytes)
    while position < messages:
        file_id += 1
        position = _write_file(
            directory / LOG_DIRECTORY, file_id, records, entries, position, body_bytes
        )
    np.save(entries_path(directory, QUEUE_ID), entries)
    return units_of(directory)


def units_of(directory: Path) -> list[Unit]:
    """About 128 MB each, and four at least."""
    lengths = np.cumsum(np.load(entries_path(directory, QUEUE_ID))["length"], dtype=np.int64)
    total = int(lengths[-1])
    count = max(4, total >> 27)
    borders = np.searchsorted(lengths, np.linspace(0, total, count + 1), side="left").tolist()
    borders[-1] = len(lengths)
    return [
        Unit(LocalFiles(directory), "/", "orders", QUEUE_ID, first, end, total // count)
        for first, end in pairwise(borders)
    ]


def _records(messages: int, body_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Octets with their padding, and the length without."""
    envelopes = []
    for at in range(TABLES):
        headers = {"tenant": Field("S", b"customer-%d" % at), "retries": Field("I", at)}
        header = encode_properties(
            body_bytes,
            {"content_type": "application/json", "delivery_mode": 2, "timestamp": 1_767_225_600},
            headers,
        )
        envelope = encode_envelope(Envelope("orders", f"eu.de.{at}", header, True, 0, None))
        envelopes.append((envelope, crc32(envelope)))
    body = os.urandom(body_bytes // 2).hex().encode().ljust(body_bytes, b" ")
    for number in range(messages):
        envelope, crc = envelopes[number % TABLES]
        head = record_head(
            PUBLISH,
            PERSISTENT,
            QUEUE_ID,
            POSITION + number,
            0,
            CREATED_US + 100 * number,
            envelope,
            crc,
            body,
        )
        length = len(head) + len(envelope) + body_bytes
        yield b"".join((head, envelope, body, bytes(-length & 7))), length


def _write_file(
    directory: Path,
    file_id: int,
    records: Iterator[tuple[bytes, int]],
    entries: np.ndarray,
    position: int,
    body_bytes: int,
) -> int:
    """Fill a file with batches and seal it; returns how many messages there are by now."""
    whole = bytearray(encode_file_header(FileHeader(bytes(16), file_id, 0, 1, CREATED_US)))
    batches = 0
    while len(whole) < FILE_BYTES and position < len(entries):
        parts, lengths = [], array("I")
        at = len(whole) + BATCH_HEADER_BYTES
        for octets, length in islice(records, BATCH_RECORDS):
            place = place_of(file_id, at)
            entries[position] = (POSITION + position, place, 0, length, body_bytes)
            parts.append(octets)
            lengths.append(length)
            at += len(octets)
            position += 1
        size = sum(map(len, parts))
        start = len(whole)
        whole += encode_batch(place_of(file_id, start), size, parts, lengths)
        assert len(whole) == start + batch_bytes(size, len(lengths))
        batches += 1
    whole += encode_footer(Footer(batches, len(whole), crc32(whole)))
    (directory / file_name(file_id, 0)).write_bytes(whole)
    return position


if __name__ == "__main__":
    main()
