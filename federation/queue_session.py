"""One pair of connections for a federated queue: from the first login to the end of either.

The session consumes at the upstream only while the queue here is empty and has a consumer of
priority 0 or higher that takes more. Its own consumer at the upstream has priority -1: so consumers
there come first, and a federation of the upstream does not take it for a waiting consumer. Messages
that were delivered stay in the queue here, whatever its consumers do afterwards.

The queue at the upstream is made if it does not exist, and never deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pamqp import commands

from warren.client.connection import ClientConnection
from warren.client.events import Delivered
from warren.core.field import to_octets
from warren.core.queues.queue import Queue
from warren.federation.marking import Marker
from warren.federation.session import (
    COMMANDS,
    LinkEnds,
    LinkObserver,
    found,
    limit_deliveries,
    log,
    opened,
    until_one_ends,
)
from warren.federation.status import WantedLink
from warren.shovel.flow import CHANNEL, Flow, FlowProgress
from warren.shovel.transfer import AckMode, Transfer

PRIORITY: Final = -1
"""The priority of the consumer at the upstream."""


def wants_more(queue: Queue | None) -> bool:
    """Whether a consumer of the queue waits for messages and the queue is empty."""
    if queue is None or len(queue):
        return False
    ready = queue.ring.top
    return bool(ready) and ready[0].priority > PRIORITY


class QueueSession:
    """One session of a queue's link. `queue` returns the queue here as it is now; None if it no
    longer exists."""

    def __init__(
        self,
        wanted: WantedLink,
        observer: LinkObserver,
        *,
        queue: Callable[[], Queue | None],
        marker: Marker,
    ) -> None:
        self._wanted = wanted
        self._upstream = wanted.upstream
        self._observer = observer
        self._queue = queue
        self._marker = marker
        self._flow = Flow(self._progressed, log)
        # Whether the session consumes at the upstream. `_due` is set when that may have to change.
        self._asks = False
        self._due = asyncio.Event()
        self._source: ClientConnection
        self._destination: ClientConnection
        self._uri: str

    def look_again(self) -> None:
        """Check again: consumers here may have begun to wait for messages, or have enough."""
        if wants_more(self._queue()) != self._asks:
            self._due.set()

    async def run(self, ends: LinkEnds) -> None:
        """Get messages until either end fails.

        Raises `ConnectionFailed`, `ChannelFailed`, ValueError and `SessionEnded`.
        """
        async with opened(ends, self._flow, self._upstream.ack_mode) as both:
            self._source, self._destination, self._uri, _ = both
            await self._set_up()
            transfer = Transfer(self._upstream.ack_mode, in_order=True, limit=None)
            await limit_deliveries(self._source, self._upstream)
            self._flow.begin(self._source, self._destination, transfer, self._publish)
            self._observer.running(self._uri)
            await until_one_ends(self._flow.finish(), self._follow_consumers())

    async def _set_up(self) -> None:
        name, queue = self._wanted.remote_name, self._queue()
        if queue is None or await found(
            self._source, commands.Queue.Declare, queue=name, passive=True
        ):
            return
        await self._source.ask(
            COMMANDS,
            commands.Queue.Declare,
            queue=name,
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            arguments=self._marker.encode_table(queue.arguments),
        )

    # Asking for messages

    def _progressed(self, progress: FlowProgress) -> None:
        self._observer.progressed(progress)
        self.look_again()

    async def _follow_consumers(self) -> None:
        while True:
            self._due.clear()
            wants = wants_more(self._queue())
            if wants != self._asks:
                self._asks = wants
                await (self._consume() if wants else self._cancel())
            self.look_again()
            await self._due.wait()

    async def _cancel(self) -> None:
        await self._source.ask(
            CHANNEL, commands.Basic.Cancel, consumer_tag=self._upstream.consumer_tag
        )

    async def _consume(self) -> None:
        await self._source.ask(
            CHANNEL,
            commands.Basic.Consume,
            queue=self._wanted.remote_name,
            consumer_tag=self._upstream.consumer_tag,
            no_ack=self._upstream.ack_mode is AckMode.NO_ACK,
            arguments={"x-priority": PRIORITY},
        )

    # Messages

    def _publish(self, message: Delivered) -> int:
        return self._destination.publish(
            CHANNEL,
            b"",
            to_octets(self._wanted.name),
            self._marker.of_queue(message, self._uri, self._wanted.remote_name),
            message.body,
            # Without confirms, the message has been acked by the time it would be returned.
            mandatory=self._upstream.ack_mode is AckMode.ON_CONFIRM,
        )
