"""Consumers: tags, exclusivity, priority, single active consumer, cancelling. Reference 5.2."""

import re

import pytest

from warren.compat_tests.factory import Raw
from warren.compat_tests.field_table import Typed
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "Consumers"


def feed(ch: RawChannel, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        ch.publish(body, queue)


def test_delivery_tells_where_the_message_comes_from(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.bind(queue, "amq.direct", queue)
    ch.consume(queue, "me")
    ch.publish(b"m", queue, "amq.direct")
    assert ch.delivery(b"m").fields == {
        "consumer_tag": "me",
        "delivery_tag": 1,
        "redelivered": False,
        "exchange": "amq.direct",
        "routing_key": queue,
    }


def test_broker_makes_up_a_tag(ch: RawChannel) -> None:
    tags = [ch.consume(ch.own_queue()) for _ in range(2)]
    assert tags[0] != tags[1]
    for tag in tags:
        assert re.fullmatch(r"amq\.ctag-[A-Za-z0-9_-]{22}", tag)


def test_tag_of_the_client_is_taken_as_it_is(ch: RawChannel) -> None:
    assert ch.consume(ch.own_queue(), "any täg ") == "any täg "


def test_tag_may_not_be_used_twice_on_a_channel(ch: RawChannel) -> None:
    ch.consume(ch.own_queue(), "me")
    ch.send("basic.consume", queue=ch.own_queue(), consumer_tag="me")
    ch.client.expect_close(530, "attempt to reuse consumer tag 'me'", offender=(60, 20))


def test_tags_of_different_channels_are_apart(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.consume(queue, "me")
    ch.client.channel().consume(queue, "me")


def test_tag_is_free_again_after_cancel(ch: RawChannel) -> None:
    queue = ch.own_queue()
    for _ in range(2):
        ch.consume(queue, "me")
        ch.call("basic.cancel", consumer_tag="me")


def test_consuming_a_missing_queue_is_not_found(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = names.new()
    ch.send("basic.consume", queue=queue)
    ch.expect_close(404, f"no queue '{queue}' in vhost '{vhost}'", offender=(60, 20))


def test_consume_ok_comes_before_the_first_delivery(ch: RawChannel) -> None:
    queue = ch.own_queue()
    feed(ch, queue, b"1", b"2")
    ch.consume(queue)
    ch.delivery(b"1")
    ch.delivery(b"2")


def test_consume_without_wait_just_delivers(ch: RawChannel) -> None:
    queue = ch.own_queue()
    feed(ch, queue, b"m")
    ch.send("basic.consume", queue=queue, consumer_tag="me", nowait=True)
    assert ch.delivery(b"m")["consumer_tag"] == "me"


def test_no_ack_messages_are_gone_when_delivered(ch: RawChannel, queue: str) -> None:
    feed(ch, queue, b"1", b"2")
    other = ch.client.channel()
    ch.ping()
    other.consume(queue, no_ack=True)
    other.delivery(b"1")
    other.delivery(b"2")
    other.close()
    assert ch.ready(queue) == 0


def test_consumers_take_turns(ch: RawChannel) -> None:
    queue = ch.own_queue()
    tags = [ch.consume(queue, tag) for tag in ("one", "two", "three")]
    feed(ch, queue, *[b"m"] * 9)
    taken = [ch.delivery()["consumer_tag"] for _ in range(9)]
    assert taken[:3] == taken[3:6] == taken[6:]
    assert sorted(taken[:3]) == sorted(tags)


def test_exclusive_consumer_keeps_others_out(ch: RawChannel, vhost: str) -> None:
    queue = ch.own_queue()
    other = ch.client.channel()
    tag = other.consume(queue, exclusive=True)
    text = f"queue '{queue}' in vhost '{vhost}' in exclusive use"
    ch.refused(403, text, "basic.consume", queue=queue)
    ch.refused(403, text, "basic.consume", queue=queue, exclusive=True)
    other.call("basic.cancel", consumer_tag=tag)
    ch.consume(queue)


def test_exclusive_consumer_does_not_keep_get_out(ch: RawChannel) -> None:
    queue = ch.own_queue()
    other = ch.client.channel()
    other.call("basic.qos", prefetch_count=1)
    other.consume(queue, exclusive=True)
    feed(ch, queue, b"1", b"2")
    other.delivery(b"1")
    ch.got(queue, b"2")


def test_exclusive_consumer_wants_to_be_the_first(ch: RawChannel, vhost: str) -> None:
    queue = ch.own_queue()
    ch.client.channel().consume(queue)
    ch.refused(
        403,
        f"queue '{queue}' in vhost '{vhost}' in exclusive use",
        "basic.consume",
        queue=queue,
        exclusive=True,
    )


def test_no_local_is_ignored(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.consume(queue, no_local=True)
    feed(ch, queue, b"mine")
    ch.delivery(b"mine")


def test_unknown_arguments_are_ignored(ch: RawChannel) -> None:
    ch.consume(ch.own_queue(), arguments={"x-foo": 1, "bar": "baz"})


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("x-priority", "5", '"expected integer, got longstr"'),
        ("x-priority", 1.5, '"expected integer, got double"'),
        ("x-cancel-on-ha-failover", Typed("b", 1), "{unacceptable_type,byte}"),
    ],
)
def test_bad_consumer_argument_is_refused(
    ch: RawChannel, vhost: str, key: str, value: object, reason: str
) -> None:
    queue = ch.own_queue()
    ch.refused(
        406,
        f"invalid arg '{key}' for queue '{queue}' in vhost '{vhost}': {reason}",
        "basic.consume",
        queue=queue,
        arguments={key: value},
    )


@pytest.mark.parametrize("offset", ["first", "nonsense", Typed("b", 1)], ids=str)
def test_offset_of_a_stream_is_refused(ch: RawChannel, vhost: str, offset: object) -> None:
    queue = ch.own_queue()
    ch.refused(
        406,
        f"invalid arg 'x-stream-offset' for queue '{queue}' in vhost '{vhost}' "
        "of queue type rabbit_classic_queue",
        "basic.consume",
        queue=queue,
        arguments={"x-stream-offset": offset},
    )


@pytest.mark.parametrize("priority", [-10, 0, Typed("l", 2**40), Typed("B", 200)])
def test_consumer_priority_may_be_any_integer(ch: RawChannel, priority: object) -> None:
    ch.consume(ch.own_queue(), arguments={"x-priority": priority})


def test_higher_priority_is_served_first_while_it_can_take(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=2)
    ch.consume(queue, "low", arguments={"x-priority": -1})
    ch.consume(queue, "normal")
    ch.consume(queue, "high", arguments={"x-priority": 5})
    feed(ch, queue, *[b"m"] * 6)
    deliveries = [ch.delivery() for _ in range(6)]
    tags = [delivery["consumer_tag"] for delivery in deliveries]
    assert tags == ["high", "high", "normal", "normal", "low", "low"]
    ch.ack(deliveries[0]["delivery_tag"])
    feed(ch, queue, b"m")
    assert ch.delivery()["consumer_tag"] == "high"


def test_consumers_of_one_priority_take_turns(ch: RawChannel) -> None:
    queue = ch.own_queue()
    for tag in ("one", "two"):
        ch.consume(queue, tag, arguments={"x-priority": 5})
    ch.consume(queue, "idle")
    feed(ch, queue, *[b"m"] * 4)
    tags = [ch.delivery()["consumer_tag"] for _ in range(4)]
    assert sorted(tags) == ["one", "one", "two", "two"]


def test_cancel_is_confirmed_after_what_was_delivered(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.consume(queue, "me", no_ack=True)
    feed(ch, queue, *[b"m"] * 50)
    ch.send("basic.cancel", consumer_tag="me")
    delivered = 0
    while (method := ch.next_method()).name == "basic.deliver":
        delivered += 1
    assert (method.name, method["consumer_tag"]) == ("basic.cancel-ok", "me")
    assert delivered + ch.ready(queue) == 50
    ch.expect_silence(queue)


def test_cancel_of_an_unknown_tag_is_confirmed(ch: RawChannel) -> None:
    assert ch.call("basic.cancel", consumer_tag="nobody")["consumer_tag"] == "nobody"


def test_cancelled_consumer_gets_no_more(ch: RawChannel) -> None:
    queue = ch.own_queue()
    tag = ch.consume(queue)
    ch.call("basic.cancel", consumer_tag=tag)
    feed(ch, queue, b"m")
    ch.expect_silence(queue)
    assert ch.consumers(queue) == 0


def test_messages_of_a_cancelled_consumer_may_still_be_acked(ch: RawChannel) -> None:
    queue = ch.own_queue()
    tag = ch.consume(queue)
    feed(ch, queue, b"1", b"2")
    one, two = ch.delivery(b"1"), ch.delivery(b"2")
    ch.call("basic.cancel", consumer_tag=tag)
    assert ch.ready(queue) == 0
    ch.ack(one["delivery_tag"])
    ch.nack(two["delivery_tag"])
    ch.becomes_ready(queue, 1)
    ch.got(queue, b"2")


def test_single_active_consumer_takes_all(ch: RawChannel) -> None:
    queue = ch.own_queue(x_single_active_consumer=True)
    other = ch.client.channel()
    ch.consume(queue, "first")
    other.consume(queue, "second")
    feed(ch, queue, b"1", b"2", b"3")
    for body in (b"1", b"2", b"3"):
        assert ch.delivery(body)["consumer_tag"] == "first"
    other.expect_silence(queue)


def test_next_consumer_takes_over_when_the_active_one_leaves(ch: RawChannel) -> None:
    """RabbitMQ 3.10.8 activates the next consumer at the next event in the queue, so the test
    publishes."""
    queue = ch.own_queue(x_single_active_consumer=True)
    ch.consume(queue, "first")
    ch.consume(queue, "second")
    feed(ch, queue, b"1")
    held = ch.delivery(b"1")
    ch.call("basic.cancel", consumer_tag="first")
    feed(ch, queue, b"2")
    assert ch.delivery(b"2")["consumer_tag"] == "second"
    # The first consumer still holds its message.
    ch.ack(held["delivery_tag"])
    ch.expect_silence(queue)


def test_unacked_messages_of_a_lost_active_consumer_go_to_the_next(
    raw: Raw, ch: RawChannel, names: Names
) -> None:
    queue = names.new()
    ch.declare(queue, arguments={"x-single-active-consumer": True})
    lost = raw()
    first = lost.channel()
    first.consume(queue, "first")
    ch.consume(queue, "second")
    feed(ch, queue, b"1")
    first.delivery(b"1")
    lost.close()
    delivery = ch.delivery(b"1")
    assert (delivery["consumer_tag"], delivery["redelivered"]) == ("second", True)


def test_better_priority_does_not_displace_the_active_consumer(ch: RawChannel) -> None:
    queue = ch.own_queue(x_single_active_consumer=True)
    ch.consume(queue, "first")
    ch.consume(queue, "low", arguments={"x-priority": 1})
    ch.consume(queue, "high", arguments={"x-priority": 10})
    feed(ch, queue, b"1")
    assert ch.delivery(b"1")["consumer_tag"] == "first"
    ch.call("basic.cancel", consumer_tag="first")
    feed(ch, queue, b"2")
    assert ch.delivery(b"2")["consumer_tag"] == "high"


def test_exclusive_consumers_are_refused_on_single_active_queues(
    ch: RawChannel, vhost: str
) -> None:
    queue = ch.own_queue(x_single_active_consumer=True)
    ch.refused(
        403,
        f"queue '{queue}' in vhost '{vhost}' in exclusive use",
        "basic.consume",
        queue=queue,
        exclusive=True,
    )


def test_prefetch_holds_for_a_single_active_consumer(ch: RawChannel) -> None:
    queue = ch.own_queue(x_single_active_consumer=True)
    ch.call("basic.qos", prefetch_count=1)
    ch.consume(queue, "first")
    ch.consume(queue, "second")
    feed(ch, queue, b"1", b"2")
    first = ch.delivery(b"1")
    ch.expect_silence(queue)
    ch.ack(first["delivery_tag"])
    assert ch.delivery(b"2")["consumer_tag"] == "first"
