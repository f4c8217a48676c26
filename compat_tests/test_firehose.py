"""Tracing of a vhost: reference 11. Needs an administrator."""

import pytest

from warren.compat_tests.admin import Admin
from warren.compat_tests.factory import Raw
from warren.compat_tests.raw_client import RawChannel

AREA = "Tracing"


@pytest.fixture
def traced(raw: Raw, admin: Admin, own_vhost: str) -> RawChannel:
    """A channel in a vhost that is traced; all traces of it come to the queue `traces`."""
    admin.call("PUT", "vhosts", own_vhost, body={"tracing": True})
    ch = raw(vhost=own_vhost).channel()
    ch.declare("traces")
    ch.bind("traces", "amq.rabbitmq.trace", "#")
    return ch


def test_publish_is_traced(traced: RawChannel, own_vhost: str) -> None:
    traced.declare("q")
    traced.bind("q", "amq.direct", "key")
    traced.publish(b"body", "key", "amq.direct", content_type="text/plain", priority=3)
    (trace,) = traced.arriving("traces", 1)
    assert (trace["exchange"], trace["routing_key"]) == ("amq.rabbitmq.trace", "publish.amq.direct")
    assert trace.body == b"body"
    headers = trace.headers
    assert headers["exchange_name"] == "amq.direct"
    assert headers["routing_keys"] == ["key"]
    assert headers["routed_queues"] == ["q"]
    assert headers["properties"] == {"content_type": "text/plain", "priority": 3}
    assert headers["vhost"] == own_vhost
    assert headers["user"] == traced.client.broker.user
    assert headers["channel"] == traced.number
    assert {"node", "connection"} <= headers.keys()


def test_delivery_and_get_are_traced(traced: RawChannel) -> None:
    traced.declare("q")
    for _ in range(2):
        traced.publish(b"body", "q")
    traced.arriving("traces", 2)
    traced.got("q")
    # A get of a trace would be traced, too, so there are no gets in between.
    other = traced.client.channel()
    other.consume("q", no_ack=True)
    other.delivery()
    keys = set()
    while "deliver.q" not in keys:
        (trace,) = traced.arriving("traces", 1)
        keys.add(trace["routing_key"])
        if trace["routing_key"] == "deliver.q":
            assert trace.headers["redelivered"] == 0
            assert "routed_queues" not in trace.headers


def test_publish_to_the_default_exchange_is_traced_with_an_empty_name(traced: RawChannel) -> None:
    """RabbitMQ lists the routing key as a queue here, whether there is such a queue or not."""
    traced.publish(b"body", "nowhere")
    (trace,) = traced.arriving("traces", 1)
    assert trace["routing_key"] == "publish."
    assert trace.headers["exchange_name"] == ""


def test_publish_nobody_wants_is_traced_without_queues(traced: RawChannel) -> None:
    traced.publish(b"body", "nowhere", "amq.direct")
    (trace,) = traced.arriving("traces", 1)
    assert trace.headers["routed_queues"] == []
