"""Quorum queues: consumers, delivery counts, order of what comes back (reference 3 and 5)."""

from typing import Any

import pytest

from warren.compat_tests.factory import Raw
from warren.compat_tests.field_table import Typed
from warren.compat_tests.names import Names
from warren.compat_tests.quorum import contents, fill, quorum_queue, take
from warren.compat_tests.raw_client import RawChannel, RawClient

AREA = "Quorum queues: consuming"

COUNT = "x-delivery-count"


@pytest.fixture
def other(ch: RawChannel) -> RawChannel:
    return ch.client.channel()


# Consumers


def test_global_qos_and_consume(
    client: RawClient, ch: RawChannel, names: Names, vhost: str
) -> None:
    queue = quorum_queue(ch, names)
    ch.call("basic.qos", prefetch_count=5, **{"global": True})
    ch.send("basic.consume", queue=queue)
    client.expect_close(540, f"queue '{queue}' in vhost '{vhost}' does not support global qos")


def test_global_qos_elsewhere(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    ch.call("basic.qos", prefetch_count=0, **{"global": True})
    ch.consume(queue)
    ch.call("basic.qos", prefetch_count=5, **{"global": True})
    ch.publish(b"m", queue)
    ch.delivery(b"m")
    assert ch.get(queue) is None


def test_exclusive_means_nothing(ch: RawChannel, other: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    ch.consume(queue, exclusive=True)
    other.consume(queue, exclusive=True)
    assert ch.consumers(queue) == 2
    fill_through(ch, queue, 2)
    assert {ch.delivery().body, other.delivery().body} == {b"0", b"1"}


def fill_through(ch: RawChannel, queue: str, count: int) -> None:
    for number in range(count):
        ch.publish(b"%d" % number, queue)


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ({"x-cancel-on-ha-failover": True}, " of queue type rabbit_quorum_queue"),
        ({"x-stream-offset": "first"}, " of queue type rabbit_quorum_queue"),
        ({"x-priority": "high"}, ': "expected integer, got longstr"'),
    ],
    ids=str,
)
def test_consumer_argument(
    ch: RawChannel, names: Names, vhost: str, arguments: dict[str, Any], detail: str
) -> None:
    queue = quorum_queue(ch, names)
    (key,) = arguments
    told = f"invalid arg '{key}' for queue '{queue}' in vhost '{vhost}'{detail}"
    ch.refused(406, told, "basic.consume", queue=queue, arguments=arguments)


def test_unknown_consumer_argument(ch: RawChannel, names: Names) -> None:
    ch.consume(quorum_queue(ch, names), arguments={"x-foo": 1})


def test_consumer_of_higher_priority_comes_first(
    ch: RawChannel, other: RawChannel, names: Names
) -> None:
    queue = quorum_queue(ch, names)
    ch.consume(queue)
    other.call("basic.qos", prefetch_count=1)
    other.consume(queue, arguments={"x-priority": 5})
    fill_through(ch, queue, 2)
    other.delivery(b"0")
    ch.delivery(b"1")


def test_prefetch_bounds_a_consumer(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    fill(ch, queue, 3)
    ch.call("basic.qos", prefetch_count=2)
    ch.consume(queue)
    first = ch.delivery(b"0")
    ch.delivery(b"1")
    ch.expect_silence(queue)
    ch.ack(first["delivery_tag"])
    ch.delivery(b"2")


def test_no_prefetch_means_two_thousand(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    fill(ch, queue, 2010)
    ch.consume(queue)
    for _ in range(2000):
        last = ch.delivery()
    ch.expect_silence(queue)
    assert ch.ready(queue) == 10
    ch.ack(last["delivery_tag"], multiple=True)
    for _ in range(10):
        ch.delivery()


def test_cancelled_consumer_keeps_what_it_has(
    ch: RawChannel, other: RawChannel, names: Names
) -> None:
    queue = quorum_queue(ch, names)
    fill(ch, queue, 2)
    other.consume(queue, "c")
    first, second = other.delivery(b"0"), other.delivery(b"1")
    other.call("basic.cancel", consumer_tag="c")
    assert (ch.ready(queue), ch.consumers(queue)) == (0, 1)
    other.nack(second["delivery_tag"])
    ch.becomes_ready(queue, 1)
    other.ack(first["delivery_tag"])
    becomes(ch, queue, 0)
    assert ch.got(queue).headers[COUNT] == 1


def becomes(ch: RawChannel, queue: str, consumers: int) -> None:
    for _ in range(500):
        if ch.consumers(queue) == consumers:
            return
    assert ch.consumers(queue) == consumers


def test_delivery_mode_and_priority_come_as_they_were_sent(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    ch.publish(b"a", queue)
    ch.publish(b"b", queue, delivery_mode=1, priority=9)
    ch.publish(b"c", queue, delivery_mode=2)
    ch.becomes_ready(queue, 3)
    messages = [ch.got(queue) for _ in range(3)]
    assert [message.body for message in messages] == [b"a", b"b", b"c"]
    assert [message.properties.get("delivery_mode") for message in messages] == [None, 1, 2]
    assert messages[1].properties["priority"] == 9


def test_get_says_how_many_are_left(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    fill(ch, queue, 3)
    assert ch.got(queue)["message_count"] == 2


def test_publishes_are_confirmed(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    ch.call("confirm.select")
    fill_through(ch, queue, 3)
    assert sorted(ch.confirms(3)) == [("ack", 1), ("ack", 2), ("ack", 3)]


def test_transaction(ch: RawChannel, other: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    other.call("tx.select")
    other.publish(b"m", queue)
    other.ping()
    assert ch.ready(queue) == 0
    other.call("tx.commit")
    ch.becomes_ready(queue, 1)


# Delivery counts


def test_first_delivery_has_no_count(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    ch.consume(queue)
    ch.publish(b"m", queue)
    first = ch.delivery(b"m")
    assert (COUNT in first.headers, first["redelivered"]) == (False, False)
    for count in (1, 2):
        ch.nack(first["delivery_tag"])
        first = ch.delivery(b"m")
        assert first.typed_headers[COUNT] == Typed("l", count)
        assert first["redelivered"] is True


@pytest.mark.parametrize("no_ack", [True, False])
def test_first_get_has_a_count_of_nothing(ch: RawChannel, names: Names, no_ack: bool) -> None:
    queue = quorum_queue(ch, names)
    fill(ch, queue, 1)
    message = ch.got(queue, no_ack=no_ack)
    assert message.typed_headers == {COUNT: Typed("l", 0)}
    assert message["redelivered"] is False


def test_count_joins_the_headers_there_are(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    properties: dict[str, Any] = {"content_type": "text/plain", "message_id": "7"}
    ch.publish(b"m", queue, headers={"a": Typed("s", 5)}, **properties)
    ch.becomes_ready(queue, 1)
    message = ch.got(queue)
    assert message.typed_headers == {"a": Typed("s", 5), COUNT: Typed("l", 0)}
    assert {key: message.properties[key] for key in properties} == properties


def test_count_of_the_publisher_stays_until_the_queue_has_its_own(
    ch: RawChannel, names: Names
) -> None:
    queue = quorum_queue(ch, names)
    ch.consume(queue)
    ch.publish(b"m", queue, headers={COUNT: 77})
    first = ch.delivery(b"m")
    assert first.headers[COUNT] == 77
    ch.nack(first["delivery_tag"])
    assert ch.delivery(b"m").headers[COUNT] == 1


@pytest.mark.parametrize("how", ["nack", "reject", "recover", "channel", "connection"])
def test_what_counts(raw: Raw, ch: RawChannel, names: Names, how: str) -> None:
    queue = quorum_queue(ch, names)
    fill(ch, queue, 1)
    taker = raw().channel()
    (tag,) = take(taker, queue, 1)
    if how == "nack":
        taker.nack(tag)
    elif how == "reject":
        taker.reject(tag)
    elif how == "recover":
        taker.call("basic.recover", requeue=True)
    elif how == "channel":
        taker.close()
    else:
        taker.client.close()
    ch.becomes_ready(queue, 1)
    message = ch.got(queue)
    assert (message.headers[COUNT], message["redelivered"]) == (1, True)


def test_consumer_without_acknowledgement_sees_counts(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    fill(ch, queue, 2)
    (tag,) = take(ch, queue, 1)
    ch.nack(tag)
    ch.becomes_ready(queue, 2)
    ch.consume(queue, no_ack=True)
    told = {}
    for _ in range(2):
        message = ch.delivery()
        told[message.body] = message.headers.get(COUNT)
    assert told == {b"0": 1, b"1": None}


@pytest.mark.parametrize(("limit", "deliveries"), [(0, 1), (1, 2), (3, 4), (-1, 1)])
def test_delivery_limit(ch: RawChannel, names: Names, limit: int, deliveries: int) -> None:
    dead = ch.own_queue()
    queue = quorum_queue(
        ch,
        names,
        x_delivery_limit=limit,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=dead,
    )
    ch.publish(b"m", queue, headers={COUNT: 77})
    ch.becomes_ready(queue, 1)
    for count in range(deliveries):
        ch.becomes_ready(queue, 1)
        message = ch.got(queue, b"m", no_ack=False)
        assert message.headers[COUNT] == count
        ch.nack(message["delivery_tag"])
    (letter,) = ch.arriving(dead, 1)
    assert letter.headers["x-death"][0]["reason"] == "delivery_limit"
    assert letter.headers["x-first-death-reason"] == "delivery_limit"
    assert letter.headers[COUNT] == 77
    assert ch.ready(queue) == 0


def test_delivery_limit_that_is_a_text_is_never_reached(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names, x_delivery_limit="few")
    fill(ch, queue, 1)
    for _ in range(30):
        (tag,) = take(ch, queue, 1)
        ch.nack(tag)
        ch.becomes_ready(queue, 1)


def test_consumer_gets_what_it_gave_back_until_the_limit(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names, x_delivery_limit=2)
    ch.consume(queue)
    ch.publish(b"m", queue)
    for _ in range(3):
        ch.nack(ch.delivery(b"m")["delivery_tag"])
    ch.expect_silence(queue)
    assert ch.ready(queue) == 0


# Where a returned message goes


@pytest.mark.parametrize(
    ("limit", "wanted"), [({}, "4562"), ({"x_delivery_limit": 5}, "2456")], ids=["none", "limit"]
)
def test_one_is_given_back(
    ch: RawChannel, names: Names, limit: dict[str, int], wanted: str
) -> None:
    queue = quorum_queue(ch, names, **limit)
    fill(ch, queue, 7)
    assert ch.got(queue).body == b"0"
    tags = take(ch, queue, 3)
    ch.nack(tags[1])
    assert b"".join(contents(ch, queue, 4)).decode() == wanted


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [({}, "345210"), ({"x_delivery_limit": 5}, "210345")],
    ids=["none", "limit"],
)
def test_order_is_that_of_return(
    ch: RawChannel, names: Names, limit: dict[str, int], wanted: str
) -> None:
    queue = quorum_queue(ch, names, **limit)
    fill(ch, queue, 6)
    tags = take(ch, queue, 3)
    for tag in reversed(tags):
        ch.reject(tag)
    assert b"".join(contents(ch, queue, 6)).decode() == wanted


@pytest.mark.parametrize("verdict", ["nack", "recover"])
@pytest.mark.parametrize(
    ("limit", "wanted"),
    [({}, "345012"), ({"x_delivery_limit": 5}, "012345")],
    ids=["none", "limit"],
)
def test_many_are_given_back_at_once(
    ch: RawChannel, names: Names, verdict: str, limit: dict[str, int], wanted: str
) -> None:
    queue = quorum_queue(ch, names, **limit)
    fill(ch, queue, 6)
    tags = take(ch, queue, 3)
    if verdict == "nack":
        ch.nack(tags[-1], multiple=True)
    else:
        ch.call("basic.recover", requeue=True)
    assert b"".join(contents(ch, queue, 6)).decode() == wanted


@pytest.mark.parametrize("limit", [{}, {"x_delivery_limit": 5}], ids=["none", "limit"])
def test_what_a_channel_leaves_goes_to_the_head(
    ch: RawChannel, other: RawChannel, names: Names, limit: dict[str, int]
) -> None:
    queue = quorum_queue(ch, names, **limit)
    fill(ch, queue, 6)
    take(other, queue, 3)
    other.close()
    assert b"".join(contents(ch, queue, 6)).decode() == "012345"


def test_what_is_published_goes_behind_what_was_given_back(ch: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names)
    fill(ch, queue, 3)
    (tag,) = take(ch, queue, 1)
    ch.nack(tag)
    ch.becomes_ready(queue, 3)
    ch.publish(b"3", queue)
    assert b"".join(contents(ch, queue, 4)).decode() == "1203"


# Single active consumer


def test_get_with_single_active_consumer(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = quorum_queue(ch, names, x_single_active_consumer=True)
    told = (
        f"cannot obtain access to locked queue '{queue}' in vhost '{vhost}'. basic.get operations "
        "are not supported by quorum queues with single active consumer"
    )
    ch.refused(405, told, "basic.get", queue=queue)


def test_first_subscriber_is_active(ch: RawChannel, other: RawChannel, names: Names) -> None:
    queue = quorum_queue(ch, names, x_single_active_consumer=True)
    ch.consume(queue)
    other.consume(queue, arguments={"x-priority": 10})
    fill_through(ch, queue, 2)
    ch.delivery(b"0")
    ch.delivery(b"1")
    other.expect_silence(queue)


def test_next_subscriber_is_active_after_a_cancel(
    ch: RawChannel, other: RawChannel, names: Names
) -> None:
    queue = quorum_queue(ch, names, x_single_active_consumer=True)
    third = ch.client.channel()
    ch.consume(queue, "first")
    other.consume(queue, "second")
    third.consume(queue, "third", arguments={"x-priority": 10})
    ch.publish(b"0", queue)
    first = ch.delivery(b"0")
    ch.call("basic.cancel", consumer_tag="first")
    ch.publish(b"1", queue)
    other.delivery(b"1")
    ch.nack(first["delivery_tag"])
    assert other.delivery(b"0").headers[COUNT] == 1
    third.expect_silence(queue)


def test_who_declares_is_told_of_the_active_consumer(
    ch: RawChannel, other: RawChannel, names: Names
) -> None:
    queue = quorum_queue(ch, names, x_single_active_consumer=True)

    def count() -> object:
        return ch.call("queue.declare", queue=queue, passive=True)["consumer_count"]

    ch.consume(queue, "first")
    other.consume(queue, "second")
    assert count() == 1
    ch.publish(b"0", queue)
    message = ch.delivery(b"0")
    ch.call("basic.cancel", consumer_tag="first")
    # The cancelled consumer counts until its message is settled.
    assert count() == 2
    ch.ack(message["delivery_tag"])
    other.call("basic.cancel", consumer_tag="second")
    assert count() == 0


def test_what_an_active_consumer_leaves_goes_to_the_next(
    ch: RawChannel, other: RawChannel, names: Names
) -> None:
    queue = quorum_queue(ch, names, x_single_active_consumer=True)
    other.consume(queue)
    third = ch.client.channel()
    third.consume(queue)
    fill_through(ch, queue, 2)
    other.delivery(b"0")
    other.delivery(b"1")
    other.close()
    messages = [third.delivery() for _ in range(2)]
    assert [(message.body, message.headers[COUNT]) for message in messages] == [
        (b"0", 1),
        (b"1", 1),
    ]
