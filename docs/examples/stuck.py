"""What is stuck, and why: the age of what waits by queue, routing key and consumer.

    spark-submit stuck.py /var/lib/warren http://guest:guest@localhost:15672

`stuck` is read from the store, a directory or the URL of a node: how many messages of each routing
key are ready, or out with a consumer, and how old the oldest is. `reasons` asks the node, too, who
consumes from the queue, and says in a word where to look.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def stuck(spark: SparkSession, store: str) -> DataFrame:
    """By queue, routing key and state; what has waited longest comes first. The node runs: it knows
    which messages are unacknowledged."""
    messages = (
        spark.read.format("warren")
        .option("columns", "vhost,queue,routing_key,state,enqueued_at")
        .load(store)
    )
    age = F.timestamp_diff("SECOND", "enqueued_at", F.current_timestamp())
    return (
        messages.withColumn("age", age)
        .groupBy("vhost", "queue", "routing_key", "state")
        .agg(F.count("*").alias("messages"), F.max("age").alias("oldest_age_s"))
        .orderBy(F.desc("oldest_age_s"), "vhost", "queue", "routing_key", "state")
    )


def reasons(spark: SparkSession, store: str, api: str) -> DataFrame:
    """A row for each queue with messages and each of its consumers, the oldest message first.

    no consumer        there is no consumer
    consumers wait     messages are ready, and not one is out: consumers are blocked, or all at once
                       have just come
    consumers are slow all that consumers may have is out (prefetch), and the rest waits for them
    """
    found = stuck(spark, store).groupBy("vhost", "queue")
    ages = found.pivot("state", ["ready", "unacked"]).agg(
        F.sum("messages").alias("messages"), F.max("oldest_age_s").alias("oldest_age_s")
    )
    consumers = spark.createDataFrame(
        ask_consumers(api),
        "vhost string, queue string, consumer string, client string, prefetch long",
    )
    reason = (
        F.when(F.col("consumer").isNull(), "no consumer")
        .when(F.col("unacked_messages").isNull(), "consumers wait")
        .otherwise("consumers are slow")
    )
    oldest = F.greatest("ready_oldest_age_s", "unacked_oldest_age_s")
    return (
        ages.join(consumers, ["vhost", "queue"], "left")
        .withColumn("reason", reason)
        .orderBy(F.desc(oldest), "vhost", "queue", "consumer")
    )


def ask_consumers(api: str) -> list[tuple[str, str, str, str, int]]:
    """From the management API at this URL. The login is in it, or is that of `guest`."""
    parts = urlsplit(api)
    login_text, _, host = parts.netloc.rpartition("@")
    user, _, password = (login_text or "guest:guest").partition(":")
    login = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    url = f"{parts.scheme}://{host}{parts.path.rstrip('/')}/api/consumers"
    with urlopen(Request(url, headers={"Authorization": f"Basic {login}"})) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return [
        (
            one["queue"]["vhost"],
            one["queue"]["name"],
            one["consumer_tag"],
            one["channel_details"].get("connection_name", ""),
            one["prefetch_count"],
        )
        for one in found
    ]


if __name__ == "__main__":
    session = SparkSession.builder.appName("stuck").getOrCreate()
    stuck(session, sys.argv[1]).show(truncate=False)
    reasons(session, *sys.argv[1:3]).show(truncate=False)
