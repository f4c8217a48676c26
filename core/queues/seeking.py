"""Finds where in a log of messages those begin that arrived at some time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warren.core.backing.stream_log import StreamLog
from warren.core.scheduling.turns import Turns

SEEK_US: Final = 2000
"""The cost of looking up one message whose index is on disk, in the microseconds of
`core/scheduling/turns.py`."""


async def offset_at(log: StreamLog, turns: Turns, since: float, is_over: Callable[[], bool]) -> int:
    """The offset of the first message that arrived then or later, in seconds since 1970; that of
    the next message where there is none. It may be any once the log `is_over`."""
    low, high = log.first, log.committed
    while low < high and not is_over():
        turns.spend(SEEK_US)
        await turns.pause()
        middle = (low + high) // 2
        at, arrived_at = _arrival(log, middle, high)
        if arrived_at is not None and arrived_at < since:
            low = at + 1
        else:
            high = middle
    return next(iter(log.list_positions(low, log.committed, 1).positions), low)


def _arrival(log: StreamLog, at: int, end: int) -> tuple[int, float | None]:
    """The position of the first message there is in [at, end), and when it arrived. Gaps between
    positions may be wide."""
    while at < end:
        positions = log.list_positions(at, end, 1).positions
        for position in positions:
            arrived_at = log.arrived_at(position)
            if arrived_at is not None:
                return position, arrived_at
        at = positions[0] + 1 if positions else end
    return end, None
