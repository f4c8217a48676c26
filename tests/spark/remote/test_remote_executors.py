"""Executors that can read nothing of the node's machine but its HTTP API."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pika
import pytest
from broker_channel import open_channel
from quick_spark import JAVA_OPTIONS

from warren import Broker
from warren.spark_export.snapshot.snapshot import list_snapshots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 1000
PATIENCE_S = 30.0
DRIVER = Path(__file__).parents[2] / "support" / "cluster_driver.py"


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


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_executors_need_no_file_of_the_node(
    broker: Broker, directory: Path, worker_python: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two executors and a driver for which the node's directory is an empty one."""
    if shutil.which("java") is None or os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("takes Java, unshare, and root for file systems of one's own")
    import pyspark

    before = {one.id for one in list_snapshots(directory / "data")}
    base = tmp_path_factory.mktemp("spark")
    # Executors write to `work` in it.
    home = base / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    hidden = 'mount -t tmpfs none "$0" && exec "$@"'
    ended = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-c", hidden, str(directory)),
            *(sys.executable, "-P", str(DRIVER), url(broker), str(base), str(directory)),
        ],
        env={
            **os.environ,
            "JAVA_OPTIONS": JAVA_OPTIONS,
            "PYSPARK_PYTHON": worker_python,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONSAFEPATH": "1",
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER": "local-cluster[2,1,1024]",
        },
        cwd=base,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout.strip().splitlines()[-1])
    assert found.pop("partitions") > 2
    assert found == {
        "seen": [],
        "read": COUNT,
        "distinct": COUNT,
        "filtered": 0,
        "streamed": COUNT,
        "executors": 2,
    }
    # Those of the test before belong to an application that lives on.
    deadline = time.monotonic() + PATIENCE_S
    while {one.id for one in list_snapshots(directory / "data")} - before:
        assert time.monotonic() < deadline, "a snapshot outlived its application"
        time.sleep(0.1)
