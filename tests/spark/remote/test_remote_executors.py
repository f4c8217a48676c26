"""Executors that can read nothing of the node's machine but its HTTP API."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pika
import pytest
from broker_channel import open_channel
from spark_machines import (
    EXECUTOR_MIB,
    GO,
    ClusterDriver,
    StandaloneSpark,
    settings,
    what_is_missing,
)

from warren import Broker
from warren.spark_export.snapshot.snapshot import list_snapshots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 1000
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("closed")


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[Broker]:
    with Broker(data_dir=directory / "data", http_port=0) as broker:
        with open_channel(broker) as channel:
            channel.queue_declare("orders", durable=True)
            for number in range(COUNT):
                body = b"%06d" % number * 10
                channel.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))
        yield broker


def url(broker: Broker) -> str:
    return f"warren://{broker.host}:{broker.http_port}"


def test_spark_reads_from_a_node(spark: SparkSession, broker: Broker, directory: Path) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = spark.read.format("warren").option("filterPushdown", "true").load(url(broker))
    first = frame.agg({"seq": "min"}).collect()[0][0]
    assert frame.where(f"queue = 'orders' and seq >= {first + 10}").count() == COUNT - 10
    assert len(frame.limit(3).collect()) == 3
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A directory for Spark, where each part of it can be on a machine of its own."""
    missing = what_is_missing()
    if missing is not None:
        pytest.skip(missing)
    return tmp_path


def snapshots(directory: Path) -> set[str]:
    return {one.id for one in list_snapshots(directory / "data")}


def until_released(directory: Path, others: set[str]) -> None:
    """Wait for the release of all snapshots but `others`, which applications have that live on."""
    deadline = time.monotonic() + PATIENCE_S
    while snapshots(directory) - others:
        assert time.monotonic() < deadline, "a snapshot outlived its application"
        time.sleep(0.1)


FOUND = {"seen": [], "read": COUNT, "distinct": COUNT, "filtered": 0, "executors": 2}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_executors_need_no_file_of_the_node(
    broker: Broker, directory: Path, worker_python: str, base: Path
) -> None:
    """Two executors and a driver for which the node's directory is an empty one."""
    import pyspark

    others = snapshots(directory)
    # Executors write to `work` in it.
    home = base / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    environment = settings(worker_python, home)
    master = f"local-cluster[2,1,{EXECUTOR_MIB}]"
    with ClusterDriver(base, directory, environment, master=master, url=url(broker)) as driver:
        found = driver.found()
        until_released(directory, others)
    assert found.pop("partitions") > 2
    assert found == {**FOUND, "streamed": COUNT}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_read_survives_the_loss_of_a_worker(
    broker: Broker, directory: Path, worker_python: str, base: Path
) -> None:
    """A standalone master and two workers, one of which is killed in the middle of a read.

    A stream runs on the other one afterwards. None of them sees a file of the node.
    """
    others = snapshots(directory)
    marks = base / "marks"
    marks.mkdir()
    with StandaloneSpark(base, directory, worker_python) as spark:
        paths = {"master": spark.url, "url": url(broker)}
        with ClusterDriver(base, directory, spark.environment, marks=marks, **paths) as driver:
            while len(executors_in(marks)) < 2:
                driver.check()
                spark.check()
                time.sleep(0.05)
            spark.workers[0].kill()
            (marks / GO).touch()
            found = driver.found()
            until_released(directory, others)
    assert found.pop("partitions") > 2
    assert found.pop("begun_twice") >= 1
    held = {"held": COUNT, "held_sum": sum(range(COUNT))}
    assert found == {**FOUND, **held, "streamed": COUNT}


def executors_in(marks: Path) -> set[str]:
    """The executors whose tasks have begun to read."""
    return {mark.name.partition("@")[2] for mark in marks.iterdir()}
