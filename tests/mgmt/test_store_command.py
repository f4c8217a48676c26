"""`warren store` as a user runs it, on data of stopped nodes and of a running one."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from click.testing import CliRunner, Result
from stored_node import ORDERS, fill

from warren import Broker
from warren.mgmt.command_line import warren
from warren.persist.log.store_context import StorageSizes

CHECKS = 5
CHECKS_MAX = 2000
MESSAGES_LEFT = 50


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled")
    fill(path).stop()
    return path


@pytest.fixture
def directory(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "data"))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(warren, ["store", *map(str, arguments)])


def lines_of(*arguments: str | Path) -> list[dict[str, Any]]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_check_counts_messages_by_queue(directory: Path) -> None:
    result = run("check", directory)
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert [line for line in lines if line[:1] == ["180"] and line[-1] == "orders"]
    assert [line for line in lines if line[:1] == ["25"] and line[-1] == "invoices"]
    assert result.output.endswith("no damage\n")


def test_check_prints_json(directory: Path) -> None:
    result = run("check", directory, "--json")
    assert result.exit_code == 0
    report = json.loads(result.output)
    assert report["clean"] is True
    assert report["damage"] == []
    assert {(at["vhost"], at["name"], at["messages"]) for at in report["queues"]} == {
        ("/", "orders", 180),
        ("/", "invoices", 25),
        ("/", "empty", 0),
    }


def test_damage_is_named_and_is_exit_code_1(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    path = directory / "store/log/00000004.0.rdq"
    entry = next(
        at for at in lines_of("dump", directory, "--queue", "orders", "--json") if at["file"] == 4
    )
    data = bytearray(path.read_bytes())
    data[entry["offset"] + 100] ^= 1
    path.write_bytes(data)
    result = run("check", directory)
    assert result.exit_code == 1
    assert (
        f"DAMAGED store/log/00000004.0.rdq at {entry['offset']}: checksum of the record"
        f" (queue /:orders, position {entry['position']})\n1 places are damaged\n"
    ) in result.output
    result = run("check", directory, "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)["damage"] == [
        {
            "file": "store/log/00000004.0.rdq",
            "offset": entry["offset"],
            "reason": "checksum of the record",
            "queue": f"{ORDERS:016x}",
            "queue_name": "/:orders",
            "position": entry["position"],
            "messages": 1,
        }
    ]
    result = run("dump", directory, "--queue", "orders")
    assert result.exit_code == 0
    assert result.output.count("UNREADABLE: checksum of the record") == 1


@pytest.mark.parametrize("verb", [["check"], ["dump", "--queue", "orders"]])
def test_what_is_no_data_directory_is_exit_code_2(tmp_path: Path, verb: list[str]) -> None:
    for name in ("missing", "empty", "other"):
        path = tmp_path / name
        if name != "missing":
            path.mkdir()
        if name == "other":
            (path / "file").write_text("")
        result = run(*verb, path)
        assert result.exit_code == 2
        assert str(path) in result.output


def test_dump_lists_what_a_queue_has(directory: Path) -> None:
    entries = lines_of("dump", directory, "--queue", "orders", "--bodies", "--json")
    assert len(entries) == 180
    assert [at["position"] for at in entries] == sorted(at["position"] for at in entries)
    bodies = {at["body"] for at in entries}
    assert bodies == (
        {f"{number:06d}" * 100 for number in range(400) if number >= 300 or number % 10 == 0}
        | {f"{number:06d}" * 1000 for number in range(30)}
        | {f"late {number}" for number in range(20)}
    )
    assert {at["shared"] for at in entries if at["body_bytes"] == 6000} == {True}
    assert {at["routing_key"] for at in entries} == {"eu.de"}
    assert all(at["expires_us"] > at["enqueued_us"] for at in entries[-20:])


def test_dump_stops_at_the_limit_and_cuts_bodies(directory: Path) -> None:
    result = run("dump", directory, "--queue", "invoices", "--limit", "2", "--bodies")
    lines = result.output.splitlines()
    assert len(lines) == 4
    assert "exchange 'trade' key 'eu.de' persistent,shared" in lines[0]
    assert lines[1].startswith("    b'0000050000") and lines[1].endswith("...")
    assert run("dump", directory, "--queue", "empty").output == ""


def test_a_queue_that_is_not_there_is_told_with_its_virtual_host(directory: Path) -> None:
    result = run("dump", directory, "--queue", "ordres")
    assert result.exit_code == 2
    assert "no durable queue 'ordres' in virtual host '/'; near names: 'orders'" in result.output
    result = run("dump", directory, "--queue", "orders", "--vhost", "prod")
    assert result.exit_code == 2
    assert "in virtual host 'prod'; there is one in virtual host '/'" in result.output


# Beside a node that works


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A node that takes a checkpoint now and then, and writes files anew."""
    monkeypatch.setattr(
        "warren.node_parts.StorageSizes", lambda *given: StorageSizes(*given, 1 << 20, 1000)
    )
    data = tmp_path / "running"
    with Broker(data_dir=data, store_file_bytes_max=1 << 16) as broker:
        yield broker


def publish_and_consume(url: str, stopping: threading.Event) -> None:
    """Fan out small and large messages to queues that stay short; delete one now and then.

    Queue "kept" gets a message now and then, so that files are left with little in them.
    """
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("fan", "fanout", durable=True)
    channel.queue_declare("kept", durable=True)
    queues = ["a", "b", "c"]
    persistent = pika.BasicProperties(delivery_mode=2)
    number = 0
    while not stopping.is_set():
        for name in queues:
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "fan")
        for _ in range(200):
            number += 1
            body = b"%d" % number * (2000 if number % 5 == 0 else 50)
            channel.basic_publish("fan", "key", body, persistent)
        channel.basic_publish("", "kept", b"kept", persistent)
        for name in queues:
            waiting = channel.queue_declare(name, passive=True).method.message_count
            for _ in range(waiting - MESSAGES_LEFT):
                channel.basic_get(name, auto_ack=True)
        channel.queue_delete("c")
    connection.close()


def test_a_node_under_load_is_whole(broker: Broker, tmp_path: Path) -> None:
    stopping = threading.Event()
    load = threading.Thread(target=publish_and_consume, args=(broker.url, stopping))
    load.start()
    try:
        seen = 0
        place = combined = None
        while seen < CHECKS or not place or not combined:
            assert seen < CHECKS_MAX, "no checkpoint was taken, or no file written anew"
            combined = combined or list((tmp_path / "running/store/log").glob("*.1.rdq"))
            result = run("check", tmp_path / "running", "--json")
            assert result.exit_code == 0, result.output
            place = json.loads(result.output)["checkpoint"].strip("0:")
            seen += 1
    finally:
        stopping.set()
        load.join()
    broker.stop()
    report = json.loads(run("check", tmp_path / "running", "--json").output)
    assert report["clean"] and report["stopped_clean"]
    left = {at["name"]: at["messages"] for at in report["queues"] if at["name"] is not None}
    assert left.pop("kept") > 0
    assert left == {"a": MESSAGES_LEFT, "b": MESSAGES_LEFT}
