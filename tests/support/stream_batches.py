"""A reader of streams, asked as Spark asks it, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from warren.spark_export.decode.schema import columns
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.source.stream import StreamReader


class Query:
    """What Spark does with a reader: batches, one after the other."""

    def __init__(self, data: Path | str, **options: str) -> None:
        self._data = data
        self.options = parse_options({"path": str(data), "columns": "queue,seq,body", **options})
        self.reader = StreamReader(self.options, columns(self.options))
        self.at: dict[str, Any] = self.reader.initialOffset()

    def restart(self, **options: str) -> None:
        """With another reader, at the same offset."""
        self.options = parse_options(
            {"path": str(self._data), "columns": "queue,seq,body", **options}
        )
        self.reader = StreamReader(self.options, columns(self.options))

    def batch(self, limit: ReadLimit | None = None) -> list[int]:
        """The numbers of the next batch, which is committed."""
        chosen = limit or self.reader.getDefaultReadLimit()
        end = self.reader.latestOffset(self.at, chosen)
        found = self.read(self.at, end)
        self.reader.commit(end)
        self.at = end
        return found

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        return sorted(
            int(body)
            for partition in self.reader.partitions(start, end)
            for batch in self.reader.read(partition)
            for body in batch.column("body").to_pylist()
        )
