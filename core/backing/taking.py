"""Taking ready messages out of the middle of a queue, and putting them back in their places."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from heapq import heapify

import msgspec

from warren.core.backing.peeking import find
from warren.core.messages.message import NO_HOLDER, Message

SPAN = 1024
"""Messages that are lifted from a run at once. A deque is turned to reach its middle, which costs
one pass over it; what is near is reached by the same turn."""


def take_from_run(run: deque[Message], positions: Sequence[int]) -> list[Message]:
    """Remove the messages with these positions, given in order, and return those that were there.

    Messages in the run are in the order of their positions.
    """
    taken: list[Message] = []
    wanted = 0
    while run and wanted < len(positions):
        at = find(run, positions[wanted])
        if at == len(run):
            break
        left = min(SPAN, len(run) - at)
        run.rotate(-at)
        kept: list[Message] = []
        for _ in range(left):
            message = run.popleft()
            while wanted < len(positions) and positions[wanted] < message.position:
                wanted += 1
            if wanted < len(positions) and positions[wanted] == message.position:
                taken.append(message)
                wanted += 1
            else:
                kept.append(message)
                if wanted == len(positions):
                    break
        run.extendleft(reversed(kept))
        run.rotate(at)
    return taken


def put_into_run(run: deque[Message], message: Message) -> None:
    """Insert a message at its place."""
    run.insert(find(run, message.position), message)


def take_from_heap(heap: list[tuple[int, Message]], positions: Collection[int]) -> list[Message]:
    """Remove the messages with these positions from a heap of positions and messages."""
    wanted = frozenset(positions)
    taken = [message for position, message in heap if position in wanted]
    if taken:
        heap[:] = [entry for entry in heap if entry[0] not in wanted]
        heapify(heap)
    return taken


def parted(heap: Iterable[tuple[int, Message]]) -> list[tuple[int, Message]]:
    """Return a heap with copies in the place of messages that channels still have: the verdicts on
    those count no more."""
    return [
        (position, message if message.holder is NO_HOLDER else without_holder(message))
        for position, message in heap
    ]


def without_holder(message: Message) -> Message:
    """Return a copy of a message that no channel has."""
    return msgspec.structs.replace(message, holder=NO_HOLDER)


def in_order(messages: Iterable[Message]) -> list[Message]:
    return sorted(messages, key=lambda message: message.position)
