"""Dead letters by reason and origin: where they died, of what, how often, and when last.

spark-submit dead_letters.py /var/lib/warren
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

DEATHS = "array<struct<reason: string, queue: string, exchange: string, count: bigint>>"
"""What the header `x-death` has, the latest death first, as far as it is used here."""


def dead_letters(spark: SparkSession, store: str) -> DataFrame:
    """By the queue they are in now, and by the reason and the origin of their last death."""
    messages = (
        spark.read.format("warren")
        .option("columns", "vhost,queue,enqueued_at,routing_key,headers")
        .option("headers", "json")
        .load(store)
    )
    deaths = F.from_json(F.get_json_object("headers", "$.x-death"), DEATHS)
    return (
        messages.withColumn("death", F.get(deaths, F.lit(0)))
        .where("death IS NOT NULL")
        .groupBy(
            "vhost",
            "queue",
            F.col("death.reason").alias("reason"),
            F.col("death.queue").alias("died_in"),
        )
        .agg(
            F.count("*").alias("messages"),
            F.max("death.count").alias("most_deaths"),
            F.min("enqueued_at").alias("first"),
            F.max("enqueued_at").alias("last"),
            F.mode("routing_key").alias("commonest_routing_key"),
        )
        .orderBy(F.desc("messages"), "vhost", "queue", "reason", "died_in")
    )


if __name__ == "__main__":
    session = SparkSession.builder.appName("dead letters").getOrCreate()
    dead_letters(session, sys.argv[1]).show(truncate=False)
