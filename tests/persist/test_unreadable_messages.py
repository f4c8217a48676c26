"""What the disk does not give because of an error of the system stays on it."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from disk import SimulatedDisk, SimulatedFile
from stored_queues import OTHER, QUEUE, STORE, Node, bodies

from warren.core.backing.variable_queue import LAZY_MODE, VariableQueue
from warren.persist.index.index_context import UNREADABLE_MAX
from warren.persist.layout.format import SEGMENT_ENTRIES

COUNT = 20
BODY_BYTES = 1000
EXPECTED = [b"%04d" % number * (BODY_BYTES // 4) for number in range(COUNT)]
FAR_INTO_THE_FILE = 5000


def filled(node: Node, expected: Sequence[bytes] = EXPECTED) -> tuple[Node, VariableQueue]:
    """A node that was started again, and its queue, whose messages are on the disk only."""
    for body in expected:
        node.publish(body)
    node.rest()
    again = restarted(node)
    return again, again.queues[QUEUE]


def with_unloaded_segment(node: Node) -> Path:
    """Fill the queue; returns the file of a segment of its index that is not in memory."""
    node.queues[QUEUE].set_mode(LAZY_MODE)
    for number in range(3 * SEGMENT_ENTRIES):
        node.publish(b"%d" % number)
        if not number % 1000:
            node.rest(0.01)
    node.checkpoint()
    entries = node.stores[QUEUE].entries
    unloaded = next(one for one in entries.segments.values() if one.columns is None)
    return unloaded.path(entries.directory)


def log_file(node: Node) -> Path:
    (path,) = [path for path in node.disk.files() if path.parent == STORE / "log"]
    return path


def move_away(disk: SimulatedDisk, patch: pytest.MonkeyPatch) -> None:
    """Nothing is where it was."""

    def gone(path: Path, *, writable: bool = True) -> SimulatedFile:
        raise FileNotFoundError(errno.ENOENT, "moved away", str(path))

    patch.setattr(disk, "open", gone)
    patch.setattr(disk, "names", lambda directory: [])


def restarted(node: Node) -> Node:
    """The node as it is after it ended in order, on a disk that works."""
    node.disk.heal()
    node.rest()
    node.stop()
    again = Node(node.disk)
    again.rest()
    return again


def test_what_cannot_be_read_is_there_at_the_next_start(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node, queue = filled(node)
    node.disk.fail_read(log_file(node))
    assert bodies(queue) == []
    queue.check()
    assert caplog.text.count("message_unreadable") == COUNT and "message_lost" not in caplog.text
    assert not node.faults and not node.storage.lost
    found = restarted(node).queues[QUEUE].fetch_many(COUNT)
    assert [message.body for message in found] == EXPECTED
    assert all(message.redelivered for message in found)


def test_a_bad_place_costs_nothing_but_the_messages_in_it(node: Node) -> None:
    node, queue = filled(node)
    node.disk.fail_read(log_file(node), range(FAR_INTO_THE_FILE, FAR_INTO_THE_FILE + 512))
    readable = queue.fetch_many(COUNT)
    assert COUNT - 2 <= len(readable) < COUNT and queue.length == 0
    queue.check()
    queue.ack(readable)
    left = bodies(restarted(node).queues[QUEUE])
    assert left == [body for body in EXPECTED if body not in [one.body for one in readable]]


def test_a_message_that_cannot_be_read_is_missed_once(node: Node) -> None:
    node, queue = filled(node)
    node.disk.fail_read(log_file(node), range(FAR_INTO_THE_FILE, FAR_INTO_THE_FILE + 512))
    for _ in range(2):
        peeked = queue.peek(0, COUNT, 1 << 20).messages
        assert len(peeked) == queue.length
    assert COUNT - 2 <= queue.length < COUNT
    assert len(queue.list_positions(0, queue.next_position, COUNT).positions) == queue.length
    queue.check()


def test_a_body_that_cannot_be_read_back_is_not_removed(node: Node) -> None:
    node, queue = filled(node)
    (message,) = queue.fetch_many(1)
    message.page_out()
    node.disk.fail_read(log_file(node))
    assert queue.load([message]) == []
    queue.ack([message])
    assert bodies(restarted(node).queues[QUEUE])[:1] == EXPECTED[:1]


def test_combining_keeps_what_could_not_be_read(disk: SimulatedDisk) -> None:
    node, queue = filled(Node(disk))
    path = log_file(node)
    disk.fail_read(path, range(FAR_INTO_THE_FILE, FAR_INTO_THE_FILE + 512))
    readable = queue.fetch_many(COUNT)
    disk.heal()
    queue.ack(readable)
    node.storage.persistent.seal()
    node.publish(b"in a further file", OTHER)
    node.rest()
    node.checkpoint()
    node.storage.combine()
    node.rest(5)
    assert sum(combiner.combined for combiner in node.storage.combiners) == 1
    left = bodies(restarted(node).queues[QUEUE])
    assert len(left) == COUNT - len(readable) and set(left) < set(EXPECTED)


def test_a_purge_removes_what_cannot_be_read(node: Node) -> None:
    node, queue = filled(node)
    node.disk.fail_read(log_file(node), range(FAR_INTO_THE_FILE, FAR_INTO_THE_FILE + 512))
    queue.peek(0, COUNT, 1 << 20)
    queue.purge()
    node.rest()
    assert restarted(node).queues[QUEUE].length == 0


def test_a_disk_that_gives_nothing_ends_the_node_and_loses_nothing(node: Node) -> None:
    expected = [b"%d" % number for number in range(2 * UNREADABLE_MAX)]
    node, queue = filled(node, expected)
    node.disk.fail_read(log_file(node))
    assert bodies(queue) == []
    (fault,) = node.faults
    assert isinstance(fault, OSError) and fault.errno == errno.EIO
    assert bodies(restarted(node).queues[QUEUE]) == expected


def test_a_disk_that_gives_every_second_message_ends_the_node(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [b"%d" % number for number in range(6 * UNREADABLE_MAX)]
    node, _ = filled(node, expected)
    read, count = SimulatedFile.read, 0

    def read_or_not(file: SimulatedFile, offset: int, length: int) -> bytes:
        nonlocal count
        count += 1
        if count % 2:
            raise OSError(errno.EIO, "bad sector")
        return read(file, offset, length)

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedFile, "read", read_or_not)
        index = node.stores[QUEUE]
        start = index.recovered().start
        for position in range(start, start + len(expected)):
            index.read(position, position + 1, 1, 1)
    (fault,) = node.faults
    assert isinstance(fault, OSError) and fault.errno == errno.EIO
    assert bodies(restarted(node).queues[QUEUE]) == expected


def test_an_index_that_cannot_be_read_ends_the_node_and_loses_nothing(node: Node) -> None:
    node.disk.fail_read(with_unloaded_segment(node))
    node.queues[QUEUE].fetch_many(3 * SEGMENT_ENTRIES)
    assert node.faults and node.storage.lost == 0
    node.disk.heal()
    node.disk.kill()
    again = Node(node.disk)
    assert len(bodies(again.queues[QUEUE])) == 3 * SEGMENT_ENTRIES


def test_a_directory_that_is_away_for_a_while_costs_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, queue = filled(node)

    with monkeypatch.context() as patch:
        move_away(node.disk, patch)
        assert bodies(queue) == []
    assert bodies(restarted(node).queues[QUEUE]) == EXPECTED


def test_an_index_that_is_away_for_a_while_ends_the_node_and_costs_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_unloaded_segment(node)

    with monkeypatch.context() as patch:
        move_away(node.disk, patch)
        node.queues[QUEUE].fetch_many(3 * SEGMENT_ENTRIES)
    assert node.faults and node.storage.lost == 0
    node.disk.kill()
    assert len(bodies(Node(node.disk).queues[QUEUE])) == 3 * SEGMENT_ENTRIES


def test_what_is_still_in_memory_says_nothing_of_the_disk(node: Node) -> None:
    expected = [b"%d" % number for number in range(UNREADABLE_MAX)]
    node, _ = filled(node, expected)
    node.disk.fail_read(log_file(node))
    node.publish(b"on its way to the disk", OTHER)
    node.turn()
    old, new = node.stores[QUEUE], node.stores[OTHER]
    start = old.recovered().start
    for position in range(start, start + len(expected)):
        assert old.read(position, position + 1, 1, 1).lost == 1
        (message,) = new.read(new.first_position(), new.first_position() + 1, 1, 1).messages
        assert message.body == b"on its way to the disk"
    assert len(node.faults) == 1
