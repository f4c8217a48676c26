"""Log files: full at their size, written anew when half of them is dead, removed when all is."""

from __future__ import annotations

import pytest
from disk import SimulatedDisk
from stored_queues import LIMITS, OTHER, QUEUE, STORE, Node, numbered, span

SMALL, LARGE = 100, 10_000


def test_a_log_file_is_full_at_its_size(disk: SimulatedDisk) -> None:
    node = Node(disk, LIMITS._replace(file_bytes_max=50_000))
    for number in range(40):
        node.publish(numbered(number, LARGE))
        node.rest(0.01)
    sizes = [size for path, size in disk.files().items() if path.parent == STORE / "log"]
    assert len(sizes) == 8
    assert all(50_000 <= size < 50_000 + LARGE + 200 for size in sizes[:-1])


def fill_files(node: Node) -> None:
    """Ten messages in each of four full files, and a fifth file."""
    for number in range(41):
        node.publish(numbered(number, LARGE))
        node.rest(0.01)
    node.checkpoint()


@pytest.mark.parametrize(("removed", "combined"), [(4, 0), (6, 1)])
def test_a_file_is_written_anew_when_more_than_half_of_it_is_dead(
    disk: SimulatedDisk, removed: int, combined: int
) -> None:
    node = Node(disk, LIMITS._replace(file_bytes_max=100_000))
    fill_files(node)
    before = node.written()
    node.stores[QUEUE].remove_range(*span(node, 10, 10 + removed))
    node.checkpoint()
    assert node.storage.combiners[0].combined == combined
    assert (node.written() < before - 5 * LARGE) == bool(combined)
    left = [number for number in range(10, 20) if number >= 10 + removed]
    read = node.stores[QUEUE].read(*span(node, 10, 20), 100, 1 << 30)
    assert [message.body for message in read.messages] == [numbered(at, LARGE) for at in left]


def test_a_file_goes_when_all_of_it_is_dead(disk: SimulatedDisk) -> None:
    node = Node(disk, LIMITS._replace(file_bytes_max=100_000))
    fill_files(node)
    files = len(node.storage.persistent.files)
    node.stores[QUEUE].remove_range(*span(node, 10, 20))
    node.checkpoint()
    assert len(node.storage.persistent.files) == files - 1
    assert node.storage.combiners[0].combined == 0


def test_a_log_file_does_not_keep_what_is_gone_of_indexes(disk: SimulatedDisk) -> None:
    """A file may be there for long, for the sake of other messages."""
    node = Node(disk)
    node.publish(numbered(0, SMALL), QUEUE)
    node.publish(numbered(1, SMALL), OTHER)
    node.rest()
    (file,) = node.storage.persistent.files.values()
    assert {segment.queue_id for segment in file.segments} == {QUEUE, OTHER}
    node.stores.pop(OTHER).delete()
    del node.queues[OTHER]
    node.rest()
    assert {segment.queue_id for segment in file.segments} == {QUEUE}
