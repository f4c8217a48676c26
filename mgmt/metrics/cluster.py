"""Metrics of a node in a cluster: members, links, and mirrored queues.

Metrics that RabbitMQ has are under its names, including those of Erlang's distribution, which its
dashboards and alerts use for the links between nodes; others are `warren_...`. A node that is alone
has none of these metrics.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import NamedTuple

from warren.core.queues.queue import Queue
from warren.mgmt.http.slices import chunks
from warren.mgmt.managed_node import ManagedNode
from warren.mgmt.metrics.exposition import OWN_PREFIX, Metric, MetricRows, Values, labels, written
from warren.mgmt.metrics.grouping import grouped
from warren.mgmt.queue_members import lacks_majority
from warren.mirror.replication.definition.promotion import FAILOVERS, Promotion
from warren.mirror.replication.figures import Lag, MirrorFigures

RABBITMQ_PREFIX = "rabbitmq_"
ERLANG_PREFIX = "erlang_vm_"
OWN_DETAILED_PREFIX = "warren_detailed_"

PENDING, UP = 1, 3
"""States of a link, with Erlang's numbers."""

UNREACHABLE = (
    Metric("unreachable_cluster_peers_count", "gauge", "Members that this node cannot reach"),
)
MEMBERS = (
    Metric("cluster_members", "gauge", "Members of the cluster"),
    Metric("cluster_members_up", "gauge", "Members that run, as etcd says"),
    Metric("cluster_partitioned_peers", "gauge", "Members that run and cannot be reached"),
    Metric("cluster_etcd_reachable", "gauge", "1 while definitions can be changed in etcd"),
    Metric("cluster_lease_held", "gauge", "1 while the others must take this node for up"),
)
# RabbitMQ has these as gauges, though most of them only grow.
DISTRIBUTION = (
    Metric("dist_node_state", "gauge", "Of the link to a member: 3 is up, 1 is down"),
    Metric("dist_recv_bytes", "gauge", "Octets received from a member"),
    Metric("dist_recv_cnt", "gauge", "Frames received from a member"),
    Metric("dist_send_bytes", "gauge", "Octets sent to a member"),
    Metric("dist_send_cnt", "gauge", "Frames sent to a member"),
    Metric("dist_send_pend_bytes", "gauge", "Octets that wait to be sent to a member"),
)
LOST = (Metric("link_lost_total", "counter", "Links to a member that have gone down"),)
ROUND_TRIP = (
    Metric("link_round_trip_seconds", "gauge", "To a member and back, as the kernel reckons"),
)

LED = (Metric("mirroring_queues_led", "gauge", "Mirrored queues that this node leads"),)
WITHOUT = (
    Metric(
        "mirroring_queues_without_synchronised_mirror",
        "gauge",
        "Of these, queues that shall have mirrors and have none in sync",
    ),
)
MIRRORS = (
    Metric("mirroring_mirrors_in_sync", "gauge", "Mirrors in sync, of queues led here"),
    Metric("mirroring_mirrors_out_of_sync", "gauge", "Mirrors not in sync, of queues led here"),
    Metric("mirroring_lag_batches", "gauge", "Batches that mirrors have not reported yet"),
    Metric("mirroring_lag_bytes", "gauge", "Octets of these batches"),
    Metric("mirroring_syncs_running", "gauge", "Mirrors that are being synchronised"),
    Metric("mirroring_sync_messages_left", "gauge", "Messages that these are still to be sent"),
)
COPIES = (
    Metric("mirroring_copies_in_sync", "gauge", "Mirrors of this node that are in sync"),
    Metric("mirroring_copies_out_of_sync", "gauge", "Mirrors of this node that are not"),
)
MAJORITY = (
    Metric(
        "mirroring_copies_without_majority",
        "gauge",
        "Quorum queues and streams with a copy here, led or not, most of whose members are down",
    ),
)
PROMOTIONS = (
    Metric("mirroring_promotions_total", "counter", "Queues that this node was given the lead of"),
)
FAILED_OVER = (
    Metric("mirroring_failovers_total", "counter", "Of these, queues whose leader was lost"),
)


class LedMirror(NamedTuple):
    """A mirror of a queue that this node leads."""

    queue: Queue
    node: str
    values: Values


async def of_cluster(managed: ManagedNode, *, per_object: bool) -> AsyncIterator[bytes]:
    if managed.cluster is None or managed.peers is None:
        return
    for groups, prefix in (
        ([_unreachable(managed)], RABBITMQ_PREFIX),
        (_links(managed), ERLANG_PREFIX),
        ([*_members(managed), *await mirroring(managed, per_object=per_object)], OWN_PREFIX),
    ):
        async for piece in written(groups, prefix):
            yield piece


async def mirroring_in_detail(
    managed: ManagedNode, vhosts: Collection[str] | None
) -> AsyncIterator[bytes]:
    """The metrics of each mirrored queue in these virtual hosts."""
    groups = await mirroring(managed, per_object=True, vhosts=vhosts)
    async for piece in written(groups, OWN_DETAILED_PREFIX):
        yield piece


# Members and links


def _unreachable(managed: ManagedNode) -> MetricRows:
    assert managed.peers is not None
    unreachable = len(managed.peers.members()) - 1 - len(managed.peers.linked())
    return MetricRows(UNREACHABLE, [("", (max(unreachable, 0),))])


def _others(managed: ManagedNode) -> list[str]:
    assert managed.peers is not None
    return [name for name in managed.peers.members() if name != managed.name]


def _members(managed: ManagedNode) -> list[MetricRows]:
    peers, cluster = managed.peers, managed.cluster
    assert peers is not None and cluster is not None
    members = (
        len(peers.members()),
        len(peers.up()),
        len(peers.partitioned()),
        int(cluster.metadata.reachable),
        int(cluster.membership.holds_lease()),
    )
    lost: list[tuple[str, Values]] = []
    round_trips: list[tuple[str, Values]] = []
    for name in _others(managed):
        traffic = cluster.traffic(name)
        shown = labels({"peer": name})
        lost.append((shown, (traffic.lost,)))
        if traffic.round_trip_s is not None:
            round_trips.append((shown, (traffic.round_trip_s,)))
    return [
        MetricRows(MEMBERS, [("", members)]),
        MetricRows(LOST, lost),
        MetricRows(ROUND_TRIP, round_trips),
    ]


def _links(managed: ManagedNode) -> list[MetricRows]:
    assert managed.cluster is not None
    rows: list[tuple[str, Values]] = []
    for name in _others(managed):
        traffic = managed.cluster.traffic(name)
        values = (
            UP if traffic.up else PENDING,
            traffic.received_octets,
            traffic.received_frames,
            traffic.sent_octets,
            traffic.sent_frames,
            traffic.backlog_bytes,
        )
        rows.append((labels({"peer": name}), values))
    return [MetricRows(DISTRIBUTION, rows)]


# Mirrored queues


async def mirroring(
    managed: ManagedNode, *, per_object: bool, vhosts: Collection[str] | None = None
) -> list[MetricRows]:
    """Metrics of mirrored queues: for each queue with `per_object`, otherwise summed."""
    assert managed.cluster is not None
    found = managed.cluster.mirroring.figures
    led = [queue for queue in found.led_queues() if vhosts is None or queue.vhost_name in vhosts]
    mirrors: list[LedMirror] = []
    async for chunk in chunks(led):
        for queue in chunk:
            mirrors += _mirrors_of(found, queue)
    copies = [copy for copy in found.copies_here() if vhosts is None or copy.key[1] in vhosts]
    keys = [queue.key for queue in led] + [copy.key for copy in copies]
    running = frozenset(managed.cluster.running())
    counted = found.promotions
    return [
        MetricRows(LED, [("", (len(led),))]),
        await grouped(
            WITHOUT,
            led,
            lambda queue: (int(found.lacks_mirrors(queue)),),
            lambda queue: labels({"vhost": queue.vhost_name, "queue": queue.name}),
            per_object=per_object,
        ),
        await grouped(
            MIRRORS, mirrors, lambda mirror: mirror.values, _mirror_labels, per_object=per_object
        ),
        await grouped(
            COPIES,
            copies,
            lambda copy: _told_apart(found.is_in_sync_here(copy)),
            lambda copy: labels({"vhost": copy.key[1], "queue": copy.key[2]}),
            per_object=per_object,
        ),
        await grouped(
            MAJORITY,
            keys,
            lambda key: (int(lacks_majority(managed, key, running)),),
            lambda key: labels({"vhost": key[1], "queue": key[2]}),
            per_object=per_object,
        ),
        MetricRows(PROMOTIONS, [(labels({"reason": why}), (counted[why],)) for why in Promotion]),
        MetricRows(FAILED_OVER, [("", (sum([counted[why] for why in FAILOVERS]),))]),
    ]


def _told_apart(in_sync: bool) -> Values:
    return (int(in_sync), int(not in_sync))


def _mirrors_of(found: MirrorFigures, queue: Queue) -> list[LedMirror]:
    state = found.state(queue)
    if state is None:
        return []
    mirrors = []
    for node in state.mirrors:
        lag = state.lag.get(node, Lag(0, 0))
        progress = state.progress.get(node)
        left = progress.total - progress.sent if progress is not None else 0
        values = (
            *_told_apart(node in state.in_sync),
            lag.batches,
            lag.octets,
            int(progress is not None),
            left,
        )
        mirrors.append(LedMirror(queue, node, values))
    return mirrors


def _mirror_labels(mirror: LedMirror) -> str:
    queue = mirror.queue
    return labels({"vhost": queue.vhost_name, "queue": queue.name, "mirror": mirror.node})
