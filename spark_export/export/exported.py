"""Exports as DataFrames, for users who do not know how they were written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from warren.backup.shelves import is_url
from warren.spark_export.errors import StoreRefused
from warren.spark_export.export.manifest import chain, find_manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_export(spark: SparkSession, path: str | Path, export: str | None = None) -> DataFrame:
    """The messages of an export and of its bases; of the newest export unless one is named.

    Only files that a manifest names are read, with the manifest's schema: files of an export that
    was never finished do not count, and queue `0123` stays text. Raises `ShelfRefused`,
    `StoreRefused`, OSError.
    """
    from pyspark.sql.types import StructType

    destination = path
    folder = str(path).partition("?")[0].rstrip("/") if is_url(path) else Path(path).absolute()
    links = chain(destination, find_manifest(destination, export))
    schemas = [link.schema for link in links]
    for link in links:
        if link.schema != schemas[0]:
            raise StoreRefused(
                f"exports {links[0].export} and {link.export} have different columns;"
                " read them one by one"
            )
    schema = StructType.fromJson(schemas[0])
    files = [_literal(f"{folder}/{file.path}") for link in links for file in link.files]
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*files)


def _literal(path: str) -> str:
    """The path for Spark, which takes some characters of it for a pattern."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
