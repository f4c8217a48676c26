"""Persistent messages survive the end of the node, however it ends; see also `kill_long.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bulk_client import DELIVER, BulkClient, ack, content, delivery, publish
from kill_long import Torture

from warren.compat_tests.raw_client import RawChannel, RawClient

LIVE = 20_000
CHURNED = 200_000
BODY_BYTES = 1024
SLACK_BYTES = 100 << 20
EMPTY_BYTES = 2 << 20


@pytest.fixture
def torture(tmp_path: Path) -> Iterator[Callable[[int], Torture]]:
    made: list[Torture] = []

    def make(seed: int) -> Torture:
        made.append(Torture(tmp_path, seed, print))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.parametrize("seed", [11, 12])
def test_killed_under_load_it_loses_nothing_and_invents_nothing(
    torture: Callable[[int], Torture], seed: int
) -> None:
    ordeal = torture(seed)
    for number in range(3):
        ordeal.play(number, confirms_max=4000)
    ordeal.audit_all()


def publish_numbers(channel: RawChannel, queue: str, numbers: range, **properties: Any) -> None:
    for number in numbers:
        channel.publish(b"%d" % number, queue, **properties)


def all_messages(channel: RawChannel, queue: str) -> list[tuple[int, bool]]:
    """Number and `redelivered` of each; the queue is empty afterwards."""
    messages = []
    while (method := channel.get(queue)) is not None:
        messages.append((int(method.body), method["redelivered"]))
    return messages


@pytest.mark.parametrize("mode", ["default", "lazy"])
def test_after_a_clean_stop_only_what_was_delivered_is_redelivered(
    start_server: Callable[..., Any],
    connect: Callable[..., RawClient],
    tmp_path: Path,
    mode: str,
) -> None:
    server = start_server(data_dir=tmp_path / "data")
    channel = connect(server).channel()
    channel.declare("q", durable=True, arguments={"x-queue-mode": mode})
    channel.call("confirm.select")
    publish_numbers(channel, "q", range(1000), delivery_mode=2)
    channel.confirms(1000)
    publish_numbers(channel, "q", range(1000, 1010), delivery_mode=1)
    channel.confirms(10)
    for number in range(100):
        method = channel.got("q", b"%d" % number, no_ack=False)
        if number < 50:
            channel.ack(method["delivery_tag"])
    channel.ping()
    channel.client.abandon()
    assert server.terminate() == 0
    assert "ERROR" not in server.log

    server = start_server(data_dir=tmp_path / "data")
    channel = connect(server).channel()
    assert channel.ready("q") == 950
    # Looked at, and back: the next start knows of it too.
    channel.got("q", b"50", no_ack=False)
    channel.client.abandon()
    assert server.terminate() == 0

    channel = connect(start_server(data_dir=tmp_path / "data")).channel()
    assert all_messages(channel, "q") == [(number, number < 100) for number in range(50, 1000)]


def test_after_a_kill_everything_counts_as_redelivered_and_what_is_new_does_not(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    server = start_server(data_dir=tmp_path / "data")
    channel = connect(server).channel()
    channel.declare("q", durable=True)
    channel.call("confirm.select")
    publish_numbers(channel, "q", range(100), delivery_mode=2)
    channel.confirms(100)
    channel.got("q", b"0", no_ack=False)
    server.kill()

    channel = connect(start_server(data_dir=tmp_path / "data")).channel()
    publish_numbers(channel, "q", range(100, 200), delivery_mode=2)
    assert all_messages(channel, "q") == [(number, number < 100) for number in range(200)]


PROPERTIES: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "headers": {"a": 1, "b": "two", "c": [True, None, 2.5], "d": {"e": "f"}},
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "r",
    "message_id": "m",
    "timestamp": 1_600_000_000,
    "type": "t",
    "user_id": "guest",
    "app_id": "a",
}


def test_everything_about_a_message_survives(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    bodies = [b"", b"small", bytes(range(256)) * 15, os.urandom(5000), os.urandom(300_000)]
    server = start_server(data_dir=tmp_path / "data")
    channel = connect(server).channel()
    channel.declare_exchange("e", "topic", durable=True)
    for queue in ("one", "two", "witness"):
        channel.declare(queue, durable=True)
        channel.bind(queue, "e", "some.*")
    channel.call("confirm.select")
    for body in bodies:
        channel.publish(body, "some.key", "e", **PROPERTIES)
    channel.confirms(len(bodies))
    witnessed = channel.got("witness").properties
    server.kill()

    channel = connect(start_server(data_dir=tmp_path / "data")).channel()
    for queue in ("one", "two"):
        for body in bodies:
            method = channel.got(queue, body)
            assert (method["exchange"], method["routing_key"]) == ("e", "some.key")
            assert method.properties == witnessed
        assert channel.get(queue) is None


def disk_use(directory: Path) -> int:
    """What the directory takes on the disk; its files may go while one looks."""
    octets = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                octets += os.stat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return octets


def test_steady_churn_keeps_the_disk_use_near_what_is_alive(
    start_server: Callable[..., Any], tmp_path: Path, until: Callable[..., None]
) -> None:
    server = start_server(data_dir=tmp_path / "data")
    store = tmp_path / "data" / "store"
    client = BulkClient(server.port).open()
    client.declare("churned")
    unit = publish("", "churned") + content(b"x" * BODY_BYTES, persistent=True, priority=0)
    step = 1000
    for _ in range(0, LIVE, step):
        client.send(unit * step)
    client.qos(2 * step)
    client.consume("churned")
    most, consumed = 0, 0
    for churned in range(0, CHURNED, step):
        client.send(unit * step)
        consumed = _consume(client, churned + step, consumed)
        if churned % 20_000 == 0:
            most = max(most, disk_use(store))
    assert most < 3 * LIVE * BODY_BYTES + SLACK_BYTES
    _consume(client, LIVE + CHURNED, consumed)
    client.close()
    until(lambda: disk_use(store) < EMPTY_BYTES)
    assert "ERROR" not in server.log


def _consume(client: BulkClient, upto: int, seen: int) -> int:
    """Receive and acknowledge until so many were seen; returns how many were."""
    while seen < upto:
        tags = [delivery(said).tag for said in client.receive() if said.name == DELIVER]
        if tags:
            seen = tags[-1]
            client.send(ack(seen, multiple=True))
    return seen
