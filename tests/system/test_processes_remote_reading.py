"""Reading the queues of a broker of several processes over HTTP: all of them, from any process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from broker_processes import Processes, Until
from server_process import ServerProcess

from warren.spark_export.remote import remote_node
from warren.spark_export.source.source import BatchReader, MessageStoreSource


@pytest.fixture(autouse=True)
def no_connections() -> Iterator[None]:
    yield
    remote_node.close_connections()


def test_a_reader_gets_the_queues_of_all_processes_once(
    start_server: Callable[..., ServerProcess], tmp_path: Path, until: Until
) -> None:
    broker = Processes(start_server, tmp_path / "data", until)
    broker.start(processes=3)
    channel = broker.connect().channel()
    channel.confirm_delivery()
    persistent = pika.BasicProperties(delivery_mode=2)
    for number in range(6):
        channel.queue_declare(f"q{number}", durable=True)
        channel.basic_publish("", f"q{number}", b"%d" % number, persistent)
    assert len(set(broker.queues().values())) == 3
    wanted = [(f"q{number}", b"%d" % number) for number in range(6)]
    # Whichever process the questions get to.
    for _ in range(3):
        path = f"warren://127.0.0.1:{broker.http_port}"
        source = MessageStoreSource({"path": path, "columns": "queue,body"})
        reader: BatchReader = source.reader(source.schema())
        found = [
            (row["queue"], row["body"])
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]
        assert sorted(found) == wanted
    broker.stop()
