"""What the storage does while the disk refuses some of what it asks for."""

from __future__ import annotations

import errno

import pytest
from stored_queues import Node

from warren.persist.storage import checkpoint


def test_a_checkpoint_that_fails_is_tried_again_once_a_second_however_much_is_published(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_small_file", fail)
        node.storage.checkpointer.request()
        for number in range(100):
            node.publish(b"%d" % number)
            node.rest(0.02)
    assert 1 <= caplog.text.count("checkpoint_failed") <= 3
    taken = node.storage.checkpointer.taken
    node.rest(2)
    assert node.storage.checkpointer.taken > taken
