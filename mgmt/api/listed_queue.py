"""A queue in a request or in a list, with its virtual host."""

from __future__ import annotations

from typing import NamedTuple

from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import Queue
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt import queue_members
from warren.mgmt.http.errors import ObjectNotFound
from warren.mgmt.http.request import ApiRequest


class ListedQueue(NamedTuple):
    """A queue and its virtual host; this node or another one may lead the queue."""

    vhost: VirtualHost
    queue: Queue


def queue_of(request: ApiRequest) -> ListedQueue:
    """The queue in the path. Raises `ObjectNotFound`."""
    vhost = request.vhost()
    queue = vhost.queues.get(request.name("queue"))
    if queue is None:
        raise ObjectNotFound()
    return ListedQueue(vhost, queue)


def led_here(listed: ListedQueue) -> LocalQueue:
    """The queue, which this node must lead: a node has figures only of the queues it leads."""
    assert isinstance(listed.queue, LocalQueue), listed.queue.described
    return listed.queue


def leader_of(request: ApiRequest, listed: ListedQueue) -> str:
    """The node that leads the queue."""
    return queue_members.leader_of(request.managed, listed.queue)
