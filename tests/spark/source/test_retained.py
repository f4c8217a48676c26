"""What a queue has retained of acknowledged messages, read without the broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pytest
from pinned_messages import bodies_of

from warren import Broker
from warren.spark_export.decode.decode import decode_unit
from warren.spark_export.decode.schema import arrow_schema, columns
from warren.spark_export.errors import OptionRefused
from warren.spark_export.snapshot.deliveries import Deliveries
from warren.spark_export.snapshot.filters import EVERYTHING
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import create
from warren.spark_export.source.source import plan
from warren.spark_export.source.stream import check_stream

LARGE = b"2" * 5000


@pytest.fixture(scope="module", params=["classic", "quorum"])
def store(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """`q`, of this type, has retained 0, 1 and a large one, and has 3 left."""
    path = tmp_path_factory.mktemp("retained")
    with Broker(data_dir=path) as broker:
        broker.call(
            lambda node: node.policies.set("/", "keep", "^q$", {"retention": {"max-age": "1D"}})
        )
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True, arguments={"x-queue-type": request.param})
            for body in (b"0", b"1", LARGE, b"3"):
                properties = pika.BasicProperties(delivery_mode=2)
                channel.basic_publish("", "q", body, properties)
            for _ in range(3):
                method, _, _ = channel.basic_get("q")
                channel.basic_ack(method.delivery_tag)
    return path


def rows(store: Path, *, snapshot_of_all: bool = False, **given: str) -> list[dict[str, Any]]:
    options = parse_options({"path": str(store), "columns": "state,enqueued_at,body", **given})
    selector = QueueSelector(retained=options.wants_retained or snapshot_of_all)
    snapshot = create(store, selector, lease_s=60, needs_state=options.needs_state)
    try:
        schema = arrow_schema(columns(options))
        found: list[dict[str, Any]] = []
        for unit in plan(snapshot, options, EVERYTHING):
            for batch in decode_unit(unit, schema, options, deliveries=Deliveries(())):
                found += pa.Table.from_batches([batch]).to_pylist()
        return found
    finally:
        snapshot.release()


def test_retained_messages_are_read_where_they_are_asked_for(store: Path) -> None:
    found = rows(store, include="retained")
    assert [(row["state"], row["body"]) for row in found] == [
        ("retained", b"0"),
        ("retained", b"1"),
        ("retained", LARGE),
    ]
    moments = [row["enqueued_at"] for row in found]
    assert moments == sorted(moments)
    everything = rows(store, include="ready,unacked,retained")
    assert sorted((row["state"], row["body"]) for row in everything) == [
        ("ready", b"3"),
        *sorted((row["state"], row["body"]) for row in found),
    ]


def test_otherwise_nothing_is_seen_of_them(store: Path) -> None:
    assert [row["body"] for row in rows(store)] == [b"3"]
    assert [row["body"] for row in rows(store, include="ready")] == [b"3"]
    # A snapshot that has them does not show them to who has not asked.
    assert [row["body"] for row in rows(store, snapshot_of_all=True)] == [b"3"]
    snapshot = create(store, QueueSelector(), lease_s=60, needs_state=False)
    assert list(bodies_of(snapshot, "/", "q").values()) == [b"3"]
    snapshot.release()


def test_streams_refuse_them(store: Path) -> None:
    with pytest.raises(OptionRefused, match="include"):
        check_stream(parse_options({"path": str(store), "include": "ready,unacked,retained"}))
