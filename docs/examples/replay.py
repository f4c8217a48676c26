"""Publish some of the messages of a queue once more, to another exchange.

    spark-submit replay.py /var/lib/warren orders \\
        "enqueued_at >= '2026-01-31T12:00' AND variant_get(headers, '$.tenant', 'string') = 'x'" \\
        amqp://user:password@broker/shop orders-again

The messages stay in their queue. Each keeps its routing key, properties and headers; one without a
message id gets one that says which it is, so that who runs this twice can tell.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def replay(
    spark: SparkSession, store: str, queue: str, condition: str, url: str, exchange: str
) -> None:
    """Those for which a condition in Spark's SQL holds. On return all are confirmed."""
    messages = (
        spark.read.format("warren")
        .option("queue", queue)
        # Types of headers are kept, apart from the sizes of integers.
        .option("headers", "variant")
        # Rather none than some of them.
        .option("mode", "FAILFAST")
        .load(store)
    )
    # A queue with priorities counts the messages of each one by itself.
    place = ("vhost", "queue", F.coalesce("priority", F.lit(0)), "seq")
    message_id = F.concat_ws("-", F.lit("replay"), *place)
    (
        messages.where(condition)
        .withColumn("message_id", F.coalesce("message_id", message_id))
        # The broker compares the user with ours.
        .drop("user_id")
        # One publisher keeps the order; leave it out where that is of no importance.
        .coalesce(1)
        .write.format("warren")
        .mode("append")
        .option("url", url)
        .option("exchange", exchange)
        # Of where and when a message was there the exchange is told nothing.
        .option("ignoreExtraColumns", "true")
        .save()
    )


if __name__ == "__main__":
    replay(SparkSession.builder.appName("replay").getOrCreate(), *sys.argv[1:6])
