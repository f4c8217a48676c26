"""Tells which clients have the unacknowledged messages of a queue, and since when.

The node of a client knows more of it than the node that leads the queue: which delivery a message
is, and how long the client has had it. So the leader asks the nodes of the clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from warren.amqp.connection import Connection
from warren.core.errors import BrokerError
from warren.core.messages.message import Message
from warren.core.node import Node
from warren.core.queues.consumers import Consumer
from warren.core.queues.local_queue import LocalQueue
from warren.mgmt.api.listed_queue import queue_of
from warren.mgmt.http.endpoint import Endpoint
from warren.mgmt.http.errors import ApiError
from warren.mgmt.http.listing import Row
from warren.mgmt.http.request import ApiRequest, demanded
from warren.mgmt.messages.looking import Source

ANSWER_S = 2.0
"""How long the leader waits for the nodes of the clients. A node that passed a request on to the
leader waits for 5 s, in which the leader looks for messages, too."""

OF_NODES = "/nodes-holders/{vhost}/{queue}"


async def holders(
    request: ApiRequest, source: Source, messages: set[Message]
) -> dict[Message, Row]:
    """The client that holds each message. A dead letter on its way to a queue has none."""
    found = dict(_of_clients(request.node, messages.__contains__))
    if not isinstance(source, LocalQueue):
        return found
    asked: list[tuple[str, dict[int, Message]]] = []
    for node, held in request.node.held_afar(source):
        wanted = {number: message for number, message in held.items() if message in messages}
        found |= _of_consumers(wanted)
        if wanted:
            asked.append((node, wanted))
    for rows in await asyncio.gather(*[_asked(request, source, *one) for one in asked]):
        found |= rows
    return found


def _of_consumers(messages: Mapping[int, Message]) -> Iterator[tuple[Message, Row]]:
    """What the leader knows of the consumers of another node."""
    for message in messages.values():
        holder = message.holder
        if isinstance(holder, Consumer):
            traced = holder.traced_as()
            yield message, _row(holder.tag, traced.connection, traced.channel, traced.user)


def _row(tag: str | None, connection: str, channel: int, user: str) -> Row:
    return {
        "consumer_tag": tag,
        "connection_name": connection,
        "channel": channel,
        "user": user,
    }


async def _asked(
    request: ApiRequest, queue: LocalQueue, node: str, messages: Mapping[int, Message]
) -> dict[Message, Row]:
    """What the node of the clients knows; nothing if it does not answer."""
    peers = request.managed.peers
    if peers is None:
        return {}
    parts = {"vhost": queue.vhost_name, "queue": queue.name}
    body = {"numbers": list(messages)}
    try:
        async with asyncio.timeout(ANSWER_S):
            rows = await peers.ask(node, request, OF_NODES, parts, method="POST", body=body)
    except (ApiError, BrokerError, TimeoutError):
        return {}
    return {messages[number]: row for number, row in rows}


async def holders_for_node(request: ApiRequest) -> list[Any]:
    """The clients here that hold these deliveries of a queue that the asking node leads."""
    vhost, queue = queue_of(request)
    request.check(vhost.name, "queue", queue.name, "read")
    (numbers,) = demanded(await request.body(), "numbers")
    wanted = frozenset(numbers)

    def is_wanted(message: Message) -> bool:
        return message.position in wanted and message.holder.queue is queue

    return [[message.position, row] for message, row in _of_clients(request.node, is_wanted)]


def _of_clients(node: Node, is_wanted: Callable[[Message], bool]) -> Iterator[tuple[Message, Row]]:
    """Each wanted message that a client of this node holds, and the client."""
    for client in node.clients:
        if not isinstance(client, Connection):
            continue
        for channel in client.channels.values():
            for tag, message in channel.unacked.items():
                if is_wanted(message):
                    holder = message.holder
                    consumer_tag = holder.tag if isinstance(holder, Consumer) else None
                    yield (
                        message,
                        {
                            **_row(
                                consumer_tag, client.peer.name, channel.number, client.user_name
                            ),
                            "delivery_tag": tag,
                            "held_for_at_least_ms": round(1000 * channel.timeout.held_for_s(tag)),
                        },
                    )


FOR_NODES = [Endpoint(OF_NODES, {"POST": holders_for_node}, summary="Clients, for another node")]
