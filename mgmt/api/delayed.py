"""The delayed messages of an exchange: list them, cancel one, send one now.

The id of a message is the epoch of its delay queue and its position there. The node that leads the
queue answers. Under a new leader positions may name other messages; it begins a new epoch, so that
earlier ids are not found any more.
"""

from __future__ import annotations

import re
from collections import deque
from itertools import islice
from typing import Any, NamedTuple, cast

from warren.core.errors import BrokerError
from warren.core.exchanges.exchange import DelayedExchange
from warren.core.field import to_json
from warren.core.messages.message import Message
from warren.core.messages.message_filter import (
    FilterTooSlow,
    MessageState,
    Subject,
    Test,
    parse_filter,
)
from warren.core.queues.queue import Queue
from warren.core.vhosts.delay_queue import DelayQueue
from warren.mgmt import queue_members
from warren.mgmt.api.changes import audit
from warren.mgmt.api.exchanges import exchange_of
from warren.mgmt.api.looking import payload_row
from warren.mgmt.http.endpoint import Endpoint
from warren.mgmt.http.errors import ApiError, BadRequest, ObjectNotFound
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.http.slices import Breather
from warren.mgmt.messages.looking import QueuePlace, Search, look
from warren.mgmt.messages.progress import epoch_of

LIST = "/exchanges/{vhost}/{exchange}/delayed"
ONE = "/exchanges/{vhost}/{exchange}/delayed/{message}"
SEND = "/exchanges/{vhost}/{exchange}/delayed/{message}/send"

ORDERS = ("due", "published")

COUNT_DEFAULT = 100
COUNT_MAX = 500
OFFSET_MAX = 10_000
"""The largest offset of a list by due time: all messages before it have to be looked at."""

TRUNCATE_DEFAULT = 1000
"""Octets of a payload that are shown unless the request says otherwise."""

LOOKED_AT_ONCE = 20
"""Messages read from disk before the time is checked again."""


class _Wanted(NamedTuple):
    """Which messages a list shows, how many at most, and how many octets of each payload."""

    passes: Test
    count_max: int
    truncate: int


def _queue_of(request: ApiRequest, permission: str) -> Queue:
    """The delay queue of the exchange in the path, whichever node leads it.

    Raises `ObjectNotFound`, and `NotAuthorised` without the permission.
    """
    vhost, exchange = exchange_of(request)
    request.check(vhost.name, "exchange", exchange.name, permission)
    queue = vhost.delay_queue(exchange.name)
    if queue is None:
        kind = DelayedExchange.type
        raise ObjectNotFound("not_found", f"exchange '{exchange.name}' is not of type {kind}")
    return queue


async def _elsewhere(request: ApiRequest, queue: Queue, path: str, method: str) -> Any:
    """The answer of the node that leads the queue."""
    peers = request.peers
    leader = queue_members.leader_of(request.managed, queue)
    if peers is None:
        raise ObjectNotFound("not_found", f"node '{leader}' leads the delayed messages")
    parts = dict(request.http.match_info)
    try:
        return await peers.ask(leader, request, path, parts, method=method)
    except BrokerError as error:
        raise ApiError(503, "unavailable", error.text) from error


def _number(request: ApiRequest, name: str, default: int, most: int) -> int:
    value = request.query(name, str(default))
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) > most:
        raise BadRequest(f"{name} should be a number of at most {most}, actually was {value}")
    return int(value)


async def list_delayed(request: ApiRequest) -> Any:
    """Delayed messages that pass a filter: the next due first, or in the order in which they were
    published. `total` counts all delayed messages."""
    queue = _queue_of(request, "read")
    order = request.query("order", ORDERS[0])
    if order not in ORDERS:
        raise BadRequest(f"order should be {' or '.join(ORDERS)}, not '{order}'")
    offset = _number(request, "offset", 0, OFFSET_MAX)
    wanted = _Wanted(
        parse_filter(request.query("filter")),
        _number(request, "count", COUNT_DEFAULT, COUNT_MAX),
        _number(request, "truncate", TRUNCATE_DEFAULT, 999_999_999),
    )
    if not queue.is_here:
        return await _elsewhere(request, queue, LIST, "GET")
    delays = cast(DelayQueue, queue)
    try:
        if order == "published":
            return await _by_publishing(request, delays, wanted)
        return await _by_due_time(request, delays, wanted, offset)
    except FilterTooSlow as error:
        raise BadRequest(error.text) from error


async def _by_due_time(
    request: ApiRequest, delays: DelayQueue, wanted: _Wanted, offset: int
) -> dict[str, Any]:
    """One page of the list by due time. The next page begins at `next_offset`.

    `next_offset` is None after the last message, and if it would be above `OFFSET_MAX`.
    """
    epoch, node = epoch_of(request.node, delays), request.node
    breather = Breather()
    items: list[dict[str, Any]] = []
    await breather.breathe()
    order = delays.due_order()
    for passed in range(0, offset, LOOKED_AT_ONCE):
        await breather.breathe()
        deque(islice(order, min(LOOKED_AT_ONCE, offset - passed)), maxlen=0)
    next_offset: int | None = offset
    while next_offset is not None and len(items) < wanted.count_max:
        if next_offset >= OFFSET_MAX + COUNT_MAX:
            break
        await breather.breathe()
        some = min(LOOKED_AT_ONCE, wanted.count_max - len(items))
        positions = list(islice(order, some))
        found = delays.look_at(positions)
        next_offset = next_offset + some if len(positions) == some else None
        items += [
            _row(request, epoch, message, wanted.truncate)
            for message in found
            if wanted.passes(
                Subject(message, MessageState.READY, node.codec, node.clock.wall_time())
            )
        ]
    if next_offset is not None and next_offset > OFFSET_MAX:
        next_offset = None
    return {"total": len(delays), "items": items, "next_offset": next_offset}


async def _by_publishing(
    request: ApiRequest, delays: DelayQueue, wanted: _Wanted
) -> dict[str, Any]:
    """One page of the list in the order of publishing. The next page begins at `next`.

    `next` is None after the last message. A page may be empty although there are more messages, as
    one call looks at a bounded number of them (`messages/looking.py`).
    """
    epoch = epoch_of(request.node, delays)
    start = request.query("from")
    place = QueuePlace(0, _position_of(start, epoch)) if start else None
    search = Search(wanted.passes, wanted.count_max, place, unacked=False)
    looked = await look(request.node, delays, search)
    items: list[dict[str, Any]] = []
    breather = Breather()
    for one in looked.found:
        await breather.breathe()
        items.append(_row(request, epoch, one.message, wanted.truncate))
    return {
        "total": len(delays),
        "items": items,
        "looked_at": looked.looked_at,
        "next": None if looked.next is None else _id(epoch, looked.next.position),
    }


def _row(request: ApiRequest, epoch: int, message: Message, truncate: int) -> dict[str, Any]:
    node = request.node
    now = node.clock.now()
    left_s = 0.0 if message.expires_at is None else max(0.0, message.expires_at - now)
    envelope = message.envelope
    return {
        "id": _id(epoch, message.position),
        "due_at": int((node.clock.wall_time() + left_s) * 1000),
        "due_in": int(left_s * 1000),
        "exchange": envelope.exchange,
        "routing_key": envelope.routing_key,
        "payload_bytes": len(message.body),
        **payload_row(message.body, truncate),
        "properties": to_json(node.codec.as_table(envelope.header)) or [],
    }


def _id(epoch: int, position: int) -> str:
    return f"{epoch}.{position}"


def _position_of(id: str, epoch: int) -> int:
    """The position in an id. Raises `ObjectNotFound` for an id of another epoch, or no id."""
    matched = re.fullmatch(r"([0-9]{1,18})\.([0-9]{1,18})", id)
    if matched is None or int(matched[1]) != epoch:
        raise _not_there()
    return int(matched[2])


def _position(request: ApiRequest, queue: Queue) -> int:
    """The position of the message in the path. Raises `ObjectNotFound`."""
    return _position_of(request.name("message"), epoch_of(request.node, queue))


def _not_there() -> ObjectNotFound:
    return ObjectNotFound(
        "not_found",
        "no such delayed message: it was sent or cancelled, or another node leads the delayed"
        " messages by now, and lists it with another id",
    )


async def cancel(request: ApiRequest) -> Any:
    """Delete one message without routing it."""
    queue = _queue_of(request, "read")
    if not queue.is_here:
        return await _elsewhere(request, queue, ONE, "DELETE")
    if not cast(DelayQueue, queue).cancel([_position(request, queue)]):
        raise _not_there()
    _audited(request, queue, "delayed_message_cancelled")
    return None


async def send_now(request: ApiRequest) -> Any:
    """Route one message now, as if its delay were over."""
    queue = _queue_of(request, "write")
    if not queue.is_here:
        return await _elsewhere(request, queue, SEND, "POST")
    if not cast(DelayQueue, queue).send_now([_position(request, queue)]):
        raise _not_there()
    _audited(request, queue, "delayed_message_sent")
    return None


def _audited(request: ApiRequest, queue: Queue, event: str) -> None:
    exchange = queue.settings.delays
    audit(request, event, vhost=queue.vhost_name, exchange=exchange, id=request.name("message"))


ENDPOINTS = [
    Endpoint(LIST, {"GET": list_delayed}, summary="Delayed messages"),
    Endpoint(ONE, {"DELETE": cancel}, summary="Cancel a delayed message"),
    Endpoint(SEND, {"POST": send_now}, summary="Send a delayed message now"),
]
