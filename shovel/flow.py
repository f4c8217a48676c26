"""The stream of messages from a channel of one broker to a channel of another.

`transfer.py` decides the fate of each message; the flow puts messages on the wire. It is the user
of both connections. It begins when both are set up, and is over when all messages to be moved are
moved, or when either connection or channel ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from warren.client.connection import ClientConnection
from warren.client.events import (
    Cancelled,
    ChannelClosed,
    ConnectionEnded,
    Delivered,
    Event,
    PublishesConfirmed,
    PublishRefused,
)
from warren.core.log_line import log_fault
from warren.shovel.redrive import LeftBehind
from warren.shovel.transfer import Ack, Transfer

CHANNEL = 1
"""The channel for messages on both connections."""

SETTLE_S = 1.0
"""The time for which a stopped flow waits for the answers to messages in flight."""

REFUSED_PAUSE_S = 1.0
"""The time after which a message refused by the destination is published again."""


class SessionEnded(Exception):
    """The session ended before all messages to be moved were moved; the text says why."""


class FlowProgress(NamedTuple):
    """A report: `moved` counts messages since the last report, `pending` those not moved yet.

    `waiting_for` is why no messages are moved; empty while they are. `left` messages stay in the
    source, the last one for the reason `left_because`.
    """

    moved: int
    pending: int
    waiting_for: str
    left: int = 0
    left_because: str = ""


class Flow:
    """A flow. `told` is called with its reports; faults of the broker are written to `log` and end
    this flow only."""

    def __init__(self, told: Callable[[FlowProgress], None], log: logging.Logger) -> None:
        self._told = told
        self._log = log
        self._loop = asyncio.get_running_loop()
        # None until messages are requested.
        self._over: asyncio.Future[None] | None = None
        self._source: ClientConnection
        self._destination: ClientConnection
        self._transfer: Transfer
        self._publish: Callable[[Delivered], int | None]
        self._pause: asyncio.TimerHandle | None = None
        # Set after each answer of the destination.
        self._answered = asyncio.Event()
        self._reading = True
        self._refusal = ""
        self._told_moved = 0
        self._left_because = ""

    def begin(
        self,
        source: ClientConnection,
        destination: ClientConnection,
        transfer: Transfer,
        publish: Callable[[Delivered], int | None],
    ) -> None:
        """Move messages from now on. `publish` returns the tag, or None if it sent nothing."""
        self._source, self._destination = source, destination
        self._transfer, self._publish = transfer, publish
        self._over = self._loop.create_future()
        for connection in (source, destination):
            if connection.failure is not None:
                self.fail(connection.failure.text)

    async def finish(self) -> None:
        """Return when all messages to be moved are moved. Raises `SessionEnded`."""
        assert self._over is not None
        await self._over

    async def settle(self) -> None:
        """Wait, after a stop, for the destination's answers to messages in flight. Messages that it
        confirms are acknowledged, so they do not go back to the source to be moved twice."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while self._transfer.in_flight and not self._has_failed:
                    self._answered.clear()
                    await self._answered.wait()

    @property
    def _has_failed(self) -> bool:
        connections = (self._source, self._destination)
        return any(connection.failure is not None for connection in connections)

    def end(self) -> None:
        """Publish nothing more."""
        if self._pause is not None:
            self._pause.cancel()

    def fail(self, reason: str) -> None:
        """End the flow for this reason."""
        over = self._over
        # Before messages are requested, `ClientConnection.ask` raises the failure.
        if over is not None and not over.done():
            over.set_exception(SessionEnded(reason))
            # The flow may end for another reason before anything waits for this future.
            over.exception()

    # As the user of both connections

    def received(self, connection: ClientConnection, events: Sequence[Event]) -> None:
        """Take the source's messages, and the destination's answers to publishes."""
        self._carefully(lambda: self._receive(events))

    def writable(self, connection: ClientConnection) -> None:
        self._carefully(self._pump)

    def _carefully(self, work: Callable[[], None]) -> None:
        """Do the work; a fault of the broker ends this session, and not the node."""
        try:
            work()
        except Exception:
            log_fault(self._log, "flow_fault")
            self.fail("internal error")

    def _receive(self, events: Sequence[Event]) -> None:
        if self._over is None:
            return
        acks: list[Ack] = []
        for event in events:
            match event:
                case Delivered():
                    # When the session is over, messages that still arrive are left to go back to
                    # the source.
                    if not self._over.done():
                        self._transfer.deliver(event)
                case PublishesConfirmed():
                    acks += self._transfer.confirmed(event.tags)
                case PublishRefused():
                    self._refusal = self._left_because = event.reason
                    self._transfer.refused(event.tag)
                case Cancelled():
                    self.fail("the source queue was deleted, or lost its node")
                case ChannelClosed() | ConnectionEnded():
                    self.fail(event.text)
        self._acknowledge(acks)
        self._answered.set()
        self._pump()

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
                try:
                    tag = self._publish(message)
                except LeftBehind as reason:
                    self._left_because = str(reason)
                    transfer.leave(message)
                    continue
                if tag is None:
                    acks += transfer.skipped(message)
                else:
                    acks += transfer.published(message, tag)
        except ValueError as error:
            # MalformedContent is a ValueError.
            self.fail(f"a message cannot be published: {error}")
        self._acknowledge(acks)
        self._measure_pause()
        self._throttle()
        self._tell()
        if transfer.done and not over.done():
            over.set_result(None)

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
        """Read no more from the source than the destination takes."""
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
        moved = transfer.moved - self._told_moved
        self._told_moved = transfer.moved
        waiting_for = self._destination.blocked or self._refusal
        left = transfer.left
        because = self._left_because if left else ""
        self._told(FlowProgress(moved, transfer.pending, waiting_for, left, because))
