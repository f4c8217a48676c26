"""Connections blocked by an alarm, since when and for which queue: in the API and the metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pika
import pytest
from api_client import ApiClient

from warren import Broker
from warren.config import Listener
from warren.core.resources.alarms import Resource
from warren.core.resources.growth import ALWAYS


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http_port=0, metrics_listeners=(Listener("127.0.0.1", 0),)) as broker:
        yield broker


def metrics(broker: Broker) -> list[str]:
    management = broker._running.management
    assert management is not None
    with urlopen(f"http://127.0.0.1:{management.metrics_ports[0]}/metrics") as answer:
        text: str = answer.read().decode()
    return text.splitlines()


def blocked_connection(api: ApiClient) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while True:
        for row in api.get("/connections")[1]:
            if row["state"] == "blocked":
                found: dict[str, Any] = row
                return found
        assert time.monotonic() < deadline, "no connection is blocked"


def test_a_blocked_connection_is_shown_with_the_queue_that_grows(broker: Broker) -> None:
    api = ApiClient(broker)
    disk = Resource.DISK
    broker.call(lambda node: node.alarms.report(disk, True, "other", growing_only=True))
    before_ms = time.time() * 1000
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare("grows")
    for _ in range(ALWAYS.messages + 2):
        channel.basic_publish("", "grows", b"x")
    row = blocked_connection(api)
    assert row["blocked_reason"] == "low on disk"
    assert row["blocked_by_queue"] == {"vhost": "/", "name": "grows"}
    assert before_ms - 1000 <= row["blocked_since"] <= time.time() * 1000
    (node,) = api.get("/nodes")[1]
    assert node["alarms_block"] == "growing" and node["blocked_connections"] == 1
    assert node["blocking_queues"] == [{"vhost": "/", "name": "grows", "connections": 1}]
    lines = metrics(broker)
    assert "warren_connections_blocked 1" in lines
    assert 'warren_queue_blocked_connections{vhost="/",queue="grows"} 1' in lines

    broker.call(lambda node: node.alarms.report(disk, True, "other"))
    assert api.get("/nodes")[1][0]["alarms_block"] == "all"
    broker.call(lambda node: node.alarms.report(disk, False, "other"))
    (row,) = api.get("/connections")[1]
    assert row["state"] == "running" and "blocked_since" not in row
    (node,) = api.get("/nodes")[1]
    assert node["alarms_block"] == "" and node["blocking_queues"] == []
    assert "warren_connections_blocked 0" in metrics(broker)
    connection.close()
