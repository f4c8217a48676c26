"""What the storage does while the disk refuses some of what it asks for."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest
from stored_queues import OTHER, Node

from warren.core.backing.variable_queue import LAZY_MODE
from warren.core.messages.message import Envelope
from warren.persist.log.log_writer import FilePiece, LogWriter
from warren.persist.storage import checkpoint
from warren.persist.storage.disk_trouble import CALM_S


def test_a_checkpoint_that_fails_is_tried_again_once_a_second_however_much_is_published(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_whole", fail)
        node.storage.checkpointer.request()
        for number in range(100):
            node.publish(b"%d" % number)
            node.rest(0.02)
    assert 1 <= caplog.text.count("checkpoint_failed") <= 3
    taken = node.storage.checkpointer.taken
    node.rest(2)
    assert node.storage.checkpointer.taken > taken


def test_a_disk_that_fails_now_and_then_does_not_block_and_unblock_publishers_all_the_time(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        node.disk.fail_sync(1)
        node.publish(b"x")
        node.rest(1)
    assert len(node.publisher.settled) == 50
    assert node.flow == [True, False, True]
    assert caplog.text.count("storage_write_failed") == 2
    node.rest(CALM_S)
    assert node.flow[3:] == [False]


def test_a_disk_that_fails_is_not_taken_for_whole_because_the_transient_log_is_written_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = LogWriter.write
    failing = {True, False}

    def fail(self: LogWriter, pieces: Sequence[FilePiece]) -> None:
        if self._durable in failing:
            raise OSError(errno.EIO, "the disk fails")
        write(self, pieces)

    monkeypatch.setattr(LogWriter, "write", fail)
    # The storage has the method that it was made with.
    node = Node(node.disk)
    node.queues[OTHER].set_mode(LAZY_MODE)
    node.publish(b"persistent")
    envelope = Envelope("", "key", b"header", False, 0, None)
    node.queues[OTHER].publish(envelope, b"transient", None, None, 0)
    node.queues[OTHER].reduce(100)
    node.rest(1)
    assert node.flow == [True]
    failing.discard(False)
    node.rest(10)
    assert node.flow == [True]
    failing.clear()
    node.rest(10)
    assert node.flow == [True, False] and node.publisher.settled == [1]
