"""`warren export` beside Spark's own `df.write.parquet` from the same source, in one run.

    python benchmarks/spark_export.py [-n 500000] [-s 200] [--rounds 3] [--directory DIR]

Fills a queue of a broker, stops the broker, and has both write the same snapshot as Parquet, one
after the other, round by round. What counts is the ratio: both see the same machine. Prints one
JSON line, with wall time and CPU time of the Java process and Python workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from amqp_socket import AmqpSocket, disk_bytes, persistent_publish
from local_spark import Cost, cost_of, least, new_spark
from restart import Server

from warren.spark_export import read_export, register
from warren.spark_export.export import export
from warren.spark_export.export.export_plan import Wish
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import Snapshot, create

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUE = "exported"
CODEC = "zstd"
LEVEL = 1
"""The level of zstd; Arrow's default, where Spark's is 3."""

DIFFERENT = 20_000
"""Bodies, of hexadecimal digits: more than compression looks back."""


def fill(directory: Path, messages: int, size: int) -> None:
    server = Server(directory, 0)
    try:
        port, _ = server.wait_until_ready()
        client = AmqpSocket("127.0.0.1", port)
        client.declare(QUEUE, {"x-queue-mode": "lazy"})
        units = [
            persistent_publish(QUEUE, os.urandom(size // 2).hex().encode())
            for _ in range(min(DIFFERENT, messages - 1))
        ]
        whole = b"".join(units)
        for _ in range((messages - 1) // len(units)):
            client.publish(whole, 1)
        client.publish(b"".join(units[: (messages - 1) % len(units)]), 1)
        client.publish_safely(units[0])
        client.close()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()
    finally:
        server.kill()


def by_export(spark: SparkSession, data: Path, snapshot: Snapshot, target: Path) -> None:
    wish = Wish(QueueSelector(), parse_options({}), codec=CODEC, snapshot=snapshot.directory)
    manifest = export.run(lambda: spark, data, target, "full", wish)
    assert manifest.rows == snapshot.rows


def by_spark(spark: SparkSession, data: Path, snapshot: Snapshot, target: Path) -> None:
    frame = spark.read.format("warren").option("snapshot", snapshot.id).load(str(data))
    writer = frame.write.mode("overwrite").option("compression", CODEC)
    writer.option("parquet.compression.codec.zstd.level", str(LEVEL)).parquet(str(target))


def measure(options: argparse.Namespace, directory: Path) -> dict[str, object]:
    fill(directory, options.messages, options.size)
    data = directory / "data"
    snapshot = create(data, QueueSelector(), lease_s=86_400)
    spark = new_spark(directory)
    register(spark)
    ways = {"export": by_export, "df_write": by_spark}
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    written: dict[str, int] = {}
    # The first round is for the compiler and the page cache.
    for _ in range(options.rounds + 1):
        for name, way in ways.items():
            target = directory / "to" / name
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            costs[name].append(cost_of(partial(way, spark, data, snapshot, target)))
            written[name] = disk_bytes(str(target))
    assert read_export(spark, directory / "to" / "export").count() == options.messages
    assert spark.read.parquet(str(directory / "to" / "df_write")).count() == options.messages
    spark.stop()
    result: dict[str, object] = {"messages": options.messages, "size": options.size}
    best = {}
    for name, all_rounds in costs.items():
        rounds = all_rounds[1:]
        best[name] = least(rounds)
        result[name] = {
            "wall_s": [round(at.wall_s, 2) for at in rounds],
            "cpu_us_per_row": round(1e6 * best[name].cpu_s / options.messages, 2),
            "rows_per_s": round(options.messages / best[name].wall_s),
            "mib": round(written[name] / (1 << 20), 1),
        }
    result["ratio_wall"] = round(best["df_write"].wall_s / best["export"].wall_s, 2)
    result["ratio_cpu"] = round(best["df_write"].cpu_s / best["export"].cpu_s, 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", "--messages", type=int, default=500_000)
    parser.add_argument("-s", "--size", type=int, default=200, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where to make a directory for the data")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="warren-export-", dir=options.directory) as path:
        print(json.dumps(measure(options, Path(path))))


if __name__ == "__main__":
    main()
