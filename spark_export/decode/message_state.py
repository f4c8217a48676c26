"""Which messages are out for acknowledgement, as far as somebody knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Spans: TypeAlias = Sequence[tuple[int, int]]
"""Ranges of positions, ascending, the second not included."""


def within(positions: NDArray[np.uint64], spans: Spans) -> NDArray[np.bool_]:
    """Of each position, whether it is in one of the spans."""
    ends = np.array(spans, np.uint64).reshape(-1)
    inside: NDArray[np.bool_] = np.searchsorted(ends, positions, side="right") % 2 == 1
    return inside
