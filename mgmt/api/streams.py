"""Streams for operators: replicas and status (streams.md section Management).

RabbitMQ 3.10 has no HTTP endpoints for these; the command line uses them below `/control`.
"""

from __future__ import annotations

from typing import Any

from warren.core.queues.queue import Queue
from warren.core.queues.queue_type import STREAM
from warren.core.queues.stream_queue import StreamingQueue
from warren.mgmt.api.queue_members import of_leader, put_member, queue_of_type, remove_member
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.listing import Row
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.queue_members import FOLLOWER, LEADER, status_of

ROLES = {LEADER: "writer", FOLLOWER: "replica"}
"""RabbitMQ's words for members of streams. RabbitMQ does not list members that have no copy; Warren
does, and shows their state as their role."""

FIGURES = ("offset", "committed_offset", "first_offset", "readers", "segments")


STREAMS = "/control/streams/{vhost}/{queue}"
STATUS = f"{STREAMS}/status"


async def status(request: ApiRequest) -> Any:
    stream = queue_of_type(request, STREAM, "Cannot get stream status of a {} queue")
    shown = await of_leader(request, stream, STATUS)
    return _rows(request, stream) if shown is None else shown


def _rows(request: ApiRequest, stream: Queue) -> list[Row]:
    """A row for each member, as far as this node knows it."""
    return [
        {
            "role": ROLES.get(member.state, member.state),
            "node": member.node,
            **(_figures(stream) if member.state == LEADER else dict.fromkeys(FIGURES, "")),
        }
        for member in status_of(request.managed, stream)
    ]


def _figures(stream: Queue) -> Row:
    """The figures of the leader; empty on other nodes, if the leader does not answer them.

    `offset` and `committed_offset` are those of the last message, -1 if there was none yet.
    `segments` is always empty, since Warren does not keep a stream in segments.
    """
    row: Row = dict.fromkeys(FIGURES, "")
    if isinstance(stream, StreamingQueue):
        log = stream.log
        row["offset"] = log.next_position - 1
        row["committed_offset"] = log.committed - 1
        row["first_offset"] = log.first
        row["readers"] = stream.consumer_total
    return row


async def put_replica(request: ApiRequest) -> None:
    stream = queue_of_type(request, STREAM, "Cannot add replicas to a {} queue")
    await put_member(request, stream)


async def remove_replica(request: ApiRequest) -> None:
    stream = queue_of_type(request, STREAM, "Cannot delete replicas from a {} queue")
    await remove_member(request, stream)


ENDPOINTS = [
    Endpoint(STATUS, {"GET": status}, Right.LOCAL, "Replicas of a stream"),
    Endpoint(
        f"{STREAMS}/members/{{node}}",
        {"PUT": put_replica, "DELETE": remove_replica},
        Right.LOCAL,
        "Add a replica of a stream, or take it away",
    ),
]
