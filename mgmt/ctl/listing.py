"""Lists of queues, exchanges, bindings, connections, channels and consumers.

Each list has its columns, and for each a function that makes it from a row of the HTTP API. Some
have another name there, and process ids are only in the list of connections, which has to be asked
for, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from zlib import crc32

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import command, flag, option, several
from warren.mgmt.ctl.formats import Answer, Numbers, Table
from warren.mgmt.ctl.vhosts import checked_columns

Row: TypeAlias = dict[str, Any]
Columns: TypeAlias = dict[str, Callable[[Row], Any]]

AMQP = Numbers((0, 9, 1))


def _same(*names: str) -> Columns:
    """Columns that have the same name in the API."""
    return {name: _field(name) for name in names}


def _field(name: str) -> Callable[[Row], Any]:
    return lambda row: row.get(name)


def _table(rows: list[Row], columns: Mapping[str, Callable[[Row], Any]], chosen: Any) -> Table:
    return Table(tuple(chosen), [[columns[name](row) for name in chosen] for row in rows])


def _of_vhost(call: CommandCall, what: str, **query: str) -> list[Row]:
    """The list of a virtual host; empty if there is no such virtual host, as in RabbitMQ."""
    found = call.client.find(what, call.vhost, **query)
    assert found is None or isinstance(found, list)
    return found or []


# Queues

CHEAP = (
    "name", "durable", "auto_delete", "arguments", "exclusive", "type",
    "messages", "messages_ready", "messages_unacknowledged",
)  # fmt: skip
"""Columns that cost the node next to nothing."""

QUEUES: Columns = {
    **_same(*CHEAP),
    **_same(
        "policy", "exclusive_consumer_tag", "messages_ready_ram", "messages_unacknowledged_ram",
        "messages_ram", "messages_persistent", "message_bytes", "message_bytes_ready",
        "message_bytes_unacknowledged", "message_bytes_ram", "message_bytes_persistent",
        "head_message_timestamp", "consumers", "consumer_utilisation", "consumer_capacity",
        "memory", "state",
    ),
    "pid": lambda row: queue_pid(row),
    "owner_pid": lambda row: row.get("owner_pid"),
    "exclusive_consumer_pid": lambda row: row.get("exclusive_consumer_pid"),
    "disk_reads": lambda row: row.get("message_stats", {}).get("disk_reads", 0),
    "disk_writes": lambda row: row.get("message_stats", {}).get("disk_writes", 0),
    "slave_pids": lambda row: mirror_pids(row, "slave_nodes"),
    "synchronised_slave_pids": lambda row: mirror_pids(row, "synchronised_slave_nodes"),
    # Warren's own columns.
    **_same("promoted", "promoted_at", "waits_for"),
    "mirror_lag": lambda row: mirror_lag(row),
    "sync_progress": lambda row: sync_progress(row),
    "messages_waiting": lambda row: row.get("messages_waiting"),
    "messages_retained": lambda row: row.get("retained", {}).get("messages"),
    "message_bytes_retained": lambda row: row.get("retained", {}).get("octets"),
    # Columns about members, which classic queues do not have.
    **_same("leader", "members", "online"),
}  # fmt: skip

WITH_PIDS = ("owner_pid", "exclusive_consumer_pid")


def queue_pid(row: Row) -> str:
    """Stands for the process id of a queue: it is unique, and has the name of the node."""
    return _pid(row, row["node"])


def mirror_pids(row: Row, of: str) -> list[str] | None:
    """The same for the queue's mirrors; None for a queue that is not mirrored."""
    nodes = row.get(of)
    return None if nodes is None else [_pid(row, node) for node in nodes]


def mirror_lag(row: Row) -> list[str] | None:
    """How far each mirror lags behind; None for a queue that is not mirrored."""
    lag = row.get("mirror_lag")
    if lag is None:
        return None
    octets = row.get("mirror_lag_bytes", {})
    return [
        f"{mirror}: {batches} batches, {octets.get(mirror, 0)} octets"
        for mirror, batches in lag.items()
    ]


def sync_progress(row: Row) -> list[str] | None:
    """The progress of synchronisations; None for a queue that is not mirrored."""
    if "slave_nodes" not in row:
        return None
    told = []
    for mirror, progress in row.get("sync_progress", {}).items():
        left_s = progress["seconds_left"]
        estimate = "" if left_s is None else f", {left_s:g} s left"
        told.append(f"{mirror}: {progress['sent']} of {progress['total']}{estimate}")
    return told


def _pid(row: Row, node: str) -> str:
    number = crc32(f"{row['vhost']}\0{row['name']}".encode("utf-8", "surrogatepass"))
    return f"<{node}.0.{number}.0>"


@command(
    "list_queues",
    "List queues.",
    several("columns"),
    flag("--online", help="Those whose node runs."),
    flag("--offline", help="Those whose node does not run."),
    flag("--local", help="Those of this node."),
)
def list_queues(
    call: CommandCall, columns: tuple[str, ...], online: bool, offline: bool, local: bool
) -> Answer:
    chosen = checked_columns(columns, tuple(QUEUES), ("name", "messages"))
    timeout_s = call.options.timeout
    if timeout_s is None:
        timeout_s = 60.0
    call.announce(f"Timeout: {timeout_s} seconds ...\nListing queues for vhost {call.vhost} ...")
    # The cheap columns do not tell whether a queue's node runs.
    if set(chosen) <= set(CHEAP) and online is offline:
        rows = _of_vhost(call, "queues", disable_stats="true", enable_queue_totals="true")
    else:
        rows = _of_vhost(call, "queues")
    if online is not offline:
        rows = [row for row in rows if (row.get("state") == "down") is offline]
    if local:
        rows = [row for row in rows if row["node"] == call.node]
    if set(chosen) & set(WITH_PIDS):
        _add_pids(call, rows)
    return _table(rows, QUEUES, chosen)


def _add_pids(call: CommandCall, rows: list[Row]) -> None:
    """Add the ids of the owners of exclusive queues and of exclusive consumers."""
    pids = _pids(call)
    exclusive = {
        consumer["queue"]["name"]: _channel_pid(consumer, pids)
        for consumer in _of_vhost(call, "consumers")
        if consumer["exclusive"]
    }
    for row in rows:
        row["owner_pid"] = pids.get(row.get("owner_pid_details", {}).get("name"))
        row["exclusive_consumer_pid"] = exclusive.get(row["name"])


def _pids(call: CommandCall) -> dict[str, str]:
    """The process ids of connections by name."""
    rows = call.client.get("connections", columns="name,pid")
    return {row["name"]: row["pid"] for row in rows}


def _channel_pid(consumer: Row, pids: Mapping[str, str]) -> str | None:
    channel = consumer["channel_details"]
    pid = pids.get(channel.get("connection_name", ""))
    return None if pid is None else f"{pid[: pid.rindex('.')]}.{channel['number']}.0>"


@command(
    "list_unresponsive_queues",
    "List queues that do not answer: on one event loop all do, or none.",
    several("columns"),
    flag("--local"),
    option("--queue-timeout", type=int, metavar="MILLISECONDS"),
)
def list_unresponsive_queues(
    call: CommandCall, columns: tuple[str, ...], local: bool, queue_timeout: int | None
) -> Answer:
    chosen = checked_columns(columns, tuple(QUEUES), ("name",))
    call.announce(f"Listing unresponsive queues for vhost {call.vhost} ...")
    _of_vhost(call, "queues", disable_stats="true")
    return Table(chosen, [])


# Exchanges and bindings

EXCHANGES = _same(
    "name", "type", "durable", "auto_delete", "internal", "arguments", "policy", "messages_delayed"
)

BINDINGS: Columns = {
    "source_name": _field("source"),
    "source_kind": lambda row: "exchange",
    "destination_name": _field("destination"),
    "destination_kind": _field("destination_type"),
    **_same("routing_key", "arguments"),
}


@command("list_exchanges", "List exchanges.", several("columns"))
def list_exchanges(call: CommandCall, columns: tuple[str, ...]) -> Answer:
    chosen = checked_columns(columns, tuple(EXCHANGES), ("name", "type"))
    call.announce(f"Listing exchanges for vhost {call.vhost} ...")
    return _table(_of_vhost(call, "exchanges"), EXCHANGES, chosen)


@command("list_bindings", "List bindings.", several("columns"))
def list_bindings(call: CommandCall, columns: tuple[str, ...]) -> Answer:
    chosen = checked_columns(columns, tuple(BINDINGS), tuple(BINDINGS))
    call.announce(f"Listing bindings for vhost {call.vhost}...")
    return _table(_of_vhost(call, "bindings"), BINDINGS, chosen)


# Connections, channels, consumers

CONNECTIONS: Columns = {
    **_same(
        "pid", "name", "port", "host", "peer_port", "peer_host", "ssl", "ssl_protocol",
        "ssl_key_exchange", "ssl_cipher", "ssl_hash", "peer_cert_subject", "peer_cert_issuer",
        "peer_cert_validity", "state", "channels", "auth_mechanism", "user", "vhost", "timeout",
        "frame_max", "channel_max", "client_properties", "recv_oct", "recv_cnt", "send_oct",
        "send_cnt", "send_pend", "connected_at", "node",
    ),
    "protocol": lambda row: AMQP,
}  # fmt: skip

CHANNELS: Columns = {
    **_same(
        "pid", "name", "number", "user", "vhost", "transactional", "confirm", "consumer_count",
        "messages_unacknowledged", "messages_uncommitted", "acks_uncommitted",
        "messages_unconfirmed", "prefetch_count", "global_prefetch_count",
    ),
    "connection": lambda row: row["connection_pid"],
}  # fmt: skip

CONSUMERS: Columns = {
    "queue_name": lambda row: row["queue"]["name"],
    "channel_pid": _field("channel_pid"),
    **_same(
        "consumer_tag", "ack_required", "prefetch_count", "active", "activity_status", "arguments"
    ),
}


@command("list_connections", "List connections.", several("columns"))
def list_connections(call: CommandCall, columns: tuple[str, ...]) -> Answer:
    default = ("user", "peer_host", "peer_port", "state")
    chosen = checked_columns(columns, tuple(CONNECTIONS), default)
    call.announce("Listing connections ...")
    return _table(call.client.get("connections"), CONNECTIONS, chosen)


@command("list_channels", "List channels.", several("columns"))
def list_channels(call: CommandCall, columns: tuple[str, ...]) -> Answer:
    default = ("pid", "user", "consumer_count", "messages_unacknowledged")
    chosen = checked_columns(columns, tuple(CHANNELS), default)
    call.announce("Listing channels ...")
    rows = call.client.get("channels")
    if "connection" in chosen:
        pids = _pids(call)
        for row in rows:
            row["connection_pid"] = pids.get(row["connection_details"]["name"])
    return _table(rows, CHANNELS, chosen)


@command("list_consumers", "List consumers.", several("columns"))
def list_consumers(call: CommandCall, columns: tuple[str, ...]) -> Answer:
    default = (
        "queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active",
        "arguments",
    )  # fmt: skip
    chosen = checked_columns(columns, tuple(CONSUMERS), default)
    call.announce(f"Listing consumers in vhost {call.vhost} ...")
    rows = _of_vhost(call, "consumers")
    if "channel_pid" in chosen:
        pids = _pids(call)
        for row in rows:
            row["channel_pid"] = _channel_pid(row, pids)
    return _table(rows, CONSUMERS, chosen)
