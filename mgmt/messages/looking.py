"""Finds messages in a queue by place and filter, and changes neither them nor the queue.

One call looks at a bounded number of messages and says where to go on. So a search through millions
of messages takes many calls: the caller sees the progress, and stops by not calling again. Another
node may become the leader of the queue in between.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from warren.core.backing.backing_queue import MirroredLevel
from warren.core.messages.message import PAGED_OUT, Message
from warren.core.messages.message_filter import MessageState, Subject, Test
from warren.core.node import Node
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.retention import Retention
from warren.mgmt.http.slices import Breather, first_sorted

Source: TypeAlias = LocalQueue | Retention
"""What a search reads: the messages of a queue, or those that it has retained."""

PEEK_COUNT = 64
PEEK_BYTES = 256 << 10
"""Messages, and octets, that are read from a queue at once, in a part of a slice."""

SCAN_S = 1.0
"""How long one call looks at messages. People wait for it, and other nodes give up after 5 s."""

SCAN_COUNT = 100_000
"""The most messages looked at in one call."""

UNACKED_MAX = 20_000
"""If more messages than this are not ready, only ready ones are looked at. The others are listed in
one turn of the loop, because each turn changes them; that takes a few milliseconds."""

FOUND_BYTES = 8 << 20
"""Octets of bodies and headers at which one call ends: its whole answer is in memory."""


class QueuePlace(NamedTuple):
    """Where a message stands in its queue."""

    level: int
    position: int

    def text(self, levels: int) -> str:
        """The place as it is shown: the position, after the level if there are several."""
        return f"{self.level}.{self.position}" if levels > 1 else str(self.position)


def parse_place(text: str, levels: int) -> QueuePlace:
    """Read what `QueuePlace.text` has made. Raises ValueError for any other text."""
    level, dot, position = text.rpartition(".")
    if bool(dot) is not (levels > 1):
        raise ValueError(text)
    for number in (level or "0", position):
        if not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise ValueError(text)
    place = QueuePlace(int(level or 0), int(position))
    if place.level >= levels:
        raise ValueError(text)
    return place


@dataclass(frozen=True)
class Search:
    """Look for up to `limit` messages that pass the test, from the place `start` on.

    `ends` has a position for each level, at which a search of the oldest first ends; None means the
    end of the queue at that moment. Without `unacked` the messages that clients hold are left out.
    """

    test: Test
    limit: int
    start: QueuePlace | None = None
    newest_first: bool = False
    ends: Sequence[int] | None = None
    unacked: bool = True


class FoundMessages(NamedTuple):
    place: QueuePlace
    message: Message
    state: MessageState


class Looked(NamedTuple):
    """What one call has found, how many messages it looked at, and the place at which the next call
    goes on: None at the end of the queue."""

    found: list[FoundMessages]
    looked_at: int
    next: QueuePlace | None


class _Held(NamedTuple):
    """A message that is not ready: a client has it, or it waits."""

    position: int
    message: Message
    state: MessageState


async def look(node: Node, queue: Source, search: Search) -> Looked:
    """Make one call of a search. Raises `FilterTooSlow`."""
    levels = queue.levels
    held: list[list[_Held]] = [[] for _ in levels]
    # `unacked` of a stream is 0: messages that its readers have are still in the stream.
    unacked = queue.unacked if search.unacked else 0
    if isinstance(queue, LocalQueue) and 0 < unacked + queue.waiting <= UNACKED_MAX:
        held = await _held(
            queue,
            partial(node.unacked_of, queue) if unacked else queue.waiting_messages,
            len(levels),
        )
    found: list[FoundMessages] = []
    looked_at = octets = 0
    deadline = time.monotonic() + SCAN_S
    breather = Breather()
    async for chunk in _chunks(queue, held, search, breather):
        for place, message, state in chunk:
            full = len(found) >= search.limit or octets >= FOUND_BYTES
            if full or looked_at >= SCAN_COUNT or (time.monotonic() > deadline and looked_at):
                return Looked(found, looked_at, place)
            looked_at += 1
            whole = _whole(queue, message)
            if whole is None:
                continue
            if search.test(Subject(whole, state, node.codec, node.clock.wall_time())):
                found.append(FoundMessages(place, whole, state))
                octets += len(whole.body) + len(whole.envelope.header)
            # A filter may decode the headers, which takes 10 ms if they are large.
            await breather.breathe()
            if queue.deleted:
                return Looked(found, looked_at, None)
    return Looked(found, looked_at, None)


def _whole(queue: Source, message: Message) -> Message | None:
    """The message with its body; None if the body is lost."""
    if message.body is not PAGED_OUT:
        return message
    loaded = queue.backing.load((message,))
    return loaded[0] if loaded else None


def leaves_out_unacked(queue: Source) -> bool:
    """Whether only ready messages are looked at, because more than `UNACKED_MAX` are not ready."""
    return queue.unacked + queue.waiting > UNACKED_MAX


async def _held(
    queue: LocalQueue, not_ready: Callable[[], Iterable[Message]], levels: int
) -> list[list[_Held]]:
    """The messages of each level that are `not_ready`, by position."""
    held: list[list[_Held]] = [[] for _ in range(levels)]
    breather = Breather()
    await breather.breathe()
    waiting = queue.waiting_messages()
    for message in not_ready():
        level = min(message.envelope.priority, levels - 1)
        state = MessageState.WAITING if message in waiting else MessageState.UNACKED
        if message not in queue.in_hand:
            held[level].append(_Held(message.position, message, state))
    return [
        await first_sorted(one, lambda held: held.position, reverse=False, count=len(one))
        for one in held
    ]


async def _chunks(
    queue: Source, held: Sequence[list[_Held]], search: Search, breather: Breather
) -> AsyncIterator[list[FoundMessages]]:
    """The messages of the queue in order, in chunks, read in slices of time."""
    numbers = list(range(len(queue.levels)))
    if not search.newest_first:
        numbers.reverse()
    start = search.start
    if start is not None:
        del numbers[: numbers.index(start.level)]
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
) -> AsyncIterator[list[FoundMessages]]:
    left = [one for one in held if one.position >= start]
    while start < end and not queue.deleted:
        # Look the level up each time: a queue that gets its first mirror replaces it.
        peeked = queue.levels[number].peek(start, PEEK_COUNT, PEEK_BYTES)
        start = peeked.next_position
        ready = [message for message in peeked.messages if message.position < end]
        count = next((n for n, one in enumerate(left) if one.position >= start), len(left))
        yield _merged(number, ready, left[:count])
        del left[:count]


async def _newest(
    queue: Source, number: int, held: Sequence[_Held], last: int | None
) -> AsyncIterator[list[FoundMessages]]:
    """Queues are read forwards only. So this reads one range of positions after the other, from the
    end on, each with one chunk of messages at most. Gaps between positions may be wide."""
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
    """The positions of ready messages; stops when there are more than `PEEK_COUNT`."""
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


def _merged(level: int, ready: Sequence[Message], held: Sequence[_Held]) -> list[FoundMessages]:
    found = [
        FoundMessages(QueuePlace(level, one.position), _copy(one), MessageState.READY)
        for one in ready
    ]
    if held:
        found += [
            FoundMessages(QueuePlace(level, one.position), one.message, one.state) for one in held
        ]
        found.sort(key=lambda one: one.place)
    return found


def _copy(message: Message) -> Message:
    """A ready message as it is now: its queue may page the body out while the search goes on."""
    return Message(
        message.envelope, message.body, message.position, message.expires_at, message.redelivered
    )
