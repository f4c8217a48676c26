"""Finds the messages that are out for acknowledgement, if the snapshot knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from warren.spark_export.errors import StoreRefused
from warren.spark_export.snapshot.options import IN_QUEUE, Include, ReadOptions

Spans: TypeAlias = Sequence[tuple[int, int]]
"""Ranges of positions, ascending, ends excluded."""


def within(positions: NDArray[np.uint64], spans: Spans) -> NDArray[np.bool_]:
    """Whether each of the positions is in one of the spans."""
    ends = np.array(spans, np.uint64).reshape(-1)
    inside: NDArray[np.bool_] = np.searchsorted(ends, positions, side="right") % 2 == 1
    return inside


def included(
    entries: NDArray[np.void], options: ReadOptions, unacked: Spans | None
) -> NDArray[np.void]:
    """The entries of a queue that the options include. Raises `StoreRefused`."""
    if options.include >= IN_QUEUE:
        return entries
    if unacked is None:
        raise StoreRefused(
            "option include needs a snapshot that knows what is unacknowledged: of a node that "
            "does not run, or one that was asked when the snapshot was taken"
        )
    out = within(entries["position"], unacked)
    chosen: NDArray[np.void] = entries[out if Include.UNACKED in options.include else ~out]
    return chosen
