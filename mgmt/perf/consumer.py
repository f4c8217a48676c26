"""The I/O of a consumer's connection: counts deliveries and writes the answers to them."""

from __future__ import annotations

import asyncio
from time import monotonic_ns

from pamqp import commands

from warren.amqp.methods import make
from warren.mgmt.perf.client import PerfLink
from warren.mgmt.perf.measure import Tally
from warren.mgmt.perf.producer import TIMER_S_MIN
from warren.mgmt.perf.settlement import PerfSettlement, Work
from warren.mgmt.perf.stream import Arrivals

WAITING_MAX = 1000
"""Deliveries that a slow consumer holds before it stops reading; only without a prefetch can there
be so many."""


class PerfConsumer:
    """A consumer. `settlement` is None for automatic acks, `work` if it takes no time."""

    def __init__(
        self,
        link: PerfLink,
        queues: list[str],
        tally: Tally,
        *,
        prefetch: int,
        settlement: PerfSettlement | None,
        work: Work | None,
    ) -> None:
        self._link = link
        self._queues = queues
        self._tally = tally
        self._prefetch = prefetch
        self._settlement = settlement
        self._work = work
        self._timer: asyncio.TimerHandle | None = None
        self._is_reading = True
        link.on_arrivals = self._on_arrivals

    async def start(self) -> None:
        if self._prefetch:
            qos = make(commands.Basic.Qos, prefetch_count=self._prefetch)
            await self._link.call(qos, commands.Basic.QosOk)
        for queue in self._queues:
            consume = make(commands.Basic.Consume, queue=queue, no_ack=self._settlement is None)
            await self._link.call(consume, commands.Basic.ConsumeOk)

    def stop(self) -> None:
        """Stop counting, and ack all that was counted, without working on it."""
        self._link.on_arrivals = None
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_reading:
            self._link.resume_reading()
        if self._work is not None:
            self._settle(self._work.last)
        if self._settlement is not None:
            rest = self._settlement.settle_rest()
            if rest:
                self._link.write(rest)

    def _on_arrivals(self, arrivals: Arrivals) -> None:
        now_ns = monotonic_ns()
        tally = self._tally
        tally.received_bytes += arrivals.body_bytes
        if not arrivals.deliveries:
            return
        tally.consume_latency.record_since(arrivals.stamps, now_ns)
        tally.received += arrivals.deliveries
        tally.received_until_ns = now_ns
        if self._work is None:
            self._settle(arrivals.last_tag)
        else:
            self._work.arrived(arrivals.last_tag, now_ns)
            self._on_time()

    def _settle(self, last_tag: int) -> None:
        settlement = self._settlement
        if settlement is None:
            return
        requeued_before = settlement.requeued
        frames = settlement.settle(last_tag)
        if frames:
            self._link.write(frames)
            self._tally.requeued += settlement.requeued - requeued_before

    def _on_time(self) -> None:
        """Settle the deliveries that are due, and set a timer for the next."""
        assert self._work is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        work = self._work
        self._settle(work.finished(monotonic_ns()))
        self._read(work.waiting < WAITING_MAX)
        wait_ns = work.wait_ns(monotonic_ns())
        if wait_ns is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(wait_ns / 1e9, TIMER_S_MIN), self._on_time)

    def _read(self, wanted: bool) -> None:
        if wanted == self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            self._link.resume_reading()
        else:
            self._link.pause_reading()
