"""The examples of docs/spark.md and docs/lakehouse.md, as they stand there, with a real broker."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pika
import pytest
from broker_channel import open_channel
from click.testing import CliRunner
from lake_tables import ICEBERG_NAME, configure_catalog, read_table
from pika.adapters.blocking_connection import BlockingChannel

from warren import Broker
from warren.mgmt.command_line import warren
from warren.spark_export import read_export
from warren.spark_export.export.lake_table import ICEBERG
from warren.spark_export.export.manifest import list_manifests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[2] / "docs"
PERSISTENT = 2


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("broker") / "data")


@pytest.fixture(scope="module")
def broker(store: str) -> Iterator[Broker]:
    with Broker(data_dir=store, http_port=0, control_socket=True) as broker:
        yield broker


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    """Of the queue `orders`, which is empty."""
    with open_channel(broker) as channel:
        channel.queue_declare("orders", durable=True)
        yield channel
        channel.queue_delete("orders")


def publish(channel: BlockingChannel, *bodies: bytes, routing_key: str = "orders") -> None:
    for body in bodies:
        properties = pika.BasicProperties(delivery_mode=PERSISTENT, headers={"n": 7})
        channel.basic_publish("", routing_key, body, properties)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_depth_and_age_of_queues(spark: SparkSession, store: str, channel: BlockingChannel) -> None:
    channel.queue_declare("empty", durable=True)
    publish(channel, b"one", b"two", b"three")
    (row,) = example("queue_depth").depth_and_age(spark, store).collect()
    assert (row.vhost, row.queue, row.messages) == ("/", "orders", 3)
    assert 0 <= row.median_age_s <= row.oldest_age_s < 3600


def test_what_meets_a_condition_is_replayed(
    spark: SparkSession, store: str, broker: Broker, channel: BlockingChannel
) -> None:
    channel.exchange_declare("again", "topic")
    channel.queue_declare("replayed")
    channel.queue_bind("replayed", "again", "orders")
    publish(channel, b"one", b"not this", b"two")
    now = datetime.now(UTC)
    for hours in (3, 0):
        start, end = ((now - timedelta(hours=hours + back)).isoformat() for back in (1, -1))
        condition = (
            f"enqueued_at >= '{start}' AND enqueued_at < '{end}'"
            " AND variant_get(headers, '$.n', 'int') = 7 AND string(body) != 'not this'"
        )
        example("replay").replay(spark, store, "orders", condition, broker.url, "again")
    found = [channel.basic_get("replayed", auto_ack=True) for _ in range(3)]
    assert [body for _, _, body in found] == [b"one", b"two", None]
    method, properties, _ = found[0]
    assert method is not None and properties is not None
    assert (method.exchange, method.routing_key) == ("again", "orders")
    assert properties.headers == {"n": 7}
    assert re.fullmatch(r"replay-/-orders-0-\d+", properties.message_id or "")
    assert channel.queue_declare("orders", passive=True).method.message_count == 3


def test_each_message_that_is_replayed_has_an_id_of_its_own(
    spark: SparkSession, store: str, broker: Broker, channel: BlockingChannel
) -> None:
    """Queues of two virtual hosts, and the priorities of a queue, count their messages alike."""
    channel.exchange_declare("again", "topic")
    channel.queue_declare("replayed")
    channel.queue_bind("replayed", "again", "urgent")
    broker.add_vhost("shop")
    for vhost in ("/", "shop"):
        with pika.BlockingConnection(pika.URLParameters(broker.url_for(vhost))) as connection:
            there = connection.channel()
            there.confirm_delivery()
            there.queue_declare("urgent", durable=True, arguments={"x-max-priority": 2})
            for priority in (None, 1, 2):
                properties = pika.BasicProperties(delivery_mode=PERSISTENT, priority=priority)
                there.basic_publish("", "urgent", b"x", properties)
    example("replay").replay(spark, store, "urgent", "true", broker.url, "again")
    ids = set()
    for _ in range(6):
        _, properties, _ = channel.basic_get("replayed", auto_ack=True)
        assert properties is not None
        ids.add(properties.message_id)
    assert len(ids) == 6
    # The next tests look at everything that is in the store.
    for vhost in ("/", "shop"):
        with pika.BlockingConnection(pika.URLParameters(broker.url_for(vhost))) as connection:
            connection.channel().queue_delete("urgent")


@pytest.fixture
def run_hourly(tmp_path: Path, spark: SparkSession) -> Callable[..., None]:
    """Runs the script; what it calls as `warren` is called here, with the Spark that there is."""
    called = tmp_path / "called"
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "warren"
    command.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {called}\n')
    command.chmod(0o755)

    def run(*arguments: str) -> None:
        script = DOCS / "examples" / "hourly_archive.sh"
        path = f"{command.parent}:{os.environ['PATH']}"
        subprocess.run([script, *arguments], env=os.environ | {"PATH": path}, check=True)
        result = CliRunner().invoke(warren, called.read_text().splitlines())
        assert result.exit_code == 0, result.output

    return run


@pytest.mark.skipif(shutil.which("flock") is None, reason="the script takes flock (util-linux)")
def test_an_archive_by_the_hour(
    spark: SparkSession,
    store: str,
    channel: BlockingChannel,
    tmp_path: Path,
    run_hourly: Callable[..., None],
) -> None:
    directory = tmp_path / "archive"
    publish(channel, b"one", b"two")
    run_hourly(store, str(directory), "--pattern", "orders.*")
    (first,) = list_manifests(directory)
    # The hour is over.
    manifest = directory / "_manifests" / f"{first.export}.json"
    manifest.write_text(manifest.read_text().replace(first.export, "20260101T00"))
    manifest.rename(manifest.with_name("20260101T00.json"))
    publish(channel, b"three")
    for _ in range(2):
        run_hourly(store, str(directory), "--pattern", "orders.*")
    # A third one only where an hour has just begun.
    assert [one.rows for one in list_manifests(directory)][:2] == [2, 1]
    rows = read_export(spark, directory).orderBy("seq").collect()
    assert [bytes(row.body) for row in rows] == [b"one", b"two", b"three"]


def test_an_archive_by_a_stream(
    spark: SparkSession, store: str, channel: BlockingChannel, tmp_path: Path
) -> None:
    hourly = example("hourly_archive")
    try:
        for bodies in ((b"one", b"two"), (b"three",)):
            publish(channel, *bodies)
            hourly.archive(spark, store, "orders.*", str(tmp_path)).awaitTermination()
        rows = hourly.read_archive(spark, str(tmp_path)).orderBy("seq").collect()
    finally:
        spark.conf.unset("spark.sql.sources.partitionColumnTypeInference.enabled")
    assert [(row.queue, bytes(row.body)) for row in rows] == [
        ("orders", body) for body in (b"one", b"two", b"three")
    ]


def test_queues_go_to_a_delta_table(
    spark: SparkSession, store: str, channel: BlockingChannel, tmp_path: Path
) -> None:
    delta = pytest.importorskip("deltalake")
    table = str(tmp_path / "table")
    for bodies in ((b"one", b"two"), (b"three",)):
        publish(channel, *bodies)
        example("queue_to_delta").follow(spark, store, "orders.*", table).awaitTermination()
    # What a table does not need goes; the checkpoint stays.
    delta.DeltaTable(table).vacuum(0, enforce_retention_duration=False, dry_run=False)
    example("queue_to_delta").follow(spark, store, "orders.*", table).awaitTermination()
    rows = delta.DeltaTable(table).to_pyarrow_table(filters=[("queue", "=", "orders")])
    assert sorted(rows.column("body").to_pylist()) == [b"one", b"three", b"two"]


def test_queues_go_to_an_iceberg_table(
    spark: SparkSession,
    store: str,
    channel: BlockingChannel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pyiceberg")
    configure_catalog(monkeypatch, tmp_path)
    places = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    for bodies in ((b"one", b"two"), (b"three",)):
        publish(channel, *bodies)
        follow = example("queue_to_iceberg").follow
        follow(spark, store, "orders.*", ICEBERG_NAME, *places).awaitTermination()
    rows = read_table(ICEBERG, tmp_path / "table")
    assert sorted(rows.column("body").to_pylist()) == [b"one", b"three", b"two"]


def test_what_is_stuck_and_why(
    spark: SparkSession, store: str, broker: Broker, channel: BlockingChannel
) -> None:
    stuck = example("stuck")
    login_url = broker.http_url.replace("://", "://guest:guest@")
    channel.queue_declare("idle", durable=True)
    publish(channel, b"one", routing_key="idle")
    publish(channel, b"one", b"two", b"three")
    with open_channel(broker) as consuming:
        consuming.basic_qos(prefetch_count=1)
        consuming.basic_consume("orders", lambda *_: None, consumer_tag="slow")
        # What is out is known when the consumer has it.
        while channel.queue_declare("orders", passive=True).method.message_count == 3:
            consuming.connection.process_data_events(0.1)
        rows = stuck.stuck(spark, store).collect()
        found = {(row.queue, row.routing_key, row.state): row.messages for row in rows}
        assert found == {
            ("idle", "idle", "ready"): 1,
            ("orders", "orders", "ready"): 2,
            ("orders", "orders", "unacked"): 1,
        }
        assert all(0 <= row.oldest_age_s < 3600 for row in rows)
        rows = stuck.reasons(spark, store, login_url).collect()
    channel.queue_delete("idle")
    assert {(row.queue, row.consumer, row.prefetch, row.reason) for row in rows} == {
        ("idle", None, None, "no consumer"),
        ("orders", "slow", 1, "consumers are slow"),
    }


def test_who_consumes_is_asked_with_the_login_of_the_url(
    broker: Broker, channel: BlockingChannel
) -> None:
    ask_consumers = example("stuck").ask_consumers
    broker.add_user("it's me", "p@ss/w:rd", ("monitoring",))
    broker.set_permissions("it's me")
    channel.basic_consume("orders", lambda *_: None, consumer_tag="there")
    for login in ("", "guest:guest@", "it%27s%20me:p%40ss%2Fw%3Ard@"):
        (consumer,) = ask_consumers(broker.http_url.replace("://", f"://{login}"))
        assert consumer[:3] == ("/", "orders", "there")


def test_dead_letters_by_reason_and_origin(
    spark: SparkSession, store: str, channel: BlockingChannel
) -> None:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
    channel.queue_declare("rejecting", durable=True, arguments=dead)
    channel.queue_declare("expiring", durable=True, arguments={**dead, "x-message-ttl": 0})
    publish(channel, b"one", b"two", routing_key="expiring")
    publish(channel, b"three", routing_key="rejecting")
    publish(channel, b"alive")
    method, _, _ = channel.basic_get("rejecting")
    assert method is not None
    channel.basic_reject(method.delivery_tag, requeue=False)
    while channel.queue_declare("orders", passive=True).method.message_count < 4:
        channel.connection.process_data_events(0.1)
    rows = example("dead_letters").dead_letters(spark, store).collect()
    for queue in ("rejecting", "expiring"):
        channel.queue_delete(queue)
    assert [(row.queue, row.reason, row.died_in, row.messages) for row in rows] == [
        ("orders", "expired", "expiring", 2),
        ("orders", "rejected", "rejecting", 1),
    ]
    assert all(row.most_deaths == 1 and row.first <= row.last for row in rows)


def test_duplicates_by_message_id(
    spark: SparkSession, store: str, channel: BlockingChannel
) -> None:
    for message_id, body in (("a", b"1"), ("b", b"2"), ("a", b"1"), ("c", b"3"), ("c", b"4")):
        properties = pika.BasicProperties(delivery_mode=PERSISTENT, message_id=message_id)
        channel.basic_publish("", "orders", body, properties)
    publish(channel, b"without", b"without")
    rows = example("duplicates").duplicates(spark, store, "orders").collect()
    assert [(row.message_id, row.times, row.bodies, len(row.seqs)) for row in rows] == [
        ("a", 2, 1, 2),
        ("c", 2, 2, 2),
    ]


def test_anomalies_of_size_and_rate(
    spark: SparkSession, store: str, channel: BlockingChannel
) -> None:
    anomalies = example("anomalies")
    publish(channel, *[b"x" * (100 + n % 7) for n in range(30)], b"x" * 5000)
    (large,) = anomalies.large_messages(anomalies.read_sizes(spark, store)).collect()
    assert (large.queue, large.bytes, large.median) == ("orders", 5000, 103.0)
    # Minutes of the past cannot be published: 100 messages in each but one with 5,000, and one
    # in which nothing came.
    rows = (
        spark.range(120)
        .selectExpr(
            "'/' AS vhost",
            "'orders' AS queue",
            "timestamp('2026-01-31 12:00:00') + make_interval(0,0,0,0,0,id) AS at",
            "CASE id WHEN 7 THEN 5000 WHEN 9 THEN 0 ELSE 100 + id % 3 END AS n",
        )
        .selectExpr("vhost", "queue", "explode(sequence(1, n)) AS seq", "at AS enqueued_at", "n")
    )
    minutes = anomalies.busy_minutes(rows.where("n > 0")).collect()
    assert [(row.at.minute, row.messages) for row in minutes] == [(7, 5000), (9, 0)]
