"""Publisher confirms: reference 6."""

from typing import Any

import pytest

from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel
from warren.compat_tests.raw_connection import Surprise

AREA = "Publisher confirms"


@pytest.fixture
def confirming(ch: RawChannel) -> RawChannel:
    """A channel on which every publish is confirmed."""
    ch.call("confirm.select")
    return ch


def acks(*numbers: int) -> list[tuple[str, int]]:
    return [("ack", number) for number in numbers]


def test_select_may_be_said_twice(ch: RawChannel) -> None:
    for _ in range(2):
        ch.call("confirm.select")
    ch.publish(b"m", ch.own_queue())
    assert ch.confirms(1) == acks(1)


def test_select_without_wait_is_silent(ch: RawChannel) -> None:
    ch.send("confirm.select", nowait=True)
    ch.publish(b"m", "nowhere")
    assert ch.confirms(1) == acks(1)


def test_numbers_start_with_the_first_publish_after_select(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.publish(b"before", queue)
    ch.call("confirm.select")
    ch.publish(b"after", queue)
    assert ch.confirms(1) == acks(1)


def test_repeated_select_does_not_start_the_numbers_anew(confirming: RawChannel) -> None:
    confirming.publish(b"1", "nowhere")
    assert confirming.confirms(1) == acks(1)
    confirming.call("confirm.select")
    confirming.publish(b"2", "nowhere")
    assert confirming.confirms(1) == acks(2)


def test_without_select_nothing_is_confirmed(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.publish(b"m", queue)
    ch.expect_silence(queue)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("mode", [1, 2])
def test_every_message_is_confirmed_once(
    confirming: RawChannel, names: Names, durable: bool, mode: int
) -> None:
    queue = names.new()
    confirming.declare(queue, durable=durable)
    for number in range(50):
        confirming.publish(b"%d" % number, queue, delivery_mode=mode)
    assert sorted(confirming.confirms(50)) == acks(*range(1, 51))
    confirming.expect_silence(queue)
    assert confirming.ready(queue) == 50


def test_lone_confirm_is_not_multiple(confirming: RawChannel) -> None:
    confirming.publish(b"m", confirming.own_queue())
    assert confirming.expect("basic.ack").fields == {"delivery_tag": 1, "multiple": False}


def test_unroutable_message_is_confirmed(confirming: RawChannel) -> None:
    confirming.publish(b"m", "nowhere")
    confirming.publish(b"m", "nowhere", "amq.fanout")
    assert sorted(confirming.confirms(2)) == acks(1, 2)


def test_publishes_before_one_that_closes_the_channel_are_confirmed(confirming: RawChannel) -> None:
    for exchange in ("", "", "cf-nothing"):
        confirming.publish(b"m", "nowhere", exchange)
    settled = 0
    while settled < 2:
        settled = confirming.expect("basic.ack")["delivery_tag"]
    assert settled == 2
    assert confirming.expect("channel.close")["reply_code"] == 404


def test_return_comes_before_the_confirm(confirming: RawChannel) -> None:
    for number in range(1, 11):
        confirming.publish(b"%d" % number, "nowhere", mandatory=True)
    returned: list[int] = []
    settled = 0
    while settled < 10:
        method = confirming.next_method()
        if method.name == "basic.return":
            returned.append(int(method.body))
        else:
            assert method.name == "basic.ack"
            settled = method["delivery_tag"] if method["multiple"] else settled + 1
            assert method["delivery_tag"] in returned
    assert returned == list(range(1, 11))


def test_message_for_several_queues_is_confirmed_once(confirming: RawChannel, names: Names) -> None:
    durable, transient, exchange = names.new(), confirming.own_queue(), names.new()
    confirming.declare(durable, durable=True)
    confirming.declare_exchange(exchange, "fanout")
    confirming.bind(durable, exchange)
    confirming.bind(transient, exchange)
    confirming.publish(b"m", "", exchange, delivery_mode=2)
    assert confirming.confirms(1) == acks(1)
    confirming.expect_silence(durable)


def test_message_consumed_without_ack_is_confirmed(confirming: RawChannel, names: Names) -> None:
    queue = names.new()
    confirming.declare(queue, durable=True)
    other = confirming.client.channel()
    other.consume(queue, no_ack=True)
    confirming.publish(b"m", queue, delivery_mode=2)
    other.delivery(b"m")
    assert confirming.confirms(1) == acks(1)


def test_message_that_expires_at_once_is_confirmed(confirming: RawChannel) -> None:
    confirming.publish(b"m", confirming.own_queue(x_message_ttl=0))
    assert confirming.confirms(1) == acks(1)


def test_messages_dropped_by_a_length_limit_are_confirmed(confirming: RawChannel) -> None:
    queue = confirming.own_queue(x_max_length=1)
    for _ in range(10):
        confirming.publish(b"m", queue)
    assert sorted(confirming.confirms(10)) == acks(*range(1, 11))


def test_message_is_in_the_queue_when_it_is_confirmed(confirming: RawChannel, names: Names) -> None:
    queue = names.new()
    confirming.declare(queue, durable=True)
    other = confirming.client.channel()
    for number in range(1, 11):
        confirming.publish(b"m", queue, delivery_mode=2)
        assert confirming.confirms(1) == acks(number)
        assert other.ready(queue) == number


def test_reject_in_one_of_several_queues_is_a_nack(confirming: RawChannel, names: Names) -> None:
    exchange = names.new()
    full = confirming.own_queue(x_max_length=1, x_overflow="reject-publish")
    free = confirming.own_queue()
    confirming.publish(b"m", full)
    assert confirming.confirms(1) == acks(1)
    confirming.declare_exchange(exchange, "fanout")
    for queue in (full, free):
        confirming.bind(queue, exchange)
    confirming.publish(b"m", "", exchange)
    assert confirming.confirms(1) == [("nack", 2)]
    assert (confirming.ready(full), confirming.ready(free)) == (1, 1)


def test_nack_says_requeue(confirming: RawChannel) -> None:
    """The bit means nothing to a publisher; it is set since that is the field's default."""
    queue = confirming.own_queue(x_max_length=0, x_overflow="reject-publish")
    confirming.publish(b"m", queue)
    nack = confirming.expect("basic.nack")
    assert (nack["delivery_tag"], nack["requeue"]) == (1, True)


def test_publish_that_closes_the_channel_is_not_confirmed(
    confirming: RawChannel, names: Names, vhost: str
) -> None:
    exchange = names.new()
    confirming.publish(b"m", "key", exchange)
    try:
        confirming.expect_close(404, f"no exchange '{exchange}' in vhost '{vhost}'")
    except Surprise as surprise:
        raise AssertionError("the broker confirmed a publish it refused") from surprise


def test_confirms_belong_to_their_channel(confirming: RawChannel) -> None:
    queue = confirming.own_queue()
    other = confirming.client.channel()
    other.publish(b"m", queue)
    other.expect_silence(queue)
    confirming.publish(b"m", queue)
    assert confirming.confirms(1) == acks(1)


def test_ordinary_client_waits_for_confirms(channel: Any, names: Names) -> None:
    queue = names.new()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for _ in range(5):
        channel.basic_publish("", queue, b"m", mandatory=True)
    assert channel.queue_declare(queue, passive=True).method.message_count == 5
