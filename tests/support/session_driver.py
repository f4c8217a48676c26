"""A driver of its own: reads a data directory, stops Spark when told, and ends when told again.

python session_driver.py DATA DIRECTORY PYTHON
"""

from __future__ import annotations

import sys
from pathlib import Path

from quick_spark import new_spark

import warren.spark_export


def main() -> None:
    data, directory, worker_python = sys.argv[1:]
    spark = new_spark(Path(directory), worker_python, "512m")
    warren.spark_export.register(spark, pushdown=False)
    print(spark.read.format("warren").load(data).count(), flush=True)
    sys.stdin.readline()
    spark.stop()
    print("stopped", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
