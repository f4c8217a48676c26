"""A purge of very many messages that came back is carried out in turns, on disk as well."""

from __future__ import annotations

import pytest
from disk import SimulatedDisk
from stored_queues import OTHER, QUEUE, Node

from warren.persist.index import queue_index

MANY = 1000


@pytest.fixture
def node(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with a queue. A client has two of its messages; all others have come back."""
    monkeypatch.setattr(queue_index, "PURGED_AT_ONCE", 100)
    node = Node(disk)
    for _ in range(MANY):
        node.publish(b"x")
    node.rest()
    queue = node.queues[QUEUE]
    messages = queue.fetch_many(MANY)
    queue.requeue([*messages[1:500], *messages[501:]])
    return node


def kept(node: Node) -> int:
    return len(node.stores[QUEUE].entries.listed(0, 1 << 60, 2 * MANY).positions)


def test_it_goes_on_in_turns(node: Node) -> None:
    assert node.queues[QUEUE].purge() == MANY - 2
    assert node.queues[QUEUE].length == 0
    assert 2 < kept(node) < MANY
    lefts = [kept(node)]
    while lefts[-1] > 2:
        node.clock.turn()
        lefts.append(kept(node))
    assert len(lefts) > 8


def test_what_is_published_meanwhile_stays(node: Node) -> None:
    queue = node.queues[QUEUE]
    queue.purge()
    node.publish(b"new")
    assert kept(node) > 3
    node.rest()
    message = queue.fetch()
    assert message is not None
    assert message.body == b"new"
    assert queue.fetch() is None


def test_a_node_that_stops_meanwhile_has_nothing_of_it_afterwards(
    node: Node, disk: SimulatedDisk
) -> None:
    node.queues[QUEUE].purge()
    assert kept(node) > 2
    node.stop()
    assert Node(disk, defined=[QUEUE, OTHER]).queues[QUEUE].length == 2


def test_a_queue_may_be_deleted_meanwhile(node: Node) -> None:
    node.queues[QUEUE].purge()
    node.queues.pop(QUEUE).delete()
    node.publish(b"x", OTHER)
    node.rest()
    assert kept(node) == 0
    assert node.queues[OTHER].length == 1
