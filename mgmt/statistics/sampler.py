"""Samples what there is to see every few seconds, so that rates and charts can be shown.

Rates are live: from counts of this moment and a sample some seconds old. What nothing passes
through is looked at and not sampled. Only the node and its virtual hosts have histories from the
start; anything else has one from the moment somebody first asked for it, as long as somebody does.
All of it works in slices, whatever the number of queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from operator import add
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from warren.amqp.channel import Channel
from warren.amqp.connection import Connection
from warren.core.message_stats import MessageStats
from warren.core.node import Node
from warren.core.queue import Queue
from warren.core.vhost import VirtualHost
from warren.mgmt.http.slices import chunks
from warren.mgmt.statistics import figures
from warren.mgmt.statistics.history import (
    RETENTION,
    RETENTION_OF_ONE,
    Figures,
    History,
    Recent,
    Sample,
    Window,
)
from warren.mgmt.statistics.latency import Latencies

if TYPE_CHECKING:
    from warren.mgmt.managed_node import ManagedNode

log = logging.getLogger("warren.http")

T = TypeVar("T")

LEVELS = range(figures.MESSAGES, figures.MESSAGES + len(figures.LENGTHS))
"""Which figures of a virtual host may get less."""

INTERVAL_S = 5.0
IDLE_AFTER_S = 60.0
"""Something in which nothing moved for so long is not sampled until something does."""

FORGET_AFTER_S = 600.0
"""A history nobody has asked for that long ends."""

CAPACITY_KEPT = 0.7
"""How much of a queue's consumer capacity comes from before its last sample."""

FEW = 2000
"""Up to so many queues and channels are added up at once for whoever asks."""


class Watched:
    """The history of one thing somebody looks at."""

    __slots__ = ("asked_at", "history")

    def __init__(self, now: float) -> None:
        self.history = History(RETENTION_OF_ONE)
        self.asked_at = now


class Track:
    """Samples of all things of one kind. `figures_of` says what is sampled of one."""

    def __init__(self, figures_of: Callable[[Any], Figures]) -> None:
        self.figures_of = figures_of
        self._recent: dict[Any, Recent] = {}
        self._idle: dict[Any, tuple[float, float]] = {}
        self._watched: dict[Any, Watched] = {}

    async def sample(self, now: float, things: list[Any], activity: Callable[[Any], float]) -> None:
        """Take a sample of each; what is not among them any more is forgotten."""
        recent: dict[Any, Recent] = {}
        idle: dict[Any, tuple[float, float]] = {}
        async for chunk in chunks(things):
            for thing in chunk:
                known = self._recent.get(thing)
                if known is None:
                    level = activity(thing)
                    before = self._idle.get(thing)
                    if not level or (before is not None and before[0] == level):
                        if before is not None:
                            idle[thing] = before
                        continue
                    known = Recent(now)
                known.add(now, self.figures_of(thing))
                if now - known.changed_at > IDLE_AFTER_S:
                    idle[thing] = (activity(thing), known.changed_at)
                else:
                    recent[thing] = known
                watched = self._watched.get(thing)
                if watched is not None:
                    watched.history.add(now, self.figures_of(thing))
        self._recent, self._idle = recent, idle
        self._watched = {
            thing: watched
            for thing, watched in self._watched.items()
            if now - watched.asked_at < FORGET_AFTER_S
        }

    def rates(self, thing: Any, now: float, current: Figures) -> Figures:
        recent = self._recent.get(thing)
        return (0.0,) * len(current) if recent is None else recent.rates(now, current)

    def changed_at(self, thing: Any) -> float | None:
        """When something last moved in it, as far as anybody looked; None for never."""
        recent = self._recent.get(thing)
        if recent is not None:
            return recent.changed_at
        idle = self._idle.get(thing)
        return None if idle is None else idle[1]

    def samples(self, thing: Any, now: float, window: Window) -> list[Sample]:
        watched = self._watched.get(thing)
        if watched is None:
            watched = self._watched[thing] = Watched(now)
            watched.history.add(now, self.figures_of(thing))
        watched.asked_at = now
        return watched.history.at(window.times(now))


class Statistics:
    """The samples of a node. `managed` is set before `start`."""

    managed: ManagedNode

    def __init__(self, node: Node, interval_s: float = INTERVAL_S) -> None:
        self._node = node
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self.latencies = Latencies(node)
        self.reset()

    def reset(self) -> None:
        """Forget all samples."""
        node = self._node
        self.queues = Track(figures.queue_figures)
        self.exchanges = Track(figures.exchange_figures)
        self.channels = Track(Channel.stats)
        self.connections = Track(figures.connection_figures)
        self._capacity: dict[Queue, float] = {}
        self._totals: dict[VirtualHost, Figures] = {}
        self._answered: WeakKeyDictionary[VirtualHost, Figures] = WeakKeyDictionary()
        self._vhosts: dict[VirtualHost, tuple[Recent, History]] = {}
        self._recent = Recent(node.clock.now())
        self._history = History(RETENTION)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        self.latencies.stop()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self.sample()
            except Exception:
                # Without it the figures stand still; the broker itself is not concerned.
                log.exception("sampling failed")
            await asyncio.sleep(self._interval_s)

    async def sample(self) -> None:
        node = self._node
        now = node.clock.now()
        vhosts = list(node.vhosts.values())
        connections = node_connections(node)
        queues = [queue for vhost in vhosts for queue in vhost.queues.values() if queue.is_here]
        exchanges = [exchange for vhost in vhosts for exchange in vhost.exchanges.values()]
        channels = [channel for one in connections for channel in one.channels.values()]
        await self.queues.sample(now, queues, _queue_activity)
        await self.exchanges.sample(now, exchanges, lambda exchange: exchange.published_in)
        await self.channels.sample(now, channels, lambda channel: sum(channel.stats()))
        await self.connections.sample(now, connections, lambda one: one.received_octets)
        self._capacity = await self._capacities(queues)
        totals = {vhost: await self._add_up(vhost) for vhost in vhosts}
        self._totals = totals
        kept: dict[VirtualHost, tuple[Recent, History]] = {}
        for vhost, of_vhost in totals.items():
            recent, history = self._vhosts.get(vhost) or (Recent(now), History(RETENTION))
            recent.add(now, of_vhost)
            history.add(now, of_vhost)
            kept[vhost] = (recent, history)
        self._vhosts = kept
        of_node = self.node_figures()
        self._recent.add(now, of_node)
        self._history.add(now, of_node)

    def capacity(self, queue: Queue) -> float:
        """The share of the time in which a consumer could have taken a message at once."""
        known = self._capacity.get(queue)
        return _could_deliver(queue) if known is None else known

    async def _capacities(self, queues: list[Queue]) -> dict[Queue, float]:
        before, now = self._capacity, {}
        async for chunk in chunks(queues, 256):
            for queue in chunk:
                if queue.consumers:
                    current = _could_deliver(queue)
                    now[queue] = current + CAPACITY_KEPT * (before.get(queue, current) - current)
        return now

    # Virtual hosts and the node

    def vhost_figures(self, vhost: VirtualHost) -> Figures:
        """Of this moment where that is quickly found, else some seconds old.

        What is counted never gets less, whichever of the two it is.
        """
        known = self._totals.get(vhost)
        if known is None or len(vhost.queues) + len(self._node.clients) <= FEW:
            total = _VhostTotal(vhost)
            total.add_queues(vhost.queues.values())
            total.add_connections(node_connections(self._node))
            known = total.figures
        before = self._answered.get(vhost)
        if before is not None:
            known = tuple(
                [
                    now if at in LEVELS else max(now, then)
                    for at, (now, then) in enumerate(zip(known, before, strict=True))
                ]
            )
        self._answered[vhost] = known
        return known

    def vhost_rates(self, vhost: VirtualHost, current: Figures) -> Figures:
        kept = self._vhosts.get(vhost)
        if kept is None:
            return (0.0,) * len(current)
        return kept[0].rates(self._node.clock.now(), current)

    def vhost_samples(self, vhost: VirtualHost, window: Window) -> list[Sample]:
        kept = self._vhosts.get(vhost)
        return kept[1].at(window.times(self._node.clock.now())) if kept is not None else []

    def message_totals(self) -> MessageStats:
        """Of the whole node since it started."""
        return MessageStats(*map(int, self.node_figures()[: figures.MESSAGES]))

    def node_figures(self) -> Figures:
        node = self._node
        counts = node.counts
        past = counts.past_channels
        total: Figures = (*past, 0, 0, 0, counts.past_received, counts.past_sent)
        for vhost in node.vhosts.values():
            total = tuple(map(add, total, self.vhost_figures(vhost)))
        machine = self.managed.machine()
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

    def node_samples(self, window: Window) -> list[Sample]:
        return self._history.at(window.times(self._node.clock.now()))

    async def _add_up(self, vhost: VirtualHost) -> Figures:
        total = _VhostTotal(vhost)
        async for queues in chunks(list(vhost.queues.values()), 512):
            total.add_queues(queues)
        async for connections in chunks(node_connections(self._node)):
            total.add_connections(connections)
        return total.figures


class _VhostTotal:
    """Adds up what is sampled of a virtual host."""

    def __init__(self, vhost: VirtualHost) -> None:
        self._vhost = vhost
        self._ready = self._unacked = 0
        self._stats = vhost.past_channels
        self._received, self._sent = vhost.past_received, vhost.past_sent

    def add_queues(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            self._ready += queue.backing.length
            self._unacked += queue.unacked

    def add_connections(self, connections: Iterable[Connection]) -> None:
        for connection in connections:
            if connection.vhost is self._vhost:
                self._received += connection.received_octets
                self._sent += connection.sent_octets
                for channel in connection.channels.values():
                    self._stats = self._stats.plus(channel.stats())

    @property
    def figures(self) -> Figures:
        ready, unacked = self._ready, self._unacked
        return (*self._stats, ready + unacked, ready, unacked, self._received, self._sent)


def node_connections(node: Node) -> list[Connection]:
    """The clients of the node, which are AMQP connections all."""
    return [client for client in node.clients if isinstance(client, Connection)]


def _could_deliver(queue: Queue) -> float:
    """1 or 0: whether a message would find a consumer now."""
    return float(bool(queue.consumers) and (bool(queue.ring.top) or not queue.backing.length))


def _queue_activity(queue: Queue) -> float:
    return (
        queue.published
        + queue.acked
        + queue.given_back
        + queue.got
        + queue.got_no_ack
        + queue.got_nothing
        + queue.unacked
        + queue.backing.length
    )
