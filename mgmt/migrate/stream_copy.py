"""Copies what a stream has: reading does not empty it, so the copies say how far they reach.

A copy has one more header, `x-migrated-offset`: the offset that its original has at the source. The
next run looks for the last copy at the target, compares it with its original and goes on behind
it, so nothing is copied twice, whatever ended the run before. A stream at the target whose messages
are no copies, or copies of another stream, is left alone: what is older would come behind them. So
is one that lacks a copy before the last one, because it refused a message and took later ones that
were on their way. Those are `PREFETCH` at most, so the last copies tell.

Of two runs at once each would copy everything. So a run declares an exclusive queue at the target
for each stream that it copies. The target deletes it when it has read everything from a connection
that ended, so the next run also waits for what a killed one had sent.

Message counts of streams are up to five seconds old at RabbitMQ; offsets are exact, so ends are
found by reading.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pamqp import commands

from warren.client.connection import ClientConnection
from warren.client.content_header import (
    MalformedContent,
    header_fields,
    long_number,
    long_value,
    table_octets,
    with_properties,
)
from warren.client.events import Delivered
from warren.core.field import to_octets
from warren.mgmt.migrate.pair import LOOKS, QUESTIONS, Pair, SideFailed
from warren.mgmt.migrate.queue_move import Moved, Terms, message_property, move_queue

OFFSET = "x-stream-offset"
"""The consumer's argument, and the header in which a stream tells the offset of a message."""

COPIED = b"x-migrated-offset"

RESOURCE_LOCKED = 405
"""The code with which a broker refuses an exclusive queue of another connection."""

PREFETCH = 500
TAG = "warren-migrate-look"

EMPTY_S = 1.0
"""How long a stream that should be empty may take to deliver something after all."""

PAUSE_S = 0.3
"""After so long without a message a look at the end of a stream asks whether that was all."""

LAST_S = 2.0
"""When a look at the end of a stream, to which publishers may add all the time, asks for it."""

BACK_FIRST = 1000
BACK_TIMES = 10
"""The search for the last copy begins this number of messages before the end of the target's
stream, then this many times as far before it."""


class NotContinued(Exception):
    """The target's stream cannot be read, or does not end with a copy of this stream."""


class Copy(NamedTuple):
    """A message at the target that is a copy."""

    original: int
    """Its offset at the source."""
    body: bytes
    message_id: str | None


class StreamPortion:
    """The messages of a stream from one offset to another, both included; a `Portion`."""

    def __init__(self, first: int, last: int) -> None:
        self.arguments: Mapping[str, object] = {OFFSET: first}
        self._last = last
        self._complete = False
        self._sent = 0
        self._sent_last: Copy | None = None

    def came(self, delivery: Delivered) -> None:
        offset = offset_of(delivery.header)
        self._complete = self._complete or offset is None or offset >= self._last

    @property
    def is_complete(self) -> bool:
        return self._complete

    def header(self, delivery: Delivered) -> bytes:
        offset = offset_of(delivery.header)
        if offset is None:
            raise ValueError("the source does not tell its offset")
        fields = header_fields(delivery.header).with_field(OFFSET.encode(), None)
        fields = fields.with_field(COPIED, long_value(offset))
        changed = with_properties(delivery.header, {"headers": table_octets(fields)})
        self._sent += 1
        self._sent_last = Copy(offset, delivery.body, _message_id(delivery))
        return changed

    def last_copy(self, moved: Moved) -> Copy | None:
        """The last copy of this move; None if it did not get to the end."""
        last = self._sent_last
        whole = last is not None and last.original >= self._last and moved.messages == self._sent
        return last if whole and not moved.reason else None

    def silent(self, ready: int, silence_s: float) -> str:
        return f"the stream has {ready} messages and gave none for {silence_s:.0f} s"


class Copied(NamedTuple):
    """The result of one turn. The stream was copied up to its end if there is no reason."""

    moved: Moved
    last: Copy | None
    """The last copy at the target, where it is known."""


async def copy_stream(
    pair: Pair,
    queue: str,
    terms: Terms,
    known: Copy | None,
    expect: Callable[[int], None],
) -> Copied:
    """Copy what the stream has now and the target lacks. `known` is the last copy at the target;
    without it that is looked for. `expect` is told how many messages are to be copied.

    Raises `SideFailed` while it looks for the place; what fails later is the reason of the result.
    """
    try:
        end = await _Look(pair, pair.source, queue, terms).find_end()
        if end is None:
            return Copied(Moved(0, "", []), None)
        await _claim(pair, queue, terms)
        last = known or await _last_copy(pair, queue, terms, end)
        first = await _find_next(pair, queue, terms, last, end)
    except NotContinued as obstacle:
        return Copied(Moved(0, str(obstacle), []), None)
    if first > end:
        return Copied(Moved(0, "", []), last)
    expect(end + 1 - first)
    portion = StreamPortion(first, end)
    moved = await move_queue(pair, queue, portion, terms)
    last = portion.last_copy(moved)
    reason = moved.reason or ("stopped before its end" if last is None else "")
    # Messages that were under way when the run ended are not copied twice: the next run finds
    # those that have arrived.
    return Copied(Moved(moved.messages, reason, []), last)


async def has_first(pair: Pair, queue: str, terms: Terms) -> bool:
    """Whether the target has a copy of the first message that the source has, or the source has
    none. Raises `SideFailed`."""
    original = await _Look(pair, pair.source, queue, terms).first_from(0)
    if original is None:
        return True
    copy = await _Look(pair, pair.target, queue, terms).first_from(0)
    copied = None if copy is None else _original(copy.header)
    first = offset_of(original.header)
    return copied is not None and first is not None and copied <= first


def claim_on(queue: str) -> str:
    """The name of the queue that a run makes at the target, so that no other copies this stream."""
    named = hashlib.sha256(to_octets(queue))
    return f"warren-migrate-{named.hexdigest()[:32]}"


async def _claim(pair: Pair, queue: str, terms: Terms) -> None:
    """Keep other runs off this stream as long as the connection to the target is open. Raises
    `NotContinued` if another one has it."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + terms.silence_s
    waited = False
    while True:
        try:
            await pair.open_channel(pair.target, QUESTIONS)
            await pair.ask(pair.target, QUESTIONS, commands.Queue.Declare,
                           queue=claim_on(queue), exclusive=True)  # fmt: skip
        except SideFailed as failure:
            if failure.code != RESOURCE_LOCKED:
                raise
            # The end of the channel is in the inbox, too.
            pair.inbox.take()
        else:
            if waited:
                # The last messages of the other run may not be readable yet.
                await asyncio.sleep(EMPTY_S)
            return
        if loop.time() >= ends_at or terms.stop.is_set():
            raise NotContinued("another run copies this stream: run again when that has ended")
        waited = True
        await asyncio.sleep(EMPTY_S)


async def _find_next(pair: Pair, queue: str, terms: Terms, copy: Copy | None, end: int) -> int:
    """The offset at the source of the first message behind the original of this copy. Raises
    `NotContinued`."""
    if copy is None:
        return 0
    if copy.original > end:
        raise NotContinued(
            f"the target has a copy of offset {copy.original}, and the source ends at {end}:"
            " they are not the same stream"
        )
    original = await _Look(pair, pair.source, queue, terms).first_from(copy.original)
    if original is None:
        raise NotContinued(f"the source does not deliver from offset {copy.original} on")
    offset = offset_of(original.header)
    assert offset is not None
    if offset > copy.original:
        # The source has removed the original since, as its retention says.
        return offset
    if (original.body, _message_id(original)) != (copy.body, copy.message_id):
        raise NotContinued(
            f"the message at offset {offset} is another one than its copy at the target:"
            " they are not the same stream"
        )
    return offset + 1


async def _last_copy(pair: Pair, queue: str, terms: Terms, source_end: int) -> Copy | None:
    """The last copy in the target's stream; None if it is empty. Raises `NotContinued`."""
    look = _Look(pair, pair.target, queue, terms)
    end = await look.find_end()
    if end is None:
        return None
    back = BACK_FIRST
    while len(look.originals) < PREFETCH and look.first != 0 and not look.reached_first:
        await look.read_up_to(max(0, end - back), end)
        back *= BACK_TIMES
    if look.copy is None:
        raise NotContinued(
            "the target's stream has messages that are no copies, and what is older would"
            " come behind them: delete it there and run again"
        )
    last = look.copy.original
    if last <= source_end:
        there = _Look(pair, pair.source, queue, terms)
        missing = await there.offsets(min(look.originals), last) - look.originals
        if missing:
            raise NotContinued(
                f"the target lacks a copy of offset {min(missing)}, and has one of {last}:"
                " delete the stream there and run again"
            )
    return look.copy


class _Look:
    """Reads a stream at one side, and remembers where it was and which copies it saw."""

    def __init__(self, pair: Pair, connection: ClientConnection, queue: str, terms: Terms) -> None:
        self.copy: Copy | None = None
        self.originals: set[int] = set()
        """The offsets at the source of all copies that came."""
        self.first: int | None = None
        """The lowest offset that came."""
        self.reached_first = False
        """Whether the stream has nothing before `first`."""
        self._last: int | None = None
        self._pair = pair
        self._connection = connection
        self._queue = queue
        self._silence_s = terms.silence_s

    async def find_end(self) -> int | None:
        """The offset of the last message, or of one that came while it was looked for; None for
        an empty stream. Raises `SideFailed`, and `NotContinued` if the stream is not empty and
        delivers nothing."""
        ready = await self._pair.count(self._connection, self._queue)
        patience_s = self._silence_s if ready else EMPTY_S
        await self._read("last", self._note, patience_s, PAUSE_S, LAST_S)
        if ready and self._last is None:
            role = self._pair.role(self._connection)
            raise NotContinued(
                f"the {role}'s stream has {ready} messages and gave none for {patience_s:.0f} s"
            )
        return self._last

    async def first_from(self, offset: int) -> Delivered | None:
        """The first message at this offset or behind it."""
        found: list[Delivered] = []

        def take(delivery: Delivered) -> bool:
            found.append(delivery)
            return True

        await self._read(offset, take, self._silence_s, prefetch=1)
        return found[0] if found else None

    async def offsets(self, first: int, last: int) -> set[int]:
        """The offsets between these that have messages."""
        found: set[int] = set()

        def take(delivery: Delivered) -> bool:
            offset = offset_of(delivery.header)
            if offset is not None and offset <= last:
                found.add(offset)
            return offset is None or offset >= last

        await self._read(first, take, self._silence_s, self._silence_s)
        return found

    async def read_up_to(self, first: int, last: int) -> None:
        """Look at the messages between these offsets for copies."""
        came: list[int] = []

        def take(delivery: Delivered) -> bool:
            self._note(delivery)
            offset = offset_of(delivery.header)
            came.append(last if offset is None else offset)
            return came[-1] >= last

        await self._read(first, take, self._silence_s, self._silence_s)
        self.reached_first = not came or came[0] > first

    def _note(self, delivery: Delivered) -> bool:
        offset = offset_of(delivery.header)
        if offset is not None:
            self.first = offset if self.first is None else min(self.first, offset)
            self._last = offset if self._last is None else max(self._last, offset)
        original = _original(delivery.header)
        if original is not None:
            self.originals.add(original)
            if self.copy is None or original >= self.copy.original:
                self.copy = Copy(original, delivery.body, _message_id(delivery))
        return False

    async def _read(
        self,
        begin: str | int,
        take: Callable[[Delivered], bool],
        first_s: float,
        next_s: float = 0.0,
        at_most_s: float | None = None,
        prefetch: int = PREFETCH,
    ) -> None:
        """Read until `take` returns true, or until nothing comes for so long, not even before the
        answer to a question; or, with `at_most_s`, until the broker has sent what it had when it
        was asked."""
        pair, connection = self._pair, self._connection
        loop = asyncio.get_running_loop()
        await pair.open_channel(connection, LOOKS)
        await pair.ask(connection, LOOKS, commands.Basic.Qos, prefetch_count=prefetch)
        await pair.ask(connection, LOOKS, commands.Basic.Consume, queue=self._queue,
                       consumer_tag=TAG, arguments={OFFSET: begin})  # fmt: skip
        silent_at = loop.time() + first_s
        ends_at: float | None = None
        enough = False
        asked = False
        while not enough:
            came = 0
            for heard in pair.inbox.take():
                failure = pair.ended(heard)
                if failure is not None:
                    raise failure
                event = heard.event
                if heard.of is not connection or not isinstance(event, Delivered) or enough:
                    continue
                connection.ack(LOOKS, event.delivery_tag, multiple=False)
                enough = take(event)
                came += 1
            now = loop.time()
            if came:
                silent_at = now + next_s
                if ends_at is None and at_most_s is not None:
                    ends_at = now + at_most_s
            if asked and (not came or (at_most_s is not None and came < prefetch)):
                break
            asked = False
            until = silent_at if ends_at is None else min(silent_at, ends_at)
            if now >= until:
                # The broker answers this question after the messages that it could send. So with
                # an answer and no messages the stream has no more; without an answer the broker or
                # the network stands still.
                await pair.count_on(connection, LOOKS, self._queue)
                asked, ends_at = True, None
            elif not enough:
                await pair.inbox.wait(until - now)
        await pair.close_channel(connection, LOOKS)
        pair.inbox.take()


def offset_of(header: bytes) -> int | None:
    """The offset in the header of a message that came from a stream; None if it has none."""
    return _number(header, OFFSET.encode())


def _original(header: bytes) -> int | None:
    return _number(header, COPIED) if COPIED in header else None


def _number(header: bytes, name: bytes) -> int | None:
    try:
        value = header_fields(header).get(name)
    except MalformedContent:
        return None
    return None if value is None else long_number(value)


def _message_id(delivery: Delivered) -> str | None:
    return message_property(delivery.header, "message_id")
