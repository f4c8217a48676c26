"""What `warren ctl` needs beyond RabbitMQ's API: status, limits, log, listeners, stopping the node.

These endpoints are for the control socket only, except for the status, which a monitor may read.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import platform
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warren import __version__
from warren.config import LOG_LEVELS, LogLevel
from warren.core.access.access_control import LoginRefused
from warren.core.definitions.validation import is_integer, is_number
from warren.core.resources.memory_monitor import Absolute, Fraction, Limit, share
from warren.log_output import change_level, reopen_files
from warren.mgmt.api.changes import audit
from warren.mgmt.api.deliveries import QUEUES_MAX_BYTES, deliveries
from warren.mgmt.api.overview import cluster_name, config_files, memory_breakdown
from warren.mgmt.definitions.export import export_all
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.errors import ApiError, BadRequest
from warren.mgmt.http.request import ApiRequest, demanded, text
from warren.mgmt.managed_node import ManagedNode
from warren.mgmt.network_interfaces import network_interfaces
from warren.mgmt.rabbitmq_version import RABBITMQ_VERSION
from warren.mgmt.statistics.sampler import node_connections

TAIL_BYTES_MAX = 1 << 20
"""Octets at the end of the log file in which its last lines are looked for."""

TAIL_LINES_MAX = 10_000

PURPOSES = {
    "amqp": "AMQP 0-9-1",
    "amqp/ssl": "AMQP 0-9-1 over TLS",
    "http": "HTTP API",
    "https": "HTTP API over TLS",
    "http/prometheus": "Prometheus exporter API over HTTP",
}

PLUGINS = (
    "rabbitmq_auth_mechanism_ssl",
    "rabbitmq_consistent_hash_exchange",
    "rabbitmq_federation",
    "rabbitmq_federation_management",
    "rabbitmq_management",
    "rabbitmq_management_agent",
    "rabbitmq_prometheus",
    "rabbitmq_random_exchange",
    "rabbitmq_shovel",
    "rabbitmq_shovel_management",
)
"""RabbitMQ's plugins whose functions Warren has built in."""

HIDDEN = "********"
"""Replaces passwords in answers."""

SECRETS = ("default_pass", "password", "secret", "etcd_password")
"""Settings whose values are not shown: passwords of users, keys and etcd; a cluster's secret."""


async def status(request: ApiRequest) -> Any:
    """The node's status with RabbitMQ's names, and more that RabbitMQ does not have."""
    managed, node = request.managed, request.node
    machine = managed.machine()
    storage = managed.storage
    files = _files(managed)
    return {
        "node": node.name,
        "cluster_name": cluster_name(managed),
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": "Warren",
        "product_version": __version__,
        "erlang_version": f"Python {platform.python_version()}",
        "crypto_lib_version": ssl.OPENSSL_VERSION,
        "release_series_support_status": "supported",
        "os": platform.system(),
        "pid": os.getpid(),
        "uptime": int(node.uptime_s),
        "run_queue": 0,
        "net_ticktime": 60,
        "processes": {"used": machine.proc_used, "limit": machine.proc_total},
        "is_under_maintenance": managed.suspended or managed.drained,
        "active_plugins": list(PLUGINS),
        "enabled_plugin_file": "",
        **files,
        "alarms": [
            {"node": alarm.node, "resource": alarm.resource.value} for alarm in _alarms(managed)
        ],
        "memory": memory_breakdown(managed),
        "vm_memory_calculation_strategy": "rss",
        "vm_memory_high_watermark_setting": _shown_limit(managed.memory.watermark),
        "vm_memory_high_watermark_limit": machine.mem_limit,
        "file_descriptors": {
            "total_used": machine.fd_used,
            "total_limit": machine.fd_total,
            "sockets_used": machine.sockets_used,
            "sockets_limit": machine.sockets_total,
        },
        "disk_free": machine.disk_free if managed.disk is not None else None,
        "disk_free_limit": machine.disk_free_limit,
        "totals": {
            "connection_count": len(node_connections(node)),
            "queue_count": sum([len(vhost.queues) for vhost in node.vhosts.values()]),
            "virtual_host_count": len(node.vhosts),
        },
        "listeners": listener_rows(managed),
        "storage": (
            {
                "lost_messages": storage.lost,
                "damaged_records": storage.damaged,
                "unclaimed_messages": storage.unclaimed.totals()[1],
                "unreadable_definitions": len(node.metadata.unreadable),
            }
            if storage is not None
            else None
        ),
    }


def listener_rows(managed: ManagedNode) -> list[dict[str, Any]]:
    return [
        {
            "node": managed.name,
            "interface": f"[{one.host}]" if ":" in one.host else one.host,
            "port": one.port,
            "protocol": one.protocol,
            "purpose": PURPOSES.get(one.protocol, one.protocol),
        }
        for one in managed.listeners
    ]


def _alarms(managed: ManagedNode) -> list[Any]:
    return managed.node.alarms.in_effect()


def _files(managed: ManagedNode) -> dict[str, Any]:
    config = managed.config
    logs = [str(config.log_file.absolute())] if config.log_file is not None else []
    if config.log_console:
        logs.append(f"<{config.log_console_stream}>")
    directory = managed.data_directory
    return {
        "data_directory": str(directory.absolute()) if directory is not None else "",
        "raft_data_directory": "",
        "config_files": config_files(managed),
        "log_files": logs,
    }


def _shown_limit(limit: Limit) -> dict[str, float]:
    if isinstance(limit, Absolute):
        return {"absolute": limit.octets}
    return {"relative": limit.of_total}


# Limits


async def put_memory_watermark(request: ApiRequest) -> None:
    limit = _limit(await request.body(), relative_max=1.0)
    managed = request.managed
    process = managed.config.process
    managed.memory.watermark = limit if process is None else share(limit, process.count)
    managed.memory.check(request.node.clock.now())
    audit(request, "memory_watermark_set", **_shown_limit(limit))


async def put_disk_free_limit(request: ApiRequest) -> None:
    limit = _limit(await request.body(), relative_max=None)
    disk = request.managed.disk
    if disk is None:
        raise BadRequest("the node keeps nothing on disk")
    disk.limit = limit
    disk.check(request.node.clock.now())
    audit(request, "disk_free_limit_set", **_shown_limit(limit))


def _limit(body: dict[str, Any], *, relative_max: float | None) -> Limit:
    """A number of bytes, `absolute`, or a share of the memory, `relative`. Raises `BadRequest`."""
    match body:
        case {"absolute": octets} if is_integer(octets) and octets >= 0:
            return Absolute(octets)
        case {"relative": share} if is_number(share) and share >= 0:
            if relative_max is not None and share > relative_max:
                raise BadRequest(f"a fraction between 0.0 and {relative_max} was wanted")
            return Fraction(float(share))
    raise BadRequest('{"absolute": bytes} or {"relative": fraction} was wanted')


# Log


async def put_log_level(request: ApiRequest) -> None:
    (level,) = demanded(await request.body(), "level")
    if level not in LOG_LEVELS:
        raise BadRequest(f"level {level} is not supported. Try one of {', '.join(LOG_LEVELS)}")
    chosen: LogLevel = level
    change_level(chosen)
    audit(request, "log_level_set", level=level)


async def rotate_logs(request: ApiRequest) -> None:
    reopen_files()


async def log_tail(request: ApiRequest) -> Any:
    """The last lines of the log file."""
    path = request.managed.config.log_file
    if path is None:
        raise ApiError(404, "no_log_file", "the node logs to its standard error output only")
    try:
        count = int(request.query("lines", "50"))
    except ValueError as error:
        raise BadRequest("lines should be a number") from error
    count = max(0, min(count, TAIL_LINES_MAX))
    try:
        lines = await asyncio.to_thread(_last_lines, path, count)
    except OSError as error:
        raise ApiError(404, "no_log_file", str(error)) from error
    return {"file": str(path.absolute()), "lines": lines}


def _last_lines(path: Path, count: int) -> list[str]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES_MAX))
        found = file.read(TAIL_BYTES_MAX).decode("utf-8", "replace").split("\n")
    lines = found[:-1] if found[-1] == "" else found
    return lines[-count:] if count else []


# Listeners


def _listeners(suspended: bool) -> Callable[[ApiRequest], Any]:
    async def change(request: ApiRequest) -> None:
        managed = request.managed
        managed.suspend_listeners(suspended)
        managed.suspended = suspended
        audit(request, "listeners_suspended" if suspended else "listeners_resumed")

    return change


# Maintenance


async def drain(request: ApiRequest) -> Any:
    """Begin maintenance: close all clients, and hand over the queues that other nodes can lead.

    The answer has the number of queues that this node still leads.
    """
    managed, cluster = request.managed, request.managed.cluster
    managed.drained = managed.suspended = True
    managed.suspend_listeners(True)
    audit(request, "node_drained")
    request.node.close_all("Node was put into maintenance mode")
    if cluster is not None:
        await cluster.drain()
    return {"queues_left": len(list(request.node.local_queues))}


async def revive(request: ApiRequest) -> None:
    managed, cluster = request.managed, request.managed.cluster
    if cluster is not None:
        cluster.revive()
    managed.suspend_listeners(False)
    managed.drained = managed.suspended = False
    audit(request, "node_revived")


# The process


async def stop(request: ApiRequest) -> Any:
    """Have the node stop; the answer is sent before it does."""
    audit(request, "node_stop_wanted")
    request.managed.stop()
    return {"pid": os.getpid()}


async def authenticate(request: ApiRequest) -> Any:
    body = await request.body()
    demanded(body, "username", "password")
    try:
        request.node.access.authenticate(text(body, "username"), text(body, "password"), True)
    except LoginRefused as refusal:
        return {"authenticated": False, "reason": str(refusal)}
    return {"authenticated": True}


async def environment(request: ApiRequest) -> Any:
    """The configuration that results from flags, environment and file."""
    return _plain(dataclasses.asdict(request.managed.config))


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {
                name: HIDDEN if name in SECRETS else _plain(item) for name, item in value.items()
            }
        case list() | tuple() | set() | frozenset():
            items = [_plain(item) for item in value]
            return sorted(items, key=str) if isinstance(value, set | frozenset) else items
        case Path():
            return str(value)
    return value


async def os_env(request: ApiRequest) -> Any:
    """The environment variables that a node reads; passwords are hidden."""
    return {
        name: HIDDEN if "PASS" in name or "COOKIE" in name else value
        for name, value in sorted(os.environ.items())
        if name.startswith(("WARREN_", "RABBITMQ_"))
    }


async def command_line(request: ApiRequest) -> Any:
    return [sys.executable, *sys.orig_argv[1:]]


async def interfaces(request: ApiRequest) -> Any:
    return network_interfaces()


async def definitions(request: ApiRequest) -> Any:
    """The definitions in the form that RabbitMQ's command line writes."""
    return export_all(request.node, for_ctl=True)


def _local(path: str, method: str, handler: Callable[[ApiRequest], Any], summary: str) -> Endpoint:
    return Endpoint(f"/control/{path}", {method: handler}, Right.LOCAL, summary)


ENDPOINTS = [
    Endpoint("/control/status", {"GET": status}, Right.MONITOR, "The node as `ctl status` has it"),
    _local("memory-watermark", "PUT", put_memory_watermark, "Set the memory watermark"),
    _local("disk-free-limit", "PUT", put_disk_free_limit, "Set the limit of free disk space"),
    _local("log-level", "PUT", put_log_level, "Log less or more"),
    _local("log-tail", "GET", log_tail, "The last lines of the log"),
    _local("rotate-logs", "POST", rotate_logs, "Open the log file anew"),
    _local("listeners/suspend", "POST", _listeners(True), "Let no new clients in"),
    _local("listeners/resume", "POST", _listeners(False), "Let new clients in again"),
    _local("drain", "POST", drain, "Begin maintenance"),
    _local("revive", "POST", revive, "End maintenance"),
    Endpoint(
        "/control/deliveries",
        {"POST": deliveries},
        Right.LOCAL,
        "Which messages are unacknowledged, and which were delivered once",
        body_bytes_max=QUEUES_MAX_BYTES,
    ),
    _local("stop", "POST", stop, "Stop the node"),
    _local("authenticate", "POST", authenticate, "Try a name and a password"),
    _local("environment", "GET", environment, "The configuration"),
    _local("os-env", "GET", os_env, "Environment variables"),
    _local("command-line", "GET", command_line, "How the node was started"),
    _local("network-interfaces", "GET", interfaces, "Network interfaces of the machine"),
    _local("definitions", "GET", definitions, "Definitions as `ctl export_definitions` has them"),
]
