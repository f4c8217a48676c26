"""Where requeued messages go, and basic.recover: reference 4.4 and 5.4."""

import pytest

from warren.compat_tests.raw_client import RawChannel

AREA = "Order and requeue"


def filled(ch: RawChannel, count: int) -> str:
    """A queue with the messages 0, 1, 2 ...; other channels may use it, too."""
    queue = ch.own_queue()
    for number in range(count):
        ch.publish(b"%d" % number, queue)
    ch.ping()
    return queue


def take(ch: RawChannel, queue: str, count: int) -> list[int]:
    return [ch.got(queue, no_ack=False)["delivery_tag"] for _ in range(count)]


def contents(ch: RawChannel, queue: str, count: int) -> list[tuple[bytes, bool]]:
    """Wait until `count` messages are ready, and fetch them; returns body and redelivered flag of
    each."""
    ch.becomes_ready(queue, count)
    return [(message.body, message["redelivered"]) for message in ch.arriving(queue, count)]


@pytest.mark.parametrize("verb", ["reject", "nack"])
def test_nacked_message_keeps_its_place(ch: RawChannel, verb: str) -> None:
    queue = filled(ch, 4)
    tags = take(ch, queue, 3)
    ch.send(f"basic.{verb}", delivery_tag=tags[1], requeue=True)
    assert contents(ch, queue, 2) == [(b"1", True), (b"3", False)]


def test_messages_requeued_in_any_order_come_back_in_the_first(ch: RawChannel) -> None:
    queue = filled(ch, 6)
    tags = take(ch, queue, 5)
    for place in (3, 0, 4, 2, 1):
        ch.nack(tags[place])
    wanted = [(b"%d" % number, number < 5) for number in range(6)]
    assert contents(ch, queue, 6) == wanted


def test_nack_multiple_requeues_all_up_to_its_tag(ch: RawChannel) -> None:
    queue = filled(ch, 4)
    tags = take(ch, queue, 4)
    ch.nack(tags[2], multiple=True)
    assert contents(ch, queue, 3) == [(b"0", True), (b"1", True), (b"2", True)]


def test_nack_of_tag_zero_multiple_requeues_all(ch: RawChannel) -> None:
    queue = filled(ch, 3)
    take(ch, queue, 3)
    ch.nack(0, multiple=True)
    assert contents(ch, queue, 3) == [(b"0", True), (b"1", True), (b"2", True)]


def test_requeue_goes_before_messages_published_meanwhile(ch: RawChannel) -> None:
    queue = filled(ch, 1)
    (tag,) = take(ch, queue, 1)
    ch.publish(b"new", queue)
    ch.nack(tag)
    assert contents(ch, queue, 2) == [(b"0", True), (b"new", False)]


def test_requeued_message_goes_to_a_waiting_consumer(ch: RawChannel) -> None:
    queue = filled(ch, 1)
    (tag,) = take(ch, queue, 1)
    other = ch.client.channel()
    other.consume(queue)
    ch.nack(tag)
    assert other.delivery(b"0")["redelivered"] is True


def test_lone_consumer_gets_its_own_rejected_message_again(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.consume(queue)
    ch.publish(b"m", queue)
    first = ch.delivery(b"m")
    ch.reject(first["delivery_tag"])
    second = ch.delivery(b"m")
    assert (first["redelivered"], second["redelivered"]) == (False, True)
    assert second["delivery_tag"] == 2


def test_redelivered_is_not_set_on_messages_nobody_took(ch: RawChannel) -> None:
    queue = filled(ch, 3)
    other = ch.client.channel()
    take(other, queue, 1)
    other.close()
    assert contents(ch, queue, 3) == [(b"0", True), (b"1", False), (b"2", False)]


def test_recover_requeues_all_of_the_channel(ch: RawChannel) -> None:
    queue = filled(ch, 3)
    take(ch, queue, 2)
    ch.call("basic.recover", requeue=True)
    assert contents(ch, queue, 3) == [(b"0", True), (b"1", True), (b"2", False)]


def test_recover_delivers_to_the_consumer_again(ch: RawChannel) -> None:
    queue = filled(ch, 2)
    ch.consume(queue)
    ch.delivery(b"0")
    ch.delivery(b"1")
    ch.send("basic.recover", requeue=True)
    methods = [ch.next_method() for _ in range(3)]
    assert sorted(method.name for method in methods) == [
        "basic.deliver",
        "basic.deliver",
        "basic.recover-ok",
    ]
    deliveries = [method for method in methods if method.name == "basic.deliver"]
    assert [(method.body, method["redelivered"]) for method in deliveries] == [
        (b"0", True),
        (b"1", True),
    ]


def test_recover_leaves_other_channels_alone(ch: RawChannel) -> None:
    queue = filled(ch, 2)
    other = ch.client.channel()
    (theirs,) = take(other, queue, 1)
    take(ch, queue, 1)
    ch.call("basic.recover", requeue=True)
    assert contents(ch, queue, 1) == [(b"1", True)]
    other.ack(theirs)
    other.ping()


def test_recover_async_requeues_without_an_answer(ch: RawChannel) -> None:
    queue = filled(ch, 2)
    take(ch, queue, 2)
    ch.send("basic.recover-async", requeue=True)
    assert contents(ch, queue, 2) == [(b"0", True), (b"1", True)]


def test_recovered_tags_are_unknown(ch: RawChannel) -> None:
    queue = filled(ch, 1)
    (tag,) = take(ch, queue, 1)
    ch.call("basic.recover", requeue=True)
    ch.refused(406, f"unknown delivery tag {tag}", "basic.ack", delivery_tag=tag)


@pytest.mark.parametrize(
    ("verb", "offender"), [("basic.recover", (60, 110)), ("basic.recover-async", (60, 100))]
)
def test_recover_without_requeue_is_not_implemented(
    ch: RawChannel, verb: str, offender: tuple[int, int]
) -> None:
    ch.send(verb, requeue=False)
    ch.client.expect_close(540, "requeue=false", offender=offender)


def test_order_holds_over_many_random_requeues(ch: RawChannel) -> None:
    queue = filled(ch, 60)
    for stride in (2, 3, 7):
        tags = take(ch, queue, 60)
        for start in range(stride):
            for tag in tags[start::stride]:
                ch.nack(tag)
        ch.becomes_ready(queue, 60)
    assert ch.bodies(queue) == [b"%d" % number for number in range(60)]


def test_recover_is_answered_before_it_redelivers(ch: RawChannel) -> None:
    queue = filled(ch, 1)
    ch.consume(queue)
    ch.delivery(b"0")
    ch.send("basic.recover", requeue=True)
    assert ch.next_method().name == "basic.recover-ok"
    assert ch.delivery(b"0")["redelivered"]
