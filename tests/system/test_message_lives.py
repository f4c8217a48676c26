"""The recorded lives of messages on a real node: over a restart, and when there are too many."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from server_process import ServerProcess

from warren.mgmt.ctl.control_client import ControlClient, LocalTarget

PERSISTENT = 2


@contextmanager
def server(directory: Path, *lines: str) -> Iterator[ServerProcess]:
    config = directory / "warren.conf"
    config.write_text("\n".join(lines), encoding="utf-8")
    flags = ["--data-dir", "data", "--amqp", "127.0.0.1:0", "--config", str(config)]
    process = ServerProcess(flags, directory)
    try:
        yield process
    finally:
        process.kill()


def asks(directory: Path, *path: str) -> Any:
    with closing(ControlClient(LocalTarget(directory / "data"), 60)) as client:
        return client.get(*path)


@contextmanager
def channel_of(server: ServerProcess) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    try:
        yield connection.channel()
    finally:
        with suppress(AMQPError):
            connection.close()


def publish(channel: BlockingChannel, key: str, name: str) -> None:
    properties = pika.BasicProperties(message_id=name, delivery_mode=PERSISTENT)
    channel.basic_publish("", key, b"body", properties)


def record_all(directory: Path) -> None:
    path = ("parameters", "trace", "/", "all")
    with closing(ControlClient(LocalTarget(directory / "data"), 60)) as client:
        client.request("PUT", *path, body={"value": {}})


def events(directory: Path, name: str) -> list[str]:
    life = asks(directory, "trace", "/", name)
    return [record["event"] for record in life["records"]]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_life_goes_on_after_a_restart(tmp_path: Path, end: signal.Signals) -> None:
    with server(tmp_path) as first:
        record_all(tmp_path)
        with channel_of(first) as channel:
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            publish(channel, "q", "m1")
            assert events(tmp_path, "m1") == ["published"]
        first.signal(end)
        first.wait()
    # A crash of the machine may cut off the last line.
    (file,) = (tmp_path / "data" / "trace").iterdir()
    with file.open("ab") as torn:
        torn.write(b'{"at":1,"event":"publ')
    with server(tmp_path) as second:
        assert events(tmp_path, "m1") == ["published"]
        with channel_of(second) as channel:
            method, _, _ = channel.basic_get("q")
            assert method is not None
            channel.basic_ack(method.delivery_tag)
            channel.basic_qos()
        assert events(tmp_path, "m1") == ["published", "delivered", "acknowledged"]


def counts(directory: Path) -> dict[str, Any]:
    (found,) = asks(directory, "trace", "/")["nodes"].values()
    return dict(found)


def test_file_stays_within_its_limit_and_the_oldest_goes_first(tmp_path: Path) -> None:
    limit = 64 << 10
    with server(tmp_path, f"trace.size_limit = {limit}") as node, channel_of(node) as channel:
        record_all(tmp_path)
        channel.queue_declare("q")
        for number in range(1000):
            publish(channel, "q", f"m{number}")
        channel.queue_purge("q")
        assert events(tmp_path, "m999") == ["published", "purged"]
        assert events(tmp_path, "m0") == []
        files = list((tmp_path / "data" / "trace").iterdir())
        # One file may be written beyond its share by a list of records.
        assert sum(file.stat().st_size for file in files) <= 2 * limit
        assert counts(tmp_path)["file_bytes"] <= 2 * limit


def test_too_many_messages_are_counted_and_not_recorded(tmp_path: Path) -> None:
    """As many as a client can publish; each is followed to its end, or not recorded at all."""
    sent = 20_000
    with server(tmp_path) as node, channel_of(node) as channel:
        record_all(tmp_path)
        channel.queue_declare("q")
        for number in range(sent):
            publish(channel, "q", f"m{number}")
        channel.queue_declare("q", passive=True)
        found = counts(tmp_path)
        assert found["followed"] + found["passed_over"] == sent
        assert found["nameless"] == found["lost"] == 0
        assert found["recorded"] >= found["followed"]


def test_disk_that_refuses_records_costs_nothing_else(tmp_path: Path) -> None:
    with server(tmp_path) as node, channel_of(node) as channel:
        record_all(tmp_path)
        # In the way of the first file.
        (tmp_path / "data" / "trace" / "00000001.jsonl").mkdir()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        publish(channel, "q", "m1")
        assert events(tmp_path, "m1") == []
        assert counts(tmp_path)["lost"] >= 1
        assert "trace_not_written" in node.log
        publish(channel, "q", "m2")
