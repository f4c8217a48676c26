"""Prefetch: reference 5.1."""

import pytest

from warren.compat_tests.raw_client import RawChannel

AREA = "Prefetch"


def feed(ch: RawChannel, queue: str, count: int) -> None:
    for number in range(count):
        ch.publish(b"%d" % number, queue)


def takes(ch: RawChannel, queue: str, count: int) -> list[int]:
    """Wait for `count` deliveries, and check that no more come; returns their tags."""
    tags = [ch.delivery()["delivery_tag"] for _ in range(count)]
    ch.expect_silence(queue)
    return tags


def test_prefetch_size_is_not_implemented(ch: RawChannel) -> None:
    ch.send("basic.qos", prefetch_size=100)
    ch.client.expect_close(540, "prefetch_size!=0 (100)", offender=(60, 10))


def test_without_prefetch_all_is_delivered(ch: RawChannel) -> None:
    queue = ch.own_queue()
    feed(ch, queue, 30)
    ch.consume(queue)
    takes(ch, queue, 30)


def test_consumer_holds_as_many_as_prefetched(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=3)
    feed(ch, queue, 6)
    ch.consume(queue)
    tags = takes(ch, queue, 3)
    ch.ack(tags[0])
    takes(ch, queue, 1)
    ch.ack(tags[2], multiple=True)
    takes(ch, queue, 2)


@pytest.mark.parametrize("verb", ["ack", "reject", "nack"])
def test_every_way_of_settling_makes_room(ch: RawChannel, verb: str) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=1)
    feed(ch, queue, 2)
    ch.consume(queue)
    (tag,) = takes(ch, queue, 1)
    if verb == "ack":
        ch.ack(tag)
    elif verb == "reject":
        ch.reject(tag, requeue=False)
    else:
        ch.nack(tag, requeue=False)
    ch.delivery(b"1")


def test_limit_is_per_consumer_and_holds_for_later_ones(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=1)
    ch.consume(queue, "one")
    ch.call("basic.qos", prefetch_count=2)
    ch.consume(queue, "two")
    feed(ch, queue, 6)
    tags = [ch.delivery()["consumer_tag"] for _ in range(3)]
    assert sorted(tags) == ["one", "two", "two"]
    ch.expect_silence(queue)


def test_limit_of_a_running_consumer_does_not_change(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=1)
    ch.consume(queue)
    feed(ch, queue, 5)
    takes(ch, queue, 1)
    ch.call("basic.qos", prefetch_count=10)
    ch.expect_silence(queue)


def test_limit_belongs_to_its_channel(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=1)
    other = ch.client.channel()
    feed(ch, queue, 5)
    ch.ping()
    other.consume(queue)
    takes(other, queue, 5)


def test_global_limit_is_shared_by_all_consumers(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=3, **{"global": True})
    ch.consume(queue, "one")
    ch.consume(queue, "two")
    feed(ch, queue, 6)
    tags = takes(ch, queue, 3)
    ch.ack(tags[-1], multiple=True)
    takes(ch, queue, 3)


def test_global_limit_applies_at_once_and_raising_it_resumes(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=1, **{"global": True})
    ch.consume(queue)
    feed(ch, queue, 5)
    takes(ch, queue, 1)
    ch.send("basic.qos", prefetch_count=3, **{"global": True})
    ch.expect("basic.qos-ok")
    takes(ch, queue, 2)


def test_global_limit_of_zero_removes_it(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=1, **{"global": True})
    ch.consume(queue)
    feed(ch, queue, 5)
    takes(ch, queue, 1)
    ch.call("basic.qos", prefetch_count=0, **{"global": True})
    takes(ch, queue, 4)


def test_global_limit_counts_what_was_unacked_before(ch: RawChannel) -> None:
    queue = ch.own_queue()
    feed(ch, queue, 5)
    for _ in range(2):
        ch.got(queue, no_ack=False)
    ch.call("basic.qos", prefetch_count=3, **{"global": True})
    ch.consume(queue)
    takes(ch, queue, 1)


def test_both_limits_must_leave_room(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=2)
    ch.call("basic.qos", prefetch_count=3, **{"global": True})
    ch.consume(queue, "one")
    feed(ch, queue, 6)
    takes(ch, queue, 2)
    ch.consume(queue, "two")
    takes(ch, queue, 1)


def test_get_is_never_limited(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=1, **{"global": True})
    feed(ch, queue, 3)
    for number in range(3):
        ch.got(queue, b"%d" % number, no_ack=False)


def test_no_ack_consumers_are_not_limited(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=1)
    feed(ch, queue, 10)
    ch.consume(queue, no_ack=True)
    takes(ch, queue, 10)


def test_cancelling_leaves_the_room_of_others_alone(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=1)
    feed(ch, queue, 3)
    one = ch.consume(queue)
    takes(ch, queue, 1)
    ch.call("basic.cancel", consumer_tag=one)
    ch.consume(queue)
    takes(ch, queue, 1)


def test_limit_per_consumer_said_last_clears_the_global_one(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.call("basic.qos", prefetch_count=1, **{"global": True})
    ch.call("basic.qos", prefetch_count=3)
    ch.consume(queue)
    feed(ch, queue, 6)
    takes(ch, queue, 3)


def test_what_get_fetches_later_leaves_the_global_limit_alone(ch: RawChannel) -> None:
    fetched, consumed = ch.own_queue(), ch.own_queue()
    feed(ch, fetched, 1)
    feed(ch, consumed, 1)
    ch.call("basic.qos", prefetch_count=1, **{"global": True})
    ch.got(fetched, no_ack=False)
    ch.consume(consumed)
    takes(ch, consumed, 1)


def test_global_limit_starves_no_consumer(ch: RawChannel) -> None:
    """RabbitMQ chooses the next consumer at random; after some acks each consumer has had one."""
    ch.call("basic.qos", prefetch_count=1, **{"global": True})
    queues = [ch.own_queue() for _ in range(3)]
    tags = {ch.consume(queue) for queue in queues}
    for queue in queues:
        feed(ch, queue, 60)
    served = set()
    for _ in range(60):
        delivery = ch.delivery()
        served.add(delivery["consumer_tag"])
        ch.ack(delivery["delivery_tag"])
    assert served == tags


@pytest.mark.parametrize("how", ["raised", "removed", "settled"])
def test_consumers_of_a_queue_share_the_room_of_a_global_limit(ch: RawChannel, how: str) -> None:
    queue = ch.own_queue()
    most = 4 if how == "settled" else 1
    ch.call("basic.qos", prefetch_count=most, **{"global": True})
    feed(ch, queue, most + 4)
    for tag in ("one", "two"):
        ch.consume(queue, tag)
        if tag == "one":
            first = [ch.delivery() for _ in range(most)]
    if how == "settled":
        ch.ack(first[-1]["delivery_tag"], multiple=True)
    else:
        limit = 5 if how == "raised" else 0
        ch.call("basic.qos", prefetch_count=limit, **{"global": True})
    tags = sorted(ch.delivery()["consumer_tag"] for _ in range(4))
    assert tags == ["one", "one", "two", "two"]


def test_requeued_message_comes_again_under_a_global_limit(ch: RawChannel) -> None:
    """Its queue may learn of the free place first: then RabbitMQ delivers the next message before
    it."""
    queue = ch.own_queue()
    feed(ch, queue, 3)
    ch.call("basic.qos", prefetch_count=1, **{"global": True})
    ch.consume(queue)
    ch.nack(ch.delivery(b"0")["delivery_tag"], requeue=True)
    came = []
    for _ in range(3):
        delivery = ch.delivery()
        came.append((delivery.body, delivery["redelivered"]))
        ch.ack(delivery["delivery_tag"])
    assert sorted(came) == [(b"0", True), (b"1", False), (b"2", False)]
    assert came.index((b"0", True)) < 2
