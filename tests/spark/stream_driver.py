"""A driver of its own, for a test that kills it: follows queues into Parquet until it is ended.

    python stream_driver.py DATA_DIRECTORY OUTPUT CHECKPOINT

Prints a line for each batch that has been written.
"""

from __future__ import annotations

import os
import sys
import time


def main() -> None:
    data, output, checkpoint = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    import warren.spark_export

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    warren.spark_export.register(spark, pushdown=False)
    query = (
        spark.readStream.format("warren")
        .option("columns", "queue,seq,body")
        .option("maxOffsetsPerTrigger", "40")
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
