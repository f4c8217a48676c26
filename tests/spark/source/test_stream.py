"""The reader of streams, asked as Spark asks it, without Spark."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pika
import pytest
from broker_channel import open_channel
from hypothesis import given
from hypothesis import strategies as st
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from stream_batches import Query

from warren import Broker
from warren.persist.snapshots.pins import LEASE_FILE
from warren.spark_export.decode.schema import columns, spark_schema
from warren.spark_export.errors import DataLost, OptionRefused, QueueUnknown
from warren.spark_export.remote.remote_node import close_connections
from warren.spark_export.remote.remote_store import RemoteStore
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.snapshot import list_snapshots, load_snapshot, pins_directory
from warren.spark_export.source.source import MessageStoreSource
from warren.spark_export.source.stores import LocalStore
from warren.spark_export.source.stream import StreamReader
from warren.spark_export.source.stream_offsets import (
    StreamOffset,
    StreamQueue,
    Waiting,
    advance,
    lag_after,
    shares,
)

ALL = ReadAllAvailable()
QUEUES = [StreamQueue("/", name, number) for number, name in enumerate("abcd")]


# Offsets


@given(
    st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 50)),
    st.integers(1, 120),
)
def test_shares_are_fair_and_nothing_is_left_that_somebody_wants(
    wanted: dict[StreamQueue, int], most: int
) -> None:
    given_ = shares(wanted, most)
    assert sum(given_.values()) == min(most, sum(wanted.values()))
    assert all(given_[queue] <= wanted[queue] for queue in wanted)
    unsatisfied = [given_[queue] for queue in wanted if given_[queue] < wanted[queue]]
    assert all(max(given_.values()) - one <= 1 for one in unsatisfied)


@given(
    st.lists(st.lists(st.integers(1, 100), max_size=10), min_size=1, max_size=4),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 300),
)
def test_batches_stay_within_their_limits_and_come_to_the_end(
    backlogs: list[list[int]], max_rows: int | None, max_octets: int | None
) -> None:
    at = StreamOffset("s", {})
    read = 0
    while True:
        waiting = []
        for queue, octets in zip(QUEUES, backlogs, strict=False):
            positions = np.arange(len(octets), dtype=np.uint64) * 7
            left = positions >= at.next.get(queue, 0)
            waiting.append(Waiting(queue, positions[left], np.array(octets, np.uint32)[left]))
        following = advance(at, "s", waiting, max_rows=max_rows, max_octets=max_octets)
        taken = [
            (len(part), int(one.octets[: len(part)].sum()))
            for one in waiting
            for part in [one.positions[one.positions < following.next.get(one.queue, 0)]]
        ]
        rows = sum(count for count, _ in taken)
        if not rows:
            break
        assert max_rows is None or rows <= max_rows
        assert max_octets is None or rows == 1 or sum(size for _, size in taken) <= max_octets
        read += rows
        at = following
    assert read == sum(map(len, backlogs))


def test_offsets_survive_json() -> None:
    offset = StreamOffset(
        "/pins/x",
        {StreamQueue("/", "0123", 1 << 63): 1 << 41, StreamQueue("/", "0123", 5): 7},
        left=3,
        first={StreamQueue("/", "0123", 5): 1},
    )
    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    begun = StreamOffset("", {})
    assert StreamOffset.from_json(json.loads(json.dumps(begun.to_json()))) == begun
    damaged = {**begun.to_json(), "next": {"/": {"0123": {"no id": 1}}}}
    for other in ({"index": 5}, damaged):
        with pytest.raises(ValueError, match="no offset of a stream"):
            StreamOffset.from_json(other)


# The reader, beside a broker that works


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data", http_port=0, control_socket=True) as broker:
        yield broker


@pytest.fixture(params=["directory", "node"])
def source(request: pytest.FixtureRequest, tmp_path: Path, broker: Broker) -> Path | str:
    """What is given to `load`."""
    if request.param == "directory":
        return tmp_path / "data"
    return f"warren://{broker.host}:{broker.http_port}"


def snapshot_directory(tmp_path: Path, offset: dict[str, Any]) -> Path:
    """Where the snapshot of the offset stands."""
    snapshot = re.split("[!/]", offset["snapshot"])[-1]
    return pins_directory(tmp_path / "data") / snapshot


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    with open_channel(broker) as channel:
        channel.queue_declare("orders", durable=True)
        yield channel


@pytest.fixture(autouse=True)
def no_connections() -> Iterator[None]:
    yield
    close_connections()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for store in (LocalStore, RemoteStore):
        monkeypatch.setattr(store, "snapshot_every_s", 0.0)


def publish(channel: BlockingChannel, numbers: range, queue: str = "orders") -> None:
    for number in numbers:
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))


def test_stream_is_read_by_its_offsets(
    tmp_path: Path, source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    """What consumers read stays, and comes in no second batch."""
    channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
    publish(channel, range(10), "events")
    query = Query(source)
    assert query.batch() == list(range(10))
    assert query.batch() == []
    publish(channel, range(10, 15), "events")
    assert query.batch() == list(range(10, 15))
    (batches,) = [
        list(query.reader.read(partition))
        for partition in query.reader.partitions(query.reader.initialOffset(), query.at)
    ]
    offsets = [seq for batch in batches for seq in batch.column("seq").to_pylist()]
    assert offsets == list(range(15))


def test_each_message_is_in_one_batch(
    tmp_path: Path, source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    publish(channel, range(10))
    query = Query(source)
    assert query.batch() == list(range(10))
    assert query.batch() == []
    publish(channel, range(10, 15))
    publish(channel, range(15, 17))
    assert query.batch() == list(range(10, 17))
    before = query.at
    assert query.batch() == []
    assert query.at == before
    assert list_snapshots(tmp_path / "data") == [], "nothing is left in any"


def test_a_batch_is_read_again_as_it_was_by_another_reader(
    tmp_path: Path, source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    publish(channel, range(10))
    query = Query(source)
    end = query.reader.latestOffset(query.at, ReadMaxRows(6))
    publish(channel, range(10, 20))
    channel.queue_purge("orders")
    # Its confirm says that the purge is on the disk.
    publish(channel, range(20, 21))
    query.restart()
    assert query.read(query.at, end) == list(range(6))
    query.at = end
    # What was there is read to its end, though the queue has lost it.
    assert query.batch(ReadMaxRows(100)) == list(range(6, 10))
    assert query.batch() == [20]


def test_limits_hold_and_queues_take_turns(
    tmp_path: Path, source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    channel.queue_declare("invoices", durable=True)
    publish(channel, range(100))
    publish(channel, range(1000, 1005), "invoices")
    query = Query(source, maxOffsetsPerTrigger="20")
    assert query.batch() == [*range(15), *range(1000, 1005)]
    assert query.batch() == list(range(15, 35))

    by_octets = Query(source, maxBytesPerTrigger="1k", queue="orders")
    limit = by_octets.reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxBytes)
    assert 1 <= len(by_octets.batch()) < 20
    both = Query(source, maxBytesPerTrigger="1", maxOffsetsPerTrigger="20", queue="orders")
    assert both.batch() == [0]
    assert both.batch(ALL) == list(range(1, 100))


def test_now_is_when_the_query_began(
    tmp_path: Path, source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    publish(channel, range(10))
    query = Query(source, maxOffsetsPerTrigger="7")
    query.reader.prepareForTriggerAvailableNow()
    publish(channel, range(10, 20))
    assert query.batch() == list(range(7))
    assert query.batch() == list(range(7, 10))
    assert query.batch() == []
    # The next run begins with what the last one left, and goes on to its own now.
    publish(channel, range(20, 22))
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == list(range(10, 22))
    assert query.batch() == []


def test_new_queues_that_match_begin_at_their_first_message(
    tmp_path: Path, source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    publish(channel, range(3))
    query = Query(source, queuePattern="orders.*", startingOffsets="latest")
    assert query.batch() == []
    for name in ("orders.new", "invoices"):
        channel.queue_declare(name, durable=True)
        publish(channel, range(10, 12), name)
    publish(channel, range(3, 5))
    assert query.batch() == [3, 4, 10, 11]


def test_a_queue_declared_anew_is_read_from_its_beginning(
    tmp_path: Path, source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    publish(channel, range(5))
    query = Query(source)
    assert query.batch() == list(range(5))
    channel.queue_delete("orders")
    channel.queue_declare("orders", durable=True)
    publish(channel, range(5, 8))
    assert query.batch() == [5, 6, 7]


def test_a_queue_that_is_away_for_a_while_counts_as_empty(
    source: Path | str, channel: BlockingChannel, caplog: pytest.LogCaptureFixture
) -> None:
    channel.queue_declare("invoices", durable=True)
    publish(channel, range(5))
    query = Query(source, queues="orders,invoices")
    assert query.batch() == list(range(5))
    channel.queue_delete("orders")
    assert query.batch() == query.batch() == []
    query.restart(queues="orders,invoices")
    assert query.batch() == []
    publish(channel, range(10, 12), "invoices")
    assert query.batch() == [10, 11]
    channel.queue_declare("orders", durable=True)
    publish(channel, range(5, 8))
    assert query.batch() == [5, 6, 7]
    channel.queue_delete("orders")
    assert query.batch() == []
    told = [record.getMessage() for record in caplog.records if "queue_away" in record.msg]
    assert told == ["queue_away queue='orders': it counts as empty until it is declared"] * 3


def test_a_stream_does_not_begin_with_a_queue_that_is_not_there(
    source: Path | str, channel: BlockingChannel
) -> None:
    query = Query(source, queues="orders,invoices")
    for _ in range(2):
        with pytest.raises(QueueUnknown, match="invoices"):
            query.batch()
    channel.queue_declare("invoices", durable=True)
    assert query.batch() == []
    channel.queue_delete("invoices")
    assert query.batch() == []


def test_every_priority_is_followed(
    tmp_path: Path, source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    channel.queue_declare("urgent", durable=True, arguments={"x-max-priority": 3})
    query = Query(source, maxOffsetsPerTrigger="4")

    def publish_with(priority: int, body: int) -> None:
        properties = pika.BasicProperties(delivery_mode=2, priority=priority)
        channel.basic_publish("", "urgent", b"%d" % body, properties)

    for number in range(9):
        publish_with(number % 3, number)
    found = query.batch() + query.batch() + query.batch()
    publish_with(2, 9)
    assert sorted(found + query.batch()) == list(range(10))


@pytest.mark.parametrize(("given", "lease_s"), [({}, 24 * 3600), ({"leaseSeconds": "7200"}, 7200)])
def test_a_snapshot_waits_for_its_stream_as_long_as_its_lease_says(
    tmp_path: Path,
    source: Path | str,
    channel: BlockingChannel,
    given: dict[str, str],
    lease_s: int,
) -> None:
    publish(channel, range(10))
    query = Query(source, maxOffsetsPerTrigger="4", **given)
    for _ in range(2):
        begun = time.time()
        query.batch()
        snapshot = load_snapshot(snapshot_directory(tmp_path, query.at))
        assert begun + lease_s - 1 <= snapshot.expires_us / 1e6 <= time.time() + lease_s + 1


def test_a_snapshot_that_is_gone_is_loss_or_is_allowed(
    tmp_path: Path, source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    publish(channel, range(10))
    query = Query(source)
    end = query.reader.latestOffset(query.at, ReadMaxRows(6))
    load_snapshot(snapshot_directory(tmp_path, end)).release()
    for _ in range(2):
        channel.basic_get("orders", auto_ack=True)
    # Its confirm says that the removals are on the disk.
    publish(channel, range(10, 11))
    query.restart()
    with pytest.raises(DataLost, match=r"a batch was not finished.*failOnDataLoss=false"):
        query.read(query.at, end)
    query.restart(failOnDataLoss="false")
    assert query.read(query.at, end) == list(range(2, 6))
    query.at = end
    assert query.batch() == list(range(6, 11))


def test_a_snapshot_that_did_not_survive_a_power_failure_is_loss_or_is_allowed(
    tmp_path: Path, source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    publish(channel, range(10))
    query = Query(source, maxOffsetsPerTrigger="6")
    assert len(query.batch()) == 6
    (snapshot_directory(tmp_path, query.at) / LEASE_FILE).write_bytes(b"")
    query.restart()
    with pytest.raises(DataLost, match=r"4 messages of a snapshot had not been .*power failure"):
        query.batch()
    query.restart(failOnDataLoss="false")
    assert query.batch() == list(range(6, 10))


def test_how_far_there_is_to_go_is_reported(
    tmp_path: Path, source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    query = Query(source, maxOffsetsPerTrigger="4")
    assert query.reader.reportLatestOffset() is None
    publish(channel, range(10))
    query.batch()
    newest = query.reader.reportLatestOffset()
    assert newest is not None
    (reached,) = StreamOffset.from_json(query.at).next.values()
    (there,) = StreamOffset.from_json(newest).next.values()
    assert there - reached == 6


def test_a_start_of_a_queue_that_is_not_read_is_refused(
    tmp_path: Path, source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    with pytest.raises(OptionRefused, match="startingOffsets names queue 'ordres'"):
        Query(source, startingOffsets=json.dumps({"/": {"ordres": 17}}))
    assert list_snapshots(tmp_path / "data") == []


@pytest.mark.parametrize(
    "given",
    [
        {"endingOffsets": "earliest"},
        {"endingTimestamp": "2026-01-31"},
        {"snapshot": "x"},
        {"include": "ready"},
    ],
)
def test_what_is_for_batches_is_refused(tmp_path: Path, given: dict[str, str]) -> None:
    options = parse_options({"path": str(tmp_path), **given})
    with pytest.raises(OptionRefused, match="is for batches"):
        StreamReader(options, columns(options))


def test_the_lag_is_what_is_left_behind_the_batch(
    source: Path | str, broker: Broker, channel: BlockingChannel
) -> None:
    channel.queue_declare("urgent", durable=True, arguments={"x-max-priority": 3})
    publish(channel, range(10))
    for priority in (1, 2):
        properties = pika.BasicProperties(delivery_mode=2, priority=priority)
        channel.basic_publish("", "urgent", b"0", properties)
    query = Query(source, maxOffsetsPerTrigger="6")
    lags = []
    for _ in range(3):
        query.batch()
        newest = query.reader.reportLatestOffset()
        assert newest is not None
        lags.append(newest["lag"])
    assert [lag["rows"] for lag in lags] == [6, 0, 0]
    octets = lags[0]["octets"]
    assert lags[0]["queues"] == {"/": {"orders": {"rows": 6, "octets": octets}}} and octets > 0
    assert lags[1] == lags[2] == {"rows": 0, "octets": 0, "queues": {}}


def test_the_lag_of_a_queue_is_that_of_all_its_priorities() -> None:
    def waiting(queue_id: int, count: int) -> Waiting:
        positions = np.arange(count, dtype=np.uint64)
        return Waiting(
            StreamQueue("/", "urgent", queue_id), positions, np.full(count, 7, np.uint32)
        )

    offset = StreamOffset("", {StreamQueue("/", "urgent", 1): 2})
    lag = lag_after(offset, [waiting(1, 3), waiting(2, 4)])
    both = {"rows": 5, "octets": 35}
    assert lag == {**both, "queues": {"/": {"urgent": both}}}


def test_a_stream_has_no_end(tmp_path: Path) -> None:
    source = MessageStoreSource({"path": str(tmp_path), "endingOffsets": "latest"})
    with pytest.raises(OptionRefused, match="endingOffsets is for batches"):
        source.streamReader(spark_schema(columns(parse_options(source.options))))
