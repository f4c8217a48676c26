"""Connections and channels: lists, one, close (management_api.md sections 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from warren.amqp.channel import Channel
from warren.amqp.connection import Connection
from warren.amqp.peer import Peer, client_name
from warren.amqp.tls_session import TlsSession
from warren.core.field import to_json
from warren.core.messages.message_stats import MessageStats
from warren.core.queues.consumers import NO_LIMIT
from warren.mgmt.api import stats_json
from warren.mgmt.api.at_node import from_any
from warren.mgmt.api.changes import audit
from warren.mgmt.api.consumers import as_leaders_show, consumer_row
from warren.mgmt.blocked import connection_columns
from warren.mgmt.http.endpoint import Endpoint
from warren.mgmt.http.errors import NotAuthorised, ObjectNotFound
from warren.mgmt.http.listing import ALL_COLUMNS, NAMED_ROWS, Listing, Row, answer, answer_row
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.statistics import figures
from warren.mgmt.statistics.sampler import node_connections

T = TypeVar("T")

CLOSE_REASON = "Closed via management plugin"
OF_USER = "/connections/username/{user}"
PROTOCOL = "AMQP 0-9-1"


TLS = (
    "ssl_protocol",
    "ssl_key_exchange",
    "ssl_cipher",
    "ssl_hash",
    "peer_cert_subject",
    "peer_cert_issuer",
    "peer_cert_validity",
)
"""The columns for the fields of a `TlsSession`, in its order."""


class ConnectionRows:
    """Makes the JSON of connections for one request."""

    def __init__(self, request: ApiRequest, *, with_samples: bool = True) -> None:
        self._request = request
        self._node = request.node
        self._track = request.managed.statistics.connections
        self._times = stats_json.times(request, "data_rates") if with_samples else []

    def row(self, connection: Connection) -> Row:
        now = self._node.clock.now()
        current = figures.connection_figures(connection)
        rates = self._track.rates(connection, now, current)
        samples = self._track.samples(connection, self._times) if self._times else ()
        shown = stats_json.ShownStats(
            figures.CONNECTION, current, rates, samples, stats_json.wall_offset_s(self._request)
        )
        peer = connection.peer
        return {
            "name": peer.name,
            "pid": connection.pid,
            "user_provided_name": client_name(connection.client_properties),
            "type": "network",
            "node": self._node.name,
            "vhost": connection.vhost.name if connection.vhost is not None else None,
            "user": connection.user_name,
            "user_who_performed_action": connection.user_name,
            "host": peer.local_host,
            "port": peer.local_port,
            "peer_host": peer.host,
            "peer_port": peer.port,
            "protocol": PROTOCOL,
            "auth_mechanism": connection.mechanism,
            "state": state(connection),
            **connection_columns(connection),
            "channels": connection.channel_count,
            "channel_max": connection.channel_max,
            "frame_max": connection.frame_max,
            "timeout": connection.heartbeat_s,
            "connected_at": int(connection.connected_at * 1000),
            "client_properties": to_json(connection.client_properties),
            "ssl": peer.tls,
            **_tls(peer.session),
            "recv_cnt": connection.received_count,
            "send_cnt": connection.sent_count,
            "send_pend": connection.owed_octets,
            **shown.levels(*figures.CONNECTION),
            "reductions": 0,
            "reductions_details": {"rate": 0.0},
            "garbage_collection": {},
        }


def _tls(session: TlsSession | None) -> Row:
    values = (None,) * len(TLS) if session is None else session
    return dict(zip(TLS, values, strict=True))


def state(connection: Connection) -> str:
    """The connection's state, in RabbitMQ's words.

    A connection that is not read is `blocked` if it has published during an alarm, and in `flow` if
    the disk does not keep up.
    """
    if connection.blocked:
        return "blocked" if connection.node.alarms.reason() else "flow"
    return connection.state.name.lower()


class ChannelRows:
    """Makes the JSON of channels for one request."""

    def __init__(self, request: ApiRequest, *, with_samples: bool = True) -> None:
        self._request = request
        self._node = request.node
        self._track = request.managed.statistics.channels
        self._times = stats_json.times(request, "msg_rates") if with_samples else []

    def row(self, channel: Channel) -> Row:
        now = self._node.clock.now()
        connection = channel.connection
        current = channel.stats()
        rates = self._track.rates(channel, now, current)
        samples = self._track.samples(channel, self._times) if self._times else ()
        stats = stats_json.ShownStats(
            MessageStats._fields, current, rates, samples, stats_json.wall_offset_s(self._request)
        ).message_stats()
        confirms, transaction = channel.confirms, channel.transaction
        return {
            "name": channel_name(channel),
            "pid": f"{connection.pid[:-3]}.{channel.number}.0>",
            "number": channel.number,
            "node": self._node.name,
            "vhost": channel.vhost.name,
            "user": connection.user_name,
            "user_who_performed_action": connection.user_name,
            "state": "running",
            "connection_details": {
                "name": connection.peer.name,
                "peer_host": connection.peer.host,
                "peer_port": connection.peer.port,
            },
            "transactional": transaction is not None,
            "confirm": confirms is not None,
            "consumer_count": len(channel.consumers),
            "messages_unacknowledged": len(channel.unacked),
            "messages_unconfirmed": confirms.unconfirmed if confirms is not None else 0,
            "messages_uncommitted": transaction.published if transaction is not None else 0,
            "acks_uncommitted": transaction.judged if transaction is not None else 0,
            "prefetch_count": 0 if channel.prefetch == NO_LIMIT else channel.prefetch,
            "global_prefetch_count": channel.limit.most if channel.limit is not None else 0,
            "pending_raft_commands": 0,
            "reductions": 0,
            "reductions_details": {"rate": 0.0},
            "garbage_collection": {},
            **({"message_stats": stats} if stats else {}),
        }

    def full_row(self, channel: Channel) -> Row:
        return {
            **self.row(channel),
            "consumer_details": [
                consumer_row(channel.vhost, consumer, self._node.name)
                for consumer in channel.consumers.values()
            ],
            "publishes": [],
            "deliveries": [],
        }


def channel_name(channel: Channel) -> str:
    return f"{channel.connection.peer.name} ({channel.number})"


def visible_connections(request: ApiRequest) -> list[Connection]:
    """This node's connections that the caller may see: all for a monitor, else the caller's own.

    A virtual host in the path or in the header `X-Vhost` leaves only the connections to it.
    """
    caller = request.caller
    only = request.http.headers.get("X-Vhost") or None
    if "vhost" in request.http.match_info:
        only = request.vhost().name
    return [
        connection
        for connection in node_connections(request.node)
        if (caller.is_monitor or connection.user_name == caller.name)
        and (only is None or (connection.vhost is not None and connection.vhost.name == only))
    ]


def _address(peer: Peer) -> tuple[str, int]:
    return peer.host, peer.port


async def list_connections(request: ApiRequest) -> Any:
    listing = Listing[Connection](
        row=ConnectionRows(request).row,
        plain=ConnectionRows(request, with_samples=False).row,
        name=lambda connection: connection.peer.name,
        order=lambda connection: _address(connection.peer),
    )
    connections = visible_connections(request)
    peers = request.peers
    if peers is None:
        return await answer(request, connections, listing)
    of_vhost = "vhost" in request.http.match_info
    others = await peers.rows(
        request, "/vhosts/{vhost}/connections" if of_vhost else "/connections"
    )
    all_of_them: list[Connection | Row] = [*connections, *others]
    return await answer(request, all_of_them, _with_rows(listing))


def _with_rows(listing: Listing[T]) -> Listing[T | Row]:
    """The same listing for objects of this node mixed with the rows of other nodes."""
    order = listing.order
    assert order is not None
    plain = listing.plain or listing.row
    return Listing(
        row=lambda one: one if isinstance(one, dict) else listing.row(one),
        plain=lambda one: one if isinstance(one, dict) else plain(one),
        name=lambda one: one["name"] if isinstance(one, dict) else listing.name(one),
        order=lambda one: _order_of(one) if isinstance(one, dict) else order(one),
    )


def _order_of(row: Row) -> tuple[str | int, ...]:
    """The sort key of another node's row, in the order of this node's objects."""
    peer = row.get("connection_details", row)
    address = peer["peer_host"], peer["peer_port"]
    return address if peer is row else (*address, row["number"])


def _is_here(request: ApiRequest) -> bool:
    """Whether this node has the connection in the path, or there is no other node to ask."""
    name = request.name("connection")
    return request.peers is None or any(
        name in (one.peer.name, one.pid) for one in node_connections(request.node)
    )


def connection_of(request: ApiRequest) -> Connection:
    """The connection in the path, if the caller may see it. Raises `ApiError`."""
    name = request.name("connection")
    for connection in node_connections(request.node):
        if name in (connection.peer.name, connection.pid):
            caller = request.caller
            if not caller.is_monitor and connection.user_name != caller.name:
                raise NotAuthorised("User not authorised to access object")
            return connection
    raise ObjectNotFound()


async def get_connection(request: ApiRequest) -> Any:
    if not _is_here(request):
        return answer_row(request, await from_any(request, "/connections/{connection}"))
    return answer_row(request, ConnectionRows(request).row(connection_of(request)))


async def close_connection(request: ApiRequest) -> None:
    if not _is_here(request):
        await from_any(request, "/connections/{connection}", method="DELETE")
        return
    connection = connection_of(request)
    if not request.caller.is_administrator and connection.user_name != request.caller.name:
        raise NotAuthorised("User not authorised to access object")
    _close(request, connection)


def _close(request: ApiRequest, connection: Connection) -> None:
    reason = request.http.headers.get("X-Reason") or CLOSE_REASON
    audit(request, "connection_closed", connection=connection.peer.name, reason=reason)
    connection.force_close(reason)


async def list_channels_of_connection(request: ApiRequest) -> Any:
    if not _is_here(request):
        path = "/connections/{connection}/channels"
        return await answer(request, await from_any(request, path), NAMED_ROWS)
    channels = list(connection_of(request).channels.values())
    return await answer(request, channels, _channel_listing(request))


def _connections_of_user(request: ApiRequest) -> list[Connection]:
    user, caller = request.name("user"), request.caller
    if not caller.is_monitor and caller.name != user:
        raise NotAuthorised("User not authorised to access object")
    return [one for one in node_connections(request.node) if one.user_name == user]


async def list_connections_of_user(request: ApiRequest) -> Any:
    rows = [
        {
            "name": connection.peer.name,
            "vhost": connection.vhost.name if connection.vhost is not None else None,
            "user": connection.user_name,
            "node": request.node.name,
        }
        for connection in _connections_of_user(request)
    ]
    peers = request.peers
    if peers is not None:
        rows += await peers.rows(request, OF_USER)
    return rows


async def close_connections_of_user(request: ApiRequest) -> None:
    if not request.caller.is_administrator and request.caller.name != request.name("user"):
        raise NotAuthorised("User not authorised to access object")
    for connection in _connections_of_user(request):
        _close(request, connection)
    peers = request.peers
    if peers is not None:
        parts = dict(request.http.match_info)
        await peers.ask_all(request, OF_USER, parts, method="DELETE")


def _channel_listing(request: ApiRequest) -> Listing[Channel]:
    return Listing(
        row=ChannelRows(request).row,
        plain=ChannelRows(request, with_samples=False).row,
        name=channel_name,
        order=lambda channel: (*_address(channel.connection.peer), channel.number),
    )


def _channels(request: ApiRequest) -> Iterator[Channel]:
    for connection in visible_connections(request):
        yield from connection.channels.values()


async def list_channels(request: ApiRequest) -> Any:
    peers = request.peers
    if peers is None:
        return await answer(request, _channels(request), _channel_listing(request))
    of_vhost = "vhost" in request.http.match_info
    others = await peers.rows(request, "/vhosts/{vhost}/channels" if of_vhost else "/channels")
    channels: list[Channel | Row] = [*_channels(request), *others]
    return await answer(request, channels, _with_rows(_channel_listing(request)))


async def get_channel(request: ApiRequest) -> Any:
    row = await _channel_row(request)
    details = await as_leaders_show(request, row["consumer_details"], row["vhost"])
    return answer_row(request, {**row, "consumer_details": details})


async def _channel_row(request: ApiRequest) -> Row:
    name = request.name("channel")
    for connection in node_connections(request.node):
        for channel in connection.channels.values():
            if name == channel_name(channel):
                caller = request.caller
                if not caller.is_monitor and connection.user_name != caller.name:
                    raise NotAuthorised("User not authorised to access object")
                return ChannelRows(request).full_row(channel)
    row: Row = await from_any(request, "/channels/{channel}", query=ALL_COLUMNS)
    return row


ENDPOINTS = [
    Endpoint("/connections", {"GET": list_connections}, summary="Connections"),
    Endpoint(
        OF_USER,
        {"GET": list_connections_of_user, "DELETE": close_connections_of_user},
        summary="Connections of a user",
    ),
    Endpoint(
        "/connections/{connection}",
        {"GET": get_connection, "DELETE": close_connection},
        summary="One connection",
    ),
    Endpoint(
        "/connections/{connection}/channels",
        {"GET": list_channels_of_connection},
        summary="Channels of a connection",
    ),
    Endpoint(
        "/vhosts/{vhost}/connections", {"GET": list_connections}, summary="Connections to a vhost"
    ),
    Endpoint("/channels", {"GET": list_channels}, summary="Channels"),
    Endpoint("/channels/{channel}", {"GET": get_channel}, summary="One channel"),
    Endpoint("/vhosts/{vhost}/channels", {"GET": list_channels}, summary="Channels of a vhost"),
]
