"""Spark on two cores of this machine, for benchmarks, and what a job costs.

CPU is that of this process and all below it: the Java machine, Spark's Python workers, and those
of them that have ended.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Cost(NamedTuple):
    """Seconds on the clock, and of all processors."""

    wall_s: float
    cpu_s: float


def cost_of(job: Callable[[], object]) -> Cost:
    wall_s, cpu_s = time.perf_counter(), tree_cpu_s()
    job()
    return Cost(time.perf_counter() - wall_s, tree_cpu_s() - cpu_s)


def least(costs: Iterable[Cost]) -> Cost:
    """The best of each figure."""
    walls, cpus = zip(*costs, strict=True)
    return Cost(min(walls), min(cpus))


def tree_cpu_s() -> float:
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(path.parent.name)
        # In the mode of a user and of the kernel, its own and of children that were waited for.
        ticks[pid] = sum(map(int, fields[11:15]))
        children.setdefault(int(fields[1]), []).append(pid)
    todo, total = [os.getpid()], 0
    while todo:
        pid = todo.pop()
        total += ticks.get(pid, 0)
        todo += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def new_spark(directory: Path) -> SparkSession:
    """What it writes by itself goes to this directory."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark
