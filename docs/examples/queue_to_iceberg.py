"""Append what queues have to an Iceberg table, each message once.

    export PYICEBERG_CATALOG__LAKE__URI=sqlite:////lake/catalog.db
    export PYICEBERG_CATALOG__LAKE__WAREHOUSE=file:///lake
    spark-submit queue_to_iceberg.py /var/lib/warren 'orders.*' lake.shop.messages \\
        /lake/messages /lake/checkpoints/messages

The table is found in the catalog `lake` of pyiceberg's configuration, and made if it is missing;
its files stand in /lake/messages. It takes Warren's extras `spark` and `iceberg`; no jar.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from warren.spark_export import append_to_iceberg


def follow(
    spark: SparkSession, store: str, queues: str, table: str, files: str, checkpoint: str
) -> StreamingQuery:
    """Begin to append the queues whose names match; the query ends when it is up to date."""
    return (
        spark.readStream.format("warren")
        .option("queuePattern", queues)
        # Keeps what was not read yet, whatever consumers do meanwhile.
        .option("cursor", "queue-to-iceberg")
        .load(store)
        .writeStream.foreachBatch(append_to_iceberg(table, files))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    session = SparkSession.builder.appName("queue to iceberg").getOrCreate()
    follow(session, *sys.argv[1:6]).awaitTermination()
