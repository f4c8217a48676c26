"""Holes: the positions at which the damaged disk of a leader has nothing.

Such a leader goes on with what it has when no mirror comes that has more. A mirror that comes later
has messages which the queue lacks: some were consumed since, others are in a hole, and go to
`lost+found`. In a hole there are also positions whose messages were consumed long ago. Copies that
were whole have none of these any more, but for the last acknowledgements before a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from warren.core.backing.backing_queue import MirroredLevel
from warren.core.backing.stream_log import StreamLog
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


def joined(holes: Iterable[Hole]) -> list[Hole]:
    """Holes of all levels, in any order, as few as possible and not too many."""
    by_level = groupby(sorted(holes), lambda hole: hole.level)
    return [hole for _, of_level in by_level for hole in not_too_many(list(of_level))]


def not_too_many(holes: Sequence[Hole]) -> Sequence[Hole]:
    """The holes of one level, in their order: neighbours are one if they touch each other, or if
    there are too many."""
    holes = _touching_joined(holes)
    while len(holes) > HOLES_MAX:
        holes = [
            Hole(pair[0].level, pair[0].start, pair[-1].end)
            for pair in (holes[at : at + 2] for at in range(0, len(holes), 2))
        ]
    return holes


def _touching_joined(holes: Iterable[Hole]) -> list[Hole]:
    apart: list[Hole] = []
    for hole in holes:
        if apart and hole.start <= apart[-1].end:
            apart[-1] = apart[-1]._replace(end=max(hole.end, apart[-1].end))
        else:
            apart.append(hole)
    return apart


async def holes_in(number: int, level: MirroredLevel, clock: Clock) -> Sequence[Hole]:
    """Find the holes in front of the messages that the disk of this node has, and between them.

    In a stream the oldest messages go by themselves, so that nothing is a hole in front of it.
    """
    holes: list[Hole] = []
    at, end = 0, level.end_at_start
    if isinstance(level, StreamLog):
        at = next(iter(level.list_positions(0, end, 1).positions), end)
    beyond = at
    while beyond < min(end, level.next_position):
        listed = level.list_positions(beyond, end, COUNT_MAX)
        for position in listed.positions:
            if position > at:
                holes.append(Hole(number, at, position))
            at = position + 1
        beyond = listed.next_position
        turn = Event()
        clock.call_soon(turn.happen)
        await turn
    if at < end:
        holes.append(Hole(number, at, end))
    return not_too_many(holes)
