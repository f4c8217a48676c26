"""Holes: the positions at which the damaged disk of a leader has nothing.

Such a leader goes on with what it has when no mirror comes that has more. A mirror that comes later
has messages which the queue lacks: some were consumed since, others are in a hole, and go to
`lost+found`. In a hole there are also positions whose messages were consumed long ago. A copy that
followed the leader until its end has none of these any more, but for the last acknowledgements
before a crash. A mirror that was away has what was consumed meanwhile: that goes to `lost+found`,
too, as it cannot be told from what was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from warren.core.backing.backing_queue import MirroredLevel
from warren.core.backing.stream_limits import StreamLimits
from warren.core.ports import Clock
from warren.core.scheduling.waiting import Event

HOLES_MAX = 1024
"""How many holes of a level are noted. If there are more, neighbours count as one, with what is
between them."""

COUNT_MAX = 4096
"""How many positions are listed at a time: about a millisecond of work."""


class Hole(NamedTuple):
    """The positions [start, end) of a level."""

    level: int
    start: int
    end: int


def not_too_many(holes: Iterable[Hole]) -> list[Hole]:
    """The holes in their order: neighbours are one if they touch each other, or if a level has too
    many."""
    by_level = groupby(sorted(holes), lambda hole: hole.level)
    return [hole for _, of_level in by_level for hole in _few_of_level(of_level)]


def _few_of_level(in_order: Iterable[Hole]) -> list[Hole]:
    holes = _joined(in_order)
    while len(holes) > HOLES_MAX:
        holes = [
            Hole(pair[0].level, pair[0].start, pair[-1].end)
            for pair in (holes[at : at + 2] for at in range(0, len(holes), 2))
        ]
    return holes


def _joined(holes: Iterable[Hole]) -> list[Hole]:
    joined: list[Hole] = []
    for hole in holes:
        if joined and hole.start <= joined[-1].end:
            joined[-1] = joined[-1]._replace(end=max(hole.end, joined[-1].end))
        else:
            joined.append(hole)
    return joined


async def holes_of(
    levels: Iterable[MirroredLevel], keeps: StreamLimits, clock: Clock
) -> list[Hole]:
    """Find what the damaged disk of this node lacks of a queue, for mirrors that come later."""
    holes: list[Hole] = []
    for number, level in enumerate(levels):
        holes += await holes_in(number, level, keeps, clock)
    return holes


async def holes_in(
    number: int, level: MirroredLevel, keeps: StreamLimits, clock: Clock
) -> Sequence[Hole]:
    """Find the holes in front of the messages that the disk of this node has, and between them.

    If the oldest messages go by themselves, as in a stream that does not keep all, nothing is a
    hole in front.
    """
    holes: list[Hole] = []
    at, end = 0, level.end_at_start
    if not keeps.keeps_all:
        at = next(iter(level.list_positions(0, end, 1).positions), end)
    beyond = at
    while beyond < min(end, level.next_position):
        listed = level.list_positions(beyond, end, COUNT_MAX)
        for position in listed.positions:
            if position > at:
                holes.append(Hole(number, at, position))
            at = position + 1
        if len(holes) > 2 * HOLES_MAX:
            holes = not_too_many(holes)
        beyond = listed.next_position
        turn = Event()
        clock.call_soon(turn.happen)
        await turn
    if at < end:
        holes.append(Hole(number, at, end))
    return not_too_many(holes)
