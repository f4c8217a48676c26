"""Keys in CC and BCC need the topic permissions that routing keys need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from api_client import EVERYTHING, ApiClient
from pika.exceptions import ChannelClosedByBroker

from warren import Broker

LONG = "ok." + "x" * 300


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http_port=0) as broker:
        api = ApiClient(broker)
        api.put("/users/ann", {"password": "p", "tags": "management"})
        api.put("/permissions/%2F/ann", EVERYTHING)
        yield broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[pika.BlockingConnection]:
    allow(broker, "^ok\\.")
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            broker.host, broker.port, credentials=pika.PlainCredentials("ann", "p")
        )
    )
    yield connection
    connection.close()


def allow(broker: Broker, pattern: str) -> None:
    given = {"exchange": "amq.topic", "write": pattern, "read": ".*"}
    assert ApiClient(broker).put("/topic-permissions/%2F/ann", given)[0] in (201, 204)


def publish(channel: Any, exchange: str = "amq.topic", **headers: list[str]) -> None:
    channel.basic_publish(exchange, "ok.1", b"x", pika.BasicProperties(headers=headers))


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"CC": ["bad"]}, "bad"),
        ({"BCC": ["bad"]}, "bad"),
        ({"CC": ["ok.2", "bad.2"], "BCC": ["ok.3"]}, "bad.2"),
        ({"CC": ["ok.2"], "BCC": ["bad.3"]}, "bad.3"),
        ({"CC": [LONG]}, LONG),
    ],
)
def test_a_copy_needs_the_permission_for_its_topic(
    broker: Broker, connection: Any, headers: dict[str, list[str]], refused: str
) -> None:
    watching = connection.channel()
    queue = watching.queue_declare("", exclusive=True).method.queue
    watching.queue_bind(queue, "amq.topic", "#")
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(ChannelClosedByBroker) as closed:
        publish(channel, **headers)
    assert closed.value.reply_code == 403
    text = f"ACCESS_REFUSED - access to topic '{refused}' in exchange 'amq.topic' in vhost '/'"
    assert closed.value.reply_text.startswith(text[:250])
    assert watching.basic_get(queue) == (None, None, None)
    body = {"routing_key": "ok.1", "payload": "x", "payload_encoding": "string"}
    status, told = ApiClient(broker, "ann", "p").post(
        "/exchanges/%2F/amq.topic/publish", {**body, "properties": {"headers": headers}}
    )
    assert status == 400 and told["reason"].startswith("403 ACCESS_REFUSED")


def test_copies_that_are_permitted_arrive(connection: Any) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "amq.topic", "ok.copy")
    channel.queue_bind(queue, "amq.direct", "any")
    for _ in range(3):
        publish(channel, CC=["ok.copy"])
    # Only topics have topic permissions.
    publish(channel, "amq.direct", BCC=["any"])
    assert channel.queue_declare(queue, passive=True).method.message_count == 4


def test_a_permission_that_is_taken_away_counts_for_the_next_copy(
    broker: Broker, connection: Any
) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    publish(channel, CC=["ok.copy"])
    allow(broker, "^ok\\.1$")
    with pytest.raises(ChannelClosedByBroker):
        publish(channel, CC=["ok.copy"])
