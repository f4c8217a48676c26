"""Snapshots and the node whose store they are of: what it says, what it shows, what it removes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pika
import pytest
from broker_channel import open_channel
from pika.adapters.blocking_connection import BlockingChannel
from pinned_messages import bodies_of, units_of

from warren import Broker
from warren.config import Listener
from warren.core.resources.memory_monitor import Absolute
from warren.spark_export.errors import SnapshotGone
from warren.spark_export.snapshot.cursor import take_cursor
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import Snapshot, create, list_snapshots, open_snapshot

ALL = QueueSelector()
PATIENCE_S = 30.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(
        data_dir=tmp_path / "data",
        control_socket=True,
        metrics_listeners=(Listener("127.0.0.1", 0),),
    ) as broker:
        yield broker


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    with open_channel(broker) as channel:
        yield channel


def publish(channel: BlockingChannel, queue: str, count: int, **properties: int) -> None:
    for number in range(count):
        body = b"%s %d" % (queue.encode(), number)
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))


def get(channel: BlockingChannel, queue: str) -> int:
    """Take a message without acknowledging it; returns the delivery tag."""
    method, _, _ = channel.basic_get(queue)
    assert method is not None
    tag: int = method.delivery_tag
    return tag


def unacked_bodies(snapshot: Snapshot, queue: str) -> list[bytes]:
    (pinned,) = [one for one in snapshot.queues if one.name == queue]
    assert pinned.unacked is not None
    positions = [at for start, end in pinned.unacked for at in range(start, end)]
    bodies = bodies_of(snapshot, "/", queue)
    return [bodies[at] for at in positions]


def test_a_node_that_runs_says_what_is_unacknowledged(
    tmp_path: Path, broker: Broker, channel: BlockingChannel
) -> None:
    for queue in ("a=b", "other"):
        channel.queue_declare(queue, durable=True)
        publish(channel, queue, 8)
    tags = [get(channel, "a=b") for _ in range(6)]
    channel.basic_ack(tags[1])
    channel.basic_reject(tags[3], requeue=True)
    channel.basic_qos(prefetch_count=1)
    snapshot = create(tmp_path / "data", ALL, needs_state=True)
    assert unacked_bodies(snapshot, "a=b") == [b"a=b %d" % number for number in (0, 2, 4, 5)]
    assert len(bodies_of(snapshot, "/", "a=b")) == 7
    assert unacked_bodies(snapshot, "other") == []
    only = create(tmp_path / "data", QueueSelector(names=("other",)), needs_state=True)
    assert [queue.unacked for queue in only.queues] == [()]


def test_a_delayed_message_is_read_once_unless_the_queue_it_waits_in_is_named(
    tmp_path: Path, channel: BlockingChannel
) -> None:
    arguments = {"x-delayed-type": "fanout"}
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments=arguments)
    channel.queue_declare("orders", durable=True)
    channel.queue_bind("orders", "later")
    headers = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 3_600_000})
    channel.basic_publish("later", "", b"in an hour", headers)
    assert [queue.name for queue in create(tmp_path / "data", ALL).queues] == ["orders"]
    waiting = create(tmp_path / "data", QueueSelector(names=("amq.delayed.later",)))
    (unit,) = units_of(waiting, 1 << 30)
    (entry,) = unit.entries()
    # `expires_us` is when the delay is over.
    assert 3500 < entry["expires_us"] / 1e6 - time.time() < 3600


def test_levels_of_a_queue_with_priorities_have_states_of_their_own(
    tmp_path: Path, broker: Broker, channel: BlockingChannel
) -> None:
    channel.queue_declare("levels", durable=True, arguments={"x-max-priority": 3})
    for priority in (0, 2, 9):
        publish(channel, "levels", 2, priority=priority)
    for _ in range(3):
        get(channel, "levels")
    snapshot = create(tmp_path / "data", ALL, needs_state=True)
    found = [
        (queue.queue_id % 256, queue.rows, sum(end - start for start, end in queue.unacked or ()))
        for queue in snapshot.queues
    ]
    assert found == [(0, 2, 0), (2, 2, 1), (3, 2, 2)]


def test_a_node_that_has_stopped_has_nothing_unacknowledged(
    tmp_path: Path, broker: Broker, channel: BlockingChannel
) -> None:
    channel.queue_declare("q", durable=True)
    publish(channel, "q", 3)
    get(channel, "q")
    channel.connection.close()
    broker.stop()
    snapshot = create(tmp_path / "data", ALL, needs_state=True)
    assert [(queue.rows, queue.unacked) for queue in snapshot.queues] == [(3, ())]


def metrics(broker: Broker) -> dict[str, float]:
    management = broker._running.management
    assert management is not None
    with urlopen(f"http://127.0.0.1:{management.metrics_ports[0]}/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r"^rabbitmq_(storage_\w+) ([0-9.e+]+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_metrics_count_what_snapshots_alone_keep(
    tmp_path: Path,
    broker: Broker,
    channel: BlockingChannel,
) -> None:
    storage = broker.call(lambda node: broker._running.messages).storage  # type: ignore[union-attr]
    channel.queue_declare("q", durable=True)
    for _ in range(20):
        channel.basic_publish("", "q", os.urandom(1 << 20), PERSISTENT)
    first, second = create(tmp_path / "data", ALL), create(tmp_path / "data", ALL)

    def look() -> dict[str, float]:
        broker.call(lambda node: storage.pins.check(0.0))
        return metrics(broker)

    wait_until(lambda: look()["storage_snapshots"] == 2)
    own = metrics(broker)["storage_pinned_bytes"]
    assert 0 < own < 20_000
    channel.queue_purge("q")
    channel.queue_declare("q", durable=True)
    # The node gives the file back that was full, once a checkpoint says that nothing needs it.
    broker.call(lambda node: storage.checkpointer.request())
    wait_until(lambda: look()["storage_pinned_bytes"] >= 16 << 20)
    first.release()
    wait_until(lambda: look()["storage_snapshots"] == 1)
    assert metrics(broker)["storage_pinned_bytes"] >= 16 << 20
    second.release()
    wait_until(lambda: look()["storage_pinned_bytes"] == 0)
    assert metrics(broker)["storage_snapshots"] == 0
    assert metrics(broker)["storage_cursors"] == 0
    take_cursor(tmp_path / "data", "archive", None, None).close()
    wait_until(lambda: look()["storage_cursors"] == 1)


def test_a_node_removes_at_its_start_what_nobody_wants(
    tmp_path: Path, broker: Broker, channel: BlockingChannel
) -> None:
    channel.queue_declare("q", durable=True)
    wanted = create(tmp_path / "data", ALL)
    over = create(tmp_path / "data", ALL, lease_s=1e-6)
    over.directory.with_name("20260101T000000Z-00000000.new").mkdir()
    channel.connection.close()
    broker.stop()
    broker.start()
    wait_until(lambda: os.listdir(wanted.directory.parent) == [wanted.id])
    assert list_snapshots(tmp_path / "data") == [wanted]


def test_a_node_releases_the_oldest_snapshot_above_the_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Broker(
            data_dir=tmp_path / "data",
            metrics_listeners=(Listener("127.0.0.1", 0),),
            snapshot_limit=Absolute(17 << 20),
            store_file_bytes_max=1 << 20,
        ) as broker,
        open_channel(broker) as channel,
    ):
        storage = broker._running.messages.storage  # type: ignore[union-attr]

        def look() -> dict[str, float]:
            broker.call(lambda node: storage.pins.check(0.0))
            return metrics(broker)

        def taken() -> Snapshot:
            """A snapshot that alone keeps 10 MB: the messages in it are gone from the queue."""
            channel.queue_declare("q", durable=True)
            for _ in range(10):
                channel.basic_publish("", "q", os.urandom(1 << 20), PERSISTENT)
            snapshot = create(tmp_path / "data", ALL)
            before = look()["storage_pinned_bytes"]
            channel.queue_purge("q")
            channel.queue_declare("q", durable=True)
            broker.call(lambda node: storage.checkpointer.request())
            wait_until(
                lambda: (
                    look()["storage_pinned_bytes"] >= before + (9 << 20)
                    or look()["storage_snapshots_released_total"] > 0
                )
            )
            return snapshot

        first, second = taken(), taken()
        wait_until(lambda: look()["storage_snapshots_released_total"] == 1)
        wait_until(lambda: look()["storage_snapshots"] == 1)
        with pytest.raises(SnapshotGone, match=r"snapshot_limit of the node was 17825792"):
            open_snapshot(first.directory)
        assert len(bodies_of(second, "/", "q")) == 10
    assert sum(line.startswith("snapshot_released ") for line in caplog.messages) == 1
