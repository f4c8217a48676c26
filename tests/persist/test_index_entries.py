"""Which segments of a queue's index are in memory."""

from __future__ import annotations

from typing import cast

import pytest
from disk import SimulatedDisk
from stored_queues import QUEUE, Node

from warren.core.backing.variable_queue import VariableQueue
from warren.core.messages.message import Envelope
from warren.persist.index.index_entries import IndexEntries
from warren.persist.index.queue_index import QueueIndex
from warren.persist.layout.format import SEGMENT_ENTRIES
from warren.persist.layout.segment import Segment

ENVELOPE = Envelope("", "key", b"header", True, 0, None)
SEGMENTS = 6


@pytest.fixture
def again(node: Node, disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node that was started again, and finds a queue of some segments."""
    monkeypatch.setattr("warren.persist.index.index_entries.LOADED_MAX", 2)
    queue = node.queues[QUEUE]
    for start in range(0, SEGMENTS * SEGMENT_ENTRIES, 4096):
        bodies = [b"%d" % number for number in range(start, start + 4096)]
        queue.publish_many([ENVELOPE] * 4096, bodies, None, None, 0)
        node.rest()
    node.checkpoint()
    node.stop()
    again = Node(disk)
    again.rest()
    return again


@pytest.fixture
def queue(again: Node) -> VariableQueue:
    return again.queues[QUEUE]


def entries_of(queue: VariableQueue) -> IndexEntries:
    return cast(QueueIndex, queue.store).entries


def in_memory(queue: VariableQueue) -> list[int]:
    first, *_ = entries_of(queue).numbers
    segments = entries_of(queue).segments.items()
    return [number - first for number, segment in segments if segment.columns is not None]


def parts_of(queue: VariableQueue) -> range:
    """Positions all over the queue, of which nobody has taken a message."""
    first = queue.peek(0, 1, 1).messages[0].position
    return range(first, first + SEGMENTS * SEGMENT_ENTRIES, SEGMENT_ENTRIES // 4)


def test_a_look_through_a_queue_leaves_few_segments_in_memory(queue: VariableQueue) -> None:
    before, parts = in_memory(queue), parts_of(queue)
    assert all(len(queue.peek(start, 10, 1 << 20).messages) == 10 for start in parts)
    # The last one stays, too.
    assert len(in_memory(queue)) <= len(before) + 3
    for start in parts:
        assert queue.list_positions(start, start + 100, 50).positions == [*range(start, start + 50)]
    # The last one stays, too.
    assert len(in_memory(queue)) <= len(before) + 3


def test_a_page_that_is_looked_at_again_is_not_read_again(
    queue: VariableQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []
    load = IndexEntries._load

    def counted(entries: IndexEntries, segment: Segment) -> None:
        loaded.append(segment.number)
        load(entries, segment)

    monkeypatch.setattr(IndexEntries, "_load", counted)
    parts = parts_of(queue)
    for start in parts:
        queue.peek(start, 10, 1 << 20)
    loaded.clear()
    for _ in range(5):
        # It has messages of two segments.
        middle = parts[0] + 3 * SEGMENT_ENTRIES - 500
        assert len(queue.peek(middle, 1000, 1 << 20).messages) == 1000
    assert len(loaded) == 2


def test_messages_are_consumed_while_somebody_looks_through_the_queue(
    again: Node, queue: VariableQueue
) -> None:
    got, looks = 0, 0
    parts = parts_of(queue)
    while queue.length:
        messages = queue.fetch_many(5000)
        got += len(messages)
        looks += len(queue.peek(parts[got // 5000 * 7 % len(parts)], 300, 1 << 20).messages)
        queue.ack(messages)
    assert got == SEGMENTS * SEGMENT_ENTRIES and looks
    again.rest()
    assert len(in_memory(queue)) <= 4
