"""Numbers of policies and arguments may be as large as JSON and AMQP allow; the node goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pytest
from api_client import ApiClient

from warren import Broker

HUGE = (2**40, 2**62, 2**63, 10**30)
KEYS = ("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit")
POLICIES: list[dict[str, Any]] = [{key: number} for key in KEYS for number in HUGE]
POLICIES += [{"redelivery-delay": [number]} for number in HUGE]
POLICIES += [{"retention": {key: number}} for key in ("max-age", "max-bytes") for number in HUGE]
POLICIES += [{"retention": {"max-age": "999999999999999999Y"}}]
STREAM_POLICIES: list[dict[str, Any]] = [
    {"max-age": "999999999999999999Y"},
    *({"max-length-bytes": number} for number in HUGE),
    *({"stream-max-segment-size-bytes": number} for number in HUGE),
]


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_no_policy_ends_the_node(tmp_path: Path, kind: str) -> None:
    with Broker(http_port=0, data_dir=tmp_path) as broker:
        api = ApiClient(broker)
        for definition in STREAM_POLICIES if kind == "stream" else POLICIES:
            body = {"pattern": "^q$", "apply-to": "queues", "definition": definition}
            status, _ = api.put("/policies/%2F/huge", body)
            assert status in (201, 204, 400), definition
            use(broker, {"x-queue-type": kind})
            api.delete("/policies/%2F/huge")


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-type": "stream", "x-max-age": "999999999999999999Y"},
        {"x-queue-type": "stream", "x-max-length-bytes": 2**63 - 1},
        {"x-redelivery-delay": [2**63 - 1]},
        {"x-delivery-limit": 2**63 - 1},
        {"x-max-length": 2**63 - 1},
        {"x-message-ttl": 2**32 - 1},
        {"x-expires": 2**32 - 1},
    ],
    ids=str,
)
def test_no_argument_ends_the_node(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with Broker(data_dir=tmp_path) as broker:
        use(broker, arguments)


def use(broker: Broker, arguments: dict[str, Any]) -> None:
    """Declare a queue, if it is not refused, and publish, return and acknowledge in it."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    try:
        channel.queue_declare("q", durable=True, arguments=arguments)
    except pika.exceptions.ChannelClosedByBroker:
        connection.close()
        return
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2)
    channel.basic_publish("", "q", b"x", properties)
    brief = pika.BasicProperties(delivery_mode=2, expiration=str(2**32 - 1))
    channel.basic_publish("", "q", b"x", brief)
    if arguments.get("x-queue-type") != "stream":
        method, _, _ = channel.basic_get("q")
        channel.basic_nack(method.delivery_tag)
        method, _, _ = channel.basic_get("q")
        if method is not None:
            channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", "q", b"y", properties)
    channel.queue_delete("q")
    connection.close()
