"""Declaring and binding over HTTP needs the permissions that AMQP asks for."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from api_client import ApiClient

from warren import Broker

QUEUE_BINDING = "/bindings/%2F/e/amq.topic/q/mine"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http_port=0) as running:
        guest = ApiClient(running)
        running.add_user("narrow", "narrow", ("management",))
        own = {"configure": "^mine", "write": "^mine", "read": "^(mine|amq.topic)$"}
        assert guest.put("/permissions/%2F/narrow", own)[0] == 201
        topics = {"exchange": "amq.topic", "write": ".*", "read": "^open"}
        assert guest.put("/topic-permissions/%2F/narrow", topics)[0] == 201
        assert guest.put("/queues/%2F/mine")[0] == 201
        yield running


@pytest.fixture
def narrow(broker: Broker) -> ApiClient:
    return ApiClient(broker, "narrow")


def test_binding_asks_for_the_topic_permission(narrow: ApiClient) -> None:
    assert narrow.post(QUEUE_BINDING, {"routing_key": "open.a"})[0] == 201
    assert narrow.post(QUEUE_BINDING, {"routing_key": "closed.a"})[0] == 401


def test_unbinding_asks_for_the_topic_permission(broker: Broker, narrow: ApiClient) -> None:
    assert ApiClient(broker).post(QUEUE_BINDING, {"routing_key": "closed.b"})[0] == 201
    assert narrow.delete(f"{QUEUE_BINDING}/closed.b")[0] == 401


def test_an_alternate_exchange_needs_read_and_write(narrow: ApiClient) -> None:
    def declared(name: str, alternate: object) -> int:
        body = {"type": "fanout", "arguments": {"alternate-exchange": alternate}}
        return narrow.put(f"/exchanges/%2F/{name}", body)[0]

    assert declared("mine", "mine-too") == 201
    # May be configured and written to, but not read.
    assert declared("mine-unread", "mine-too") == 401
    assert declared("mine-b", "amq.fanout") == 401


def test_an_alternate_exchange_is_named_by_a_string(broker: Broker) -> None:
    body = {"type": "fanout", "arguments": {"alternate-exchange": 5}}
    status, answer = ApiClient(broker).put("/exchanges/%2F/numbered", body)
    assert status == 400
    assert answer["reason"].startswith("invalid type 'long' for arg 'alternate-exchange'")


def test_a_dead_letter_exchange_needs_read_and_write(narrow: ApiClient) -> None:
    def declared(name: str, exchange: str) -> int:
        body = {"arguments": {"x-dead-letter-exchange": exchange}}
        return narrow.put(f"/queues/%2F/{name}", body)[0]

    assert declared("mine-c", "mine") == 401
    assert declared("mine-d", "amq.fanout") == 401


def test_a_reserved_queue_name_is_refused_even_where_the_queue_is_there(broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    name = connection.channel().queue_declare("").method.queue
    assert name.startswith("amq.gen-")
    assert ApiClient(broker).put(f"/queues/%2F/{name}", {})[0] == 401
    connection.close()


def test_line_breaks_are_no_part_of_a_name_that_is_declared(broker: Broker) -> None:
    """As over AMQP: nobody could reach the queue there."""
    guest = ApiClient(broker)
    for kind in ("queues", "exchanges"):
        assert guest.put(f"/{kind}/%2F/two%0D%0Alines", {})[0] == 201
        assert guest.get(f"/{kind}/%2F/twolines")[0] == 200
