"""Members of quorum queues and streams: what requests about them have in common."""

from __future__ import annotations

from typing import Any

from warren.core.errors import BrokerError
from warren.core.queues.queue import Queue
from warren.core.queues.queue_type import QueueType
from warren.mgmt.api.changes import audit
from warren.mgmt.http.errors import BadRequest, ObjectNotFound
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.queue_members import MemberRefused, add_member, delete_member, leader_of


def queue_of_type(request: ApiRequest, wanted: QueueType, otherwise: str) -> Queue:
    """The queue in the path.

    Raises `ObjectNotFound`, or for other types of queues `BadRequest` with the text `otherwise`,
    in which `{}` stands for the type.
    """
    queue = request.vhost().queues.get(request.name("queue"))
    if queue is None:
        raise ObjectNotFound()
    if queue.settings.type is not wanted:
        raise BadRequest(otherwise.format(queue.settings.type))
    return queue


async def of_leader(request: ApiRequest, queue: Queue, path: str) -> Any:
    """The answer of the node that leads the queue to a request for this path; None if that is this
    node, or one that does not answer. Raises `ApiError` if the leader refuses.

    `join_peers()` in `endpoints.py` must list the endpoint.
    """
    peers = request.peers
    if peers is None or queue.is_here:
        return None
    leader = leader_of(request.managed, queue)
    try:
        return await peers.ask(leader, request, path, dict(request.http.match_info))
    except BrokerError:
        return None


async def put_member(request: ApiRequest, queue: Queue) -> None:
    """Give the queue a member at the node in the path. Raises `BadRequest` with the reason."""
    node = request.name("node")
    try:
        await add_member(request.managed, queue, node)
    except MemberRefused as refused:
        raise BadRequest(str(refused)) from refused
    _audit(request, queue, "member_added", node)


async def remove_member(request: ApiRequest, queue: Queue) -> None:
    """Take away the queue's member at the node in the path. Raises `BadRequest` with the reason."""
    node = request.name("node")
    try:
        await delete_member(request.managed, queue, node)
    except MemberRefused as refused:
        raise BadRequest(str(refused)) from refused
    _audit(request, queue, "member_deleted", node)


def _audit(request: ApiRequest, queue: Queue, change: str, node: str) -> None:
    event = f"{queue.settings.type}_{change}"
    audit(request, event, vhost=queue.vhost_name, queue=queue.name, node=node)
