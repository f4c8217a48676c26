"""Publishes the files of a directory, one in a batch; also as a driver for a test that kills it.

python sink_driver.py DIRECTORY PYTHON FILES CHECKPOINT URL
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from quick_spark import new_spark

import warren.spark_export

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def main() -> None:
    directory, worker_python, files, checkpoint, url = sys.argv[1:]
    spark = new_spark(Path(directory), worker_python, "512m")
    warren.spark_export.register(spark, pushdown=False)
    start_publishing(spark, files, checkpoint, url).awaitTermination()


def start_publishing(spark: SparkSession, files: str, checkpoint: str, url: str) -> StreamingQuery:
    """Ends when all is published, or with an error when the broker is lost."""
    return (
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


if __name__ == "__main__":
    main()
