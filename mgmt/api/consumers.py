"""Consumers as JSON, and their list."""

from __future__ import annotations

from typing import Any, NamedTuple

from warren.amqp.consumer import ChannelConsumer
from warren.core.field import to_json
from warren.core.queues.consumers import NO_LIMIT, ConsumedQueue, Consumer
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.http.endpoint import Endpoint
from warren.mgmt.http.errors import ObjectNotFound
from warren.mgmt.http.listing import Listing, Row, answer, answer_rows
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
    return {
        "name": f"{client.connection} ({client.channel})",
        "number": client.channel,
        "connection_name": client.connection,
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
    alone = request.managed.peers is None
    listed = [
        ListedConsumer(vhost, consumer, request.node.name)
        for vhost in vhosts
        async for queues in chunks(list(vhost.queues.values()))
        for queue in queues
        for consumer in queue.consumers
        # Consumers of another node's clients are listed by that node.
        if isinstance(consumer, ChannelConsumer) or alone
    ]
    peers = request.peers
    if peers is None:
        return await answer(request, listed, CONSUMERS)
    path = "/consumers/{vhost}" if "vhost" in request.http.match_info else "/consumers"
    rows = [consumer_row(*one) async for some in chunks(listed) for one in some]
    rows += await peers.rows(request, path)
    return await answer_rows(request, rows)


ENDPOINTS = [
    Endpoint("/consumers", {"GET": list_consumers}, summary="All consumers"),
    Endpoint("/consumers/{vhost}", {"GET": list_consumers}, summary="Consumers of a vhost"),
]
