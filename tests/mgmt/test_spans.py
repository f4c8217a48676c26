"""Spans from records: which ones, their parents, and that the open ones are bounded."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from warren.core.tracing.trace_record import TraceEvent, TraceRecord
from warren.mgmt import spans as module
from warren.mgmt.spans import Context, MessageSpan, Spans

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
REMOTE = Context(int(TRACE, 16), int(PARENT, 16), "vendor=1", True)


class Maker:
    """Feeds records a second apart, and gathers the spans."""

    def __init__(self, traceparent: str = TRACEPARENT) -> None:
        numbers = count(1)
        self.spans = Spans(lambda bits: next(numbers))
        self.made: list[MessageSpan] = []
        self._now = 0
        self._traceparent = traceparent

    def record(self, event: TraceEvent, queue: str = "", **more: Any) -> None:
        self._now += 1_000_000
        record = TraceRecord(self._now, event, "m", "/", "n", queue, "", "q", **more)
        self.made += self.spans.spans(record)

    def publish(self, *queues: str) -> None:
        self.record(
            TraceEvent.PUBLISHED,
            queues=queues,
            traceparent=self._traceparent,
            tracestate="vendor=1",
        )


def shape(span: MessageSpan) -> tuple[str, int, int, str]:
    return span.name, span.began // 1_000_000, span.ended // 1_000_000, span.failed


def test_time_in_the_queue_and_time_to_ack_hang_below_the_publisher() -> None:
    maker = Maker()
    maker.publish("q")
    maker.record(TraceEvent.DELIVERED, "q", connection="c", size=4)
    maker.record(TraceEvent.ACKNOWLEDGED, "q")
    waited, settled = maker.made
    assert (shape(waited), shape(settled)) == (("queue q", 1, 2, ""), ("ack q", 2, 3, ""))
    assert waited.parent == REMOTE
    assert settled.parent == waited.context
    assert waited.context.trace_id == settled.context.trace_id == REMOTE.trace_id
    assert waited.context.state == "vendor=1"
    assert waited.attributes["messaging.system"] == "rabbitmq"
    assert waited.attributes["messaging.message.body.size"] == 4
    assert waited.attributes["messaging.destination.name"] == "q"
    assert waited.attributes["messaging.message.id"] == "m"
    assert "messaging.operation.type" not in waited.attributes
    assert settled.attributes["messaging.operation.type"] == "settle"
    assert settled.attributes["messaging.operation.name"] == "ack"


def test_message_that_comes_back_waits_again() -> None:
    maker = Maker()
    maker.publish("q")
    for end in (TraceEvent.REQUEUED, TraceEvent.REJECTED):
        maker.record(TraceEvent.DELIVERED, "q")
        maker.record(end, "q")
    maker.record(TraceEvent.DEAD_LETTERED, "q", queues=("dlq",))
    maker.record(TraceEvent.DELIVERED, "dlq", no_ack=True)
    assert [shape(span) for span in maker.made] == [
        ("queue q", 1, 2, ""),
        ("requeue q", 2, 3, ""),
        ("queue q", 3, 4, ""),
        ("reject q", 4, 5, "rejected"),
        ("queue dlq", 6, 7, ""),
    ]
    # What its publisher has named holds for the whole life.
    assert {span.context.trace_id for span in maker.made} == {REMOTE.trace_id}


def test_message_that_expires_has_failed() -> None:
    maker = Maker()
    maker.publish("q", "other")
    maker.record(TraceEvent.EXPIRED, "q")
    maker.record(TraceEvent.DROPPED, "other")
    assert [shape(span) for span in maker.made] == [
        ("queue q", 1, 2, "expired"),
        ("queue other", 1, 3, "dropped"),
    ]
    assert maker.made[0].attributes["error.type"] == "expired"


def test_duplicate_makes_no_span_and_does_not_shorten_one() -> None:
    maker = Maker()
    maker.publish("q")
    maker.publish("q")
    maker.record(TraceEvent.DUPLICATE, "q")
    maker.record(TraceEvent.DELIVERED, "q", no_ack=True)
    maker.publish("q")
    maker.record(TraceEvent.DUPLICATE, "q")
    maker.record(TraceEvent.DELIVERED, "q", no_ack=True)
    assert [shape(span) for span in maker.made] == [("queue q", 1, 4, "")]


def test_message_that_is_rolled_back_makes_no_span() -> None:
    maker = Maker()
    maker.publish("q")
    maker.record(TraceEvent.ROLLED_BACK, queues=("q",))
    maker.record(TraceEvent.DELIVERED, "q", no_ack=True)
    assert maker.made == []


def test_queue_that_is_emptied_ends_no_span() -> None:
    maker = Maker()
    maker.publish("q", "other")
    maker.record(TraceEvent.PURGED, "q")
    maker.record(TraceEvent.DELIVERED, "q")
    maker.record(TraceEvent.DELIVERED, "other")
    assert [span.name for span in maker.made] == ["queue other"]


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        "ff" + TRACEPARENT[2:],
    ],
)
def test_message_without_a_context_begins_a_trace(traceparent: str) -> None:
    maker = Maker(traceparent)
    maker.publish("q")
    maker.record(TraceEvent.DELIVERED, "q")
    maker.record(TraceEvent.ACKNOWLEDGED, "q")
    waited, settled = maker.made
    assert waited.parent is None
    assert settled.parent == waited.context


def test_later_version_of_the_header_is_understood() -> None:
    maker = Maker(f"01-{TRACE}-{PARENT}-01-more")
    maker.publish("q")
    maker.record(TraceEvent.DELIVERED, "q")
    assert maker.made[0].parent == REMOTE


def test_what_is_not_sampled_has_no_spans() -> None:
    maker = Maker(f"00-{TRACE}-{PARENT}-00")
    maker.publish("q")
    maker.record(TraceEvent.DELIVERED, "q", traceparent=f"00-{TRACE}-{PARENT}-00")
    maker.record(TraceEvent.ACKNOWLEDGED, "q")
    assert maker.made == []


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_MAX", 10)
    spans = Spans(lambda bits: 1)
    for number in range(100):
        event = TraceEvent.PUBLISHED
        spans.spans(TraceRecord(1, event, f"m{number}", "/", "n", queues=("q",)))
    ended = [
        spans.spans(TraceRecord(2, TraceEvent.DELIVERED, f"m{number}", "/", "n", "q"))
        for number in range(100)
    ]
    assert [bool(made) for made in ended] == [False] * 90 + [True] * 10
    assert len(spans._held) == 10 and len(spans._parents) <= 20
