"""Quorum queues survive the end of the node, however it ends, with their delivery counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warren.compat_tests.raw_client import RawChannel, RawClient

COUNT = "x-delivery-count"
QUORUM = {"x-queue-type": "quorum"}

Start = Callable[..., Any]
Connect = Callable[..., RawClient]


def declare(channel: RawChannel, queue: str = "q", **arguments: Any) -> None:
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.declare(queue, durable=True, arguments={**QUORUM, **table})


def publish(channel: RawChannel, count: int, queue: str = "q") -> None:
    """Publish numbers with every delivery mode, and wait until they are safe."""
    channel.call("confirm.select")
    for number in range(count):
        mode = number % 3
        channel.publish(b"%d" % number, queue, **({"delivery_mode": mode} if mode else {}))
    assert {verdict for verdict, _ in channel.confirms(count)} == {"ack"}


def messages(channel: RawChannel, queue: str = "q") -> list[tuple[int, int | None]]:
    """Number and delivery mode of each; the queue is empty afterwards."""
    found = []
    while (method := channel.get(queue)) is not None:
        found.append((int(method.body), method.properties.get("delivery_mode")))
    return found


def counts(channel: RawChannel, queue: str = "q") -> dict[int, int]:
    found = {}
    while (method := channel.get(queue)) is not None:
        found[int(method.body)] = method.headers[COUNT]
    return found


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_every_message_survives_whatever_its_delivery_mode(
    start_server: Start, connect: Connect, tmp_path: Path, end: str
) -> None:
    server = start_server(data_dir=tmp_path / "data")
    channel = connect(server).channel()
    declare(channel)
    publish(channel, 300)
    getattr(server, end)()

    channel = connect(start_server(data_dir=tmp_path / "data")).channel()
    declare(channel)
    assert messages(channel) == [(number, number % 3 or None) for number in range(300)]


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_delivery_counts_survive(
    start_server: Start, connect: Connect, tmp_path: Path, end: str
) -> None:
    server = start_server(data_dir=tmp_path / "data")
    channel = connect(server).channel()
    declare(channel, x_delivery_limit=10)
    publish(channel, 4)
    for times in (3, 1):
        for _ in range(times):
            channel.nack(channel.got("q", no_ack=False)["delivery_tag"])
        channel.got("q", no_ack=False)
    channel.ping()
    # As with acknowledgements, what nobody waits for is on disk a moment later.
    time.sleep(0.3)
    getattr(server, end)()

    channel = connect(start_server(data_dir=tmp_path / "data")).channel()
    # A node that stops in order closes channels first, and that is a return.
    more = 1 if end == "terminate" else 0
    assert counts(channel) == {0: 3 + more, 1: 1 + more, 2: 0, 3: 0}


def test_the_delivery_limit_counts_deliveries_of_all_lives(
    start_server: Start, connect: Connect, tmp_path: Path
) -> None:
    delivered = 0
    for life in range(4):
        server = start_server(data_dir=tmp_path / "data")
        channel = connect(server).channel()
        declare(channel, "dead")
        declare(
            channel,
            x_delivery_limit=3,
            x_dead_letter_exchange="",
            x_dead_letter_routing_key="dead",
        )
        if not life:
            publish(channel, 1)
        message = channel.got("q", no_ack=False)
        delivered += 1
        channel.nack(message["delivery_tag"])
        if delivered == 4:
            channel.becomes_ready("dead", 1)
        channel.ping()
        time.sleep(0.3)
        server.kill()

    channel = connect(start_server(data_dir=tmp_path / "data")).channel()
    assert channel.ready("q") == 0
    letter = channel.got("dead")
    assert letter.headers["x-death"][0]["reason"] == "delivery_limit"


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_kept_dead_letter_stays_dead(
    start_server: Start, connect: Connect, tmp_path: Path, end: str
) -> None:
    server = start_server(data_dir=tmp_path / "data")
    channel = connect(server).channel()
    declare(
        channel,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="later",
        x_dead_letter_strategy="at-least-once",
        x_overflow="reject-publish",
    )
    publish(channel, 4)
    for number, rejected in enumerate((False, True, False, True)):
        tag = channel.got("q", b"%d" % number, no_ack=False)["delivery_tag"]
        if rejected:
            channel.nack(tag, requeue=False)
    channel.ping()
    time.sleep(0.3)
    getattr(server, end)()

    channel = connect(start_server(data_dir=tmp_path / "data")).channel()
    assert channel.ready("q") == 2
    assert sorted(counts(channel)) == [0, 2]
    declare(channel, "later")
    # It is routed again after a second, later more seldom.
    deadline = time.monotonic() + 30
    while channel.ready("later") < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    letters = [channel.got("later") for _ in range(2)]
    assert [letter.body for letter in letters] == [b"1", b"3"]
    assert {letter.headers["x-death"][0]["reason"] for letter in letters} == {"rejected"}
