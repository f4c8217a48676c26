"""The octets of a node's unacknowledged messages, even if there are very many."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from api_client import ApiClient

from warren import Broker
from warren.mgmt.statistics import unacked_octets

PATIENCE_S = 30.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http_port=0, stats_interval_ms=50) as started:
        yield started


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield connection.channel()
    connection.close()


def octets(broker: Broker, queue: str = "q") -> Any:
    row = ApiClient(broker).get(f"/queues/%2F/{queue}")[1]
    return row.get("message_bytes"), row.get("message_bytes_unacknowledged")


def until_octets(broker: Broker, wanted: tuple[int, int]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while octets(broker) != wanted:
        assert time.monotonic() < ends, octets(broker)
        time.sleep(0.02)


def fill(channel: Any, *sizes: int) -> None:
    channel.queue_declare("q")
    channel.confirm_delivery()
    for size in sizes:
        channel.basic_publish("", "q", b"x" * size)


def test_few_are_added_up_at_once(broker: Broker, channel: Any) -> None:
    fill(channel, 1, 10, 100, 1000)
    assert octets(broker) == (1111, 0)
    for total in (1, 11, 111):
        channel.basic_get("q")
        assert octets(broker) == (1111, total)


def test_many_are_added_up_with_the_next_round(
    broker: Broker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unacked_octets, "AT_ONCE", 2)
    fill(channel, 1, 10, 100, 1000)
    for _ in range(3):
        channel.basic_get("q")
    until_octets(broker, (1111, 111))
    channel.basic_get("q")
    until_octets(broker, (1111, 1111))


def test_what_is_fetched_is_found_among_many_clients(
    broker: Broker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unacked_octets, "CLIENTS_AT_ONCE", 0)
    fill(channel, 1, 10)
    channel.basic_get("q")
    until_octets(broker, (11, 1))


def test_a_queue_that_nobody_asks_about_is_not_looked_at(broker: Broker, channel: Any) -> None:
    fill(channel, 1, 10)
    channel.basic_get("q")

    def wanted(node: Any) -> int:
        assert broker._running.management is not None
        statistics = broker._running.management.managed.statistics
        return len(statistics.unacked_octets._wanted)

    assert octets(broker) == (11, 1)
    assert broker.call(wanted) == 0
