"""Streams in Spark: every message exactly once in a Parquet sink, however the query ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import pika
import pyarrow.parquet as pq
import pytest
from broker_channel import open_channel
from pika.adapters.blocking_connection import BlockingChannel

import warren.spark_export
from warren import Broker
from warren.persist.snapshots.pins import held_by_cursors
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import create, list_snapshots, pins_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    warren.spark_export.register(spark, pushdown=False)
    return spark


class Driver(NamedTuple):
    """A process with a Spark of its own (`stream_driver.py`), and its standard error output."""

    process: subprocess.Popen[bytes]
    log: Path

    def follow(self, archive: Archive, cursor: str) -> None:
        assert self.process.stdin is not None
        told = [archive.data, archive.output, archive.checkpoint, cursor]
        self.process.stdin.write("\t".join(map(str, told)).encode() + b"\n")
        self.process.stdin.flush()

    def wait_for_batch(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), self.log.read_text("utf-8")

    def kill(self) -> None:
        """With the JVM and the workers, which are of its group."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module", autouse=True)
def driver(tmp_path_factory: pytest.TempPathFactory, worker_python: str) -> Iterator[Driver]:
    """Starts while the other tests run, and waits to be told what to read."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("there is no Java")
    directory = tmp_path_factory.mktemp("driver")
    script = str(Path(__file__).parents[2] / "support" / "stream_driver.py")
    log = directory / "driver.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, script, str(directory), worker_python],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=directory,
            start_new_session=True,
        )
    with process:
        driver = Driver(process, log)
        yield driver
        if process.poll() is None:
            driver.kill()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    with open_channel(broker) as channel:
        channel.queue_declare("orders", durable=True)
        yield channel


def publish(channel: BlockingChannel, numbers: range) -> None:
    for number in numbers:
        channel.basic_publish("", "orders", b"%d" % number, pika.BasicProperties(delivery_mode=2))


class Archive:
    """A query from the queues into Parquet."""

    def __init__(self, session: SparkSession, directory: Path) -> None:
        self._session = session
        self.data = directory / "data"
        self.output = directory / "output"
        self.checkpoint = directory / "checkpoint"

    def start(self, *, available_now: bool, **options: str) -> StreamingQuery:
        writer = (
            self._session.readStream.format("warren")
            .option("columns", "queue,seq,body")
            .option("maxOffsetsPerTrigger", "40")
            .options(**options)
            .load(str(self.data))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
        )
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start(str(self.output))

    def catch_up(self, **options: str) -> None:
        """A run up to what is there now."""
        self.start(available_now=True, **options).awaitTermination()

    def numbers(self) -> list[int]:
        """What has arrived, for readers that trust the sink's log of files."""
        found = []
        for batch in (self.output / "_spark_metadata").iterdir():
            if batch.name.isdigit():
                _version, *entries = batch.read_text("utf-8").splitlines()
                for entry in entries:
                    path = urlsplit(json.loads(entry)["path"]).path
                    found += pq.read_table(path, columns=["body"]).column("body").to_pylist()
        return sorted(int(body) for body in found)


@pytest.fixture
def archive(session: SparkSession, tmp_path: Path) -> Archive:
    return Archive(session, tmp_path)


def test_a_query_that_is_stopped_in_a_batch_misses_and_repeats_nothing(
    archive: Archive, channel: BlockingChannel
) -> None:
    publish(channel, range(80))
    query = archive.start(available_now=False)
    while not query.lastProgress:
        assert query.isActive
    # Of two batches the second is under way.
    query.stop()
    publish(channel, range(80, 90))
    archive.catch_up()
    assert archive.numbers() == list(range(90))


def test_a_driver_that_is_killed_misses_and_repeats_nothing_and_leaves_nothing(
    driver: Driver, archive: Archive, channel: BlockingChannel
) -> None:
    publish(channel, range(80))
    driver.follow(archive, cursor="archive")
    # Of two batches the first is written, and the second under way.
    driver.wait_for_batch()
    driver.kill()
    # The broker forgets what the driver had not yet read; its cursor keeps that.
    channel.queue_purge("orders")
    publish(channel, range(80, 90))
    assert list(held_by_cursors(pins_directory(archive.data))) == ["archive"]
    # Taken, and in no checkpoint.
    create(archive.data, QueueSelector(), cursor="archive")
    archive.catch_up(cursor="archive")
    assert archive.numbers() == list(range(90))
    assert list_snapshots(archive.data) == []
