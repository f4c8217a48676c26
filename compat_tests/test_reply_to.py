"""Direct reply-to: reference 8."""

from warren.compat_tests.factory import Raw
from warren.compat_tests.raw_client import RawChannel

AREA = "Direct reply-to"

QUEUE = "amq.rabbitmq.reply-to"


def asking(ch: RawChannel) -> str:
    """Makes this channel await replies; returns the name that its requests carry."""
    ch.consume(QUEUE, no_ack=True)
    service = ch.own_queue()
    ch.publish(b"request", service, reply_to=QUEUE)
    name: str = ch.got(service, b"request").properties["reply_to"]
    return name


def test_request_carries_a_name_of_its_own(ch: RawChannel) -> None:
    name = asking(ch)
    assert name.startswith(f"{QUEUE}.")
    assert len(name) > len(QUEUE) + 10


def test_names_of_two_channels_differ(ch: RawChannel) -> None:
    assert asking(ch) != asking(ch.client.channel())


def test_reply_comes_straight_to_the_channel(raw: Raw, ch: RawChannel) -> None:
    name = asking(ch)
    server = raw().channel()
    server.publish(b"reply", name, correlation_id="7")
    reply = ch.delivery(b"reply")
    assert (reply["exchange"], reply["routing_key"]) == ("", name)
    assert reply["redelivered"] is False
    assert reply.properties == {"correlation_id": "7"}


def test_other_properties_of_a_request_stay(ch: RawChannel) -> None:
    ch.consume(QUEUE, no_ack=True)
    service = ch.own_queue()
    ch.publish(b"m", service, reply_to=QUEUE, correlation_id="1", headers={"a": 1}, priority=3)
    properties = ch.got(service).properties
    del properties["reply_to"]
    assert properties == {"correlation_id": "1", "headers": {"a": 1}, "priority": 3}


def test_other_reply_to_values_are_left_alone(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.publish(b"m", queue, reply_to="my-queue")
    assert ch.got(queue).properties == {"reply_to": "my-queue"}


def test_many_replies_keep_their_order(raw: Raw, ch: RawChannel) -> None:
    name = asking(ch)
    server = raw().channel()
    for number in range(50):
        server.publish(b"%d" % number, name)
    assert [ch.delivery().body for _ in range(50)] == [b"%d" % number for number in range(50)]


def test_request_without_a_consumer_is_refused(ch: RawChannel) -> None:
    ch.publish(b"m", ch.own_queue(), reply_to=QUEUE)
    ch.expect_close(406, "fast reply consumer does not exist", offender=(60, 40))


def test_consumer_of_another_channel_does_not_help(ch: RawChannel) -> None:
    ch.client.channel().consume(QUEUE, no_ack=True)
    ch.publish(b"m", ch.own_queue(), reply_to=QUEUE)
    ch.expect_close(406, "fast reply consumer does not exist")


def test_second_reply_consumer_is_refused(ch: RawChannel) -> None:
    ch.consume(QUEUE, no_ack=True)
    ch.refused(406, "reply consumer already set", "basic.consume", queue=QUEUE, no_ack=True)


def test_reply_consumer_must_not_ack(ch: RawChannel) -> None:
    ch.refused(406, "reply consumer cannot acknowledge", "basic.consume", queue=QUEUE)


def test_declaring_the_pseudo_queue_tells_of_a_consumer(ch: RawChannel) -> None:
    reply = ch.declare(QUEUE, passive=True)
    assert reply.fields == {"queue": QUEUE, "message_count": 0, "consumer_count": 1}


def test_declaring_a_live_name_tells_whether_somebody_waits(raw: Raw, ch: RawChannel) -> None:
    asker = raw()
    name = asking(asker.channel())
    reply = ch.declare(name, passive=True)
    assert (reply["message_count"], reply["consumer_count"]) == (0, 1)
    asker.close()
    assert not ch.queue_exists(name)


def test_mandatory_reply_is_delivered_and_returned(raw: Raw, ch: RawChannel) -> None:
    """RabbitMQ returns it because no queue takes it, and delivers it all the same."""
    name = asking(ch)
    server = raw().channel()
    server.call("confirm.select")
    server.publish(b"reply", name, mandatory=True)
    assert server.expect("basic.return")["reply_code"] == 312
    assert server.confirms(1) == [("ack", 1)]
    ch.delivery(b"reply")


def test_reply_to_a_channel_that_is_gone_is_dropped(raw: Raw, ch: RawChannel) -> None:
    asker = raw()
    name = asking(asker.channel())
    asker.close()
    ch.call("confirm.select")
    ch.publish(b"reply", name)
    assert ch.confirms(1) == [("ack", 1)]


def test_replies_do_not_use_up_delivery_tags(raw: Raw, ch: RawChannel) -> None:
    """They need no ack, and bear the tag that the next real delivery will have."""
    name = asking(ch)
    queue = ch.own_queue()
    server = raw().channel()
    for _ in range(2):
        server.publish(b"reply", name)
        assert ch.delivery(b"reply")["delivery_tag"] == 2
    ch.publish(b"m", queue)
    assert ch.got(queue)["delivery_tag"] == 2


def test_cancel_ends_the_replies(raw: Raw, ch: RawChannel) -> None:
    tag = ch.consume(QUEUE, no_ack=True)
    service = ch.own_queue()
    ch.publish(b"request", service, reply_to=QUEUE)
    name = ch.got(service).properties["reply_to"]
    ch.call("basic.cancel", consumer_tag=tag)
    server = raw().channel()
    server.publish(b"reply", name)
    server.ping()
    ch.expect_silence()
    ch.consume(QUEUE, no_ack=True)


def test_consume_ok_names_the_tag(ch: RawChannel) -> None:
    assert ch.consume(QUEUE, "replies", no_ack=True) == "replies"
    service = ch.own_queue()
    ch.publish(b"request", service, reply_to=QUEUE)
    ch.publish(b"reply", ch.got(service).properties["reply_to"])
    assert ch.delivery(b"reply")["consumer_tag"] == "replies"


def test_reply_may_be_named_in_cc(ch: RawChannel) -> None:
    name = asking(ch)
    queue = ch.own_queue()
    ch.publish(b"both", queue, headers={"CC": [name]})
    ch.delivery(b"both")
    ch.got(queue, b"both")


def test_reply_may_go_to_a_queue_as_well(ch: RawChannel) -> None:
    name = asking(ch)
    queue = ch.own_queue()
    ch.publish(b"both", name, headers={"CC": [queue]})
    ch.delivery(b"both")
    ch.got(queue, b"both")


def test_dead_letter_may_be_a_reply(ch: RawChannel) -> None:
    name = asking(ch)
    queue = ch.own_queue(x_message_ttl=1, x_dead_letter_exchange="", x_dead_letter_routing_key=name)
    ch.publish(b"late", queue)
    ch.delivery(b"late")


def test_reply_does_not_wait_for_a_commit(ch: RawChannel) -> None:
    name = asking(ch)
    answering = ch.client.channel()
    answering.call("tx.select")
    answering.publish(b"reply", name)
    ch.delivery(b"reply")


def test_reply_consumer_may_share_its_tag(ch: RawChannel) -> None:
    """Cancelling the tag ends the replies first."""
    queue = ch.own_queue()
    ch.consume(QUEUE, "shared", no_ack=True)
    ch.consume(queue, "shared", no_ack=True)
    ch.call("basic.cancel", consumer_tag="shared")
    ch.publish(b"m", queue)
    ch.delivery(b"m")
    ch.call("basic.cancel", consumer_tag="shared")
    ch.consume(QUEUE, "shared", no_ack=True)


def test_reply_consumer_may_not_take_a_tag_in_use(ch: RawChannel) -> None:
    ch.consume(ch.own_queue(), "me")
    ch.send("basic.consume", queue=QUEUE, consumer_tag="me", no_ack=True)
    ch.client.expect_close(530, "attempt to reuse consumer tag 'me'", offender=(60, 20))


def test_pseudo_queue_may_be_the_last_declared_one(ch: RawChannel) -> None:
    ch.declare(QUEUE)
    ch.consume("", no_ack=True)
    ch.refused(406, "reply consumer already set", "basic.consume", queue=QUEUE, no_ack=True)
