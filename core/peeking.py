"""Looking at ready messages in memory without taking them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from warren.core.backing_queue import Listed, Peeked
from warren.core.message import Message


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
    for message in _in_order(returned, runs, start):
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
    for message in _in_order(returned, runs, start):
        if message.position >= end:
            break
        if len(positions) >= count_max:
            return Listed(positions, message.position, safe)
        positions.append(message.position)
        safe = safe and message.envelope.persistent
    return Listed(positions, end, safe)


def _in_order(
    returned: Iterable[tuple[int, Message]], runs: Sequence[Sequence[Message]], start: int
) -> Iterator[Message]:
    back = [entry for entry in returned if entry[0] >= start]
    back.sort(key=lambda entry: entry[0])
    for _, message in back:
        yield message
    for run in runs:
        first = bisect_left(run, start, key=lambda message: message.position)
        # By index: a deque finds its middle sixty times faster than by going there.
        for index in range(first, len(run)):
            yield run[index]
