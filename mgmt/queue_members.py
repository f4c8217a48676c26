"""The members of a quorum queue or a stream: the nodes that are to have a copy of it, and how
operators change them.

Only this module of management knows about members. On a node that is in no cluster a queue has one
member, which cannot be removed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Key
from warren.core.queues.queue import Queue
from warren.core.queues.queue_type import MEMBER_TYPES, STREAM, QueueType, majority_of
from warren.mgmt.managed_node import ManagedNode
from warren.mgmt.waiting import through

LEADER = "leader"
FOLLOWER = "follower"
NO_PROCESS = "noproc"
NODE_DOWN = "nodedown"
"""States of members as RabbitMQ names them."""

NODE_NOT_RUNNING = "node_not_running"
LAST_NODE = "last_node"
LAST_OF_STREAM = "Cannot delete the last member of a stream"
SAME_MACHINE = "node_on_same_machine"
"""A reason of Warren's own; the others are RabbitMQ's."""


class MemberRefused(Exception):
    """A member cannot be added or removed; the text is RabbitMQ's word for the reason."""


class MemberStatus(NamedTuple):
    """The state of one member. `has_copy`: its node runs, and has a copy of the queue."""

    node: str
    state: str
    has_copy: bool


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


def queues_with_members(
    managed: ManagedNode, types: Collection[QueueType] = MEMBER_TYPES
) -> list[Queue]:
    """The quorum queues and streams of all virtual hosts, on whatever node."""
    return [
        queue
        for _, vhost in sorted(managed.node.vhosts.items())
        for _, queue in sorted(vhost.queues.items())
        if queue.settings.type in types
    ]


def is_critical(managed: ManagedNode, queue: Queue) -> bool:
    """Whether the queue has a member here and would lose its majority with this node."""
    members, online = members_of(managed, queue), online_of(managed, queue)
    return managed.name in members and len(online) <= majority_of(members)


def lacks_majority(managed: ManagedNode, key: Key, running: Collection[str]) -> bool:
    """Whether most members of a queue are on nodes that do not run; false without members."""
    stored = managed.node.metadata.get(key)
    if stored is None or not isinstance(stored.record, QueueRecord):
        return False
    members = stored.record.members
    online = sum([1 for node in members if node in running])
    return bool(members) and online < majority_of(members)


def status_of(managed: ManagedNode, queue: Queue) -> list[MemberStatus]:
    leader, record = leader_of(managed, queue), _record(managed, queue)
    running = running_nodes(managed)
    copies = {leader, *(record.mirrors if record is not None else ())}
    found = []
    for node in members_of(managed, queue):
        if node not in running:
            found.append(MemberStatus(node, NODE_DOWN, False))
        elif node not in copies:
            # The node is to have a copy, and does not have it yet.
            found.append(MemberStatus(node, NO_PROCESS, False))
        else:
            state = LEADER if node == leader else FOLLOWER
            found.append(MemberStatus(node, state, True))
    return found


def operations(queue: Queue) -> int:
    """Operations on a quorum queue since this node leads it; stands for the index of a log."""
    return queue.published + queue.acked + queue.given_back


def term_of(managed: ManagedNode, queue: Queue) -> int:
    """How many leaders the queue has had."""
    record = _record(managed, queue)
    return 1 if record is None else record.epoch + 1


async def add_member(managed: ManagedNode, queue: Queue, node: str) -> None:
    """Add a member, unless it is one already. Raises `MemberRefused`."""
    if node not in running_nodes(managed):
        raise MemberRefused(NODE_NOT_RUNNING)
    if node in members_of(managed, queue):
        return
    assert managed.cluster is not None
    machine_of = managed.cluster.membership.machine_of
    if machine_of(node) in map(machine_of, members_of(managed, queue)):
        raise MemberRefused(SAME_MACHINE)
    members = managed.cluster.mirroring.queue_members
    await through(members.add(queue.key, queue.queue_id, node))


async def delete_member(managed: ManagedNode, queue: Queue, node: str) -> None:
    """Remove a member, if it is one. Raises `MemberRefused`."""
    members, is_stream = members_of(managed, queue), queue.settings.type is STREAM
    if is_stream and node not in running_nodes(managed):
        # RabbitMQ refuses this for streams only.
        raise MemberRefused(NODE_NOT_RUNNING)
    if node not in members:
        return
    if len(members) == 1:
        raise MemberRefused(LAST_OF_STREAM if is_stream else LAST_NODE)
    assert managed.cluster is not None
    change = managed.cluster.mirroring.queue_members
    await through(change.remove(queue.key, queue.queue_id, node))


def _record(managed: ManagedNode, queue: Queue) -> QueueRecord | None:
    stored = managed.node.metadata.get(queue.key)
    if stored is None or not isinstance(stored.record, QueueRecord):
        return None
    return stored.record
