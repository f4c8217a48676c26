"""Exports without Spark: its tasks one after the other, in this process."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from warren.spark_export.decode.schema import columns, spark_schema
from warren.spark_export.export.export import begin, finish, tasks
from warren.spark_export.export.export_plan import Wish
from warren.spark_export.export.manifest import Manifest, Where
from warren.spark_export.export.parquet import ExportTask, export_unit
from warren.spark_export.snapshot.options import ReadOptions, parse_options
from warren.spark_export.snapshot.plan import QueueSelector

CONTENT_HEADER = struct.pack(">HHQHB", 60, 0, 0, 0x1000, 2)
"""As a client sends it: only the delivery mode."""


def wish(*, options: ReadOptions | None = None, **fields: Any) -> Wish:
    """Everything, in files of about 20 KB of records."""
    known: dict[str, Any] = {"selector": QueueSelector(), "target_file_bytes": 20_000, **fields}
    return Wish(options=options or parse_options({}), **known)


def export(
    data_directory: Path,
    destination: Where,
    name: str,
    wanted: Wish,
    before: Callable[[ExportTask], None] = lambda task: None,
) -> Manifest:
    """`before` is called before each task, and may end it all."""
    plan = begin(data_directory, destination, name, wanted)
    if isinstance(plan, Manifest):
        return plan
    files = []
    for task in tasks(destination, plan):
        before(task)
        files += export_unit(task)
    schema = spark_schema(columns(plan.options)).jsonValue()
    return finish(destination, plan, files, schema)


def rows_of(destination: Path, manifests: list[Manifest]) -> list[dict[str, Any]]:
    """Every row of the files that these manifests name."""
    return [
        row
        for manifest in manifests
        for file in manifest.files
        for row in pq.ParquetFile(destination / file.path).read().to_pylist()
    ]
