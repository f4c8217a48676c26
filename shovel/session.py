"""One pair of connections of a shovel: from the first login to the end of either.

The source is connected and checked first, then the destination; messages are asked for when both
are there. What becomes of a message is `transfer.py`'s; here it is put on the wire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from pamqp import commands

from warren.client.connection import ChannelFailed, Connection, Target, open_any
from warren.client.events import (
    Cancelled,
    ChannelClosed,
    Confirmed,
    ConnectionEnded,
    Delivered,
    Event,
    Refused,
)
from warren.core.log_line import log_fault
from warren.shovel.definition import QUEUE_LENGTH, AckMode, Definition, Source
from warren.shovel.marking import Marking
from warren.shovel.transfer import Ack, Transfer

log = logging.getLogger("warren.shovel")

CHANNEL = 1
NOT_FOUND = 404

REFUSED_PAUSE_S = 1.0
"""How long a message that the destination refused waits before it is published again."""


class SessionEnded(Exception):
    """The session is over before all was moved that is to be moved; the text says why."""


class Ends(NamedTuple):
    """The brokers at both ends, in the order in which they are tried."""

    source: Sequence[Target]
    destination: Sequence[Target]


class Observer(Protocol):
    """Who follows a session."""

    def counted(self, messages: int) -> None:
        """So many messages of the source queue are to be moved, as `queue-length` says."""
        ...

    def running(self, source_uri: str, dest_uri: str) -> None: ...

    def progressed(self, moved: int, pending: int, waiting_for: str) -> None:
        """So many more messages were moved, so many were delivered and are not moved."""
        ...


class Session:
    """`remaining`: how many messages are still to be moved; None: as `definition` says."""

    def __init__(
        self,
        definition: Definition,
        observer: Observer,
        *,
        remaining: int | None,
        marking: Callable[[str, str], Marking],
        wall_time: Callable[[], float],
    ) -> None:
        self._definition = definition
        self._observer = observer
        self._remaining = remaining
        self._new_marking = marking
        self._wall_time = wall_time
        self._loop = asyncio.get_running_loop()
        # From when messages are asked for.
        self._over: asyncio.Future[None] | None = None
        self._source: Connection
        self._destination: Connection
        self._marking: Marking
        self._transfer: Transfer
        self._pause: asyncio.TimerHandle | None = None
        self._reading = True
        self._refusal = ""
        self._told_moved = 0

    async def run(self, ends: Ends) -> None:
        """Move messages until all are moved that are to be moved.

        Raises `ConnectionFailed` where a broker cannot be reached, `ChannelFailed` and ValueError
        where it refuses what the shovel needs, and `SessionEnded` for what comes later.
        """
        self._source, source = await open_any(ends.source, self)
        try:
            queue = await self._open_source()
            self._destination, destination = await open_any(ends.destination, self)
            try:
                await self._open_destination()
                await self._move(queue, source.shown, destination.shown)
            finally:
                await self._destination.close()
        finally:
            if self._pause is not None:
                self._pause.cancel()
            # Acks that were written are carried out before the broker says goodbye.
            await self._source.close()

    async def _move(self, queue: str, source_uri: str, dest_uri: str) -> None:
        definition = self._definition
        self._marking = self._new_marking(source_uri, dest_uri)
        self._transfer = Transfer(
            definition.ack_mode,
            in_order=definition.destination.queue is not None,
            limit=self._remaining,
        )
        if self._transfer.done:
            return
        self._over = self._loop.create_future()
        await self._source.ask(
            CHANNEL,
            commands.Basic.Consume,
            queue=queue,
            no_ack=definition.ack_mode is AckMode.NO_ACK,
            arguments=dict(definition.source.consumer_arguments),
        )
        self._observer.running(source_uri, dest_uri)
        await self._over

    # Setting up

    async def _open_source(self) -> str:
        """Returns the queue to consume from."""
        connection, source = self._source, self._definition.source
        await connection.open_channel(CHANNEL)
        if source.queue is None:
            queue = await self._bound_queue(connection, source)
        else:
            declared = await _declare(connection, source.queue, source.queue_arguments)
            queue = source.queue
            if self._remaining is None and self._definition.delete_after == QUEUE_LENGTH:
                self._count(declared.message_count)
        if self._remaining is None and self._definition.delete_after == QUEUE_LENGTH:
            # The queue of an exchange begins empty.
            self._count(0)
        if self._definition.ack_mode is not AckMode.NO_ACK:
            await connection.ask(CHANNEL, commands.Basic.Qos, prefetch_count=self._prefetch())
        return queue

    async def _bound_queue(self, connection: Connection, source: Source) -> str:
        arguments = dict(source.queue_arguments)
        declared = await connection.ask(
            CHANNEL, commands.Queue.Declare, exclusive=True, arguments=arguments
        )
        name = str(declared.queue)
        await connection.ask(
            CHANNEL,
            commands.Queue.Bind,
            queue=name,
            exchange=source.exchange,
            routing_key=source.exchange_key,
        )
        return name

    async def _open_destination(self) -> None:
        connection, destination = self._destination, self._definition.destination
        await connection.open_channel(CHANNEL)
        if destination.queue is not None:
            await _declare(connection, destination.queue, destination.queue_arguments)
        if self._definition.ack_mode is AckMode.ON_CONFIRM:
            await connection.ask(CHANNEL, commands.Confirm.Select)

    def _count(self, messages: int) -> None:
        self._remaining = messages
        self._observer.counted(messages)

    def _prefetch(self) -> int:
        """No more than what is left to be moved: the rest is for others."""
        prefetch = self._definition.source.prefetch
        if not self._remaining:
            return prefetch
        return min(prefetch or self._remaining, self._remaining, 65_535)

    # As the user of both connections

    def received(self, connection: Connection, events: Sequence[Event]) -> None:
        """Messages of the source, and what the destination did with those it got."""
        self._carefully(lambda: self._receive(events))

    def writable(self, connection: Connection) -> None:
        self._carefully(self._pump)

    def _carefully(self, work: Callable[[], None]) -> None:
        """A fault of ours ends this session, and not the node."""
        try:
            work()
        except Exception:
            log_fault(log, "shovel_fault")
            self._fail("internal error")

    def _receive(self, events: Sequence[Event]) -> None:
        acks: list[Ack] = []
        for event in events:
            match event:
                case Delivered():
                    # Of a session that is over, what comes goes back to the source.
                    if not self._is_over:
                        self._transfer.deliver(event)
                case Confirmed():
                    acks += self._transfer.confirmed(event.tags)
                case Refused():
                    self._refusal = event.reason
                    self._transfer.refused(event.tag)
                case Cancelled():
                    self._fail("the source queue was deleted, or lost its node")
                case ChannelClosed() | ConnectionEnded():
                    self._fail(event.text)
        self._acknowledge(acks)
        self._pump()

    @property
    def _is_over(self) -> bool:
        return self._over is not None and self._over.done()

    def _fail(self, reason: str) -> None:
        over = self._over
        # Until messages are asked for, a failure is told to the question that it answers.
        if over is not None and not over.done():
            over.set_exception(SessionEnded(reason))
            # It may be over for another reason before anybody waits for it.
            over.exception()

    # Moving

    def _pump(self) -> None:
        """Publish what may be published now."""
        over = self._over
        if over is None or over.done():
            return
        transfer, destination = self._transfer, self._destination
        acks: list[Ack] = []
        try:
            while destination.may_publish:
                message = transfer.next()
                if message is None:
                    break
                acks += transfer.published(message, self._publish(message))
        except ValueError as error:
            # MalformedContent is one of these.
            self._fail(f"a message cannot be published: {error}")
        self._acknowledge(acks)
        self._measure_pause()
        self._throttle()
        self._tell()
        if transfer.done and not over.done():
            over.set_result(None)

    def _publish(self, message: Delivered) -> int:
        to = self._definition.destination
        exchange, routing_key = message.exchange, message.routing_key
        if to.queue is not None:
            exchange, routing_key = b"", to.queue.encode()
        if to.exchange is not None:
            exchange = to.exchange.encode()
        if to.exchange_key is not None and to.queue is None:
            routing_key = to.exchange_key.encode()
        return self._destination.publish(
            CHANNEL,
            exchange,
            routing_key,
            self._marking.marked(message.header, self._wall_time()),
            message.body,
            # Without confirms the message is acked already when it comes back.
            mandatory=self._definition.ack_mode is AckMode.ON_CONFIRM,
        )

    def _acknowledge(self, acks: Sequence[Ack]) -> None:
        if self._source.is_open:
            for delivery_tag, multiple in acks:
                self._source.ack(CHANNEL, delivery_tag, multiple=multiple)

    def _measure_pause(self) -> None:
        if self._transfer.needs_pause and self._pause is None:
            self._pause = self._loop.call_later(REFUSED_PAUSE_S, self._pause_over)

    def _pause_over(self) -> None:
        self._pause = None
        self._transfer.pause_is_over()
        self._carefully(self._pump)

    def _throttle(self) -> None:
        """Read no more of the source than the destination takes."""
        reads = not self._transfer.holds_much
        if reads != self._reading:
            self._reading = reads
            if reads:
                self._source.resume_reading()
            else:
                self._source.pause_reading()

    def _tell(self) -> None:
        transfer = self._transfer
        if not transfer.refused_count:
            self._refusal = ""
        waiting_for = self._destination.blocked or self._refusal
        self._observer.progressed(transfer.moved - self._told_moved, transfer.pending, waiting_for)
        self._told_moved = transfer.moved


async def _declare(connection: Connection, queue: str, arguments: dict[str, Any] | Any) -> Any:
    """Find the queue, or make a durable one; the arguments of one that is there do not count."""
    try:
        return await connection.ask(CHANNEL, commands.Queue.Declare, queue=queue, passive=True)
    except ChannelFailed as failure:
        if failure.code != NOT_FOUND:
            raise
    await connection.open_channel(CHANNEL)
    return await connection.ask(
        CHANNEL, commands.Queue.Declare, queue=queue, durable=True, arguments=dict(arguments)
    )
