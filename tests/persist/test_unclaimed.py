"""Messages on disk whose queues no definition names: kept, named, dropped or claimed again."""

from __future__ import annotations

import pytest
from disk import SimulatedDisk
from stored_queues import QUEUE, STORE, Node, bodies

from warren.persist.definitions.deleted_queues import NOTED, note_key
from warren.persist.storage.unclaimed import NAMED_MAX


def test_nothing_is_left_of_a_queue_that_is_deleted_after_a_restart(disk: SimulatedDisk) -> None:
    node = Node(disk)
    node.publish(b"x")
    node.rest()
    node.checkpoint()
    node.queues[QUEUE].purge()
    node.checkpoint()
    node.stop()
    # Earlier versions removed the file of the empty segment at the next start.
    (directory,) = disk.names(STORE / "queues")
    (segment,) = disk.names(STORE / "queues" / directory)
    disk.remove(STORE / "queues" / directory / segment)
    last = Node(disk)
    last.queues[QUEUE].delete()
    last.rest()
    assert disk.names(STORE / "queues") == []


def test_messages_of_a_queue_that_cannot_be_brought_back_are_kept(disk: SimulatedDisk) -> None:
    node = Node(disk)
    for queue_id in (0x1000, 0x1000 + 5, 0x2000):
        node.open(queue_id)
        node.publish(b"x", queue_id)
    node.rest()
    for _ in range(2):
        disk.crash()
        node = Node(disk, defined=(0x1000,), deleted=(0x2000,))
        node.checkpoint()
    disk.crash()
    last = Node(disk, defined=(0x1000, 0x2000))
    lengths = [last.storage._open[at].recovered().count for at in (0x1000, 0x1005)]
    assert lengths == [1, 1]
    assert 0x2000 not in last.storage._open


def test_what_is_dropped_at_a_start_is_noted_for_the_next_one(disk: SimulatedDisk) -> None:
    """As members of a cluster know at this start only what was deleted while they were down."""
    node = Node(disk)
    for queue_id in (0x1000, 0x2000):
        node.open(queue_id)
        node.publish(b"x", queue_id)
    node.rest()
    disk.crash()
    node = Node(disk, deleted=(0x2000,), is_deleted=(0x1000, 0x2000).__contains__)
    assert node.noted == [[(note_key(0x1000), NOTED)]]
    # It ends before anything has left the disk.
    disk.crash()
    assert not unclaimed(Node(disk, deleted=(0x1000, 0x2000)))


def unclaimed(node: Node) -> list[tuple[int, int, int]]:
    return [tuple(row)[:3] for row in node.storage.unclaimed.rows()]


def test_messages_of_a_queue_nobody_deleted_are_kept_until_it_is_there_again(
    disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(disk)
    node.open(0x1000)
    for number in range(3):
        node.publish(b"%d" % number, 0x1000)
    node.rest()
    node.stop()
    for _ in range(3):
        node = Node(disk)
        assert unclaimed(node) == [(0x1000, 3, 3)]
        assert "queue=0000000000001000 messages=3 bytes=3" in caplog.text
        # They hold up nothing else.
        node.publish(b"x")
        node.checkpoint()
        node.storage.combine()
        node.stop()
    node = Node(disk)
    assert bodies(node.open(0x1000)) == [b"0", b"1", b"2"]
    assert not node.storage.unclaimed


def test_of_many_queues_without_a_definition_some_are_named(
    disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(disk)
    for number in range(NAMED_MAX + 20):
        node.open(0x1000 + 0x100 * number)
        node.publish(b"x", 0x1000 + 0x100 * number)
    node.rest()
    disk.crash()
    Node(disk)
    assert caplog.text.count(" messages_unclaimed ") == NAMED_MAX
    assert f"many_messages_unclaimed queues={NAMED_MAX + 20} messages=120" in caplog.text


def test_what_was_delivered_before_its_definition_was_lost_counts_as_delivered(
    disk: SimulatedDisk,
) -> None:
    node = Node(disk)
    queue = node.open(0x1000)
    for body in (b"delivered", b"not delivered"):
        node.publish(body, 0x1000)
    node.rest()
    queue.requeue(queue.fetch_many(1))
    node.stop()
    for _ in range(2):
        Node(disk).stop()
    (first, second) = Node(disk).open(0x1000).fetch_many(2)
    assert (first.redelivered, second.redelivered) == (True, False)


def test_levels_of_a_queue_with_priorities_are_kept_together(disk: SimulatedDisk) -> None:
    node = Node(disk)
    for queue_id in (0x1000, 0x1003, 0x10FE, 0x1100):
        node.open(queue_id)
        node.publish(b"xx", queue_id)
    node.rest()
    disk.crash()
    node = Node(disk)
    assert unclaimed(node) == [(0x1000, 3, 6), (0x1100, 1, 2)]
    levels = [index.queue_id for index in node.storage.unclaimed.levels(0x1000)]
    assert levels == [0x10FE, 0x1003, 0x1000]


def test_a_deletion_that_was_written_down_is_carried_out(disk: SimulatedDisk) -> None:
    node = Node(disk)
    node.open(0x1000)
    node.publish(b"x", 0x1000)
    node.rest()
    disk.crash()
    node = Node(disk, deleted=(0x1000, 0x2000))
    assert not node.storage.unclaimed and not node.noted
    node.rest()
    # Of the other one there is nothing.
    assert node.noted == [[(note_key(0x2000), None)]]
    # The journal has the messages of the first, until a checkpoint is behind them.
    node.checkpoint()
    assert node.noted[1:] == [[(note_key(0x1000), None)]]
    disk.crash()
    assert not Node(disk).storage.unclaimed


def test_unclaimed_messages_that_are_dropped_are_so_for_good(disk: SimulatedDisk) -> None:
    node = Node(disk)
    node.open(0x1000)
    node.publish(b"x", 0x1000)
    node.rest()
    disk.crash()
    node = Node(disk)
    node.storage.drop_unclaimed(0x1000)
    assert not node.storage.unclaimed
    assert node.noted == [[(note_key(0x1000), NOTED)]]
    node.rest()
    node.checkpoint()
    assert node.noted[1:] == [[(note_key(0x1000), None)]]
    disk.crash()
    assert not Node(disk).storage.unclaimed
