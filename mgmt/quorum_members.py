"""Which nodes have a copy of a quorum queue, and what operators can have done about that.

The one place in management that knows about members. A quorum queue has one member, its leader;
so nothing can be added that is not there, and the last one cannot be taken away.
"""

from __future__ import annotations

from typing import NamedTuple

from warren.core.queue import Queue
from warren.core.queue_type import QUORUM
from warren.core.records import QueueRecord
from warren.mgmt.managed_node import ManagedNode

LEADER = "leader"
NO_PROCESS = "noproc"
"""States of members as RabbitMQ names them."""

MACHINE_VERSION = 2
"""Of RabbitMQ 3.10's quorum queues, whose behaviour these have."""

NODE_NOT_RUNNING = "node_not_running"
LAST_NODE = "last_node"


class MemberRefused(Exception):
    """A member cannot be added or taken away; the text says why, in RabbitMQ's word."""


class MemberStatus(NamedTuple):
    """One member. The figures are None where the member is not there to be asked."""

    node: str
    state: str
    log_index: int | None
    term: int | None


def leader_of(managed: ManagedNode, queue: Queue) -> str:
    """The node that has the queue; empty when nobody knows."""
    if queue.is_here:
        return managed.name
    record = _record(managed, queue)
    return record.leader if record is not None else ""


def members_of(managed: ManagedNode, queue: Queue) -> list[str]:
    return [leader_of(managed, queue)]


def online_of(managed: ManagedNode, queue: Queue) -> list[str]:
    """The members whose nodes can be reached."""
    return [node for node in members_of(managed, queue) if node in running_nodes(managed)]


def running_nodes(managed: ManagedNode) -> list[str]:
    cluster = managed.cluster
    return [managed.name] if cluster is None else sorted(cluster.running())


def quorum_queues(managed: ManagedNode) -> list[Queue]:
    """Those of all virtual hosts, wherever they are."""
    return [
        queue
        for _, vhost in sorted(managed.node.vhosts.items())
        for _, queue in sorted(vhost.queues.items())
        if queue.settings.type is QUORUM
    ]


def is_critical(managed: ManagedNode, queue: Queue) -> bool:
    """Whether the queue has a member here and would lose its majority with this node."""
    members, online = members_of(managed, queue), online_of(managed, queue)
    return managed.name in members and len(online) <= len(members) // 2 + 1


def status_of(managed: ManagedNode, queue: Queue) -> list[MemberStatus]:
    """Its members. Of a queue that is elsewhere only its leader knows the figures."""
    node = leader_of(managed, queue)
    if not queue.is_here:
        return [
            MemberStatus(node, LEADER if node in running_nodes(managed) else NO_PROCESS, None, None)
        ]
    return [MemberStatus(node, LEADER, operations(queue), term_of(managed, queue))]


def operations(queue: Queue) -> int:
    """What has been done to the queue since it is here: stands for the index of a log."""
    return queue.published + queue.acked + queue.given_back


def term_of(managed: ManagedNode, queue: Queue) -> int:
    """How many leaders the queue has had."""
    record = _record(managed, queue)
    return 1 if record is None else record.epoch + 1


def add_member(managed: ManagedNode, queue: Queue, node: str) -> None:
    """Raises `MemberRefused`. To add one that is there already is no error."""
    if node in members_of(managed, queue):
        return
    if node not in running_nodes(managed):
        raise MemberRefused(NODE_NOT_RUNNING)
    raise MemberRefused("a quorum queue of this version has one member")


def delete_member(managed: ManagedNode, queue: Queue, node: str) -> None:
    """Raises `MemberRefused`. To take one away that is not there is no error."""
    members = members_of(managed, queue)
    if node in members and len(members) == 1:
        raise MemberRefused(LAST_NODE)


def _record(managed: ManagedNode, queue: Queue) -> QueueRecord | None:
    stored = managed.node.metadata.get(("queue", queue.vhost_name, queue.name))
    if stored is None or not isinstance(stored.record, QueueRecord):
        return None
    return stored.record
