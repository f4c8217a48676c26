"""A driver of its own, for a test that kills it: follows queues into Parquet until it is ended.

    python stream_driver.py DIRECTORY PYTHON

Starts Spark, which takes longer than all the rest and writes to the directory what it writes by
itself. Then reads a line from standard input: the data directory, the directories for the output
and the checkpoint, and the name of a cursor, with tabs between. Prints a line for each batch that
has been written.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from quick_spark import new_spark

import warren.spark_export


def main() -> None:
    directory, worker_python = sys.argv[1:]
    spark = new_spark(Path(directory), worker_python, "512m")
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
