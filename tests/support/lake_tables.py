"""Tables of a lakehouse as their own libraries read them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from warren.spark_export.export.lake_table import DELTA, TableChoice
from warren.spark_export.export.table_batches import append_to_delta, append_to_iceberg

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CATALOG = "lake"
ICEBERG_NAME = f"{CATALOG}.shop.messages"
PREFIX = f"PYICEBERG_CATALOG__{CATALOG.upper()}__"


def catalog_environment(directory: Path) -> dict[str, str]:
    """Variables that tell pyiceberg of a catalog in this directory."""
    return {
        f"{PREFIX}TYPE": "sql",
        f"{PREFIX}URI": f"sqlite:///{directory}/catalog.db",
        f"{PREFIX}WAREHOUSE": f"file://{directory}",
    }


def configure_catalog(monkeypatch: pytest.MonkeyPatch, directory: Path, **settings: str) -> None:
    """For this process and those it starts."""
    from pyiceberg.utils.config import Config

    variables = catalog_environment(directory)
    variables |= {f"{PREFIX}{name}": value for name, value in settings.items()}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


def configured_catalog() -> dict[str, str]:
    """The settings that `configure_catalog` made."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in os.environ.items()
        if name.startswith(PREFIX)
    }


def choice_of(kind: str) -> TableChoice:
    return TableChoice(kind, None if kind == DELTA else ICEBERG_NAME)


def read_table(kind: str, place: Path) -> pa.Table:
    """All rows, in any order."""
    if kind == DELTA:
        from deltalake import DeltaTable

        return DeltaTable(str(place)).to_pyarrow_table()
    from pyiceberg.catalog import load_catalog

    return load_catalog(CATALOG).load_table(ICEBERG_NAME.partition(".")[2]).scan().to_arrow()


def files_of(kind: str, place: Path) -> set[str]:
    """The files of which the table consists."""
    if kind == DELTA:
        from urllib.parse import unquote

        from deltalake import DeltaTable

        actions = pa.table(DeltaTable(str(place)).get_add_actions())
        return {unquote(path) for path in actions.column("path").to_pylist()}
    from pyiceberg.catalog import load_catalog

    table = load_catalog(CATALOG).load_table(ICEBERG_NAME.partition(".")[2])
    paths = [task.file.file_path for task in table.scan().plan_files()]
    return {os.path.relpath(path.removeprefix("file://"), place) for path in paths}


def copies(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """How often each message is in it."""
    ids = table.select(["vhost", "queue", "seq"]).to_pylist()
    return Counter(tuple(one.values()) for one in ids)


def start_stream(
    spark: SparkSession, kind: str, data: Path, place: Path, checkpoint: Path
) -> StreamingQuery:
    """What is in the queues now, in batches of 80."""
    append = append_to_delta(place) if kind == DELTA else append_to_iceberg(ICEBERG_NAME, place)
    return (
        spark.readStream.format("warren")
        .option("maxOffsetsPerTrigger", "80")
        .load(str(data))
        .writeStream.foreachBatch(append)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
