"""How many reads of the log it takes to read messages."""

from __future__ import annotations

from random import Random

import pytest
from disk import SimulatedDisk
from stored_queues import QUEUE, Node, numbered

from warren.persist.log.message_store import MessageStore

COUNT = 50


def test_what_is_on_disk_is_read_at_once_while_more_is_written_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(SimulatedDisk(Random(1)))
    for number in range(COUNT):
        node.publish(numbered(number, 100))
    node.rest()
    for number in range(COUNT, COUNT + 3):
        node.publish(numbered(number, 100))
    node.turn()
    read, places = MessageStore.read, list[int]()

    def counted(store: MessageStore, place: int, length: int) -> bytes:
        places.append(place)
        return read(store, place, length)

    monkeypatch.setattr(MessageStore, "read", counted)
    index = node.stores[QUEUE]
    first = index.first_position()
    assert any(file.unwritten for file in node.storage.persistent.files.values())
    messages = index.read_stored(first, first + COUNT + 3, 1000, 1 << 20).messages
    assert [message.body for message in messages[:COUNT]] == [
        numbered(number, 100) for number in range(COUNT)
    ]
    # The others, if they have places already, are in memory.
    assert len(places) == 1 + len(messages) - COUNT
