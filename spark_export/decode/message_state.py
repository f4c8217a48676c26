"""The columns `state` and `redelivered`, as far as the snapshot knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warren.spark_export.errors import StoreRefused
from warren.spark_export.snapshot.deliveries import Deliveries
from warren.spark_export.snapshot.options import IN_QUEUE, Include, ReadOptions
from warren.spark_export.values import arrow_columns

Positions: TypeAlias = NDArray[np.uint64]


def within(positions: Positions, spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Whether each of the positions is in one of the spans, which are ascending."""
    ends = np.array(spans, np.uint64).reshape(-1)
    inside: NDArray[np.bool_] = np.searchsorted(ends, positions, side="right") % 2 == 1
    return inside


def included(
    entries: NDArray[np.void], options: ReadOptions, deliveries: Deliveries
) -> NDArray[np.void]:
    """The entries of a queue that the options include. Raises `StoreRefused`."""
    if options.include >= IN_QUEUE:
        return entries
    if deliveries.unacked is None:
        raise StoreRefused(
            "option include needs a snapshot that knows what is unacknowledged: of a node that "
            "does not run, or one that leads or mirrors the queue and was asked when it was"
            " taken"
        )
    out = within(entries["position"], deliveries.unacked)
    chosen: NDArray[np.void] = entries[out if Include.UNACKED in options.include else ~out]
    return chosen


def states(positions: Positions, deliveries: Deliveries) -> pa.Array:
    """The column `state` of messages that are not retained."""
    if deliveries.unacked is None:
        return pa.nulls(len(positions), pa.string())
    if not deliveries.unacked:
        return arrow_columns.repeated(Include.READY, len(positions))
    out = within(positions, deliveries.unacked)
    return arrow_columns.chosen((Include.READY, Include.UNACKED), out)


def redelivered(positions: Positions, deliveries: Deliveries) -> pa.Array:
    """The column `redelivered`."""
    if deliveries.redelivered_below is None:
        return pa.nulls(len(positions), pa.bool_())
    return pa.array(positions < np.uint64(deliveries.redelivered_below))
