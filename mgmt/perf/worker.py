"""A process with producers or with consumers, which follows the conductor's orders.

    worker ─Ready─▶  ◀─START─  ─Started─▶  ─WorkerReport─▶ ... ◀─STOP─  ─WorkerEnded─▶

A worker that fails sends `WorkerFailed` in place of its next report, and nothing after it. A worker
whose producers have sent everything ends without `STOP`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from time import monotonic_ns
from typing import Any, TypeAlias

import uvloop
from pamqp import commands

from warren.amqp.methods import make
from warren.mgmt.perf.client import PerfLink, connect
from warren.mgmt.perf.consumer import PerfConsumer
from warren.mgmt.perf.errors import PerfError
from warren.mgmt.perf.measure import NS_PER_MS, Tally
from warren.mgmt.perf.producer import Producer
from warren.mgmt.perf.publication import Publications
from warren.mgmt.perf.scenario import Scenario
from warren.mgmt.perf.sender import Pacer, Sender, Unconfirmed
from warren.mgmt.perf.settlement import PerfSettlement, Work

OPENING_MAX = 32
"""Connections that a worker opens at a time; brokers keep short backlogs."""

PROGRESS_S = 0.2
"""How often a worker reports. It limits how late the end of a run is noticed, not the accuracy of
its figures."""

ENDING_S_MAX = 5.0
"""Time for confirms and the last answer to arrive after the order to stop."""


class WorkerRole(Enum):
    PRODUCERS = "producers"
    CONSUMERS = "consumers"


class Order(Enum):
    START = "start"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Share:
    """The work of one process: producers or consumers by their numbers, from 0."""

    scenario: Scenario
    role: WorkerRole
    members: range


@dataclass(slots=True)
class Ready:
    """All connections are open."""


@dataclass(slots=True)
class Started:
    """The producers have started to send, or the broker knows the consumers."""

    at_ns: int


@dataclass(slots=True)
class WorkerReport:
    """The counts since the last report, and how many connections the broker blocks."""

    tally: Tally
    blocked: int


@dataclass(slots=True)
class WorkerEnded:
    tally: Tally


@dataclass(slots=True)
class WorkerFailed:
    reason: str
    tally: Tally


Report: TypeAlias = Ready | Started | WorkerReport | WorkerEnded | WorkerFailed


def work(share: Share, pipe: Connection) -> None:
    """The main function of the process."""
    try:
        uvloop.run(_work(share, pipe))
    except (BrokenPipeError, ConnectionResetError):
        # The conductor has ended, so there is no receiver for reports.
        pass
    finally:
        pipe.close()


class PerfWorker:
    """Takes orders from the pipe, sends reports into it, and has the connections."""

    def __init__(self, share: Share, pipe: Connection) -> None:
        loop = asyncio.get_running_loop()
        self._share = share
        self._pipe = pipe
        self._loop = loop
        self._tally = Tally()
        self._links: list[PerfLink] = []
        self._timer: asyncio.TimerHandle | None = None
        self._started: asyncio.Future[None] = loop.create_future()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._failed: asyncio.Future[None] = loop.create_future()

    async def run(self) -> None:
        self._loop.add_reader(self._pipe.fileno(), self._take_order)
        try:
            if self._share.role is WorkerRole.PRODUCERS:
                await self._run_producers()
            else:
                await self._run_consumers()
            self._pipe.send(WorkerEnded(self._tally.take()))
        except PerfError as error:
            self._pipe.send(WorkerFailed(str(error), self._tally.take()))
        finally:
            self._loop.remove_reader(self._pipe.fileno())
            if self._timer is not None:
                self._timer.cancel()
            await asyncio.gather(*(link.close() for link in self._links))

    async def _run_producers(self) -> None:
        scenario = self._share.scenario
        connections = [
            producer * scenario.producer_connections + number
            for producer in self._share.members
            for number in range(scenario.producer_connections)
        ]
        await self._open(len(connections))
        if scenario.confirm_window:
            await asyncio.gather(*(_select_confirms(link) for link in self._links))
        if not await self._wait_for_start():
            return
        now_ns = monotonic_ns()
        producers = [
            _producer(scenario, link, connection, self._tally, now_ns)
            for link, connection in zip(self._links, connections, strict=True)
        ]
        self._pipe.send(Started(now_ns))
        self._report_progress()
        for producer in producers:
            producer.start()
        reading = asyncio.gather(*(producer.wait_until_read() for producer in producers))
        if await self._unless_stopped(reading):
            return
        for producer in producers:
            producer.stop()
        await asyncio.wait({reading}, timeout=ENDING_S_MAX)
        if reading.done():
            reading.result()
        else:
            await _abandon(reading)

    async def _run_consumers(self) -> None:
        scenario = self._share.scenario
        await self._open(len(self._share.members))
        if not await self._wait_for_start():
            return
        now_ns = monotonic_ns()
        consumers = [
            _consumer(scenario, link, number, self._tally)
            for link, number in zip(self._links, self._share.members, strict=True)
        ]
        if await self._unless_stopped(
            asyncio.gather(*(consumer.start() for consumer in consumers))
        ):
            self._pipe.send(Started(now_ns))
            self._report_progress()
            await self._unless_stopped(self._stopped)
        for consumer in consumers:
            consumer.stop()

    async def _open(self, count: int) -> None:
        opening = asyncio.Semaphore(OPENING_MAX)

        async def open_one() -> None:
            async with opening:
                link = await connect(self._share.scenario.address)
            self._links.append(link)
            link.failed.add_done_callback(self._take_failure)

        await asyncio.gather(*(open_one() for _ in range(count)))

    async def _wait_for_start(self) -> bool:
        """False if the order is to stop before anything began."""
        self._pipe.send(Ready())
        return await self._unless_stopped(self._started)

    async def _unless_stopped(self, awaited: asyncio.Future[Any]) -> bool:
        """Wait; False if the order to stop came first. Raises the error of a failed connection."""
        await asyncio.wait(
            {awaited, self._stopped, self._failed}, return_when=asyncio.FIRST_COMPLETED
        )
        if self._failed.done():
            await _abandon(awaited)
            self._failed.result()
        if not awaited.done():
            return False
        awaited.result()
        return True

    def _take_order(self) -> None:
        try:
            order: Order = self._pipe.recv()
        except EOFError:
            # The conductor has ended.
            self._loop.remove_reader(self._pipe.fileno())
            order = Order.STOP
        ordered = self._started if order is Order.START else self._stopped
        if not ordered.done():
            ordered.set_result(None)

    def _take_failure(self, failed: asyncio.Future[None]) -> None:
        error = failed.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)
            # An error after the last wait is never read, and asyncio need not report it.
            self._failed.exception()

    def _report_progress(self) -> None:
        blocked = sum(link.blocked for link in self._links)
        self._pipe.send(WorkerReport(self._tally.take(), blocked))
        self._timer = self._loop.call_later(PROGRESS_S, self._report_progress)


async def _work(share: Share, pipe: Connection) -> None:
    await PerfWorker(share, pipe).run()


async def _abandon(awaited: asyncio.Future[Any]) -> None:
    """Cancel, and read the result, or asyncio would report that it was never read."""
    awaited.cancel()
    await asyncio.gather(awaited, return_exceptions=True)


async def _select_confirms(link: PerfLink) -> None:
    await link.call(make(commands.Confirm.Select), commands.Confirm.SelectOk)


def _producer(
    scenario: Scenario, link: PerfLink, connection: int, tally: Tally, now_ns: int
) -> Producer:
    """`connection` is counted over all producers of the run."""
    publications = Publications(
        scenario.exchange,
        scenario.routing_keys(connection // scenario.producer_connections),
        scenario.sizes,
        headers=scenario.headers,
        persistent=scenario.persistent,
        mandatory=scenario.mandatory,
        frame_max=link.frame_max,
    )
    pacer = None
    if scenario.rate:
        # Each connection starts a part of an interval later, so that all together are even as well.
        rate = scenario.rate / scenario.producer_connections
        connections = scenario.producers * scenario.producer_connections
        pacer = Pacer(rate, now_ns + int(connection / connections * 1e9 / rate))
    sender = Sender(
        publications,
        tally,
        messages=scenario.messages_of(connection),
        pacer=pacer,
        unconfirmed=Unconfirmed(scenario.confirm_window) if scenario.confirm_window else None,
    )
    return Producer(link, sender, tally)


def _consumer(scenario: Scenario, link: PerfLink, number: int, tally: Tally) -> PerfConsumer:
    return PerfConsumer(
        link,
        scenario.consumer_queues(number),
        tally,
        prefetch=scenario.prefetch,
        settlement=None
        if scenario.auto_ack
        else PerfSettlement(scenario.ack_every, scenario.requeue_every),
        work=Work(int(scenario.consumer_delay_ms * NS_PER_MS))
        if scenario.consumer_delay_ms
        else None,
    )
