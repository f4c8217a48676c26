"""The I/O of a producer's connection: writes the messages that its sender allows, at once."""

from __future__ import annotations

import asyncio
from time import monotonic_ns

from pamqp import commands

from warren.amqp.methods import make
from warren.mgmt.perf.client import PerfLink
from warren.mgmt.perf.measure import Tally
from warren.mgmt.perf.sender import Sender
from warren.mgmt.perf.stream import Arrivals

BURSTS_PER_TURN = 16
"""Writes before other connections and the socket's input get their turn; a broker on the same host
may empty the socket as fast as we fill it."""

TIMER_S_MIN = 0.001
"""uvloop's timers count milliseconds, so a shorter one would fire at once, again and again."""


class Producer:
    """A producer; `has_ended` gets its result when all is sent and, with confirms, settled."""

    def __init__(self, link: PerfLink, sender: Sender, tally: Tally) -> None:
        self._link = link
        self._sender = sender
        self._tally = tally
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self.has_ended: asyncio.Future[None] = self._loop.create_future()
        link.on_arrivals = self._on_arrivals
        link.on_writable = self._pump

    def start(self) -> None:
        self._pump()

    def stop(self) -> None:
        """Send no more."""
        self._sender.stop()
        self._pump()

    async def wait_until_read(self) -> None:
        """Return when the broker has read all messages: it has answered on the same channel."""
        await self.has_ended
        await self._link.call(make(commands.Basic.Qos), commands.Basic.QosOk)
        self._tally.published_until_ns = monotonic_ns()

    def _pump(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        link = self._link
        sender = self._sender
        sender.blocked = link.blocked
        for _ in range(BURSTS_PER_TURN):
            if not link.writable:
                return
            burst = sender.next_burst(monotonic_ns())
            if not burst:
                self._wait()
                return
            link.write(burst)
        self._timer = self._loop.call_soon(self._pump)

    def _wait(self) -> None:
        if self._sender.is_done:
            if not self.has_ended.done():
                self.has_ended.set_result(None)
            return
        wait_ns = self._sender.wait_ns(monotonic_ns())
        if wait_ns is not None:
            self._timer = self._loop.call_later(max(wait_ns / 1e9, TIMER_S_MIN), self._pump)

    def _on_arrivals(self, arrivals: Arrivals) -> None:
        self._tally.returned += arrivals.returned
        if arrivals.confirms:
            self._sender.confirmed(arrivals.confirms, monotonic_ns())
            self._pump()
