"""A policy has a queue retain what is acknowledged, which is replayed: over HTTP and from the command
line, with permissions, limits, restarts and kill -9."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from api_client import EVERYTHING, ApiClient, reason
from ctl_node import CtlNode
from message_jobs import NUMBERS, begin, bodies, do, fill, over

from warren import Broker

MINUTE = {"max-age": 60}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(http_port=0, data_dir=tmp_path, movable_clock=True) as running:
        yield running


@pytest.fixture
def api(broker: Broker) -> ApiClient:
    return ApiClient(broker)


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


def retain(api: ApiClient, retention: Any = MINUTE, **more: Any) -> Any:
    body = {"pattern": "^q$", "definition": {"retention": retention, **more}, "apply-to": "queues"}
    return api.put("/policies/%2F/keep", body)


def acknowledge(channel: Any, count: int, queue: str = "q") -> None:
    """By a client that gets them one by one."""
    for _ in range(count):
        method, _, _ = channel.basic_get(queue)
        channel.basic_ack(method.delivery_tag)
    # Whoever is answered now has had its acknowledgements carried out.
    channel.queue_declare(queue, passive=True)


def retained(broker: Broker, api: ApiClient, queue: str = "q") -> list[str]:
    """The bodies of what is retained and can be replayed."""
    job = do(broker, api, "replay", queue=queue, to_queue="to", dry_run=True)
    assert job["state"] == "completed", job
    return [sample["payload"] for sample in job["samples"]]


def shown(api: ApiClient) -> Any:
    return api.get("/queues/%2F/q")[1].get("retained")


def settled(broker: Broker) -> None:
    """Everything is on disk, and what is too much is gone."""
    broker.advance(1)
    broker.call(lambda node: None)


def test_what_is_acknowledged_is_replayed(broker: Broker, api: ApiClient, channel: Any) -> None:
    assert retain(api)[0] == 201
    fill(channel)
    fill(channel, "to", [])
    acknowledge(channel, 5)
    settled(broker)
    assert shown(api)["messages"] == 5
    job = do(broker, api, "replay", to_queue="to", filter="headers.n >= 3")
    assert (job["state"], job["done"], job["left"]) == ("completed", 2, [])
    assert bodies(api, "to") == ["3", "4"]
    _, properties, _ = channel.basic_get("to", auto_ack=True)
    mark = properties.headers["x-replayed"]
    assert mark["queue"] == "q"
    assert (properties.headers["n"], properties.delivery_mode) == (3, 2)
    position = mark["position"]
    job = do(broker, api, "replay", to_queue="to", first=position, last=position)
    assert bodies(api, "to") == ["4", "3"]
    assert bodies(api) == NUMBERS[5:]
    assert shown(api)["messages"] == 5
