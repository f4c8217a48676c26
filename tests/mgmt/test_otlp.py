"""Spans over OTLP from a real node to a receiver that decodes them, answers slowly or refuses."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from ctl_node import CtlNode
from otlp_receiver import OtlpReceiver, attributes

from warren.core.tracing.trace_record import TraceEvent, TraceRecord
from warren.mgmt import otlp
from warren.mgmt.otlp import OtlpExporter

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
PATIENCE_S = 60.0


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    yield receiver
    receiver.close()


def counts(node: CtlNode) -> dict[str, int]:
    return dict(node("trace_status", "--formatter", "json").json["nodes"][node.name])


def test_spans_of_a_message_reach_a_receiver(receiver: OtlpReceiver, tmp_path: Path) -> None:
    config = tmp_path / "warren.conf"
    lines = (
        f"opentelemetry.endpoint = {receiver.endpoint}",
        "opentelemetry.service_name = shop-broker",
    )
    config.write_text("\n".join(lines), encoding="utf-8")
    node = CtlNode(tmp_path, "--config", str(config))
    try:
        assert node("set_parameter", "trace", "all", "{}").code == 0
        with node.connected() as connection:
            channel = connection.channel()
            channel.queue_declare("q")
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
            properties = pika.BasicProperties(message_id="m", headers=headers)
            began = time.time_ns()
            channel.basic_publish("", "q", b"body", properties)
            method, _, _ = channel.basic_get("q")
            assert method is not None
            channel.basic_ack(method.delivery_tag)
            wait_until(lambda: len(receiver.spans()) == 2)
            ended = time.time_ns()
        waited, settled = sorted(receiver.spans(), key=lambda span: span.start_time_unix_nano)
        assert receiver.paths == ["/v1/traces"] * len(receiver.paths)
        assert (waited.name, settled.name) == ("queue q", "ack q")
        assert waited.trace_id.hex() == settled.trace_id.hex() == TRACE
        assert waited.parent_span_id.hex() == PARENT
        assert settled.parent_span_id == waited.span_id
        assert waited.trace_state == "vendor=1"
        # The node's clock is this machine's; a record has microseconds.
        assert began - 1000 <= waited.start_time_unix_nano <= waited.end_time_unix_nano
        assert waited.end_time_unix_nano == settled.start_time_unix_nano
        assert settled.end_time_unix_nano <= ended
        assert attributes(waited)["messaging.system"] == "rabbitmq"
        assert attributes(settled)["messaging.operation.type"] == "settle"
        assert attributes(settled)["messaging.message.id"] == "m"
        assert receiver.resource()["service.name"] == "shop-broker"
        assert receiver.resource()["service.instance.id"] == node.name
        # The receiver has them before the node has heard so.
        wait_until(lambda: counts(node)["spans_exported"] == 2)
        assert counts(node)["spans_dropped"] == 0
    finally:
        node.end()


def records(count: int) -> list[TraceRecord]:
    """Each two of them make a span."""
    found = []
    for number in range(count // 2):
        found.append(TraceRecord(1, TraceEvent.PUBLISHED, f"m{number}", "/", "n", queues=("q",)))
        delivered = TraceEvent.DELIVERED
        found.append(TraceRecord(2, delivered, f"m{number}", "/", "n", "q", no_ack=True))
    return found


def test_receiver_that_does_not_answer_costs_spans_and_is_not_waited_for(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "QUEUED_MAX", 2000)
    monkeypatch.setattr(otlp, "BATCH_S", 0.01)
    receiver.open.clear()
    exporter = OtlpExporter(receiver.endpoint + "/v1/traces", "s", "n")
    exporter.take(records(2 * otlp.BATCH_MAX))
    assert receiver.asked.wait(PATIENCE_S)
    # It is stuck in sending; handing over goes on, and what is too much is counted.
    began = time.process_time()
    for _ in range(1000):
        exporter.take(records(100))
    assert exporter.dropped >= 1000 * 100 - 2000
    assert time.process_time() - began < PATIENCE_S
    receiver.open.set()
    wait_until(lambda: exporter.exported >= otlp.BATCH_MAX)
    exporter.close()


def test_receiver_that_refuses_is_counted_and_said_once(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "BATCH_S", 0.01)
    receiver.status = 400
    exporter = OtlpExporter(receiver.endpoint + "/v1/traces", "s", "n")
    for times in (1, 2):
        exporter.take(records(2))
        wait_until(lambda times=times: exporter.dropped == times)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["spans_not_exported"]
    receiver.status = 200
    exporter.take(records(2))
    wait_until(lambda: exporter.exported == 1)
    exporter.close()


def test_what_is_left_is_sent_at_the_end(receiver: OtlpReceiver) -> None:
    exporter = OtlpExporter(receiver.endpoint + "/v1/traces", "s", "n")
    exporter.take(records(2))
    exporter.close()
    assert [span.name for span in receiver.spans()] == ["queue q"]


def test_library_is_not_loaded_unless_it_is_wanted() -> None:
    code = (
        "import sys, warren.node, warren.management, warren.mgmt.api.endpoints;"
        "assert not [name for name in sys.modules if name.startswith(('opentelemetry', 'google'))]"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=PATIENCE_S)
