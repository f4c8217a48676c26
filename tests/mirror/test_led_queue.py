"""What a leader does about mirrors of whose death it was told before it led."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).parent.parent / "simulation"))

from manual_clock import ManualClock

from warren.core.ports import Key
from warren.core.records import QueueRecord
from warren.mirror.carriers.ports import MemberId
from warren.mirror.replication.led_queue import LedQueue

KEY: Key = ("queue", "/", "ha")


class Definitions:
    """The one definition there is."""

    def __init__(self, record: QueueRecord) -> None:
        self.record = record

    def record_of(self, key: Key, queue_id: int) -> QueueRecord:
        return self.record

    def write_record(
        self,
        key: Key,
        queue_id: int,
        change: Callable[[QueueRecord], QueueRecord | None],
        then: Callable[[], None] = lambda: None,
        otherwise: Callable[[], None] = lambda: None,
    ) -> None:
        self.record = change(self.record) or self.record


def test_a_new_leader_does_not_wait_for_a_mirror_that_is_not_in_the_group() -> None:
    """Of its death this node heard when it was a mirror itself; nobody says so again."""
    record = QueueRecord(
        durable=True,
        auto_delete=False,
        exclusive=False,
        arguments={},
        queue_id=7,
        leader="a",
        mirrors=["b", "c"],
        in_sync=["b", "c"],
        epoch=2,
    )
    definitions = Definitions(record)
    queue, no_effects = SimpleNamespace(queue_id=7), SimpleNamespace()
    led = LedQueue(KEY, queue, 2, "a", ManualClock(), definitions, no_effects)  # type: ignore[arg-type]
    led.already_joined((MemberId("a", 1), MemberId("b", 2)))
    assert definitions.record.mirrors == ["b"]
    assert definitions.record.in_sync == ["b"]
