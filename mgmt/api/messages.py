"""Messages by hand: publish one, get some (management_api.md section 2)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import struct
from typing import Any

from warren.amqp.consumer import short_string
from warren.amqp.errors import REPLIES, FrameError, reply_to
from warren.amqp.properties import MalformedProperties, encode_properties
from warren.amqp.publishing import PublishRoutes
from warren.core.errors import BrokerError, ConnectionFault
from warren.core.field import from_json, to_json
from warren.core.firehose import TracedClient
from warren.core.message import Message
from warren.core.message_stats import MessageStats
from warren.core.settlement import PENDING, REJECTED
from warren.mgmt.api.exchanges import exchange_of
from warren.mgmt.api.queues import queue_of
from warren.mgmt.http.endpoint import Endpoint
from warren.mgmt.http.errors import BadRequest, ObjectNotFound
from warren.mgmt.http.request import VHOST_NOT_FOUND, ApiRequest, demanded

GET_MAX = 100_000
"""More than anybody reads; the answer would not fit into memory."""

_MANDATORY = b"\1"
PUBLISH_REFUSED = "rejected Unable to publish message. Check queue limits."
GET_ENCODING_UNKNOWN = "Unsupported encoding. Please use auto or base64."

PROPERTIES: dict[str, type] = {
    "content_type": str,
    "content_encoding": str,
    "delivery_mode": int,
    "priority": int,
    "correlation_id": str,
    "reply_to": str,
    "expiration": str,
    "message_id": str,
    "timestamp": int,
    "type": str,
    "user_id": str,
    "app_id": str,
    "cluster_id": str,
}
"""What is taken from the properties of a publish, beside the headers; anything else is ignored."""


class _OneConfirm:
    """`PublishConfirms` of one publish to several queues."""

    def __init__(self) -> None:
        self.safe = asyncio.get_running_loop().create_future()
        self.open = 0

    def settle(self, publish_seq: int) -> None:
        self.open -= 1
        if not self.open and not self.safe.done():
            self.safe.set_result(None)


async def publish(request: ApiRequest) -> Any:
    try:
        vhost, exchange = exchange_of(request)
    except ObjectNotFound as error:
        if error.reason == VHOST_NOT_FOUND:
            raise
        raise BadRequest(f"404 {_missing(request, 'exchange')}") from error
    routing_key, properties, payload, encoding = demanded(
        await request.body(), "routing_key", "properties", "payload", "payload_encoding"
    )
    body = _decoded(payload, encoding)
    if not isinstance(routing_key, str) or len(routing_key.encode()) > 255:
        raise BadRequest("routing_key should be a string of 255 octets at most")
    routes = PublishRoutes(request.node, vhost, request.caller.user)
    arguments = b"\0\0" + short_string(exchange.name) + short_string(routing_key) + _MANDATORY
    header = _header(properties, len(body))
    try:
        if request.caller.local:
            raise BadRequest("messages are published by a user, not by the command line")
        route = routes.route(arguments)
        envelope = routes.envelope(route, header, None)
    except BrokerError as error:
        raise _as_told(error) from error
    queues = route.queues
    if queues is None or envelope.copies:
        queues = routes.queues_for(route, envelope)
    exchange.published_in += 1
    exchange.published_out += len(queues)
    confirms = _OneConfirm()
    answers = []
    for queue in queues:
        queue.published += 1
        answers.append(queue.publish(envelope, body, confirms, 1))
    confirms.open += answers.count(PENDING)
    if confirms.open:
        await confirms.safe
    if REJECTED in answers:
        vhost.channel_ended(MessageStats(publish=1))
        raise BadRequest(PUBLISH_REFUSED)
    vhost.channel_ended(MessageStats(publish=1, confirm=1, return_unroutable=int(not queues)))
    return {"routed": bool(queues)}


def _missing(request: ApiRequest, kind: str) -> str:
    """As the reply text of a channel that is closed reads."""
    return f"NOT_FOUND - no {kind} '{request.name(kind)}' in vhost '{request.name('vhost')}'"


def _decoded(payload: Any, encoding: Any) -> bytes:
    if not isinstance(payload, str):
        raise BadRequest("payload_not_string")
    if encoding == "string":
        return payload.encode()
    if encoding == "base64":
        try:
            return base64.b64decode(payload, validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadRequest(["not_base64", payload[:100]]) from error
    raise BadRequest(["unsupported_encoding", encoding])


def _header(properties: Any, body_size: int) -> bytes:
    if isinstance(properties, list) and not properties:
        properties = {}
    if not isinstance(properties, dict):
        raise BadRequest("properties should be an object")
    headers = properties.get("headers")
    values = {
        name: _property(name, kind, properties[name])
        for name, kind in PROPERTIES.items()
        if name in properties
    }
    if headers is not None and not isinstance(headers, dict):
        raise BadRequest("headers should be an object")
    try:
        return encode_properties(body_size, values, None if headers is None else from_json(headers))
    except (MalformedProperties, ValueError, struct.error) as error:
        raise BadRequest(f"properties: {error}") from error


def _property(name: str, kind: type, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise BadRequest(["not_int" if kind is int else "not_string", name])
    return value


def _as_told(error: BrokerError) -> BadRequest:
    """With the reply code that a channel would be closed with."""
    if type(error) not in REPLIES or isinstance(error, FrameError):
        return BadRequest(error.text)
    code, text = reply_to(error)
    return BadRequest(f"{code} {text}" if not isinstance(error, ConnectionFault) else error.text)


ACK_MODES = (
    "ack_requeue_true",
    "ack_requeue_false",
    "reject_requeue_true",
    "reject_requeue_false",
)


async def get(request: ApiRequest) -> Any:
    try:
        vhost, queue = queue_of(request)
    except ObjectNotFound as error:
        if error.reason == VHOST_NOT_FOUND:
            raise
        raise ObjectNotFound("not_found", _missing(request, "queue")) from error
    body = await request.body()
    mode, count, encoding = demanded(body, "ackmode", "count", "encoding")
    truncate = body.get("truncate")
    count = _whole(count)
    if truncate is not None:
        truncate = _whole(truncate)
    if mode not in ACK_MODES:
        raise BadRequest(["unknown_ackmode", mode])
    if encoding not in ("auto", "base64"):
        raise BadRequest(GET_ENCODING_UNKNOWN)
    request.check(vhost.name, "queue", queue.name, "read")
    queue.check_access(None)
    client = TracedClient(f"http {request.caller.address}", 1, request.caller.name)
    got: list[Message] = []
    rows = []
    while len(got) < min(count, GET_MAX):
        message = queue.get(False, client)
        if message is None:
            break
        got.append(message)
        rows.append(_message_row(request, message, len(queue), encoding, truncate))
    acked = len(got) if mode == "ack_requeue_false" else 0
    again = sum([message.redelivered for message in got])
    empty = int(not got and count > 0)
    # Counted like a channel that did this and was closed.
    vhost.channel_ended(MessageStats(get=len(got), get_empty=empty, redeliver=again, ack=acked))
    if mode.endswith("requeue_true"):
        queue.requeue(got)
    elif mode.startswith("ack"):
        queue.ack(got)
    else:
        queue.reject(got)
    return rows


def _whole(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadRequest(["not_integer", value])
    return int(value)


def _message_row(
    request: ApiRequest, message: Message, left: int, encoding: str, truncate: int | None
) -> dict[str, Any]:
    envelope, body = message.envelope, message.body
    shown = body if truncate is None else body[:truncate]
    payload, how = base64.b64encode(shown).decode("ascii"), "base64"
    if encoding == "auto":
        try:
            payload, how = shown.decode(), "string"
        except UnicodeDecodeError:
            # It is octets, then, and stays base64.
            how = "base64"
    properties = to_json(request.node.codec.as_table(envelope.header))
    return {
        "payload_bytes": len(body),
        "redelivered": message.redelivered,
        "exchange": envelope.exchange,
        "routing_key": envelope.routing_key,
        "message_count": left,
        # A client in Erlang's way: nothing is an empty list.
        "properties": properties or [],
        "payload": payload,
        "payload_encoding": how,
    }


ENDPOINTS = [
    Endpoint(
        "/exchanges/{vhost}/{exchange}/publish", {"POST": publish}, summary="Publish a message"
    ),
    Endpoint("/queues/{vhost}/{queue}/get", {"POST": get}, summary="Get messages"),
]
