"""Finds messages in a queue by place and filter; they and the queue stay as they are.

One call looks at a bounded number of messages and says where to go on. So a search through millions
of messages is many calls: whoever asks sees the progress, and stops by not asking again; what leads
the queue may change in between.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from warren.core.backing.backing_queue import MirroredLevel
from warren.core.messages.message import PAGED_OUT, Message
from warren.core.messages.message_filter import MessageState, Subject, Test
from warren.core.node import Node
from warren.core.queues.queue import Queue
from warren.core.queues.retention import Retention
from warren.mgmt.http.slices import Breather, first_sorted

Source: TypeAlias = Queue | Retention
"""What is looked at: the messages of a queue, or those that it has retained."""

PEEK_COUNT = 64
PEEK_BYTES = 256 << 10
"""Messages, and octets, that are read from a queue at once: a part of a slice."""

SCAN_S = 1.0
"""How long one call looks at messages. People wait for it, and other nodes wait five seconds."""

SCAN_COUNT = 100_000
"""Messages looked at in one call."""

UNACKED_MAX = 20_000
"""Unacknowledged messages of a queue that are looked at. All of them are looked up at once, for
they change from one turn of the loop to the next: a few milliseconds."""

FOUND_BYTES = 8 << 20
"""Octets of bodies that one call finds; their answer is in memory as a whole."""


class Place(NamedTuple):
    """Where a message stands in its queue."""

    level: int
    position: int

    def text(self, levels: int) -> str:
        """As it is shown: the position, behind the level where there are several."""
        return f"{self.level}.{self.position}" if levels > 1 else str(self.position)


def parse_place(text: str, levels: int) -> Place:
    """Raises ValueError unless `text` is what `Place.text` makes."""
    level, dot, position = text.rpartition(".")
    if bool(dot) is not (levels > 1):
        raise ValueError(text)
    for number in (level or "0", position):
        if not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise ValueError(text)
    place = Place(int(level or 0), int(position))
    if place.level >= levels:
        raise ValueError(text)
    return place


@dataclass(frozen=True)
class Search:
    """What is looked for: up to `limit` messages that pass the test, from a place on.

    `ends` are the positions of each level at which a search of the oldest first ends; None is the
    end of the queue, wherever that is by then. Without `unacked` only ready messages are looked at.
    """

    test: Test
    limit: int
    start: Place | None = None
    newest_first: bool = False
    ends: Sequence[int] | None = None
    unacked: bool = True


class Found(NamedTuple):
    place: Place
    message: Message
    state: MessageState


class Looked(NamedTuple):
    """What one call has found, how many messages it looked at, and where the next one goes on;
    None at the end of the queue."""

    found: list[Found]
    looked_at: int
    next: Place | None


class _Held(NamedTuple):
    """A message that is not ready."""

    position: int
    message: Message
    state: MessageState


async def look(node: Node, queue: Source, search: Search) -> Looked:
    """Raises `FilterTooSlow`."""
    levels = queue.levels
    held: list[list[_Held]] = [[] for _ in levels]
    # Of a stream `unacked` is 0: what its readers have is looked at where it is, in the stream.
    is_held = queue.unacked or queue.waiting
    if search.unacked and is_held and isinstance(queue, Queue) and not leaves_out_unacked(queue):
        held = await _held(node, queue, len(levels))
    found: list[Found] = []
    looked_at = octets = 0
    deadline = time.monotonic() + SCAN_S
    async for chunk in _chunks(queue, held, search):
        for place, message, state in chunk:
            full = len(found) >= search.limit or octets >= FOUND_BYTES
            if full or looked_at >= SCAN_COUNT or (time.monotonic() > deadline and looked_at):
                return Looked(found, looked_at, place)
            looked_at += 1
            whole = _whole(queue, message)
            if whole is None:
                continue
            if search.test(Subject(whole, state, node.codec, node.clock.wall_time())):
                found.append(Found(place, whole, state))
                octets += len(whole.body)
    return Looked(found, looked_at, None)


def _whole(queue: Source, message: Message) -> Message | None:
    """The message with its body; None if that is lost."""
    if message.body is not PAGED_OUT:
        return message
    loaded = queue.backing.load((message,))
    return loaded[0] if loaded else None


def leaves_out_unacked(queue: Source) -> bool:
    """Whether so many messages are unacknowledged, or wait, that only the ready ones are looked
    at."""
    return queue.unacked + queue.waiting > UNACKED_MAX


async def _held(node: Node, queue: Queue, levels: int) -> list[list[_Held]]:
    """The messages of each level that are not ready, by position."""
    held: list[list[_Held]] = [[] for _ in range(levels)]
    breather = Breather()
    await breather.breathe()
    waiting = queue.waiting_messages()
    for message in node.unacked_of(queue):
        level = min(message.envelope.priority, levels - 1)
        state = MessageState.WAITING if message in waiting else MessageState.UNACKED
        if message not in queue.in_hand:
            held[level].append(_Held(message.position, message, state))
    return [
        await first_sorted(one, lambda held: held.position, reverse=False, count=len(one))
        for one in held
    ]


async def _chunks(
    queue: Source, held: Sequence[list[_Held]], search: Search
) -> AsyncIterator[list[Found]]:
    """The messages of the queue in order, some at a time, in slices."""
    numbers = list(range(len(queue.levels)))
    if not search.newest_first:
        numbers.reverse()
    start = search.start
    if start is not None:
        del numbers[: numbers.index(start.level)]
    breather = Breather()
    await breather.breathe()
    for number in numbers:
        position = start.position if start is not None and start.level == number else None
        if search.newest_first:
            going = _newest(queue, number, held[number], position)
        else:
            end = queue.levels[number].next_position
            end = end if search.ends is None else min(end, search.ends[number])
            going = _oldest(queue, number, held[number], position or 0, end)
        async for chunk in going:
            yield chunk
            await breather.breathe()


async def _oldest(
    queue: Source, number: int, held: Sequence[_Held], start: int, end: int
) -> AsyncIterator[list[Found]]:
    left = [one for one in held if one.position >= start]
    while start < end and not queue.deleted:
        # The object may be another one now: a queue that gets its first mirror has another.
        peeked = queue.levels[number].peek(start, PEEK_COUNT, PEEK_BYTES)
        start = peeked.next_position
        ready = [message for message in peeked.messages if message.position < end]
        count = next((n for n, one in enumerate(left) if one.position >= start), len(left))
        yield _merged(number, ready, left[:count])
        del left[:count]


async def _newest(
    queue: Source, number: int, held: Sequence[_Held], last: int | None
) -> AsyncIterator[list[Found]]:
    """Queues are read forwards: this looks at one range of positions after the other, which begin
    at the end and have messages for one chunk at most. Gaps between positions may be wide."""
    level = queue.levels[number]
    end = level.next_position if last is None else min(last + 1, level.next_position)
    left = [one for one in held if one.position < end]
    width = PEEK_COUNT
    while end > 0 and not queue.deleted:
        level = queue.levels[number]
        start = max(0, end - width)
        positions = _positions(level, start, end)
        if len(positions) > PEEK_COUNT and width > 1:
            width //= 2
            continue
        messages = _peeked(level, start, end) if positions else []
        count = next((n for n, one in enumerate(left) if one.position >= start), len(left))
        yield _merged(number, messages, left[count:])[::-1]
        del left[count:]
        width = PEEK_COUNT if positions else 2 * width
        end = start


def _positions(level: MirroredLevel, start: int, end: int) -> list[int]:
    """More than `PEEK_COUNT` if there are more."""
    positions: list[int] = []
    while start < end and len(positions) <= PEEK_COUNT:
        listed = level.list_positions(start, end, PEEK_COUNT + 1)
        positions += listed.positions
        start = listed.next_position
    return positions


def _peeked(level: MirroredLevel, start: int, end: int) -> list[Message]:
    messages: list[Message] = []
    while start < end:
        peeked = level.peek(start, PEEK_COUNT, PEEK_BYTES)
        messages += [message for message in peeked.messages if message.position < end]
        start = peeked.next_position
    return messages


def _merged(level: int, ready: Sequence[Message], held: Sequence[_Held]) -> list[Found]:
    found = [Found(Place(level, one.position), one, MessageState.READY) for one in ready]
    if held:
        found += [Found(Place(level, one.position), one.message, one.state) for one in held]
        found.sort(key=lambda one: one.place)
    return found
