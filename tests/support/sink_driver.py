"""A driver of its own, for tests that kill it: publishes the files of a directory, one in a batch.

    python sink_driver.py DIRECTORY PYTHON FILES CHECKPOINT URL

Ends when all is published, or with an error when the broker is lost.
"""

from __future__ import annotations

import sys
from pathlib import Path

from quick_spark import new_spark

import warren.spark_export


def main() -> None:
    directory, worker_python, files, checkpoint, url = sys.argv[1:]
    spark = new_spark(Path(directory), worker_python, "512m")
    warren.spark_export.register(spark, pushdown=False)
    query = (
        spark.readStream.option("maxFilesPerTrigger", "1")
        .text(files)
        .withColumnRenamed("value", "body")
        .writeStream.format("warren")
        .option("url", url)
        .option("exchange", "all")
        .option("routingKey", "")
        # So that a batch takes long enough for something to be killed in it.
        .option("maxInFlight", "5")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
