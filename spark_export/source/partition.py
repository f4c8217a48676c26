"""The input of a reading task: picklable, and the same for batches and for streams.

A partition costs Spark about 50 ms, whatever is in it. So small units of several queues share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from warren.spark_export.snapshot.deliveries import Deliveries
    from warren.spark_export.snapshot.filters import RowFilter
    from warren.spark_export.snapshot.options import ReadOptions
    from warren.spark_export.snapshot.snapshot_file import PinnedStore
    from warren.spark_export.snapshot.unit import Unit


class UnitPartition(InputPartition):
    """Units, each with what is known about the deliveries of its queue."""

    def __init__(self, units: list[tuple[Unit, Deliveries]]) -> None:
        super().__init__(units)

    @property
    def units(self) -> list[tuple[Unit, Deliveries]]:
        units: list[tuple[Unit, Deliveries]] = self.value
        return units


def partitions_of(
    snapshot: PinnedStore, units: list[Unit], options: ReadOptions
) -> list[InputPartition]:
    """Partitions with all of the units, in order."""
    from warren.spark_export.snapshot.plan import group_units

    known = {queue.queue_id: queue.deliveries for queue in snapshot.queues}
    groups = group_units(
        units, max_bytes=options.max_partition_bytes, min_groups=options.min_partitions
    )
    return [UnitPartition([(unit, known[unit.queue_id]) for unit in group]) for group in groups]


def read_partition(
    partition: InputPartition | None, schema: pa.Schema, options: ReadOptions, keep: RowFilter
) -> Iterator[pa.RecordBatch]:
    """The messages of a partition, as decoded by `decode_unit`."""
    # Without any unit Spark makes a partition itself.
    if not isinstance(partition, UnitPartition):
        return
    import pyarrow

    from warren.spark_export.decode.decode import decode_unit

    # The other cores run other tasks.
    pyarrow.set_cpu_count(1)
    for unit, deliveries in partition.units:
        yield from decode_unit(unit, schema, options, deliveries=deliveries, keep=keep)
