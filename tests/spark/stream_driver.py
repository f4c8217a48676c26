"""A driver of its own, for a test that kills it: follows queues into Parquet until it is ended.

    python stream_driver.py JAVA_OPTIONS PYTHON

Starts Spark, which takes longer than all the rest, and then reads a line from standard input: the
data directory, the directories for the output and the checkpoint, and the name of a cursor, with
tabs between. Prints a line for each batch that has been written.
"""

from __future__ import annotations

import os
import sys
import time


def main() -> None:
    java_options, worker_python = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = worker_python
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    import warren.spark_export

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .getOrCreate()
    )
    warren.spark_export.register(spark, pushdown=False)
    line = sys.stdin.readline()
    if not line:
        return
    data, output, checkpoint, cursor = line.rstrip("\n").split("\t")
    query = (
        spark.readStream.format("warren")
        .option("columns", "queue,seq,body")
        .option("maxOffsetsPerTrigger", "40")
        .option("cursor", cursor)
        .load(data)
        .writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .start(output)
    )
    told = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > told and progress["numInputRows"]:
            told = progress["batchId"]
            print(told, flush=True)
        time.sleep(0.02)
    query.awaitTermination()


if __name__ == "__main__":
    main()
