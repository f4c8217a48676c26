"""A Spark application whose executors are processes of their own; prints what it read as JSON.

    python cluster_driver.py URL CHECKPOINT DIRECTORY [MARKS]

SPARK_MASTER says where the executors are, and JAVA_OPTIONS how Java is started; DIRECTORY is what
they should not see. With MARKS, a directory, the queue is read once more: each task makes a file in
it when it has begun to read, and goes on when there is the file `go`. Bodies begin with a number of
six digits.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

warnings.simplefilter("ignore")

from pyspark import TaskContext  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

import warren.spark_export  # noqa: E402

if TYPE_CHECKING:
    import pyarrow as pa

OPTIONS = {"queue": "orders", "maxPartitionBytes": "20000"}

PATIENCE_S = 120.0


def executor(_: int = 0) -> str:
    """The process that started the daemon of this Python worker, and on which machine it is."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="ascii")
    machine = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    return f"{machine}-{stat.rpartition(') ')[2].split()[1]}"


def held(marks: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass on what a task reads, and stop after the first rows until it may go on."""
    for batch in batches:
        context = TaskContext.get()
        assert context is not None
        (marks / f"{context.partitionId()}@{executor()}").touch()
        deadline = time.monotonic() + PATIENCE_S
        while not (marks / "go").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield batch


def read_with_marks(orders: DataFrame, marks: Path) -> dict[str, Any]:
    """What is read when each task is held, and which parts were begun at two executors."""
    rows = orders.select("body").mapInArrow(partial(held, marks), "body binary").collect()
    begun = sorted(mark.name.partition("@")[0] for mark in marks.glob("*@*"))
    return {
        "held": len(rows),
        "held_sum": sum(int(row.body[:6]) for row in rows),
        "begun_twice": len(begun) - len(set(begun)),
    }


def main() -> None:
    url, checkpoint, directory, *marks = sys.argv[1:]
    builder = SparkSession.builder.master(os.environ["SPARK_MASTER"]).appName("warren remote")
    for setting, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        # Wait for all executors.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{checkpoint}/warehouse",
        "spark.driver.extraJavaOptions": os.environ["JAVA_OPTIONS"],
        "spark.executor.extraJavaOptions": os.environ["JAVA_OPTIONS"],
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }.items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    warren.spark_export.register(spark)
    orders = spark.read.format("warren").options(**OPTIONS).load(url)
    row = orders.agg(F.count("*"), F.countDistinct("body")).collect()[0]
    found: dict[str, Any] = {"read": row[0], "distinct": row[1]}
    found["filtered"] = orders.where("exchange = 'none'").count()
    found["partitions"] = orders.rdd.getNumPartitions()
    workers = spark.sparkContext.parallelize(range(8), 8).map(executor).distinct().collect()
    found["executors"] = len(workers)
    seen = spark.sparkContext.parallelize(range(8), 8).flatMap(lambda _: os.listdir(directory))
    found["seen"] = seen.distinct().collect()
    if marks:
        found |= read_with_marks(orders, Path(marks[0]))
    stream = spark.readStream.format("warren").options(**OPTIONS).load(url)
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", f"{checkpoint}/stream")
        .trigger(availableNow=True)
        .start(f"{checkpoint}/rows")
    )
    query.awaitTermination()
    found["streamed"] = spark.read.parquet(f"{checkpoint}/rows").count()
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
