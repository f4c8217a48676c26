"""Exports spans over OTLP, by OpenTelemetry's own library. Loaded only where it is configured.

The event loop hands records over and goes on. A thread makes spans of them (`spans.py`), encodes
and sends them. At most `QUEUED_MAX` records wait for the thread: further ones, while a receiver is
slow or away, are dropped and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from random import SystemRandom
from threading import Thread
from time import monotonic

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from warren import __version__
from warren.core.log_line import log_event
from warren.core.tracing.trace_record import TraceRecord
from warren.mgmt.spans import Context, MessageSpan, Spans

log = logging.getLogger("warren.node")

QUEUED_MAX = 20_000
"""Limit of records that wait for the thread."""

BATCH_MAX = 512
BATCH_S = 1.0
"""The most spans of one request, and how long the first of them waits for the others."""

SEND_S = 5.0
"""Time for one request to the receiver, retries included."""

STOP_S = 2.0
"""How long a stopping node waits until the last spans are sent."""

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OK = Status(StatusCode.UNSET)


class OtlpExporter:
    """Sends spans to `endpoint` from a thread of its own, until `close`.

    `exported` and `dropped` count spans; `dropped` also counts records for which there was no room.
    """

    def __init__(self, endpoint: str, service_name: str, node: str) -> None:
        self.exported = 0
        self.dropped = 0
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=SEND_S)
        self._endpoint = endpoint
        self._resource = Resource.create(
            {
                "service.name": service_name,
                "service.version": __version__,
                "service.instance.id": node,
            }
        )
        self._scope = InstrumentationScope("warren", __version__)
        self._spans = Spans(SystemRandom().getrandbits)
        self._records: SimpleQueue[Sequence[TraceRecord] | None] = SimpleQueue()
        self._queued = 0
        self._done = 0
        self._failing = False
        # The library logs each failed attempt; `_send` logs the first of a series only.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._thread = Thread(target=self._work, name="otlp", daemon=True)
        self._thread.start()

    # The loop

    def take(self, records: Sequence[TraceRecord]) -> None:
        """Have the thread make spans of these records; returns at once."""
        if self._queued - self._done + len(records) > QUEUED_MAX:
            self.dropped += len(records)
            return
        self._queued += len(records)
        self._records.put(records)

    def close(self) -> None:
        """Send the spans that are left; blocks for `STOP_S` at most."""
        self._records.put(None)
        self._thread.join(STOP_S)

    # The thread

    def _work(self) -> None:
        batch: list[ReadableSpan] = []
        due = 0.0
        while True:
            try:
                records = self._records.get(timeout=max(0.0, due - monotonic()) if batch else None)
            except Empty:
                records = ()
            if records is None:
                self._send(batch)
                return
            for record in records:
                if not batch:
                    due = monotonic() + BATCH_S
                batch += [self._readable(span) for span in self._spans.spans(record)]
                if len(batch) >= BATCH_MAX:
                    self._send(batch)
                    batch = []
            self._done += len(records)
            if batch and monotonic() >= due:
                self._send(batch)
                batch = []

    def _send(self, batch: list[ReadableSpan]) -> None:
        if not batch:
            return
        if self._exporter.export(batch) is SpanExportResult.SUCCESS:
            self.exported += len(batch)
            self._failing = False
            return
        self.dropped += len(batch)
        if not self._failing:
            self._failing = True
            log_event(log, logging.WARNING, "spans_not_exported", endpoint=self._endpoint)

    def _readable(self, span: MessageSpan) -> ReadableSpan:
        status = Status(StatusCode.ERROR, span.failed) if span.failed else _OK
        return ReadableSpan(
            span.name,
            context=_span_context(span.context),
            parent=None if span.parent is None else _span_context(span.parent),
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.INTERNAL,
            status=status,
            start_time=span.began * 1000,
            end_time=span.ended * 1000,
            instrumentation_scope=self._scope,
        )


def _span_context(context: Context) -> SpanContext:
    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(context.trace_id, context.span_id, context.is_remote, _SAMPLED, state)
