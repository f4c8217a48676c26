"""Looking at ready messages in memory without taking them."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import islice

from warren.core.backing.backing_queue import Listed, Peeked
from warren.core.messages.message import Message

FAR = 4096
"""A deque finds a place at once that is nearer than this to one of its ends."""

AHEAD_COUNT = 1024
AHEAD_BYTES = 1 << 20
"""Messages found at once in the middle of a long deque, for a reader that goes on from there."""

READERS = 2
"""So many readers of a queue at the same time need not go to its middle for each look."""


class Ahead:
    """Messages that were found in the middle of the runs of one queue, for readers that go on from
    there.

    Messages only leave a run at its ends, and positions are never used again: of what was found,
    everything between the ends of the run is still there, and nothing else is between. A queue that
    takes messages from the middle, or puts them there, forgets what was found.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: deque[tuple[int, list[Message]]] = deque(maxlen=READERS)

    def known(self, run: Sequence[Message], start: int) -> list[Message]:
        """Return the messages from position `start` on that were found already."""
        if not run:
            return []
        first, last = run[0].position, run[-1].position
        for begin, found in self._found:
            if begin <= start <= found[-1].position:
                return [m for m in found if m.position >= start and first <= m.position <= last]
        return []

    def look(self, run: deque[Message], start: int, at: int) -> list[Message]:
        """Return and note messages from this place in the run on, where position `start` is."""
        found = _turned(run, at, min(AHEAD_COUNT, len(run) - at))
        octets = 0
        for count, message in enumerate(found, 1):
            octets += len(message.body)
            if octets >= AHEAD_BYTES:
                del found[count:]
                break
        self._found.append((start, found))
        return found


def first_positions(there: Collection[int], start: int, end: int, count: int) -> list[int]:
    """Return the lowest positions of a set or dict from `start` on, up to `end`: at most `count`.

    Positions are mostly next to each other. So it tries one after the other, and only looks at all
    of them when that has taken as many steps.
    """
    found: list[int] = []
    for position in range(start, min(end, start + len(there))):
        if position in there:
            found.append(position)
            if len(found) == count:
                return found
    if end <= start + len(there):
        return found
    return nsmallest(count, [position for position in there if start <= position < end])


def peek(
    returned: Iterable[tuple[int, Message]],
    runs: Sequence[Sequence[Message]],
    start: int,
    end: int,
    count_max: int,
    bytes_max: int,
    readable: Callable[[Message], Message | None] = lambda message: message,
    ahead: Ahead | None = None,
) -> Peeked:
    """The first messages from position `start` on, up to `end`, from a heap and from runs.

    `returned` are in any order, all of them before those of the runs, which are in order.
    `readable` gives a message with its body, or None when that is lost. `ahead` is for those who
    will ask for the next ones.
    """
    messages: list[Message] = []
    octets = 0
    for message in _in_order(returned, runs, start, count_max + 1, ahead):
        if message.position >= end:
            break
        if messages and (len(messages) >= count_max or octets >= bytes_max):
            return Peeked(messages, message.position)
        whole = readable(message)
        if whole is not None:
            messages.append(whole)
            octets += len(whole.body)
    return Peeked(messages, end)


def list_positions(
    returned: Iterable[tuple[int, Message]],
    runs: Sequence[Sequence[Message]],
    start: int,
    end: int,
    count_max: int,
    durable: bool,
) -> Listed:
    """Return the positions of the messages that `peek` would find."""
    positions: list[int] = []
    safe = durable
    for message in _in_order(returned, runs, start, count_max + 1):
        if message.position >= end:
            break
        if len(positions) >= count_max:
            return Listed(positions, message.position, safe)
        positions.append(message.position)
        safe = safe and message.envelope.persistent
    return Listed(positions, end, safe)


def _in_order(
    returned: Iterable[tuple[int, Message]],
    runs: Sequence[Sequence[Message]],
    start: int,
    count: int,
    ahead: Ahead | None = None,
) -> Iterator[Message]:
    """Yield messages from position `start` on, looking up `count` at a time."""
    back = [entry for entry in returned if entry[0] >= start]
    back.sort(key=lambda entry: entry[0])
    for _, message in back:
        yield message
    for run in runs:
        wanted = start
        if ahead is not None:
            known = ahead.known(run, start)
            yield from known
            wanted = known[-1].position + 1 if known else start
        at = find(run, wanted)
        while some := _some(run, wanted, at, count, ahead):
            yield from some
            at += len(some)
            wanted = some[-1].position + 1


def find(run: Sequence[Message], start: int) -> int:
    """Return the place in the run of the first message from this position on."""
    if not run:
        return 0
    # Positions mostly have no gaps, and every look into a long deque costs.
    guess = start - run[0].position
    if guess <= 0:
        return 0
    if guess < len(run) and run[guess].position == start:
        return guess
    return bisect_left(run, start, hi=min(guess, len(run)), key=lambda message: message.position)


def _some(
    run: Sequence[Message], start: int, at: int, count: int, ahead: Ahead | None
) -> list[Message]:
    """Return `count` messages from this place in the run on, or as many as there are, or some
    more."""
    count = min(count, len(run) - at)
    if count > 0 and isinstance(run, deque) and FAR < at < len(run) - FAR:
        return _turned(run, at, count) if ahead is None else ahead.look(run, start, at)
    return [run[index] for index in range(at, at + count)]


def _turned(run: deque[Message], at: int, count: int) -> list[Message]:
    """Return messages from the middle of a deque. Each look there goes through the deque; turning
    it there and back goes through it twice for all of them."""
    run.rotate(-at)
    found = list(islice(run, count))
    run.rotate(at)
    return found
