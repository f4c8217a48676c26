"""Messages and minutes that are out of the ordinary: bodies far larger than the queue's others, and
minutes in which far more, or far less, was enqueued than in the queue's others.

    spark-submit anomalies.py /var/lib/warren

Ordinary is the median, and far is so many times the median distance from it (MAD): a few that are
extreme change neither, as they would change a mean. Only what is in the queues still can be seen;
read an archive (`warren export`) for what has been consumed.
"""

from __future__ import annotations

import sys

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

FAR = 10
"""Times the median distance from the median."""


def read_sizes(spark: SparkSession, store: str) -> DataFrame:
    messages = spark.read.format("warren").option("columns", "vhost,queue,seq,enqueued_at,body")
    return messages.load(store).withColumn("bytes", F.octet_length("body")).drop("body")


def large_messages(messages: DataFrame) -> DataFrame:
    """Those whose bodies are far larger than the median of their queue."""
    found = with_distance(messages, "bytes")
    return found.where("distance > 0").orderBy(F.desc("distance"), "vhost", "queue", "seq")


def busy_minutes(messages: DataFrame) -> DataFrame:
    """Minutes in which far more or less was enqueued than in the median minute of the queue.

    Minutes without messages, between its first and its last one, count.
    """
    minutes = messages.groupBy("vhost", "queue", F.date_trunc("minute", "enqueued_at").alias("at"))
    counted = minutes.agg(F.count("*").alias("messages"))
    ends = messages.groupBy("vhost", "queue").agg(
        F.explode(
            F.sequence(
                F.date_trunc("minute", F.min("enqueued_at")),
                F.date_trunc("minute", F.max("enqueued_at")),
                F.expr("INTERVAL 1 MINUTE"),
            )
        ).alias("at")
    )
    every = ends.join(counted, ["vhost", "queue", "at"], "left").fillna(0, ["messages"])
    found = with_distance(every, "messages")
    return found.where("distance != 0").orderBy("vhost", "queue", "at")


def with_distance(rows: DataFrame, name: str) -> DataFrame:
    """How far the value is from the median of its queue, in units of the limit: 0 is ordinary."""
    key = ["vhost", "queue"]
    median = rows.groupBy(key).agg(F.median(name).alias("median"))
    known = rows.join(median, key)
    off: Column = F.col(name) - F.col("median")
    spread = known.groupBy(key).agg(F.median(F.abs(off)).alias("spread"))
    # Where all are alike a difference of one is no anomaly.
    limit = FAR * F.greatest("spread", F.col("median") / 100, F.lit(1))
    far = F.when(F.abs(off) > limit, F.round(off / limit, 1)).otherwise(0.0)
    return known.join(spread, key).withColumn("distance", far).drop("spread")


if __name__ == "__main__":
    session = SparkSession.builder.appName("anomalies").getOrCreate()
    sizes = read_sizes(session, sys.argv[1]).cache()
    large_messages(sizes).show(truncate=False)
    busy_minutes(sizes).show(truncate=False)
