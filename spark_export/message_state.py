"""Which messages are out for acknowledgement, as far as somebody knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from warren.spark_export.snapshot import PinnedQueue
    from warren.spark_export.unit import Unit

Spans: TypeAlias = Sequence[tuple[int, int]]
"""Ranges of positions, ascending, the second not included."""


def unacked_of(unit: Unit, queues: Iterable[PinnedQueue]) -> tuple[tuple[int, int], ...] | None:
    """What the snapshot knows of the queue of a unit, whose `queues` these are; None: nothing."""
    for queue in queues:
        if queue.queue_id == unit.queue_id:
            return queue.unacked
    return None


def within(positions: NDArray[np.uint64], spans: Spans) -> NDArray[np.bool_]:
    """Of each position, whether it is in one of the spans."""
    ends = np.array(spans, np.uint64).reshape(-1)
    inside: NDArray[np.bool_] = np.searchsorted(ends, positions, side="right") % 2 == 1
    return inside
