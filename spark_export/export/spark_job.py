"""Runs the tasks of an export as a job of Spark's; tells its progress, and why it failed."""

from __future__ import annotations

import builtins
import heapq
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from warren.spark_export import errors
from warren.spark_export.export.manifest import ExportedFile
from warren.spark_export.export.parquet import ExportTask, export_unit
from warren.spark_export.snapshot.plan import UNIT_COST_BYTES, group_units

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

TARGET_FILE_BYTES = 128 << 20
"""The size of a file in octets of uncompressed records: a task costs about 50 ms of its own."""

POLL_S = 0.25
"""The time between two looks at the progress of the tasks."""

OWN_ERROR = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.*)$", re.MULTILINE)
"""Finds an error of ours in the traceback of a task."""

SYSTEM_ERROR = re.compile(r"^(\w+): (.*)$", re.MULTILINE)
"""Finds an OSError in the traceback of a task, and other errors of Python itself."""


@dataclass(frozen=True)
class ExportProgress:
    """Progress in shares of the units, one for each task; and the octets of all their records."""

    units: int
    units_total: int
    octets_total: int


def write_tasks(
    spark: SparkSession,
    work: list[ExportTask],
    parallelism: int | None,
    tell: Callable[[ExportProgress], None],
) -> list[ExportedFile]:
    """Write the units in tasks of Spark's; `tell` gets the progress. Raises what `export_unit`
    raises, as far as Spark lets it through."""
    context = context_of(spark)
    # The group is of this run only: the same session may have run an export of this name before.
    group = f"warren-export-{uuid4().hex}"
    wanted = len(
        group_units(
            [task.unit for task in work],
            max_bytes=TARGET_FILE_BYTES,
            min_groups=context.defaultParallelism,
        )
    )
    shares = deal(work, wanted if parallelism is None else min(wanted, parallelism))
    octets = sum(task.unit.octets for task in work)
    written: list[list[ExportedFile]] = []
    failures: list[BaseException] = []

    def collect() -> None:
        try:
            context.setJobGroup(group, f"warren export {work[0].export}", interruptOnCancel=True)
            written.extend(context.parallelize(shares, len(shares)).map(export_share).collect())
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=collect, name="warren-export")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_S)
            tell(ExportProgress(_finished(context, group), len(shares), octets))
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        thread.join()
    if failures:
        raise _cause(failures[0])
    return [file for files in written for file in files]


def context_of(spark: SparkSession) -> SparkContext:
    """The context of a session. Raises `SparkRefused` for Spark Connect, which has none."""
    from pyspark.errors import PySparkAttributeError

    try:
        return spark.sparkContext
    except PySparkAttributeError:
        raise errors.SparkRefused(
            "this session is one of Spark Connect, which has no SparkContext; exports, and streams"
            " into tables, take one: use spark-submit, a local session, or warren export run"
        ) from None


def deal(work: Iterable[ExportTask], count: int) -> list[list[ExportTask]]:
    """Divide the tasks into `count` shares of about the same size, or fewer; the largest first.

    A task of Spark's costs about 50 ms, so small units share one.
    """
    least = [(0, number) for number in range(count)]
    shares: list[list[ExportTask]] = [[] for _ in range(count)]
    for task in sorted(work, key=lambda task: -task.unit.octets):
        octets, number = least[0]
        shares[number].append(task)
        heapq.heapreplace(least, (octets + task.unit.octets + UNIT_COST_BYTES, number))
    return [share for share in shares if share]


def export_share(tasks: Sequence[ExportTask]) -> list[ExportedFile]:
    """The work of a task of Spark's. Raises what `export_unit` does."""
    return [file for task in tasks for file in export_unit(task)]


def _cause(failure: BaseException) -> BaseException:
    """The error in Spark's text with which a task ended, if it is one of ours or an OSError;
    otherwise `failure`."""
    for pattern, module in ((OWN_ERROR, errors), (SYSTEM_ERROR, builtins)):
        for told in pattern.finditer(str(failure)):
            kind = getattr(module, told[1], None)
            if isinstance(kind, type) and issubclass(kind, (errors.SparkExportError, OSError)):
                cause = kind(told[2])
                cause.__cause__ = failure
                return cause
    return failure


def _finished(context: Any, group: str) -> int:
    """The number of finished tasks of the group."""
    tracker = context.statusTracker()
    done = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            found = tracker.getStageInfo(stage)
            done += found.numCompletedTasks if found is not None else 0
    return done
