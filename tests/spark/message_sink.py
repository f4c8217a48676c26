"""A data source that writes as `warren` does, for tests of the sink alone."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from warren.spark_export.sink import (
    MessageStreamWriter,
    MessageWriter,
    batch_writer,
    stream_writer,
)


class MessageSink(DataSource):
    """Registered under a name of its own, so the reading side has no part in it."""

    @classmethod
    def name(cls) -> str:
        return "warren_sink"

    def writer(self, schema: StructType, overwrite: bool) -> MessageWriter:
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MessageStreamWriter:
        return stream_writer(self.options, schema, overwrite)
