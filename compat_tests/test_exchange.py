"""Declaring and deleting exchanges: reference 3 and the exchange rows of 2.1 and 2.2."""

import pytest

from warren.compat_tests.field_table import Typed
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "Exchanges"

PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}


@pytest.mark.parametrize("exchange", [*PREDECLARED, "amq.rabbitmq.trace"])
def test_predeclared_exchange_exists(ch: RawChannel, exchange: str) -> None:
    assert ch.exchange_exists(exchange)


@pytest.mark.parametrize("exchange", PREDECLARED)
def test_predeclared_exchange_may_be_declared_again_as_it_is(ch: RawChannel, exchange: str) -> None:
    ch.declare_exchange(exchange, PREDECLARED[exchange], durable=True)


def test_trace_exchange_is_an_internal_topic_exchange(ch: RawChannel, vhost: str) -> None:
    ch.declare_exchange("amq.rabbitmq.trace", "topic", durable=True, internal=True)
    ch.publish(b"m", "k", "amq.rabbitmq.trace")
    ch.expect_close(
        403,
        f"cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '{vhost}'",
        (60, 40),
    )


@pytest.mark.parametrize("type", ["direct", "fanout", "topic", "headers"])
@pytest.mark.parametrize("durable", [False, True])
def test_exchange_may_be_declared_twice_alike(
    ch: RawChannel, names: Names, type: str, durable: bool
) -> None:
    exchange = names.new()
    for _ in range(2):
        ch.declare_exchange(exchange, type, durable=durable)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"type": "fanout"}, "'type' for {}: received 'fanout' but current is 'direct'"),
        ({"durable": True}, "'durable' for {}: received 'true' but current is 'false'"),
        ({"auto_delete": True}, "'auto_delete' for {}: received 'true' but current is 'false'"),
        ({"internal": True}, "'internal' for {}: received 'true' but current is 'false'"),
        (
            {"type": "topic", "durable": True, "auto_delete": True, "internal": True},
            "'type' for {}: received 'topic' but current is 'direct'",
        ),
        (
            {"durable": True, "auto_delete": True},
            "'durable' for {}: received 'true' but current is 'false'",
        ),
        (
            {"auto_delete": True, "internal": True},
            "'auto_delete' for {}: received 'true' but current is 'false'",
        ),
    ],
    ids=[
        "type",
        "durable",
        "auto-delete",
        "internal",
        "type first",
        "durable first",
        "then auto-delete",
    ],
)
def test_declaring_differently_is_refused(
    ch: RawChannel, names: Names, vhost: str, change: dict[str, object], text: str
) -> None:
    exchange = names.new()
    ch.declare_exchange(exchange)
    ch.refused(
        406,
        "inequivalent arg " + text.format(f"exchange '{exchange}' in vhost '{vhost}'"),
        "exchange.declare",
        **{"exchange": exchange, "type": "direct", **change},
    )


def test_alternate_exchange_is_compared(ch: RawChannel, names: Names, vhost: str) -> None:
    exchange = names.new()
    ch.declare_exchange(exchange, arguments={"alternate-exchange": "one"})
    where = f"'alternate-exchange' for exchange '{exchange}' in vhost '{vhost}'"
    ch.refused(
        406,
        f"inequivalent arg {where}: received 'two' but current is 'one'",
        "exchange.declare",
        exchange=exchange,
        type="direct",
        arguments={"alternate-exchange": "two"},
    )
    ch.refused(
        406,
        f"inequivalent arg {where}: received none but current is the value 'one' of type 'longstr'",
        "exchange.declare",
        exchange=exchange,
        type="direct",
    )


def test_other_arguments_are_not_compared(ch: RawChannel, names: Names) -> None:
    exchange = names.new()
    ch.declare_exchange(exchange, arguments={"x-foo": 1})
    ch.declare_exchange(exchange, arguments={"x-foo": "two", "x-bar": True})
    ch.declare_exchange(exchange)


def test_alternate_exchange_must_be_a_name(ch: RawChannel, names: Names, vhost: str) -> None:
    exchange = names.new()
    ch.refused(
        406,
        f"invalid type 'short' for arg 'alternate-exchange' in exchange '{exchange}' "
        f"in vhost '{vhost}'",
        "exchange.declare",
        exchange=exchange,
        type="direct",
        arguments={"alternate-exchange": Typed("s", 5)},
    )


def test_alternate_exchange_need_not_exist(ch: RawChannel, names: Names) -> None:
    ch.declare_exchange(names.new(), arguments={"alternate-exchange": "no-such-exchange"})


def test_passive_declare_only_asks_for_existence(ch: RawChannel, names: Names) -> None:
    exchange = names.new()
    ch.declare_exchange(exchange)
    ch.declare_exchange(exchange, "topic", passive=True, durable=True, internal=True)
    ch.declare_exchange(exchange, "no-such-type", passive=True)


def test_passive_declare_of_a_missing_exchange_is_not_found(
    ch: RawChannel, names: Names, vhost: str
) -> None:
    exchange = names.new()
    ch.refused(
        404,
        f"no exchange '{exchange}' in vhost '{vhost}'",
        "exchange.declare",
        exchange=exchange,
        passive=True,
    )


def test_unknown_type_closes_the_connection(ch: RawChannel, names: Names) -> None:
    """RabbitMQ says `invalid` instead of `unknown` for words that are Erlang atoms to it."""
    kind = names.new()
    ch.send("exchange.declare", exchange=names.new(), type=kind)
    ch.client.expect_close(503, f"unknown exchange type '{kind}'", offender=(40, 10))


def test_reserved_prefix_is_refused_for_new_exchanges(ch: RawChannel) -> None:
    ch.refused(
        403,
        "exchange name 'amq.cf-none' contains reserved prefix 'amq.*'",
        "exchange.declare",
        exchange="amq.cf-none",
        type="direct",
    )


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("exchange.declare", {"type": "direct"}),
        ("exchange.declare", {"passive": True}),
        ("exchange.delete", {}),
        ("exchange.bind", {"destination": "", "source": "amq.direct"}),
        ("exchange.bind", {"destination": "amq.direct", "source": ""}),
        ("exchange.unbind", {"destination": "amq.direct", "source": ""}),
    ],
    ids=["declare", "declare passive", "delete", "bind to", "bind from", "unbind"],
)
def test_default_exchange_is_not_to_be_touched(
    ch: RawChannel, method: str, fields: dict[str, object]
) -> None:
    ch.refused(403, "operation not permitted on the default exchange", method, **fields)


@pytest.mark.parametrize("exchange", [*PREDECLARED, "amq.rabbitmq.trace"])
def test_system_exchanges_cannot_be_deleted(ch: RawChannel, vhost: str, exchange: str) -> None:
    ch.refused(
        403,
        f"deletion of system exchange '{exchange}' in vhost '{vhost}' not allowed",
        "exchange.delete",
        exchange=exchange,
    )


def test_deleting_a_missing_exchange_is_fine(ch: RawChannel, names: Names) -> None:
    ch.call("exchange.delete", exchange=names.new())


def test_deleted_exchange_is_gone(ch: RawChannel, names: Names) -> None:
    exchange = names.new()
    ch.declare_exchange(exchange)
    ch.call("exchange.delete", exchange=exchange)
    assert not ch.exchange_exists(exchange)


def test_if_unused_refuses_while_the_exchange_is_a_source(
    ch: RawChannel, names: Names, vhost: str
) -> None:
    exchange, queue = names.new(), ch.own_queue()
    ch.declare_exchange(exchange)
    ch.bind(queue, exchange, "k")
    ch.refused(
        406,
        f"exchange '{exchange}' in vhost '{vhost}' in use",
        "exchange.delete",
        exchange=exchange,
        if_unused=True,
    )
    ch.call("queue.unbind", queue=queue, exchange=exchange, routing_key="k")
    ch.call("exchange.delete", exchange=exchange, if_unused=True)


def test_if_unused_does_not_count_bindings_as_destination(ch: RawChannel, names: Names) -> None:
    exchange = names.new()
    ch.declare_exchange(exchange)
    ch.bind_exchange(exchange, "amq.fanout")
    ch.call("exchange.delete", exchange=exchange, if_unused=True)
    assert not ch.exchange_exists(exchange)


def test_deleting_an_exchange_removes_its_bindings(ch: RawChannel, names: Names) -> None:
    exchange, queue = names.new(), ch.own_queue()
    ch.declare_exchange(exchange, "fanout")
    ch.bind(queue, exchange)
    ch.call("exchange.delete", exchange=exchange)
    ch.declare_exchange(exchange, "fanout")
    ch.publish(b"m", "", exchange)
    ch.ping()
    assert ch.ready(queue) == 0


def test_auto_delete_exchange_goes_with_its_last_binding(ch: RawChannel, names: Names) -> None:
    exchange, queue = names.new(), ch.own_queue()
    ch.declare_exchange(exchange, auto_delete=True)
    ch.bind(queue, exchange, "1")
    ch.bind(queue, exchange, "2")
    ch.call("queue.unbind", queue=queue, exchange=exchange, routing_key="1")
    assert ch.exchange_exists(exchange)
    ch.call("queue.unbind", queue=queue, exchange=exchange, routing_key="2")
    assert not ch.exchange_exists(exchange)


def test_auto_delete_exchange_waits_for_its_first_binding(ch: RawChannel, names: Names) -> None:
    exchange = names.new()
    ch.declare_exchange(exchange, auto_delete=True)
    ch.bind_exchange(exchange, "amq.fanout")
    ch.call("exchange.unbind", destination=exchange, source="amq.fanout")
    assert ch.exchange_exists(exchange)


def test_auto_delete_exchange_goes_with_its_last_queue(ch: RawChannel, names: Names) -> None:
    exchange, queue = names.new(), ch.own_queue()
    ch.declare_exchange(exchange, auto_delete=True)
    ch.bind(queue, exchange)
    ch.call("queue.delete", queue=queue)
    assert not ch.exchange_exists(exchange)


def test_auto_delete_exchange_goes_with_the_last_exchange_bound_to_it(
    ch: RawChannel, names: Names
) -> None:
    source, destination = names.new(), names.new()
    ch.declare_exchange(source, auto_delete=True)
    ch.declare_exchange(destination)
    ch.bind_exchange(destination, source)
    ch.call("exchange.delete", exchange=destination)
    assert not ch.exchange_exists(source)


def test_auto_delete_exchanges_go_in_a_row(ch: RawChannel, names: Names) -> None:
    first, second, queue = names.new(), names.new(), ch.own_queue()
    for exchange in (first, second):
        ch.declare_exchange(exchange, auto_delete=True)
    ch.bind_exchange(second, first)
    ch.bind(queue, second)
    ch.call("queue.delete", queue=queue)
    assert not ch.exchange_exists(second)
    assert not ch.exchange_exists(first)


def test_internal_exchange_takes_no_publishes(ch: RawChannel, names: Names, vhost: str) -> None:
    exchange = names.new()
    ch.declare_exchange(exchange, internal=True)
    ch.publish(b"m", "", exchange)
    ch.expect_close(
        403, f"cannot publish to internal exchange '{exchange}' in vhost '{vhost}'", (60, 40)
    )


def test_internal_exchange_routes_for_other_exchanges(ch: RawChannel, names: Names) -> None:
    internal, outer, queue = names.new(), names.new(), ch.own_queue()
    ch.declare_exchange(internal, "fanout", internal=True)
    ch.declare_exchange(outer, "fanout")
    ch.bind_exchange(internal, outer)
    ch.bind(queue, internal)
    ch.publish(b"m", "", outer)
    ch.ping()
    ch.got(queue, b"m")


@pytest.mark.parametrize(
    "suffix",
    [" with spaces", "/$%&(){}", "-ünïcödé", "'quoted'"],
    ids=["space", "sign", "utf-8", "quote"],
)
def test_names_may_have_any_characters(ch: RawChannel, names: Names, suffix: str) -> None:
    exchange = names.new() + suffix
    ch.declare_exchange(exchange, "fanout", auto_delete=True)
    queue = ch.own_queue()
    ch.bind(queue, exchange)
    ch.publish(b"m", "", exchange)
    ch.ping()
    assert ch.got(queue)["exchange"] == exchange


def test_line_ends_are_stripped_from_names(ch: RawChannel, names: Names) -> None:
    exchange = names.new()
    ch.declare_exchange(exchange[:3] + "\r\n" + exchange[3:] + "\n")
    assert ch.exchange_exists(exchange)


def test_names_have_up_to_255_bytes(ch: RawChannel, names: Names) -> None:
    exchange = names.new().ljust(255, "x")
    ch.declare_exchange(exchange, "fanout", auto_delete=True)
    ch.bind(ch.own_queue(), exchange)
    assert ch.exchange_exists(exchange)
