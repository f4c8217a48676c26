"""A message that is damaged on the disk is told with its position."""

from __future__ import annotations

from random import Random

from disk import SimulatedDisk
from stored_queues import QUEUE, STORE, Node, bodies

from warren.core.backing.variable_queue import LAZY_MODE

EXPECTED = [b"%02d" % number * 100 for number in range(8)]
DAMAGED = 3


def test_the_position_of_a_damaged_message_is_told() -> None:
    node = Node(SimulatedDisk(Random(1)))
    node.queues[QUEUE].set_mode(LAZY_MODE)
    for body in EXPECTED:
        node.publish(body)
    node.rest()
    node.stop()
    node = Node(node.disk)
    lost: list[tuple[int, int | None]] = []
    node.storage.on_lost = lambda queue_id, position: lost.append((queue_id, position))
    queue = node.queues[QUEUE]
    positions = queue.list_positions(0, queue.next_position, len(EXPECTED)).positions
    (path,) = [path for path in node.disk.files() if path.parent == STORE / "log"]
    file = node.disk.open(path)
    node.disk.flip_bit(path, file.read(0, file.size()).index(EXPECTED[DAMAGED]), 0)
    assert bodies(queue) == EXPECTED[:DAMAGED] + EXPECTED[DAMAGED + 1 :]
    assert lost == [(QUEUE, positions[DAMAGED])]
