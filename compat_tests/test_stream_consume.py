"""Streams: where readers begin, what they get, what acknowledgements do (stream reference)."""

import time
from typing import Any

import pytest

from warren.compat_tests.field_table import Typed
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.streams import (
    OFFSET,
    described,
    fill,
    offset_of,
    read,
    read_from,
    stream,
)

AREA = "Streams: consuming"


def test_prefetch_is_needed(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = stream(ch, names)
    told = f"consumer prefetch count is not set for '{described(queue, vhost)}'"
    ch.refused(406, told, "basic.consume", queue=queue)


def test_global_prefetch_alone_does_not_count(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = stream(ch, names)
    ch.call("basic.qos", prefetch_count=5, **{"global": True})
    told = f"consumer prefetch count is not set for '{described(queue, vhost)}'"
    ch.refused(406, told, "basic.consume", queue=queue)


def test_global_prefetch(client: RawClient, ch: RawChannel, names: Names, vhost: str) -> None:
    queue = stream(ch, names)
    ch.call("basic.qos", prefetch_count=5)
    ch.call("basic.qos", prefetch_count=5, **{"global": True})
    ch.send("basic.consume", queue=queue)
    client.expect_close(540, f"{described(queue, vhost)} does not support global qos")


def test_no_ack(client: RawClient, ch: RawChannel, names: Names, vhost: str) -> None:
    queue = stream(ch, names)
    ch.call("basic.qos", prefetch_count=5)
    ch.send("basic.consume", queue=queue, no_ack=True)
    told = f"automatic acknowledgement not supported by stream queues {described(queue, vhost)}"
    client.expect_close(540, told)


@pytest.mark.parametrize(
    ("key", "value"), [("x-priority", 5), ("x-cancel-on-ha-failover", True)], ids=str
)
def test_argument_it_does_not_know(
    ch: RawChannel, names: Names, vhost: str, key: str, value: Any
) -> None:
    queue = stream(ch, names)
    ch.call("basic.qos", prefetch_count=5)
    told = f"invalid arg '{key}' for {described(queue, vhost)} of queue type rabbit_stream_queue"
    ch.refused(406, told, "basic.consume", queue=queue, arguments={key: value})


def test_exclusive_means_nothing(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    ch.call("basic.qos", prefetch_count=5)
    ch.consume(queue, exclusive=True)
    ch.consume(queue, exclusive=True)
    fill(ch, queue, 1)
    assert [ch.delivery().body, ch.delivery().body] == [b"0", b"0"]


@pytest.mark.parametrize("offset", ["5", "0s"])
def test_offset_that_means_nothing(ch: RawChannel, names: Names, vhost: str, offset: str) -> None:
    queue = stream(ch, names)
    ch.call("basic.qos", prefetch_count=5)
    told = (
        f"invalid arg 'x-stream-offset' for {described(queue, vhost)}: "
        f'{{invalid_stream_offset_arg,{{longstr,<<"{offset}">>}}}}'
    )
    ch.refused(406, told, "basic.consume", queue=queue, arguments={OFFSET: offset})


@pytest.mark.parametrize(
    ("offset", "first"),
    [
        ("first", 0),
        ("last", 4),
        (0, 0),
        (3, 3),
        (-7, 0),
        (Typed("T", 1), 0),
        ("1h", 0),
        ("1Y", 0),
    ],
    ids=str,
)
def test_where_a_reader_begins(ch: RawChannel, names: Names, offset: Any, first: int) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 5)
    read_from(ch, queue, offset)
    for number in range(first, 5):
        delivery = ch.delivery(b"%d" % number)
        assert offset_of(delivery) == number
        assert not delivery["redelivered"]
    ch.expect_silence()


@pytest.mark.parametrize("offset", [None, "next", Typed("T", 4_000_000_000)], ids=str)
def test_reader_of_what_is_to_come(ch: RawChannel, names: Names, offset: Any) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 3)
    read_from(ch, queue, offset)
    ch.expect_silence()
    fill(ch, queue, 2, first=3)
    assert [offset_of(ch.delivery(b"3")), offset_of(ch.delivery(b"4"))] == [3, 4]


def test_offset_beyond_the_end_is_waited_for(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 2)
    read_from(ch, queue, 4)
    fill(ch, queue, 4, first=2)
    assert [offset_of(ch.delivery(b"4")), offset_of(ch.delivery(b"5"))] == [4, 5]
    ch.expect_silence()


@pytest.mark.slow
def test_time_between_two_messages(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 2)
    # Times of AMQP are whole seconds.
    between = int(time.time()) + 2
    time.sleep(between + 0.5 - time.time())
    fill(ch, queue, 2, first=2)
    read_from(ch, queue, Typed("T", between))
    assert read(ch, 2) == [b"2", b"3"]


def test_many_readers_each_at_its_own_place(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 10)
    other = ch.client.channel()
    read_from(ch, queue, "first")
    read_from(other, queue, 5)
    assert read(ch, 10) == [b"%d" % number for number in range(10)]
    assert read(other, 5) == [b"%d" % number for number in range(5, 10)]
    again = ch.client.channel()
    read_from(again, queue, "first")
    assert read(again, 10) == [b"%d" % number for number in range(10)]


def test_acknowledgements_are_credit(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 4)
    read_from(ch, queue, "first", prefetch=1)
    tag = ch.delivery(b"0")["delivery_tag"]
    ch.expect_silence()
    ch.ack(tag)
    tag = ch.delivery(b"1")["delivery_tag"]
    ch.ack(tag, multiple=True)
    ch.delivery(b"2")
    ch.expect_silence()


def test_no_position_is_kept(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 2)
    tag = read_from(ch, queue, "first")
    assert read(ch, 2) == [b"0", b"1"]
    ch.call("basic.cancel", consumer_tag=tag)
    read_from(ch, queue, "first")
    assert read(ch, 2) == [b"0", b"1"]


def test_properties_travel(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    headers = {"a": 1, "b": "text", OFFSET: "mine"}
    fill(ch, queue, 1, headers=headers, delivery_mode=1, message_id="m", expiration="1", priority=3)
    fill(ch, queue, 1, first=1)
    read_from(ch, queue, "first")
    kept = ch.delivery(b"0").properties
    assert kept["headers"] == {"a": 1, "b": "text", OFFSET: 0}
    assert kept["message_id"] == "m"
    assert kept["expiration"] == "1"
    assert kept["priority"] == 3
    bare = ch.delivery(b"1").properties
    assert bare == {"headers": {OFFSET: 1}}


def test_offset_is_a_long(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 1)
    read_from(ch, queue, "first")
    assert ch.delivery(b"0").typed_headers == {OFFSET: Typed("l", 0)}


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("method", ["basic.nack", "basic.reject"])
def test_nothing_is_taken_back(
    client: RawClient, ch: RawChannel, names: Names, vhost: str, method: str, requeue: bool
) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 1)
    read_from(ch, queue, "first")
    tag = ch.delivery(b"0")["delivery_tag"]
    ch.send(method, delivery_tag=tag, requeue=requeue)
    told = f"basic.nack and basic.reject not supported by stream queues {described(queue, vhost)}"
    client.expect_close(540, told)


def test_transactions(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 3)
    ch.call("tx.select")
    read_from(ch, queue, "first", prefetch=1)
    ch.publish(b"in tx", queue)
    tag = ch.delivery(b"0")["delivery_tag"]
    ch.ack(tag)
    ch.expect_silence()
    ch.send("tx.commit")
    came = {method.name: method for method in (ch.next_method(), ch.next_method())}
    assert came.keys() == {"tx.commit-ok", "basic.deliver"}
    assert came["basic.deliver"].body == b"1"


def test_reader_is_cut_off_with_its_channel(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 3)
    other = ch.client.channel()
    read_from(other, queue, "first", prefetch=1)
    other.delivery(b"0")
    other.close()
    read_from(ch, queue, "first")
    assert [ch.delivery()["redelivered"] for _ in range(3)] == [False] * 3
