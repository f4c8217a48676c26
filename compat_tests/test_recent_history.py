"""Exchanges of type x-recent-history, which RabbitMQ has as a plugin."""

from typing import Any

import pytest

from warren.compat_tests.field_table import Typed
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "Exchanges"


def history(ch: RawChannel, names: Names, **arguments: Any) -> str:
    """An exchange that is deleted with its last binding; skips the test if the broker has no such
    type."""
    exchange = names.new()
    table = {f"x-recent-history-{key}": value for key, value in arguments.items()}
    fields = {"exchange": exchange, "type": "x-recent-history", "auto_delete": True}
    ch.send("exchange.declare", arguments=table, **fields)
    method = ch.client.next_either(ch.number)
    if method.name == "connection.close":
        assert method["reply_code"] == 503, method
        pytest.skip("the broker has no exchange type x-recent-history")
    assert method.name == "exchange.declare-ok", method
    return exchange


def publish_all(ch: RawChannel, exchange: str, *bodies: bytes) -> None:
    for body in bodies:
        ch.publish(body, "key", exchange)
    ch.ping()


def newly_bound(ch: RawChannel, exchange: str, key: str = "") -> list[bytes]:
    """Bind a new queue; returns the bodies in it."""
    queue = ch.own_queue()
    ch.bind(queue, exchange, key)
    return ch.bodies(queue)


def test_a_new_queue_gets_the_last_messages_in_order(ch: RawChannel, names: Names) -> None:
    exchange = history(ch, names, length=3)
    publish_all(ch, exchange, b"1", b"2", b"3", b"4", b"5")
    assert newly_bound(ch, exchange) == [b"3", b"4", b"5"]
    assert newly_bound(ch, exchange, "other") == [b"3", b"4", b"5"]


def test_twenty_are_kept_unless_said_otherwise(ch: RawChannel, names: Names) -> None:
    exchange = history(ch, names)
    bodies = [b"%d" % number for number in range(25)]
    publish_all(ch, exchange, *bodies)
    assert newly_bound(ch, exchange) == bodies[5:]


def test_it_comes_as_it_was_published(ch: RawChannel, names: Names) -> None:
    exchange = history(ch, names)
    ch.publish(b"m", "its key", exchange, headers={"a": 1}, correlation_id="c")
    ch.ping()
    queue = ch.own_queue()
    ch.bind(queue, exchange, "binding key")
    message = ch.got(queue, b"m")
    assert (message["exchange"], message["routing_key"]) == (exchange, "its key")
    assert not message["redelivered"]


def test_bound_queues_get_every_message_once(ch: RawChannel, names: Names) -> None:
    exchange, queue = history(ch, names), ch.own_queue()
    ch.bind(queue, exchange, "a")
    ch.bind(queue, exchange, "b")
    publish_all(ch, exchange, b"1", b"2")
    assert ch.bodies(queue) == [b"1", b"2"]


def test_only_a_new_binding_brings_the_history(ch: RawChannel, names: Names) -> None:
    exchange, queue = history(ch, names), ch.own_queue()
    publish_all(ch, exchange, b"m")
    ch.bind(queue, exchange, "a")
    ch.bind(queue, exchange, "a")
    assert ch.bodies(queue) == [b"m"]
    ch.bind(queue, exchange, "b")
    assert ch.bodies(queue) == [b"m"]


NOT_TRUE = [False, "true", 1]


@pytest.mark.parametrize("value", [True, *NOT_TRUE])
def test_no_store_keeps_a_message_out(ch: RawChannel, names: Names, value: object) -> None:
    exchange, queue = history(ch, names), ch.own_queue()
    ch.bind(queue, exchange)
    ch.publish(b"m", "key", exchange, headers={"x-recent-history-no-store": value})
    ch.ping()
    assert ch.bodies(queue) == [b"m"]
    assert newly_bound(ch, exchange) == ([] if value is True else [b"m"])


def test_what_only_the_history_takes_is_returned(ch: RawChannel, names: Names) -> None:
    exchange = history(ch, names)
    ch.publish(b"m", "key", exchange, mandatory=True)
    assert ch.expect("basic.return")["reply_code"] == 312
    assert newly_bound(ch, exchange) == [b"m"]


def test_what_comes_through_another_exchange_is_kept(ch: RawChannel, names: Names) -> None:
    exchange, source, main = history(ch, names), names.new(), names.new()
    ch.declare_exchange(source, "fanout", auto_delete=True)
    ch.bind_exchange(exchange, source)
    ch.declare_exchange(main, "direct", arguments={"alternate-exchange": exchange})
    ch.publish(b"bound", "key", source)
    ch.publish(b"alternate", "key", main)
    ch.ping()
    assert newly_bound(ch, exchange) == [b"bound", b"alternate"]
    ch.call("exchange.delete", exchange=main)


def test_dead_letters_are_kept(ch: RawChannel, names: Names) -> None:
    exchange = history(ch, names)
    queue = ch.own_queue(x_dead_letter_exchange=exchange)
    follower = ch.own_queue()
    ch.bind(follower, exchange)
    ch.publish(b"m", queue)
    ch.reject(ch.got(queue, b"m", no_ack=False)["delivery_tag"], requeue=False)
    ch.becomes_ready(follower, 1)
    assert newly_bound(ch, exchange) == [b"m"]


def test_another_exchange_that_is_bound_gets_it(ch: RawChannel, names: Names) -> None:
    exchange, destination, queue = history(ch, names), names.new(), ch.own_queue()
    ch.declare_exchange(destination, "fanout", auto_delete=True)
    ch.bind(queue, destination)
    publish_all(ch, exchange, b"1", b"2")
    ch.bind_exchange(destination, exchange)
    # RabbitMQ sends the newest first.
    assert sorted(ch.bodies(queue)) == [b"1", b"2"]


def test_a_committed_publish_is_kept(ch: RawChannel, names: Names) -> None:
    exchange = history(ch, names)
    tx = ch.client.channel()
    tx.call("tx.select")
    tx.publish(b"m", "key", exchange)
    tx.call("tx.commit")
    assert newly_bound(ch, exchange) == [b"m"]


def test_a_history_ends_with_its_exchange(ch: RawChannel, names: Names) -> None:
    exchange = history(ch, names)
    publish_all(ch, exchange, b"m")
    ch.call("exchange.delete", exchange=exchange)
    ch.declare_exchange(exchange, "x-recent-history", auto_delete=True)
    assert newly_bound(ch, exchange) == []


LENGTHS = [
    (0, "0"),
    (-1, "-1"),
    ("5", '<<"5">>'),
    (True, "true"),
    (Typed("V", None), "undefined"),
    ({"a": 1}, None),
]


@pytest.mark.parametrize(("value", "shown"), LENGTHS)
def test_a_length_must_be_positive(
    ch: RawChannel, names: Names, value: Any, shown: str | None
) -> None:
    history(ch, names)
    fields = {"exchange": names.new(), "type": "x-recent-history"}
    ch.send("exchange.declare", arguments={"x-recent-history-length": value}, **fields)
    close = ch.expect("channel.close")
    assert close["reply_code"] == 406
    text: str = close["reply_text"]
    assert text.startswith("PRECONDITION_FAILED - Invalid argument ")
    assert text.endswith(", 'x-recent-history-length' must be a positive integer")
    if shown is not None:
        assert text.split(", ")[0].endswith(f" {shown}")


def test_another_length_is_no_contradiction(ch: RawChannel, names: Names) -> None:
    exchange = history(ch, names, length=1)
    again = {"x-recent-history-length": 2}
    ch.declare_exchange(exchange, "x-recent-history", auto_delete=True, arguments=again)
    publish_all(ch, exchange, b"1", b"2")
    assert newly_bound(ch, exchange) == [b"2"]
