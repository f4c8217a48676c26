"""The firehose: copies of what is published and delivered in a virtual host that is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from warren import Broker
from warren.compat_tests.field_table import Typed
from warren.compat_tests.methods import Method
from warren.compat_tests.raw_client import RawChannel, RawClient

TRACE = "amq.rabbitmq.trace"


def trace(broker: Broker, on: bool, vhost: str = "/") -> None:
    broker.call(lambda node: node.trace(vhost, on))


@pytest.fixture
def tracer(warren_broker: Broker, connect: Callable[..., RawClient]) -> RawChannel:
    """Consumes all traces of the default virtual host, from now on."""
    channel = connect(warren_broker).channel()
    queue = channel.own_queue()
    channel.bind(queue, TRACE, "#")
    trace(warren_broker, True)
    channel.consume(queue, no_ack=True)
    return channel


@pytest.fixture
def client(warren_broker: Broker, connect: Callable[..., RawClient]) -> RawChannel:
    named = {"connection_name": "the traced one"}
    return connect(warren_broker, client_properties=named).channel(7)


def traced(tracer: RawChannel, key: str) -> Method:
    """The next trace, which must have this key."""
    copy = tracer.delivery()
    assert (copy["exchange"], copy["routing_key"]) == (TRACE, key)
    return copy


def test_a_publish_is_copied_with_where_it_came_from_and_went(
    tracer: RawChannel, client: RawChannel
) -> None:
    one, other = client.own_queue(), client.own_queue()
    for queue in (one, other):
        client.bind(queue, "amq.topic", "a.#")
    client.publish(b"body", "a.b", "amq.topic", message_id="m", headers={"h": 5, "CC": ["a.c"]})
    copy = traced(tracer, "publish.amq.topic")
    assert copy.body == b"body"
    headers = copy.headers
    assert sorted(headers.pop("routed_queues")) == sorted([one, other])
    assert headers == {
        "exchange_name": "amq.topic",
        "routing_keys": ["a.b", "a.c"],
        "properties": {"message_id": "m", "headers": {"h": 5, "CC": ["a.c"]}},
        "node": "warren@localhost",
        "vhost": "/",
        "connection": headers["connection"],
        "channel": 7,
        "user": "guest",
    }


def test_numbers_have_the_type_that_every_client_knows(
    tracer: RawChannel, client: RawChannel
) -> None:
    """Java's client knows no `B`, in which priority and mode travel as properties."""
    queue = client.own_queue()
    number = (1 << 32) + 7
    client.publish(
        b"x", queue, priority=3, delivery_mode=2, timestamp=number, headers={"n": Typed("l", 1)}
    )
    copy = traced(tracer, "publish.").typed_headers
    client.got(queue)
    delivered = traced(tracer, f"deliver.{queue}").typed_headers
    assert (copy["channel"], delivered["redelivered"]) == (Typed("I", 7), Typed("I", 0))
    properties = copy["properties"].value
    for name, value in (("priority", 3), ("delivery_mode", 2), ("timestamp", 7)):
        assert properties[name] == Typed("I", value)
    assert properties["headers"].value == {"n": Typed("l", 1)}


def test_a_delivery_is_copied_with_its_queue_and_whether_it_came_again(
    tracer: RawChannel, client: RawChannel
) -> None:
    client.declare("q")
    client.publish(b"body", "q")
    traced(tracer, "publish.")
    client.got("q", b"body", no_ack=False)
    first = traced(tracer, "deliver.q")
    client.call("basic.recover", requeue=True)
    client.consume("q", no_ack=True)
    assert client.delivery(b"body")["redelivered"]
    second = traced(tracer, "deliver.q")
    assert (first.body, second.body) == (b"body", b"body")
    assert (first.headers["redelivered"], second.headers["redelivered"]) == (0, 1)
    for copy in (first, second):
        assert copy.headers["exchange_name"] == "" and copy.headers["routing_keys"] == ["q"]
        assert copy.headers["vhost"] == "/" and "routed_queues" not in copy.headers


def test_a_delivery_is_copied_with_who_got_it(tracer: RawChannel, client: RawChannel) -> None:
    """Reference section 11: the same headers as of a publish, but for routed_queues."""
    client.declare("q")
    client.consume("q", no_ack=True)
    client.publish(b"body", "q")
    copies = [tracer.delivery() for _ in range(2)]
    published, delivered = sorted(copies, key=lambda copy: copy["routing_key"], reverse=True)
    assert delivered["routing_key"] == "deliver.q"
    for name in ("connection", "channel", "user", "node", "vhost"):
        assert delivered.headers[name] == published.headers[name], name


def test_every_message_of_a_run_is_copied(tracer: RawChannel, client: RawChannel) -> None:
    """Publishes alike are served on a short way that must not go around the firehose."""
    queue = client.own_queue()
    for number in range(100):
        client.publish(b"%03d" % number, queue)
    assert [traced(tracer, "publish.").body for _ in range(100)] == [
        b"%03d" % number for number in range(100)
    ]


def test_turning_it_on_and_off_takes_effect_in_the_middle_of_a_run(
    warren_broker: Broker, client: RawChannel, connect: Callable[..., RawClient]
) -> None:
    watcher = connect(warren_broker).channel()
    traces, queue = watcher.own_queue(), client.own_queue()
    watcher.bind(traces, TRACE, "publish.#")
    for on in (False, True, False):
        trace(warren_broker, on)
        for _ in range(10):
            client.publish(b"on" if on else b"off", queue)
        client.ping()
    assert watcher.bodies(traces) == [b"on"] * 10


def test_an_existing_queue_is_traced_from_when_it_is_turned_on(
    warren_broker: Broker, client: RawChannel, connect: Callable[..., RawClient]
) -> None:
    client.declare("q")
    client.consume("q", no_ack=True)
    client.publish(b"before", "q")
    client.delivery(b"before")
    watcher = connect(warren_broker).channel()
    traces = watcher.own_queue()
    watcher.bind(traces, TRACE, "deliver.#")
    trace(warren_broker, True)
    client.publish(b"while", "q")
    client.delivery(b"while")
    trace(warren_broker, False)
    client.publish(b"after", "q")
    client.delivery(b"after")
    assert watcher.bodies(traces) == [b"while"]


def test_traces_are_not_traced_and_other_virtual_hosts_neither(
    warren_broker: Broker, connect: Callable[..., Any], tracer: RawChannel, client: RawChannel
) -> None:
    warren_broker.add_vhost("v")
    elsewhere = connect(warren_broker.url_for("v")).channel()
    elsewhere.publish(b"elsewhere", elsewhere.own_queue())
    elsewhere.ping()
    client.publish(b"here", "nowhere")
    assert traced(tracer, "publish.").body == b"here"
    tracer.expect_silence()


def test_it_keeps_no_publisher_from_its_confirms(tracer: RawChannel, client: RawChannel) -> None:
    client.call("confirm.select")
    queue = client.own_queue()
    for number in range(50):
        client.publish(b"%d" % number, queue)
    assert client.confirms(50) == [("ack", number) for number in range(1, 51)]
