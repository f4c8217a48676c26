"""One pair of connections of a shovel: from the first login to the end of either.

The source is connected and checked first, then the destination. When both are ready, messages are
requested, and `flow.py` moves them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from pamqp import commands

from warren.client.connection import BrokerTarget, ChannelFailed, ClientConnection, open_any
from warren.client.events import Delivered
from warren.shovel.definition import QUEUE_LENGTH, Definition, Source
from warren.shovel.flow import CHANNEL, Flow, FlowProgress
from warren.shovel.marking import Marking
from warren.shovel.redrive import back
from warren.shovel.transfer import AckMode, Transfer

log = logging.getLogger("warren.shovel")

NOT_FOUND = 404


class ShovelEnds(NamedTuple):
    """The brokers at both ends, in the order in which they are tried."""

    source: Sequence[BrokerTarget]
    destination: Sequence[BrokerTarget]


class ShovelObserver(Protocol):
    """The object that a session reports to."""

    def counted(self, messages: int) -> None:
        """The session moves this number of messages: with `delete-after` `queue-length`, those that
        were in the source queue when the session began."""
        ...

    def running(self, source_uri: str, dest_uri: str) -> None: ...

    def progressed(self, progress: FlowProgress) -> None: ...


class ShovelSession:
    """One session. `remaining`: the number of messages still to be moved; None if there is no
    limit, or if the session has to count them first (`QUEUE_LENGTH`)."""

    def __init__(
        self,
        definition: Definition,
        observer: ShovelObserver,
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
        self._flow = Flow(observer.progressed, log)
        self._source: ClientConnection
        self._destination: ClientConnection
        self._marking: Marking

    async def run(self, ends: ShovelEnds) -> None:
        """Move messages until all that are to be moved are moved.

        Raises `ConnectionFailed` if a broker cannot be reached, `ChannelFailed` and ValueError if
        it refuses something that the shovel needs, and `SessionEnded` for later failures.
        """
        self._source, source = await open_any(ends.source, self._flow)
        try:
            queue = await self._open_source()
            self._destination, destination = await open_any(ends.destination, self._flow)
            try:
                await self._open_destination()
                await self._move(queue, source.shown, destination.shown)
            finally:
                await self._destination.close()
        finally:
            self._flow.end()
            # The broker carries out the acks already written before it answers the close.
            await self._source.close()

    async def _move(self, queue: str, source_uri: str, dest_uri: str) -> None:
        definition = self._definition
        self._marking = self._new_marking(source_uri, dest_uri)
        transfer = Transfer(
            definition.ack_mode,
            in_order=definition.destination.queue is not None,
            limit=self._remaining,
            leaves_refused=definition.destination.redrive is not None,
        )
        if transfer.done:
            return
        self._flow.begin(self._source, self._destination, transfer, self._publish)
        await self._source.ask(
            CHANNEL,
            commands.Basic.Consume,
            queue=queue,
            no_ack=definition.ack_mode is AckMode.NO_ACK,
            arguments=dict(definition.source.consumer_arguments),
        )
        self._observer.running(source_uri, dest_uri)
        try:
            await self._flow.finish()
        except asyncio.CancelledError:
            await self._flow.settle()
            raise

    # Setting up

    async def _open_source(self) -> str:
        """Set up the source; returns the queue to consume from."""
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

    async def _bound_queue(self, connection: ClientConnection, source: Source) -> str:
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
        """The prefetch count, at most the number of messages to be moved: others may consume the
        rest."""
        if self._definition.destination.redrive is not None:
            # Messages that are left stay unacked, and must not keep others from being delivered.
            return 0
        prefetch = self._definition.source.prefetch
        if not self._remaining:
            return prefetch
        return min(prefetch or self._remaining, self._remaining, 65_535)

    # Moving

    def _publish(self, message: Delivered) -> int:
        to = self._definition.destination
        exchange, routing_key, header = message.exchange, message.routing_key, message.header
        if to.redrive is not None:
            (exchange, routing_key), header = back(header, *to.redrive)
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
            self._marking.marked(header, self._wall_time()),
            message.body,
            # Without confirms, the message has been acked by the time it would be returned.
            mandatory=self._definition.ack_mode is AckMode.ON_CONFIRM,
        )


async def _declare(
    connection: ClientConnection, queue: str, arguments: dict[str, Any] | Any
) -> Any:
    """Find the queue, or make a durable one; arguments of an existing queue are not compared."""
    try:
        return await connection.ask(CHANNEL, commands.Queue.Declare, queue=queue, passive=True)
    except ChannelFailed as failure:
        if failure.code != NOT_FOUND:
            raise
    await connection.open_channel(CHANNEL)
    return await connection.ask(
        CHANNEL, commands.Queue.Declare, queue=queue, durable=True, arguments=dict(arguments)
    )
