"""Samples the figures of a node every few seconds, for rates and charts.

Rates are live: they compare the counts of this moment with a sample some seconds old. An object
without activity is looked at, but not sampled. All work is done in slices, whatever the number of
queues, and reads counts that the broker keeps anyway.

Every object has a history from its first moment; `detail.py` limits the memory of all histories.
Those of queues, virtual hosts and the node are also written to a file, for the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable, Iterable, Sequence
from operator import add
from pathlib import Path
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

from warren.amqp.channel import Channel
from warren.amqp.connection import Connection
from warren.core.log_line import log_event, log_fault
from warren.core.messages.message_stats import MessageStats
from warren.core.node import Node
from warren.core.queues.local_queue import LocalQueue
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.http.slices import chunks
from warren.mgmt.machine import Machine
from warren.mgmt.statistics import figures
from warren.mgmt.statistics.detail import Detail
from warren.mgmt.statistics.history import (
    RETENTION,
    RETENTION_OF_ONE,
    Figures,
    History,
    PastWindow,
    Recent,
    Sample,
    pack,
)
from warren.mgmt.statistics.kept_histories import KeptHistories, Layout, Restored
from warren.mgmt.statistics.latency import Latencies
from warren.mgmt.statistics.track import KEPT_S, Track
from warren.mgmt.statistics.unacked_octets import UnackedOctets
from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.storage.storage import Storage

log = logging.getLogger("warren.http")

T = TypeVar("T")

INTERVAL_S = 5.0

SAVE_EVERY_S = 300.0
"""Seconds of history that a killed node loses at most."""

SAVE_S_MAX = 10.0
"""How long a stop waits at most for the file of histories."""

VHOST_HISTORIES = 2
"""A virtual host's history goes back further, and counts as so many other histories."""

NODE_KEY = ()
LAYOUT: Layout = {
    "node": (RETENTION, len(figures.NODE)),
    "vhost": (RETENTION, len(figures.VHOST)),
    "queue": (RETENTION_OF_ONE, len(figures.QUEUE)),
}
"""The kinds of histories in the file, each with its retention and the number of its figures."""

NODE_COUNTERS = [at for at, name in enumerate(figures.NODE) if name not in figures.LEVELS]
VHOST_COUNTERS = [at for at, name in enumerate(figures.VHOST) if name not in figures.LEVELS]

CAPACITY_KEPT = 0.7
"""The weight of the previous value when a queue's consumer capacity is averaged."""

FEW = 2000
"""Up to so many queues, connections and channels, a request adds them up in one turn of the
loop."""


class SampledNode(Protocol):
    """The figures of a node beside the counts of its queues and channels."""

    @property
    def data_directory(self) -> Path | None: ...

    @property
    def storage(self) -> Storage | None: ...

    def machine(self) -> Machine: ...


class Statistics:
    """The samples of a node; `managed` is asked for what the node itself does not know."""

    def __init__(self, node: Node, managed: SampledNode, interval_s: float = INTERVAL_S) -> None:
        self._node = node
        self._managed = managed
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self.latencies = Latencies(node)
        self.unacked_octets = UnackedOctets(node)
        self.reset()

    def reset(self) -> None:
        """Forget all samples."""
        self._begin({})

    def _begin(self, restored: Restored) -> None:
        """Start with these histories of earlier starts and without samples."""
        now = self._node.clock.now()
        self._detail = Detail()
        self._look_at_clocks()
        self.queues = Track(figures.QUEUES, self._detail, restored.get("queue"))
        self.exchanges = Track(figures.EXCHANGES, self._detail)
        self.channels = Track(figures.CHANNELS, self._detail)
        self.connections = Track(figures.CONNECTIONS, self._detail)
        self._capacity: dict[LocalQueue, float] = {}
        self._totals: dict[VirtualHost, Figures] = {}
        self._answered: WeakKeyDictionary[VirtualHost, Figures] = WeakKeyDictionary()
        self._vhosts: dict[VirtualHost, tuple[Recent, History]] = {}
        self._restored_vhosts = restored.get("vhost", {})
        self._recent = Recent(now)
        self._history = restored.get("node", {}).get(NODE_KEY) or History(RETENTION)
        self._history.go_on(NODE_COUNTERS)
        self._restored_until = now + KEPT_S

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop sampling and write the histories to disk."""
        self.latencies.stop()
        if self._task is None:
            return
        self._task.cancel()
        self._task = None
        try:
            async with asyncio.timeout(SAVE_S_MAX):
                if self._saving is not None:
                    await self._saving
                await self.save()
        except TimeoutError:
            reason = f"took longer than {SAVE_S_MAX:g} s"
            log_event(log, logging.WARNING, "history_not_saved", reason=reason)
        except Exception:
            # Charts lack their past after the next start; the stop itself goes on.
            log_fault(log, "history_not_saved")

    async def _run(self) -> None:
        await self._restore()
        save_at = self._node.clock.now() + SAVE_EVERY_S
        while True:
            try:
                await self.sample()
            except Exception:
                # A failure leaves the figures as they were; the broker is not affected.
                log.exception("sampling failed")
            if self._node.clock.now() >= save_at:
                self._saving = asyncio.get_running_loop().create_task(self.save())
                await asyncio.shield(self._saving)
                save_at = self._node.clock.now() + SAVE_EVERY_S
            await asyncio.sleep(self._interval_s)

    # Over a restart

    def _file(self) -> KeptHistories | None:
        directory = self._managed.data_directory
        return None if directory is None else KeptHistories(RealFileSystem(), directory, LAYOUT)

    async def _restore(self) -> None:
        file = self._file()
        if file is not None:
            now = self._node.clock.now()
            self._begin(await file.load(now, self.wall_offset_s))

    async def save(self) -> None:
        file = self._file()
        if file is not None:
            await file.save(self._kept(), self.wall_offset_s)

    async def _kept(self) -> AsyncIterator[tuple[str, Hashable, History]]:
        yield "node", NODE_KEY, self._history
        for vhost, (_, history) in list(self._vhosts.items()):
            yield "vhost", (vhost.name,), history
        for key, history in list(self._restored_vhosts.items()):
            yield "vhost", key, history
        async for key, history in self.queues.kept():
            yield "queue", key, history

    def _look_at_clocks(self) -> None:
        """Find the offset from the node's clock to seconds since 1970.

        It is read once a round: two readings differ by milliseconds, and so would sample times.
        """
        clock = self._node.clock
        self.wall_offset_s = self._detail.wall_offset_s = clock.wall_time() - clock.now()

    # Samples

    async def sample(self) -> None:
        node = self._node
        now = node.clock.now()
        self._look_at_clocks()
        vhosts = list(node.vhosts.values())
        connections = node_connections(node)
        queues = [queue for vhost in vhosts for queue in vhost.queues_here()]
        exchanges = [exchange for vhost in vhosts for exchange in vhost.exchanges.values()]
        channels = [channel for one in connections for channel in one.channels.values()]
        await self.queues.sample(now, queues)
        await self.exchanges.sample(now, exchanges)
        await self.channels.sample(now, channels)
        await self.connections.sample(now, connections)
        await self.unacked_octets.sample()
        self._capacity = await self._capacities(queues)
        totals = {vhost: await self._add_up(vhost) for vhost in vhosts}
        self._totals = totals
        spacing = self._detail.coarse, self.wall_offset_s
        kept: dict[VirtualHost, tuple[Recent, History]] = {}
        for vhost, of_vhost in totals.items():
            recent, history = self._vhosts.get(vhost) or (Recent(now), self._claimed(vhost))
            packed = pack(of_vhost)
            if recent.add(now, packed):
                history.add(now, packed, *spacing)
            kept[vhost] = (recent, history)
        self._vhosts = kept
        of_node = pack(self.node_figures())
        if self._recent.add(now, of_node):
            self._history.add(now, of_node, wall_offset_s=self.wall_offset_s)
        await self._keep_within_bounds(now)

    def _claimed(self, vhost: VirtualHost) -> History:
        """The virtual host's history from before this start, or a new one."""
        history = self._restored_vhosts.pop((vhost.name,), None)
        if history is None:
            return History(RETENTION)
        history.go_on(VHOST_COUNTERS)
        return history

    async def _keep_within_bounds(self, now: float) -> None:
        """Keep the histories of all objects within their limit of memory."""
        tracks = (self.queues, self.exchanges, self.channels, self.connections)
        if now > self._restored_until:
            self._restored_vhosts = {}
            self.queues.let_go_of_restored()
        vhosts = [history for _, history in self._vhosts.values()]
        count = VHOST_HISTORIES * len(vhosts) + sum([track.history_count for track in tracks])
        if self._detail.settle(count):
            coarse = self._detail.coarse
            async for chunk in chunks(vhosts):
                for history in chunk:
                    history.limit(coarse)
            for track in tracks:
                async for chunk in chunks(track.histories()):
                    for history in chunk:
                        history.limit(coarse)

    @property
    def history_octets(self) -> int:
        """The octets of all samples except those of the node."""
        tracks = (self.queues, self.exchanges, self.channels, self.connections)
        of_tracks = sum([history.octets for track in tracks for history in track.histories()])
        return of_tracks + sum([history.octets for _, history in self._vhosts.values()])

    def capacity(self, queue: LocalQueue) -> float:
        """The share of the time in which a consumer could have taken a message at once."""
        known = self._capacity.get(queue)
        return _could_deliver(queue) if known is None else known

    async def _capacities(self, queues: list[LocalQueue]) -> dict[LocalQueue, float]:
        before, now = self._capacity, {}
        async for chunk in chunks(queues, 256):
            for queue in chunk:
                if queue.consumers:
                    current = _could_deliver(queue)
                    now[queue] = current + CAPACITY_KEPT * (before.get(queue, current) - current)
        return now

    # Virtual hosts and the node

    def vhost_figures(self, vhost: VirtualHost) -> Figures:
        """The figures of this moment if they are found quickly, else figures some seconds old.

        Either way, a counter never decreases from one answer to the next.
        """
        known = self._totals.get(vhost)
        if known is None or self._counted_at_once(vhost):
            total = _VhostTotal(vhost)
            total.add_queues(vhost.queues_here())
            connections = node_connections(self._node)
            total.add_connections(connections)
            total.add_channels(_channels_of(vhost, connections))
            known = total.figures
        before = self._answered.get(vhost)
        if before is not None:
            known = tuple(
                [
                    max(now, then) if at in VHOST_COUNTERS else now
                    for at, (now, then) in enumerate(zip(known, before, strict=True))
                ]
            )
        self._answered[vhost] = known
        return known

    def _counted_at_once(self, vhost: VirtualHost) -> bool:
        """Whether there are few queues, connections and channels to add up."""
        count = len(vhost.queues) + len(self._node.clients)
        if count <= FEW:
            count += sum([len(one.channels) for one in node_connections(self._node)])
        return count <= FEW

    def vhost_rates(self, vhost: VirtualHost, current: Figures) -> Figures:
        kept = self._vhosts.get(vhost)
        if kept is None:
            return (0.0,) * len(current)
        return kept[0].rates(self._node.clock.now(), current)

    def vhost_samples(self, vhost: VirtualHost, times: Sequence[float]) -> list[Sample]:
        kept = self._vhosts.get(vhost)
        return kept[1].at(times) if kept is not None else []

    def message_totals(self) -> MessageStats:
        """The message stats of the whole node since it started."""
        return MessageStats(*map(int, self.node_figures()[: figures.MESSAGES]))

    def node_figures(self) -> Figures:
        node = self._node
        counts = node.counts
        past = counts.past_channels
        total: Figures = (*past, 0, 0, 0, counts.past_received, counts.past_sent)
        for vhost in node.vhosts.values():
            total = tuple(map(add, total, self.vhost_figures(vhost)))
        machine, storage = self._managed.machine(), self._managed.storage
        if storage is not None:
            indexes = storage.indexes
            stats = MessageStats(*map(int, total[: figures.MESSAGES]))._replace(
                disk_reads=indexes.messages_read, disk_writes=indexes.messages_written
            )
            total = (*stats, *total[figures.MESSAGES :])
        return (
            *total,
            counts.connections_opened,
            counts.connections_closed,
            counts.channels_opened,
            counts.channels_closed,
            counts.queues_declared,
            counts.queues_created,
            counts.queues_deleted,
            machine.mem_used,
            machine.disk_free,
            machine.fd_used,
            machine.sockets_used,
            machine.proc_used,
        )

    def node_rates(self, current: Figures) -> Figures:
        return self._recent.rates(self._node.clock.now(), current)

    def node_samples(self, times: Sequence[float]) -> list[Sample]:
        return self._history.at(times)

    def times(self, window: PastWindow, now: float) -> list[float]:
        """The times of a window at this time of the node's clock, newest first."""
        return window.times(now, self.wall_offset_s)

    async def _add_up(self, vhost: VirtualHost) -> Figures:
        total = _VhostTotal(vhost)
        async for queues in chunks(list(vhost.queues_here()), 512):
            total.add_queues(queues)
        everyone = node_connections(self._node)
        async for connections in chunks(everyone):
            total.add_connections(connections)
        async for channels in chunks(_channels_of(vhost, everyone), 512):
            total.add_channels(channels)
        return total.figures


class _VhostTotal:
    """Adds up the figures of a virtual host."""

    def __init__(self, vhost: VirtualHost) -> None:
        self._vhost = vhost
        self._ready = self._unacked = 0
        self._stats = vhost.past_channels
        self._received, self._sent = vhost.past_received, vhost.past_sent

    def add_queues(self, queues: Iterable[LocalQueue]) -> None:
        for queue in queues:
            self._ready += queue.backing.length
            self._unacked += queue.unacked

    def add_connections(self, connections: Iterable[Connection]) -> None:
        for connection in connections:
            if connection.vhost is self._vhost:
                self._received += connection.received_octets
                self._sent += connection.sent_octets

    def add_channels(self, channels: Iterable[Channel]) -> None:
        for channel in channels:
            self._stats = self._stats.plus(channel.stats())

    @property
    def figures(self) -> Figures:
        ready, unacked = self._ready, self._unacked
        return (*self._stats, ready + unacked, ready, unacked, self._received, self._sent)


def node_connections(node: Node) -> list[Connection]:
    """The AMQP connections among the node's clients."""
    return [client for client in node.clients if isinstance(client, Connection)]


def _channels_of(vhost: VirtualHost, connections: Iterable[Connection]) -> list[Channel]:
    """The channels of those connections that use the virtual host."""
    return [
        channel
        for connection in connections
        if connection.vhost is vhost
        for channel in connection.channels.values()
    ]


def _could_deliver(queue: LocalQueue) -> float:
    """1 if a message would find a consumer now, else 0."""
    return float(bool(queue.consumers) and (bool(queue.ring.top) or not queue.backing.length))
