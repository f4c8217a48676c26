"""Reading message stores from Spark, and publishing from it.

    import warren.spark_export

    warren.spark_export.register(spark)
    spark.read.format("warren").load("/var/lib/warren").groupBy("queue").count().show()

Importing this imports neither Spark nor Arrow nor numpy.

Rooms, each of which may use only those below it in this list:

| room | answers |
|---|---|
| `cli` | What does `warren export` do? |
| `export` | How do messages become Parquet files that count as a whole? |
| `source` | What does Spark call to read, in batches and streams? |
| `sink` | What does Spark call to publish? |
| `remote` | How is a store read that is on another machine? |
| `decode` | How do records become columns? |
| `snapshot` | What is read, and how does it stay while the broker goes on? |
| `values` | How are header tables and VARIANT values encoded? |

Below them stand `node_urls` and `errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession, pushdown: bool = False) -> None:
    """Register the format in a session; with `pyspark_warren` installed, it is registered already.

    With `pushdown`, the option `filterPushdown` can be used. Spark has filter pushdown off; this
    switches it on for all Python data sources of the session.
    """
    from warren.spark_export.source.source import MessageStoreSource

    if pushdown:
        spark.conf.set(_PUSHDOWN_SETTING, "true")
    spark.dataSource.register(MessageStoreSource)


def read_export(spark: SparkSession, path: str | Path, export: str | None = None) -> DataFrame:
    """The rows that `warren export run` wrote to `path`, as one DataFrame; see `exported.py`."""
    from warren.spark_export.export import exported

    return exported.read_export(spark, path, export)


def append_to_delta(path: str | Path) -> Callable[[DataFrame, int], None]:
    """For `writeStream.foreachBatch`: append each batch, exactly once, to a Delta table.

    `path` is a directory or a URL; see docs/lakehouse.md.
    """
    from warren.spark_export.export import table_batches

    return table_batches.append_to_delta(path)


def append_to_iceberg(table: str, path: str | Path) -> Callable[[DataFrame, int], None]:
    """For `writeStream.foreachBatch`: append each batch, exactly once, to the Iceberg table
    CATALOG.NAMESPACE.TABLE, whose new files are written to `path`; see docs/lakehouse.md."""
    from warren.spark_export.export import table_batches

    return table_batches.append_to_iceberg(table, path)
