"""A driver of its own that follows a queue into a table of a lakehouse, and may kill itself.

    python lake_driver.py DIRECTORY PYTHON KIND DATA PLACE CHECKPOINT MOMENT

MOMENT is `before` or `after`: in its second batch it is killed, with the JVM and its workers, just
before or just after the transaction of the table.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from lake_tables import start_stream
from quick_spark import new_spark

import warren.spark_export
from warren.spark_export.export.delta_table import DeltaLakeTable
from warren.spark_export.export.iceberg_table import IcebergTable
from warren.spark_export.export.lake_table import TableBatch


def main() -> None:
    directory, worker_python, kind, data, place, checkpoint, moment = sys.argv[1:]
    for table in (DeltaLakeTable, IcebergTable):
        die_around(table, moment)
    spark = new_spark(Path(directory), worker_python, "512m")
    warren.spark_export.register(spark, pushdown=False)
    query = start_stream(spark, kind, Path(data), Path(place), Path(checkpoint))
    query.awaitTermination()


def die_around(table: Any, moment: str) -> None:
    append = table.append

    def append_or_die(self: Any, batch: TableBatch, *rest: Any) -> None:
        if batch.number == 1 and moment == "before":
            os.killpg(0, signal.SIGKILL)
        append(self, batch, *rest)
        if batch.number == 1:
            os.killpg(0, signal.SIGKILL)

    table.append = append_or_die


if __name__ == "__main__":
    main()
