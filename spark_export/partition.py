"""What Spark hands to a task that reads: picklable, and the same for batches and for streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from warren.spark_export.message_state import Spans
    from warren.spark_export.unit import Unit


class UnitPartition(InputPartition):
    """A unit, and which positions of its queue are out for acknowledgement, if that is known."""

    def __init__(self, unit: Unit, unacked: Spans | None) -> None:
        super().__init__(unit)
        self.unacked = unacked
