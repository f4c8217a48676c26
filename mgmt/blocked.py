"""Connections of this node that an alarm keeps from publishing, and the queues they wait for."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from warren.amqp.connection import Connection
from warren.core.node import Node

NAMED_MAX = 20
"""How many queues are named at most, those with the most blocked connections first."""


class BlockedCounts(NamedTuple):
    """The number of blocked connections, and of those that each queue blocks by its growth.

    Queues are named by virtual host and name.
    """

    connections: int
    by_queue: Counter[tuple[str, str]]


def blocked(node: Node) -> BlockedCounts:
    """The connections that alarms block at this moment; flow control is not counted."""
    if not node.alarms.reason():
        return BlockedCounts(0, Counter())
    waiting = [c for c in node.clients if isinstance(c, Connection) and c.blocked]
    queues = [connection.blocking.queue for connection in waiting]
    by_queue = Counter((queue.vhost_name, queue.name) for queue in queues if queue is not None)
    return BlockedCounts(len(waiting), by_queue)


def node_columns(node: Node) -> dict[str, Any]:
    """The columns of a node's row about blocking. `alarms_block` is empty, `growing` or `all`."""
    now = blocked(node)
    blocks = "all" if node.alarms.all_wait else "growing"
    return {
        "alarms_block": blocks if node.alarms.reason() else "",
        "blocked_connections": now.connections,
        "blocking_queues": [
            {"vhost": vhost, "name": name, "connections": count}
            for (vhost, name), count in now.by_queue.most_common(NAMED_MAX)
        ],
    }


def connection_columns(connection: Connection) -> dict[str, Any]:
    """Since when a connection is blocked, in ms since 1970, and why; empty if it is not blocked."""
    blocking = connection.blocking
    reason = connection.node.alarms.reason()
    if blocking.since is None or not reason or not connection.blocked:
        return {}
    queue = blocking.queue
    return {
        "blocked_since": int(blocking.since * 1000),
        "blocked_reason": reason,
        "blocked_by_queue": None
        if queue is None
        else {"vhost": queue.vhost_name, "name": queue.name},
    }
