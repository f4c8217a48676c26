"""Opens the table to which an export or a stream is appended, and loads the library of its kind."""

from __future__ import annotations

from warren.extras import install_command
from warren.spark_export.errors import TableRefused
from warren.spark_export.export.lake_table import DELTA, LakeTable, TableChoice
from warren.spark_export.export.manifest import Where


def open_table(choice: TableChoice, place: Where) -> LakeTable:
    """The table at this place, a directory or a URL. Raises `TableRefused`."""
    try:
        if choice.format == DELTA:
            from warren.spark_export.export.delta_table import DeltaLakeTable

            return DeltaLakeTable(place)
        from warren.spark_export.export.iceberg_table import find_table

        return find_table(choice, place)
    except ModuleNotFoundError as missing:
        raise TableRefused(
            f"{missing.name} is not installed: {install_command(choice.format)}"
        ) from None
