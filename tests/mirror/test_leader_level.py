"""What the backing queue of a leader knows and its own store does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from warren.core.memory_queue import MemoryQueue
from warren.core.message import Envelope
from warren.mirror.replication.leader_level import LeaderLevel

ENVELOPE = Envelope("", "ha", b"", True, 0, None)


@pytest.mark.parametrize("may_be_delivered", [True, False])
def test_what_another_leader_may_have_delivered_is_redelivered_after_a_stop_in_order(
    may_be_delivered: bool,
) -> None:
    journal = SimpleNamespace(
        again=may_be_delivered, publish=lambda *_: 1, nobody_asks=lambda *_: None
    )
    store = MemoryQueue()
    level = LeaderLevel(store, 0, journal)  # type: ignore[arg-type]
    level.publish(ENVELOPE, b"body", None, None, 0)
    level.stop()
    message = store.fetch()
    assert message is not None and message.redelivered is may_be_delivered
