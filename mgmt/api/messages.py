"""Publishing a message and getting some over HTTP (management_api.md section 2)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from warren.amqp.errors import REPLIES, FrameError, reply_to
from warren.amqp.properties import MalformedProperties, encode_properties
from warren.amqp.publishing import PublishRoutes
from warren.core.errors import BrokerError, ConnectionFault, ResourceLocked, Unsupported
from warren.core.field import from_json, to_json, to_octets
from warren.core.messages.message import Envelope, Message, address_of
from warren.core.messages.message_observer import TracedClient
from warren.core.messages.message_stats import MessageStats
from warren.core.messages.settlement import PENDING, REJECTED, PublishConfirms
from warren.core.messages.stock import Stock
from warren.core.queues.queue import Fetched, Queue
from warren.mgmt.api.exchanges import exchange_of
from warren.mgmt.api.listed_queue import queue_of
from warren.mgmt.api.looking import in_slices
from warren.mgmt.http.endpoint import Endpoint
from warren.mgmt.http.errors import BadRequest, ObjectNotFound
from warren.mgmt.http.listing import Row
from warren.mgmt.http.request import VHOST_NOT_FOUND, ApiRequest, demanded, routing_key
from warren.mgmt.http.slices import Breather
from warren.mgmt.waiting import through

GET_MAX = 100_000
"""The most messages of one answer: more are hardly ever read, and would not fit into memory."""

PUBLISH_BYTES_MAX = 8_000_000
"""Octets of a request that publishes a message; RabbitMQ has the same limit. JSON is parsed in one
go, and 64 MiB of it would stop the event loop for a second."""

GET_BYTES_MAX = 32 << 20
"""Octets of the payloads of one answer, several copies of which are in memory at a time."""

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
"""The properties that a publish may set, beside the headers; others are ignored."""


class _OneConfirm(PublishConfirms):
    """`PublishConfirms` of one message that is published to several queues."""

    def __init__(self) -> None:
        self.safe = asyncio.get_running_loop().create_future()
        self.open = 0
        self.refused = False

    def settle(self, publish_seq: int) -> None:
        self.open -= 1
        if not self.open and not self.safe.done():
            self.safe.set_result(None)

    def refuse(self, publish_seq: int) -> None:
        self.refused = True
        self.settle(publish_seq)


async def publish(request: ApiRequest) -> Any:
    try:
        vhost, exchange = exchange_of(request)
    except ObjectNotFound as error:
        if error.reason == VHOST_NOT_FOUND:
            raise
        raise BadRequest(f"404 {_missing(request, 'exchange')}") from error
    key, properties, payload, encoding = demanded(
        await request.body(), "routing_key", "properties", "payload", "payload_encoding"
    )
    body = _decoded(payload, encoding)
    routes = PublishRoutes(request.node, vhost, request.caller.user)
    address = address_of(to_octets(exchange.name), to_octets(routing_key(key)))
    arguments = b"\0\0" + address + _MANDATORY
    header = _header(properties, len(body))
    try:
        if request.caller.local:
            raise BadRequest("messages are published by a user, not by the command line")
        queues, envelope = await through(
            request.node.turns.answer(
                lambda: routes.addressed(routes.route_of(arguments), header, None)
            )
        )
    except BrokerError as error:
        raise _as_told(error) from error
    if vhost.quotas is not None:
        try:
            vhost.quotas.take(dict.fromkeys(queues, Stock(1, len(body))))
        except BrokerError as error:
            raise _as_told(error) from error
    client = TracedClient(f"http {request.caller.address}", 1, request.caller.name)
    if vhost.observer is not None:
        vhost.observer.published(client, envelope, body, queues)
        if not queues:
            vhost.observer.unroutable(envelope, True)
    exchange.published_in += 1
    exchange.published_out += len(queues)
    vhost.histories.keep(exchange, envelope.routing_keys, envelope, body)
    confirms = _OneConfirm()
    answers = []
    for queue in queues:
        # The queue was looked up some turns ago; another node may lead it by now.
        current = vhost.current(queue)
        if current is not None:
            current.published += 1
            answers.append(current.publish(envelope, body, confirms, 1))
    confirms.open += answers.count(PENDING)
    vhost.count_past(MessageStats(publish=1, return_unroutable=int(not queues)))
    if confirms.open:
        await confirms.safe
    if REJECTED in answers or confirms.refused:
        raise BadRequest(PUBLISH_REFUSED)
    vhost.count_past(MessageStats(confirm=1))
    return {"routed": bool(queues)}


def _missing(request: ApiRequest, kind: str) -> str:
    """The reply text with which AMQP would close a channel, as the object does not exist."""
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
    """The error with the reply code that a channel would be closed with."""
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


def _check_unlocked(queue: Queue) -> None:
    """Raises `BadRequest` if the queue is exclusive, and otherwise what `check_access` raises."""
    try:
        queue.check_access(None)
    except ResourceLocked as error:
        raise _as_told(error) from error


async def _got_one(queue: Queue, client: TracedClient) -> Fetched:
    try:
        return await through(queue.get_one(False, client))
    except Unsupported as error:
        raise BadRequest(f"540 {error.text}") from error
    except ResourceLocked as error:
        raise _as_told(error) from error


def _settling(queue: Queue, mode: str) -> Callable[[list[Message]], None]:
    """The method of the queue that settles messages in `mode`, one of `ACK_MODES`.

    With `ack_requeue_true` messages are neither acknowledged nor rejected: they come back to the
    queue as if the channel that had them were closed.
    """
    return {
        "ack_requeue_true": queue.abandoned,
        "ack_requeue_false": queue.ack,
        "reject_requeue_true": queue.requeue,
        "reject_requeue_false": queue.reject,
    }[mode]


async def get(request: ApiRequest) -> Any:
    try:
        vhost, queue = queue_of(request)
    except ObjectNotFound as error:
        if error.reason == VHOST_NOT_FOUND:
            raise
        raise ObjectNotFound("not_found", _missing(request, "queue")) from error
    body = await request.body()
    mode, count, encoding = demanded(body, "ackmode", "count", "encoding")
    given, count = body.get("truncate"), _whole(count)
    truncate = None if given is None else _whole(given)
    if mode not in ACK_MODES:
        raise BadRequest(["unknown_ackmode", mode])
    if encoding not in ("auto", "base64"):
        raise BadRequest(GET_ENCODING_UNKNOWN)
    request.check(vhost.name, "queue", queue.name, "read")
    _check_unlocked(queue)
    client = TracedClient(f"http {request.caller.address}", 1, request.caller.name)
    got: list[Message] = []
    left = 0

    async def fetch() -> Message | None:
        nonlocal left
        if queue.deleted:
            return None
        message, left, at = await _got_one(queue, client)
        if message is not None and at is not queue:
            # The queue has moved: this message and earlier ones are ready again at its new leader.
            at.requeue([message], delivered=False)
            return None
        return message

    settle: Callable[[list[Message]], None] = queue.abandoned
    try:
        rows = await _fetched(
            got,
            fetch,
            lambda message: _message_row(
                request,
                queue.envelope_got(message, False),
                message,
                left,
                encoding,
                truncate,
            ),
            min(count, GET_MAX),
            truncate,
        )
        settle = _settling(queue, mode)
    finally:
        # Counted as for a channel that did the same and was closed.
        vhost.count_past(
            MessageStats(
                get=len(got),
                get_empty=int(not got and count > 0),
                redeliver=sum([message.redelivered for message in got]),
                ack=len(got) if settle == queue.ack else 0,
            )
        )
        settle(got)
    return await _when_settled(queue, rows)


async def _when_settled(queue: Queue, rows: list[Row]) -> AsyncIterator[list[Row]]:
    """The rows, once the queue's leader has settled the messages."""
    if not queue.is_here:
        with suppress(BrokerError):
            await through(queue.counts())
    return in_slices(rows)


async def _fetched(
    got: list[Message],
    fetch: Callable[[], Awaitable[Message | None]],
    row: Callable[[Message], Row],
    count: int,
    truncate: int | None,
) -> list[Row]:
    """The rows of up to `count` messages, and of no more than an answer has room for.

    A fetched message is put into `got` at once, so that it is settled whatever fails later.
    """
    breather = Breather()
    rows: list[Row] = []
    octets = 0
    while len(got) < count and octets < GET_BYTES_MAX:
        # Large headers alone take 10 ms or more.
        await breather.breathe()
        message = await fetch()
        if message is None:
            break
        got.append(message)
        shown = len(message.body) if truncate is None else min(len(message.body), truncate)
        rows.append(row(message))
        octets += shown + len(message.envelope.header)
    return rows


def _whole(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadRequest(["not_integer", value])
    return int(value)


def _message_row(
    request: ApiRequest,
    envelope: Envelope,
    message: Message,
    left: int,
    encoding: str,
    truncate: int | None,
) -> dict[str, Any]:
    body = message.body
    shown = body if truncate is None else body[:truncate]
    payload, how = base64.b64encode(shown).decode("ascii"), "base64"
    if encoding == "auto":
        try:
            payload, how = shown.decode(), "string"
        except UnicodeDecodeError:
            # It is binary, and stays base64.
            how = "base64"
    properties = to_json(request.node.codec.as_table(envelope.header))
    return {
        "payload_bytes": len(body),
        "redelivered": message.redelivered,
        "exchange": envelope.exchange,
        "routing_key": envelope.routing_key,
        "message_count": left,
        # Clients expect Erlang's form: no properties are an empty list.
        "properties": properties or [],
        "payload": payload,
        "payload_encoding": how,
    }


ENDPOINTS = [
    Endpoint(
        "/exchanges/{vhost}/{exchange}/publish",
        {"POST": publish},
        summary="Publish a message",
        body_bytes_max=PUBLISH_BYTES_MAX,
    ),
    Endpoint("/queues/{vhost}/{queue}/get", {"POST": get}, summary="Get messages"),
]
