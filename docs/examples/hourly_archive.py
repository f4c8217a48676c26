"""The same as a stream: what came since the last run, as Parquet. From cron, or any scheduler:

    5 * * * *  spark-submit hourly_archive.py /var/lib/warren 'orders.*' /archive/orders

The checkpoint knows what was read; a run that is killed is finished by the next one. Remove
`.trigger` for a job that stays.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery


def archive(spark: SparkSession, store: str, queues: str, directory: str) -> StreamingQuery:
    """Begin to archive the queues whose names match; the query ends when it is up to date."""
    messages = spark.readStream.format("warren").option("queuePattern", queues).load(store)
    return (
        messages.withColumn("date", F.to_date("enqueued_at"))
        .writeStream.format("parquet")
        .partitionBy("queue", "date")
        .option("checkpointLocation", f"{directory}/_checkpoint")
        .trigger(availableNow=True)
        .start(f"{directory}/messages")
    )


def read_archive(spark: SparkSession, directory: str) -> DataFrame:
    """Spark would take a queue called 0123 for the number 123."""
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    return spark.read.parquet(f"{directory}/messages")


if __name__ == "__main__":
    session = SparkSession.builder.appName("hourly archive").getOrCreate()
    archive(session, *sys.argv[1:4]).awaitTermination()
