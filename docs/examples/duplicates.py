"""Messages that are in a queue more than once, by their message id.

    spark-submit duplicates.py /var/lib/warren orders

Two messages of one id and different bodies are no duplicates but a publisher that gives an id
twice: `bodies` says how many different ones there are.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def duplicates(spark: SparkSession, store: str, queue: str) -> DataFrame:
    """A row for each id that is there more than once; `seqs` are the positions, the first one is
    the one to keep."""
    messages = (
        spark.read.format("warren")
        .option("queue", queue)
        .option("columns", "vhost,queue,seq,enqueued_at,message_id,body")
        .load(store)
    )
    return (
        messages.where("message_id IS NOT NULL")
        .groupBy("vhost", "queue", "message_id")
        .agg(
            F.count("*").alias("times"),
            F.count_distinct(F.xxhash64("body")).alias("bodies"),
            F.sort_array(F.collect_list("seq")).alias("seqs"),
            F.timestamp_diff("SECOND", F.min("enqueued_at"), F.max("enqueued_at")).alias("apart_s"),
        )
        .where("times > 1")
        .orderBy(F.desc("times"), "vhost", "queue", "message_id")
    )


if __name__ == "__main__":
    session = SparkSession.builder.appName("duplicates").getOrCreate()
    duplicates(session, *sys.argv[1:3]).show(truncate=False)
