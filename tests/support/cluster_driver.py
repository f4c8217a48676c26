"""A Spark application whose executors are processes of their own; prints what it read as JSON.

    python cluster_driver.py URL CHECKPOINT DIRECTORY

SPARK_MASTER says where the executors are, and JAVA_OPTIONS how Java is started; DIRECTORY is what
they should not see.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

import warren.spark_export  # noqa: E402

OPTIONS = {"queue": "orders", "maxPartitionBytes": "20000"}


def executor(_: int) -> int:
    """The process that started the daemon of this Python worker."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="ascii")
    return int(stat.rpartition(") ")[2].split()[1])


def main() -> None:
    url, checkpoint, directory = sys.argv[1:]
    builder = SparkSession.builder.master(os.environ["SPARK_MASTER"]).appName("warren remote")
    for setting, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
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
