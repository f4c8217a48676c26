"""Consumers as JSON, and their list."""

from __future__ import annotations

from typing import Any, NamedTuple

from warren.amqp.consumer import ChannelConsumer
from warren.core.field import to_json
from warren.core.queues.consumers import NO_LIMIT, ConsumedQueue, Consumer
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.http.endpoint import Endpoint
from warren.mgmt.http.errors import ObjectNotFound
from warren.mgmt.http.listing import ALL_COLUMNS, Listing, Row, answer, answer_rows
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.http.slices import chunks


class ListedConsumer(NamedTuple):
    vhost: VirtualHost
    consumer: Consumer
    node: str


def consumer_row(vhost: VirtualHost, consumer: Consumer, node: str) -> Row:
    queue = consumer.queue
    active = is_active(queue, consumer)
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": queue.name, "vhost": vhost.name},
        "channel_details": _channel_details(consumer, node),
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "active": active,
        "activity_status": _activity(queue, active),
        "prefetch_count": 0 if consumer.prefetch == NO_LIMIT else consumer.asked_prefetch,
        "arguments": to_json(consumer.arguments),
    }


def is_active(queue: ConsumedQueue, consumer: Consumer) -> bool:
    return not queue.settings.single_active_consumer or queue.active_consumer is consumer


def _activity(queue: ConsumedQueue, active: bool) -> str:
    if not queue.settings.single_active_consumer:
        return "up"
    return "single_active" if active else "waiting"


def _channel_details(consumer: Consumer, node: str) -> dict[str, Any]:
    if not isinstance(consumer, ChannelConsumer):
        return _of_other_node(consumer)
    channel = consumer.channel
    connection = channel.connection
    return {
        "name": f"{connection.peer.name} ({channel.number})",
        "number": channel.number,
        "node": node,
        "connection_name": connection.peer.name,
        "peer_host": connection.peer.host,
        "peer_port": connection.peer.port,
        "user": connection.user_name,
    }


def _of_other_node(consumer: Consumer) -> dict[str, Any]:
    client = consumer.traced_as()
    host, _, port = client.connection.partition(" -> ")[0].rpartition(":")
    return {
        "name": f"{client.connection} ({client.channel})",
        "number": client.channel,
        "node": consumer.node,
        "connection_name": client.connection,
        "peer_host": host,
        "peer_port": int(port),
        "user": client.user,
    }


CONSUMERS: Listing[ListedConsumer] = Listing(
    row=lambda listed: consumer_row(*listed),
    name=lambda listed: listed.consumer.tag,
    paged=False,
)


async def list_consumers(request: ApiRequest) -> Any:
    vhosts = request.visible_vhosts()
    if "vhost" in request.http.match_info:
        name = request.name("vhost")
        if name not in request.node.vhosts:
            raise ObjectNotFound()
        # As in RabbitMQ, the list is empty for a virtual host that the user may not see.
        vhosts = [vhost for vhost in vhosts if vhost.name == name]
    listed = await _of_queues_here(request, vhosts)
    peers = request.peers
    if peers is None:
        return await answer(request, listed, CONSUMERS)
    path = "/consumers/{vhost}" if "vhost" in request.http.match_info else "/consumers"
    rows = [consumer_row(*one) async for some in chunks(listed) for one in some]
    rows += await peers.rows(request, path)
    return await answer_rows(request, rows)


async def _of_queues_here(request: ApiRequest, vhosts: list[VirtualHost]) -> list[ListedConsumer]:
    """The consumers of the queues that this node leads: only it knows which of them are active."""
    return [
        ListedConsumer(vhost, consumer, request.node.name)
        for vhost in vhosts
        async for queues in chunks(list(vhost.queues.values()))
        for queue in queues
        if queue.is_here
        for consumer in queue.consumers
    ]


async def as_leaders_show(request: ApiRequest, rows: list[Row], vhost: str) -> list[Row]:
    """Return these rows of consumers as the nodes show them that lead their queues. To other nodes
    each consumer of a queue with single active consumer seems to wait."""
    peers = request.peers
    if peers is None or not any([row["activity_status"] == "waiting" for row in rows]):
        return rows
    here = await _of_queues_here(request, [request.node.vhosts[vhost]])
    shown = [consumer_row(*one) for one in here]
    of_others = await peers.ask_all(
        request, "/consumers/{vhost}", {"vhost": vhost}, query=ALL_COLUMNS
    )
    shown += [row for some in of_others.values() for row in some]
    known = {_identity(row): row for row in shown}
    return [known.get(_identity(row), row) for row in rows]


def _identity(row: Row) -> tuple[str, str]:
    return row["channel_details"]["name"], row["consumer_tag"]


ENDPOINTS = [
    Endpoint("/consumers", {"GET": list_consumers}, summary="All consumers"),
    Endpoint("/consumers/{vhost}", {"GET": list_consumers}, summary="Consumers of a vhost"),
]
