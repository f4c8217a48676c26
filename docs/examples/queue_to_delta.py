"""Append what queues have to a Delta table, each message once.

    spark-submit queue_to_delta.py /var/lib/warren 'orders.*' /lake/messages

From cron, or any scheduler: a run that is killed is finished by the next one. Remove `.trigger` for
a job that stays. It takes Warren's extras `spark` and `delta`; no jar.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from warren.spark_export import append_to_delta


def follow(spark: SparkSession, store: str, queues: str, table: str) -> StreamingQuery:
    """Begin to append the queues whose names match; the query ends when it is up to date."""
    return (
        spark.readStream.format("warren")
        .option("queuePattern", queues)
        # Keeps what was not read yet, whatever consumers do meanwhile.
        .option("cursor", "queue-to-delta")
        .load(store)
        .writeStream.foreachBatch(append_to_delta(table))
        # Delta leaves alone what begins with an underscore.
        .option("checkpointLocation", f"{table}/_checkpoint")
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    session = SparkSession.builder.appName("queue to delta").getOrCreate()
    follow(session, *sys.argv[1:4]).awaitTermination()
