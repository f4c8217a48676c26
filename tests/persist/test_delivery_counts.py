"""How often messages were returned is known after a restart, whatever ended the node."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from disk import PowerLost, SimulatedDisk
from later_format import as_later
from stored_node import ORDERS, StoredNode
from stored_queues import LIMITS, NODE_ID, QUEUE, STORE, Node

from warren.core.messages.message import Envelope, Message
from warren.core.queues.quorum_level import LastingEnvelopes, QuorumLevel
from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.inspection.check import check
from warren.persist.inspection.dump import dump
from warren.persist.layout.format import (
    Damaged,
    DeliveryCount,
    NewerStorage,
    decode_counts,
    encode_counts,
)
from warren.persist.log.store_context import StorageSizes
from warren.persist.recovery.recovery import COUNTS_FILE

ENVELOPE = Envelope("", "key", b"header", False, 0, None)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(Random(1))


@pytest.fixture
def node(disk: SimulatedDisk) -> Node:
    node = Node(disk)
    node.rest()
    return node


def level_of(node: Node) -> QuorumLevel:
    return QuorumLevel(node.queues[QUEUE], LastingEnvelopes())


def publish(level: QuorumLevel, count: int, size: int = 10) -> None:
    for number in range(count):
        level.publish(ENVELOPE, b"%d" % number + bytes(size), None, None, 0)


def give_back(level: QuorumLevel, *times: int) -> list[Message]:
    """Fetch as many messages as there are numbers, and return each so often."""
    messages = level.fetch_many(len(times))
    for message, count in zip(messages, times, strict=True):
        for _ in range(count):
            level.give_back([message], last=False)
            assert level.fetch_many(1) == [message]
    return messages


def counts_after(node: Node) -> dict[bytes, int]:
    """What the queue knows after a restart, by body."""
    level = level_of(node)
    messages = level.fetch_many(level.length)
    positions = [message.position for message in messages]
    assert level.counts.keys() <= set(positions)
    return {
        message.body.rstrip(b"\0"): level.counts[message.position]
        for message in messages
        if message.position in level.counts
    }


@pytest.mark.parametrize("end", ["stop", "kill", "crash"])
@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_they_survive(node: Node, disk: SimulatedDisk, end: str, checkpoints: int) -> None:
    level = level_of(node)
    publish(level, 5)
    node.rest()
    give_back(level, 1, 0, 3)
    node.rest()
    for _ in range(checkpoints):
        node.checkpoint()
    if end == "stop":
        node.stop()
    elif end == "kill":
        disk.kill()
    else:
        disk.crash()
    again = Node(disk)
    assert counts_after(again) == {b"0": 1, b"2": 3}


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_so_do_marks_of_the_dead(node: Node, disk: SimulatedDisk, checkpoints: int) -> None:
    level = level_of(node)
    publish(level, 4)
    messages = give_back(level, 2, 0, 0)
    level.mark_dead(messages[:2], 3)
    level.ack(messages[2:])
    node.rest()
    for _ in range(checkpoints):
        node.checkpoint()
    disk.crash()
    again = level_of(Node(disk))
    assert again.counts == {messages[0].position: 2}
    assert again.dead_marks == {message.position: 3 for message in messages[:2]}
    assert again.purge() == 3
    assert (again.counts, again.dead_marks) == ({}, {})


def test_they_survive_when_the_journal_that_had_them_is_gone(disk: SimulatedDisk) -> None:
    node = Node(disk, StorageSizes(file_bytes_max=20_000, checkpoint_bytes=1 << 40))
    level = level_of(node)
    publish(level, 3, 5000)
    node.rest()
    give_back(level, 2)
    node.rest()
    for _ in range(5):
        publish(level, 3, 5000)
        node.rest()
    node.checkpoint()
    node.checkpoint()
    disk.crash()
    assert counts_after(Node(disk))[b"0"] == 2


def test_they_survive_a_second_restart_without_a_checkpoint(
    node: Node, disk: SimulatedDisk
) -> None:
    level = level_of(node)
    publish(level, 2)
    give_back(level, 2)
    node.rest()
    disk.crash()
    again = Node(disk)
    again.rest()
    level = level_of(again)
    give_back(level, 1)
    again.rest()
    again.checkpoint()
    disk.crash()
    assert counts_after(Node(disk)) == {b"0": 3}


def test_a_message_that_is_returned_before_it_is_written_has_its_count(
    node: Node, disk: SimulatedDisk
) -> None:
    level = level_of(node)
    publish(level, 1)
    give_back(level, 1)
    node.rest()
    disk.crash()
    assert counts_after(Node(disk)) == {b"0": 1}


def test_those_of_messages_that_are_gone_are_forgotten(node: Node, disk: SimulatedDisk) -> None:
    level = level_of(node)
    publish(level, 3)
    messages = give_back(level, 1, 1, 1)
    node.rest()
    node.checkpoint()
    level.ack(messages[:2])
    node.rest()
    node.checkpoint()
    (kept,) = [count.position for count in stored(disk)]
    assert kept == messages[2].position
    level.ack(messages[2:])
    node.rest()
    node.checkpoint()
    assert stored(disk) == []
    assert not node.storage.indexes.counted
    disk.crash()
    assert counts_after(Node(disk)) == {}


def stored(disk: SimulatedDisk) -> list[DeliveryCount]:
    file = disk.open(STORE / COUNTS_FILE)
    node_id, counts = decode_counts(file.read(0, file.size()))
    assert node_id == NODE_ID
    return counts


def test_a_node_that_has_none_keeps_no_file(node: Node, disk: SimulatedDisk) -> None:
    node.publish(b"m")
    node.rest()
    node.checkpoint()
    assert COUNTS_FILE not in disk.names(STORE)


def test_damage_takes_only_what_the_journal_has_not(node: Node, disk: SimulatedDisk) -> None:
    level = level_of(node)
    publish(level, 2)
    messages = give_back(level, 1, 1)
    node.rest()
    node.checkpoint()
    level.give_back(messages[:1], last=False)
    node.rest()
    disk.kill()
    disk.flip_bit(STORE / COUNTS_FILE, 40, 1)
    again = Node(disk)
    assert again.storage.damaged == 1
    assert counts_after(again) == {b"0": 2}


@pytest.mark.parametrize("seed", range(4))
def test_whatever_step_the_power_fails_at(seed: int) -> None:
    """What was durable stays, and what comes back is no more than there was."""
    step = 1
    while True:
        disk = SimulatedDisk(Random(seed))
        node = Node(disk, LIMITS._replace(file_bytes_max=4000))
        node.rest()
        level = level_of(node)
        publish(level, 4, 300)
        node.rest()
        durable: dict[int, int] = {}
        disk.crash_after(step)
        try:
            for number in range(4):
                messages = level.fetch_many(3)
                level.give_back(messages, last=bool(number % 2))
                node.rest()
                durable = dict(level.counts)
                node.checkpoint()
        except PowerLost:
            given = dict(level.counts)
        else:
            break
        disk.crash()
        found = level_of(Node(disk)).counts
        assert all(found.get(at, 0) >= count for at, count in durable.items()), step
        assert all(count <= given[at] for at, count in found.items()), step
        step += 1
    assert step > 20


def test_a_file_that_cannot_be_read_says_so() -> None:
    data = encode_counts(NODE_ID, [DeliveryCount(QUEUE, 1 << 40, 7)])
    assert decode_counts(data) == (NODE_ID, [DeliveryCount(QUEUE, 1 << 40, 7)])
    for wrong in (b"", data[:20], data[:-1] + b"\x00", b"x" + data[1:], data + b"\0"):
        with pytest.raises(Damaged):
            decode_counts(wrong)
    with pytest.raises(NewerStorage):
        decode_counts(as_later(data, len(data)))


def test_nothing_else_is_in_the_way(tmp_path: Path) -> None:
    """Readers of a store pass over the records of counts."""
    node = StoredNode(tmp_path)
    for number in range(3):
        node.publish(b"%d" % number, ORDERS)
    node.flush()
    store = node.queues[ORDERS]
    store.delivery_counts[node.positions[ORDERS] - 3] = 2
    store.counts_changed([node.positions[ORDERS] - 3])
    node.flush()
    node.die()
    filesystem = RealFileSystem()
    assert [at.body for at in dump(filesystem, tmp_path, ORDERS)] == [b"0", b"1", b"2"]
    report = check(filesystem, tmp_path, pause=lambda seconds: None)
    assert not report.damage
