"""The node at a glance: overview, nodes, cluster name (management_api.md sections 2 and 3)."""

from __future__ import annotations

import os
import platform
from operator import add
from typing import Any

from warren import __version__
from warren.amqp.sasl import offered
from warren.core.backing.backing_queue import QUEUE_BYTES
from warren.core.errors import BrokerError
from warren.core.exchanges.exchange import EXCHANGE_TYPES, FederationUpstreamExchange
from warren.core.policies.parameters import CLUSTER_NAME
from warren.mgmt.api import stats_json
from warren.mgmt.api.changes import audit, durable
from warren.mgmt.api.processes import add_reasons
from warren.mgmt.blocked import node_columns
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.errors import BadRequest, ObjectNotFound
from warren.mgmt.http.listing import chosen_columns, columns_of
from warren.mgmt.http.request import ApiRequest, demanded
from warren.mgmt.managed_node import ManagedNode
from warren.mgmt.peers import Peers, added
from warren.mgmt.rabbitmq_version import RABBITMQ_VERSION
from warren.mgmt.statistics import figures
from warren.mgmt.statistics.history import Figures, Sample
from warren.mgmt.statistics.sampler import node_connections

ERLANG_VERSION = "25"
"""The version of Erlang reported to clients that ask for it."""

CHURN = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)


def cluster_name(managed: ManagedNode) -> str:
    return managed.node.cluster_name


def config_files(managed: ManagedNode) -> list[str]:
    path = managed.config.config_file
    return [] if path is None else [str(path.absolute())]


def listeners(managed: ManagedNode) -> list[dict[str, Any]]:
    return [
        {
            "node": managed.name,
            "protocol": one.protocol,
            "ip_address": one.host,
            "port": one.port,
            "socket_opts": {},
        }
        for one in managed.listeners
    ]


def contexts(managed: ManagedNode) -> list[dict[str, Any]]:
    return [
        {
            "node": managed.name,
            "description": "Warren Management",
            "path": managed.config.path_prefix or "/",
            "port": str(one.port),
            "ssl_opts": [],
            "cowboy_opts": "[]",
        }
        for one in managed.listeners
        if one.protocol in ("http", "https")
    ]


def exchange_types() -> list[dict[str, Any]]:
    return [
        {"name": name, "description": f"AMQP {name} exchange", "enabled": True}
        | ({"internal_purpose": "federation"} if name == FederationUpstreamExchange.type else {})
        for name in sorted(EXCHANGE_TYPES)
    ]


async def overview(request: ApiRequest) -> Any:
    managed, node = request.managed, request.node
    peers = request.peers
    others = await peers.ask_all(request, "/overview") if peers is not None else {}
    shown, churn, totals = _shown(request)
    vhosts = request.seen_vhosts()
    connections = [
        one
        for one in node_connections(node)
        if request.caller.is_monitor or one.user_name == request.caller.name
    ]
    row: dict[str, Any] = {
        "management_version": RABBITMQ_VERSION,
        "rates_mode": managed.config.rates_mode,
        "sample_retention_policies": {
            "global": [600, 3600, 28800, 86400],
            "basic": [600, 3600],
            "detailed": [600],
        },
        "exchange_types": exchange_types(),
        "product_name": "Warren",
        "product_version": __version__,
        "rabbitmq_version": RABBITMQ_VERSION,
        "cluster_name": cluster_name(managed),
        "erlang_version": ERLANG_VERSION,
        "erlang_full_version": f"Python {platform.python_version()}",
        "release_series_support_status": "supported",
        "disable_stats": False,
        "enable_queue_totals": False,
        "message_stats": shown,
        "churn_rates": churn,
        "queue_totals": totals,
        "object_totals": {
            "channels": sum([len(one.channels) for one in connections]),
            "connections": len(connections),
            "consumers": sum(
                [len(channel.consumers) for one in connections for channel in one.channels.values()]
            ),
            "exchanges": sum([len(vhost.exchanges) for vhost in vhosts]),
            "queues": sum([len(vhost.queues) for vhost in vhosts]),
        },
        "statistics_db_event_queue": 0,
        "node": node.name,
        "listeners": listeners(managed) if request.caller.is_monitor else [],
        "contexts": contexts(managed) if request.caller.is_monitor else [],
    }
    for other in others.values():
        _add_node(row, other)
    if peers is not None:
        for name in ("listeners", "contexts"):
            row[name] = peers.once(row[name])
    return chosen_columns(row, columns_of(request))


def _add_node(row: dict[str, Any], other: dict[str, Any]) -> None:
    """Add another node's figures, listeners and contexts; definitions are the same on all nodes."""
    for name in ("message_stats", "churn_rates", "queue_totals"):
        row[name] = added(row[name], other[name])
    for name in ("channels", "connections", "consumers"):
        row["object_totals"][name] += other["object_totals"][name]
    for name in ("listeners", "contexts"):
        row[name] += other[name]


def _shown(request: ApiRequest) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Message stats, churn rates and lengths of queues.

    For a monitor they are those of the node. For other users, and with the header `X-Vhost`, stats
    and lengths are those of the visible virtual hosts; only monitors see churn rates.
    """
    statistics = request.managed.statistics
    kinds = ("lengths", "msg_rates", "node_stats")
    lengths, passed, churned = stats_json.times_of_kinds(request, *kinds)
    passed = passed or lengths
    churned = churned or passed
    offset_s = stats_json.wall_offset_s(request)
    current = statistics.node_figures()
    rates = statistics.node_rates(current)

    def of_node(times: list[float]) -> stats_json.ShownStats:
        samples = statistics.node_samples(times) if times else []
        return stats_json.ShownStats(figures.NODE, current, rates, samples, offset_s)

    churn = of_node(churned).levels(*CHURN) if request.caller.is_monitor else {}
    if request.caller.is_monitor and not request.http.headers.get("X-Vhost"):
        return (
            of_node(passed).message_stats(),
            churn,
            of_node(lengths).levels(*figures.LENGTHS),
        )
    vhosts = request.visible_vhosts()
    total = total_rates = (0.0,) * len(figures.VHOST)
    for vhost in vhosts:
        of_vhost = statistics.vhost_figures(vhost)
        total = _sum(total, of_vhost)
        total_rates = _sum(total_rates, statistics.vhost_rates(vhost, of_vhost))

    def of_vhosts(times: list[float]) -> stats_json.ShownStats:
        samples: dict[float, Figures] = {}
        for vhost in vhosts if times else ():
            for at, sampled in statistics.vhost_samples(vhost, times):
                samples[at] = _sum(samples[at], sampled) if at in samples else sampled
        newest_first = [Sample(at, samples[at]) for at in sorted(samples, reverse=True)]
        return stats_json.ShownStats(figures.VHOST, total, total_rates, newest_first, offset_s)

    return of_vhosts(passed).message_stats(), churn, of_vhosts(lengths).levels(*figures.LENGTHS)


def _sum(one: Figures, other: Figures) -> Figures:
    return tuple(map(add, one, other))


def node_row(request: ApiRequest) -> dict[str, Any]:
    managed, node = request.managed, request.node
    machine = managed.machine()
    times = stats_json.times(request, "node_stats")
    statistics = managed.statistics
    current = statistics.node_figures()
    samples = statistics.node_samples(times) if times else []
    shown = stats_json.ShownStats(
        figures.NODE,
        current,
        statistics.node_rates(current),
        samples,
        stats_json.wall_offset_s(request),
    )
    peers = managed.peers
    local = {alarm.resource.value for alarm in node.alarms.local()}
    disk = managed.disk
    return {
        "name": node.name,
        "type": "disc",
        "running": not managed.paused,
        "os_pid": str(os.getpid()),
        "uptime": int(node.uptime_s * 1000),
        **shown.levels(*figures.MACHINE, *CHURN),
        # Warren's own column: the octets on the disk that snapshots keep.
        "disk_pinned": disk.pinned_bytes() if disk is not None else 0,
        "fd_total": machine.fd_total,
        "sockets_total": machine.sockets_total,
        "mem_limit": machine.mem_limit,
        "mem_alarm": "memory" in local,
        "mem_calculation_strategy": "rss",
        "disk_free_limit": machine.disk_free_limit,
        "disk_free_alarm": "disk" in local,
        **node_columns(node),
        "disk_free": machine.disk_free if disk is not None and disk.enabled else "NaN",
        "proc_total": machine.proc_total,
        "run_queue": 0,
        "processors": os.cpu_count() or 1,
        "rates_mode": managed.config.rates_mode,
        "net_ticktime": 60,
        "state": "paused" if managed.paused else "running",
        "partitions": peers.partitioned() if peers is not None else [],
        "cluster_links": cluster_links(managed),
        "unclaimed_messages": unclaimed_totals(managed),
        "unreadable_definitions": len(node.metadata.unreadable),
        "exchange_types": exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": name, "enabled": True}
            for name in offered(managed.config.auth_mechanisms, False)
        ],
        "applications": [
            {"name": "warren", "description": "Warren", "version": __version__},
            {"name": "rabbit", "description": "RabbitMQ", "version": RABBITMQ_VERSION},
        ],
        "contexts": contexts(managed),
        "enabled_plugins": [
            "rabbitmq_federation",
            "rabbitmq_federation_management",
            "rabbitmq_management",
            "rabbitmq_prometheus",
            "rabbitmq_shovel",
            "rabbitmq_shovel_management",
        ],
        "log_files": [str(managed.config.log_file or "<stderr>")],
        "config_files": config_files(managed),
        "db_dir": str(managed.data_directory) if managed.data_directory is not None else "",
        "being_drained": managed.drained,
        "ra_open_file_metrics": {},
        "metrics_gc_queue_length": {},
    }


def unclaimed_totals(managed: ManagedNode) -> dict[str, int]:
    """Messages on disk that belong to no defined queue (`mgmt/api/unclaimed.py`)."""
    storage = managed.storage
    queues, messages = storage.unclaimed.totals() if storage is not None else (0, 0)
    return {"queues": queues, "messages": messages}


def cluster_links(managed: ManagedNode) -> list[dict[str, Any]]:
    """The links to other nodes that are up, with their traffic since the node started."""
    peers, cluster = managed.peers, managed.cluster
    if peers is None or cluster is None:
        return []
    rows = []
    for name in peers.linked():
        traffic = cluster.traffic(name)
        rows.append(
            {
                "name": name,
                "stats": {
                    "send_bytes": traffic.sent_octets,
                    "recv_bytes": traffic.received_octets,
                    "send_frames": traffic.sent_frames,
                    "recv_frames": traffic.received_frames,
                },
                "pending_bytes": traffic.backlog_bytes,
                "round_trip_seconds": traffic.round_trip_s,
                "lost": traffic.lost,
            }
        )
    return rows


async def list_nodes(request: ApiRequest) -> Any:
    """All members, also those that do not run; the others are asked for their rows."""
    peers = request.peers
    if peers is None:
        return [chosen_columns(node_row(request), columns_of(request))]
    others = await peers.ask_all(request, "/nodes")
    rows = []
    for name in peers.members():
        if name == request.node.name:
            rows.append(node_row(request))
        else:
            rows.append(others[name][0] if name in others else down_row(peers, name))
    await add_reasons(request, rows)
    return [chosen_columns(row, columns_of(request)) for row in rows]


def down_row(peers: Peers, name: str) -> dict[str, Any]:
    """The row of a member that does not run, or does not answer."""
    return {
        "name": name,
        "type": "disc",
        "running": False,
        "state": peers.standing(name),
        "partitions": [],
        "cluster_links": [],
    }


def check_node(request: ApiRequest) -> None:
    if request.name("node") != request.node.name:
        raise ObjectNotFound()


def _elsewhere(request: ApiRequest) -> Peers | None:
    """The nodes to ask if the path names another node; else None. Raises `ObjectNotFound`."""
    name = request.name("node")
    if name == request.node.name:
        return None
    peers = request.peers
    if peers is None or name not in peers.members():
        raise ObjectNotFound()
    return peers


async def get_node(request: ApiRequest) -> Any:
    peers = _elsewhere(request)
    if peers is not None:
        name = request.name("node")
        try:
            row = await peers.ask(name, request, "/nodes/{node}", {"node": name})
        except BrokerError:
            row = down_row(peers, name)
        await add_reasons(request, [row])
        return chosen_columns(row, columns_of(request))
    row = node_row(request)
    if not request.passed:
        await add_reasons(request, [row])
    if request.query_flag("memory"):
        row["memory"] = memory_breakdown(request.managed)
    return chosen_columns(row, columns_of(request))


def memory_breakdown(managed: ManagedNode) -> dict[str, Any]:
    """The use of memory by category: all figures except the total are estimates."""
    node = managed.node
    used = managed.memory.used_bytes or 0
    channels = sum([one.channel_count for one in node_connections(node)])
    parts = {
        "connection_readers": 0,
        "connection_writers": sum([one.owed_octets for one in node_connections(node)]),
        "connection_channels": 2500 * channels,
        "connection_other": 4000 * len(node.clients),
        "queue_procs": QUEUE_BYTES * sum([len(vhost.queues) for vhost in node.vhosts.values()]),
        "queue_slave_procs": 0,
        "quorum_queue_procs": 0,
        "stream_queue_procs": 0,
        "plugins": 0,
        "metrics": 0,
        "mgmt_db": 0,
        "mnesia": 0,
        "quorum_ets": 0,
        "other_ets": 0,
        "binary": min(sum([vhost_bytes(managed, name) for name in node.vhosts]), used),
        "msg_index": 0,
        "code": 30 << 20,
        "atom": 0,
        "other_system": 0,
        "allocated_unused": 0,
        "reserved_unallocated": 0,
    }
    parts["other_proc"] = max(0, used - sum(parts.values()))
    return {
        **parts,
        "strategy": "rss",
        "total": {"erlang": used, "rss": used, "allocated": used},
    }


def vhost_bytes(managed: ManagedNode, name: str) -> int:
    """Octets in memory of the bodies of ready messages in a virtual host."""
    now = managed.node.clock.now()
    vhost = managed.node.vhosts[name]
    return sum([queue.backing.status(now).ram_bytes for queue in vhost.queues_here()])


async def get_memory(request: ApiRequest) -> Any:
    return {"memory": await _memory(request)}


async def _memory(request: ApiRequest) -> dict[str, Any]:
    """The memory breakdown of the node in the path, which has to run."""
    peers = _elsewhere(request)
    if peers is None:
        return memory_breakdown(request.managed)
    name = request.name("node")
    answer = await peers.ask(name, request, "/nodes/{node}/memory", {"node": name})
    memory: dict[str, Any] = answer["memory"]
    return memory


async def get_relative_memory(request: ApiRequest) -> Any:
    memory = await _memory(request)
    total = memory["total"]["rss"] or 1
    shares = {
        name: round(100 * value / total, 2)
        for name, value in memory.items()
        if isinstance(value, int)
    }
    return {"memory": {**shares, "total": 100}}


async def get_cluster_name(request: ApiRequest) -> Any:
    return {"name": cluster_name(request.managed)}


async def put_cluster_name(request: ApiRequest) -> None:
    (name,) = demanded(await request.body(), "name")
    if not isinstance(name, str):
        raise BadRequest("name should be a string")
    request.node.global_parameters.set(CLUSTER_NAME, name)
    audit(request, "cluster_name_set", name=name)
    await durable(request)


ENDPOINTS = [
    Endpoint("/overview", {"GET": overview}, summary="The broker at a glance"),
    Endpoint(
        "/cluster-name",
        {"GET": get_cluster_name, "PUT": put_cluster_name},
        rights={"PUT": Right.ADMINISTRATOR},
        summary="The name of the cluster",
    ),
    Endpoint("/nodes", {"GET": list_nodes}, Right.MONITOR, summary="Nodes"),
    Endpoint("/nodes/{node}", {"GET": get_node}, Right.MONITOR, summary="One node"),
    Endpoint(
        "/nodes/{node}/memory", {"GET": get_memory}, Right.MONITOR, summary="Memory of a node"
    ),
    Endpoint(
        "/nodes/{node}/memory/relative",
        {"GET": get_relative_memory},
        Right.MONITOR,
        summary="Memory of a node in percent",
    ),
]
