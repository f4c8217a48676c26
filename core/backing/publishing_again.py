"""Messages that are published again, because their first publish got no answer.

A leader that is gone may have had them, and consumers may have got them from it. So they come as
redelivered: not only to a consumer that takes one at once, but also later, out of the backing
queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from warren.core.backing.backing_queue import BackingQueue, MirroredLevel
from warren.core.backing.handing_over import Followed
from warren.core.backing.priority_queue import PriorityQueue


@contextmanager
def publishing_again(backing: BackingQueue) -> Iterator[None]:
    """While this lasts, what is published to this backing queue counts as delivered.

    A backing queue without mirrors cannot mark single messages as delivered, so all messages before
    them count as delivered as well.
    """
    levels = backing.levels if isinstance(backing, PriorityQueue) else [backing]
    if isinstance(levels[0], Followed):
        with levels[0].publishing_again():
            yield
        return
    starts = [level.next_position for level in levels]
    yield
    for level, start in zip(levels, starts, strict=True):
        if level.next_position != start:
            cast(MirroredLevel, level).count_as_delivered(level.next_position)
