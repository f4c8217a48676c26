"""Looking at ready messages in memory without taking them."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from warren.core.backing_queue import Listed, Peeked
from warren.core.message import Message

FAR = 4096
"""From either end of a deque: nearer, it finds a place at once."""


def peek(
    returned: Iterable[tuple[int, Message]],
    runs: Sequence[Sequence[Message]],
    start: int,
    end: int,
    count_max: int,
    bytes_max: int,
    readable: Callable[[Message], Message | None] = lambda message: message,
) -> Peeked:
    """The first messages from position `start` on, up to `end`, from a heap and from runs.

    `returned` are in any order, all of them before those of the runs, which are in order.
    `readable` gives a message with its body, or None when that is lost.
    """
    messages: list[Message] = []
    octets = 0
    for message in _in_order(returned, runs, start, count_max + 1):
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
    """The positions of what `peek` would find."""
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
) -> Iterator[Message]:
    """Messages from position `start` on, looked up so many at a time."""
    back = [entry for entry in returned if entry[0] >= start]
    back.sort(key=lambda entry: entry[0])
    for _, message in back:
        yield message
    for run in runs:
        at = _find(run, start)
        while some := _some(run, at, count):
            yield from some
            at += len(some)


def _find(run: Sequence[Message], start: int) -> int:
    """Where the first message from this position on is."""
    if not run:
        return 0
    # Positions mostly have no gaps, and every look into a long deque costs.
    guess = start - run[0].position
    if guess <= 0:
        return 0
    if guess < len(run) and run[guess].position == start:
        return guess
    return bisect_left(run, start, hi=min(guess, len(run)), key=lambda message: message.position)


def _some(run: Sequence[Message], first: int, count: int) -> list[Message]:
    """So many messages from this place in the run on, or as many as there are."""
    count = min(count, len(run) - first)
    if count > 0 and isinstance(run, deque) and FAR < first < len(run) - FAR:
        # A deque finds its middle by going there, each time; to turn it there and back is going
        # twice.
        run.rotate(-first)
        some = list(islice(run, count))
        run.rotate(first)
        return some
    return [run[index] for index in range(first, first + count)]
