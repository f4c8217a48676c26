"""How many messages of a queue are persistent, and their octets, as management shows them."""

from __future__ import annotations

from random import Random

import pytest
from disk import SimulatedDisk
from stored_queues import QUEUE, Node

from warren.core.backing.variable_queue import LAZY_MODE
from warren.core.messages.message import Envelope, Message
from warren.persist.layout.format import SEGMENT_ENTRIES

LASTING = Envelope("", "key", b"header", True, 0, None)
PASSING = Envelope("", "key", b"header", False, 0, None)


@pytest.fixture
def node() -> Node:
    return Node(SimulatedDisk(Random(1)))


def publish(node: Node, *sizes: int) -> None:
    """Publish persistent bodies of these sizes, and after each a transient one of 7 octets."""
    for size in sizes:
        node.queues[QUEUE].publish(LASTING, b"x" * size, None, node.publisher, 1)
        node.queues[QUEUE].publish(PASSING, b"x" * 7, None, node.publisher, 1)


def persistent(node: Node) -> tuple[int, int]:
    return node.queues[QUEUE].status(node.clock.now()).persistent


def take(node: Node, count: int) -> list[Message]:
    return node.queues[QUEUE].fetch_many(count)


@pytest.mark.parametrize("lazy", [False, True])
def test_messages_that_are_not_persistent_do_not_count(node: Node, lazy: bool) -> None:
    queue = node.queues[QUEUE]
    if lazy:
        queue.set_mode(LAZY_MODE)
    publish(node, 100, 30)
    assert persistent(node) == (2, 130)
    node.rest()
    assert persistent(node) == (2, 130)
    taken = take(node, 3)
    assert persistent(node) == (2, 130)
    queue.ack(taken)
    node.rest()
    assert persistent(node) == (0, 0)
    assert queue.length == 1


def test_each_kind_leaves_by_its_own_count(node: Node) -> None:
    queue = node.queues[QUEUE]
    queue.set_mode(LAZY_MODE)
    publish(node, 1, 2, 4, 8)
    node.rest()
    first, passing, *others = take(node, 8)
    queue.ack([passing])
    node.rest()
    assert persistent(node) == (4, 15)
    queue.ack([first])
    node.rest()
    assert persistent(node) == (3, 14)
    queue.ack(others)
    node.rest()
    assert persistent(node) == (0, 0)


def test_the_count_is_kept_while_segments_leave_memory_and_come_back(node: Node) -> None:
    queue = node.queues[QUEUE]
    queue.set_mode(LAZY_MODE)
    for _ in range(SEGMENT_ENTRIES // 500):
        publish(node, *[10] * 1000)
        node.rest(0.01)
    count = SEGMENT_ENTRIES // 500 * 1000
    node.checkpoint()
    assert None in [one.columns for one in node.stores[QUEUE].entries.segments.values()]
    assert persistent(node) == (count, 10 * count)
    queue.ack(take(node, 3001))
    node.rest()
    assert persistent(node) == (count - 1501, 10 * (count - 1501))
    queue.purge()
    node.rest()
    assert persistent(node) == (0, 0)
