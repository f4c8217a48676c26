"""Moves the messages of one queue: consumed, published, confirmed, acknowledged; in that order.

What is taken of the queue, and how its consumer is to ask for it, is a `Portion`.

Messages are published to the default exchange with the name of the queue, mandatory, with content
header and body unchanged. A message that has copies in other queues (by the headers CC and BCC)
would be copied again there, so it goes through a fanout exchange that is bound to this queue only.

The move ends when its portion has come, when the queue is empty, when it is stopped, or when there
is an obstacle. In every case the messages that the target confirmed are acknowledged, as long as
the source can be reached; the rest go back to their places in the queue.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from pamqp import commands

from warren.amqp.properties import MalformedProperties, property_bytes
from warren.client.connection import ClientConnection
from warren.client.content_header import MalformedContent, header_fields
from warren.client.events import Cancelled, Delivered, PublishesConfirmed, PublishRefused
from warren.core.field import to_octets
from warren.mgmt.migrate.pair import MESSAGES, Heard, Pair, SideFailed
from warren.mgmt.migrate.window import MovedPublish, MoveWindow
from warren.mgmt.pace import Pace

PREFETCH = 500
"""Limit of messages in transit; with 1 ms between the brokers that is half a million a second."""

OCTETS_MAX = 32 << 20
"""Octets of bodies in transit, above which the source is not read from."""

ACKED_MAX = 1000
"""Acknowledged messages after which a question makes sure that the source has read the
acknowledgements."""

TICK_S = 0.2
"""How often a stop and the pace are checked while no message comes."""

SILENCE_S = 10.0
"""How long a queue that has messages may deliver none."""

CONSUMER_TAG = "warren-migrate"
COPIES = (b"CC", b"BCC")


class Moved(NamedTuple):
    """The result of one move. `reason` is the obstacle, empty if there was none."""

    messages: int
    reason: str
    doubtful: list[MovedPublish]
    """Messages that may be at both brokers, because a connection ended."""


class Terms(NamedTuple):
    """Settings for all queues of a run."""

    pace: Pace
    stop: asyncio.Event
    tell: Callable[[int], None]
    """Called with the number of further messages of this queue that were acknowledged."""
    user: str
    """The user at the target."""
    impersonates: bool
    """Whether this user may publish in the name of other users."""
    silence_s: float = SILENCE_S


class Portion(Protocol):
    """The messages of a queue that one move takes."""

    arguments: Mapping[str, object]
    """The arguments with which the consumer subscribes."""

    def came(self, delivery: Delivered) -> None:
        """Note the next message that the source delivered."""

    @property
    def is_complete(self) -> bool:
        """Whether all its messages have come. Further ones that came with them are moved, too."""

    def header(self, delivery: Delivered) -> bytes:
        """The content header for the target. Raises ValueError if the message can have none."""

    def silent(self, ready: int, silence_s: float) -> str:
        """Why a queue with `ready` messages may have delivered none for `silence_s` seconds."""


class FirstMessages:
    """The first `count` messages of a queue, unchanged."""

    arguments: Mapping[str, object] = MappingProxyType({})

    def __init__(self, count: int) -> None:
        self._missing = count

    def came(self, delivery: Delivered) -> None:
        self._missing -= 1

    @property
    def is_complete(self) -> bool:
        return self._missing <= 0

    def header(self, delivery: Delivered) -> bytes:
        return delivery.header

    def silent(self, ready: int, silence_s: float) -> str:
        return (
            f"the queue has {ready} messages and gave none for {silence_s:.0f} s: another"
            " consumer may be its single active one"
        )


async def move_queue(pair: Pair, queue: str, portion: Portion, terms: Terms) -> Moved:
    """Move messages of a queue. Raises nothing for faults of the brokers."""
    move = _QueueMove(pair, queue, portion, terms)
    failed: SideFailed | None = None
    try:
        await move.begin()
        await move.carry_on()
    except SideFailed as failure:
        failed = failure
    return await move.finish(failed)


class _QueueMove:
    def __init__(self, pair: Pair, queue: str, portion: Portion, terms: Terms) -> None:
        self._pair = pair
        self._queue = queue
        self._queue_octets = to_octets(queue)
        self._portion = portion
        self._terms = terms
        self._window = MoveWindow()
        self._arrived: deque[Delivered] = deque()
        self._arrived_octets = 0
        self._consuming = False
        self._in_the_way = ""
        self._moved = 0
        self._detour: str | None = None
        self._silent_since: float | None = None
        self._stopped_at: float | None = None
        self._source_waits = False
        self._loop = asyncio.get_running_loop()

    async def begin(self) -> None:
        pair = self._pair
        pair.inbox.take()
        await pair.open_channel(pair.target, MESSAGES, confirms=True)
        await pair.open_channel(pair.source, MESSAGES)
        await self._ask_source(commands.Basic.Qos, prefetch_count=PREFETCH)
        await self._ask_source(commands.Basic.Consume, queue=self._queue, consumer_tag=CONSUMER_TAG,
                               arguments={**self._portion.arguments})  # fmt: skip
        self._consuming = True

    async def carry_on(self) -> None:
        """Move messages until nothing is left to do or there is an obstacle."""
        while True:
            for heard in self._pair.inbox.take():
                self._hear(heard)
            if self._terms.stop.is_set() or self._in_the_way:
                await self._stop_consuming()
                self._arrived.clear()
                self._arrived_octets = 0
                if self._waited_long_for_confirms():
                    break
            await self._publish()
            self._throttle()
            self._acknowledge()
            if self._window.acked >= ACKED_MAX:
                await self._make_sure()
            if self._portion.is_complete:
                await self._stop_consuming()
            if not self._pair.inbox.is_empty:
                continue
            if not self._arrived and not self._window.awaits_confirms:
                if not self._consuming or await self._is_empty():
                    break
            await self._pair.inbox.wait(self._wait_s())
        await self._stop_consuming()
        await self._make_sure()

    async def finish(self, failed: SideFailed | None) -> Moved:
        """Acknowledge the messages that can be, and return the rest to the source."""
        pair = self._pair
        if failed is not None:
            self._hear_last_confirms()
        try:
            if pair.source.is_open:
                self._acknowledge()
                await self._make_sure()
                await pair.close_channel(pair.source, MESSAGES)
        except SideFailed as failure:
            failed = failed or failure
        killed = failed is not None and failed.role == "source" and failed.unreachable
        doubtful = self._window.doubtful(source_forgets=killed)
        try:
            if pair.target.is_open:
                if self._detour is not None:
                    await self._delete_detour()
                await pair.close_channel(pair.target, MESSAGES)
        except SideFailed as failure:
            failed = failed or failure
        reason = self._in_the_way if failed is None else failed.text
        return Moved(self._moved, reason, doubtful)

    # Events

    def _hear(self, heard: Heard) -> None:
        event = heard.event
        failure = self._pair.ended(heard)
        if failure is not None:
            raise failure
        if isinstance(event, Delivered):
            self._arrived.append(event)
            self._arrived_octets += len(event.body)
            self._portion.came(event)
            self._silent_since = None
        elif isinstance(event, PublishesConfirmed):
            self._window.confirmed(event.tags)
        elif isinstance(event, PublishRefused):
            self._window.refused(event.tag)
            self._in_the_way = f"the target refused a message: {event.reason}"
        elif isinstance(event, Cancelled):
            self._consuming = False
            self._in_the_way = "the source ended the consumer: the queue is gone or has moved"

    def _hear_last_confirms(self) -> None:
        for heard in self._pair.inbox.take():
            if isinstance(heard.event, PublishesConfirmed):
                self._window.confirmed(heard.event.tags)
            elif isinstance(heard.event, PublishRefused):
                self._window.refused(heard.event.tag)

    # Actions

    async def _publish(self) -> None:
        terms = self._terms
        target = self._pair.target
        while self._arrived and target.may_publish and terms.pace.allows(self._loop.time()):
            message = self._arrived[0]
            if not self._may_name_user(message.header):
                # Messages behind it must not overtake it.
                break
            exchange = b""
            if _has_copies(message.header):
                exchange = (await self._open_detour()).encode()
            self._arrived.popleft()
            self._arrived_octets -= len(message.body)
            try:
                header = self._portion.header(message)
                tag = target.publish(
                    MESSAGES, exchange, self._queue_octets, header, message.body, mandatory=True
                )
            except ValueError as error:
                self._in_the_way = f"a message does not fit the target: {error}"
                break
            entry = MovedPublish(message.delivery_tag, message.header, len(message.body))
            self._window.published(tag, entry)
            terms.pace.used(self._loop.time())

    def _acknowledge(self) -> None:
        before = self._window.acked
        for ack in self._window.take_acks():
            self._pair.source.ack(MESSAGES, ack.delivery_tag, multiple=ack.multiple)
        count = self._window.acked - before
        if count:
            self._moved += count
            self._terms.tell(count)

    async def _make_sure(self) -> None:
        """On return the source has read every acknowledgement."""
        acked = self._window.acked
        if acked:
            await self._ask_source(commands.Basic.Qos, prefetch_count=PREFETCH)
            self._window.gone(acked)

    async def _stop_consuming(self) -> None:
        """End the consumer. On return all messages delivered before are in the inbox."""
        if self._consuming:
            self._consuming = False
            await self._ask_source(commands.Basic.Cancel, consumer_tag=CONSUMER_TAG)

    async def _is_empty(self) -> bool:
        """Whether the queue delivers nothing more: it is empty, or has been silent for too long."""
        pair = self._pair
        self._listen_to_source()
        ready = await pair.count_on(pair.source, MESSAGES, self._queue)
        if not pair.inbox.is_empty:
            return False
        now = self._loop.time()
        if self._silent_since is None:
            self._silent_since = now
        silence_s = now - self._silent_since
        if ready and silence_s < self._terms.silence_s:
            return False
        if ready:
            self._in_the_way = self._portion.silent(ready, silence_s)
        return True

    def _throttle(self) -> None:
        """Stop reading from the source while too many octets are in transit."""
        if self._arrived_octets + self._window.unconfirmed_octets <= OCTETS_MAX:
            self._listen_to_source()
        elif not self._source_waits:
            self._source_waits = True
            self._pair.source.pause_reading()

    def _listen_to_source(self) -> None:
        if self._source_waits:
            self._source_waits = False
            self._pair.source.resume_reading()

    def _waited_long_for_confirms(self) -> bool:
        """Whether a stop has waited too long: a blocked target may never confirm the last ones."""
        now = self._loop.time()
        if self._stopped_at is None:
            self._stopped_at = now
        return now - self._stopped_at >= self._terms.silence_s

    def _wait_s(self) -> float:
        if not self._arrived:
            return TICK_S
        return min(TICK_S, max(self._terms.pace.wait_s(self._loop.time()), 0.001))

    async def _ask_source(self, kind: type, **arguments: object) -> None:
        self._listen_to_source()
        await self._pair.ask(self._pair.source, MESSAGES, kind, **arguments)

    # Messages that need care

    def _may_name_user(self, header: bytes) -> bool:
        """Whether the message may be published: a broker refuses one that names another user."""
        named = message_property(header, "user_id")
        if named is None or self._terms.impersonates or named == self._terms.user:
            return True
        self._in_the_way = (
            f"a message names its publisher, '{named}', and the target takes that from a user"
            f" with the tag impersonator only: give '{self._terms.user}' this tag there"
        )
        return False

    async def _open_detour(self) -> str:
        """The exchange that leads to this queue, whatever keys a message has."""
        if self._detour is None:
            name = f"warren-migrate-{secrets.token_hex(8)}"
            target = self._pair.target
            await self._pair.ask(target, MESSAGES, commands.Exchange.Declare,
                                 exchange=name, exchange_type="fanout",
                                 auto_delete=True)  # fmt: skip
            self._detour = name
            await self._pair.ask(target, MESSAGES, commands.Queue.Bind,
                                 queue=self._queue, exchange=name)  # fmt: skip
        return self._detour

    async def _delete_detour(self) -> None:
        target: ClientConnection = self._pair.target
        await self._pair.open_channel(target, MESSAGES, confirms=True)
        await self._pair.ask(target, MESSAGES, commands.Exchange.Delete, exchange=self._detour)


def message_property(header: bytes, name: str) -> str | None:
    """A text property; None if the message does not have it, or cannot be read."""
    try:
        octets = property_bytes(header, name)
    except MalformedProperties:
        return None
    return None if octets is None else octets.decode("utf-8", "replace")


def _has_copies(header: bytes) -> bool:
    if b"CC" not in header:
        return False
    try:
        fields = header_fields(header)
    except MalformedContent:
        return False
    return any(fields.get(name) is not None for name in COPIES)
