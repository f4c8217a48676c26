"""What a leader has written into the definition of its queue."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from manual_clock import ManualClock

from warren.core.definitions.records import QueueRecord
from warren.core.ports import Key
from warren.mirror.carriers.ports import CarrierKind, MemberId
from warren.mirror.replication.leading.led_queue import LedQueue

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


def led_by_a(definitions: Definitions, carrier: CarrierKind = CarrierKind.GM) -> LedQueue:
    queue = SimpleNamespace(queue_id=7)
    no_effects = SimpleNamespace(group_joined=lambda led: None)
    return LedQueue(
        KEY,
        queue,  # type: ignore[arg-type]
        2,
        "a",
        ManualClock(),
        definitions,  # type: ignore[arg-type]
        no_effects,  # type: ignore[arg-type]
        carrier,
    )


def record_with(mirrors: list[str], in_sync: list[str]) -> QueueRecord:
    return QueueRecord(
        durable=True,
        auto_delete=False,
        exclusive=False,
        arguments={},
        queue_id=7,
        leader="a",
        mirrors=mirrors,
        in_sync=in_sync,
        epoch=2,
    )


def test_a_new_leader_does_not_wait_for_a_mirror_that_is_not_in_the_group() -> None:
    """Of its death this node heard when it was a mirror itself; nobody says so again."""
    definitions = Definitions(record_with(["b", "c"], ["b", "c"]))
    led = led_by_a(definitions)
    led.already_joined((MemberId("a", 1), MemberId("b", 2)))
    assert definitions.record.mirrors == ["b"]
    assert definitions.record.in_sync == ["b"]


def test_a_new_leader_that_joins_late_does_not_count_on_who_has_died_by_then() -> None:
    definitions = Definitions(record_with(["b", "c"], ["b", "c"]))
    led = led_by_a(definitions)
    led.already_joined((MemberId("a", 1), MemberId("b", 2), MemberId("c", 3)))
    assert definitions.record.mirrors == ["b", "c"]
    led.joined((MemberId("a", 1), MemberId("c", 3)))
    assert definitions.record.mirrors == ["c"]
    assert set(led.members()) == {"c"}


def test_no_mirror_is_named_for_a_carrier_that_the_queue_is_about_to_leave() -> None:
    """The definition that names the other carrier may be written already."""
    definitions = Definitions(record_with([], []))
    led = led_by_a(definitions, CarrierKind.LOG)
    b = MemberId("b", 5)
    led.is_about_to_come_over()
    led._members[b.node] = b
    led.has_answered(b.node, b.incarnation, 8, None)
    assert definitions.record.mirrors == []
    led.does_not_come_over()
    led.has_answered(b.node, b.incarnation, 8, None)
    assert definitions.record.mirrors == ["b"]
