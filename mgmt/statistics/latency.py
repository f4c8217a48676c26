"""Samples how long messages wait in queues, and how long clients take to acknowledge them.

To measure every message would slow every message down. Instead, while the metrics of queues are
scraped, two messages of each queue are watched at a time: the next to be published, until it is
delivered, and the last one delivered, until it is settled. So figures are exact to `INTERVAL_S`,
and a queue has at most ten samples a second.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import AsyncIterator
from typing import NamedTuple

from warren.amqp.consumer import ChannelConsumer, DeliveringChannel
from warren.core.node import Node
from warren.core.queues.local_queue import LocalQueue
from warren.mgmt.http.slices import chunks
from warren.mgmt.metrics.exposition import Metric, head, labels, number

log = logging.getLogger("warren.http")

INTERVAL_S = 0.1
WANTED_S = 600.0
"""Watching ends when the metrics have not been scraped for so long."""

BUCKETS_S = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 3600.0)

TIME_IN_QUEUE = Metric(
    "rabbitmq_queue_time_in_queue_seconds", "histogram", "From publish to delivery, sampled"
)
TIME_TO_ACK = Metric(
    "rabbitmq_queue_time_to_ack_seconds", "histogram", "From delivery to acknowledgement, sampled"
)


class Histogram:
    """Counts by upper bound in seconds."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, of: dict[str, str]) -> str:
        lines = []
        total = 0
        for bound, count in zip((*BUCKETS_S, float("inf")), self._counts, strict=True):
            total += count
            shown = labels({**of, "le": number(bound)})
            lines.append(f"{name}_bucket{shown} {total}\n")
        shown = labels(of)
        lines += [f"{name}_sum{shown} {self._sum!r}\n", f"{name}_count{shown} {total}\n"]
        return "".join(lines)


class _Delivery(NamedTuple):
    channel: DeliveringChannel
    tag: int
    at: float


class Watch:
    """The messages watched of one queue, and the results."""

    __slots__ = ("_delivery", "_position", "_since", "time_in_queue", "time_to_ack")

    def __init__(self) -> None:
        self.time_in_queue = Histogram()
        self.time_to_ack = Histogram()
        self._position: int | None = None
        self._since = 0.0
        self._delivery: _Delivery | None = None

    def look(self, queue: LocalQueue, now: float) -> None:
        self._look_at_queue(queue, now)
        self._look_at_delivery(queue, now)

    def _look_at_queue(self, queue: LocalQueue, now: float) -> None:
        head = queue.backing.undelivered_from
        if self._position is not None and head > self._position:
            self.time_in_queue.observe(now - self._since)
            self._position = None
        if self._position is None:
            self._position = queue.backing.next_position
            self._since = now
        elif queue.backing.next_position == self._position:
            # The watched message has not been published yet.
            self._since = now

    def _look_at_delivery(self, queue: LocalQueue, now: float) -> None:
        watched = self._delivery
        if watched is not None:
            if watched.tag in watched.channel.unacked:
                return
            self.time_to_ack.observe(now - watched.at)
            self._delivery = None
        for consumer in queue.consumers:
            if isinstance(consumer, ChannelConsumer) and consumer.unacked:
                channel = consumer.channel
                tag = channel.last_delivery_tag
                message = channel.unacked.get(tag)
                if message is not None and message.holder is consumer:
                    self._delivery = _Delivery(channel, tag, now)
                    return


class Latencies:
    """The watches of all queues of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._watches: dict[LocalQueue, Watch] = {}
        self._wanted_until = 0.0
        self._task: asyncio.Task[None] | None = None

    def wanted(self) -> None:
        """The figures are being read: watch for the next `WANTED_S`."""
        self._wanted_until = self._node.clock.now() + WANTED_S
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        try:
            while self._node.clock.now() < self._wanted_until:
                await self._look()
                await asyncio.sleep(INTERVAL_S)
        except Exception:
            log.exception("watching latencies failed")
        self._watches.clear()
        self._task = None

    async def _look(self) -> None:
        """Look at the queues that are watched, and start to watch others that have messages."""
        watches: dict[LocalQueue, Watch] = {}
        queues = list(self._node.local_queues)
        async for chunk in chunks(queues, 256):
            now = self._node.clock.now()
            for queue in chunk:
                watch = self._watches.get(queue)
                if watch is None and (queue.backing.length or queue.unacked):
                    watch = Watch()
                if watch is not None:
                    watch.look(queue, now)
                    watches[queue] = watch
        self._watches = watches

    async def written(self, node: Node) -> AsyncIterator[bytes]:
        """The histograms in the text format."""
        watched = [
            (vhost.name, queue, self._watches[queue])
            for vhost in node.vhosts.values()
            for queue in vhost.queues.values()
            if queue in self._watches
        ]
        for metric in (TIME_IN_QUEUE, TIME_TO_ACK):
            yield head(metric, "").encode()
            async for chunk in chunks(watched):
                lines = []
                for vhost, queue, watch in chunk:
                    of = {"vhost": vhost, "queue": queue.name}
                    in_queue = metric is TIME_IN_QUEUE
                    histogram = watch.time_in_queue if in_queue else watch.time_to_ack
                    lines.append(histogram.lines(metric.name, of))
                yield "".join(lines).encode()
