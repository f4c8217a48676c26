"""Binding and unbinding queues and exchanges: reference 3."""

import pytest

from warren.compat_tests.factory import Raw
from warren.compat_tests.field_table import Typed
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "Bindings"


def test_binding_twice_alike_is_one_binding(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.bind(queue, "amq.direct", queue)
    ch.bind(queue, "amq.direct", queue)
    ch.publish(b"once", queue, "amq.direct")
    ch.ping()
    assert ch.bodies(queue) == [b"once"]
    ch.call("queue.unbind", queue=queue, exchange="amq.direct", routing_key=queue)
    ch.publish(b"never", queue, "amq.direct")
    ch.ping()
    assert ch.ready(queue) == 0


def test_two_matching_bindings_make_one_copy(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.bind(queue, "amq.topic", f"{queue}.#")
    ch.bind(queue, "amq.topic", f"{queue}.*")
    ch.publish(b"once", f"{queue}.x", "amq.topic")
    ch.ping()
    assert ch.bodies(queue) == [b"once"]


def test_bindings_with_different_arguments_are_two(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.bind(queue, "amq.direct", queue, {"a": 1})
    ch.bind(queue, "amq.direct", queue, {"a": 2})
    ch.publish(b"once", queue, "amq.direct")
    ch.ping()
    assert ch.bodies(queue) == [b"once"]
    ch.call(
        "queue.unbind", queue=queue, exchange="amq.direct", routing_key=queue, arguments={"a": 1}
    )
    ch.publish(b"again", queue, "amq.direct")
    ch.ping()
    assert ch.bodies(queue) == [b"again"]


def test_unbind_needs_the_arguments_of_the_binding(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.bind(queue, "amq.direct", queue, {"a": 1})
    ch.call("queue.unbind", queue=queue, exchange="amq.direct", routing_key=queue)
    ch.publish(b"still", queue, "amq.direct")
    ch.ping()
    assert ch.bodies(queue) == [b"still"]


@pytest.mark.parametrize("missing", ["binding", "queue", "exchange", "both"])
def test_unbinding_what_is_missing_is_fine(ch: RawChannel, missing: str) -> None:
    queue = "cf-no-such-queue" if missing in ("queue", "both") else ch.own_queue()
    exchange = "cf-no-such-exchange" if missing in ("exchange", "both") else "amq.direct"
    ch.call("queue.unbind", queue=queue, exchange=exchange, routing_key="k")


@pytest.mark.parametrize("missing", ["source", "destination"])
def test_unbinding_missing_exchanges_is_fine(ch: RawChannel, missing: str) -> None:
    pair = {"source": "amq.direct", "destination": "amq.topic", missing: "cf-no-such-exchange"}
    ch.call("exchange.unbind", **pair)


def test_binding_a_missing_queue_is_not_found(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = names.new()
    ch.refused(
        404,
        f"no queue '{queue}' in vhost '{vhost}'",
        "queue.bind",
        queue=queue,
        exchange="amq.direct",
    )


def test_missing_exchange_is_reported_before_a_missing_queue(
    ch: RawChannel, names: Names, vhost: str
) -> None:
    queue, exchange = names.new(), names.new()
    ch.refused(
        404,
        f"no exchange '{exchange}' in vhost '{vhost}'",
        "queue.bind",
        queue=queue,
        exchange=exchange,
    )


@pytest.mark.parametrize("missing", ["source", "destination"])
def test_binding_a_missing_exchange_is_not_found(
    ch: RawChannel, names: Names, vhost: str, missing: str
) -> None:
    name = names.new()
    pair = {"source": "amq.direct", "destination": "amq.topic", missing: name}
    ch.refused(404, f"no exchange '{name}' in vhost '{vhost}'", "exchange.bind", **pair)


def test_binding_to_the_default_exchange_is_refused(ch: RawChannel) -> None:
    queue = ch.own_queue()
    text = "operation not permitted on the default exchange"
    ch.refused(403, text, "queue.bind", queue=queue, exchange="", routing_key="k")
    ch.refused(403, text, "queue.unbind", queue=queue, exchange="", routing_key=queue)


def test_binding_an_exclusive_queue_of_another_connection_is_locked(
    raw: Raw, ch: RawChannel, names: Names, vhost: str
) -> None:
    queue = names.new()
    raw().channel().declare(queue, exclusive=True)
    ch.refused(
        405,
        f"cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. "
        "It could be originally declared on another connection or the exclusive property value "
        "does not match that of the original declaration.",
        "queue.bind",
        queue=queue,
        exchange="amq.direct",
    )


def test_unbinding_an_exclusive_queue_of_another_connection_is_locked_if_it_is_bound(
    raw: Raw, ch: RawChannel, names: Names, vhost: str
) -> None:
    queue = names.new()
    owner = raw().channel()
    owner.declare(queue, exclusive=True)
    ch.call("queue.unbind", queue=queue, exchange="amq.direct", routing_key="k")
    ch.call("queue.unbind", queue=queue, exchange="cf-no-such-exchange")
    owner.bind(queue, "amq.direct", "k")
    ch.call("queue.unbind", queue=queue, exchange="amq.direct", routing_key="another")
    ch.refused(
        405,
        f"cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. "
        "It could be originally declared on another connection or the exclusive property value "
        "does not match that of the original declaration.",
        "queue.unbind",
        queue=queue,
        exchange="amq.direct",
        routing_key="k",
    )


def test_bindings_go_with_their_queue(ch: RawChannel, names: Names) -> None:
    queue = names.new()
    ch.declare(queue)
    ch.bind(queue, "amq.direct", queue)
    ch.call("queue.delete", queue=queue)
    ch.declare(queue)
    ch.publish(b"m", queue, "amq.direct")
    ch.ping()
    assert ch.ready(queue) == 0


def test_exchange_bindings_go_with_the_destination(ch: RawChannel, names: Names) -> None:
    source, destination, queue = names.new(), names.new(), ch.own_queue()
    ch.declare_exchange(source, "fanout")
    for _ in range(2):
        # The second time the exchange is new and nothing points to it any more.
        ch.declare_exchange(destination, "fanout")
        ch.bind(queue, destination)
        ch.publish(b"m", "", source)
        ch.ping()
        assert ch.ready(queue) == 0
        ch.bind_exchange(destination, source)
        ch.publish(b"m", "", source)
        ch.ping()
        assert ch.bodies(queue) == [b"m"]
        ch.call("exchange.delete", exchange=destination)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            "some",
            'Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x',
        ),
        (Typed("b", 5), "Invalid x-match field type byte (value 5); expected longstr"),
    ],
    ids=["unknown value", "wrong type"],
)
def test_headers_binding_with_a_bad_x_match_is_refused(
    ch: RawChannel, value: object, text: str
) -> None:
    queue = ch.own_queue()
    ch.refused(
        406, text, "queue.bind", queue=queue, exchange="amq.headers", arguments={"x-match": value}
    )


def test_routing_keys_may_have_255_bytes(ch: RawChannel) -> None:
    queue, key = ch.own_queue(), "k" * 255
    ch.bind(queue, "amq.direct", key)
    ch.publish(b"m", key, "amq.direct")
    ch.ping()
    assert ch.got(queue)["routing_key"] == key


def test_short_strings_that_are_not_utf_8_are_a_frame_error(ch: RawChannel) -> None:
    ch.send("queue.bind", queue=ch.own_queue(), exchange="amq.direct", routing_key=b"\xff\xfe")
    ch.client.expect_close(501, "Malformed UTF-8 in shortstr", offender=(0, 0))


def test_routing_keys_keep_control_characters(ch: RawChannel) -> None:
    """Line ends are stripped from names of queues and exchanges, not from keys."""
    queue = ch.own_queue()
    key = f"{queue}\x00\t\r\n"
    ch.bind(queue, "amq.direct", key)
    ch.publish(b"m", key, "amq.direct")
    ch.ping()
    assert ch.got(queue)["routing_key"] == key
