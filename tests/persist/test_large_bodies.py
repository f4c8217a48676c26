"""Bodies that several queues share on disk."""

from __future__ import annotations

import pytest
from stored_queues import STORE, Node, bodies, numbered

from warren.persist.log import journal

SMALL, LARGE = 100, 10_000


@pytest.mark.parametrize(("size", "copies"), [(LARGE, 1), (SMALL, 20)])
def test_a_large_body_is_stored_once_for_all_queues_and_a_small_one_for_each(
    node: Node, size: int, copies: int
) -> None:
    queues = [0x1000 + 0x100 * number for number in range(20)]
    for queue_id in queues:
        node.open(queue_id)
    body = numbered(7, size)
    node.publish(body, *queues)
    node.rest()
    (path,) = (path for path in node.disk.files() if path.parent == STORE / "log")
    log = node.disk.open(path)
    assert log.read(0, log.size()).count(body) == copies
    assert node.publisher.settled == [1] * 20


def test_a_burst_of_large_bodies_for_many_queues_is_stored_once(node: Node) -> None:
    queues = [0x1000 + 0x100 * number for number in range(20)]
    for queue_id in queues:
        node.open(queue_id)
    count = 3 * journal.BATCH_BYTES_MAX // LARGE
    for number in range(count):
        node.publish(numbered(number, LARGE), *queues)
    node.rest()
    assert len(node.publisher.settled) == count * len(queues)
    assert node.storage.persistent.live_bytes < 1.1 * count * LARGE
    assert node.storage.journal.written_bytes < 1.3 * count * LARGE
    assert bodies(node.queues[queues[-1]])[-1] == numbered(count - 1, LARGE)


def test_a_shared_body_goes_with_its_last_queue(node: Node) -> None:
    queues = [0x1000 + 0x100 * number for number in range(20)]
    for queue_id in queues:
        node.open(queue_id)
    node.publish(numbered(1, LARGE), *queues)
    node.rest()
    kept = node.storage.persistent.live_bytes
    assert kept >= LARGE
    for queue_id in queues[:-1]:
        node.queues[queue_id].purge()
    node.rest()
    assert node.storage.persistent.live_bytes == kept
    node.queues[queues[-1]].purge()
    node.rest()
    assert node.storage.persistent.live_bytes == 0
