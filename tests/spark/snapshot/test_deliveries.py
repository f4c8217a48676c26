"""The columns `state` and `redelivered`: of nodes that run, have stopped or were killed."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pytest
from broker_channel import open_channel
from decoded import read
from exporting import export, rows_of, wish
from pika.adapters.blocking_connection import BlockingChannel
from pinned_messages import units_of
from server_process import ServerProcess
from stored_node import StoredNode, fill

from warren import Broker
from warren.mgmt.api.deliveries import RANGES_MAX
from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.snapshots.pins import LEASE_FILE
from warren.spark_export.decode.schema import columns
from warren.spark_export.errors import StoreRefused
from warren.spark_export.node_urls import NodeAddress
from warren.spark_export.remote.remote_files import RemoteFiles
from warren.spark_export.remote.remote_node import close_connections
from warren.spark_export.remote.remote_store import NOT_TOLD, Part, RemoteSnapshot, _Opened
from warren.spark_export.snapshot import deliveries
from warren.spark_export.snapshot.creation import Creation
from warren.spark_export.snapshot.deliveries import Deliveries
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import Snapshot, create, load_snapshot
from warren.spark_export.source.source import MessageStoreSource
from warren.spark_export.source.stream import StreamReader

READY, UNACKED, RETAINED = "ready", "unacked", "retained"

Found = dict[tuple[str, bytes], tuple[str | None, bool | None]]
"""By queue and body: the columns `state` and `redelivered`."""


def found_in(snapshot: Snapshot) -> Found:
    known = {queue.queue_id: queue.deliveries for queue in snapshot.queues}
    return found_among(
        row for unit in units_of(snapshot) for row in read(unit, deliveries=known[unit.queue_id])
    )


def found_among(rows: Any) -> Found:
    return {(row["queue"], bytes(row["body"])): (row["state"], row["redelivered"]) for row in rows}


def snapshot_of(data: Path, **selected: Any) -> Found:
    with create(data, QueueSelector(**selected)) as snapshot:
        assert snapshot.unasked is None
        return found_in(snapshot)


def declare(channel: BlockingChannel, queue: str, bodies: list[bytes], **arguments: Any) -> None:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    channel.queue_declare(queue, durable=True, arguments=given)
    for body in bodies:
        publish(channel, queue, body)


def publish(channel: BlockingChannel, queue: str, body: bytes, **properties: Any) -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))


def get(channel: BlockingChannel, queue: str) -> tuple[bytes, bool, int]:
    """Take a message: its body, whether it comes as redelivered, and its tag."""
    method, _, body = channel.basic_get(queue)
    assert method is not None and body is not None
    return body, method.redelivered, method.delivery_tag


def drained(url: str, queue: str) -> Found:
    """The messages as a consumer gets them."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        got: Found = {}
        while channel.queue_declare(queue, passive=True).method.message_count:
            body, redelivered, _ = get(channel, queue)
            got[queue, body] = (READY, redelivered)
        return got


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data: Path) -> Iterator[Broker]:
    with Broker(data_dir=data, http_port=0, control_socket=True) as broker:
        yield broker
    close_connections()


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    with open_channel(broker) as channel:
        yield channel


QUEUE_KINDS: list[dict[str, Any]] = [
    {},
    {"x_queue_type": "quorum"},
    {"x_queue_mode": "lazy"},
    {"x_message_deduplication_window": 10},
]


@pytest.mark.parametrize("arguments", QUEUE_KINDS)
def test_what_a_consumer_had_is_redelivered_whether_it_came_back_or_not(
    data: Path, broker: Broker, channel: BlockingChannel, arguments: dict[str, Any]
) -> None:
    declare(channel, "q", [b"%d" % number for number in range(5)], **arguments)
    assert snapshot_of(data) == {("q", b"%d" % at): (READY, False) for at in range(5)}
    tags = [get(channel, "q")[2] for _ in range(3)]
    channel.basic_ack(tags[0])
    channel.basic_reject(tags[2], requeue=True)
    # The reject has been carried out when the next request is answered.
    channel.queue_declare("q", passive=True)
    after = {
        ("q", b"1"): (UNACKED, True),
        ("q", b"2"): (READY, True),
        ("q", b"3"): (READY, False),
        ("q", b"4"): (READY, False),
    }
    assert snapshot_of(data) == after
    channel.connection.close()
    broker.stop()
    all_ready = {key: (READY, redelivered) for key, (_, redelivered) in after.items()}
    assert snapshot_of(data) == all_ready
    broker.start()
    assert snapshot_of(data) == all_ready
    assert drained(broker.url, "q") == all_ready


def test_each_priority_has_deliveries_of_its_own(
    data: Path, broker: Broker, channel: BlockingChannel
) -> None:
    declare(channel, "levels", [], x_max_priority=3)
    for priority in (0, 2, 9):
        for number in range(2):
            publish(channel, "levels", b"%d.%d" % (priority, number), priority=priority)
    for _ in range(3):
        get(channel, "levels")
    found = {
        ("levels", b"9.0"): (UNACKED, True),
        ("levels", b"9.1"): (UNACKED, True),
        ("levels", b"2.0"): (UNACKED, True),
        ("levels", b"2.1"): (READY, False),
        ("levels", b"0.0"): (READY, False),
        ("levels", b"0.1"): (READY, False),
    }
    assert snapshot_of(data) == found
    channel.connection.close()
    broker.stop()
    all_ready = {key: (READY, redelivered) for key, (_, redelivered) in found.items()}
    assert snapshot_of(data) == all_ready
    broker.start()
    assert drained(broker.url, "levels") == all_ready


def test_a_level_may_have_very_many_ranges(
    data: Path, broker: Broker, channel: BlockingChannel
) -> None:
    count = 2 * RANGES_MAX + 500
    quick = channel.connection.channel()
    declare(quick, "q", [b"%d" % number for number in range(count)])
    got: list[int] = []
    channel.basic_consume("q", lambda channel, method, *_: got.append(method.delivery_tag))
    while len(got) < count:
        channel.connection.process_data_events(1)
    for tag in got[1::2]:
        channel.basic_ack(tag)
    channel.queue_declare("q", passive=True)
    found = snapshot_of(data)
    assert found == {("q", b"%d" % number): (UNACKED, True) for number in range(0, count, 2)}


def test_what_was_asked_first_holds_for_a_snapshot_that_is_taken_again(
    data: Path, broker: Broker, channel: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(channel, "q", [b"0", b"1"])
    take = Creation._take
    taken: list[Snapshot] = []

    def damaged_at_first(*given: Any) -> Snapshot:
        snapshot = take(*given)
        if not taken:
            snapshot = replace(snapshot, lost=1)
            get(channel, "q")
        taken.append(snapshot)
        return snapshot

    monkeypatch.setattr(Creation, "_take", damaged_at_first)
    assert snapshot_of(data) == {("q", b"0"): (READY, False), ("q", b"1"): (READY, False)}
    assert len(taken) == 2


def test_after_a_crash_everything_is_redelivered(data: Path, tmp_path: Path) -> None:
    arguments = ["--amqp", "127.0.0.1:0", "--data-dir", str(data)]
    process = ServerProcess(arguments, tmp_path)
    try:
        with pika.BlockingConnection(pika.URLParameters(process.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            declare(channel, "q", [b"0", b"1"])
            declare(channel, "s", [b"0"], x_queue_type="stream")
            get(channel, "q")
            found = {("q", b"0"): (UNACKED, True), ("q", b"1"): (READY, False)}
            assert snapshot_of(data, names=("q",)) == found
    finally:
        process.kill()
    found = {("q", b"0"): (READY, True), ("q", b"1"): (READY, True)}
    assert snapshot_of(data) == {**found, ("s", b"0"): (READY, False)}
    process = ServerProcess(arguments, tmp_path)
    try:
        assert drained(process.url, "q") == found
    finally:
        process.kill()


def test_messages_of_streams_and_delayed_ones_never_are(
    data: Path, broker: Broker, channel: BlockingChannel
) -> None:
    declare(channel, "s", [b"0", b"1"], x_queue_type="stream")
    channel.basic_qos(prefetch_count=9)
    got: list[bytes] = []
    channel.basic_consume(
        "s", lambda *delivery: got.append(delivery[-1]), arguments={"x-stream-offset": "first"}
    )
    while len(got) < 2:
        channel.connection.process_data_events(1)
    channel.exchange_declare(
        "later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
    )
    headers = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 3_600_000})
    channel.basic_publish("later", "", b"in an hour", headers)
    names = ("s", "amq.delayed.later")
    found = {
        ("s", b"0"): (READY, False),
        ("s", b"1"): (READY, False),
        ("amq.delayed.later", b"in an hour"): (READY, False),
    }
    assert snapshot_of(data, names=names) == found
    channel.connection.close()
    broker.stop()
    assert snapshot_of(data, names=names) == found
    os.remove(data / "store" / "clean")
    assert snapshot_of(data, names=names) == found


def test_retained_messages_are(data: Path, broker: Broker, channel: BlockingChannel) -> None:
    broker.call(
        lambda node: node.policies.set("/", "keep", "^q$", {"retention": {"max-age": "1D"}})
    )
    declare(channel, "q", [b"0", b"1"])
    channel.basic_ack(get(channel, "q")[2])
    channel.queue_declare("q", passive=True)
    found = {("q", b"0"): (RETAINED, True), ("q", b"1"): (READY, False)}
    assert snapshot_of(data, retained=True) == found
    channel.connection.close()
    broker.stop()
    assert snapshot_of(data, retained=True) == found


# Unknown


def test_a_node_that_starts_while_the_snapshot_is_made_leaves_it_open(data: Path) -> None:
    fill(data).stop()
    started: list[StoredNode] = []

    class Starting(RealFileSystem):
        """Has the node started when the log is looked for."""

        def names(self, path: Path) -> list[str]:
            if path.name == "log" and not started:
                started.append(StoredNode(data))
            return super().names(path)

    creation = Creation(data, QueueSelector(), 60.0, None, False, filesystem=Starting())
    snapshot = creation.run()
    assert {queue.redelivered_below for queue in snapshot.queues} == {None}
    # And if it has stopped again.
    started[0].stop()
    started.clear()

    class Passing(Starting):
        def names(self, path: Path) -> list[str]:
            found = super().names(path)
            if path.name == "queues":
                started[0].stop()
            return found

    snapshot = Creation(data, QueueSelector(), 60.0, None, False, filesystem=Passing()).run()
    assert {queue.redelivered_below for queue in snapshot.queues} == {None}
    assert None not in {queue.redelivered_below for queue in create(data, QueueSelector()).queues}


def test_a_copy_of_a_queue_that_another_node_leads_is_unknown(
    data: Path, broker: Broker, channel: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("q", "other"):
        declare(channel, name, [b"0"])
    ask = deliveries.ask
    away: set[int] = set()

    def ask_for_one_more(data_directory: Path, queue_ids: set[int]) -> Any:
        answer = ask(data_directory, {*queue_ids, 0x1234500})
        assert answer.elsewhere == {0x1234500}
        away.add(min(queue_ids))
        return answer._replace(elsewhere=frozenset(away))

    monkeypatch.setattr(deliveries, "ask", ask_for_one_more)
    with create(data, QueueSelector()) as snapshot:
        found = {queue.queue_id in away: queue.deliveries.unacked for queue in snapshot.queues}
    assert found == {True: None, False: ()}


def test_snapshots_of_earlier_versions_do_not_say(data: Path) -> None:
    fill(data).stop()
    snapshot = create(data, QueueSelector())
    path = snapshot.directory / LEASE_FILE
    fields = json.loads(path.read_text())
    del fields["unasked"]
    for queue in fields["queues"]:
        del queue["redelivered_below"]
    path.write_text(json.dumps(fields))
    queues = load_snapshot(snapshot.directory).queues
    assert {queue.deliveries for queue in queues} == {Deliveries((), None)}


def test_nodes_of_earlier_versions_do_not_say() -> None:
    node = NodeAddress("node", 15672)
    part = Part("a", RemoteFiles(node, "20260131T120000Z-89abcdef", "token"))
    told: dict[str, Any] = {"snapshot": {"unreadable": 0, "queues": []}}
    assert RemoteSnapshot([_Opened(part, told)]).unasked == NOT_TOLD
    told["snapshot"]["unasked"] = None
    assert RemoteSnapshot([_Opened(part, told)]).unasked is None


# Those who ask


@contextmanager
def without_socket(data: Path) -> Iterator[None]:
    """As a user who may not open it sees the node."""
    away = data / "away.sock"
    (data / "control.sock").rename(away)
    try:
        yield
    finally:
        away.rename(data / "control.sock")


def warnings_in(caplog: pytest.LogCaptureFixture) -> int:
    return sum(
        "columns state and redelivered are null" in record.getMessage()
        and "control.sock is open to the user who runs" in record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING
    )


def loaded(path: object, **options: str) -> Found:
    source = MessageStoreSource({"path": str(path), **options})
    reader = source.reader(source.schema())
    return found_among(
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    )


@pytest.fixture
def half_delivered(channel: BlockingChannel) -> Found:
    declare(channel, "q", [b"0", b"1"])
    get(channel, "q")
    return {("q", b"0"): (UNACKED, True), ("q", b"1"): (READY, False)}


UNSAID: Found = {("q", b"0"): (None, None), ("q", b"1"): (None, None)}


@pytest.mark.parametrize("remote", [False, True])
def test_a_batch_has_both_columns(
    data: Path,
    broker: Broker,
    half_delivered: Found,
    remote: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = f"warren://127.0.0.1:{broker.http_port}" if remote else data
    assert loaded(path) == half_delivered
    assert warnings_in(caplog) == 0
    with without_socket(data):
        assert loaded(path) == UNSAID
        assert warnings_in(caplog) == 1
        for needed in ({"columns": "seq,state"}, {"columns": "redelivered"}, {"include": "ready"}):
            with pytest.raises(StoreRefused, match="does not say which messages were delivered"):
                loaded(path, **needed)
    assert warnings_in(caplog) == 1


@pytest.mark.parametrize("remote", [False, True])
def test_a_stream_has_both_columns_and_warns_once(
    data: Path,
    broker: Broker,
    channel: BlockingChannel,
    half_delivered: Found,
    remote: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = parse_options(
        {"path": f"warren://127.0.0.1:{broker.http_port}" if remote else str(data)}
    )
    reader = StreamReader(options, columns(options))
    at = reader.initialOffset()

    def batch() -> Found:
        nonlocal at
        start, at = at, reader.latestOffset(at, reader.getDefaultReadLimit())
        return found_among(
            row
            for partition in reader.partitions(start, at)
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        )

    assert batch() == half_delivered
    publish(channel, "q", b"2")
    for _ in range(2):
        get(channel, "q")
    assert batch() == {("q", b"2"): (UNACKED, True)}
    with without_socket(data):
        for body in (b"3", b"4"):
            publish(channel, "q", body)
            assert batch() == {("q", body): (None, None)}
    assert warnings_in(caplog) == 1
    named = parse_options({"path": options.path or "", "columns": "seq,redelivered"})
    with without_socket(data), pytest.raises(StoreRefused, match="which messages were delivered"):
        reader = StreamReader(named, columns(named))
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())


def test_an_export_has_both_columns(
    data: Path,
    broker: Broker,
    half_delivered: Found,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    known = export(data, tmp_path / "out", "known", wish(needs_state=True))
    assert found_among(rows_of(tmp_path / "out", [known])) == half_delivered
    with without_socket(data):
        unsaid = export(data, tmp_path / "out", "unsaid", wish())
        assert found_among(rows_of(tmp_path / "out", [unsaid])) == UNSAID
        assert warnings_in(caplog) == 1
        with pytest.raises(StoreRefused, match="does not say which messages were delivered"):
            export(data, tmp_path / "out", "refused", wish(needs_state=True))
