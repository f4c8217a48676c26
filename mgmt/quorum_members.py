"""The members of a quorum queue: the nodes that have a copy of it, and how operators change them.

Only this module of management knows about members. On a node that is in no cluster a quorum queue
has one member, which cannot be removed.
"""

from __future__ import annotations

from typing import NamedTuple

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Key
from warren.core.queues.queue import Queue
from warren.core.queues.queue_type import QUORUM
from warren.mgmt.managed_node import ManagedNode
from warren.mgmt.waiting import through

LEADER = "leader"
FOLLOWER = "follower"
NO_PROCESS = "noproc"
NODE_DOWN = "nodedown"
"""States of members as RabbitMQ names them."""

MACHINE_VERSION = 2
"""The machine version of quorum queues in RabbitMQ 3.10, whose behaviour ours have."""

NODE_NOT_RUNNING = "node_not_running"
LAST_NODE = "last_node"
SAME_MACHINE = "node_on_same_machine"
"""A reason of Warren's own; the others are RabbitMQ's."""


class MemberRefused(Exception):
    """A member cannot be added or removed; the text is RabbitMQ's word for the reason."""


class MemberStatus(NamedTuple):
    """One member. The figures are None where they are not known."""

    node: str
    state: str
    log_index: int | None
    term: int | None


def leader_of(managed: ManagedNode, queue: Queue) -> str:
    """The node that leads the queue; empty if it is not known."""
    if queue.is_here:
        return managed.name
    record = _record(managed, queue)
    return record.leader if record is not None else ""


def members_of(managed: ManagedNode, queue: Queue) -> list[str]:
    record = _record(managed, queue)
    return list(record.members) if record and record.members else [leader_of(managed, queue)]


def online_of(managed: ManagedNode, queue: Queue) -> list[str]:
    """The members whose nodes can be reached."""
    return [node for node in members_of(managed, queue) if node in running_nodes(managed)]


def running_nodes(managed: ManagedNode) -> list[str]:
    cluster = managed.cluster
    return [managed.name] if cluster is None else sorted(cluster.running())


def quorum_queues(managed: ManagedNode) -> list[Queue]:
    """The quorum queues of all virtual hosts, on whatever node."""
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
    """The queue's members. `log_index` is known only if this node leads the queue."""
    leader, record = leader_of(managed, queue), _record(managed, queue)
    running = running_nodes(managed)
    copies = {leader, *(record.mirrors if record is not None else ())}
    index = operations(queue) if queue.is_here else None
    term = term_of(managed, queue)
    found = []
    for node in members_of(managed, queue):
        if node not in running:
            found.append(MemberStatus(node, NODE_DOWN, None, None))
        elif node not in copies:
            # The node is to have a copy, and does not have it yet.
            found.append(MemberStatus(node, NO_PROCESS, None, None))
        else:
            state = LEADER if node == leader else FOLLOWER
            found.append(MemberStatus(node, state, index, term))
    return found


def operations(queue: Queue) -> int:
    """Operations on the queue since this node leads it; stands for the index of a log."""
    return queue.published + queue.acked + queue.given_back


def term_of(managed: ManagedNode, queue: Queue) -> int:
    """How many leaders the queue has had."""
    record = _record(managed, queue)
    return 1 if record is None else record.epoch + 1


async def add_member(managed: ManagedNode, queue: Queue, node: str) -> None:
    """Add a member, unless it is one already. Raises `MemberRefused`."""
    if node in members_of(managed, queue):
        return
    if node not in running_nodes(managed):
        raise MemberRefused(NODE_NOT_RUNNING)
    assert managed.cluster is not None
    machine_of = managed.cluster.membership.machine_of
    if machine_of(node) in map(machine_of, members_of(managed, queue)):
        raise MemberRefused(SAME_MACHINE)
    members = managed.cluster.mirroring.quorum_members
    await through(members.add(_key(queue), queue.queue_id, node))


async def delete_member(managed: ManagedNode, queue: Queue, node: str) -> None:
    """Remove a member, if it is one. Raises `MemberRefused`."""
    members = members_of(managed, queue)
    if node not in members:
        return
    if len(members) == 1:
        raise MemberRefused(LAST_NODE)
    assert managed.cluster is not None
    change = managed.cluster.mirroring.quorum_members
    await through(change.remove(_key(queue), queue.queue_id, node))


def _key(queue: Queue) -> Key:
    return ("queue", queue.vhost_name, queue.name)


def _record(managed: ManagedNode, queue: Queue) -> QueueRecord | None:
    stored = managed.node.metadata.get(_key(queue))
    if stored is None or not isinstance(stored.record, QueueRecord):
        return None
    return stored.record
