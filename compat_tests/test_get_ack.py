"""basic.get and settling of deliveries: reference 5.4."""

import pytest

from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "Get, ack, nack and reject"

ACK, REJECT, NACK = (60, 80), (60, 90), (60, 120)


def holding(ch: RawChannel, count: int) -> tuple[str, list[int]]:
    """A new queue with `count` unacked messages (bodies 0, 1, 2 ...), and their delivery tags."""
    queue = ch.own_queue()
    for number in range(count):
        ch.publish(b"%d" % number, queue)
    return queue, [ch.got(queue, no_ack=False)["delivery_tag"] for _ in range(count)]


def left(ch: RawChannel, queue: str) -> list[bytes]:
    """Requeue all messages that the channel holds; returns the bodies in the queue."""
    ch.call("basic.recover", requeue=True)
    return ch.bodies(queue)


def test_get_ok_tells_how_many_are_left(ch: RawChannel) -> None:
    queue = ch.own_queue()
    for _ in range(3):
        ch.publish(b"m", queue)
    assert ch.got(queue).fields == {
        "delivery_tag": 1,
        "redelivered": False,
        "exchange": "",
        "routing_key": queue,
        "message_count": 2,
    }


def test_get_from_an_empty_queue_is_empty(ch: RawChannel) -> None:
    ch.send("basic.get", queue=ch.own_queue())
    assert ch.expect("basic.get-empty")["cluster_id"] == ""


def test_get_from_a_missing_queue_is_not_found(ch: RawChannel, names: Names, vhost: str) -> None:
    queue = names.new()
    ch.send("basic.get", queue=queue)
    ch.expect_close(404, f"no queue '{queue}' in vhost '{vhost}'", offender=(60, 70))


def test_tags_count_from_one_for_get_and_deliver_alike(ch: RawChannel) -> None:
    queue = ch.own_queue()
    for number in range(4):
        ch.publish(b"%d" % number, queue)
    tags = [ch.got(queue, no_ack=no_ack)["delivery_tag"] for no_ack in (False, True)]
    ch.consume(queue, no_ack=True)
    tags += [ch.delivery()["delivery_tag"] for _ in range(2)]
    assert tags == [1, 2, 3, 4]


def test_tags_count_from_one_on_every_channel(ch: RawChannel) -> None:
    queue, tags = holding(ch, 1)
    other = ch.client.channel()
    ch.publish(b"m", queue)
    ch.ping()
    assert [other.got(queue)["delivery_tag"]] == tags == [1]


def test_ack_removes_one_message(ch: RawChannel) -> None:
    queue, tags = holding(ch, 3)
    ch.ack(tags[1])
    assert left(ch, queue) == [b"0", b"2"]


def test_ack_multiple_removes_all_up_to_its_tag(ch: RawChannel) -> None:
    queue, tags = holding(ch, 4)
    ch.ack(tags[2], multiple=True)
    assert left(ch, queue) == [b"3"]


def test_ack_multiple_with_tag_zero_removes_all(ch: RawChannel) -> None:
    queue, _ = holding(ch, 3)
    ch.ack(0, multiple=True)
    assert left(ch, queue) == []


@pytest.mark.parametrize("verb", ["basic.ack", "basic.nack"])
def test_tag_zero_multiple_is_fine_when_nothing_is_outstanding(ch: RawChannel, verb: str) -> None:
    ch.send(verb, delivery_tag=0, multiple=True)
    ch.ping()


@pytest.mark.parametrize(
    ("verb", "offender"), [("basic.ack", ACK), ("basic.nack", NACK), ("basic.reject", REJECT)]
)
@pytest.mark.parametrize("tag", [0, 1, 99])
def test_unknown_tag_is_refused(
    ch: RawChannel, verb: str, offender: tuple[int, int], tag: int
) -> None:
    ch.send(verb, delivery_tag=tag)
    ch.expect_close(406, f"unknown delivery tag {tag}", offender)


@pytest.mark.parametrize("verb", ["basic.ack", "basic.nack", "basic.reject"])
def test_settling_twice_is_refused(ch: RawChannel, verb: str) -> None:
    _, (tag,) = holding(ch, 1)
    ch.ack(tag)
    ch.refused(406, f"unknown delivery tag {tag}", verb, delivery_tag=tag)


def test_tag_of_a_no_ack_delivery_is_unknown(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.publish(b"m", queue)
    tag = ch.got(queue, no_ack=True)["delivery_tag"]
    ch.refused(406, f"unknown delivery tag {tag}", "basic.ack", delivery_tag=tag)


def test_ack_multiple_wants_its_tag_to_be_outstanding(ch: RawChannel) -> None:
    holding(ch, 1)
    ch.refused(406, "unknown delivery tag 7", "basic.ack", delivery_tag=7, multiple=True)


def test_tags_of_another_channel_are_unknown(ch: RawChannel) -> None:
    _, (tag,) = holding(ch, 1)
    other = ch.client.channel()
    other.refused(406, f"unknown delivery tag {tag}", "basic.ack", delivery_tag=tag)


def test_refused_ack_gives_the_messages_back(ch: RawChannel) -> None:
    queue, _ = holding(ch, 2)
    ch.refused(406, "unknown delivery tag 99", "basic.ack", delivery_tag=99)
    messages = [ch.got(queue, body) for body in (b"0", b"1")]
    assert [message["redelivered"] for message in messages] == [True, True]


@pytest.mark.parametrize("verb", ["reject", "nack"])
def test_rejected_message_is_dropped(ch: RawChannel, verb: str) -> None:
    queue, (tag, _) = holding(ch, 2)
    if verb == "reject":
        ch.reject(tag, requeue=False)
    else:
        ch.nack(tag, requeue=False)
    assert left(ch, queue) == [b"1"]


def test_nack_multiple_drops_all_up_to_its_tag(ch: RawChannel) -> None:
    queue, tags = holding(ch, 4)
    ch.nack(tags[1], multiple=True, requeue=False)
    assert left(ch, queue) == [b"2", b"3"]


def test_nack_of_tag_zero_multiple_drops_all(ch: RawChannel) -> None:
    queue, _ = holding(ch, 3)
    ch.nack(0, multiple=True, requeue=False)
    assert left(ch, queue) == []


def test_nacked_messages_are_dead_lettered_oldest_first(ch: RawChannel) -> None:
    dead = ch.own_queue()
    queue = ch.own_queue(x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    for number in range(5):
        ch.publish(b"%d" % number, queue)
    for _ in range(5):
        ch.got(queue, no_ack=False)
    ch.nack(0, multiple=True, requeue=False)
    bodies = [message.body for message in ch.arriving(dead, 5)]
    assert bodies == [b"0", b"1", b"2", b"3", b"4"]


def test_unacked_messages_are_not_given_to_others(ch: RawChannel) -> None:
    queue, _ = holding(ch, 1)
    assert ch.client.channel().get(queue) is None


def test_acks_and_gets_may_be_pipelined(ch: RawChannel) -> None:
    queue = ch.own_queue()
    for number in range(20):
        ch.publish(b"%d" % number, queue)
    for tag in range(1, 21):
        ch.send("basic.get", queue=queue)
        ch.ack(tag)
    assert [ch.expect("basic.get-ok").body for _ in range(20)] == [b"%d" % n for n in range(20)]
    assert left(ch, queue) == []


def test_credit_for_an_unknown_consumer_is_refused(ch: RawChannel) -> None:
    """RabbitMQ has basic.credit for AMQP 1.0; a broker without that may not know the method."""
    ch.send("basic.credit", consumer_tag="nobody", credit=1)
    close = ch.client.next_either(ch.number)
    if close.name == "connection.close":
        assert close["reply_code"] in (503, 540)
    else:
        assert close["reply_text"] == "PRECONDITION_FAILED - unknown consumer tag 'nobody'"
