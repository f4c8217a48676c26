"""Quorum queues for operators: members, status, a look at a message (quorum_queues.md section 8).

RabbitMQ 3.10 has no HTTP endpoints for these; the command line uses them below `/control`.
"""

from __future__ import annotations

from typing import Any

from warren.core.erlang_text import binary_text
from warren.core.field import to_json
from warren.core.patterns.matcher import Matcher
from warren.core.patterns.pattern import InvalidPattern, compile_pattern
from warren.core.queues.queue import Queue
from warren.core.queues.queue_type import QUORUM
from warren.core.queues.quorum_queue import QuorumQueue
from warren.core.queues.redelivery import DELIVERY_COUNT
from warren.mgmt.api.queue_members import of_leader, put_member, queue_of_type, remove_member
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.errors import BadRequest
from warren.mgmt.http.listing import Row
from warren.mgmt.http.request import ApiRequest, demanded
from warren.mgmt.queue_members import (
    MemberRefused,
    add_member,
    delete_member,
    members_of,
    operations,
    queues_with_members,
    status_of,
    term_of,
)

MACHINE_VERSION = 2
"""The machine version of quorum queues in RabbitMQ 3.10: Warren's behave like that version."""

SHOWN_OCTETS = 64
"""Octets of a message's body that `peek` shows."""

NO_MESSAGE = "Target queue does not have a message at that position"


QUEUE = "/control/quorum-queues/{vhost}/{queue}"
STATUS = f"{QUEUE}/status"
MESSAGE = f"{QUEUE}/messages/{{position}}"


async def status(request: ApiRequest) -> Any:
    queue = queue_of_type(request, QUORUM, "Cannot get quorum status of a {} queue")
    shown = await of_leader(request, queue, STATUS)
    return _rows(request, queue) if shown is None else shown


def _rows(request: ApiRequest, queue: Queue) -> list[Row]:
    """A row for each member, as far as this node knows it."""
    index = operations(queue) if queue.is_here else None
    term = term_of(request.managed, queue)
    return [
        {
            "Node Name": member.node,
            "Raft State": member.state,
            **_log_columns(index if member.has_copy else None),
            "Term": term if member.has_copy else "",
            "Machine Version": "" if index is None or not member.has_copy else MACHINE_VERSION,
        }
        for member in status_of(request.managed, queue)
    ]


def _log_columns(index: int | None) -> Row:
    """The columns about the log; empty for None: the leader knows it, and does not answer."""
    if index is None:
        return dict.fromkeys(("Log Index", "Commit Index", "Snapshot Index"), "")
    return {"Log Index": index, "Commit Index": index, "Snapshot Index": "undefined"}


async def add(request: ApiRequest) -> None:
    await put_member(request, queue_of_type(request, QUORUM, "Cannot add members to a {} queue"))


async def remove(request: ApiRequest) -> None:
    # RabbitMQ refuses this with its text for adding members.
    queue = queue_of_type(request, QUORUM, "Cannot add members to a {} queue")
    await remove_member(request, queue)


async def grow(request: ApiRequest) -> Any:
    """Add a member on a node to all matching queues, or to those with an even number of members."""
    body = await request.body()
    (strategy,) = demanded(body, "strategy")
    vhosts, queues = _patterns(body)
    node, managed = request.name("node"), request.managed
    rows: list[dict[str, Any]] = []
    for queue in queues_with_members(managed, {QUORUM}):
        members = members_of(managed, queue)
        wanted = vhosts.search(queue.vhost_name) and queues.search(queue.name)
        if not wanted or node in members or (strategy == "even" and len(members) % 2):
            continue
        try:
            await add_member(managed, queue, node)
        except MemberRefused as refused:
            if str(refused) != "node_not_running":
                rows.append(_row(request, queue, f"error: {refused}"))
        else:
            rows.append(_row(request, queue, "ok"))
    return rows


async def shrink(request: ApiRequest) -> Any:
    """Remove the members on a node from all quorum queues."""
    node, managed = request.name("node"), request.managed
    rows: list[dict[str, Any]] = []
    for queue in queues_with_members(managed, {QUORUM}):
        if node not in members_of(managed, queue):
            continue
        try:
            await delete_member(managed, queue, node)
        except MemberRefused:
            rows.append(_row(request, queue, "error: the last node cannot be removed"))
        else:
            rows.append(_row(request, queue, "ok"))
    return rows


def _patterns(body: dict[str, Any]) -> tuple[Matcher, Matcher]:
    given = [body.get(name, ".*") for name in ("vhost_pattern", "queue_pattern")]
    if not all([isinstance(pattern, str) for pattern in given]):
        raise BadRequest("patterns should be strings")
    try:
        vhosts, queues = [compile_pattern(pattern) for pattern in given]
    except InvalidPattern as error:
        raise BadRequest(["invalid_regexp", error.pattern, error.reason]) from error
    return vhosts, queues


def _row(request: ApiRequest, queue: Queue, result: str) -> dict[str, Any]:
    size = len(members_of(request.managed, queue))
    return {"vhost": queue.vhost_name, "name": queue.name, "size": size, "result": result}


async def peek(request: ApiRequest) -> Any:
    """A ready message, which is not removed; the head of the queue is at position 1."""
    queue = queue_of_type(request, QUORUM, "Cannot peek into a {} queue")
    position = _position(request.name("position"))
    shown = await of_leader(request, queue, MESSAGE)
    return shown if shown is not None else _peeked(request, queue, position)


def _peeked(request: ApiRequest, queue: Queue, position: int) -> Row:
    if not isinstance(queue, QuorumQueue):
        raise BadRequest("the node that leads the queue does not answer")
    message = queue.level.look(position - 1)
    if message is None:
        raise BadRequest(NO_MESSAGE)
    codec = request.node.codec
    header = message.envelope.header
    headers = codec.headers(header)
    count = queue.level.counts.get(message.position)
    row: dict[str, Any] = {}
    mode = codec.as_table(header).get("delivery_mode")
    if mode is not None:
        row["delivery_mode"] = mode.value
    row["routing_keys"] = list(message.envelope.routing_keys)
    row["exchange"] = message.envelope.exchange
    row["payload (max 64 bytes)"] = _shown(message.body[:SHOWN_OCTETS])
    for name, value in to_json(headers).items():
        if name != DELIVERY_COUNT or count is None:
            row[f"header.{name}"] = value
    if count is not None:
        row[f"header.{DELIVERY_COUNT}"] = count
    return row


def _shown(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return binary_text(octets)


def _position(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise BadRequest("position value must be a positive integer")
    return int(text)


ENDPOINTS = [
    Endpoint(STATUS, {"GET": status}, Right.LOCAL, "Members of a quorum queue"),
    Endpoint(
        f"{QUEUE}/members/{{node}}",
        {"PUT": add, "DELETE": remove},
        Right.LOCAL,
        "Add a member of a quorum queue, or take it away",
    ),
    Endpoint(
        MESSAGE,
        {"GET": peek},
        Right.LOCAL,
        "Look at a message of a quorum queue",
    ),
    Endpoint(
        "/control/quorum-members/{node}",
        {"POST": grow, "DELETE": shrink},
        Right.LOCAL,
        "Add members at a node to quorum queues, or take them away",
    ),
]
