"""Finds messages in a queue, and exports them, over HTTP (docs/messages.md)."""

from __future__ import annotations

import base64
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from warren.core.errors import BrokerError
from warren.core.messages.message import Message
from warren.core.messages.message_filter import MessageState, Subject, parse_filter
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.retention import Retention
from warren.mgmt.api.holders import holders
from warren.mgmt.api.listed_queue import ListedQueue, leader_of, queue_of
from warren.mgmt.http.endpoint import Endpoint, JsonLines
from warren.mgmt.http.errors import ApiError, BadRequest, from_broker
from warren.mgmt.http.listing import Row
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.http.slices import Breather
from warren.mgmt.messages.looking import (
    FoundMessages,
    QueuePlace,
    Search,
    Source,
    leaves_out_unacked,
    look,
    parse_place,
)
from warren.mgmt.waiting import through

LIMIT = 50
LIMIT_MAX = 1000
"""Messages on a page, by default and at most."""

SHOWN_BYTES = 64 << 10
"""Octets of a body on a page, unless `truncate` says otherwise."""

WHOLE_BODY = 1 << 40
"""More octets than any body has."""

ORDERS = ("oldest", "newest")


async def list_messages(request: ApiRequest) -> Any:
    """One page of messages. `next` is where the next page begins, null at the end."""
    listed = _readable(request)
    if not isinstance(listed.queue, LocalQueue):
        # Refuse a bad request here: a refusal by the leader would look like a failing leader.
        _search(request, None, LIMIT, LIMIT_MAX)
        page = await _asked_of_leader(request, listed)
    else:
        page = await _page(request, listed.queue, LIMIT)
    # Another node gets the whole page at once; for a client the rows are encoded in slices.
    return page if request.passed else {**page, "messages": in_slices(page["messages"])}


async def in_slices(rows: list[Row]) -> AsyncIterator[list[Row]]:
    """The rows one by one, for an answer that is encoded while it is sent.

    Each is taken out of the list: to free many rows with large headers at once takes 100 ms.
    """
    breather = Breather()
    rows.reverse()
    while rows:
        await breather.breathe()
        yield [rows.pop()]


async def export(request: ApiRequest) -> JsonLines:
    """All messages found, one JSON object a line, sent while the search goes on."""
    _readable(request)
    # Refuse a bad filter before anything is sent.
    _search(request, QueuePlace(0, 0), LIMIT_MAX, 1)
    return JsonLines(_exported(request))


async def _exported(request: ApiRequest) -> AsyncIterator[list[Row]]:
    left = _number(request, "limit", sys.maxsize)
    start = request.query("from") or None
    while left > 0:
        listed = _readable(request)
        if isinstance(listed.queue, LocalQueue):
            page = await _page(
                request, listed.queue, LIMIT_MAX, start=start, most=left, shown=WHOLE_BODY
            )
        else:
            page = await _asked_of_leader(
                request,
                listed,
                start=start or "",
                limit=left,
                truncate=_number(request, "truncate", WHOLE_BODY),
            )
        left -= len(page["messages"])
        async for some in in_slices(page.pop("messages")):
            yield some
        start = page["next"]
        if start is None:
            return


def _readable(request: ApiRequest) -> ListedQueue:
    """The queue in the path, if the caller may read its messages. Raises `ApiError`."""
    vhost, queue = queue_of(request)
    request.check(vhost.name, "queue", queue.name, "read")
    return ListedQueue(vhost, queue)


async def _asked_of_leader(request: ApiRequest, listed: ListedQueue, **changed: Any) -> Any:
    peers = request.peers
    parts = dict(request.http.match_info)
    query = {name: str(value) for name, value in changed.items()}
    if "start" in query:
        query["from"] = query.pop("start")
    if "limit" in query:
        query["limit"] = str(min(int(query["limit"]), LIMIT_MAX))
    try:
        if peers is None:
            raise BrokerError("the queue is led by another node")
        node = leader_of(request, listed)
        return await peers.ask(node, request, MESSAGES, parts, query=query)
    except BrokerError as error:
        raise ApiError(503, "unavailable", error.text) from error


async def _page(
    request: ApiRequest,
    queue: LocalQueue,
    limit: int,
    *,
    start: str | None = None,
    most: int = LIMIT_MAX,
    shown: int = SHOWN_BYTES,
) -> Row:
    queue.check_access(None)
    source = await _source(request, queue)
    levels = len(source.levels)
    given = start if start is not None else request.query("from")
    try:
        place = parse_place(given, levels) if given else None
    except ValueError:
        example = "3.120" if levels > 1 else "120"
        raise BadRequest(f"from should be a position such as {example}, not '{given}'") from None
    search = _search(request, place, limit, min(most, LIMIT_MAX))
    truncate = _number(request, "truncate", shown)
    try:
        looked = await look(request.node, source, search)
    except BrokerError as error:
        raise from_broker(error) from error
    answer = {
        "messages": await message_rows(request, source, looked.found, truncate),
        "looked_at": looked.looked_at,
        "next": looked.next.text(levels) if looked.next is not None else None,
    }
    if leaves_out_unacked(source):
        answer["unacked_left_out"] = source.unacked + source.waiting
    return answer


async def _source(request: ApiRequest, queue: LocalQueue) -> Source:
    """The source that the request asks for: the messages in the queue, or those that it has
    retained so far. Raises `BadRequest`."""
    if not request.query_flag("retained"):
        return queue
    if queue.retention is None:
        raise BadRequest(f"queue '{queue.name}' retains nothing of what is acknowledged")
    retention = queue.retention
    await through(retention.written())
    return retention


def _search(request: ApiRequest, start: QueuePlace | None, limit: int, most: int) -> Search:
    order = request.query("order", ORDERS[0])
    if order not in ORDERS:
        raise BadRequest(f"order should be oldest or newest, not '{order}'")
    limit = min(_number(request, "limit", limit), most)
    if limit < 1:
        raise BadRequest("limit should be 1 at least")
    return Search(
        test=parse_filter(request.query("filter")),
        limit=limit,
        start=start,
        newest_first=order == "newest",
    )


def _number(request: ApiRequest, name: str, default: int) -> int:
    text = request.query(name)
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise BadRequest(f"{name} should be a whole number, not '{text}'")
    return int(text)


async def message_rows(
    request: ApiRequest, source: Source, found: Sequence[FoundMessages], truncate: int
) -> list[Row]:
    """Messages as rows of an answer."""
    held = {one.message for one in found if one.state is MessageState.UNACKED}
    held_by = await holders(request, source, held) if held else {}
    rows: list[Row] = []
    breather = Breather()
    for one in found:
        # Large headers alone take 10 ms or more.
        await breather.breathe()
        rows.append(_message_row(request, source, one, truncate))
    until: dict[Message, float] = {}
    if isinstance(source, LocalQueue) and any(one.state is MessageState.WAITING for one in found):
        until = source.waiting_messages()
    now = request.node.clock.now()
    for row, one in zip(rows, found, strict=True):
        if one.state is MessageState.UNACKED:
            row["held_by"] = held_by.get(one.message)
        elif one.state is MessageState.WAITING:
            row["ready_in_ms"] = max(0, round(1000 * (until.get(one.message, now) - now)))
    return rows


def _message_row(request: ApiRequest, source: Source, found: FoundMessages, truncate: int) -> Row:
    node = request.node
    place, message, state = found
    envelope = message.envelope
    subject = Subject(message, state, node.codec, node.clock.wall_time())
    row: Row = {
        "position": place.text(len(source.levels)),
        "state": state.value,
        "exchange": envelope.exchange,
        "routing_key": envelope.routing_key,
        "redelivered": message.redelivered,
        "properties": subject.properties,
        "payload_bytes": len(message.body),
        **payload_row(message.body, truncate),
    }
    if isinstance(source, Retention):
        row["state"] = "retained"
        row["acknowledged_at"] = source.log.arrived_at(place.position)
    elif message.expires_at is not None:
        row["expires_in_ms"] = max(0, round(1000 * (message.expires_at - node.clock.now())))
    return row


def payload_row(body: bytes, truncate: int) -> Row:
    """The first octets of a body: as text if they are UTF-8, otherwise as base64."""
    shown = body[:truncate]
    if len(shown) < len(body) and (shown[-4:].translate(None, delete=_ASCII)):
        # The cut may be in the middle of a character.
        for end in range(len(shown), max(0, len(shown) - 4), -1):
            with suppress(UnicodeDecodeError):
                return {"payload": shown[:end].decode(), "payload_encoding": "string"}
    try:
        return {"payload": shown.decode(), "payload_encoding": "string"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(shown).decode("ascii"), "payload_encoding": "base64"}


_ASCII = bytes(range(128))


MESSAGES = "/queues/{vhost}/{queue}/messages"

ENDPOINTS = [
    Endpoint(MESSAGES, {"GET": list_messages}, summary="Looks for messages, which stay"),
    Endpoint(f"{MESSAGES}/export", {"GET": export}, summary="Exports messages as lines of JSON"),
]
