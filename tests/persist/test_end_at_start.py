"""Up to which position the disk knew the messages of a queue when the node started."""

from __future__ import annotations

from random import Random

import pytest
from disk import SimulatedDisk
from stored_queues import OTHER, QUEUE, Node

COUNT = 10


@pytest.fixture
def node() -> Node:
    node = Node(SimulatedDisk(Random(1)))
    for number in range(COUNT):
        node.publish(b"%d" % number)
    return node


def acknowledge(node: Node, count: int) -> None:
    queue = node.queues[QUEUE]
    queue.ack(queue.fetch_many(count))


def test_a_queue_that_had_nothing(node: Node) -> None:
    node.rest()
    assert Node(node.disk).queues[OTHER].end_at_start == 0


@pytest.mark.parametrize("is_checkpoint_taken", [False, True])
def test_messages_that_are_there(node: Node, is_checkpoint_taken: bool) -> None:
    end = node.queues[QUEUE].next_position
    acknowledge(node, 3)
    node.rest()
    if is_checkpoint_taken:
        node.checkpoint()
    again = Node(node.disk)
    assert again.queues[QUEUE].end_at_start == end < again.queues[QUEUE].next_position


def test_messages_that_were_acknowledged_count(node: Node) -> None:
    end = node.queues[QUEUE].next_position
    node.rest()
    acknowledge(node, COUNT)
    node.rest()
    again = Node(node.disk)
    assert again.queues[QUEUE].length == 0 and again.queues[QUEUE].end_at_start == end


def test_messages_that_never_were_on_the_disk_do_not(node: Node) -> None:
    node.rest()
    end = node.queues[QUEUE].next_position
    node.publish(b"later")
    node.disk.crash()
    assert Node(node.disk).queues[QUEUE].end_at_start == end


def test_messages_that_were_acknowledged_count_at_further_starts(node: Node) -> None:
    end = node.queues[QUEUE].next_position
    node.rest()
    acknowledge(node, COUNT)
    node.rest()
    for _ in range(3):
        node.checkpoint()
        node = Node(node.disk)
        assert node.queues[QUEUE].end_at_start == end
