"""Gathers the values of metrics: aggregated, of every object, or of chosen families."""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

from warren import __version__
from warren.amqp.channel import Channel
from warren.core.messages.message_stats import NOTHING, MessageStats
from warren.core.queues.deduplicating_queue import DeduplicatingQueue
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue_type import QueueType
from warren.core.vhosts.node_counts import Death
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.api.overview import cluster_name
from warren.mgmt.blocked import NAMED_MAX, blocked
from warren.mgmt.http.slices import chunks
from warren.mgmt.managed_node import ManagedNode
from warren.mgmt.metrics import families
from warren.mgmt.metrics.exposition import OWN_PREFIX, Metric, MetricRows, Values, labels, written
from warren.mgmt.metrics.grouping import grouped
from warren.mgmt.rabbitmq_version import RABBITMQ_VERSION
from warren.mgmt.statistics.sampler import node_connections

T = TypeVar("T")

PREFIX = "rabbitmq_"
DETAILED_PREFIX = "rabbitmq_detailed_"
CLUSTER_PREFIX = "rabbitmq_cluster_"
PROTOCOL = labels({"protocol": "amqp091"})
COUNTED_TYPES = (QueueType.QUORUM, QueueType.STREAM)
"""Types whose queues' counts are added up; the rest of the node's totals is of classic queues."""

STRATEGIES: Mapping[QueueType, tuple[str, ...]] = {
    QueueType.CLASSIC: ("at_most_once",),
    QueueType.QUORUM: ("at_least_once", "at_most_once", "disabled"),
}
"""The dead-letter strategies that are counted, by type of queue."""
PERMANENT_ID = "internal_cluster_id"


class Collector:
    """One scrape. `vhosts` limits metrics of queues and exchanges to these virtual hosts."""

    def __init__(self, managed: ManagedNode, vhosts: set[str] | None = None) -> None:
        self._managed = managed
        self._node = managed.node
        self._now = managed.node.clock.now()
        self._only = vhosts

    # Groups

    def node_groups(self) -> list[MetricRows]:
        managed = self._managed
        return [
            MetricRows(families.ALARMS, [("", families.alarms(managed))]),
            MetricRows(families.CHURN, [("", families.churn(managed))]),
            MetricRows(families.NODE, [("", families.node(managed))]),
            MetricRows(families.PERSISTER, [("", self._persister())]),
            MetricRows(families.AUTH, [(PROTOCOL, families.auth(managed))]),
        ]

    def blocked_groups(self) -> list[MetricRows]:
        """This node's blocked connections; other nodes report their own."""
        total, by_queue = blocked(self._node)
        queues: list[tuple[str, Values]] = [
            (labels({"vhost": vhost, "queue": name}), (count,))
            for (vhost, name), count in by_queue.most_common(NAMED_MAX)
            if self._only is None or vhost in self._only
        ]
        return [
            MetricRows(families.BLOCKED, [("", (total,))]),
            MetricRows(families.BLOCKED_BY_QUEUE, queues),
        ]

    def shovel_groups(self) -> list[MetricRows]:
        """This node's shovels; other nodes report their own."""
        shovels = self._managed.shovels
        states: list[tuple[str, Values]] = [
            (labels({"state": state}), (number,)) for state, number in shovels.counts().items()
        ]
        moved = shovels.messages_moved()
        return [
            MetricRows(families.SHOVELS, states),
            MetricRows(families.SHOVEL_MESSAGES, [("", (moved,))]),
        ]

    def federation_groups(self) -> list[MetricRows]:
        """This node's federation links; other nodes report their own."""
        federation = self._managed.federation
        states: list[tuple[str, Values]] = [
            (labels({"type": kind, "state": state}), (number,))
            for (kind, state), number in federation.counts().items()
        ]
        received = federation.messages_received()
        return [
            MetricRows(families.FEDERATION_LINKS, states),
            MetricRows(families.FEDERATION_MESSAGES, [("", (received,))]),
        ]

    def delayed_group(self, *, per_object: bool) -> MetricRows:
        """Messages in the delay queues that this node leads."""
        rows: list[tuple[str, Values]] = []
        total = 0
        for vhost in self._chosen_vhosts():
            for name in vhost.delayed:
                queue = vhost.delay_queue(name)
                if queue is None or not queue.is_here:
                    continue
                total += len(queue)
                if per_object:
                    rows.append((labels({"vhost": vhost.name, "exchange": name}), (len(queue),)))
        return MetricRows(families.DELAYED, rows if per_object else [("", (total,))])

    def stream_group(self, *, per_object: bool) -> MetricRows:
        """Messages in streams that this node leads: they do not wait for consumers."""
        rows: list[tuple[str, Values]] = [
            (_queue_labels(item), (item[1].backing.length,))
            for item in self._queues_of_type(QueueType.STREAM)
        ]
        total = sum([count for _, (count,) in rows])
        return MetricRows(families.STREAMS, rows if per_object else [("", (total,))])

    def deduplicated_group(self, *, per_object: bool) -> MetricRows:
        """Duplicates dropped by deduplicating queues that this node leads."""
        rows: list[tuple[str, Values]] = [
            (_queue_labels((vhost, queue)), (queue.duplicates,))
            for vhost, queue in self._queues()
            if isinstance(queue, DeduplicatingQueue)
        ]
        total = sum([count for _, (count,) in rows])
        return MetricRows(families.DEDUPLICATED, rows if per_object else [("", (total,))])

    def retained_group(self, *, per_object: bool) -> MetricRows:
        """Acknowledged messages retained by queues that this node leads."""
        rows: list[tuple[str, Values]] = []
        totals = [0, 0]
        for vhost, queue in self._queues():
            retention = queue.retention
            if retention is not None:
                figures = (retention.log.length, retention.log.octets)
                rows.append((_queue_labels((vhost, queue)), figures))
                totals = [total + one for total, one in zip(totals, figures, strict=True)]
        return MetricRows(families.RETAINED, rows if per_object else [("", tuple(totals))])

    def trace_group(self) -> MetricRows:
        """Traces on this node."""
        return MetricRows(families.TRACES, [("", families.traces(self._managed))])

    def _persister(self) -> Values:
        storage = self._managed.storage
        if storage is None:
            return (0,) * len(families.PERSISTER)
        reads = writes = 0
        for store in storage.open_queues():
            reads += store.read_count
            writes += store.written_count
        journal = storage.journal
        return (
            journal.written_bytes,
            journal.batches,
            reads,
            writes,
            storage.lost,
            storage.damaged,
            storage.unclaimed.totals()[1],
            len(self._node.metadata.unreadable),
            journal.unwritten_bytes,
            *storage.pins.pinned,
            storage.pins.released,
        )

    async def queue_groups(self, *, per_object: bool) -> list[MetricRows]:
        managed, now = self._managed, self._now

        def values(item: tuple[VirtualHost, LocalQueue]) -> Values:
            queue = item[1]
            return (*families.queue_coarse(queue), *families.queue_full(managed, queue, now))

        metrics = (*families.QUEUE_COARSE, *families.QUEUE)
        return [await self._group(metrics, self._queues(), values, _queue_labels, per_object)]

    async def coarse_queue_group(self) -> MetricRows:
        return await self._group(
            families.QUEUE_COARSE,
            self._queues(),
            lambda item: families.queue_coarse(item[1]),
            _queue_labels,
            True,
        )

    async def full_queue_group(self) -> MetricRows:
        managed, now = self._managed, self._now
        return await self._group(
            families.QUEUE,
            self._queues(),
            lambda item: families.queue_full(managed, item[1], now),
            _queue_labels,
            True,
        )

    async def channel_groups(self, *, per_object: bool) -> list[MetricRows]:
        channels = self._channels()
        return [
            await self._group(
                families.CHANNEL, channels, families.channel_state, _channel_labels, per_object
            ),
            await self._group(
                families.CHANNEL_TRAFFIC,
                channels,
                families.channel_traffic,
                _channel_labels,
                per_object,
            ),
        ]

    async def connection_groups(self, *, per_object: bool) -> list[MetricRows]:
        connections = node_connections(self._node)
        return [
            await self._group(metrics, connections, values, _connection_labels, per_object)
            for metrics, values in (
                (families.CONNECTION, families.connection_octets),
                (families.CONNECTION_STATE, families.connection_state),
            )
        ]

    async def total_groups(self) -> list[MetricRows]:
        channels = self._channels()
        consumers = sum([len(channel.consumers) for channel in channels])
        # Queues of other nodes in the cluster are reported by those.
        vhosts = self._node.vhosts.values()
        queues = sum([1 for vhost in vhosts for _ in vhost.queues_here()])
        totals = (len(self._node.clients), len(channels), consumers, queues)
        return [
            MetricRows(families.TOTALS, [("", totals)]),
            *await self._global(channels, consumers),
        ]

    async def _global(self, channels: list[Channel], consumers: int) -> list[MetricRows]:
        stats = self._managed.statistics.message_totals()
        quorum, streams = [await self._of_type(kind) for kind in COUNTED_TYPES]
        # Channels count messages of all types together.
        classic = MessageStats(
            *(max(total - part, 0) for total, part in zip(stats, quorum.plus(streams), strict=True))
        )
        unroutable = stats.drop_unroutable + stats.return_unroutable
        received = (
            stats.publish,
            stats.confirm,
            max(stats.publish - unroutable, 0),
            stats.drop_unroutable,
            stats.return_unroutable,
            stats.confirm,
            sum([1 for channel in channels if channel.published]),
            consumers,
        )
        delivered = [
            (_type_label(QueueType.CLASSIC), families.delivered(classic)),
            (_type_label(QueueType.QUORUM), families.delivered(quorum)),
            (_type_label(QueueType.STREAM), families.delivered(streams)),
        ]
        return [
            MetricRows(families.GLOBAL, [(PROTOCOL, received)]),
            MetricRows(families.GLOBAL_BY_TYPE, delivered),
            *self._dead(),
        ]

    async def _of_type(self, kind: QueueType) -> MessageStats:
        """The message stats of this node's queues of this type."""
        total = self._node.counts.past_of_type.get(kind, NOTHING)
        async for chunk in chunks(self._queues_of_type(kind)):
            for _, queue in chunk:
                total = total.plus(queue.stats())
        return total

    def _dead(self) -> list[MetricRows]:
        counts = self._node.counts
        rows: list[tuple[str, Values]] = []
        limited: list[tuple[str, Values]] = []
        for kind, strategies in STRATEGIES.items():
            for strategy in strategies:
                shown = labels({"queue_type": kind.module, "dead_letter_strategy": strategy})
                of = partial(Death, kind, strategy)
                rows.append((shown, [counts.dead[of(why)] for why in families.DEATH_REASONS]))
                if kind is QueueType.QUORUM:
                    limited.append((shown, [counts.dead[of("delivery_limit")]]))
        sure = {"queue_type": QueueType.QUORUM.module, "dead_letter_strategy": "at_least_once"}
        return [
            MetricRows(families.DEAD_LETTERED, rows),
            MetricRows(families.DELIVERY_LIMIT, limited),
            MetricRows(families.DEAD_CONFIRMED, [(labels(sure), [counts.dead_confirmed])]),
        ]

    async def raft_group(self, *, per_object: bool) -> MetricRows:
        managed = self._managed
        return await self._group(
            families.RAFT,
            self._queues_of_type(QueueType.QUORUM),
            lambda item: families.raft(managed, item[1]),
            _queue_labels,
            per_object,
        )

    def identity_groups(self) -> list[MetricRows]:
        """Metrics that dashboards join with all others."""
        build = labels(
            {
                "rabbitmq_version": RABBITMQ_VERSION,
                "erlang_version": "25",
                "prometheus_plugin_version": RABBITMQ_VERSION,
                "prometheus_client_version": "4.9.1",
                "warren_version": __version__,
                "python_version": platform.python_version(),
            }
        )
        permanent = self._node.metadata.get(("global_parameter", PERMANENT_ID))
        value = getattr(permanent.record, "value", "") if permanent is not None else ""
        identity = labels(
            {
                "rabbitmq_node": self._node.name,
                "rabbitmq_cluster": cluster_name(self._managed),
                "rabbitmq_cluster_permanent_id": str(value),
            }
        )
        return [
            MetricRows((Metric("build_info", "untyped", "Versions"),), [(build, (1,))]),
            MetricRows((Metric("identity_info", "untyped", "Names"),), [(identity, (1,))]),
        ]

    def vhost_group(self) -> MetricRows:
        metric = Metric("vhost_status", "gauge", "1 for a virtual host that works")
        names = sorted(self._node.vhosts)
        return MetricRows((metric,), [(labels({"vhost": name}), (1,)) for name in names])

    def exchange_group(self, *, bindings: bool) -> MetricRows:
        metric = (
            Metric("exchange_bindings", "gauge", "Bindings an exchange is the source of")
            if bindings
            else Metric("exchange_name", "gauge", "1 for each exchange")
        )
        rows: list[tuple[str, Values]] = []
        for vhost in self._chosen_vhosts():
            for exchange in vhost.exchanges.values():
                shown = labels(
                    {"vhost": vhost.name, "exchange": exchange.name, "type": exchange.type}
                )
                rows.append((shown, (len(exchange.bindings) if bindings else 1,)))
        return MetricRows((metric,), rows)

    # The objects measured

    def _chosen_vhosts(self) -> list[VirtualHost]:
        vhosts = self._node.vhosts
        return [vhosts[name] for name in sorted(vhosts) if self._only is None or name in self._only]

    def _queues(self) -> list[tuple[VirtualHost, LocalQueue]]:
        return [(vhost, queue) for vhost in self._chosen_vhosts() for queue in vhost.queues_here()]

    def _queues_of_type(self, kind: QueueType) -> list[tuple[VirtualHost, LocalQueue]]:
        return [item for item in self._queues() if item[1].settings.type is kind]

    def _channels(self) -> list[Channel]:
        return [
            channel
            for connection in node_connections(self._node)
            for channel in connection.channels.values()
        ]

    @staticmethod
    async def _group(
        metrics: Sequence[Metric],
        things: Sequence[T],
        values: Callable[[T], Values],
        labels_of: Callable[[T], str],
        per_object: bool,
    ) -> MetricRows:
        return await grouped(
            metrics, things, values, labels_of, per_object=per_object, no_sum=families.NO_SUM
        )


def _each_once(groups: Iterable[MetricRows]) -> list[MetricRows]:
    """Drop metrics that an earlier group has: families overlap, and a name may appear only once."""
    seen: set[str] = set()
    kept = []
    for metrics, rows in groups:
        places = [at for at, metric in enumerate(metrics) if metric.name not in seen]
        seen.update([metric.name for metric in metrics])
        if len(places) == len(metrics):
            kept.append(MetricRows(metrics, rows))
        elif places:
            picked: list[tuple[str, Values]] = [
                (shown, [values[at] for at in places]) for shown, values in rows
            ]
            kept.append(MetricRows([metrics[at] for at in places], picked))
    return kept


def _type_label(kind: QueueType) -> str:
    return labels({"protocol": "amqp091", "queue_type": kind.module})


def _queue_labels(item: tuple[VirtualHost, LocalQueue]) -> str:
    return labels({"vhost": item[0].name, "queue": item[1].name})


def _channel_labels(channel: Channel) -> str:
    pid = f"{channel.connection.pid[:-3]}.{channel.number}.0>"
    return labels({"channel": pid, "vhost": channel.vhost.name})


def _connection_labels(connection: Any) -> str:
    return labels({"connection": connection.pid, "channel": connection.pid})


async def exposed(managed: ManagedNode, *, per_object: bool) -> AsyncIterator[bytes]:
    """The metrics at /metrics, or at /metrics/per-object."""
    collector = Collector(managed)
    groups = [
        *collector.node_groups(),
        *await collector.queue_groups(per_object=per_object),
        await collector.raft_group(per_object=per_object),
        *await collector.channel_groups(per_object=per_object),
        *await collector.connection_groups(per_object=per_object),
        *await collector.total_groups(),
        *collector.identity_groups(),
    ]
    async for piece in written(groups, PREFIX):
        yield piece
    own = [
        *collector.shovel_groups(),
        *collector.federation_groups(),
        *collector.blocked_groups(),
        collector.delayed_group(per_object=per_object),
        collector.deduplicated_group(per_object=per_object),
        collector.stream_group(per_object=per_object),
        collector.retained_group(per_object=per_object),
        collector.trace_group(),
    ]
    async for piece in written(own, OWN_PREFIX):
        yield piece
    async for piece in _of_cluster(managed, per_object=per_object):
        yield piece
    if per_object:
        async for piece in managed.statistics.latencies.written(managed.node):
            yield piece


async def _of_cluster(managed: ManagedNode, *, per_object: bool) -> AsyncIterator[bytes]:
    """The metrics of the cluster. A node that is alone has none, and does not load the module."""
    if managed.cluster is not None:
        module = import_module("warren.mgmt.metrics.cluster")
        async for piece in module.of_cluster(managed, per_object=per_object):
            yield piece


async def detailed(
    managed: ManagedNode, wanted: Sequence[str], vhosts: set[str] | None
) -> AsyncIterator[bytes]:
    """The metrics at /metrics/detailed: the families asked for, of these virtual hosts."""
    collector = Collector(managed, vhosts)
    groups: list[MetricRows] = []
    cluster: list[MetricRows] = []
    mirroring = managed.cluster is not None and "mirroring_metrics" in wanted
    node = dict(
        zip(
            ("alarm_metrics", "connection_churn_metrics", "node_coarse_metrics",
             "node_persister_metrics", "auth_attempt_metrics"),
            collector.node_groups(),
            strict=True,
        )
    )  # fmt: skip
    for family in dict.fromkeys(wanted):
        match family:
            case "queue_coarse_metrics":
                groups.append(await collector.coarse_queue_group())
            case "ra_metrics":
                groups.append(await collector.raft_group(per_object=True))
            case "queue_metrics":
                groups.append(await collector.full_queue_group())
            case "queue_consumer_count":
                full = await collector.full_queue_group()
                groups.append(MetricRows(full.metrics[:1], full.rows))
            case "channel_metrics":
                groups += islice(await collector.channel_groups(per_object=True), 1)
            case "channel_queue_exchange_metrics" | "channel_exchange_metrics":
                groups += (await collector.channel_groups(per_object=True))[1:]
            case "connection_coarse_metrics":
                groups += islice(await collector.connection_groups(per_object=True), 1)
            case "connection_metrics":
                groups += (await collector.connection_groups(per_object=True))[1:]
            case "vhost_status":
                cluster.append(collector.vhost_group())
            case "exchange_names":
                cluster.append(collector.exchange_group(bindings=False))
            case "exchange_bindings":
                cluster.append(collector.exchange_group(bindings=True))
            case _ if family in node:
                groups.append(node[family])
    async for piece in written(_each_once(groups), DETAILED_PREFIX):
        yield piece
    async for piece in written(cluster, CLUSTER_PREFIX):
        yield piece
    if mirroring:
        module = import_module("warren.mgmt.metrics.cluster")
        async for piece in module.mirroring_in_detail(managed, vhosts):
            yield piece
    async for piece in written(collector.identity_groups(), PREFIX):
        yield piece
